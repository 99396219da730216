"""Types: the server's texts as Arrow and Python values, exact or not at all."""

from __future__ import annotations

import struct
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BugError, DecodeError
from penstock.postgres import values
from penstock.postgres.values import arrow_type, to_arrow, to_pylist, to_python


def typmod(precision: int, scale: int) -> int:
    """How the server writes numeric(p,s)."""
    return (precision << 16 | scale & 0x7FF) + 4


def column(*texts: str | bytes | None) -> pa.Array:
    return pa.array([text.encode() if isinstance(text, str) else text for text in texts], pa.binary())


@pytest.mark.parametrize(
    ("oid", "modifier", "expected"),
    [
        (values.BOOL, -1, pa.bool_()),
        (values.INT2, -1, pa.int16()),
        (values.INT4, -1, pa.int32()),
        (values.INT8, -1, pa.int64()),
        (values.OID, -1, pa.int64()),
        (values.FLOAT4, -1, pa.float32()),
        (values.FLOAT8, -1, pa.float64()),
        (values.BYTEA, -1, pa.binary()),
        (values.DATE, -1, pa.date32()),
        (values.TIMESTAMP, 3, pa.timestamp("us")),
        (values.TIMESTAMPTZ, -1, pa.timestamp("us", "UTC")),
        (values.NUMERIC, -1, pa.string()),
        (values.NUMERIC, typmod(12, 2), pa.decimal128(12, 2)),
        (values.NUMERIC, typmod(38, 38), pa.decimal128(38, 38)),
        (values.NUMERIC, typmod(39, 0), pa.string()),
        (values.NUMERIC, typmod(5, -2), pa.string()),
        (values.NUMERIC, typmod(2, 5), pa.string()),
        (values.UUID, -1, pa.string()),
        (values.BPCHAR, 14, pa.string()),
        (1186, -1, pa.string()),  # interval
        (1007, -1, pa.string()),  # int4[]
        (99_999, -1, pa.string()),  # an enum, a domain: whatever is not in the table
    ],
)  # fmt: skip
def test_each_type_has_its_arrow_type(oid: int, modifier: int, expected: pa.DataType) -> None:
    """E4: the empty column has it too."""
    assert arrow_type(oid, modifier) == expected
    assert to_arrow(column(), oid, modifier).values.type == expected
    assert to_arrow(column(None, None), oid, modifier).values.null_count == 2


EXACT: list[tuple[int, int, str, Any]] = [
    (values.BOOL, -1, "t", True),
    (values.BOOL, -1, "f", False),
    (values.INT2, -1, "-32768", -32768),
    (values.INT4, -1, "2147483647", 2147483647),
    (values.INT8, -1, "-9223372036854775808", -(2**63)),
    (values.OID, -1, "4294967295", 2**32 - 1),
    (values.FLOAT8, -1, "Infinity", float("inf")),
    (values.FLOAT8, -1, "-Infinity", float("-inf")),
    (values.FLOAT8, -1, "5e-324", 5e-324),
    (values.FLOAT8, -1, "1.7976931348623157e+308", 1.7976931348623157e308),
    (values.FLOAT4, -1, "3.4028235e+38", float(np.float32(3.4028235e38))),
    (values.FLOAT4, -1, "1e-45", float(np.float32(1e-45))),
    (values.BYTEA, -1, r"\x", b""),
    (values.BYTEA, -1, r"\x00ff5c78", b"\0\xff\\x"),
    (values.DATE, -1, "0001-01-01", date(1, 1, 1)),
    (values.DATE, -1, "9999-12-31", date(9999, 12, 31)),
    (values.TIMESTAMP, -1, "1969-12-31 23:59:59.999999", datetime(1969, 12, 31, 23, 59, 59, 999999)),
    (values.TIMESTAMPTZ, -1, "9999-12-31 23:59:59.1+00", datetime(9999, 12, 31, 23, 59, 59, 100000, UTC)),
    (values.NUMERIC, -1, "1." + "0" * 60, Decimal("1." + "0" * 60)),
    (values.NUMERIC, typmod(6, 2), "-1234.50", Decimal("-1234.50")),
    (values.NUMERIC, typmod(38, 0), "9" * 38, Decimal("9" * 38)),
    (values.UUID, -1, "00000000-0000-0000-0000-00000000000a", uuid.UUID(int=10)),
    (values.TEXT, -1, "", ""),
    (values.TEXT, -1, "🙂 NULL", "🙂 NULL"),
    (values.BPCHAR, 7, "a  ", "a  "),
    (1186, -1, "P1DT-24H", "P1DT-24H"),
]


