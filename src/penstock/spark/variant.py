"""JSON texts as Spark's VARIANT values.

The bytes are those that Spark's own `VariantUtils.parse_json` makes, in a sixth of its time: a column is parsed at
once, and each value is written from the inside out, so that nothing is moved. Guarantees: null stays null; a text that
no VARIANT can hold (a number beyond a double, half a surrogate pair, nesting or size beyond the limits) is told by its
place, never bent and never quoted. Deliberately not: digits beyond those of a decimal(38), which Spark itself reads as
a double; whoever needs them asks for JSON as text.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_FIELDS = (
    pa.field("value", pa.binary(), nullable=False),
    pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
)
_NOTHING = (b"", b"")
_LIMIT = 16 << 20  # Spark's own, for a value and for the names in it

# The first byte of a value: two bits of kind, and for a simple value six of type.
_SHORT_TEXT, _OBJECT, _ARRAY = 1, 2, 3
_NULL, _TRUE, _FALSE = (bytes([number << 2]) for number in (0, 1, 2))
_INT1, _INT2, _INT4, _INT8, _DOUBLE, _DECIMAL4, _DECIMAL8, _DECIMAL16, _TEXT = (
    number << 2 for number in (3, 4, 5, 6, 7, 8, 9, 10, 16)
)
_LONGEST_SHORT_TEXT = 63
_SHORT = [bytes([size << 2 | _SHORT_TEXT]) for size in range(_LONGEST_SHORT_TEXT + 1)]
_SMALL = [struct.pack("<Bb", _INT1, number) for number in range(-128, 128)]
_two, _four, _eight = (struct.Struct(form).pack for form in ("<Bh", "<Bi", "<Bq"))
_double, _length, _count = (struct.Struct(form).pack for form in ("<Bd", "<BI", "<I"))
_DIGITS = 38  # of a decimal, before and behind the point

Names = dict[str, int]
Encoded = tuple[bytes, bytes]


class Variants(NamedTuple):
    """The values as Arrow, and which of the texts have none although they are not null (None: all have)."""

    values: pa.Array[Any]
    unrepresentable: npt.NDArray[np.bool_] | None


def to_variant(texts: pa.Array[Any]) -> Variants:
    """JSON texts, as a server has checked them, as VARIANT values."""
    found = _parse_all(texts.drop_null().to_pylist())
    values, metadata = zip(*(one or _NOTHING for one in found), strict=True) if found else ((), ())
    arrays = [pa.array(values, pa.binary()), pa.array(metadata, pa.binary())]
    valid, bad = np.asarray(texts.is_valid()), None
    if None in found:
        bad = np.zeros(len(texts), np.bool_)
        bad[valid] = [one is None for one in found]
    if texts.null_count:  # put them back to their places; what stands where there is none does not matter
        place = pa.array(np.maximum(np.cumsum(valid) - 1, 0))
        arrays = [array.take(place) if len(array) else pa.array([b""] * len(texts), pa.binary()) for array in arrays]
    null = ~valid if bad is None else ~valid | bad
    whole = pa.StructArray.from_arrays(arrays, fields=list(_FIELDS), mask=pa.array(null))
    return Variants(whole, bad)


def _parse_all(texts: Sequence[str]) -> list[Encoded | None]:
    try:
        parsed = json.loads(f"[{','.join(texts)}]", parse_float=_number)
    except (ValueError, RecursionError):  # one of them; which, is told one by one
        return [_parse(text) for text in texts]
    return [_encode(value) for value in parsed]


def _parse(text: str) -> Encoded | None:
    try:
        return _encode(json.loads(text, parse_float=_number))
    except (ValueError, RecursionError):  # what they say may quote the text
        return None


def _encode(value: Any) -> Encoded | None:
    names: Names = {}
    try:
        encoded = _ENCODERS[type(value)](value, names)
        metadata = _metadata(tuple(names))
    except (ValueError, RecursionError, OverflowError):
        return None
    return (encoded, metadata) if len(encoded) <= _LIMIT and len(metadata) <= _LIMIT else None


@functools.lru_cache(maxsize=1024)
def _metadata(names: tuple[str, ...]) -> bytes:
    """The dictionary of a value's names: each stands in the value by its number here."""
    words = [name.encode() for name in names]
    ends = [0, *accumulate(map(len, words))]
    size = _width(max(ends[-1], len(words)))
    return b"".join([bytes([1 | size - 1 << 6]), _numbers([len(words), *ends], size), *words])


