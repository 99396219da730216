"""The watermark beside a plain model of it: it never passes what is not confirmed, and gets to the end when all is."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.contracts import Ack, AckSink
from penstock.errors import ConfigError
from penstock.model import Lsn, Position
from penstock.postgres import pgoutput as pg
from penstock.postgres.changes import confirm, pieces
from penstock.postgres.transactions import Assembler, Transaction
from penstock.postgres.watermark import Watermark
from tests.unit import wire


@dataclass
class Model:
    """What was announced, in order, with the rows of it that are not confirmed."""

    announced: list[tuple[Lsn, set[int]]] = field(default_factory=list)

    def confirm(self, lsn: Lsn, first: int, end: int) -> None:
        for announced, rows in self.announced:
            if announced == lsn:
                rows.difference_update(range(first, end))

    @property
    def durable(self) -> Lsn:
        passed = Lsn.ZERO
        for lsn, rows in self.announced:
            if rows:
                break
            passed = max(passed, lsn)
        return passed


@settings(max_examples=150)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 4), st.integers(1, 5), st.booleans()), max_size=60),
)
def test_it_is_where_a_plain_model_is(sizes: list[int], confirmations: list[tuple[int, int, int, bool]]) -> None:
    """E20: any order, any number of times, one by one and in runs; keepalives and empty transactions between."""
    watermark, model = Watermark(), Model()
    for at, size in enumerate(sizes):
        lsn = Lsn(100 * (at + 1))
        watermark.expect(lsn, size)
        model.announced.append((lsn, set(range(size))))
        watermark.reach(Lsn(lsn + at % 3))  # a keepalive after it
        model.announced.append((Lsn(lsn + at % 3), set()))
        assert watermark.durable == model.durable
    whole = [(at, 0, size, False) for at, size in enumerate(sizes) if size]
    for at, first, count, one_by_one in [*confirmations, *whole]:
        size = sizes[at % len(sizes)]
        lsn, end = Lsn(100 * (at % len(sizes) + 1)), min(first + count, size)
        if first >= end:
            continue
        model.confirm(lsn, first, end)
        if not one_by_one:
            watermark.confirm_rows(lsn, first, end)
            assert watermark.durable == model.durable
            continue
        for row in range(first, end):  # and nobody looks for a while
            watermark.confirm(Position(lsn, row))
    assert watermark.durable == model.durable
    assert watermark.pending == 0
    assert watermark.durable == model.announced[-1][0]


def test_a_change_confirmed_again_after_its_whole_transaction_changes_nothing() -> None:
    """E20: while an earlier transaction still waits."""
    watermark = Watermark()
    watermark.expect(Lsn(100), 1)
    watermark.expect(Lsn(200), 2)
    watermark.confirm_rows(Lsn(200), 0, 2)
    watermark.confirm(Position(Lsn(200), 1))
    assert watermark.durable == 0
    watermark.confirm(Position(Lsn(100), 0))
    assert (watermark.durable, watermark.pending) == (200, 0)


def test_many_threads_confirm_and_none_is_overtaken(rng: random.Random) -> None:
    """E20: every position that was seen had all changes before it confirmed, and it only grew."""
    sizes = [rng.randint(1, 6) for _ in range(200)]
    watermark, submitted, seen = Watermark(), [0] * len(sizes), [Lsn.ZERO]
    for at, size in enumerate(sizes):
        watermark.expect(Lsn(at + 1), size)
    changes = [(at, row) for at, size in enumerate(sizes) for row in range(size)]
    wrong: list[str] = []

    def confirm_some(mine: list[tuple[int, int]]) -> None:
        for at, row in mine:
            submitted[at] |= 1 << row  # each change is one thread's own, and so is its transaction
            Ack(watermark, Position(Lsn(at + 1), row)).confirm()
            if row % 3 == 0:
                watermark.confirm_rows(Lsn(at + 1), row, row + 1)
            durable = watermark.durable
            behind = [i for i in range(durable) if submitted[i] != (1 << sizes[i]) - 1]
            if behind:
                wrong.append(f"{durable} passed {behind}")
            seen.append(durable)

    threads = []
    for mine in range(4):
        own = [change for change in changes if change[0] % 4 == mine]
        rng.shuffle(own)
        threads.append(threading.Thread(target=confirm_some, args=[own]))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert (watermark.durable, watermark.pending) == (len(sizes), 0)
    assert max(seen) == len(sizes)


def test_it_never_goes_back() -> None:
    """E20."""
    watermark = Watermark(Lsn(500))
    watermark.reach(Lsn(100))
    watermark.expect(Lsn(200), 0)
    watermark.confirm(Position(Lsn(200), 0))  # of before the start: nothing to note
    assert watermark.durable == 500


@pytest.mark.parametrize(("lsn", "first", "end"), [(300, 0, 1), (200, 2, 3), (200, -1, 1), (200, 1, 1)])
def test_a_change_that_was_never_delivered_is_refused(lsn: int, first: int, end: int) -> None:
    """E20."""
    watermark = Watermark()
    watermark.expect(Lsn(200), 2)
    with pytest.raises(ConfigError, match="no such change"):
        watermark.confirm_rows(Lsn(lsn), first, end)
    assert watermark.durable == 0


def test_it_is_an_ack_sink() -> None:
    assert isinstance(Watermark(), AckSink)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 5), st.integers(1, 400), st.randoms())
def test_a_transaction_in_pieces_is_acknowledged_with_its_last_row(
    sizes: list[int], max_rows: int, max_bytes: int, rng: random.Random
) -> None:
    """E15: whatever limits cut it, and in whatever order its pieces become durable."""
    transactions = _committed(sizes)
    watermark, model = Watermark(), Model()
    for transaction in transactions:
        watermark.expect(transaction.end_lsn, transaction.rows)
        model.announced.append((transaction.end_lsn, set(range(transaction.rows))))
    cut = list(pieces(transactions, max_rows, max_bytes))
    rng.shuffle(cut)
    for piece in cut:
        assert watermark.durable == model.durable
        confirm(piece, watermark.confirm_rows)
        for span in piece.spans:
            model.confirm(span.transaction.end_lsn, span.first, span.end)
    assert watermark.durable == transactions[-1].end_lsn


def _committed(sizes: list[int]) -> list[Transaction]:
    frames = wire.frames(wire.relation(1))
    for at, size in enumerate(sizes):
        rows = [pg.Insert(1, (b"%d" % row, b"x" * row)) for row in range(size)]
        frames += wire.transaction(100 * (at + 1), *rows)
    found = [event for event in Assembler().feed(frames) if isinstance(event, Transaction)]
    assert [transaction.rows for transaction in found] == sizes
    return found
