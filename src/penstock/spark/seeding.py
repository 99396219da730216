"""A stream that starts with what its table holds: the table in chunks, then the changes since.

The slot is made first, and with it a snapshot of the very moment at which it starts; chunks of the table are read in
that snapshot while the slot keeps every later change. An offset counts the chunks that are done. Guarantees: an
uninterrupted start is exact, each row once and each change after it once. A snapshot ends with the process that holds
it, and in the next one rows may lie in other blocks: so whoever goes on reads the whole table again, as it is by then.
The changes still start at the slot's start, so that a sink keyed by primary key converges. The last step has no rows;
only a process that has read every chunk in one snapshot takes it.
The transaction that keeps the snapshot holds back vacuum until the last chunk is done, and a warning says so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.errors import ConfigError, OperatorError, PenstockError
from penstock.model import Lsn
from penstock.postgres import catalog, replication, slot, snapshot, values
from penstock.postgres.connection import ConnectionSettings, open_sql, translating
from penstock.postgres.export import Connection, Ticket, adopt, open_reading, take_ticket, was_written_anew
from penstock.postgres.observation import carried
from penstock.postgres.publication_catalog import read_publication
from penstock.postgres.ranges import BlockRange, block_range
from penstock.postgres.receiver import tell_who_blocks
from penstock.postgres.rows import ADDED, missing_names
from penstock.postgres.snapshot_plan import Selection, SnapshotQuery, select
from penstock.spark.options import SourceOptions
from penstock.spark.schema import to_spark

log = logging.getLogger(__name__)

# About what one task reads, and how many of them one micro-batch takes at most: each is a connection.
_CHUNK_BYTES = 32 << 20
_CHUNKS_AT_ONCE = 4
# A chunk's rows are numbered from its own start on, so that numbers never depend on how many rows others have.
_ROWS_A_CHUNK = 1 << 32


@dataclass(frozen=True, slots=True)
class Chunks:
    """How far a table has been read: `done` of `total` steps, at `lsn`."""

    lsn: Lsn
    done: int
    total: int

    @property
    def complete(self) -> bool:
        """Whether the changes come next."""
        return self.done >= self.total


@dataclass(frozen=True)
class ChunkPartition(InputPartition):
    """One chunk of the table, to be read by a task in the seed's snapshot."""

    selection: Selection
    ticket: Ticket
    part: BlockRange
    number: int
    lsn: Lsn


class Seed:
    """The snapshot that chunks are read in, held open by a connection of its own; its chunks count from `first` on."""

    def __init__(
        self, options: SourceOptions, settings: ConnectionSettings, first: int = 0, adopted: str | None = None
    ) -> None:
        (table,) = options.tables
        self._first = first
        self.selection = _selection(options, settings)
        self._connection = open_reading(settings)
        try:
            with translating("holding a snapshot"):
                # It ends with this process; until then a long batch may leave it idle.
                self._connection.execute("SET idle_in_transaction_session_timeout = 0")
                self.ticket = take_ticket(self._connection, [self.selection], adopted)
                if adopted and was_written_anew(self._connection, table):  # of what is there by now, all is converged
                    self._connection.execute("ROLLBACK")
                    self.ticket = take_ticket(self._connection, [self.selection])
                self._cut = _cut(self._connection, self.selection, options)
        except BaseException:
            self._connection.close()
            raise
        log.warning(
            "a snapshot of %s is held open until the last chunk of %d is read; vacuum removes nothing in the database "
            "that was deleted since", table, self._cut.chunks,
        )  # fmt: skip

    @property
    def _end(self) -> int:
        return self._first + self._cut.chunks

    def begin(self, lsn: Lsn) -> Chunks:
        """Nothing is read yet."""
        return Chunks(lsn, self._first, self._end + 1)

    def further(self, chunks: Chunks) -> Chunks:
        """The chunks that the next micro-batch takes; behind them all, the step without rows."""
        step = min(self._cut.step, self._end - chunks.done) or 1
        return Chunks(chunks.lsn, chunks.done + step, self._end + 1)

    def partitions(self, start: Chunks, end: Chunks) -> list[InputPartition]:
        """The chunks after `start` up to `end`; none of a batch that another process planned: all of it comes again."""
        numbers = range(start.done, min(end.done, self._end)) if start.done >= self._first else ()
        return [
            ChunkPartition(self.selection, self.ticket, self._cut.part(number - self._first), number, end.lsn)
            for number in numbers
        ]

    def close(self) -> None:
        """Let the snapshot go."""
        self._connection.close()


def _selection(options: SourceOptions, settings: ConnectionSettings) -> Selection:
    """What is read of the table; refuses one that cannot be seeded."""
    (table,) = options.tables
    with open_sql(settings) as connection:
        info = catalog.read_tables(connection, [table]).get(table)
        if info is None:
            raise ConfigError(f"table {table} does not exist in the database", hint="Check its schema and spelling.")
        snapshot.require_identity(info)
        sent = carried(info, read_publication(connection, options.publication))
        return select(connection, SnapshotQuery(table, tuple(column.name for column in sent)))


