"""The last batches, for people who watch: what was changed, and which documents that touched.

Guarantees: bounded memory; without being asked for it no value of a row is told, and a key or an id is one. Not: every
change of a large batch; it counts all of them and names a few.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import Lsn

# How many keys of one kind are remembered of a batch.
_NAMED = 8
_KEPT = 60
# From here on Arrow counts faster than Python.
_LARGE = 1000


@dataclass(frozen=True, slots=True)
class Changed:
    """How many rows of a table were inserted, updated or deleted; the keys of some of them."""

    table: str
    op: str
    count: int
    keys: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Deed:
    """One batch. `documents` counts those it touched by index, `ids` names some of them."""

    at: float
    end: Lsn
    changed: tuple[Changed, ...]
    documents: Mapping[str, int]
    latency_s: float | None
    direct: bool
    ids: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)


class Recent:
    """The last of them."""

    def __init__(self) -> None:
        self._deeds: deque[Deed] = deque(maxlen=_KEPT)

    def add(self, deed: Deed) -> None:
        """One more."""
        self._deeds.append(deed)

    def told(self, *, values: bool = False) -> list[dict[str, Any]]:
        """The newest first, as JSON has it; keys and ids only with `values`."""
        return [_told(deed, values) for deed in reversed(self._deeds)]


def _told(deed: Deed, values: bool) -> dict[str, Any]:
    return {
        "at": round(deed.at, 3),
        "position": str(deed.end),
        "direct": deed.direct,
        "latency_s": None if deed.latency_s is None else round(deed.latency_s, 4),
        "changes": [
            {"table": one.table, "op": one.op, "count": one.count} | ({"keys": list(one.keys)} if values else {})
            for one in deed.changed
        ],
        "documents": [
            {"index": index, "count": count} | ({"ids": list(deed.ids.get(index, ()))} if values else {})
            for index, count in deed.documents.items()
        ],
    }


def summary(changes: pa.RecordBatch) -> tuple[Changed, ...]:
    """What a batch of changes (keys mode) did, by table and operation, the most first."""
    if changes.num_rows > _LARGE:
        return _counted(changes)
    kinds: dict[tuple[str, str], list[int]] = {}
    pairs = zip(changes.column("table").to_pylist(), changes.column("op").to_pylist(), strict=True)
    for at, kind in enumerate(pairs):
        kinds.setdefault(kind, []).append(at)
    new, old = changes.column("new"), changes.column("old")
    return tuple(
        Changed(
            *kind, len(rows), tuple(filter(None, (_key(new[at].as_py() or old[at].as_py()) for at in rows[:_NAMED])))
        )
        for kind, rows in sorted(kinds.items(), key=lambda one: -len(one[1]))
    )


def _counted(changes: pa.RecordBatch) -> tuple[Changed, ...]:
    """The same by Arrow, which has its price for a few rows and none for many."""
    kinds = pc.binary_join_element_wise(changes.column("op"), changes.column("table"), " ")
    found: list[Changed] = []
    for one in sorted(kinds.value_counts().to_pylist(), key=lambda one: -one["counts"]):
        op, _, table = one["values"].partition(" ")
        at = pc.indices_nonzero(pc.equal(kinds, one["values"]))[:_NAMED]
        rows = changes.select(["new", "old"]).take(at).to_pylist()
        keys = tuple(filter(None, (_key(row["new"] or row["old"]) for row in rows)))
        found.append(Changed(table, op, one["counts"], keys))
    return tuple(found)


def _key(row: Sequence[tuple[str, str]] | None) -> str:
    """The identity and link columns of one change."""
    return ", ".join(f"{name}={value}" for name, value in row or ())
