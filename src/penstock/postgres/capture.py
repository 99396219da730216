"""`WalChangeCapture`: Postgres row changes over logical replication.

Changes come thin (`live`: identity and link columns, as Python values; `key_batches`: the same as Arrow) or whole
(`batches`: Arrow, every column). All carry an acknowledgement; the slot moves to a transaction's end when all of it,
and all before it, is confirmed.

Guarantees: nothing committed is lost, whenever the process ends; after a restart what was not confirmed comes again,
whole transactions in commit order. Memory is bounded by `buffer_bytes` + `spill_bytes` and the batch being read.
A capture holds no connection: copies are cheap, and each stream owns a connection and a thread of its own.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeVar

import pyarrow as pa

from penstock.contracts import Change
from penstock.errors import CoverageError
from penstock.model import CoverageReport, Lsn, Position, QualifiedTable, ReplicationConfig, SnapshotTable
from penstock.postgres import catalog, changes, publication, slot
from penstock.postgres.catalog import TableInfo, TableKind
from penstock.postgres.changes import Piece, ThinColumns
from penstock.postgres.connection import ConnectionSettings, open_sql, resolve
from penstock.postgres.keys import key_batch
from penstock.postgres.pgoutput import Relation
from penstock.postgres.receiver import Receiver
from penstock.postgres.rows import Keys, RowShape, TableBatch, row_batches
from penstock.postgres.snapshot import read_snapshot
from penstock.postgres.watermark import Watermark

log = logging.getLogger(__name__)

_T = TypeVar("_T")

# What one decoding step takes: large enough that array operations pay, small enough to stay in a cache.
_PIECE_ROWS = 16_384
_PIECE_BYTES = 4 << 20
_LAG_AGE_S = 1.0


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Row changes as Arrow, a batch for each table, up to `end`; `confirm` when they are durable."""

    tables: tuple[TableBatch, ...]
    rows: int
    end: Position
    confirm: Callable[[], None]


@dataclass(frozen=True, slots=True)
class KeyBatch:
    """Changes by their keys alone (`keys.SCHEMA`), up to `end`; `confirm` when what follows from them is durable."""

    changes: pa.RecordBatch
    end: Position
    confirm: Callable[[], None]


@dataclass(frozen=True, slots=True)
class ChangeRun:
    """Changes that were decoded together, in order, and when each of them was committed by the server's clock."""

    changes: list[Change]
    committed_at: list[datetime]


class Stream(Generic[_T]):
    """An endless iterator that owns its connection. Iterate in one thread; `close` from any."""

    def __init__(self, source: _Source, items: Iterator[_T]) -> None:
        self._source = source
        self._items = items

    def __iter__(self) -> Iterator[_T]:
        return self._items  # not self: one call less for each change; the source lives as long as either

    def __next__(self) -> _T:
        return next(self._items)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def durable(self) -> Lsn:
        """Everything up to here is confirmed; the slot follows within a moment."""
        return self._source.watermark.durable

    @property
    def received(self) -> Lsn:
        """The end of the newest transaction that was received whole."""
        return self._source.receiver.received

    def close(self) -> None:
        """Report what was confirmed, give the connection back and end the iteration. Any number of times."""
        self._source.receiver.close()


class _Source:
    """What a stream draws from: a receiver, closed when nobody holds the stream or its iterator any more."""

    def __init__(self, receiver: Receiver, watermark: Watermark, known: _Known) -> None:
        self.receiver = receiver
        self.watermark = watermark
        self.known = known
        weakref.finalize(self, receiver.close)

    def produce(self, make: Callable[[Piece], _T], max_rows: int, max_bytes: int) -> Iterator[_T]:
        while (transactions := self.receiver.take(max_bytes)) is not None:
            try:
                for piece in changes.pieces(transactions, max_rows, max_bytes):
                    yield make(piece)
                    if self.receiver.closed:
                        return
            finally:
                for transaction in transactions:
                    transaction.release()


