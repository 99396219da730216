"""Reference tables on real servers: one slot, several tables, each with its own place in it."""

from __future__ import annotations

import pytest

from penstock.contracts import ReferenceTableSource
from penstock.errors import PositionError
from penstock.reference.checkpoint import acknowledged
from tests.fixtures.references import Dimensions, await_changes, read_snapshot, told
from tests.fixtures.waiting import wait_until


def fill(dims: Dimensions, *tables: str) -> None:
    for table in tables:
        dims.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, name text)")
        dims.execute(f"INSERT INTO {table} VALUES (1, 'one'), (2, 'two')")


def test_a_snapshot_then_changes_without_gap_or_overlap(dims: Dimensions) -> None:
    """E90, E91: the contract of one table, from its first poll on."""
    fill(dims, "city")
    source = dims.capture().table("city")
    assert isinstance(source, ReferenceTableSource)
    assert not source.is_snapshot_complete()
    assert source.poll_changes() is None, "before completion: nothing, and nothing is consumed"
    first = source.poll_snapshot()
    assert first is not None and first.to_pylist() == [{"id": 1, "name": "one"}, {"id": 2, "name": "two"}]
    assert not source.is_snapshot_complete()
    dims.execute("INSERT INTO city VALUES (3, 'three')")
    assert source.poll_changes() is None
    for _ in range(3):
        assert source.poll_snapshot() is None
        assert source.is_snapshot_complete()
    dims.execute("UPDATE city SET id = 4 WHERE id = 1")
    dims.execute("TRUNCATE city")
    found = await_changes(source, 4)
    assert told(found) == [
        ("insert", 3), ("update_preimage", 1), ("update_postimage", 4), ("truncate", None),
    ]  # fmt: skip
    assert [change["_seq"] for change in found] == [0, 0, 0, 0]
    assert found[0]["_commit_lsn"] < found[1]["_commit_lsn"] == found[2]["_commit_lsn"] < found[3]["_commit_lsn"]
    assert source.poll_changes() is None
    dims.execute("INSERT INTO city VALUES (5, 'five')")
    assert told(await_changes(source)) == [("insert", 5)], "None was not the end"


def test_a_checkpoint_is_pure_and_covers_what_was_delivered(dims18: Dimensions) -> None:
    """E92: a hundred checkpoints move nothing; what is buffered is not covered; a cut transaction does not pass."""
    fill(dims18, "city")
    source = dims18.capture().table("city")
    before = source.checkpoint()
    read_snapshot(source)
    dims18.execute("INSERT INTO city SELECT n, 'x' FROM generate_series(10, 40000) AS n")
    dims18.execute("INSERT INTO city VALUES (3, 'three')")
    wait_until(lambda: source._capture.wait(1), what="the transaction")
    start = source.checkpoint()
    first = await_changes(source)
    assert len(first) < 39_991
    slot, cut = dims18.confirmed(), source.checkpoint()
    assert all(source.checkpoint() == cut for _ in range(100))
    assert cut.position == (first[-1]["_commit_lsn"], first[-1]["_seq"])
    assert acknowledged(cut) == acknowledged(start), "the transaction is not whole yet"
    source.confirm(cut)
    rest = await_changes(source, 39_992 - len(first))
    assert told(rest)[-1] == ("insert", 3)
    assert dims18.confirmed() < cut.position.lsn, "nothing but a whole transaction that is confirmed moves the slot"
    source.restore(cut)
    assert await_changes(source, len(rest)) == rest, "a restored source goes on exactly behind the checkpoint"
    source.confirm(source.checkpoint())
    wait_until(lambda: dims18.confirmed() > max(slot, cut.position.lsn), what="the slot to move")
    with pytest.raises(PositionError, match="has passed"):
        source.restore(cut)
    source.restore(before)
    assert not source.is_snapshot_complete()
    assert len(read_snapshot(source)) == 39_994
