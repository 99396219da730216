"""What a task does with its run of changes: decode it into the columns that the query was planned with.

Guarantees: never wrong data. A row that was written while its table had another shape is fitted to the query's
columns where that is plain (a column that was not there yet is null and named in `_missing`; one that is gone is left
out), and only if the query's columns are still the table's; a table that was altered while the query runs is a clear
stop, and a restart adopts its new shape.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, cast
from uuid import UUID

import pyarrow as pa
from pyspark.sql import types as spark

from penstock.errors import OperatorError
from penstock.model import QualifiedTable
from penstock.postgres import catalog
from penstock.postgres.changes import ThinColumns
from penstock.postgres.connection import open_sql
from penstock.postgres.keys import key_batch
from penstock.postgres.parcel import unpack
from penstock.postgres.rows import RowShape, TableBatch, row_batches
from penstock.spark.options import SourceOptions
from penstock.spark.schema import ADDED_NAMES, JSON_OIDS, MISSING, table_type, to_spark, to_variant


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What tasks know of the tables. `names`: the names that tables stream under → the tables that were asked for."""

    names: Mapping[QualifiedTable, QualifiedTable]
    primary_keys: Mapping[QualifiedTable, Sequence[str]]
    thin: Mapping[QualifiedTable, Sequence[str]]


def decode(plan: ReadPlan, data: bytes, options: SourceOptions, schema: spark.StructType) -> Iterator[pa.RecordBatch]:
    """One run of changes as Spark takes it."""
    parcel = unpack(data)
    if options.mode == "keys":
        batch = key_batch(parcel, ThinColumns(plan.thin))
        wanted = pa.array([str(table) for table in plan.names], pa.string())
        yield batch.filter(pa.compute.is_in(batch["table"], wanted))
        return
    policy = cast(Literal["error", "null"], options.unrepresentable)
    shape = RowShape(options.preimage or options.many, policy)
    for found in row_batches(parcel, shape, plan.primary_keys):
        if found.table not in plan.names:
            continue
        yield _many(found, plan) if options.many else _fitted(found, options, schema)


def _fitted(found: TableBatch, options: SourceOptions, schema: spark.StructType) -> pa.RecordBatch:
    columns = found.relation.columns
    batch = to_spark(found.rows, columns, options.json_columns)
    own = table_type(columns, options.json_columns)
    expected = spark.StructType([field for field in schema if field.name not in ADDED_NAMES])
    if _shape(own) == _shape(expected):
        return batch
    _require_unaltered(found.table, expected, options)
    names = batch.schema.names
    arrays, absent = [], []
    for field in expected:
        if field.name not in names:
            absent.append(field.name)
        elif own[field.name].dataType != field.dataType:
            raise _altered(found.table, f"column {field.name} was {own[field.name].dataType.simpleString()}")
    target = to_arrow(schema)
    for field in target:
        if field.name == "_missing":
            arrays.append(_with_names(batch["_missing"], absent))
        else:
            arrays.append(batch[field.name] if field.name in names else pa.nulls(len(batch), field.type))
    return pa.record_batch(arrays, schema=target)


def to_arrow(schema: spark.StructType) -> pa.Schema:
    """The Arrow schema that Spark expects for its own."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _shape(struct: spark.StructType) -> list[tuple[str, spark.DataType]]:
    return [(field.name, field.dataType) for field in struct]


def _require_unaltered(table: QualifiedTable, expected: spark.StructType, options: SourceOptions) -> None:
    """Rows of another shape are old ones only if the query's columns are those that the table has now."""
    (asked,) = options.tables
    with open_sql(options.settings()) as connection:
        info = catalog.read_tables(connection, [asked]).get(asked)
    if info is None or _shape(table_type(info.columns, options.json_columns)) != _shape(expected):
        raise _altered(table, "its columns are not those that the query started with")


def _altered(table: QualifiedTable, what: str) -> OperatorError:
    return OperatorError(
        f"table {table} was altered while the query ran: {what}",
        hint="Restart the query: it adopts the table's new columns. Nothing was acknowledged beyond the last batch.",
    )


def _with_names(missing: pa.Array[Any], names: Sequence[str]) -> pa.Array[Any]:
    return pa.array([[*row, *names] for row in missing.to_pylist()], MISSING)


def _many(found: TableBatch, plan: ReadPlan) -> pa.RecordBatch:
    """Rows of any table in one schema: `before` and `after` as VARIANT, a preimage joined to its postimage."""
    rows = found.rows
    kinds = rows["_change_type"].to_pylist()
    columns = found.relation.columns
    jsons = {column.name for column in columns if column.type_oid in JSON_OIDS}
    values = rows.select([column.name for column in columns]).to_pylist()
    missing = rows["_missing"].to_pylist()
    texts = [_json(value, gone, jsons) for value, gone in zip(values, missing, strict=True)]
    keep = [at for at, kind in enumerate(kinds) if kind != "update_preimage"]
    before = [_before(kinds, texts, at) for at in keep]
    after = [texts[at] if kinds[at] in ("insert", "update_postimage") else None for at in keep]
    kept = rows.take(pa.array(keep, pa.int64()))
    arrays = [
        pa.array([str(plan.names[found.table])] * len(keep), pa.string()),
        kept["_change_type"],
        to_variant(pa.array(before, pa.string())),
        to_variant(pa.array(after, pa.string())),
        *(kept[name] for name in ("_commit_lsn", "_seq", "_xid", "_commit_timestamp")),
        kept["_missing"].cast(MISSING),
    ]
    names = [
        "_table",
        "_change_type",
        "before",
        "after",
        "_commit_lsn",
        "_seq",
        "_xid",
        "_commit_timestamp",
        "_missing",
    ]
    return pa.record_batch(arrays, names=names)


def _before(kinds: Sequence[str], texts: Sequence[str], at: int) -> str | None:
    if kinds[at] == "delete":
        return texts[at]
    return texts[at - 1] if at and kinds[at] == "update_postimage" and kinds[at - 1] == "update_preimage" else None


def _json(row: Mapping[str, Any], missing: Sequence[str], jsons: set[str]) -> str:
    parts = []
    for name, value in row.items():
        if name in missing:
            continue
        text = value if name in jsons and value is not None else json.dumps(_plain(value))
        parts.append(f"{json.dumps(name)}: {text}")
    return "{" + ", ".join(parts) + "}"


def _plain(value: Any) -> Any:
    """A value as JSON has it: numbers, truth and text; what JSON has no word for as its text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