class WalChangeCapture:
    """Captures row changes through a slot and a publication; implements `ChangeCapture` and `CaptureProvisioning`."""

    def __init__(self, config: ReplicationConfig, connection_url: str | ConnectionSettings) -> None:
        self.config = config
        self._settings = resolve(connection_url) if isinstance(connection_url, str) else connection_url
        self._required: frozenset[QualifiedTable] = frozenset()
        self._manage = False
        self._lag = _LagSample(self._settings, config.slot)

    def __repr__(self) -> str:
        where = self._settings.describe()
        return f"WalChangeCapture(slot={self.config.slot!r}, publication={self.config.publication!r}, {where})"

    def with_publication_management(self, required: set[QualifiedTable], manage: bool) -> WalChangeCapture:
        """A copy that proves, before it streams, that `required` is published, and publishes it where it may."""
        copy = WalChangeCapture(self.config, self._settings)
        copy._required, copy._manage = frozenset(required), manage
        return copy

    def live(self) -> Stream[Change]:
        """Thin changes in commit order, from the slot's confirmed position on, for ever."""
        source = self._connect()

        def make(piece: Piece) -> Iterator[Change]:
            return changes.thin(piece, source.known.thin, source.watermark)

        runs = source.produce(make, _PIECE_ROWS, _PIECE_BYTES)
        return Stream(source, itertools.chain.from_iterable(runs))

    def runs(self, *, whole: bool = False) -> Stream[ChangeRun]:
        """The changes of `live` as they arrive together, with commit times; `whole`: with every column sent."""
        source = self._connect()

        def make(piece: Piece) -> ChangeRun:
            found = list(changes.thin(piece, _every_column if whole else source.known.thin, source.watermark))
            return ChangeRun(found, [_moment(time) for time in piece.origins().times.tolist()])

        return Stream(source, source.produce(make, _PIECE_ROWS, _PIECE_BYTES))

    def batches(
        self, shape: RowShape | None = None, *, max_rows: int = _PIECE_ROWS, max_bytes: int = _PIECE_BYTES
    ) -> Stream[ChangeBatch]:
        """The same changes as Arrow batches of whole rows, each within the limits.

        A transaction larger than a limit is cut; it is acknowledged when its last batch is confirmed.
        """
        source = self._connect()
        layout, confirm_rows = shape or RowShape(), source.watermark.confirm_rows

        def make(piece: Piece) -> ChangeBatch:
            known = source.known
            tables = tuple(row_batches(piece, layout, known.primary_keys, partitioned=known.partitioned))
            return ChangeBatch(tables, piece.count, _end(piece), partial(changes.confirm, piece, confirm_rows))

        return Stream(source, source.produce(make, max_rows, max_bytes))

    def key_batches(self, *, max_rows: int = _PIECE_ROWS, max_bytes: int = _PIECE_BYTES) -> Stream[KeyBatch]:
        """The changes of `live` as Arrow batches of keys, each within the limits; cut as those of `batches`."""
        source = self._connect()

        def make(piece: Piece) -> KeyBatch:
            found = key_batch(piece, source.known.thin)
            return KeyBatch(found, _end(piece), partial(changes.confirm, piece, source.watermark.confirm_rows))

        return Stream(source, source.produce(make, max_rows, max_bytes))

    def snapshot(self, tables: Sequence[SnapshotTable]) -> Iterator[Change]:
        """What the tables hold now, all of one moment, as inserts whose acks move nothing."""
        return read_snapshot(self._settings, tables)

    def lag(self) -> int | None:
        """Bytes of WAL not yet confirmed, at most a second old; None until the slot exists."""
        return self._lag.current()

    def heartbeat(self) -> Lsn:
        """Write a small message into the WAL, so that the slot of a quiet database can move; where it stands."""
        with open_sql(self._settings) as connection:
            return slot.heartbeat(connection)

    def inspect_coverage(self, required: set[QualifiedTable]) -> CoverageReport:
        """What the publication carries of `required`; changes nothing."""
        with open_sql(self._settings) as connection:
            return publication.inspect(connection, self.config.publication, required)

    def ensure_coverage(self, required: set[QualifiedTable], manage: bool) -> CoverageReport:
        """The same, as observed before publishing what is missing, where `manage` and the role allow it."""
        with open_sql(self._settings) as connection:
            if slot.inspect(connection, self.config.slot):  # a publication younger than its slot would not do
                publication.require(connection, self.config.publication, self.config.slot, required)
            return publication.ensure(connection, self.config.publication, required, manage)

    def _connect(self) -> _Source:
        if self._required:
            self.require_coverage()
        watermark, known = Watermark(), _Known(self._settings, self.config)
        return _Source(Receiver(self._settings, self.config, watermark, known.learn), watermark, known)

    def require_coverage(self) -> None:
        """Publish what is required, where that is allowed; raise CoverageError where something is still missing."""
        required = set(self._required)
        if self._manage:
            self.ensure_coverage(required, manage=True)
        report = self.inspect_coverage(required)
        if not report.complete:
            found = [f"{one.table}: {one.reason}" if one.table else one.reason for one in report.blockers]
            if report.missing:
                found.insert(0, f"not published: {', '.join(map(str, sorted(report.missing)))}")
            raise CoverageError(
                f"publication {report.publication} does not carry what is required: {'; '.join(found)}",
                hint="Run: " + " ".join(report.sql) if report.sql else "",
            )


