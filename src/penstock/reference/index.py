"""Where the row of each key stands: what a snapshot brought, and over it what changed since.

Rows of a snapshot whose key is one whole number are found in a sorted array, which costs next to nothing to make and
little memory; others in a dictionary. Both are never written to: a change of a key goes into a dictionary beside them.
Guarantees: a batch of keys is looked up at once, without Python per key where keys are numbers; equal keys in a
snapshot are noticed. Deliberately not: knowing what a place is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.reference.keys import key_list

NOWHERE = -1


class _Base(Protocol):
    is_unique: bool

    def one(self, key: Any) -> int: ...
    def many(self, keys: list[Any]) -> list[int]: ...


class Index:
    """Places by key. `changed` is written to by whoever applies changes; a key that is gone is at `NOWHERE`."""

    def __init__(self, rows: pa.Table, key: Sequence[str]) -> None:
        column = rows.column(key[0])
        numbers = len(key) == 1 and pa.types.is_integer(column.type) and not column.null_count
        self._base: _Base = _Sorted(column) if numbers else _Hashed(key_list(rows, key))
        self.changed: dict[Any, int] = {}

    @property
    def is_unique(self) -> bool:
        """Whether no two rows that it was made of have the same key."""
        return self._base.is_unique

    def get(self, key: Any) -> int:
        """The place of a key."""
        place = self.changed.get(key)
        return self._base.one(key) if place is None else place

    def unchanged(self, keys: list[Any]) -> list[int]:
        """Where the keys stood before anything was changed."""
        return self._base.many(keys)


class _Sorted:
    def __init__(self, column: pa.ChunkedArray[Any]) -> None:
        numbers = column.to_numpy().astype(np.int64)
        self._order: np.ndarray[Any, np.dtype[np.int64]] | None = None
        if len(numbers) > 1 and not (numbers[1:] > numbers[:-1]).all():
            self._order = np.argsort(numbers, kind="stable")
            numbers = numbers[self._order]
        self._numbers = numbers
        self._view = memoryview(numbers)
        self.is_unique = bool((numbers[1:] > numbers[:-1]).all())

    def one(self, key: Any) -> int:
        if key is None:
            return NOWHERE
        at = bisect_left(self._view, key)
        if at == len(self._view) or self._view[at] != key:
            return NOWHERE
        return at if self._order is None else int(self._order[at])

    def many(self, keys: list[Any]) -> list[int]:
        if not len(self._numbers) or not keys:
            return [NOWHERE] * len(keys)
        if None in keys:  # a truncate has no key, and NULL may have become one
            return [self.one(key) for key in keys]
        asked = np.array(keys, np.int64)
        at = np.minimum(np.searchsorted(self._numbers, asked), len(self._numbers) - 1)
        places = at if self._order is None else self._order[at]
        found: list[int] = np.where(self._numbers[at] == asked, places, NOWHERE).tolist()
        return found


class _Hashed:
    def __init__(self, keys: list[Any]) -> None:
        self._places = dict(zip(keys, range(len(keys)), strict=True))
        self.is_unique = len(self._places) == len(keys)

    def one(self, key: Any) -> int:
        place: int = self._places.get(key, NOWHERE)
        return place

    def many(self, keys: list[Any]) -> list[int]:
        get = self._places.get
        return [get(key, NOWHERE) for key in keys]