@pytest.mark.parametrize(("oid", "modifier", "text", "expected"), EXACT)
def test_a_value_is_exact(oid: int, modifier: int, text: str, expected: Any) -> None:
    """E4: alone, and between nulls."""
    found = to_python(text.encode(), oid, modifier)
    assert found == expected
    assert type(found) is type(expected)
    assert str(found) == str(expected)  # also the zeros at its end
    assert to_pylist(column(None, text, None), oid, modifier) == [None, expected, None]
    typed = to_arrow(column(None, text, None), oid, modifier)
    typed.values.validate(full=True)
    assert typed.unrepresentable is None
    assert typed.values.null_count == 2


def test_nan_is_nan() -> None:
    """E4: a float's is typed, an unconstrained numeric's is a Decimal and a text in Arrow."""
    assert np.isnan(to_python(b"NaN", values.FLOAT8))
    assert np.isnan(to_python(b"NaN", values.FLOAT4))
    assert to_python(b"NaN", values.NUMERIC).is_nan()
    assert to_arrow(column("NaN", "Infinity"), values.NUMERIC).values.to_pylist() == ["NaN", "Infinity"]


@pytest.mark.parametrize(
    ("oid", "modifier", "good", "bad"),
    [
        (values.DATE, -1, "2024-02-29", "infinity"),
        (values.DATE, -1, "2024-02-29", "-infinity"),
        (values.DATE, -1, "2024-02-29", "0044-03-15 BC"),
        (values.DATE, -1, "2024-02-29", "10000-01-01"),
        (values.DATE, -1, "2024-02-29", "5874897-12-31"),
        (values.TIMESTAMP, -1, "2024-02-29 00:00:00", "infinity"),
        (values.TIMESTAMP, -1, "2024-02-29 00:00:00", "0001-01-01 00:00:00 BC"),
        (values.TIMESTAMP, -1, "2024-02-29 00:00:00", "294276-12-31 23:59:59.999999"),
        (values.TIMESTAMPTZ, -1, "2024-02-29 00:00:00+00", "-infinity"),
        (values.TIMESTAMPTZ, -1, "2024-02-29 00:00:00+00", "10000-01-01 00:00:00+00"),
        (values.TIMESTAMPTZ, -1, "2024-02-29 00:00:00+00", "4713-11-24 00:00:00+00 BC"),
        (values.NUMERIC, typmod(5, 2), "1.50", "NaN"),
    ],
)
def test_a_value_its_type_cannot_hold_is_marked_and_keeps_its_text(
    oid: int, modifier: int, good: str, bad: str
) -> None:
    """E4: never bent, clipped or wrapped; its neighbours are typed."""
    typed = to_arrow(column(good, bad, None, good), oid, modifier)
    assert typed.unrepresentable is not None
    assert typed.unrepresentable.tolist() == [False, True, False, False]
    assert typed.values.is_valid().to_pylist() == [True, False, False, True]
    listed = to_pylist(column(good, bad, None, good), oid, modifier)
    assert listed == [to_python(good.encode(), oid, modifier), bad, None, listed[0]]
    assert to_python(bad.encode(), oid, modifier) == bad


def shown(moment: datetime) -> str:
    """As the server writes it: without zeros at the end of the fraction."""
    text = moment.replace(tzinfo=None).isoformat(" ")
    return text.rstrip("0") if "." in text else text


