"""The text form of COPY turned into columns, many lines at once.

Every field is what the type's output function writes, the very text that the stream carries, so that one table of
types serves both. Decoding works on whole blocks of lines with array operations: no Python runs per row.

Guarantees: the same fields as a reader that goes character by character; a block that is no COPY text is a
`DecodeError`. Values stay the server's bytes: giving them types is `values`' work.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DecodeError
from penstock.postgres.columns import Ints, Mask

_TAB, _LINE_FEED, _BACKSLASH, _N = b"\t\n\\N"

# What the letter after a backslash stands for; every other one stands for itself.
_MEANING: Final = np.arange(256, dtype=np.uint8)
_MEANING[list(b"bfnrtv")] = list(b"\b\f\n\r\t\v")


def columns(block: bytes | bytearray, count: int) -> list[pa.Array[Any]]:
    """The fields of a block of whole lines, as `count` arrays of bytes; a field of `\\N` is null."""
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data - _TAB <= _LINE_FEED - _TAB)  # in eight bits what is smaller than a tab is far above
    lines = ends[count - 1 :: count]
    if not len(lines) or len(ends) != len(lines) * count or ends[-1] != len(data) - 1:
        raise DecodeError(f"a block of COPY text is not made of lines of {count} fields")
    last = data[ends] == _LINE_FEED
    if int(last.sum()) != len(lines) or not last[count - 1 :: count].all():
        raise DecodeError(f"a line of COPY text does not have {count} fields")
    starts = np.empty_like(ends)
    starts[0], starts[1:] = 0, ends[:-1] + 1
    escaped = b"\\" in block
    null = _nulls(data, starts, ends) if escaped else None
    fields = _every_field(block, starts, ends, null)
    places = (pa.array(np.arange(2 * at, len(fields), 2 * count)) for at in range(count))
    found = [pc.take(fields, at, boundscheck=False) for at in places]
    return [_unescaped(column) for column in found] if escaped else found


def _nulls(data: npt.NDArray[np.uint8], starts: Ints, ends: Ints) -> Mask:
    null: Mask = ends - starts == 2
    at = starts[null]
    null[null] = (data[at] == _BACKSLASH) & (data[at + 1] == _N)
    return null


def _every_field(block: bytes | bytearray, starts: Ints, ends: Ints, null: Mask | None) -> pa.Array[Any]:
    """An array over the block itself, without a copy: fields at even places, what parts them at odd ones."""
    bounds = np.empty(2 * len(starts) + 1, np.int32)  # a line has less than 1 GB, and a block little more
    bounds[0:-1:2] = starts
    bounds[1::2] = ends if null is None else np.where(null, starts, ends)
    bounds[-1] = bounds[-2]
    valid = None
    if null is not None and null.any():
        bits = np.ones(2 * len(starts), np.bool_)
        bits[::2] = ~null
        valid = pa.py_buffer(np.packbits(bits, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), 2 * len(starts), [valid, pa.py_buffer(bounds), pa.py_buffer(block)])


def _unescaped(column: pa.Array[Any]) -> pa.Array[Any]:
    valid, offsets, values = column.buffers()
    if values is None:  # nothing but nulls
        return column
    ends = np.frombuffer(offsets, np.int32)[: len(column) + 1]
    text = np.frombuffer(values, np.uint8)[: int(ends[-1])]
    at = np.flatnonzero(text == _BACKSLASH)
    if not len(at):
        return column
    # In a run of backslashes every second one is itself escaped; a run that spans two values has whole pairs in each.
    place = np.arange(len(at))
    fresh = np.concatenate([[True], np.diff(at) != 1])
    begins = at[(place - np.maximum.accumulate(np.where(fresh, place, 0))) % 2 == 0]
    plain, keep = text.copy(), np.ones(len(text), np.bool_)
    plain[begins + 1] = _MEANING[text[begins + 1]]
    keep[begins] = False
    moved = (ends - np.searchsorted(begins, ends)).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(column), [valid, pa.py_buffer(moved), pa.py_buffer(plain[keep])])
