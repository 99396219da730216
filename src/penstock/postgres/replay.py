"""Changes that can be read again: what a consumer needs that plans a range first and reads it later, maybe twice.

A `Cut` says how far: everything up to and including a transaction, or some rows of one that is too large for a batch.
Guarantees: the changes between two cuts are the same each time, also in a new process, as long as the first of them
was not acknowledged away; nothing is acknowledged but by `acknowledge`; a cut never splits a transaction that fits
the limits. Deliberately not: writing cuts down. The consumer's own log does that.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from penstock.errors import UnavailableError
from penstock.model import Lsn, Origin, ReplicationConfig
from penstock.postgres.changes import Span
from penstock.postgres.connection import ConnectionSettings
from penstock.postgres.receiver import Receiver
from penstock.postgres.transactions import Transaction
from penstock.postgres.watermark import Held

# A quiet slot pins WAL that others write: after so long, or so much, an empty step moves it.
IDLE_S = 60.0
IDLE_BYTES = 64 << 20


class Cut(NamedTuple):
    """Everything up to `lsn`; with `rows`, of the transaction that ends there only so many rows."""

    lsn: Lsn = Lsn.ZERO
    rows: int | None = None

    def covers(self, transaction: Transaction) -> int:
        """How many rows of a transaction stand before the cut."""
        if transaction.end_lsn == self.lsn and self.rows is not None:
            return self.rows
        return transaction.rows if transaction.end_lsn <= self.lsn else 0

    @property
    def whole(self) -> Lsn:
        """Every transaction that ends here or before stands before the cut as a whole."""
        return self.lsn if self.rows is None else Lsn(self.lsn - 1)


class Replay:
    """A stream of changes held by cuts. Owns a connection and a thread; `close` it."""

    def __init__(
        self,
        settings: ConnectionSettings,
        config: ReplicationConfig,
        prepare: Callable[[], None] = lambda: None,
        floor: Lsn = Lsn.ZERO,
        promised: Lsn = Lsn.ZERO,
    ) -> None:
        self._held = Held()
        self._receiver = Receiver(settings, config, self._held, prepare, floor, promised)
        self._moved_at = time.monotonic()

    @property
    def origin(self) -> Origin | None:
        """The server that is read, once it is known."""
        return self._receiver.origin

    @property
    def reached(self) -> Lsn:
        """Everything up to here has been received."""
        return self._receiver.reached

    @property
    def state(self) -> str:
        """Whether it streams: `starting`, `streaming`, `waiting` or `failed`."""
        return self._receiver.state

    @property
    def trouble(self) -> str:
        """What last went wrong, in a sentence; empty where nothing did."""
        return self._receiver.trouble

    @property
    def silent_s(self) -> float:
        """How long nothing has come from the server."""
        return self._receiver.silent_s

    @property
    def acknowledged(self) -> Lsn:
        """Everything up to here may be forgotten by the server."""
        return self._held.durable

    @property
    def done(self) -> Lsn:
        """Every change up to here was acknowledged: where none waits, that is as far as was received."""
        reached, acknowledged = self.reached, self.acknowledged  # in this order: what comes meanwhile waits
        return acknowledged if self._receiver.holds(acknowledged) else max(reached, acknowledged)

    def acknowledge(self, cut: Cut) -> None:
        """Everything before the cut is durable: the slot may pass its whole transactions, and so do we."""
        self.release(cut)
        if cut.rows is None:
            self._held.put(cut.lsn)

    def release(self, cut: Cut) -> None:
        """Everything before the cut is done: we may pass it, and the slot stays."""
        self._receiver.release(cut.whole)

    def opening(self, wait_s: float) -> Cut:
        """Where the slot stood when it was first opened: a start that can be written down. The zero cut: not yet."""
        return Cut(self._receiver.opened(wait_s))

    def promise(self, cut: Cut) -> Cut:
        """The consumer writes the cut down: a server that lacks any of it can not be gone on with."""
        self._receiver.promised = max(self._receiver.promised, cut.lsn)
        return cut

    def latest(
        self, start: Cut, max_rows: int | None, max_bytes: int | None, wait_s: float, upto: Lsn = Lsn.MAX
    ) -> Cut:
        """The furthest cut within the limits, waiting for a change if there is none; `start` where none came.

        With `upto`, what was committed behind that is left for later, and nothing is waited for once it is reached.
        """
        self._receiver.newer(start.whole, wait_s, upto)
        found = self._receiver.waiting(lambda ready: _fit(start, _until(upto, ready), max_rows, max_bytes))
        if found != start:
            self._moved_at = time.monotonic()
            return found
        return self._idle(start) if upto == Lsn.MAX else start

    def _idle(self, start: Cut) -> Cut:
        if start.rows is not None:
            return start
        idle_s = time.monotonic() - self._moved_at
        if self.reached - start.lsn < IDLE_BYTES and idle_s < IDLE_S:
            return start
        found = self.resting(start)
        if found != start:
            self._moved_at = time.monotonic()
        return found

    def resting(self, start: Cut) -> Cut:
        """How far there is nothing after `start`, by the stream's own word; `start` where a change waits.

        A position of any other origin may lie inside of a commit, which a server that is asked to go on behind it
        leaves out.
        """
        reached = self.reached
        return start if reached <= start.lsn or self._receiver.holds(start.whole) else Cut(reached)

    def between(
        self, start: Cut, end: Cut, patience_s: float, meanwhile: Callable[[], None] = lambda: None
    ) -> list[Span]:
        """The rows after `start` up to `end`, waiting until all of them have been received.

        As long as the server sends anything it is waited for: a large transaction takes its time. `meanwhile` is
        called about once a second.
        """
        while self.reached < end.lsn:
            self._receiver.upto(end.lsn, 1.0)
            meanwhile()
            if self.reached < end.lsn and self._receiver.silent_s > patience_s:
                raise UnavailableError(
                    f"the changes up to {end.lsn} have not come again: {self.reached} is reached, and the server has "
                    f"been silent for {patience_s:.0f} s",
                    hint="It may be busy or unreachable; the next attempt asks for them again.",
                )
        return self._receiver.waiting(lambda ready: list(_spans(start, end, ready)))

    def close(self) -> None:
        """End the stream."""
        self._receiver.close()


def _until(end: Lsn, ready: Iterable[Transaction]) -> Iterator[Transaction]:
    return itertools.takewhile(lambda transaction: transaction.end_lsn <= end, ready)


def _spans(start: Cut, end: Cut, ready: Iterable[Transaction]) -> Iterator[Span]:
    for transaction in _until(end.lsn, ready):
        first, last = start.covers(transaction), end.covers(transaction)
        if last > first:
            yield Span(transaction, first, last)


def _fit(start: Cut, ready: Iterable[Transaction], max_rows: int | None, max_bytes: int | None) -> Cut:
    """The furthest cut whose rows are within the limits; at least one row where there is one."""
    found, rows, size = start, 0, 0.0
    for transaction in ready:
        first = start.covers(transaction)
        left = transaction.rows - first
        if left <= 0:
            continue
        weight = transaction.size * left / transaction.rows
        room_rows = left if max_rows is None else max_rows - rows
        room = left if max_bytes is None else int(left * (max_bytes - size) / weight) if weight else left
        if left > room_rows or left > room:
            if found == start:  # alone it is too large: this much of it
                found = Cut(transaction.end_lsn, first + max(min(room_rows, room, left), 1))
                found = Cut(transaction.end_lsn) if found.rows == transaction.rows else found
            break
        found, rows, size = Cut(transaction.end_lsn), rows + left, size + weight
    return found