@given(st.lists(st.none() | st.datetimes(), max_size=5))
def test_any_moment_of_years_1_to_9999_is_exact(moments: list[datetime | None]) -> None:
    """E4."""
    texts = [moment and shown(moment) for moment in moments]
    assert to_pylist(column(*texts), values.TIMESTAMP) == moments
    with_zone = [text and f"{text}+00" for text in texts]
    assert to_pylist(column(*with_zone), values.TIMESTAMPTZ) == [m and m.replace(tzinfo=UTC) for m in moments]
    assert to_pylist(column(*(text and text[:10] for text in texts)), values.DATE) == [m and m.date() for m in moments]


@given(st.lists(st.none() | st.binary(max_size=5), max_size=6), st.integers(0, 3))
def test_any_bytea_is_exact(wanted: list[bytes | None], offset: int) -> None:
    """E4: also in a column that is a slice of another."""
    raw = column(*([rb"\xffff"] * offset), *(None if one is None else rb"\x" + one.hex().encode() for one in wanted))
    assert to_arrow(raw[offset:], values.BYTEA).values.to_pylist() == wanted


@given(st.lists(st.floats(allow_nan=False), max_size=5), st.lists(st.floats(width=32, allow_nan=False), max_size=5))
def test_any_float_is_exact(doubles: list[float], singles: list[float]) -> None:
    """E4: by the shortest text that tells it, which is what the server sends."""
    assert to_pylist(column(*map(repr, doubles)), values.FLOAT8) == doubles
    texts = [str(np.float32(single)) for single in singles]
    assert to_pylist(column(*texts), values.FLOAT4) == singles


@given(st.lists(st.decimals(allow_nan=False, allow_infinity=False), max_size=4), st.data())
def test_any_numeric_is_exact(anything: list[Decimal], data: st.DataObject) -> None:
    """E4: to the last digit, zeros at the end included."""
    texts = [f"{number:f}" for number in anything]
    assert [f"{found:f}" for found in to_pylist(column(*texts), values.NUMERIC)] == texts
    precision = data.draw(st.integers(1, 38))
    scale = data.draw(st.integers(0, precision))
    digits = data.draw(st.lists(st.integers(-(10**precision) + 1, 10**precision - 1), max_size=4))
    fixed = [f"{Decimal(d).scaleb(-scale):f}" if abs(d) < 10**28 else _pointed(d, scale) for d in digits]
    found = to_pylist(column(*fixed), values.NUMERIC, typmod(precision, scale))
    assert [f"{number:f}" for number in found] == fixed


def _pointed(digits: int, scale: int) -> str:
    # Written by hand: Python's own arithmetic on decimals rounds to 28 digits.
    text = str(abs(digits)).rjust(scale + 1, "0")
    return ("-" if digits < 0 else "") + (f"{text[:-scale]}.{text[-scale:]}" if scale else text)


@pytest.mark.parametrize(
    ("oid", "bad"),
    [(values.INT4, b"secret"), (values.FLOAT8, b"secret"), (values.TEXT, b"secret\xff"), (values.BYTEA, b"\\secret")],
)
def test_a_text_that_is_none_of_its_type_is_refused_without_being_shown(oid: int, bad: bytes) -> None:
    """E4: a bug, or a database in SQL_ASCII."""
    with pytest.raises((BugError, DecodeError)) as refused:
        to_arrow(column("1", bad), oid)
    chain, error = [], refused.value
    while error is not None:
        chain.append(str(error))
        error = None if error.__suppress_context__ else error.__context__  # type: ignore[assignment]
    assert "secret" not in "".join(chain)


def test_a_binary_form_is_not_taken_for_a_text() -> None:
    """E4: what the tests send in binary elsewhere would be bent here; the capture never asks for it."""
    assert struct.pack("!i", 1).isascii()
    with pytest.raises((BugError, DecodeError)):
        to_arrow(column(struct.pack("!i", 1)), values.INT4)
