"""A stream that starts with what its table holds: the table in chunks, then the changes since.

The slot is made first, and with it a snapshot of the very moment at which it starts; chunks of the table are read in
that snapshot while the slot keeps every later change. An offset counts the chunks that are done. Guarantees: an
uninterrupted start is exact, each row once and each change after it once. After a crash the remaining chunks are read
in a fresh snapshot; the changes still start at the slot's start, so that a sink keyed by primary key converges.
The transaction that keeps the snapshot holds back vacuum until the last chunk is done, and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.errors import ConfigError, OperatorError
from penstock.model import Lsn
from penstock.postgres import catalog, replication, slot, snapshot, values
from penstock.postgres.connection import ConnectionSettings, open_sql, translating
from penstock.postgres.export import Connection, Ticket, adopt, open_reading, take_ticket
from penstock.postgres.ranges import BlockRange
from penstock.postgres.rows import ADDED, missing_names
from penstock.postgres.snapshot_plan import Selection, SnapshotQuery, select
from penstock.spark.options import SourceOptions
from penstock.spark.schema import to_spark

log = logging.getLogger(__name__)

# About what one task reads, and how many of them one micro-batch takes where no limit is given.
_CHUNK_BYTES = 32 << 20
_CHUNKS_AT_ONCE = 64
# A chunk's rows are numbered from its own start on, so that numbers never depend on how many rows others have.
_ROWS_A_CHUNK = 1 << 32


@dataclass(frozen=True, slots=True)
class Chunks:
    """How far a table has been read: `done` of `total` chunks of `blocks` blocks each, at `lsn`."""

    lsn: Lsn
    done: int
    total: int
    blocks: int

    @property
    def complete(self) -> bool:
        """Whether the changes come next."""
        return self.done >= self.total

    def part(self, number: int) -> BlockRange:
        """One chunk; the first and the last have no outer bound, so that together they hold every row."""
        first = number * self.blocks if number else None
        return BlockRange(first, (number + 1) * self.blocks if number + 1 < self.total else None)


@dataclass(frozen=True)
class ChunkPartition(InputPartition):
    """One chunk of the table, to be read by a task in the seed's snapshot."""

    selection: Selection
    ticket: Ticket
    chunks: Chunks
    number: int


class Seed:
    """The snapshot that chunks are read in, held open by a connection of its own."""

    def __init__(self, options: SourceOptions, settings: ConnectionSettings, adopted: str | None = None) -> None:
        self._options = options
        (table,) = options.tables
        with open_sql(settings) as connection:
            info = catalog.read_tables(connection, [table]).get(table)
            if info is None:
                raise ConfigError(
                    f"table {table} does not exist in the database", hint="Check its schema and spelling."
                )
            snapshot.require_identity(info)
            self.selection = select(connection, SnapshotQuery(table))
        self._connection = open_reading(settings)
        try:
            with translating("holding a snapshot"):
                # It ends with this process; until then a long batch may leave it idle.
                self._connection.execute("SET idle_in_transaction_session_timeout = 0")
                self.ticket = take_ticket(self._connection, [self.selection], adopted)
            self.shape = _shape(self._connection, self.selection, options)
        except BaseException:
            self._connection.close()
            raise
        log.info("a snapshot of %s is held open until its rows are read; vacuum waits for it", table)

    def partitions(self, start: Chunks, end: Chunks) -> list[InputPartition]:
        """The chunks after `start` up to `end`."""
        return [ChunkPartition(self.selection, self.ticket, end, number) for number in range(start.done, end.done)]

    def close(self) -> None:
        """Let the snapshot go."""
        self._connection.close()


def make_slot(options: SourceOptions, settings: ConnectionSettings) -> tuple[Lsn, Seed]:
    """Make the slot, and hold the snapshot of the moment at which it starts."""
    with replication.connect(settings) as client:
        lsn, name = slot.create_exporting(client.connection, options.slot, failover=options.failover)
        return lsn, Seed(options, settings, name)


def further(chunks: Chunks, options: SourceOptions) -> Chunks:
    """The chunks that the next micro-batch takes; where rows are limited, one is as large as the limit."""
    step = _CHUNKS_AT_ONCE if options.max_rows is None else 1
    return Chunks(chunks.lsn, min(chunks.done + step, chunks.total), chunks.total, chunks.blocks)


def read_chunk(partition: ChunkPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """One chunk as inserts, in a task."""
    selection, seq = partition.selection, partition.number * _ROWS_A_CHUNK
    connection = adopt(options.settings(), partition.ticket, selection)
    try:
        for block in snapshot.blocks(connection, selection, partition.chunks.part(partition.number)):
            batch = _inserts(selection, block, partition.chunks.lsn, seq, options)
            seq += len(batch)
            yield to_spark(batch, selection.columns, options.json_columns)
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


_TREE = """
SELECT max(pg_catalog.pg_relation_size(c.oid)), pg_catalog.current_setting('block_size')::int
FROM pg_catalog.pg_class c
WHERE c.oid = %(table)s::regclass OR c.oid IN (SELECT relid FROM pg_catalog.pg_partition_tree(%(table)s::regclass))
"""
# Rows of the first blocks tell how many a block holds, also in a table that was never analysed.
_SAMPLED_BLOCKS = 16


def _shape(connection: Connection, selection: Selection, options: SourceOptions) -> tuple[int, int]:
    """Into how many chunks of how many blocks the table is cut: by size, or finer where a batch is limited."""
    row: Any = connection.execute(_TREE, {"table": selection.table.sql}).fetchone()
    tallest, block = row
    blocks = max(min(_CHUNK_BYTES, options.max_bytes) // block, 1)
    if options.max_rows is not None:
        sampled = BlockRange(None, _SAMPLED_BLOCKS).condition()
        found: Any = connection.execute(
            f"SELECT count(*) FROM {selection.table.sql} WHERE {sampled}".encode()
        ).fetchone()
        rows_a_block = max(found[0] / min(_SAMPLED_BLOCKS, max(tallest // block, 1)), 1)
        blocks = max(min(blocks, int(options.max_rows / rows_a_block)), 1)
    return max(-(-tallest // (blocks * block)), 1), blocks
