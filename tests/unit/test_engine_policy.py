"""Documents that a sink rejects: stop there, or put them aside durably; and how long to wait after a failure."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.contracts import Rejection
from penstock.engine.policy import QUARANTINE, STOP, Backoff, RejectedError, judge
from penstock.engine.state import State
from penstock.errors import DiskError, OperatorError, RetryableError
from penstock.model import Lsn

BOOK = ("search", Rejection("books", "1", Lsn(9), "field price of type double"))
AUTHOR = ("search", Rejection("authors", "2", Lsn(9), "field name"))


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    with closing(State(tmp_path)) as found:
        yield found


def test_stop_is_what_happens_unless_the_index_says_otherwise(state: State) -> None:
    """E81: the message names sink, index, document and field; somebody has to act."""
    for on_error in ({}, {"books": STOP}, {"authors": QUARANTINE}):
        with pytest.raises(
            RejectedError, match="sink search rejects document '1' of index books: field price"
        ) as found:
            judge([BOOK], on_error, state)
        assert isinstance(found.value, OperatorError)
        assert not isinstance(found.value, RetryableError)
        assert 'on_error = "quarantine"' in found.value.hint
    assert state.quarantined() == []


def test_quarantine_is_durable_before_the_batch_goes_on(state: State, tmp_path: Path) -> None:
    """E81: what was put aside is there when `judge` returns."""
    assert judge([BOOK, AUTHOR], {"books": QUARANTINE, "authors": QUARANTINE}, state) == 2
    with closing(State(tmp_path)) as another:
        assert [(one.sink, one.index, one.id) for one in another.quarantined("books")] == [("search", "books", "1")]
        assert another.aside() == {("books", "1"), ("authors", "2")}


def test_a_quarantine_that_cannot_be_written_fails_the_batch(state: State, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "state.sqlite")) as connection:
        connection.execute("DROP TABLE quarantine")
    with pytest.raises(DiskError, match="could not be written"):
        judge([BOOK], {"books": QUARANTINE}, state)


def test_one_index_that_stops_stops_the_batch_whole(state: State) -> None:
    """Nothing of a batch that comes again is put aside now."""
    with pytest.raises(RejectedError, match="index authors"):
        judge([BOOK, AUTHOR], {"books": QUARANTINE, "authors": STOP}, state)
    assert state.quarantined() == []


def test_nothing_rejected_touches_nothing(state: State) -> None:
    state.close()
    assert judge([], {}, state) == 0


def test_waits_grow_to_a_limit_and_are_never_in_step() -> None:
    backoff = Backoff(first_s=1, most_s=10, chance=random.Random(4))
    waits = [backoff.next_s() for _ in range(40)]
    for at, wait in enumerate(waits):
        longest = min(10, 2**at)
        assert longest / 2 <= wait <= longest
    assert len(set(waits)) == len(waits)
    assert max(waits) > 9


def test_after_a_success_waits_begin_again() -> None:
    backoff = Backoff(first_s=1, most_s=60)
    for _ in range(20):
        backoff.next_s()
    backoff.succeeded()
    assert backoff.next_s() <= 1


def test_failures_without_end_are_borne() -> None:
    """A server that is away for weeks: the doubling must not overflow."""
    backoff = Backoff(failures=5_000)
    assert 30 <= backoff.next_s() <= 60