def make_slot(options: SourceOptions, settings: ConnectionSettings) -> tuple[Lsn, Seed]:
    """Make the slot, and hold the snapshot of the moment at which it starts; without that, there is no slot either."""
    _selection(options, settings)  # what is plain to see is refused before
    with replication.connect(settings) as client:
        lsn, name = slot.create_exporting(
            client.connection, options.slot, failover=options.failover,
            on_wait=lambda: tell_who_blocks(settings, options.slot),
        )  # fmt: skip
        try:
            return lsn, Seed(options, settings, adopted=name)
        except BaseException:
            _drop(options.slot, settings)
            raise


def _drop(name: str, settings: ConnectionSettings) -> None:
    try:
        with open_sql(settings) as connection:
            slot.drop(connection, name)
    except PenstockError as error:
        log.warning("slot %s stays behind, which nobody reads: %s", name, error.message)


def read_chunk(partition: ChunkPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """One chunk as inserts, in a task."""
    selection, seq = partition.selection, partition.number * _ROWS_A_CHUNK
    connection = adopt(options.settings(), partition.ticket, selection)
    try:
        for block in snapshot.blocks(connection, selection, partition.part):
            batch = _inserts(selection, block, partition.lsn, seq, options)
            seq += len(batch)
            yield to_spark(batch, selection.columns, options.json_columns, options.unrepresentable)
    finally:
        connection.close()


def _inserts(
    selection: Selection, block: list[pa.Array[Any]], lsn: Lsn, seq: int, options: SourceOptions
) -> pa.RecordBatch:
    count = len(block[0])
    arrays, missing = [], np.zeros((count, len(block)), np.bool_)
    for at, (column, raw) in enumerate(zip(selection.columns, block, strict=True)):
        typed = values.to_arrow(raw, column.type_oid, column.typmod)
        if typed.unrepresentable is not None:
            if options.unrepresentable == "error":
                raise OperatorError(
                    f"column {column.name} of {selection.table} holds a value that {typed.values.type} cannot",
                    hint="Set unrepresentable to null: such values become null and are named in _missing.",
                )
            missing[:, at] = typed.unrepresentable
        arrays.append(typed.values)
    added = [
        pa.array(["insert"] * count, pa.string()),
        pa.array(np.full(count, int(lsn), np.int64)),
        pa.array(np.arange(seq, seq + count)),
        pa.nulls(count, pa.int64()),
        pa.nulls(count, pa.timestamp("us", "UTC")),
        missing_names(missing, [column.name for column in selection.columns]),
    ]
    return pa.record_batch([*arrays, *added], schema=pa.schema([*selection.schema, *ADDED]))


class _Cut(NamedTuple):
    """A table, and each one below it, of `sizes` in blocks: cut into `chunks`, of which a batch takes `step`."""

    sizes: Sequence[int]
    chunks: int
    step: int

    def part(self, number: int) -> BlockRange:
        return block_range(self.sizes, self.chunks, number)


# What large values take beside the table counts too.
_TREE = """
SELECT pg_catalog.pg_relation_size(c.oid) / pg_catalog.current_setting('block_size')::int,
       pg_catalog.pg_table_size(c.oid)
FROM pg_catalog.pg_class c
WHERE c.oid = %(table)s::regclass OR c.oid IN (SELECT relid FROM pg_catalog.pg_partition_tree(%(table)s::regclass))
"""
# So many blocks from everywhere in the table tell how many rows a block holds, also where it was never analysed.
_SAMPLED_BLOCKS = 500
_DENSEST = """
SELECT coalesce(max(n), 0) FROM (
    SELECT count(*) AS n FROM {table} TABLESAMPLE SYSTEM ({percent:.6f}) GROUP BY tableoid, (ctid::text::point)[0]
) AS blocks
"""


def _cut(connection: Connection, selection: Selection, options: SourceOptions) -> _Cut:
    """Cut the table so that a chunk is within the limits of a batch, and see how many of them are."""
    tree: Any = connection.execute(_TREE, {"table": selection.table.sql}).fetchall()
    sizes = [blocks for blocks, _ in tree]
    blocks, size = max(sum(sizes), 1), sum(size for _, size in tree)
    wanted, at_once = -(-size // min(_CHUNK_BYTES, options.max_bytes)), _CHUNKS_AT_ONCE
    rows = 0
    if options.max_rows is not None:
        percent = min(100.0, 100 * _SAMPLED_BLOCKS / blocks)
        statement = _DENSEST.format(table=selection.table.sql, percent=percent)
        found: Any = connection.execute(statement.encode()).fetchone()
        rows = found[0] * blocks
        wanted = max(wanted, -(-rows // options.max_rows))
    chunks = max(min(wanted, blocks), 1)
    for whole, most in (size, options.max_bytes), (rows, options.max_rows):
        if whole and most is not None:
            at_once = min(at_once, most * chunks // whole)
    return _Cut(sizes, chunks, max(at_once, 1))
