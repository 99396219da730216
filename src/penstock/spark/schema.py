"""The shape of what the Spark source gives: Postgres columns → Spark types, and Arrow batches in the form Spark takes.

The types are those of `postgres.values`, in Spark's words; json and jsonb are VARIANT or exact text, as asked for.
Guarantee: a batch of a stream and one of a snapshot hold the same values for the same row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import types as spark

from penstock.errors import ConfigError, OperatorError
from penstock.postgres.rows import ADDED
from penstock.postgres.values import arrow_type
from penstock.spark.variant import to_variant

JSON_OIDS = frozenset({114, 3802})
ADDED_NAMES = frozenset(ADDED.names)
MISSING = pa.list_(pa.field("element", pa.string(), nullable=False))
_SIMPLE: dict[pa.DataType, spark.DataType] = {
    pa.bool_(): spark.BooleanType(),
    pa.int16(): spark.ShortType(),
    pa.int32(): spark.IntegerType(),
    pa.int64(): spark.LongType(),
    pa.float32(): spark.FloatType(),
    pa.float64(): spark.DoubleType(),
    pa.string(): spark.StringType(),
    pa.binary(): spark.BinaryType(),
    pa.date32(): spark.DateType(),
    pa.timestamp("us"): spark.TimestampNTZType(),
    pa.timestamp("us", "UTC"): spark.TimestampType(),
}


_VALUES = spark.MapType(spark.StringType(), spark.StringType())
_POSITION = [
    spark.StructField("_commit_lsn", spark.LongType(), False),
    spark.StructField("_seq", spark.LongType(), False),
]

KEYS = spark.StructType(
    [
        spark.StructField("table", spark.StringType(), False),
        spark.StructField("op", spark.StringType(), False),
        spark.StructField("new", _VALUES),
        spark.StructField("old", _VALUES),
        spark.StructField("xid", spark.LongType()),
        *_POSITION,
    ]
)
"""The columns of `mode = keys`."""

MANY = spark.StructType(
    [
        spark.StructField("_table", spark.StringType(), False),
        spark.StructField("_change_type", spark.StringType(), False),
        spark.StructField("before", spark.VariantType()),
        spark.StructField("after", spark.VariantType()),
        *_POSITION,
        spark.StructField("_xid", spark.LongType()),
        spark.StructField("_commit_timestamp", spark.TimestampType()),
        spark.StructField("_missing", spark.ArrayType(spark.StringType(), containsNull=False), False),
    ]
)
"""The columns of a stream of several tables."""


class TypedColumn(Protocol):
    """A column by name and type, as the catalog or the stream describes it."""

    @property
    def name(self) -> str: ...
    @property
    def type_oid(self) -> int: ...
    @property
    def typmod(self) -> int: ...


def spark_type(kind: pa.DataType) -> spark.DataType:
    """The Spark type of an Arrow type of ours."""
    if pa.types.is_decimal(kind):
        return spark.DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        return spark.ArrayType(spark.StringType(), containsNull=False)
    return _SIMPLE[kind]


def table_type(columns: Iterable[TypedColumn], json_columns: str) -> spark.StructType:
    """The columns of a table."""
    return spark.StructType([spark.StructField(c.name, _column_type(c, json_columns)) for c in columns])


def _column_type(column: TypedColumn, json_columns: str) -> spark.DataType:
    if column.type_oid in JSON_OIDS and json_columns == "variant":
        return spark.VariantType()
    return spark_type(arrow_type(column.type_oid, column.typmod))


def changes_type(columns: Iterable[TypedColumn], json_columns: str) -> spark.StructType:
    """The columns of a table and those that are added to its changes."""
    own = table_type(columns, json_columns)
    if taken := [name for name in own.names if name in ADDED_NAMES]:
        raise ConfigError(
            f"the table has a column {taken[0]}, which is the name of a column that is added to its changes",
            hint="Rename it, or leave it out of what is published, by a column list.",
        )
    added = [spark.StructField(f.name, spark_type(f.type), f.nullable) for f in ADDED]
    return spark.StructType([*own.fields, *added])


def to_spark(
    batch: pa.RecordBatch, columns: Sequence[TypedColumn], json_columns: str, unrepresentable: str = "error"
) -> pa.RecordBatch:
    """A batch of ours in the form that Spark takes.

    JSON that VARIANT cannot hold is an error, or null and named in `_missing`, where the batch has that column.
    """
    variants = {c.name for c in columns if c.type_oid in JSON_OIDS and json_columns == "variant"}
    arrays, fields, missing = [], [], {}
    for field, array in zip(batch.schema, batch.columns, strict=True):
        if field.name in variants:
            array, bad = to_variant(array)
            if bad is not None:
                missing[field.name] = bad
        elif field.name == "_missing" and pa.types.is_list(field.type):
            array = array.cast(MISSING)
        arrays.append(array)
        fields.append(pa.field(field.name, array.type, field.nullable))
    if missing and unrepresentable == "error":
        raise OperatorError(
            f"column {next(iter(missing))} holds JSON that VARIANT cannot (a number beyond a double, half a surrogate "
            "pair, deep nesting, more than 16 MB)",
            hint="Set jsonColumns to string for its exact text, or unrepresentable to null: such values become null.",
        )
    if missing and "_missing" in batch.schema.names:
        at = batch.schema.names.index("_missing")
        arrays[at] = name_missing(arrays[at], missing)
    return pa.record_batch(arrays, schema=pa.schema(fields))


def name_missing(missing: pa.Array[Any], names: Mapping[str, npt.NDArray[np.bool_]]) -> pa.Array[Any]:
    """`_missing` with more names, each in the rows where it is marked."""
    marked = [(name, where.tolist()) for name, where in names.items()]
    rows = enumerate(missing.to_pylist())
    return pa.array([[*row, *(name for name, where in marked if where[at])] for at, row in rows], MISSING)
