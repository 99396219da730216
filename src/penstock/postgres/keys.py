"""Changed rows by their keys alone, as Arrow: `table, op, new, old, xid` and the position.

`new` and `old` are maps from column name to the exact Postgres text of its value: identity and link columns, whatever
the tables are, in one schema. No old tuple means that the identity did not change: `old` is then null. Guarantee: one
row for each change, in order; no Python runs per row.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import Op
from penstock.postgres.changes import Changes, Wanted
from penstock.postgres.columns import Ints, Mask, TableRows, Tuples, split
from penstock.postgres.pgoutput import DELETE, INSERT, UPDATE
from penstock.postgres.transactions import Truncated

MAP = pa.map_(pa.string(), pa.string())
SCHEMA = pa.schema(
    [
        pa.field("table", pa.string(), nullable=False),
        pa.field("op", pa.string(), nullable=False),
        pa.field("new", MAP),
        pa.field("old", MAP),
        pa.field("xid", pa.int64()),
        pa.field("_commit_lsn", pa.int64(), nullable=False),
        pa.field("_seq", pa.int64(), nullable=False),
    ]
)
_NUMBER = np.zeros(256, np.int64)
_NUMBER[[INSERT, UPDATE, DELETE]] = 0, 1, 2


@functools.cache
def _ops() -> Any:
    """The words by number. Made when they are needed: with its first array Arrow loads pandas where there is one."""
    return pa.array([Op.INSERT.value, Op.UPDATE.value, Op.DELETE.value, Op.TRUNCATE.value], pa.string())


def key_batch(changes: Changes, wanted: Wanted) -> pa.RecordBatch:
    """The changes by their keys."""
    origins = changes.origins()
    numbers = [pa.array(origins.xids), pa.array(origins.lsns), pa.array(origins.ordinals)]
    if isinstance(changes.rows, Truncated):
        count = len(changes.rows)
        tables = pa.array([str(relation.table) for relation in changes.rows.relations], pa.string())
        nothing = pa.nulls(count, MAP)
        ops = _ops().take(pa.array(np.full(count, 3)))
        return pa.record_batch([tables, ops, nothing, nothing, *numbers], schema=SCHEMA)
    parts = [_contents(rows) for rows in split(changes.rows, wanted)]
    columns = [pa.concat_arrays([part[i] for part in parts]) for i in range(4)]
    place = np.concatenate([rows for *_, rows in parts])
    if len(parts) > 1:
        order = pa.array(np.argsort(place))
        columns = [column.take(order) for column in columns]
    return pa.record_batch([*columns, *numbers], schema=SCHEMA)


def _contents(rows: TableRows) -> tuple[Any, Any, Any, Any, Ints]:
    count = len(rows.at)
    table = pa.array([str(rows.relation.table)], pa.string()).take(pa.array(np.zeros(count, np.int64)))
    every = range(len(rows.columns))
    # An old identity has nulls where columns are not part of it: those are no values.
    sent = [i for i in every if rows.relation.identity == "f" or rows.relation.columns[rows.columns[i]].key]
    new = _scattered(_maps(rows, rows.new, every), rows.tags != DELETE)
    old = _scattered(_maps(rows, rows.old, sent), rows.has_old)
    return table, _ops().take(pa.array(_NUMBER[rows.tags])), new, old, rows.at


def _maps(rows: TableRows, tuples: Tuples, columns: Sequence[int]) -> pa.Array[Any]:
    count, width = len(tuples.values[0]) if tuples.values else 0, len(columns)
    names = pa.array([rows.relation.columns[rows.columns[i]].name for i in columns], pa.string())
    if not count or not width:
        nothing = pa.nulls(0, pa.string())
        return pa.MapArray.from_arrays(pa.array([0] * (count + 1), pa.int32()), nothing, nothing)
    # Column after column becomes row after row: entry (row, column) stands at column * count + row.
    turn = np.arange(count * width).reshape(width, count).T.ravel()
    items = pa.concat_arrays([tuples.values[i] for i in columns]).take(pa.array(turn)).cast(pa.string())
    keys = names.take(pa.array(np.tile(np.arange(width), count)))
    masks = [tuples.unchanged[i] for i in columns]
    kept = np.full(count, width)
    if any(mask is not None for mask in masks):
        none = np.zeros(count, np.bool_)
        sent = ~np.stack([none if mask is None else mask for mask in masks], axis=1)
        items, keys, kept = items.filter(pa.array(sent.ravel())), keys.filter(pa.array(sent.ravel())), sent.sum(axis=1)
    offsets = np.concatenate([[0], np.cumsum(kept)]).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(offsets), keys, items)


def _scattered(maps: pa.Array[Any], where: Mask) -> pa.Array[Any]:
    if where.all():
        return maps
    places = np.cumsum(where) - 1
    return pc.take(maps, pa.array(places, mask=~where))
