"""The shape of what the Spark source gives: Postgres columns → Spark types, and Arrow batches in the form Spark takes.

The types are those of `postgres.values`, in Spark's words; json and jsonb are VARIANT or exact text, as asked for.
Guarantee: a batch of a stream and one of a snapshot hold the same values for the same row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.variant_utils import VariantUtils

from penstock.postgres.rows import ADDED
from penstock.postgres.values import arrow_type

JSON_OIDS = frozenset({114, 3802})
ADDED_NAMES = frozenset(ADDED.names)
_VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
    ]
)
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
    added = [spark.StructField(f.name, spark_type(f.type), f.nullable) for f in ADDED]
    return spark.StructType([*table_type(columns, json_columns).fields, *added])


def to_spark(batch: pa.RecordBatch, columns: Sequence[TypedColumn], json_columns: str) -> pa.RecordBatch:
    """A batch of ours in the form that Spark takes."""
    variants = {c.name for c in columns if c.type_oid in JSON_OIDS and json_columns == "variant"}
    arrays, fields = [], []
    for field, array in zip(batch.schema, batch.columns, strict=True):
        if field.name in variants:
            array = to_variant(array)
        elif field.name == "_missing" and pa.types.is_list(field.type):
            array = array.cast(MISSING)
        arrays.append(array)
        fields.append(pa.field(field.name, array.type, field.nullable))
    return pa.record_batch(arrays, schema=pa.schema(fields))


def to_variant(texts: pa.Array[Any]) -> pa.Array[Any]:
    """JSON texts as VARIANT values; null stays null."""
    parsed = [None if text is None else VariantUtils.parse_json(text) for text in texts.to_pylist()]
    nothing = (b"", b"")
    values, metadata = zip(*(one or nothing for one in parsed), strict=True) if parsed else ((), ())
    null = pa.array([one is None for one in parsed], pa.bool_())
    arrays = [pa.array(values, pa.binary()), pa.array(metadata, pa.binary())]
    return pa.StructArray.from_arrays(arrays, fields=list(_VARIANT), mask=null)
