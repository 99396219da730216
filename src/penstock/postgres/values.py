"""The one table of types: a Postgres type's OID → its Arrow type and its Python value.

Input is the type's text under the session settings that every connection pins (ISO dates, UTC, hex bytea). What has
no typed form keeps its exact Postgres text: unconstrained numeric as a string in Arrow (a Decimal in Python), arrays,
ranges, composites, enums, domains, intervals, times, geometry, and every type this table does not name.

Guarantees: a typed value equals what Postgres holds, to the last digit. A value that its typed column cannot hold
(an infinite date, a year outside 1–9999, NaN in a numeric(p,s)) is never bent: Arrow gets a null and a mark in
`Typed.unrepresentable`, Python gets the exact text.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BugError, DecodeError

BOOL, BYTEA, NAME, INT8, INT2, INT4, TEXT, OID = 16, 17, 19, 20, 21, 23, 25, 26
FLOAT4, FLOAT8, BPCHAR, VARCHAR, DATE = 700, 701, 1042, 1043, 1082
TIMESTAMP, TIMESTAMPTZ, NUMERIC, UUID = 1114, 1184, 1700, 2950

_FIXED: Final[dict[int, pa.DataType]] = {
    BOOL: pa.bool_(),
    BYTEA: pa.binary(),
    INT2: pa.int16(),
    INT4: pa.int32(),
    INT8: pa.int64(),
    OID: pa.int64(),
    FLOAT4: pa.float32(),
    FLOAT8: pa.float64(),
    DATE: pa.date32(),
    TIMESTAMP: pa.timestamp("us"),
    TIMESTAMPTZ: pa.timestamp("us", "UTC"),
}

# What the text of a representable value looks like; anything else of the type has no typed form.
_DAY = r"\d{4}-\d\d-\d\d"
_CLOCK = r"\d\d:\d\d:\d\d(\.\d+)?"
_REPRESENTABLE: Final[dict[int, str]] = {
    DATE: f"^{_DAY}$",
    TIMESTAMP: f"^{_DAY} {_CLOCK}$",
    TIMESTAMPTZ: rf"^{_DAY} {_CLOCK}\+00$",
    NUMERIC: r"^-?\d+(\.\d+)?$",
}

_PYTHON: Final[dict[int, Callable[[str], Any]]] = {NUMERIC: Decimal, UUID: uuid.UUID}

_MAX_DECIMAL_DIGITS = 38  # what a 128-bit decimal holds, in Arrow and in Spark


def arrow_type(type_oid: int, typmod: int = -1) -> pa.DataType:
    """The Arrow type of a column; `string` where the exact Postgres text is its form."""
    if type_oid == NUMERIC and typmod >= 4:
        precision, scale = (typmod - 4) >> 16, ((typmod - 4) & 0x7FF ^ 0x400) - 0x400
        if precision <= _MAX_DECIMAL_DIGITS and 0 <= scale <= precision:
            return pa.decimal128(precision, scale)
    return _FIXED.get(type_oid, pa.string())


@dataclass(frozen=True, slots=True)
class Typed:
    """A typed column, and which of its values could not be held by the type (None: all could)."""

    values: pa.Array[Any]
    unrepresentable: npt.NDArray[np.bool_] | None = None


def to_arrow(raw: pa.Array[Any], type_oid: int, typmod: int = -1) -> Typed:
    """Give a column of texts (as bytes) its type."""
    target = arrow_type(type_oid, typmod)
    if type_oid == BYTEA:
        return Typed(_unhex(raw))
    text = _text(raw)
    if target == pa.bool_():
        return Typed(pc.equal(text, "t"))
    if target == pa.string():
        return Typed(text)
    values = _cast(text, target)
    return _representable(text, type_oid, target) if values is None else Typed(values)


def _cast(text: pa.Array[Any], target: pa.DataType) -> pa.Array[Any] | None:
    try:
        return pc.cast(text, target)
    except pa.ArrowInvalid:  # its message quotes the value: it must not travel on
        return None


def _text(raw: pa.Array[Any]) -> pa.Array[Any]:
    try:
        return pc.cast(raw, pa.string())
    except pa.ArrowInvalid:
        raise DecodeError("a text value is not UTF-8; a SQL_ASCII database lets other bytes in") from None


def _representable(text: pa.Array[Any], type_oid: int, target: pa.DataType) -> Typed:
    fits = pc.match_substring_regex(text, _REPRESENTABLE.get(type_oid, ""))
    values = _cast(pc.if_else(fits, text, pa.scalar(None, pa.string())), target)
    if values is None:
        raise BugError(f"the text of a value of type {type_oid} is not of the form its type has")
    return Typed(values, np.asarray(pc.fill_null(pc.invert(fits), False)))


def _unhex(raw: pa.Array[Any]) -> pa.Array[Any]:
    # bytea's text is \\x and two digits a byte. The whole column is translated at once; nulls have no bytes.
    raw = pa.concat_arrays([pc.cast(raw, pa.large_binary())])  # a copy starts at offset 0
    if pc.any(pc.invert(pc.starts_with(raw, rb"\x"))).as_py():
        raise DecodeError("a bytea is not in its hexadecimal form, which every connection of ours asks for")
    _, offsets, data = raw.buffers()
    ends = np.frombuffer(offsets, np.int64)[: len(raw) + 1] if len(raw) else np.zeros(1, np.int64)
    text = np.frombuffer(data, np.uint8)[: int(ends[-1])] if data is not None else np.zeros(0, np.uint8)
    sizes = np.maximum(np.diff(ends) - 2, 0)
    digit = np.ones(len(text), np.bool_)
    marks = ends[:-1][np.diff(ends) > 0]
    digit[marks] = digit[marks + 1] = False
    places = np.concatenate([[0], np.cumsum(sizes)]) // 2
    values = pa.py_buffer(bytes.fromhex(text[digit].tobytes().decode()))
    bitmap = None if raw.null_count == 0 else pc.is_valid(raw).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), len(raw), [bitmap, pa.py_buffer(places.astype(np.int32)), values])


def to_pylist(raw: pa.Array[Any], type_oid: int, typmod: int = -1) -> list[Any]:
    """The same column as Python values: int, float, bool, bytes, Decimal, UUID, date, datetime, else exact text."""
    typed = to_arrow(raw, type_oid, typmod)
    values: list[Any] = typed.values.to_pylist()
    convert = _PYTHON.get(type_oid)
    if convert is not None and typed.values.type == pa.string():
        values = [None if value is None else convert(value) for value in values]
    if typed.unrepresentable is not None:
        for at in np.flatnonzero(typed.unrepresentable).tolist():
            values[at] = raw[at].as_py().decode()
    return values


def to_python(raw: bytes | None, type_oid: int, typmod: int = -1) -> Any:
    """One value."""
    return to_pylist(pa.array([raw], pa.binary()), type_oid, typmod)[0]
