"""The streaming side of the Spark source: ranges of changes planned on the driver, decoded in the tasks.

Spark keeps one process for a query's reader and calls it again and again. A thread of ours receives meanwhile; what it
has received stays until Spark's own log proves that it is durable: `latestOffset(start)` is only called with a start
whose batch has been committed, so that is where the slot is acknowledged. `partitions` may be the first call after a
restart and may come twice; the same two offsets give the same rows.

Guarantees: the slot never passes an offset that Spark has not logged as done; a start behind the slot's position means
that somebody else consumed it, and is a clear stop. Deliberately not: retrying a failed query, which is the caller's.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from penstock.errors import ConfigError, PositionError, SlotLostError, SlotMissingError, UnavailableError
from penstock.model import Lsn, Origin, ReplicationConfig
from penstock.postgres import catalog, changes, publication, slot
from penstock.postgres.capture import WalChangeCapture
from penstock.postgres.catalog import IdentityKind
from penstock.postgres.connection import ConnectionSettings, open_sql
from penstock.postgres.parcel import pack
from penstock.postgres.replay import Cut, Replay
from penstock.spark import health
from penstock.spark.decoding import ReadPlan, decode
from penstock.spark.offsets import INITIAL, to_cut, to_offset
from penstock.spark.options import SourceOptions

log = logging.getLogger(__name__)

# Long enough that an idle query does not spin, short enough that a reader whose Spark was killed ends soon.
_POLL_S = 0.5
# How long a restarted query waits for the server to send a planned batch again.
_AGAIN_S = 300.0
# What travels inside a partition; larger runs go as files where every node is said to read them.
_INLINE_BYTES = 1 << 20
_PIECE_BYTES = 8 << 20
_PIECE_ROWS = 131_072


@dataclass(frozen=True)
class ChangePartition(InputPartition):
    """A run of changes: its bytes, or the file that holds them."""

    data: bytes = b""
    path: str = ""

    def __repr__(self) -> str:
        return f"ChangePartition({len(self.data)} bytes{self.path and ' in a file'})"

    def load(self) -> bytes:
        """The bytes."""
        if not self.path:
            return self.data
        with open(self.path, "rb") as file:
            return file.read()


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's reader. Cheap to make and to pickle: it connects when Spark first asks for changes."""

    def __init__(self, options: SourceOptions, schema: spark.StructType) -> None:
        self._options = options
        self._schema = schema
        self._live: _Live | None = None
        self._target: Lsn | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_live": None}

    def initialOffset(self) -> dict[str, Any]:
        """Where the slot stands: always the same words, since Spark asks again after a restart."""
        return dict(INITIAL)

    def getDefaultReadLimit(self) -> ReadLimit:
        """No limit of Spark's: the reader applies `maxRowsPerTrigger` and `maxBytesPerTrigger` itself, both at once."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Note how far the WAL reaches now; the query ends there."""
        with open_sql(self._options.settings()) as connection:
            ((text,),) = slot.execute(connection, "SELECT pg_catalog.pg_current_wal_flush_lsn()::text")
        self._target = Lsn.parse(text)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Acknowledge `start`, which Spark has logged as done, and say how far there are changes now."""
        live = self._connected(start)
        cut, _ = to_cut(start, self._options.slot)
        live.acknowledge(cut)
        found = self._latest(live.replay, cut)
        return start if found == cut else to_offset(found, live.origin, self._options.slot)

    def _latest(self, replay: Replay, cut: Cut) -> Cut:
        limits = self._options.max_rows, self._options.max_bytes
        if self._target is None:
            return replay.latest(cut, *limits, _POLL_S)
        while cut.lsn < self._target:
            found = replay.latest(cut, *limits, _POLL_S, upto=self._target)
            if found != cut:
                return found
            if replay.reached >= self._target:
                return Cut(self._target)
        return cut

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """How far the reader has received."""
        if self._live is None or not self._live.replay.reached:
            return None
        return to_offset(Cut(self._live.replay.reached), self._live.origin, self._options.slot)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The changes after `start` up to `end`, cut for the tasks."""
        live = self._connected(start)
        (first, _), (last, _) = to_cut(start, self._options.slot), to_cut(end, self._options.slot)
        spans = live.replay.between(first, last, _AGAIN_S)
        parcels = map(pack, changes.cut(spans, _PIECE_ROWS, _PIECE_BYTES))
        plan = pickle.dumps(live.plan)
        return [self._partition(live, plan, data) for data in parcels]

    def _partition(self, live: _Live, plan: bytes, data: bytes) -> ChangePartition:
        content = pickle.dumps((plan, data))
        if len(content) > _INLINE_BYTES and live.files:
            return ChangePartition(path=live.keep(content))
        return ChangePartition(content)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode one partition, in a task."""
        assert isinstance(partition, ChangePartition)
        plan, data = pickle.loads(partition.load())
        return decode(pickle.loads(plan), data, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: `latestOffset` acknowledges, sooner and also when idle."""

    def stop(self) -> None:
        """End the stream."""
        if self._live:
            self._live.close()
            self._live = None

    def _connected(self, start: dict[str, Any]) -> _Live:
        if self._live is None:
            _end_on_sigterm()
            self._live = _Live(self._options, *to_cut(start, self._options.slot))
        return self._live


