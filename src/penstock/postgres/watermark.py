"""Acknowledgements in, one durable position out.

Transactions are announced in commit order; their changes are confirmed in any order, from any thread, any number of
times. The watermark moves to a transaction's end LSN when all of its changes, and all earlier transactions, are
confirmed. Guarantee: it never moves backwards and never passes a change that was not confirmed.

Confirming is one append to a queue, because it happens for every change; the queue is worked off when the position
is asked for.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from penstock import failpoints
from penstock.errors import ConfigError
from penstock.model import Lsn, Position


class _Pending:
    """A transaction with changes to confirm; `reaches` is where the watermark goes when it is done."""

    __slots__ = ("confirmed", "left", "reaches", "rows")

    def __init__(self, rows: int, reaches: Lsn) -> None:
        self.rows = self.left = rows
        self.reaches = reaches
        self.confirmed: bytearray | None = None  # one byte a change, made when a part is confirmed


class Watermark:
    """The `AckSink` of a capture."""

    confirm: Callable[[Position], None]
    """Take note that one change is durable."""

    def __init__(self, start: Lsn = Lsn.ZERO) -> None:
        self._lock = threading.Lock()
        self._pending: OrderedDict[Lsn, _Pending] = OrderedDict()
        self._durable = start
        self._queue: deque[Position] = deque()
        self.confirm = self._queue.append

    @property
    def durable(self) -> Lsn:
        """Everything up to here is confirmed."""
        with self._lock:
            self._work_off()
            return self._durable

    @property
    def pending(self) -> int:
        """How many transactions are not confirmed in full."""
        with self._lock:
            self._work_off()
            return len(self._pending)

    def expect(self, end_lsn: Lsn, rows: int) -> None:
        """Announce a transaction before any of its changes is handed out."""
        with self._lock:
            if rows:
                self._pending[end_lsn] = _Pending(rows, end_lsn)
            else:
                self._reach(end_lsn)

    def reach(self, lsn: Lsn) -> None:
        """Say that no change stands between the newest announced transaction and `lsn`."""
        with self._lock:
            self._reach(lsn)

    def _reach(self, lsn: Lsn) -> None:
        if self._pending:
            newest = next(reversed(self._pending.values()))
            newest.reaches = max(newest.reaches, lsn)
        else:
            self._durable = max(self._durable, lsn)

    def confirm_rows(self, lsn: Lsn, first: int, end: int) -> None:
        """Take note that the changes `first` … `end - 1` of the transaction that ends at `lsn` are durable."""
        with self._lock:
            self._mark(lsn, first, end)

    def _work_off(self) -> None:
        """Confirm what is queued, neighbours together."""
        if not self._queue:
            return
        lsn, first = self._queue.popleft()
        end = first + 1
        for _ in range(len(self._queue)):  # what comes meanwhile waits for the next time
            next_lsn, row = self._queue.popleft()
            if row == end and next_lsn == lsn:
                end += 1
                continue
            self._mark(lsn, first, end)
            lsn, first, end = next_lsn, row, row + 1
        self._mark(lsn, first, end)

    def _mark(self, lsn: Lsn, first: int, end: int) -> None:
        failpoints.passing("confirm")
        pending = self._pending.get(lsn)
        if pending is None and lsn <= self._durable:
            return  # confirmed before
        if pending is None or not 0 <= first < end <= pending.rows:
            raise ConfigError(f"no such change was delivered: rows {first} to {end - 1} of {lsn}")
        if not pending.left:
            return  # confirmed before, and an earlier transaction is not
        if (first, end) == (0, pending.rows):  # the usual case: a whole transaction at once
            pending.left = 0
        else:
            pending.confirmed = pending.confirmed or bytearray(pending.rows)
            pending.left -= pending.confirmed.count(0, first, end)
            pending.confirmed[first:end] = b"\1" * (end - first)
        while self._pending and next(iter(self._pending.values())).left == 0:
            _, done = self._pending.popitem(last=False)
            self._durable = max(self._durable, done.reaches)


class Mark(Protocol):
    """What a receiver reports to the server, and what it tells of its progress."""

    @property
    def durable(self) -> Lsn: ...
    @property
    def pending(self) -> int: ...
    def expect(self, end_lsn: Lsn, rows: int) -> None: ...
    def reach(self, lsn: Lsn) -> None: ...


class Held:
    """A mark that stands where it is put, for a consumer that keeps its own log of what is durable."""

    pending = 0

    def __init__(self) -> None:
        self.durable = Lsn.ZERO

    def put(self, lsn: Lsn) -> None:
        """Everything up to here is durable."""
        self.durable = max(self.durable, lsn)

    def expect(self, end_lsn: Lsn, rows: int) -> None:
        """Nothing to note: the consumer keeps the log."""

    def reach(self, lsn: Lsn) -> None:
        """Nothing to note: what was not logged is not acknowledged, also where there is nothing to deliver."""
