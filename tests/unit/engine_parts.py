"""A builder and sinks in memory, for tests of the engine: each call goes into one journal, in the order it came."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.contracts import Documents, Extent, Key, Rejection, Target, Writes
from penstock.document.ids import document_id, key_of
from penstock.engine.batch import Parts
from penstock.model import Lsn
from penstock.postgres.keys import SCHEMA

Journal = list[tuple[Any, ...]]


def changes(*keys: str, xids: Sequence[int] = (7,), op: str = "update", lsn: int = 100) -> pa.RecordBatch:
    """Changes of `public.book`, in keys mode; the transactions take turns."""
    rows = [
        {
            "table": "public.book",
            "op": op,
            "new": None if op in ("delete", "truncate") else [("id", key)],
            "old": [("id", key)] if op == "delete" else None,
            "xid": xids[at % len(xids)],
            "_commit_lsn": lsn,
            "_seq": at,
        }
        for at, key in enumerate(keys)
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


@dataclass
class MemoryBuilder:
    """Implements `DocumentBuilder`: `rows` are the roots, whose document is `{"id": KEY}`."""

    journal: Journal = field(default_factory=list)
    rows: set[str] = field(default_factory=set)
    extents: dict[str, Extent] = field(default_factory=dict)
    chunk_keys: int = 2

    def affected(self, index: str, changes: pa.RecordBatch) -> Iterator[list[Key]]:
        self.journal.append(("affected", index))
        rows = changes.to_pylist()
        found = [(dict(row["new"] or row["old"])["id"],) for row in rows if row["op"] != "truncate"]
        distinct = list(dict.fromkeys(found))
        for at in range(0, len(distinct), self.chunk_keys):
            yield distinct[at : at + self.chunk_keys]

    def rest(self) -> None:
        self.journal.append(("rest",))

    def truncated(self, index: str, changes: pa.RecordBatch) -> Extent:
        return self.extents.get(index, Extent.NONE)

    def build(self, index: str, keys: Sequence[Key]) -> Iterator[Documents]:
        self.journal.append(("build", index, *keys))
        bodies = [b'{"id":"%s"}' % key[0].encode() if key[0] in self.rows else None for key in keys]
        yield Documents(index, [document_id(key) for key in keys], bodies)

    def build_range(self, index: str, after: Key | None, upto: Key | None) -> Iterator[Documents]:
        found = [(key,) for key in sorted(self.rows) if (not after or (key,) > after) and (not upto or (key,) <= upto)]
        if found:
            yield from self.build(index, found)

    def keys(self, index: str, ids: Collection[str]) -> dict[str, Key]:
        return {id: key for id in ids if (key := key_of(id, 1))}

    def settle(self, xids: Collection[int]) -> None:
        self.journal.append(("settle", *sorted(xids)))


@dataclass
class MemorySink:
    """Implements `Sink`: keeps the last body and version of each id; rejects the ids of `rejects`."""

    name: str = "memory"
    journal: Journal = field(default_factory=list)
    rejects: frozenset[str] = frozenset()
    shared: bool = True
    held: dict[tuple[str, str], tuple[Lsn, bytes | None]] = field(default_factory=dict)
    lost: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self, target: Target) -> None:
        self.journal.append(("open", target.index))

    def generation(self, index: str) -> str:
        return "first"

    def seeded(self, index: str) -> Lsn | None:
        return None

    def seeding(self, index: str) -> None:
        self.journal.append(("seeding", index))

    def complete(self, index: str, version: Lsn) -> None:
        self.journal.append(("complete", index, version))

    def write(self, writes: Writes) -> Sequence[Rejection]:
        index, ids, bodies = writes.documents
        with self._lock:
            self.journal.append(("write", self.name, index, writes.version, *ids))
            for one, body in zip(ids, bodies, strict=True):
                if one not in self.rejects:
                    self.held[index, one] = writes.version, body
        return [Rejection(index, one, writes.version, "too wild") for one in ids if one in self.rejects]

    def outdone(self) -> int:
        found, self.lost = self.lost, 0
        return found

    def flush(self) -> None:
        self.journal.append(("flush", self.name))

    def shows(self, target: Target) -> bool:
        return False

    def revive(self, target: Target) -> bool:
        return False

    def forget(self, index: str) -> None:
        self.journal.append(("forget", index))

    def holdings(self, name: str) -> Sequence[str]:
        return []

    def remove(self, name: str) -> None: ...

    def clear(self, index: str, version: Lsn) -> None:
        self.journal.append(("clear", index, version))

    def close(self) -> None:
        pass


def parts(
    journal: Journal, *sinks: MemorySink, rows: Collection[str] = (), indexes: Sequence[str] = ("books",)
) -> Parts:
    """Everything with one journal; every sink holds every index."""
    for sink in sinks:
        sink.journal = journal
    return Parts(MemoryBuilder(journal, set(rows)), {index: list(sinks) for index in indexes})
