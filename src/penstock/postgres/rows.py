"""Whole rows as Arrow: each table's own typed columns, and what happened to the row beside them.

The added columns: `_change_type` (insert, update_preimage, update_postimage, delete, truncate), `_commit_lsn`,
`_seq` (the ordinal in its transaction), `_xid`, `_commit_timestamp`, `_missing` (columns without a value here:
unchanged TOAST, what a delete's identity leaves out, what the type cannot hold).

Guarantees: an update whose identity changed comes as a preimage and a postimage, in that order and with the same
`_seq`, whatever is asked for, so that a replay by key is exact. With `preimage`, every update whose old row the server
sent does. No Python runs per row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigError, OperatorError
from penstock.model import QualifiedTable
from penstock.postgres.changes import Changes, Origins
from penstock.postgres.columns import Ints, Mask, TableRows, Tuples, split
from penstock.postgres.pgoutput import DELETE, INSERT, UPDATE, Relation
from penstock.postgres.replication import POSTGRES_EPOCH_MICROS
from penstock.postgres.transactions import Truncated
from penstock.postgres.values import arrow_type, to_arrow

CHANGE_TYPES = ("insert", "update_preimage", "update_postimage", "delete", "truncate")
_INSERT, _PREIMAGE, _POSTIMAGE, _DELETE, _TRUNCATE = range(5)

ADDED = pa.schema(
    [
        pa.field("_change_type", pa.string(), nullable=False),
        pa.field("_commit_lsn", pa.int64(), nullable=False),
        pa.field("_seq", pa.int64(), nullable=False),
        pa.field("_xid", pa.int64()),
        pa.field("_commit_timestamp", pa.timestamp("us", "UTC")),
        pa.field("_missing", pa.list_(pa.string()), nullable=False),
    ]
)

Unrepresentable = Literal["error", "null"]
Keys = Mapping[QualifiedTable, Sequence[str]]


@dataclass(frozen=True, slots=True)
class RowShape:
    """How rows are laid out: see the module's description. `strict`: an update without its old row is an error."""

    preimage: bool = False
    unrepresentable: Unrepresentable = "error"
    strict: bool = False


@dataclass(frozen=True, slots=True)
class TableBatch:
    """Row changes of one table, all of one shape."""

    relation: Relation
    rows: pa.RecordBatch

    @property
    def table(self) -> QualifiedTable:
        """The table."""
        return self.relation.table


def schema_of(relation: Relation) -> pa.Schema:
    """The Arrow schema of a table's row changes."""
    taken = [column.name for column in relation.columns if column.name in ADDED.names]
    if taken:
        raise ConfigError(
            f"table {relation.table} has a column {taken[0]}, which is the name of a column that is added",
            hint=f"ALTER TABLE {relation.table.sql} RENAME COLUMN it, or leave it out with a column list.",
        )
    own = [pa.field(column.name, arrow_type(column.type_oid, column.typmod)) for column in relation.columns]
    return pa.schema([*own, *ADDED])


def row_batches(
    piece: Changes,
    shape: RowShape,
    keys: Keys,
    only: Collection[QualifiedTable] | None = None,
    partitioned: Collection[QualifiedTable] = (),
) -> list[TableBatch]:
    """The piece as Arrow, a batch for each table in it. `keys` are the primary keys that are known.

    Of tables that are not among `only` no value is looked at. `partitioned` are those known to be so: rows under such a
    name are a partition's, which may keep less of an old row than the table's identity says.
    """

    def is_wanted(relation: Relation) -> bool:
        return only is None or relation.table in only

    origins = piece.origins()
    if isinstance(piece.rows, Truncated):
        named = enumerate(piece.rows.relations)
        return [_truncated(origins, at, relation) for at, relation in named if is_wanted(relation)]
    found = split(piece.rows, lambda relation: range(len(relation.columns)) if is_wanted(relation) else ())
    wanted = [rows for rows in found if is_wanted(rows.relation)]
    return [
        _table_batch(origins, rows, shape, _key_columns(rows.relation, keys), rows.relation.table in partitioned)
        for rows in wanted
    ]


