"""Where paths start: the values that changed rows hold, in their new and in their old state, straight from the batch.

Guarantees: values come distinct; no change is left out because another one follows it; a null links to nothing and
gives no value. A state that the server did not send says nothing: without an old tuple, the old values are the new
ones. Rows are looked at as columns, never one by one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.contracts import Key
from penstock.document.schema import Columns
from penstock.errors import OperatorError
from penstock.model import Op, quote


def by_table(changes: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
    """The changes of rows, parted by table; truncates are left out."""
    rows = changes.filter(pc.not_equal(changes.column("op"), Op.TRUNCATE.value))
    names = rows.column("table").unique().to_pylist()
    if len(names) == 1:
        return {names[0]: rows}
    return {name: rows.filter(pc.equal(rows.column("table"), name)) for name in names}


def truncated_tables(changes: pa.RecordBatch) -> set[str]:
    """The tables that a TRUNCATE among the changes names."""
    return set(changes.filter(pc.equal(changes.column("op"), Op.TRUNCATE.value)).column("table").to_pylist())


def first_values(changes: pa.RecordBatch, columns: Columns) -> Collection[Key]:
    """The distinct values of the columns in changed rows of one table, old and new."""
    new = [_column(changes.column("new"), name) for name in columns]
    old = [_column(changes.column("old"), name) for name in columns]
    kept = np.asarray(pc.not_equal(changes.column("op"), Op.DELETE.value))
    for name, (_, in_new), (_, in_old) in zip(columns, new, old, strict=True):
        if np.any(kept & ~in_new & ~in_old):
            raise OperatorError(
                f"changes of table {changes.column('table')[0]} come without the column {quote(name)}",
                hint="Take it into the publication's column list, and into the table's replica identity.",
            )
    # What an update leaves as it was, out of line, is sent with the old state only.
    state = [pc.if_else(pa.array(has), values, was[0]) for (values, has), was in zip(new, old, strict=True)]
    return _distinct(state, _distinct([values for values, _ in old], {}))


def untold(changes: pa.RecordBatch, columns: Columns) -> tuple[str, ...]:
    """The columns that an old state among the changes does not tell: what it linked to is not known."""
    old = changes.column("old")
    told = np.asarray(pc.is_valid(old))
    return tuple(name for name in columns if np.any(told & ~_column(old, name)[1]))


def _column(maps: Any, name: str) -> tuple[Any, np.ndarray[Any, np.dtype[np.bool_]]]:
    """A column's values, null where there is none, and where there is one (which may be null)."""
    offsets = np.asarray(maps.offsets)
    entry = np.flatnonzero(np.asarray(pc.equal(maps.keys, name)))
    entry = entry[(entry >= offsets[0]) & (entry < offsets[-1])]
    place = np.full(len(maps), -1, np.int64)
    place[np.searchsorted(offsets, entry, side="right") - 1] = entry
    return maps.items.take(pa.array(place, mask=place < 0)), place >= 0


def _distinct(columns: list[Any], found: dict[Key, None]) -> dict[Key, None]:
    if len(columns) == 1:
        found.update(dict.fromkeys((one,) for one in columns[0].unique().to_pylist() if one is not None))
    else:
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        found.update(dict.fromkeys(row for row in rows if None not in row))
    return found
