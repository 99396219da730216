"""Ranges of changes that are planned first and read later, twice, or by a new process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest

from penstock.errors import PositionError
from penstock.model import Lsn, Origin
from penstock.postgres import replay
from penstock.postgres.changes import cut
from penstock.postgres.connection import resolve
from penstock.postgres.replay import Cut, Replay
from penstock.postgres.rows import RowShape, row_batches
from penstock.postgres.transactions import Transaction
from tests.fixtures.captures import Published
from tests.fixtures.waiting import wait_until

Rows = list[tuple[int, str, int, int]]


class Reader:
    """A replay and what a test asks of it."""

    def __init__(self, published: Published, start: Cut | None = None, origin: Origin | None = None) -> None:
        whole = start.lsn if start and start.rows is None else Lsn.ZERO
        config = published.config(start_lsn=whole, origin=origin)
        self.replay = Replay(resolve(published.database.url), config)

    def latest(self, start: Cut, rows: int | None = None, size: int | None = None) -> Cut:
        found = start

        def moved() -> bool:
            nonlocal found
            found = self.replay.latest(start, rows, size, 0.1)
            return found != start

        wait_until(moved, what="a change")
        return found

    def rows(self, start: Cut, end: Cut) -> Rows:
        spans = self.replay.between(start, end, 10)
        found = [batch.rows for piece in cut(spans, 1000, 1 << 20) for batch in row_batches(piece, RowShape(), {})]
        return [
            (row["id"], row["_change_type"], row["_commit_lsn"], row["_seq"])
            for batch in found
            for row in batch.to_pylist()
        ]


@pytest.fixture
def reader(published18: Published) -> Iterator[Reader]:
    reader = Reader(published18)
    wait_until(published18.walsender, what="the stream")
    yield reader
    reader.replay.close()


def insert(published: Published, first: int, last: int) -> None:
    published.execute(f"INSERT INTO t SELECT n, 'x' FROM generate_series({first}, {last}) n")


def test_a_range_read_twice_gives_the_same_rows(reader: Reader, published18: Published) -> None:
    """E100: a retried task, and a batch planned again."""
    insert(published18, 1, 3)
    first = reader.latest(Cut())
    insert(published18, 4, 5)
    second = reader.latest(first)
    assert [row[0] for row in reader.rows(Cut(), first)] == [1, 2, 3]
    assert [row[0] for row in reader.rows(first, second)] == [4, 5]
    assert reader.rows(Cut(), second) == reader.rows(Cut(), first) + reader.rows(first, second)
    assert reader.rows(second, second) == []


def test_what_is_done_is_what_was_received_as_long_as_nothing_waits(reader: Reader, published18: Published) -> None:
    """E23: a change that was received and not acknowledged holds it; the WAL of others does not."""
    insert(published18, 1, 3)
    first = reader.latest(Cut())
    assert reader.replay.done < first.lsn
    reader.replay.acknowledge(first)
    assert reader.replay.done >= first.lsn
    published18.execute("CREATE TABLE of_others AS SELECT generate_series(1, 1000)")
    ((text,),) = published18.execute("SELECT pg_current_wal_flush_lsn()::text")
    wait_until(lambda: reader.replay.done >= Lsn.parse(text), what="the end of the WAL")
    published18.execute("DROP TABLE of_others")
    insert(published18, 4, 5)
    second = reader.latest(first)
    assert first.lsn <= reader.replay.done < second.lsn


def test_a_new_process_reads_the_same_rows_until_they_are_acknowledged(published18: Published) -> None:
    """E22, E100: the slot holds everything after the last acknowledged cut."""
    old = Reader(published18)
    wait_until(published18.walsender, what="the stream")
    insert(published18, 1, 3)
    first = old.latest(Cut())
    insert(published18, 4, 6)
    second = old.latest(first)
    expected = old.rows(first, second)
    old.replay.acknowledge(first)
    origin = old.replay.origin
    old.replay.close()
    new = Reader(published18, first, origin)
    assert new.rows(first, second) == expected
    new.replay.close()
    assert published18.confirmed() <= first.lsn


def test_limits_cut_between_transactions_and_inside_only_where_one_is_too_large(
    reader: Reader, published18: Published
) -> None:
    """E15, E101, E106: the acknowledgement waits for the last row of a transaction."""
    insert(published18, 1, 2)
    insert(published18, 3, 12)
    insert(published18, 13, 13)
    wait_until(lambda: len(reader.rows(Cut(), reader.replay.latest(Cut(), None, None, 0.1))) == 13, what="all rows")
    cuts, read = [Cut()], []
    while not read or 13 not in read[-1]:
        cuts.append(reader.latest(cuts[-1], rows=4))
        reader.replay.acknowledge(cuts[-2])
        if cuts[-1].rows is not None:
            assert reader.replay.acknowledged < cuts[-1].lsn
        read.append([row[0] for row in reader.rows(cuts[-2], cuts[-1])])
    assert [cut.rows for cut in cuts] == [None, None, 4, 8, None]
    assert read == [[1, 2], [3, 4, 5, 6], [7, 8, 9, 10], [11, 12, 13]]


class Watched(deque[Transaction]):
    """Counts the transactions that are looked at."""

    looked_at = 0

    def __iter__(self) -> Iterator[Transaction]:
        for one in super().__iter__():
            self.looked_at += 1
            yield one


def test_a_small_batch_costs_the_same_however_much_waits(reader: Reader, published18: Published) -> None:
    """E101: what lies behind its end is not looked at; small transactions count for more than their rows."""
    for one in range(50):
        insert(published18, one, one)
    receiver = reader.replay._receiver
    wait_until(lambda: len(receiver._ready) == 50, what="all of them")
    assert receiver._ready_bytes > 50_000
    receiver._ready = watched = Watched(receiver._ready)
    end = reader.latest(Cut(), rows=3)
    assert [row[0] for row in reader.rows(Cut(), end)] == [0, 1, 2]
    assert watched.looked_at <= 8
    reader.replay.acknowledge(Cut(receiver.received))
    assert receiver._ready_bytes == 0


def test_a_part_of_a_transaction_is_resumed_in_a_new_process(published18: Published) -> None:
    """E15, E100: nothing of it was acknowledged, so all of it comes again and the rest is taken."""
    old = Reader(published18)
    wait_until(published18.walsender, what="the stream")
    insert(published18, 1, 10)
    part = old.latest(Cut(), rows=4)
    assert part.rows == 4
    old.replay.acknowledge(part)
    origin = old.replay.origin
    old.replay.close()
    new = Reader(published18, part, origin)
    rest = new.latest(part)
    assert [row[0] for row in new.rows(part, rest)] == [5, 6, 7, 8, 9, 10]
    new.replay.close()


def test_an_idle_stream_moves_by_an_empty_step(
    reader: Reader, published18: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E23: others write, the published table rests; nothing is acknowledged before the step is logged."""
    insert(published18, 1, 1)
    first = reader.latest(Cut())
    reader.replay.acknowledge(first)
    published18.execute("CREATE TABLE busy AS SELECT generate_series(1, 1000)")
    wait_until(lambda: reader.replay.reached > first.lsn, what="a keepalive")
    assert reader.replay.latest(first, None, None, 0) == first
    monkeypatch.setattr(replay, "IDLE_S", 0.0)
    step = reader.latest(first)
    assert step.rows is None and step.lsn > first.lsn
    assert reader.rows(first, step) == []
    assert reader.replay.acknowledged == first.lsn


