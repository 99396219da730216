"""The binary form of a type → its Arrow values, the same ones that `values` makes of its text.

Fixed-width numbers, dates and times, uuids, texts, json and bytea need no parsing in this form, on either side of the
connection. Every other type, and each that could not be told exactly, is asked for as text instead: `expression`
says how, by the type's own output function, whatever casts there may be.

Guarantees: an array equals the one that `values.to_arrow` gives for the texts of the same values, marks included.
"""

from __future__ import annotations

from binascii import hexlify
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BugError
from penstock.model import quote
from penstock.postgres import values
from penstock.postgres.columns import Mask
from penstock.postgres.copybinary import Walk
from penstock.postgres.values import Typed, arrow_type

_JSON, _JSONB = 114, 3802

# How the server writes a value of fixed width.
_FIXED: Final[dict[int, np.dtype[Any]]] = {
    values.BOOL: np.dtype("u1"),
    values.INT2: np.dtype(">i2"),
    values.INT4: np.dtype(">i4"),
    values.INT8: np.dtype(">i8"),
    values.OID: np.dtype(">u4"),
    values.FLOAT4: np.dtype(">f4"),
    values.FLOAT8: np.dtype(">f8"),
    values.DATE: np.dtype(">i4"),
    values.TIMESTAMP: np.dtype(">i8"),
    values.TIMESTAMPTZ: np.dtype(">i8"),
    values.UUID: np.dtype("V16"),
}
# Of these the binary form is the text; bytea's is itself.
_VARYING: Final = frozenset({values.TEXT, values.VARCHAR, values.BPCHAR, values.NAME, _JSON, _JSONB, values.BYTEA})

# What stands before each value: the version of jsonb's form.
_LEADING: Final = {_JSONB: b"\x01"}

# Days, and microseconds, from 1970 to Postgres' own beginning, and the years 1 to 9999 in them.
_EPOCH_DAYS: Final = 10_957
_DAY_MICROS: Final = 86_400_000_000
_FIRST_DAY, _END_DAY = -719_162, 2_932_897
# The groups of a uuid's digits, without dashes and with them.
_GROUPS: Final = [("a", "V8"), ("b", "V4"), ("c", "V4"), ("d", "V4"), ("e", "V12")]
_DIGITS: Final = np.dtype(_GROUPS)
_DASHED: Final = np.dtype([field for group in _GROUPS for field in (group, (f"-{group[0]}", "V1"))][:-1])

# A numeric is its digits in fours, after how many fours there are, the place of the first, its sign and its scale.
_HEAD_WORDS: Final = 4
_NEGATIVE: Final = 0x4000  # the signs of NaN and of the infinities are below zero
_FOURS: Final = 10_000 ** np.arange(5, dtype=np.int64)
_MOST_DIGITS: Final = 15  # with up to three more to fill up the last four, a number is within 64 bits

Numbers = npt.NDArray[Any]


def is_binary(type_oid: int, typmod: int) -> bool:
    """Whether values of a column travel in the type's binary form."""
    if type_oid == values.NUMERIC:
        kind = arrow_type(type_oid, typmod)
        return isinstance(kind, pa.Decimal128Type) and kind.precision <= _MOST_DIGITS
    return type_oid in _FIXED or type_oid in _VARYING


def expression(name: str, type_oid: int, typmod: int) -> str:
    """What to select for a column."""
    if is_binary(type_oid, typmod):
        return quote(name)
    # Unlike a cast: an inet's text has no /32 and a composite of nulls is no null.
    return f"CASE pg_catalog.num_nulls({quote(name)}) WHEN 0 THEN pg_catalog.format('%s', {quote(name)}) END"


def read_column(walk: Walk, type_oid: int, typmod: int) -> Typed:
    """The next column of a block."""
    if type_oid in _FIXED:
        return _fixed(*walk.fixed(_FIXED[type_oid]), type_oid)
    return _varying(walk.varying(_LEADING.get(type_oid, b"")), type_oid, typmod)