def _end(piece: Piece) -> Position:
    last = piece.spans[-1]
    return Position(last.transaction.end_lsn, last.end - 1)


def _every_column(relation: Relation) -> range:
    return range(len(relation.columns))


def _moment(commit_time: int) -> datetime:
    return datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=commit_time)


class _Known:
    """What the catalog says about published tables, read again at each connect."""

    def __init__(self, settings: ConnectionSettings, config: ReplicationConfig) -> None:
        self._settings = settings
        self._config = config
        self.primary_keys: Keys = {}
        self.partitioned: frozenset[QualifiedTable] = frozenset()
        self.thin = ThinColumns({})

    def learn(self) -> None:
        """Prove that the publication exists, before a slot is made or read, and read what it publishes."""
        name = self._config.publication
        with open_sql(self._settings) as connection:
            publication.require(connection, name, self._config.slot)
            info = publication.read_publication(connection, name)
            found = catalog.read_tables(connection, info.published if info else ())
        self.primary_keys = {table: info.primary_key for table, info in found.items() if info.primary_key}
        self.partitioned = frozenset(table for table, info in found.items() if info.kind is TableKind.PARTITIONED)
        given = self._config.columns
        # What is asked for a partitioned table holds for its partitions, under whose names the changes come.
        self.thin = ThinColumns({**{table: _asked(info, given) for table, info in found.items()}, **given})


def _asked(info: TableInfo, given: Mapping[QualifiedTable, Sequence[str]]) -> Sequence[str]:
    """What a thin change of the table carries: the columns given for it or for a table above, else the catalog's."""
    above = next((table for table in (info.table, *info.ancestors) if table in given), None)
    return given[above] if above else catalog.thin_columns(info)


class _LagSample:
    """The slot's lag, sampled over a short connection of its own and shared for a moment."""

    def __init__(self, settings: ConnectionSettings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._lock = threading.Lock()
        self._sampled_at = float("-inf")
        self._lag_bytes: int | None = None

    def current(self) -> int | None:
        with self._lock:
            if self._lag_bytes is None or time.monotonic() - self._sampled_at > _LAG_AGE_S:
                with open_sql(self._settings) as connection:
                    self._lag_bytes = slot.lag(connection, self._name)
                self._sampled_at = time.monotonic()
            return self._lag_bytes
