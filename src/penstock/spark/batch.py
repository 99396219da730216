"""The batch side of the Spark source: a table as it stands, read by many tasks in one moment.

Spark plans a frame once and runs it whenever it is used. Each use sees a moment of its own, the same one in all of its
tasks: a process beside the driver keeps the snapshot while they read (`postgres.holder`). A table that is one part
needs none of that: its one task sees one moment by itself.

Guarantees: rows of different moments are never mixed; memory holds one block of rows a task. A snapshot holds back
vacuum as long as tasks read in it, and up to two minutes more where a query left parts unread (a LIMIT, a failure).
"""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from penstock.errors import ConfigError
from penstock.postgres import holding, processes
from penstock.postgres.attendance import Visit
from penstock.postgres.export import open_reading
from penstock.postgres.holding import Address
from penstock.postgres.ranges import Range
from penstock.postgres.snapshot import Unrepresentable, read_part
from penstock.postgres.snapshot_plan import Selection, SnapshotQuery, plan, select
from penstock.spark import daemon
from penstock.spark.options import SourceOptions
from penstock.spark.pushdown import take_over
from penstock.spark.schema import table_type, to_spark
from penstock.spark.settings import local_folder
from penstock.spark.workers import spare_the_collector

_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


@dataclass(frozen=True)
class SnapshotPartition(InputPartition):
    """One part of the table, and where a snapshot to read it in is found (None: any will do)."""

    selection: Selection
    part: Range
    number: int = 0
    parts: int = 1
    frame: str = ""
    holder: Address | None = None

    def __repr__(self) -> str:
        return f"SnapshotPartition({self.selection.table}, {self.number + 1} of {self.parts})"


def snapshot_type(options: SourceOptions) -> spark.StructType:
    """The columns of a batch read."""
    with open_reading(options.settings()) as connection:
        selection = select(connection, SnapshotQuery(options.tables[0], options.columns, options.where))
    return table_type(selection.columns, options.json_columns)


def snapshot_reader(options: SourceOptions, schema: spark.StructType) -> DataSourceReader:
    """A reader, with a hand for filters only where Spark pushes them: elsewhere it refuses one that has it."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    pushing = _PUSHING in sys.modules or (spec is not None and spec.name == _PUSHING)
    return FilteringSnapshotReader(options, schema) if pushing else SnapshotReader(options, schema)


class SnapshotReader(DataSourceReader):
    """Plans in a worker on the driver, reads in tasks."""

    def __init__(self, options: SourceOptions, schema: spark.StructType) -> None:
        self._options = options
        self._schema = schema
        self._conditions: tuple[str, ...] = ()

    def partitions(self) -> list[InputPartition]:
        """The parts of the table."""
        options, settings = self._options, self._options.settings()
        with open_reading(settings) as connection:
            selection = select(connection, self._query())
            self._require_schema(selection)
            key = tuple(name.strip() for name in options.partition_column.split(",") if name.strip())
            ranges = plan(connection, selection, options.num_partitions, key)
        if len(ranges) == 1:
            return [SnapshotPartition(selection, ranges[0])]
        frame = uuid.uuid4().hex
        holder = holding.find_or_start(*_beside_the_driver(), local=local_folder() is not None)
        holding.register(holder, frame, settings, selection)
        numbered = enumerate(ranges)
        return [SnapshotPartition(selection, part, number, len(ranges), frame, holder) for number, part in numbered]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part, in a task."""
        assert isinstance(partition, SnapshotPartition)
        options, selection = self._options, partition.selection
        spare_the_collector()
        for batch in _batches(partition, options):
            yield to_spark(batch, selection.columns, options.json_columns, options.unrepresentable)

    def _query(self) -> SnapshotQuery:
        return SnapshotQuery(self._options.tables[0], tuple(self._schema.names), self._options.where, self._conditions)

    def _require_schema(self, selection: Selection) -> None:
        for field, found in zip(self._schema, table_type(selection.columns, self._options.json_columns), strict=True):
            if field.dataType != found.dataType:
                raise ConfigError(
                    f"column {field.name} of {selection.table} is {found.dataType.simpleString()}, and the schema says "
                    f"{field.dataType.simpleString()}",
                    hint="Leave the schema out: the source knows it. Cast the column afterwards.",
                )


class FilteringSnapshotReader(SnapshotReader):
    """The same, with filters evaluated by Postgres where they mean the same there."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Take over what can be, and give back the rest."""
        with open_reading(self._options.settings()) as connection:
            selection = select(connection, self._query())
            utf8 = connection.info.parameter_status("server_encoding") == "UTF8"
        exact = self._options.unrepresentable == "error"
        conditions, left = take_over(filters, selection.columns, exact=exact, utf8=utf8)
        self._conditions = tuple(conditions)
        return iter(left)


def _batches(partition: SnapshotPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    settings, policy = options.settings(), cast(Unrepresentable, options.unrepresentable)
    if partition.holder is None:
        yield from read_part(settings, partition.selection, partition.part, None, policy)
        return
    run, visit, hosts = _visit(partition)
    with holding.joined(partition.holder, partition.frame, run, visit, hosts) as ticket:
        yield from read_part(settings, partition.selection, partition.part, ticket, policy)


def _visit(partition: SnapshotPartition) -> tuple[str, Visit, list[str]]:
    """Which execution this task belongs to, which of its tasks it is, and by which name it knows the driver."""
    context = TaskContext.get()
    if context is None:
        return "", Visit(partition.number, partition.parts, 0, partition.number), []
    stage, task = context.stageId(), context.partitionId()
    # Whatever runs outside of SQL (`.rdd`) has no execution: there a stage reads one moment.
    run = context.getLocalProperty("spark.sql.execution.id") or f"stage {stage}"
    host = context.getLocalProperty("spark.driver.host")
    visit = Visit(partition.number, partition.parts, stage, task, context.attemptNumber() > 0)
    return run, visit, [host] if host else []


def _beside_the_driver() -> tuple[Path, processes.Watched]:
    """Where a driver's holder is found, and the process whose end is its own: the driver's JVM."""
    pid = os.getppid()
    if not daemon.NAMES.isdisjoint(processes.command(pid).split()):
        pid = processes.parent(pid) or pid
    local = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    folder = Path(local, "penstock") if local else Path(tempfile.gettempdir(), f"penstock-{os.geteuid()}-{pid}")
    return folder, processes.mark(pid)
