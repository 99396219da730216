"""A stream that starts with what its table holds, then follows the changes since."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import ConfigError, PenstockError
from tests.fixtures.streams import Rows, Steps, Streamed
from tests.fixtures.waiting import wait_until

HOLDERS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"


def fill(steps: Steps | Streamed, rows: int = 2000) -> None:
    steps.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text, j jsonb)")
    steps.execute(
        "INSERT INTO t SELECT n, repeat('x', 200), jsonb_build_object('n', n) FROM generate_series(1, %s) n", rows
    )


def replayed(rows: Rows) -> dict[int, Any]:
    table: dict[int, Any] = {}
    for row in rows:
        if row["_change_type"] in ("delete", "update_preimage"):
            table.pop(row["id"], None)
        else:
            table[row["id"]] = row["v"]
    return table


def stored(steps: Steps | Streamed) -> dict[int, Any]:
    return dict(steps.execute("SELECT id, v FROM t"))


def until_streaming(steps: Steps) -> Rows:
    """Batches until the last chunk is done."""
    rows = steps.batch()
    while steps.offsets[-1].get("chunk") != steps.offsets[-1].get("chunks"):
        rows += steps.batch()
    return rows


def test_an_uninterrupted_start_is_exact(steps: Steps) -> None:
    """E50, E51, E100: each row of the slot's moment once, each later change once, whatever is written meanwhile."""
    fill(steps)
    steps.begin(table="t", startingPosition="snapshot", maxRowsPerTrigger=500)
    assert steps.batch() == []  # the plan is written down, and the slot made
    steps.execute("INSERT INTO t VALUES (-1, 'late')")
    steps.execute("DELETE FROM t WHERE id = 1")
    steps.execute("UPDATE t SET v = 'changed' WHERE id = 2000")
    seeded = until_streaming(steps)
    assert len(steps.offsets) > 3
    assert sorted(row["id"] for row in seeded) == list(range(1, 2001))
    assert {(row["_change_type"], row["_xid"], row["_commit_timestamp"]) for row in seeded} == {("insert", None, None)}
    assert len({(row["_commit_lsn"], row["_seq"]) for row in seeded}) == 2000
    changes = steps.rows(3)
    assert [(row["_change_type"], row["id"]) for row in changes] == [
        ("insert", -1), ("delete", 1), ("update_postimage", 2000),
    ]  # fmt: skip
    assert all(row["_commit_lsn"] > seeded[0]["_commit_lsn"] for row in changes)
    assert replayed(seeded + changes) == stored(steps)
    wait_until(lambda: not steps.execute(HOLDERS), what="the snapshot to be let go")


def test_a_start_that_was_killed_is_finished_in_a_fresh_snapshot_and_converges(steps: Steps) -> None:
    """E52, E100: the rest of the chunks, and every change since the slot's start."""
    fill(steps)
    steps.begin(table="t", startingPosition="snapshot", maxRowsPerTrigger=500)
    rows = steps.batch() + steps.batch()
    wait_until(steps.poll, what="the next chunk")
    planned = steps.read()  # planned and read, but not committed
    steps.execute("DELETE FROM t WHERE id % 3 = 0")
    steps.execute("UPDATE t SET v = 'moved' WHERE id % 3 = 1")
    steps.restart()
    again = steps.read()
    assert {row["id"] for row in again} <= {row["id"] for row in planned} | set(range(1, 2001))
    steps.commit()
    rows += again + until_streaming(steps)
    while replayed(rows) != stored(steps):
        rows += steps.batch()
    assert steps.offsets[-1].get("chunk") is None


def test_the_snapshot_of_a_slot_that_was_there_before_converges(steps: Steps) -> None:
    """E50: a run that died between making the slot and writing down its plan."""
    fill(steps, 100)
    steps.execute("CREATE PUBLICATION pub FOR TABLE t")
    steps.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", steps.slot)
    steps.execute("UPDATE t SET v = 'before' WHERE id = 1")
    steps.begin(table="t", publication="pub", startingPosition="snapshot")
    rows = steps.batch() + until_streaming(steps)
    assert len(rows) == 100
    rows += steps.rows(1)
    assert replayed(rows) == stored(steps)


def test_a_snapshot_row_and_a_streamed_row_of_the_same_state_are_equal(steps: Steps) -> None:
    """E4, E104: value by value, what the type cannot hold included."""
    steps.execute(
        """CREATE TABLE t (id int PRIMARY KEY, a numeric(10,2), b numeric, c timestamptz, d date, e bytea, f jsonb,
           g uuid, h char(5), i text[], k interval, l time, m float8, n boolean, o inet, p int4range)"""
    )
    rows = """(1, 1.50, 1.2300, '2024-02-29 12:00:00.123456+02', '2024-02-29', '\\x00ff', '{"a": [1, null]}',
               gen_random_uuid(), 'ab', '{a,NULL,"NULL"}', '1 day', '24:00', 'NaN', true, '10.0.0.1/8', '[1,5)'),
              (2, 'NaN', 'Infinity', 'infinity', '20240-01-01', '', 'null', NULL, NULL, NULL, NULL, NULL, '-0', NULL,
               NULL, NULL)"""
    steps.execute(f"INSERT INTO t VALUES {rows}")
    steps.begin(table="t", startingPosition="snapshot", unrepresentable="null")
    seeded = steps.batch() + until_streaming(steps)
    steps.execute("DELETE FROM t")
    assert len(steps.rows(2)) == 2
    steps.execute("CREATE TABLE kept AS SELECT * FROM t")
    steps.execute(f"INSERT INTO t VALUES {rows.replace('gen_random_uuid()', repr(str(seeded[0]['g'])))}")
    streamed = steps.rows(2)
    added = ("_change_type", "_commit_lsn", "_seq", "_xid", "_commit_timestamp")
    for one, other in zip(seeded, streamed, strict=True):
        assert {k: repr(v) for k, v in one.items() if k not in added} == {
            k: repr(v) for k, v in other.items() if k not in added
        }
    assert streamed[1]["_missing"] == ["a", "c", "d"]


@pytest.mark.parametrize(
    ("table", "options", "words"),
    [
        ("CREATE TABLE t (id int)", {}, "t"),
        ("CREATE TABLE t (id int PRIMARY KEY)", {"temporarySlot": "true"}, "lasting slot"),
        ("CREATE TABLE t (id int PRIMARY KEY)", {"mode": "keys"}, "mode rows"),
    ],
)
def test_what_cannot_start_with_a_snapshot_is_refused(
    steps: Steps, table: str, options: dict[str, str], words: str
) -> None:
    """E53: a table without a key, by name; a slot or a mode that does not fit."""
    steps.execute(table)
    with pytest.raises(PenstockError, match=words) as caught:
        steps.begin(table="t", startingPosition="snapshot", **options)
        steps.poll()
    assert isinstance(caught.value, ConfigError) or "key" in str(caught.value)
    steps.close_reader()


def test_spark_reads_the_snapshot_and_then_the_changes(stream: Streamed) -> None:
    """E50, E101: in one query; AvailableNow ends behind the snapshot."""
    fill(stream, 300)
    first = stream.available_now(table="t", startingPosition="snapshot")
    assert sorted(row["id"] for row in first.rows) == list(range(1, 301))
    stream.execute("DELETE FROM t WHERE id = 7")
    second = stream.available_now(table="t", startingPosition="snapshot")
    assert [(row["_change_type"], row["id"]) for row in second.rows] == [("delete", 7)]
