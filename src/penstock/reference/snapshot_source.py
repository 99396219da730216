"""`PostgresSnapshotSource`: a table as it stands, again and again, without its changes.

Guarantees: those of `contracts.ReferenceTableSource`, with no changes ever; it needs no slot, no publication and no
replication right, and takes views, too. Deliberately not: following anything.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress

import pyarrow as pa

from penstock.contracts import SourceCheckpoint
from penstock.errors import ConfigError, PenstockError
from penstock.model import Lsn, Position, QualifiedTable
from penstock.postgres.connection import ConnectionSettings, open_sql, resolve
from penstock.postgres.ranges import Everything
from penstock.postgres.rows import Unrepresentable
from penstock.postgres.snapshot import read_part
from penstock.reference import checkpoint as checkpoints
from penstock.reference.moment import Newest, newest, stopped
from penstock.reference.shape import Known, TableShape, learn


class PostgresSnapshotSource:
    """A table, or whatever can be selected from, as it stands; `again` for how it stands later."""

    follows = False
    slot = ""

    def __init__(
        self,
        connection_url: str | ConnectionSettings,
        table: str | QualifiedTable,
        *,
        key: Sequence[str] = (),
        unrepresentable: Unrepresentable = "error",
    ) -> None:
        self.table = QualifiedTable.parse(table) if isinstance(table, str) else table
        self._settings = resolve(connection_url) if isinstance(connection_url, str) else connection_url
        self._key = tuple(key)
        self._unrepresentable: Unrepresentable = unrepresentable
        self._known: Known | None = None
        self._rows: Iterator[pa.RecordBatch] | None = None
        self._place = Lsn.ZERO  # how far the WAL was before the snapshot
        self._complete = self._closed = False
        self._broken: PenstockError | None = None

    def __repr__(self) -> str:
        return f"PostgresSnapshotSource({self.table}, {self._settings.describe()})"

    @property
    def shape(self) -> TableShape:
        """Its columns and its key; asks the catalog where nothing was read yet."""
        return self._learned().shape

    def poll_snapshot(self) -> pa.RecordBatch | None:
        """The next rows, all of one moment; None when there are no more."""
        self._require_open()
        if self._complete:
            return None
        if self._broken:
            raise self._broken
        try:
            rows = self._rows = self._rows or self._begin()
            batch = next(rows, None)
            if self._closed or rows is not self._rows:  # meanwhile, by another thread
                _close(rows)
                self._require_open()
                raise stopped(f"reading {self.table}")
        except PenstockError as error:
            self._broken = error
            raise
        self._complete = batch is None
        return batch

    def is_snapshot_complete(self) -> bool:
        """Whether it was read to its end."""
        return self._complete

    def poll_changes(self) -> pa.RecordBatch | None:
        """Nothing, ever."""
        self._require_open()
        return None

    def checkpoint(self) -> SourceCheckpoint:
        """About where in the WAL the snapshot stands."""
        self._require_open()
        shape = self._known.shape if self._known else TableShape(self.table, (), self._key)
        lsn = self._place if self._complete else Lsn.ZERO
        return checkpoints.make(self.slot, None, shape, Position(lsn, 0), lsn)

    def confirm(self, checkpoint: SourceCheckpoint) -> None:
        """Nothing waits for it."""
        self._require_open()
        checkpoints.require(checkpoint, self.slot, self.table)

    def restore(self, checkpoint: SourceCheckpoint) -> None:
        """What was read then is still held: nothing is read until `again`."""
        self._require_open()
        checkpoints.require(checkpoint, self.slot, self.table)
        self.again()
        self._complete, self._place = checkpoints.is_complete(checkpoint), checkpoint.position.lsn

    def newest(self, max_age_s: float = 0.0) -> Newest:
        """How far the server's WAL is."""
        return newest(self._settings)

    def again(self) -> None:
        """Start over with a new snapshot at the next poll."""
        self._require_open()
        self._hang_up()
        self._known, self._complete, self._broken = None, False, None

    def stop(self) -> None:
        """Nothing is waited for but rows, between which the view looks."""

    def go_on(self) -> None:
        """Nothing was stopped."""

    def close(self) -> None:
        """Give the connection back; while another thread reads, that does it when rows have come."""
        self._closed = True
        self._hang_up()

    def _begin(self) -> Iterator[pa.RecordBatch]:
        selection = self._learned().selection
        self._place = self.newest().lsn
        return read_part(self._settings, selection, Everything(), None, self._unrepresentable)

    def _learned(self) -> Known:
        if self._known is None:
            with open_sql(self._settings) as connection:
                self._known = learn(connection, self.table, self._key)
        return self._known

    def _hang_up(self) -> None:
        rows, self._rows = self._rows, None
        if rows is not None:
            _close(rows)

    def _require_open(self) -> None:
        if self._closed:
            raise ConfigError(f"the source of {self.table} is closed", hint="Make a new one.")


def _close(rows: Iterator[pa.RecordBatch]) -> None:
    if isinstance(rows, Generator):
        with suppress(ValueError):  # it is at work, in another thread
            rows.close()
