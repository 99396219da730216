"""How much a micro-batch takes: limits of rows and bytes, what is there now, nothing, and more than the spool holds."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from penstock.errors import OperatorError
from penstock.model import Lsn
from penstock.postgres import replay
from penstock.spark import reader
from tests.fixtures.streams import Steps, Streamed
from tests.fixtures.waiting import wait_until

TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, v text)"


def insert(tapped: Steps | Streamed, first: int, last: int, size: int = 1) -> None:
    """Rows of one transaction."""
    tapped.execute(f"INSERT INTO t SELECT n, repeat('x', {size}) FROM generate_series({first}, {last}) n")


@pytest.fixture
def opened(steps: Steps) -> Steps:
    steps.execute(TABLE)
    return steps.begin(table="t").open()


def await_received(steps: Steps) -> None:
    """Wait until everything that is committed by now waits for Spark."""
    assert steps.reader is not None
    end = steps.wal_end()
    live = steps.reader._live
    assert live is not None
    wait_until(lambda: live.replay.reached >= end, what="everything to be received")


def taken(steps: Steps, upto: int) -> list[list[int]]:
    """The keys of each batch, until that one has come."""
    found: list[list[int]] = []
    while not found or upto not in found[-1]:
        found.append([row["id"] for row in steps.batch()])
    return found


def test_a_limit_of_rows_cuts_between_transactions_and_inside_only_of_one_that_is_too_large(opened: Steps) -> None:
    """E15, E101: the slot waits for the last row of a transaction."""
    steps = opened.restart(maxRowsPerTrigger=4)
    steps.poll()
    for first, last in (1, 2), (3, 12), (13, 13), (14, 15):
        insert(steps, first, last)
    await_received(steps)
    found = []
    while not found or 15 not in found[-1]:
        found.append([row["id"] for row in steps.batch()])
        assert steps.confirmed() <= Lsn.parse(steps.offsets[steps.done - 1]["lsn"])
        if steps.offsets[steps.done - 1]["rows"] > 0:
            assert steps.confirmed() < Lsn.parse(steps.offsets[steps.done - 1]["lsn"])
    assert found == [[1, 2], [3, 4, 5, 6], [7, 8, 9, 10], [11, 12, 13], [14, 15]]


def test_a_limit_of_bytes_and_both_limits_at_once(opened: Steps) -> None:
    """E101: whichever is reached first."""
    steps = opened.restart(maxBytesPerTrigger=2500)
    steps.poll()
    for one in range(1, 6):
        insert(steps, one, one, 1000)
    await_received(steps)
    assert taken(steps, 5) == [[1, 2], [3, 4], [5]]
    steps.restart(maxBytesPerTrigger=2500, maxRowsPerTrigger=3)
    steps.poll()
    for one in range(6, 10):
        insert(steps, one, one)
    for one in range(10, 13):
        insert(steps, one, one, 1000)
    insert(steps, 13, 17, 1000)
    await_received(steps)
    assert taken(steps, 17) == [[6, 7, 8], [9, 10, 11], [12], [13, 14], [15, 16], [17]]


def test_a_row_beyond_every_limit_comes_alone(opened: Steps) -> None:
    """E101: a limit is never a reason to stand still."""
    steps = opened.restart(maxBytesPerTrigger=10)
    insert(steps, 1, 2, 100)
    assert taken(steps, 2) == [[1], [2]]


def test_a_transaction_larger_than_the_spool_is_delivered(opened: Steps) -> None:
    """E12, E106: it is not made to wait for itself, and what does not fit into memory comes from disk."""
    steps = opened.restart(spoolMaxBytes=1000)
    steps.poll()
    insert(steps, 1, 5000, 100)
    insert(steps, 5001, 5001)
    assert [key for keys in taken(steps, 5001) for key in keys] == [*range(1, 5002)]
    insert(steps, 5002, 5500, 100)
    insert(steps, 5501, 5501)
    steps.restart(spoolMaxBytes=1000, maxRowsPerTrigger=100)
    found = taken(steps, 5501)
    assert [key for keys in found for key in keys] == [*range(5002, 5502)]
    assert [len(keys) for keys in found[:4]] == [100, 100, 100, 100]


def test_a_planned_batch_comes_again_though_the_spool_has_become_smaller(opened: Steps) -> None:
    """E100, E106: a limit of what waits for Spark never keeps back what Spark has planned."""
    for first in range(1, 50, 10):
        insert(opened, first, first + 9, 100)
    await_received(opened)
    assert opened.poll()
    expected = opened.read()
    assert [row["id"] for row in expected] == [*range(1, 51)]
    opened.restart(spoolMaxBytes=1000)
    assert opened.read() == expected
    opened.commit()
    insert(opened, 51, 51)
    assert taken(opened, 51) == [[51]]


def test_large_batches_lie_in_a_shared_folder_for_whoever_may_read_it_and_no_longer_than_needed(
    opened: Steps, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """E105: what a killed reader left goes once the slot is held again; a task that cannot read says what to do."""
    monkeypatch.setattr(reader, "_INLINE_BYTES", 0)
    tmp_path.chmod(0o750)
    (tmp_path / "penstock-other-1.batch").touch()
    opened.restart(spoolDir=str(tmp_path), spoolShared="true")
    insert(opened, 1, 3)
    wait_until(opened.poll, what="rows")
    assert [row["id"] for row in opened.read()] == [1, 2, 3]
    assert opened.reader is not None and opened.reader._live is not None
    (left,) = opened.reader._live._files
    assert Path(left).stat().st_mode & 0o777 == 0o640
    opened.reader._live._files.clear()  # as if it were killed
    opened.restart()
    assert Path(left).exists()
    assert [row["id"] for row in opened.read()] == [1, 2, 3]
    assert not Path(left).exists()
    (partition,) = opened.reader.partitions(opened.start(), opened.offsets[-1])
    Path(partition.path).unlink()  # type: ignore[attr-defined]
    with pytest.raises(OperatorError, match="a task cannot read its batch from"):
        opened.reader.read(partition)
    opened.commit()
    opened.poll()
    assert [path.name for path in tmp_path.glob("penstock-*")] == ["penstock-other-1.batch"]


def test_an_idle_reader_gives_equal_offsets_and_does_not_spin(opened: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """E101: also when the server has said that its WAL goes on without changes of ours; a change wakes it at once."""
    opened.execute("CREATE TABLE elsewhere AS SELECT generate_series(1, 100)")
    await_received(opened)
    monkeypatch.setattr(reader, "_POLL_S", 0.3)
    began = time.monotonic()
    assert not opened.poll()
    assert time.monotonic() - began >= 0.3
    monkeypatch.setattr(reader, "_POLL_S", 60.0)
    writing = threading.Timer(0.1, insert, (opened, 1, 1))
    writing.start()
    assert opened.poll()
    writing.join()


def test_an_idle_reader_moves_the_slot_by_an_empty_batch(opened: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """E23: nothing is acknowledged before the empty batch is logged as done."""
    monkeypatch.setattr(replay, "IDLE_BYTES", 10_000)
    before = opened.confirmed()
    opened.execute("CREATE TABLE elsewhere AS SELECT generate_series(1, 10000)")
    wait_until(opened.poll, what="an idle step")
    step = Lsn.parse(opened.offsets[-1]["lsn"])
    assert step > before and opened.read() == []
    assert opened.confirmed() == before
    opened.commit()
    assert not opened.poll()
    wait_until(lambda: opened.confirmed() == step, what="the slot to move")


def test_available_now_never_passes_a_commit_in_whose_midst_its_end_lies(opened: Steps) -> None:
    """E101, E22: the WAL is flushed by pages; a server asked to go on inside of a commit record leaves it out."""
    opened.execute("INSERT INTO t VALUES (1, 'x')")
    wait_until(opened.poll, what="the row")
    commit_end = Lsn.parse(opened.offsets.pop()["lsn"])
    opened.restart()
    assert opened.reader
    opened.reader._target = Lsn(commit_end - 8)
    while opened.poll():
        assert opened.read() == []
        opened.commit()
    opened.restart()
    assert [row["id"] for row in opened.batch()] == [1]


def test_available_now_ends_where_it_began_and_takes_nothing_that_came_later(stream: Streamed) -> None:
    """E101: with limits, with a last transaction that is cut, and with nothing to do."""
    stream.execute(TABLE)
    assert stream.available_now(table="t").rows == []  # the slot was made meanwhile
    insert(stream, 1, 2)
    insert(stream, 3, 9)
    later = iter([lambda: insert(stream, 100, 101)])

    def meanwhile(number: int, rows: list[dict[str, object]]) -> None:
        for write in later:
            write()

    running = stream.start(then=meanwhile, table="t", maxRowsPerTrigger=3, trigger={"availableNow": True}).await_end()
    assert [[row["id"] for row in rows] for _, rows in running.calls if rows] == [[1, 2], [3, 4, 5], [6, 7, 8], [9]]
    running = stream.available_now(table="t")
    assert [row["id"] for row in running.rows] == [100, 101]
    assert stream.available_now(table="t").rows == []
    insert(stream, 102, 102)
    assert [row["id"] for row in stream.available_now(table="t").rows] == [102]
