"""What a task does with its run of changes: decode it into the columns that the query was planned with.

Guarantees: never wrong data, and no connection from a task. A row that was written while its table had another shape
is fitted to the query's columns where that is plain: a column that was not there yet is null and named in `_missing`;
one that is gone is left out; one of another type is read as the type of now where its text is one of that type's, and
counts as unrepresentable where it is not. Whether the query's columns are the table's is the reader's to know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.errors import BugError, OperatorError
from penstock.model import Op
from penstock.postgres.changes import Changes, ThinColumns
from penstock.postgres.columns import Block
from penstock.postgres.keys import key_batch
from penstock.postgres.parcel import Parcel, unpack
from penstock.postgres.pgoutput import Column, Relation
from penstock.postgres.rows import RowShape, TableBatch, row_batches
from penstock.postgres.values import NUMERIC, arrow_type
from penstock.spark.any_table import any_table
from penstock.spark.options import SourceOptions
from penstock.spark.schema import JSON_OIDS, name_missing, to_spark
from penstock.spark.tables import ReadPlan

Types = Mapping[str, tuple[int, int]]


def decode(plan: ReadPlan, data: bytes, options: SourceOptions, schema: spark.StructType) -> Iterator[pa.RecordBatch]:
    """One run of changes as Spark takes it."""
    parcel = unpack(data)
    if options.mode == "keys":
        yield keys(plan, parcel)
        return
    ours = _row_batches(plan, parcel, options)
    if options.many:
        policy = options.json_columns, options.unrepresentable
        yield from _in_order([any_table(found, plan.names[found.table], *policy) for found in ours])
    else:
        yield from _in_order([_fitted(found, options, schema) for found in ours])


def _in_order(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows of several tables, or partitions, by their places; a preimage stays before its postimage."""
    if len(batches) < 2:
        return batches
    rows = pa.Table.from_batches(batches)
    ordered = rows.sort_by([("_commit_lsn", "ascending"), ("_seq", "ascending")])
    return list(ordered.combine_chunks().to_batches())


def keys(plan: ReadPlan, changes: Changes) -> pa.RecordBatch:
    """Changes by their keys, under the names that were asked for; a truncate under that of what was emptied."""
    batch = key_batch(changes, ThinColumns(plan.thin))
    streamed = pa.array([str(table) for table in plan.names], pa.string())
    asked = pa.array([str(table) for table in plan.names.values()], pa.string())
    place = pc.index_in(batch["table"], streamed)
    tables = pc.if_else(pc.equal(batch["op"], Op.TRUNCATE.value), batch["table"], asked.take(place))
    return batch.set_column(0, batch.schema.field(0), tables).filter(pc.is_valid(place))


def _row_batches(plan: ReadPlan, parcel: Parcel, options: SourceOptions) -> list[TableBatch]:
    policy = cast(Literal["error", "null"], options.unrepresentable)
    shape = RowShape(options.preimage or options.many, policy, strict=options.preimage)

    def batches(changes: Parcel) -> list[TableBatch]:
        return row_batches(changes, shape, plan.primary_keys, plan.names, plan.partitioned)

    if options.many or not isinstance(parcel.rows, Block):
        return batches(parcel)
    relations = {oid: _retyped(relation, plan) for oid, relation in parcel.rows.relations.items()}
    read_anew = Parcel(replace(parcel.rows, relations=relations), parcel.origin)
    try:
        return batches(read_anew)
    except BugError:
        if relations == parcel.rows.relations:
            raise
        return batches(parcel)  # an old text is none of the new type: _fitted tells


def _retyped(relation: Relation, plan: ReadPlan) -> Relation:
    """The relation with the types that its columns have now, where an old text can be one of the new type."""
    types = plan.types.get(plan.names.get(relation.table, relation.table), {})
    columns = tuple(_retyped_column(column, types) for column in relation.columns)
    return relation if columns == relation.columns else replace(relation, columns=columns)


def _retyped_column(column: Column, types: Types) -> Column:
    oid, typmod = types.get(column.name, (column.type_oid, column.typmod))
    if (oid, typmod) == (column.type_oid, column.typmod) or not _readable(column, oid, typmod):
        return column
    return replace(column, type_oid=oid, typmod=typmod)


def _readable(column: Column, oid: int, typmod: int) -> bool:
    """Whether the text of the one type can be read as the other: as text always, among numbers where it fits."""
    if oid in JSON_OIDS:
        return column.type_oid in JSON_OIDS
    if arrow_type(oid, typmod) == pa.string() and oid != NUMERIC:
        return True
    return _is_number(oid, typmod) and _is_number(column.type_oid, column.typmod)


def _is_number(oid: int, typmod: int) -> bool:
    kind = arrow_type(oid, typmod)
    return oid == NUMERIC or pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _fitted(found: TableBatch, options: SourceOptions, schema: spark.StructType) -> pa.RecordBatch:
    batch = to_spark(found.rows, found.relation.columns, options.json_columns, options.unrepresentable)
    target = to_arrow_schema(schema, timezone="UTC")
    if batch.schema.equals(target):
        return batch
    lost = [field.name for field in target if field.name in batch.schema.names and batch[field.name].type != field.type]
    if lost and options.unrepresentable == "error":
        raise OperatorError(
            f"column {lost[0]} of {found.table} had another type when rows were written that are read now, and their "
            "values are none of its type now",
            hint="Set unrepresentable to null: such values become null and are named in _missing.",
        )
    absent = [field.name for field in target if field.name not in batch.schema.names]
    everywhere = np.ones(len(batch), np.bool_)
    missing = name_missing(batch["_missing"], dict.fromkeys([*absent, *lost], everywhere))
    arrays = [
        missing
        if field.name == "_missing"
        else pa.nulls(len(batch), field.type)
        if field.name in (*absent, *lost)
        else batch[field.name]
        for field in target
    ]
    return pa.record_batch(arrays, schema=target)