def _fixed(found: Numbers, null: Mask | None, type_oid: int) -> Typed:
    """Values of fixed width; what stands in the place of a null is not looked at."""
    if type_oid == values.UUID:
        return Typed(_uuids(found, null))
    if type_oid == values.BOOL:
        return Typed(pa.array(found != 0, mask=null))
    numbers = found.astype(np.int64 if type_oid == values.OID else found.dtype.newbyteorder("="))
    if type_oid in (values.DATE, values.TIMESTAMP, values.TIMESTAMPTZ):
        return _moments(numbers, null, type_oid)
    if numbers.dtype.kind == "f":
        numbers[np.isnan(numbers)] = np.nan  # the server keeps the sign that a calculation left; its text has none
    return Typed(pa.array(numbers, mask=null))


def _moments(numbers: Numbers, null: Mask | None, type_oid: int) -> Typed:
    unit = 1 if type_oid == values.DATE else _DAY_MICROS
    outside: Mask = (numbers < (_FIRST_DAY - _EPOCH_DAYS) * unit) | (numbers >= (_END_DAY - _EPOCH_DAYS) * unit)
    if null is not None:
        outside &= ~null
    beyond = bool(outside.any())
    if beyond:
        null = outside if null is None else null | outside
        numbers[outside] = 0
    numbers += _EPOCH_DAYS * unit
    return Typed(pa.array(numbers, mask=null).view(arrow_type(type_oid)), outside if beyond else None)


def _uuids(found: Numbers, null: Mask | None) -> pa.Array[Any]:
    text = np.full(_DASHED.itemsize * len(found), ord("-"), np.uint8)
    digits, dashed = np.frombuffer(hexlify(found.tobytes()), _DIGITS), text.view(_DASHED)
    for group, _ in _GROUPS:
        dashed[group] = digits[group]
    offsets = pa.py_buffer(np.arange(0, 36 * len(found) + 1, 36, dtype=np.int32))
    return pa.Array.from_buffers(pa.string(), len(found), [_valid(null), offsets, pa.py_buffer(text)])


def _varying(raw: pa.Array[Any], type_oid: int, typmod: int) -> Typed:
    """Values of varying width."""
    if type_oid == values.NUMERIC and is_binary(type_oid, typmod):
        return _numerics(raw, arrow_type(type_oid, typmod))
    if type_oid == values.BYTEA:
        return Typed(raw)
    if type_oid not in _VARYING:
        return values.to_arrow(raw, type_oid, typmod)
    return values.to_arrow(raw, values.TEXT)


def _numerics(raw: pa.Array[Any], kind: pa.Decimal128Type) -> Typed:
    _, offsets, data = raw.buffers()
    words = np.frombuffer(data or b"", ">i2").astype(np.int64)
    if not len(words):  # nothing but nulls
        return Typed(pa.nulls(len(raw), kind))
    at = np.minimum(np.frombuffer(offsets, np.int32)[: len(raw)] // 2, len(words) - _HEAD_WORDS)
    null = np.asarray(pc.is_null(raw)) if raw.null_count else None
    count = words[at] if null is None else np.where(null, 0, words[at])
    numbers = _whole_numbers(words, at, count, kind)
    sign = words[at + 2]
    numbers[sign == _NEGATIVE] *= -1
    special: Mask = sign < 0 if null is None else (sign < 0) & ~null
    beyond = bool(special.any())
    if beyond:
        null = special if null is None else null | special
    pairs = np.stack([numbers, numbers >> 63], axis=1)
    array = pa.Array.from_buffers(kind, len(raw), [_valid(null), pa.py_buffer(pairs)])
    return Typed(array, special if beyond else None)


def _whole_numbers(words: Numbers, at: Numbers, count: Numbers, kind: pa.Decimal128Type) -> Numbers:
    """The numbers without their signs, in units of the last place that the type has."""
    numbers = np.zeros(len(at), np.int64)
    behind = -(-kind.scale // 4)
    place = words[at + 1] + behind
    for four in range(int(count.max(initial=0))):
        digits = np.where(four < count, words[np.minimum(at + (_HEAD_WORDS + four), len(words) - 1)], 0)
        within = np.clip(place, 0, len(_FOURS) - 1)
        if digits[within != place].any():
            raise BugError("a numeric has more digits than its column's type")
        numbers += digits * _FOURS[within]
        place -= 1
    numbers, rest = np.divmod(numbers, 10 ** (4 * behind - kind.scale))
    if rest.any() or (numbers >= 10**kind.precision).any():
        raise BugError("a numeric has more digits than its column's type")
    return numbers


def _valid(null: Mask | None) -> pa.Buffer | None:
    return None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
