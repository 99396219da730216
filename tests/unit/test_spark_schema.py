"""The shape of what Spark gets: types by the one table of types, JSON as VARIANT or exact text."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.variant_utils import VariantUtils

from penstock.errors import OperatorError
from penstock.postgres import keys, rows, values
from penstock.postgres.pgoutput import Column
from penstock.spark import schema
from penstock.spark.variant import to_variant

MEMBERS = [
    ("b", values.BOOL, -1, spark.BooleanType()),
    ("i2", values.INT2, -1, spark.ShortType()),
    ("i4", values.INT4, -1, spark.IntegerType()),
    ("i8", values.INT8, -1, spark.LongType()),
    ("o", values.OID, -1, spark.LongType()),
    ("f4", values.FLOAT4, -1, spark.FloatType()),
    ("f8", values.FLOAT8, -1, spark.DoubleType()),
    ("n", values.NUMERIC, -1, spark.StringType()),
    ("n12", values.NUMERIC, ((12 << 16) | 2) + 4, spark.DecimalType(12, 2)),
    ("n60", values.NUMERIC, ((60 << 16) | 2) + 4, spark.StringType()),
    ("t", values.TEXT, -1, spark.StringType()),
    ("u", values.UUID, -1, spark.StringType()),
    ("y", values.BYTEA, -1, spark.BinaryType()),
    ("d", values.DATE, -1, spark.DateType()),
    ("ts", values.TIMESTAMP, -1, spark.TimestampNTZType()),
    ("tz", values.TIMESTAMPTZ, -1, spark.TimestampType()),
    ("j", 114, -1, spark.VariantType()),
    ("jb", 3802, -1, spark.VariantType()),
    ("a", 1007, -1, spark.StringType()),
]
COLUMNS = [Column(name, oid, typmod, False) for name, oid, typmod, _ in MEMBERS]


def test_every_type_has_its_word_in_spark() -> None:
    """E4: as the one table of types has it."""
    found = schema.table_type(COLUMNS, "variant")
    assert [(field.name, field.dataType) for field in found] == [(name, kind) for name, _, _, kind in MEMBERS]
    assert all(field.nullable for field in found)
    texts = schema.table_type(COLUMNS, "string")
    assert {texts["j"].dataType, texts["jb"].dataType} == {spark.StringType()}


def test_an_empty_batch_of_every_type_is_just_what_spark_expects() -> None:
    """E104: Spark compares Arrow schemas as a whole."""
    own = [pa.field(c.name, values.arrow_type(c.type_oid, c.typmod)) for c in COLUMNS]
    ours = pa.schema([*own, *rows.ADDED]).empty_table().to_batches() or [
        pa.record_batch([pa.nulls(0, f.type) for f in [*own, *rows.ADDED]], schema=pa.schema([*own, *rows.ADDED]))
    ]
    for words in "variant", "string":
        wanted = to_arrow_schema(schema.changes_type(COLUMNS, words), timezone="UTC")
        assert schema.to_spark(ours[0], COLUMNS, words).schema.equals(wanted)
    assert keys.SCHEMA.equals(to_arrow_schema(schema.KEYS, timezone="UTC"))


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.floats(allow_nan=False, width=32),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=50)
@given(st.lists(st.none() | JSON.map(json.dumps), max_size=5))
@example(['"Infinity"', "-Infinity", None])
def test_json_becomes_variant_and_back(texts: list[str | None]) -> None:
    """E4: json null is a value, SQL NULL is none."""
    found = to_variant(pa.array(texts, pa.string()))
    bad = [False] * len(texts) if found.unrepresentable is None else found.unrepresentable.tolist()
    for text, variant, refused in zip(texts, found.values.to_pylist(), bad, strict=True):
        if text is None:
            assert variant is None and not refused
        elif _is_beyond_json(text):
            assert variant is None and refused
        else:
            assert _plain(VariantUtils.to_python(variant["value"], variant["metadata"])) == json.loads(text)


def _is_beyond_json(text: str) -> bool:
    """Whether it holds an infinity, which Python writes and JSON does not know; not a text that reads so."""
    found: list[str] = []
    json.loads(text, parse_constant=found.append)
    return bool(found)


KEYS = st.text(max_size=3) | st.sampled_from([f"key {n}" * 20 for n in range(30)])
SIZED: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=80) | st.floats(allow_nan=False, allow_infinity=False)
    | st.decimals(allow_nan=False, allow_infinity=False, places=5).map(float),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(KEYS, inner, max_size=30)
    | st.integers(250, 300).map(lambda size: [size] * size)
    | st.integers(250, 300).map(lambda size: {str(n): n for n in range(size)}),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=100)
@given(SIZED.map(json.dumps))
def test_a_variant_has_the_bytes_that_spark_itself_writes(text: str) -> None:
    """E4: names, offsets and counts of one byte and of more, numbers of every size."""
    (found,) = to_variant(pa.array([text])).values.to_pylist()
    expected = VariantUtils.parse_json(text)
    if b"\x00\x00\x00\x00\x00\x00\xf0\x7f" in expected[0]:  # Spark makes an infinity of a number beyond a double
        assert found is None
    else:
        assert (found["value"], found["metadata"]) == expected


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return float(value) if not isinstance(value, int | str | float | None) else value


SECRET_LOOKING = "4711"
BEYOND = [f"{SECRET_LOOKING}e400", "1" * 5000, f'"{SECRET_LOOKING}\\ud800"', "[" * 5000 + "]" * 5000]


@pytest.mark.parametrize("text", BEYOND, ids=["beyond a double", "digits", "half a pair", "nesting"])
def test_json_that_no_variant_holds_is_an_error_or_null_by_name(text: str) -> None:
    """E104: told by its column, never quoted, never bent to an infinity."""
    missing = pa.array([[], ["x"], []], pa.list_(pa.string()))
    batch = pa.record_batch([pa.array([None, text, "{}"]), missing], names=["j", "_missing"])
    column = [Column("j", 3802, -1, False)]
    with pytest.raises(OperatorError) as caught:
        schema.to_spark(batch, column, "variant")
    assert "column j" in str(caught.value) and "unrepresentable to null" in str(caught.value)
    assert SECRET_LOOKING not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    found = schema.to_spark(batch, column, "variant", "null")
    assert found["j"].is_null().to_pylist() == [True, True, False]
    assert found["_missing"].to_pylist() == [[], ["x", "j"], []]
    exact = schema.to_spark(batch, column, "string")
    assert exact["j"].to_pylist()[1] == text


def test_more_names_are_missing_only_where_they_are_marked() -> None:
    missing = pa.array([[], ["a"]], schema.MISSING)
    found = schema.name_missing(missing, {"b": np.array([True, False]), "c": np.array([True, True])})
    assert found.to_pylist() == [["b", "c"], ["a", "c"]]
    assert found.type == schema.MISSING