def _key_columns(relation: Relation, keys: Keys) -> list[int]:
    """Where an update may change a row's identity: its key, or any column where the key is not known."""
    names = keys.get(relation.table, ())
    found = [i for i, column in enumerate(relation.columns) if column.name in names]
    return found if names and len(found) == len(names) else list(range(len(relation.columns)))


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which tuple each output row shows: `source` indexes the new tuples followed by the old ones; `at` the rows."""

    source: Ints
    at: Ints
    kind: Ints


def _table_batch(
    origins: Origins, rows: TableRows, shape: RowShape, key: Sequence[int], of_partition: bool
) -> TableBatch:
    schema = schema_of(rows.relation)
    if shape.strict and np.any((rows.tags == UPDATE) & ~rows.full):
        raise _not_kept(rows.relation.table, of_partition)
    layout = _lay_out(rows, shape, key)
    columns: list[pa.Array[Any]] = []
    missing = np.zeros((len(layout.at), len(rows.relation.columns)), np.bool_)
    for i, column in enumerate(rows.relation.columns):
        in_old = column.key or rows.relation.identity == "f"
        values, absent = _column(rows, i, shape, in_old)
        if of_partition and in_old and (count := len(rows.old.values[i])):
            absent[-count:] |= np.asarray(pc.is_null(rows.old.values[i]))  # not kept, or null: nobody can tell
        straight = len(values) == len(layout.source) and not len(rows.old.values[i])
        columns.append(values if straight else values.take(pa.array(layout.source)))
        missing[:, i] = absent if straight else absent[layout.source]
    added = _added(origins, rows.at[layout.at], layout.kind, missing_names(missing, rows.relation.names))
    return TableBatch(rows.relation, pa.record_batch([*columns, *added], schema=schema))


def _not_kept(table: QualifiedTable, of_partition: bool) -> ConfigError:
    named = f"a partition of {table}" if of_partition else str(table)
    return ConfigError(
        f"preimage needs the whole old row, and the replica identity of {named} did not always keep it",
        hint=f"ALTER TABLE {'…' if of_partition else table.sql} REPLICA IDENTITY FULL; then run the query with "
        "preimage set to false until it is behind what was written before that.",
    )


def _lay_out(rows: TableRows, shape: RowShape, key: Sequence[int]) -> _Layout:
    is_delete, count = rows.tags == DELETE, len(rows.tags)
    new_at = np.cumsum(~is_delete) - 1
    old_at = np.cumsum(rows.has_old) - 1 + int((~is_delete).sum())
    kind = np.where(rows.tags == INSERT, _INSERT, np.where(is_delete, _DELETE, _POSTIMAGE))
    source = np.where(is_delete, old_at, new_at)
    with_preimage = rows.has_old & (rows.tags == UPDATE)
    if not shape.preimage and rows.relation.identity == "f" and with_preimage.any():
        with_preimage = with_preimage & _changed(rows, key)
    if not with_preimage.any():
        return _Layout(source, np.arange(count), kind)
    at = np.repeat(np.arange(count), 1 + with_preimage)
    kind, source = kind[at], source[at]
    first = np.flatnonzero(np.r_[True, at[1:] != at[:-1]] & with_preimage[at])
    kind[first] = _PREIMAGE
    source[first] = old_at[at[first]]
    return _Layout(source, at, kind)


def _changed(rows: TableRows, columns: Sequence[int]) -> Mask:
    """Which updates changed one of the columns."""
    changed = np.zeros(len(rows.tags), np.bool_)
    both = rows.has_old & (rows.tags == UPDATE)
    new_at, old_at = np.flatnonzero(both[rows.tags != DELETE]), np.flatnonzero(both[rows.has_old])
    for column in columns:
        new, old = rows.new.values[column].take(pa.array(new_at)), rows.old.values[column].take(pa.array(old_at))
        same = pc.fill_null(pc.equal(new, old), False)
        both_null = pc.and_(pc.is_null(new), pc.is_null(old))
        changed[both] |= ~np.asarray(pc.or_(same, both_null))
    return changed


def _column(rows: TableRows, i: int, shape: RowShape, in_old: bool) -> tuple[pa.Array[Any], Mask]:
    """A column of the new tuples followed by that of the old ones, and where it has no value to show."""
    new, new_absent = _typed(rows, rows.new, i, shape)
    if not len(rows.old.values[i]):
        return new, new_absent
    old, old_absent = _typed(rows, rows.old, i, shape)
    if not in_old:
        old_absent = np.ones(len(old), np.bool_)
    return pa.concat_arrays([new, old]), np.concatenate([new_absent, old_absent])


def _typed(rows: TableRows, tuples: Tuples, i: int, shape: RowShape) -> tuple[pa.Array[Any], Mask]:
    column, raw, unchanged = rows.relation.columns[i], tuples.values[i], tuples.unchanged[i]
    typed = to_arrow(raw, column.type_oid, column.typmod)
    absent = np.zeros(len(raw), np.bool_) if unchanged is None else unchanged.copy()
    if typed.unrepresentable is not None:
        if shape.unrepresentable == "error":
            raise OperatorError(
                f"column {column.name} of {rows.relation.table} holds a value that {typed.values.type} cannot (an "
                "infinity, NaN, or a year outside 1 to 9999)",
                hint="Set unrepresentable to null: such values become null and are named in _missing.",
            )
        absent |= typed.unrepresentable
    return typed.values, absent


def missing_names(missing: np.ndarray[tuple[int, int], np.dtype[np.bool_]], columns: Sequence[str]) -> pa.Array[Any]:
    """The names of the columns that are missing, row by row."""
    offsets = np.zeros(len(missing) + 1, np.int32)
    np.cumsum(missing.sum(axis=1), out=offsets[1:])
    names = pa.array(columns, pa.string())
    return pa.ListArray.from_arrays(pa.array(offsets), names.take(pa.array(np.nonzero(missing)[1])))


def _added(origins: Origins, at: Ints, kind: Ints, missing: pa.Array[Any]) -> list[pa.Array[Any]]:
    return [
        pa.array(CHANGE_TYPES, pa.string()).take(pa.array(kind)),
        pa.array(origins.lsns[at]),
        pa.array(origins.ordinals[at]),
        pa.array(origins.xids[at]),
        pa.array(origins.times[at] + POSTGRES_EPOCH_MICROS).cast(pa.timestamp("us", "UTC")),
        missing,
    ]


def _truncated(origins: Origins, at: int, relation: Relation) -> TableBatch:
    schema = schema_of(relation)
    nothing = [pa.nulls(1, schema.field(i).type) for i in range(len(relation.columns))]
    missing = missing_names(np.ones((1, len(relation.columns)), np.bool_), relation.names)
    added = _added(origins, np.array([at]), np.array([_TRUNCATE]), missing)
    return TableBatch(relation, pa.record_batch([*nothing, *added], schema=schema))