def _end_on_sigterm() -> None:
    """Spark ends the process with SIGTERM and calls nothing; as an exception it lets `stop` run."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    try:
        signal.signal(signal.SIGTERM, leave)
    except ValueError:
        pass  # not the main thread: a test, or a host that handles signals itself


class _Live:
    """A connected reader: the stream, what the tasks need to know, and files on their way to them."""

    def __init__(self, options: SourceOptions, start: Cut, origin: Origin | None) -> None:
        self._options = options
        self._settings = options.settings()
        self._floor = start.whole  # the slot may stand here, and not beyond
        self._resumed = origin is not None
        if options.temporary_slot and self._resumed:
            raise ConfigError(
                "a temporary slot cannot serve a checkpoint that has offsets: it ended with the last run",
                hint="Use a lasting slot, or a new checkpoint.",
            )
        self._check_loss()
        config = ReplicationConfig(
            options.slot,
            options.publication,
            start_lsn=start.lsn if start.rows is None and self._resumed else Lsn.ZERO,
            origin=origin if self._resumed else None,
            temporary_slot=options.temporary_slot,
            failover=options.failover,
            buffer_bytes=options.spool_max_bytes,
            spill_dir=options.spool_dir,
        )
        capture = WalChangeCapture(config, self._settings)
        capture.with_publication_management(set(options.tables), options.manage_publication).require_coverage()
        self.plan = _plan(self._settings, options)
        self.files = options.spool_dir if options.spool_shared else None
        self._kept: list[str] = []
        self.replay = Replay(self._settings, config, self._check_slot)
        self._report = health.Report(options.slot, self._settings.describe())

    @property
    def origin(self) -> Origin:
        """The server that is read."""
        origin = self.replay.origin
        if origin is None:
            raise UnavailableError("the server is not known yet")
        return origin

    def _check_loss(self) -> None:
        """Stop where changes are gone for good, unless `failOnDataLoss` says to go on behind them."""
        try:
            self._check_slot()
        except (SlotMissingError, SlotLostError, PositionError) as error:
            if self._options.fail_on_data_loss:
                raise
            log.warning("changes are lost, and failOnDataLoss is false: %s", error.message)
            self._resumed = False
            if isinstance(error, SlotLostError):
                with open_sql(self._settings) as connection:
                    slot.drop(connection, self._options.slot)

    def _check_slot(self) -> None:
        """Before a slot is made or read: the publication is there, and the slot still holds what the offsets need."""
        options = self._options
        with open_sql(self._settings) as connection:
            found = slot.inspect(connection, options.slot)
            if found:
                publication.require(connection, options.publication, options.slot, options.tables)
        if not self._resumed:
            return
        if found is None:
            raise SlotMissingError(
                f"slot {options.slot} is gone, but the checkpoint has read up to {self._floor} of it",
                hint="Changes made since then are lost for this query. Start with a new checkpoint and a snapshot, or "
                "set failOnDataLoss to false to go on without them.",
            )
        slot.verify(found, self._settings.database)
        confirmed = found.confirmed_flush_lsn or Lsn.ZERO
        if confirmed > self._floor:
            raise PositionError(
                f"slot {options.slot} stands at {confirmed}, past the checkpoint's {self._floor}: somebody else "
                "consumed it",
                hint="One slot serves one query. Start with a new slot, a new checkpoint and a snapshot, or set "
                "failOnDataLoss to false to go on without what is gone.",
            )

    def acknowledge(self, cut: Cut) -> None:
        """What Spark has logged as done may go: from the slot, from the spool, from the disk."""
        self._floor = max(self._floor, cut.whole)
        self.replay.acknowledge(cut)
        self._drop_files()
        self._report.write(self.replay)

    def keep(self, content: bytes) -> str:
        """A file with the content, for the tasks of the batch being planned."""
        with tempfile.NamedTemporaryFile(prefix="penstock-", suffix=".batch", dir=self.files, delete=False) as file:
            file.write(content)
        self._kept.append(file.name)
        return file.name

    def _drop_files(self) -> None:
        """Remove the files of batches that are done."""
        for path in self._kept:
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
        self._kept.clear()

    def close(self) -> None:
        """End the stream and remove what is on its way."""
        self._drop_files()
        self.replay.close()
        self._report.remove()


def _plan(settings: ConnectionSettings, options: SourceOptions) -> ReadPlan:
    """What the tasks need to know of the tables: under which names they stream, their keys and links."""
    with open_sql(settings) as connection:
        asked = catalog.read_tables(connection, options.tables)
        leaves = [leaf for info in asked.values() for leaf in info.partitions]
        found = asked | catalog.read_tables(connection, leaves)
    names = {leaf: table for table, info in asked.items() for leaf in (table, *info.partitions)}
    if options.preimage:
        for table in names:
            if found[table].identity.kind is not IdentityKind.FULL and not found[table].partitions:
                raise ConfigError(
                    f"preimage needs the whole old row, and the replica identity of {table} does not keep it",
                    hint=f"ALTER TABLE {table.sql} REPLICA IDENTITY FULL;",
                )
    return ReadPlan(
        names=names,
        primary_keys={table: found[table].primary_key for table in names if found[table].primary_key},
        thin={table: catalog.thin_columns(found[table]) for table in names},
    )
