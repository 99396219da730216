"""How a table is cut into parts that are read one by one or side by side.

Parts are ranges of blocks (by ctid: every table has it, and the server reads just those blocks) or ranges of a key.
The first part has no lower bound and the last no upper one, so that together they hold every row of whatever snapshot
they are read in, however old the plan is. Guarantee: each row is in exactly one part. Plain values and SQL text; no
I/O.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.model import literal, quote


@dataclass(frozen=True, slots=True)
class Everything:
    """The whole table as one part."""

    def condition(self) -> str:
        """The part as SQL."""
        return "TRUE"


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Blocks `first` … `end - 1` of a table, and of each table below it; None: no bound."""

    first: int | None
    end: int | None

    def condition(self) -> str:
        """The part as SQL."""
        low = [] if self.first is None else [f"ctid >= '({self.first},0)'::pg_catalog.tid"]
        high = [] if self.end is None else [f"ctid < '({self.end},0)'::pg_catalog.tid"]
        return " AND ".join([*low, *high]) or "TRUE"


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column that a table is cut by, and its type as SQL spells it."""

    name: str
    type_name: str
    nullable: bool


@dataclass(frozen=True, slots=True, repr=False)
class KeyRange:
    """Keys from `low` up to, not including, `high`, each a text a column; None: no bound.

    Rows without a key are in the part that has no lower bound; only a key of one column may be null.
    """

    columns: tuple[KeyColumn, ...]
    low: tuple[str, ...] | None
    high: tuple[str, ...] | None

    def __repr__(self) -> str:  # bounds are values of rows
        return f"KeyRange({', '.join(column.name for column in self.columns)})"

    def condition(self) -> str:
        """The part as SQL."""
        low = [] if self.low is None else [f"{self._key()} >= {self._bound(self.low)}"]
        high = [] if self.high is None else [f"{self._key()} < {self._bound(self.high)}"]
        if high and not low and self.columns[0].nullable:
            high = [f"({high[0]} OR {quote(self.columns[0].name)} IS NULL)"]
        return " AND ".join([*low, *high]) or "TRUE"

    def _key(self) -> str:
        return _row([quote(column.name) for column in self.columns])

    def _bound(self, texts: tuple[str, ...]) -> str:
        return _row([f"{literal(text)}::{c.type_name}" for text, c in zip(texts, self.columns, strict=True)])


Range = Everything | BlockRange | KeyRange


def _row(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"


def block_ranges(sizes: Sequence[int], parts: int) -> list[Range]:
    """Ranges of about as many blocks each, over a table (or several, read together) of these sizes in blocks."""
    total = sum(sizes)
    cuts = {_height(sizes, total * part / parts) for part in range(1, parts)} - {0}
    bounds = [None, *sorted(cuts), None]
    return [BlockRange(first, end) for first, end in itertools.pairwise(bounds)]


def block_range(sizes: Sequence[int], parts: int, number: int) -> BlockRange:
    """One of `block_ranges`, found without the others; it may be empty where there are fewer blocks than parts."""
    total = sum(sizes)
    first = _height(sizes, total * number / parts) if number else None
    return BlockRange(first, _height(sizes, total * (number + 1) / parts) if number + 1 < parts else None)


def _height(sizes: Sequence[int], blocks: float) -> int:
    """The block number below which the tables have about `blocks` blocks in all."""
    low, high = 0, max(sizes, default=0)
    while low < high:
        middle = (low + high) // 2
        if sum(min(size, middle) for size in sizes) < blocks:
            low = middle + 1
        else:
            high = middle
    return low


def key_ranges(columns: Sequence[KeyColumn], cuts: Sequence[tuple[str, ...]]) -> list[Range]:
    """Ranges between the given keys, which are in order; one that comes twice cuts once."""
    bounds = [None, *dict.fromkeys(cuts), None]
    return [KeyRange(tuple(columns), low, high) for low, high in itertools.pairwise(bounds)]


def key_prefix(columns: Sequence[KeyColumn]) -> tuple[KeyColumn, ...]:
    """As many of the columns as a table can be cut by: rows compare as unknown where one of several is null."""
    nullable = next((at for at, column in enumerate(columns) if column.nullable), len(columns))
    return tuple(columns[: max(nullable, 1)])
