"""What both decoders say of a block, in one form that can be compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.postgres import pgoutput as pg
from penstock.postgres.columns import Block, TableRows, Tuples, split

Row = pg.Insert | pg.Update | pg.Delete
Wanted = Callable[[pg.Relation], Sequence[int]]


def everything(relation: pg.Relation) -> range:
    """Every column."""
    return range(len(relation.columns))


def one_by_one(block: Block, wanted: Wanted) -> dict[int, list[tuple[Any, ...]]]:
    """What `split` must give, by the reference: (place, tag, old, full, new) of each row, by relation."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    for at, data in enumerate(block.messages()):
        row = pg.decode(data, streamed=block.streamed, relations=block.relations)
        assert isinstance(row, Row)
        new, old, full = getattr(row, "new", None), getattr(row, "old", None), getattr(row, "full", False)
        relation = block.relations[row.oid]
        columns = wanted(relation)
        whole = filled(relation, new, old, full) if new and old else new
        shown = [t and tuple(t[i] for i in columns) if t else (None if t is None else ()) for t in (old, whole)]
        found.setdefault(row.oid, []).append((at, data[0], shown[0], full, shown[1]))
    return found


def filled(relation: pg.Relation, new: pg.Tuple, old: pg.Tuple, full: bool) -> pg.Tuple:
    """A new row with what was left out of it and is in the old one; a null there is no such value."""
    told = [o is not None and (full or column.key) for o, column in zip(old, relation.columns, strict=True)]
    return tuple(o if n is pg.UNCHANGED and t else n for n, o, t in zip(new, old, told, strict=True))


def at_once(block: Block, wanted: Wanted) -> dict[int, list[tuple[Any, ...]]]:
    """What `split` gives, in the same form."""
    return {rows.relation.oid: _listed(rows) for rows in split(block, wanted)}


def _listed(rows: TableRows) -> list[tuple[Any, ...]]:
    has_new = rows.tags != pg.DELETE
    new, old = iter(_tuples(rows.new, int(has_new.sum()))), iter(_tuples(rows.old, int(rows.has_old.sum())))
    return [
        (int(at), int(tag), next(old) if is_old else None, bool(full), next(new) if is_new else None)
        for at, tag, is_old, full, is_new in zip(rows.at, rows.tags, rows.has_old, rows.full, has_new, strict=True)
    ]


def _tuples(tuples: Tuples, count: int) -> list[pg.Tuple]:
    columns = []
    for values, unchanged in zip(tuples.values, tuples.unchanged, strict=True):
        values.validate(full=True)
        left_out = np.zeros(count, np.bool_) if unchanged is None else unchanged
        columns.append([pg.UNCHANGED if u else v for v, u in zip(values.to_pylist(), left_out, strict=True)])
    return list(zip(*columns, strict=True)) if columns else [()] * count
