"""A table held in memory: Arrow chunks, an index by key, and marks on rows that are no more.

A change costs the same whatever the size of the table: its row goes to the end, the index is told, the row before it
is marked. Small chunks are joined as they pile up, and the whole is written anew when the marked rows outnumber the
others: a bounded share of each change that led to it. The index is built when it is first needed.

Guarantees: changes are applied in order, the last of a key wins, a changed key takes the row along; a value that a
change names as not sent keeps what it was. Two rows of one key, in a snapshot or after a change, are an error. Arrow
that was handed out never changes. Deliberately not: knowing positions, files or threads (`view` does).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BugError, ConfigError, OperatorError, PenstockError
from penstock.reference.footing import AGAIN
from penstock.reference.index import NOWHERE, Index
from penstock.reference.keys import key_list

# As many batches of changes may stand by themselves before they are joined.
_TAIL = 32
# Below this many marked rows it is not worth while to write the rest anew.
_FEW = 65_536

_STANDS = frozenset({"insert", "update_postimage"})

Overrides = dict[str, dict[int, int]]
"""Of columns, for the places of rows: the place whose value they have."""


class Contents:
    """The rows of one table. Used under a lock."""

    def __init__(self, schema: pa.Schema, key: Sequence[str]) -> None:
        self.schema = schema
        self.key = tuple(key)
        self._names = schema.names
        # What only a value that the type cannot hold leaves out: it is null. Anything else is left out unchanged.
        self._never_kept = {field.name for field in schema if _is_fixed(field.type)}
        self._empty()

    def _empty(self) -> None:
        self._chunks: list[pa.RecordBatch] = []
        self._starts: list[int] = []
        self._alive = bytearray()
        self._dead = 0
        self._tail = 0  # chunks at the end that were not joined yet
        self._index: Index | None = None

    def __len__(self) -> int:
        return len(self._alive) - self._dead

    def add(self, rows: pa.RecordBatch) -> None:
        """Rows of a snapshot, of keys that are not here."""
        self._index = None
        self._append(rows.select(self._names))

    def seal(self) -> None:
        """The snapshot is whole: see that its keys differ, and hold it in one piece."""
        self._join(0)
        self.index()

    def index(self) -> Index:
        """Where the row of each key is; every row is alive where it has to be made."""
        if self._index is None:
            index = Index(pa.Table.from_batches(self._chunks, self.schema), self.key)
            if not index.is_unique:
                raise _not_apart(ConfigError, self.key)
            self._index = index
        return self._index

    def get(self, key: Any) -> dict[str, Any] | None:
        """The row of a key."""
        place = self.index().get(key)
        if place == NOWHERE:
            return None
        chunk, at = self._chunk(place)
        return {name: column[at].as_py() for name, column in zip(self._names, chunk.columns, strict=True)}

    def table(self) -> pa.Table:
        """Every row, in no particular order."""
        table = pa.Table.from_batches(self._chunks, self.schema)
        return table.filter(pa.array(np.frombuffer(bytes(self._alive), np.bool_))) if self._dead else table

    def apply(self, *batches: pa.RecordBatch) -> None:
        """Changes with the stream's added columns, in order; all of them, or none where they do not fit."""
        for changes in _joined(batches):
            rows, keys = self._own(changes), key_list(changes, self.key)
            kinds, missing = changes["_change_type"].to_pylist(), _missing(changes, self._never_kept)
            self._take_in(rows, self._planned(keys, kinds, missing))

    def _own(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        rows = changes.select(self._names)
        if not rows.schema.equals(self.schema):
            raise BugError("changes have other columns than the table that they are for")
        return rows

    def _planned(self, keys: list[Any], kinds: list[str], missing: Mapping[int, list[str]]) -> _Plan:
        """What the changes come to; nothing is changed yet."""
        index = self.index()
        unchanged, changed = index.unchanged(keys), index.changed
        plan, is_moving, moved = _Plan(len(self._alive), len(keys)), False, NOWHERE
        for at, (key, kind) in enumerate(zip(keys, kinds, strict=True)):
            if kind == "truncate":
                unchanged, changed = [NOWHERE] * len(keys), {}
                plan, is_moving, moved = _Plan(0, len(keys), empties=True), False, NOWHERE
                continue
            before = plan.places.get(key)
            if before is None:
                before = changed.get(key)
                if before is None:
                    before = unchanged[at]
            if kind in _STANDS:
                if before != NOWHERE and (is_moving or kind == "insert"):
                    raise _not_apart(OperatorError, self.key, AGAIN)
                if at in missing:
                    _keep(plan.overrides, missing[at], plan.first + at, before if moved == NOWHERE else moved)
                plan.places[key] = plan.first + at
                plan.alive[at], is_moving, moved = 1, False, NOWHERE
            else:
                plan.places[key] = NOWHERE
                if unchanged[at] == NOWHERE:
                    plan.passing.append(key)
                is_moving = kind == "update_preimage"
                moved = before if is_moving else NOWHERE
            if before >= plan.first:
                plan.alive[before - plan.first] = 0
            elif before >= 0:
                plan.ended.append(before)
        return plan

    def _take_in(self, rows: pa.RecordBatch, plan: _Plan) -> None:
        if plan.empties:
            self._empty()
        for place in plan.ended:
            self._alive[place] = 0
        self._dead += len(plan.ended)
        changed = self.index().changed
        changed.update(plan.places)
        for key in plan.passing:
            if changed.get(key) == NOWHERE:
                del changed[key]
        if any(plan.alive):
            self._append(self._filled(rows, plan.overrides) if plan.overrides else rows, plan.alive)
            self._tail += 1
        if self._tail >= _TAIL:
            self._join_tail()
        if self._dead > max(len(self), _FEW):
            self._compact()

    def _filled(self, rows: pa.RecordBatch, overrides: Mapping[str, Mapping[int, int]]) -> pa.RecordBatch:
        """The rows with values taken from other places: of the chunks, or of the rows themselves."""
        first, arrays = len(self._alive), list(rows.columns)
        for name, places in overrides.items():
            column = rows.column(name)
            sources = [self._value(name, source) for source in places.values() if source < first]
            order, extra = np.arange(len(rows)), len(rows)
            for place, source in places.items():
                order[place - first] = source - first if source >= first else extra
                extra += source < first
            arrays[self._names.index(name)] = pa.concat_arrays([column, *sources]).take(pa.array(order))
        return pa.record_batch(arrays, schema=rows.schema)

    def _value(self, name: str, place: int) -> pa.Array[Any]:
        chunk, at = self._chunk(place)
        return chunk.column(name).slice(at, 1)

    def _chunk(self, place: int) -> tuple[pa.RecordBatch, int]:
        number = bisect_right(self._starts, place) - 1
        return self._chunks[number], place - self._starts[number]

    def _append(self, rows: pa.RecordBatch, alive: bytearray | None = None) -> int:
        start = len(self._alive)
        if len(rows):
            self._chunks.append(rows)
            self._starts.append(start)
            self._alive += alive if alive is not None else b"\1" * len(rows)
            self._dead += 0 if alive is None else alive.count(0)
        return start

    def _join_tail(self) -> None:
        """Join the chunks at the end, and those before them that are together no larger."""
        at = len(self._chunks) - self._tail
        size = sum(map(len, self._chunks[at:]))
        while at and len(self._chunks[at - 1]) <= size:
            at -= 1
            size += len(self._chunks[at])
        self._join(at)

    def _join(self, at: int) -> None:
        """Make one chunk of all from `at` on; places stay what they are."""
        self._tail = 0
        joined = pa.Table.from_batches(self._chunks[at:], self.schema).combine_chunks().to_batches()
        if len(joined) == 1:  # else too large for one, and left as they are
            self._chunks[at:], self._starts[at:] = joined, self._starts[at : at + 1]

    def _compact(self) -> None:
        """Write the living rows anew."""
        table = self.table()
        self._empty()
        for chunk in table.to_batches():
            self._append(chunk)
        self.seal()


class _Plan:
    """What a batch of changes comes to: where its keys are then, which of its rows stand, which of those before end."""

    def __init__(self, first: int, size: int, empties: bool = False) -> None:
        self.first = first  # the place of its first row
        self.empties = empties  # everything before it
        self.places: dict[Any, int] = {}
        self.passing: list[Any] = []  # keys that came and went since the index was made: they need not be remembered
        self.alive = bytearray(size)
        self.ended: list[int] = []
        self.overrides = Overrides()


def _not_apart(kind: type[PenstockError], key: Sequence[str], way_on: str = "") -> PenstockError:
    return kind(
        f"several rows have the same key ({', '.join(key)})",
        hint="Name columns that tell rows apart; rows with a NULL in a unique index are told apart only by UNIQUE "
        f"NULLS NOT DISTINCT, and values that unrepresentable = null leaves out by nothing. {way_on}".rstrip(),
    )


def _joined(batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    """As one batch, which fits as a whole or not at all; more than one only of texts that no batch could hold."""
    return batches if len(batches) < 2 else pa.Table.from_batches(batches).combine_chunks().to_batches()


def _keep(overrides: Overrides, names: Sequence[str], place: int, before: int) -> None:
    """Values that were not sent stay what they were, wherever the row stood before."""
    if before == NOWHERE:
        raise OperatorError(
            f"a change leaves out column {names[0]} of a row that is not here",
            hint="The contents do not belong to the position that was restored. Take a new snapshot.",
        )
    for name in names:
        column = overrides.setdefault(name, {})
        column[place] = column.get(before, before)


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_decimal(kind))


def _missing(changes: pa.RecordBatch, never_kept: Set[str]) -> dict[int, list[str]]:
    """The columns that were not sent because they did not change, by row, of the rows that stand afterwards."""
    column = changes["_missing"]
    if not pc.any(pc.greater(pc.list_value_length(column), 0)).as_py():
        return {}
    rows = zip(changes["_change_type"].to_pylist(), column.to_pylist(), strict=True)
    kept = {at: [n for n in names if n not in never_kept] for at, (kind, names) in enumerate(rows) if kind in _STANDS}
    return {at: names for at, names in kept.items() if names}
