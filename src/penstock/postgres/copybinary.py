"""The binary form of COPY turned into columns, many rows at once.

Rows are walked together, column by column, with array operations: no Python runs per row.

Guarantee: a block that is not made of rows of the given columns is a `DecodeError`.
Deliberately not: what the values mean (`values_binary`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DecodeError
from penstock.postgres.columns import Ints, Mask

# What stands before the first row: the form's name, no flags, no extension; and what stands after the last.
_BEGIN: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END: Final = b"\xff\xff"
# What follows a block, so that a look at a field's size and its first bytes never leaves it.
_PADDING: Final = bytes(64)
_NULL = -1


def drop_begin(block: bytearray, sizes: list[int]) -> None:
    """Take off what stands before the first row."""
    if not block.startswith(_BEGIN) or sizes[0] < len(_BEGIN):
        raise DecodeError("the answer to a binary COPY does not begin as one")
    del block[: len(_BEGIN)]
    sizes[0] -= len(_BEGIN)
    if not sizes[0]:
        del sizes[0]


def drop_end(block: bytearray, sizes: list[int]) -> bool:
    """Take off what stands after the last row; whether it was there."""
    if not sizes or sizes[-1] != len(_END) or not block.endswith(_END):
        return False
    del block[-len(_END) :], sizes[-1]
    return True


class Walk:
    """The rows of a block, with a place in each that moves from field to field."""

    def __init__(self, block: bytearray, sizes: Sequence[int], count: int) -> None:
        """A block of rows of the given sizes, each of `count` fields; it is taken over, and padded."""
        self._limit = len(block)
        self._block = block
        self._block += _PADDING
        lengths = np.array(sizes, np.int64)
        self._ends = np.cumsum(lengths)
        self._place = self._ends - lengths
        if (self._look(np.dtype(">i2")) != count).any():
            raise DecodeError(f"a row of binary COPY does not have {count} fields")
        self._place += 2

    def fixed(self, kind: np.dtype[Any]) -> tuple[npt.NDArray[Any], Mask | None]:
        """The next field of each row, of a fixed width, and where it is null."""
        fields = self._look(np.dtype([("size", ">i4"), ("value", kind)]))
        sizes = fields["size"]
        whole = sizes == kind.itemsize
        if whole.all():
            self._place += 4 + kind.itemsize
            return fields["value"], None
        if not (whole | (sizes == _NULL)).all():
            raise DecodeError(f"a field of binary COPY does not have {kind.itemsize} bytes")
        self._place += 4 + np.where(whole, kind.itemsize, 0)
        return fields["value"], ~whole

    def varying(self, leading: bytes = b"") -> pa.Array[Any]:
        """The next field of each row, as bytes, without those that stand before each."""
        fields = self._look(np.dtype([("size", ">i4"), ("leading", "V", len(leading))]))
        sizes = fields["size"].astype(np.int64)
        null: Mask = sizes == _NULL
        sizes[null] = 0
        if leading and (fields["leading"] != np.void(leading))[~null].any():
            raise DecodeError("a field of binary COPY does not begin as its type does")
        starts = self._place + (4 + len(leading))
        self._place += 4 + sizes
        if int(sizes.min()) < 0 or (self._place > self._ends).any():
            raise DecodeError("a field of binary COPY reaches beyond its row")
        return self._taken(np.minimum(starts, self._place), null if null.any() else None)

    def _taken(self, starts: Ints, null: Mask | None) -> pa.Array[Any]:
        """The bytes from `starts` up to the place in each row."""
        count = len(starts)
        bounds = np.empty(2 * count + 1, np.int32)  # a row has less than 1 GB, and a block little more
        bounds[0:-1:2], bounds[1::2], bounds[-1] = starts, self._place, self._place[-1]
        valid = None if null is None else pa.py_buffer(np.packbits(np.repeat(~null, 2), bitorder="little"))
        # An array over the block itself, without a copy: fields at even places, what parts them at odd ones.
        buffers = [valid, pa.py_buffer(bounds), pa.py_buffer(self._block)]
        fields = pa.Array.from_buffers(pa.binary(), 2 * count, buffers)
        return pc.take(fields, pa.array(np.arange(0, 2 * count, 2)), boundscheck=False)

    def finish(self) -> None:
        """Make sure that the rows end here."""
        if (self._place != self._ends).any():
            raise DecodeError("a row of binary COPY does not end after its last field")

    def _look(self, kind: np.dtype[Any]) -> npt.NDArray[Any]:
        """What stands at the place in each row."""
        if int(self._place.max()) > self._limit:
            raise DecodeError("a row of binary COPY is cut off")
        count = len(self._block) - kind.itemsize + 1
        windows = np.ndarray((count,), np.dtype(("V", kind.itemsize)), self._block, strides=(1,))
        found: npt.NDArray[Any] = windows[self._place].view(kind)
        return found