def test_a_position_that_somebody_else_consumed_is_a_clear_stop(published18: Published) -> None:
    """E29: start < confirmed_flush means that changes are gone."""
    old = Reader(published18)
    wait_until(published18.walsender, what="the stream")
    insert(published18, 1, 1)
    first = old.latest(Cut())
    insert(published18, 2, 2)
    second = old.latest(first)
    old.replay.acknowledge(second)
    origin = old.replay.origin
    old.replay.close()
    wait_until(lambda: published18.confirmed() >= second.lsn, what="the slot to move")
    new = Reader(published18, first, origin)
    with pytest.raises(PositionError, match="somebody else consumed it"):
        wait_until(lambda: new.replay.latest(first, None, None, 0.1) != first)
    new.replay.close()


def test_what_the_consumer_has_does_not_fill_the_buffer_when_it_comes_again(published18: Published) -> None:
    """E106, E20: a server that crashed may send from before a place inside of a transaction."""
    old = Reader(published18)
    wait_until(published18.walsender, what="the stream")
    for first in 1, 11, 21:
        insert(published18, first, first + 9)
    last = Cut()
    while not last.lsn or len(old.rows(Cut(), last)) < 30:
        last = old.latest(last)
    origin = old.replay.origin
    old.replay.close()
    part = Cut(last.lsn, 3)
    settings = resolve(published18.database.url)
    again = Replay(settings, published18.config(origin=origin, buffer_bytes=1), floor=part.whole)
    wait_until(lambda: again.latest(part, None, None, 0.1) == last, what="the rest")
    again.close()
