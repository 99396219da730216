"""What a table holds at one moment, while a slot is being read.

What the stream has told before is waited for first: whatever was running then has to end, so that the snapshot shows
it, also a commit that waits for a standby. Of what the stream tells later, `seen` says what the snapshot shows already.
Guarantees: no row that a crash of the server could take back; the snapshot ends with the last rows. Deliberately not:
being quick where transactions are open; the log says which are waited for. Nor a temporary slot, which would tell a
place in the WAL: servers (seen on 16 and 18) sometimes lose track of a table that is truncated while a slot is made.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import NamedTuple

import pyarrow as pa

from penstock.errors import RetryableError
from penstock.model import Lsn
from penstock.postgres import slot
from penstock.postgres.connection import ConnectionSettings, open_sql, translating
from penstock.postgres.export import open_reading, take_ticket
from penstock.postgres.ranges import Everything
from penstock.postgres.snapshot import Unrepresentable, read_part
from penstock.postgres.snapshot_plan import Selection
from penstock.reference.seen import Seen

log = logging.getLogger(__name__)

_NEWEST = """
SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
            ELSE pg_catalog.pg_current_wal_flush_lsn() END::text
"""

# A number behind those of all that run: a snapshot's own end is only behind those that have ended.
_NEXT = "SELECT pg_catalog.pg_current_xact_id()::text::bigint"
_OLDEST = "SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::bigint"
# A transaction that ends here with its WAL flushed, and so that of every one before it, without a word to standbys.
_FLUSHED = "SELECT pg_catalog.pg_logical_emit_message(true, 'penstock', '')::text"
_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.25
_TELL_AFTER_S = 3.0


class Newest(NamedTuple):
    """How far the server's WAL was, and when that was: everything committed by then ends there or before."""

    at: float
    lsn: Lsn


class Moment:
    """A table at one moment. Owns a connection until its last rows are read; `close` it.

    `seen` is what it shows of the stream. `wait` is how running transactions are waited for: so many seconds, or it
    raises where an end was asked for.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        selection: Selection,
        unrepresentable: Unrepresentable,
        wait: Callable[[float], None],
    ) -> None:
        self._rows: Iterator[pa.RecordBatch] = iter(())
        self._closed = False
        what = f"taking a snapshot of {selection.table}"
        with closing(open_sql(settings)) as asking, closing(open_reading(settings)) as keeper:
            with translating(what):
                slot.execute(asking, "SET synchronous_commit = local")
                _settle(asking, selection, wait)
                ticket = take_ticket(keeper, [selection])
                ((end,),) = slot.execute(asking, _FLUSHED)
            self.seen = Seen(ticket.state, Lsn.parse(end))
            rows = read_part(settings, selection, Everything(), ticket, unrepresentable)
            self._first = next(rows, None)  # from here on its own connection keeps the snapshot
        self._rows = rows

    def next(self) -> pa.RecordBatch | None:
        """The next rows; None when there are no more."""
        first, self._first = self._first, None
        found = first if first is not None else next(self._rows, None)
        if self._closed:
            self.close()  # meanwhile, by another thread
        return found

    def close(self) -> None:
        """Let the snapshot go. Any number of times; from another thread that takes effect when rows have come."""
        self._closed, self._first = True, None
        if isinstance(self._rows, Generator):
            try:
                self._rows.close()
            except ValueError:  # it is at work, in another thread
                pass


def _settle(asking: slot.Connection, selection: Selection, wait: Callable[[float], None]) -> None:
    """Wait until everything that is running now has ended."""
    ((end,),) = slot.execute(asking, _NEXT)
    pause_s, tell_at = _PAUSE_S, time.monotonic() + _TELL_AFTER_S
    while slot.execute(asking, _OLDEST)[0][0] <= end:
        wait(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        if time.monotonic() > tell_at:
            tell_at = float("inf")
            snapshot = f"A snapshot of {selection.table}"
            log.warning("%s", slot.describe_waiting(slot.waiting_for(asking), snapshot))


def stopped(what: str) -> RetryableError:
    """The error of who was told to stop while it waited."""
    return RetryableError(f"{what} was given up, because an end was asked for")


def newest(settings: ConnectionSettings) -> Newest:
    """How far the server's WAL is flushed, or replayed."""
    with open_sql(settings) as connection:
        at = time.time()
        ((text,),) = slot.execute(connection, _NEWEST)
    return Newest(at, Lsn.parse(text))
