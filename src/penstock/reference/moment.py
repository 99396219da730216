"""What a table holds at one place in the WAL, while a slot is being read.

A temporary slot tells the place and exports the snapshot that belongs to it: exactly the transactions whose commit
stands before the place are visible, also where the server has not shown a commit to others yet (it waits for a
standby). So a transaction of the stream is in the snapshot if and only if it ends at the place or before.
Guarantees: the temporary slot ends with the first rows; the snapshot ends with the last. Deliberately not: being quick
where transactions are open. The server waits for each that is running, and the log says which.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import NamedTuple

import pyarrow as pa

from penstock.errors import PenstockError, RetryableError
from penstock.model import Lsn
from penstock.postgres import replication, slot
from penstock.postgres.connection import ConnectionSettings, open_sql, translating
from penstock.postgres.export import open_reading, take_ticket
from penstock.postgres.ranges import Everything
from penstock.postgres.snapshot import Unrepresentable, read_part
from penstock.postgres.snapshot_plan import Selection

log = logging.getLogger(__name__)

_NEWEST = """
SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
            ELSE pg_catalog.pg_current_wal_flush_lsn() END::text
"""


class Newest(NamedTuple):
    """How far the server's WAL was, and when that was: everything committed by then ends there or before."""

    at: float
    lsn: Lsn


class Moment:
    """A table at a place in the WAL. Owns a connection until its last rows are read; `close` it.

    `stop` ends the wait for running transactions.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        selection: Selection,
        unrepresentable: Unrepresentable,
        stop: threading.Event,
    ) -> None:
        self._rows: Iterator[pa.RecordBatch] = iter(())
        self._closed = False
        what = f"taking a snapshot of {selection.table}"
        with replication.connect(settings) as client:
            self.lsn, exported = _exported(client, settings, selection, stop)
            with closing(open_reading(settings)) as keeper:
                with translating(what):
                    ticket = take_ticket(keeper, [selection], exported)
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


def _exported(
    client: replication.Client, settings: ConnectionSettings, selection: Selection, stop: threading.Event
) -> tuple[Lsn, str]:
    """A place in the WAL and the name of the snapshot that belongs to it."""
    what, name = f"taking a snapshot of {selection.table}", f"penstock_reference_{secrets.token_hex(6)}"
    try:
        with translating(what):
            return slot.create_exporting(
                client.connection, name, temporary=True, stop=stop,
                on_wait=lambda: _tell_who_blocks(settings, selection),
            )  # fmt: skip
    except PenstockError:
        if stop.is_set():
            raise stopped(what) from None
        raise


def stopped(what: str) -> RetryableError:
    """The error of who was told to stop while it waited."""
    return RetryableError(f"{what} was given up, because an end was asked for")


def newest(settings: ConnectionSettings) -> Newest:
    """How far the server's WAL is flushed, or replayed."""
    with open_sql(settings) as connection:
        at = time.time()
        ((text,),) = slot.execute(connection, _NEWEST)
    return Newest(at, Lsn.parse(text))


def _tell_who_blocks(settings: ConnectionSettings, selection: Selection) -> None:
    try:
        with open_sql(settings) as connection:
            said = slot.describe_waiting(slot.waiting_for(connection))
    except PenstockError as error:  # it is waited for all the same
        said = f"the server waits for running transactions; which, cannot be told: {error.message}"
    log.warning("the snapshot of %s: %s", selection.table, said)