def _width(largest: int) -> int:
    """How many bytes a number takes."""
    return 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 3


def _numbers(numbers: Sequence[int], size: int) -> bytes:
    if size == 1:
        return bytes(numbers)
    if numbers[-1] >= _LIMIT:
        raise ValueError
    return b"".join([number.to_bytes(size, "little") for number in numbers])


def _number(text: str) -> Decimal | float:
    """A number with a point, or one that is no 64-bit integer: a decimal where its digits fit into one."""
    if "e" in text or "E" in text:
        return float(text)
    found = Decimal(text)
    if len(text) > _DIGITS:
        _, digits, exponent = found.as_tuple()
        if len(digits) > _DIGITS or -int(exponent) > _DIGITS:
            return float(text)
    return found


def _text(value: str, names: Names) -> bytes:
    text = value.encode()
    size = len(text)
    return _SHORT[size] + text if size <= _LONGEST_SHORT_TEXT else _length(_TEXT, size) + text


def _integer(value: int, names: Names) -> bytes:
    if -128 <= value < 128:
        return _SMALL[value + 128]
    if -(1 << 15) <= value < 1 << 15:
        return _two(_INT2, value)
    if -(1 << 31) <= value < 1 << 31:
        return _four(_INT4, value)
    if -(1 << 63) <= value < 1 << 63:
        return _eight(_INT8, value)
    number = _number(str(value))
    return _decimal(number, names) if isinstance(number, Decimal) else _float(number, names)


def _float(value: float, names: Names) -> bytes:
    if value - value:  # an infinity, which no JSON number is
        raise ValueError
    return _double(_DOUBLE, value)


def _decimal(value: Decimal, names: Names) -> bytes:
    sign, digits, exponent = value.as_tuple()
    scale, precision = -int(exponent), len(digits)
    unscaled = int("".join(map(str, digits)))
    most = max(scale, precision)
    kind, size = (_DECIMAL4, 4) if most <= 9 else (_DECIMAL8, 8) if most <= 18 else (_DECIMAL16, 16)
    return bytes([kind, scale]) + (-unscaled if sign else unscaled).to_bytes(size, "little", signed=True)


def _array(value: list[Any], names: Names) -> bytes:
    parts = [_ENCODERS[type(one)](one, names) for one in value]
    ends = [0, *accumulate(map(len, parts))]
    size, large = _width(ends[-1]), len(parts) > 255
    head = _ARRAY | size - 1 << 2 | large << 4
    counted = _count(len(parts)) if large else bytes([len(parts)])
    return b"".join([bytes([head]), counted, _numbers(ends, size), *parts])


def _object(value: dict[str, Any], names: Names) -> bytes:
    fields, parts, end = [], [], 0
    for name, one in value.items():
        number = names.setdefault(name, len(names))
        part = _ENCODERS[type(one)](one, names)
        fields.append((name, number, end))
        parts.append(part)
        end += len(part)
    fields.sort()
    numbers, starts = [field[1] for field in fields], [field[2] for field in fields]
    if end < 1 << 8 and len(names) <= 1 << 8:  # the usual case: one byte is enough for everything
        return b"".join([bytes([_OBJECT, len(parts), *numbers, *starts, end]), *parts])
    size, large = _width(end), len(fields) > 255
    id_size = _width(max(numbers, default=0))
    head = bytes([_OBJECT | size - 1 << 2 | id_size - 1 << 4 | large << 6])
    counted = _count(len(parts)) if large else bytes([len(parts)])
    return b"".join([head, counted, _ids(numbers, id_size), _numbers([*starts, end], size), *parts])


def _ids(numbers: Sequence[int], size: int) -> bytes:
    return bytes(numbers) if size == 1 else b"".join([number.to_bytes(size, "little") for number in numbers])


_ENCODERS: dict[type, Callable[[Any, Names], bytes]] = {
    str: _text,
    int: _integer,
    float: _float,
    Decimal: _decimal,
    bool: lambda value, names: _TRUE if value else _FALSE,
    type(None): lambda value, names: _NULL,
    list: _array,
    dict: _object,
}
