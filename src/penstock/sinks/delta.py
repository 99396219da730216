"""Documents in Delta tables: one table an index, kept current by MERGE on id and version.

Readers read the table `PATH/NAME`; it appears, and later changes its generation, in one commit. A generation that is
being seeded is kept in `PATH/_penstock/NAME`, which also remembers what has to be remembered; the one that readers see
is written to meanwhile, too. Guarantees: those of
`penstock.contracts.Sink`. Versions decide in the MERGE; a batch that comes again changes nothing and makes no commit,
so the change feed tells each change once. A flush is one commit for each index that was written to. A delete leaves a
row that says so, for a week at least. One process writes; on a path of this machine a second one is refused, elsewhere
their commits come one after the other and versions decide.
Deliberately not: mappings (`Target.body` is for search engines), and a column for each field: a body is JSON text.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from penstock.contracts import Held, Rejection, Target, Writes
from penstock.errors import BugError, DiskError, OperatorError, RetryableError
from penstock.model import Lsn
from penstock.sinks.columns import NO_TEXT, is_text
from penstock.sinks.delta_memory import OUTGOING, PROPERTY, Memory, begin, read
from penstock.sinks.delta_table import DocumentTable, GoneError, Merging, Row, find, make, show
from penstock.sinks.local_file import WriterLock

if TYPE_CHECKING:
    from penstock.contracts import ReadableSink, StampedSink

# A week: far longer than a write can be late.
TOMBSTONE_S = 7 * 86400
# Writes that wait for a flush are merged from here on, so that memory stays bounded.
_MERGE_BYTES = 64 << 20
# What a write takes in memory beside its texts: deletes are nothing else.
_ROW_BYTES = 200
# So many merges leave about as many small files; then they are joined.
_COMPACT_EVERY = 64
_VACUUM_S = 3600
_OURS = "_penstock"


@dataclass(frozen=True, slots=True)
class DeltaSettings:
    """What the deployment calls the sink, the folder (or its URL) of the tables, and how the storage is reached."""

    name: str
    path: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(slots=True)
class _Index:
    """An index at work: its memory, the table that holds it, and what waits to be merged."""

    memory: Memory
    readers: DocumentTable | None
    workshop: DocumentTable
    waiting: dict[str, Row] = field(default_factory=dict)
    waiting_bytes: int = 0
    merges: int = 0
    vacuumed_s: float = 0.0
    is_shown: bool = False
    """Whether readers see this generation: then it is their table that is written to."""
    role: str = PROPERTY
    """The property by which it is remembered: its own, or that of the one that readers are about to leave."""
    is_left: bool = False
    """Whether readers have left it: there is nothing to write to any more."""

    @property
    def table(self) -> DocumentTable:
        """The table that holds this generation."""
        return self.readers if self.readers is not None and self.is_shown else self.workshop


class DeltaSink:
    """See `penstock.contracts.Sink`."""

    shared = False
    exact = True

    def __init__(
        self,
        settings: DeltaSettings,
        *,
        clock: Callable[[], float] = time.time,
        merging: Callable[[], Merging | None] = lambda: None,
    ) -> None:
        self.name = settings.name
        self._path, self._storage = _plain(settings.path).rstrip("/"), dict(settings.storage_options)
        self._clock, self._merging = clock, merging
        self._lock = threading.RLock()
        self._writer_lock: WriterLock | None = None
        self._indexes: dict[str, _Index] = {}
        self._stamp = ""
        self._is_closed = False

    def open(self, target: Target) -> None:
        """Find the index's current generation; begin one where it is of another schema or source, or was deleted.

        What waits is merged first. What waits for a table that was deleted is dropped: its successor is seeded.
        """
        with self._lock:
            self._become_the_writer()
            self._is_closed = False
            if before := self._indexes.get(target.index):
                with suppress(GoneError):
                    self._merge(before)
            readers = find(self._place(target.name), self._storage)
            if readers is not None and not readers.is_of_ours():
                raise OperatorError(
                    f"sink {self.name}: {self._place(target.name)} is a Delta table of somebody else",
                    hint="Move it away, give the sink another path, or set a prefix in the deployment.",
                )
            workshop = find(self._place(_OURS, target.name), self._storage)
            for table in (readers, workshop):
                if table:
                    table.settle()
            memory, outgoing = self._remembered(workshop, target.name)
            if memory and workshop and (grown := memory.grown(target)) is not memory:
                workshop.remember(grown.written())
                memory = grown
            seen = _seen(readers, memory, outgoing)
            if workshop and seen and seen is outgoing and seen.fits(target):
                self._indexes[target.index] = _Index(seen, readers, workshop, is_shown=True, role=OUTGOING)
            elif workshop and memory and memory.fits(target) and (seen is memory or not memory.shown):
                self._go_on(target, _Index(memory, readers, workshop, is_shown=seen is memory), outgoing)
            else:
                self._begin(target, readers, seen)

    def _go_on(self, target: Target, one: _Index, outgoing: Memory | None) -> None:
        """With the current generation. One that readers are about to leave, and nobody keeps from now on, is let go."""
        self._indexes[target.index] = one
        if one.memory.shown < one.is_shown:  # a crash came between
            self._remember(one, replace(one.memory, shown=True))
        if outgoing and outgoing.source not in target.beside:
            one.workshop.remember({OUTGOING: ""})
        self._purge(one)

    def _begin(self, target: Target, readers: DocumentTable | None, seen: Memory | None) -> None:
        """A new generation; the one that readers see is remembered where it is kept beside it."""
        memory = begin(target, int(self._clock()), self._stamp)
        properties = memory.written()
        if seen and seen.seeded and seen.source in target.beside:
            properties |= seen.written(OUTGOING)
            for other in self._indexes.values():
                if other.memory.token == seen.token:
                    other.role = OUTGOING
        workshop = make(self._place(_OURS, target.name), self._storage, properties)
        self._indexes[target.index] = _Index(memory, readers, workshop)

    def shows(self, target: Target) -> bool:
        """Whether it is what their table holds, complete, and missed nothing."""
        readers = find(self._place(target.name), self._storage)
        memory, outgoing = self._remembered(find(self._place(_OURS, target.name), self._storage), target.name)
        seen = _seen(readers, memory, outgoing)
        return seen is not None and seen.seeded is not None and seen.fits(target)

    def revive(self, target: Target) -> bool:
        """No: what was replaced is in the history of the table."""
        return False

    def generation(self, index: str) -> str:
        """What tells it from those of any other table, too."""
        with self._lock:
            return self._known(index).memory.token

    def seeded(self, index: str) -> Lsn | None:
        """The version of `complete`, where readers see this generation."""
        with self._lock:
            one = self._known(index)
            return one.memory.seeded if one.is_shown else None

    def seeding(self, index: str) -> None:
        """Nothing to do: readers do not see the table that a seed fills, and merges are as large as memory allows."""

    def complete(self, index: str, version: Lsn) -> None:
        """Show the generation to readers in one commit, then remember it."""
        with self._lock:
            one = self._known(index)
            self._merge(one)
            if not one.is_shown:
                place = self._place(one.memory.name)
                one.readers = show(one.workshop, place, self._storage, one.memory.application)
                one.is_shown = True
                for other in self._indexes.values():
                    other.is_left |= other is not one and other.memory.name == one.memory.name
            one.memory = replace(one.memory, seeded=version, shown=True)
            one.workshop = make(self._place(_OURS, one.memory.name), self._storage, one.memory.written())

    def write(self, writes: Writes) -> Sequence[Rejection]:
        """Take the writes into memory. What is no text is rejected."""
        index, ids, bodies = writes.documents
        rejected = []
        with self._lock:
            one = self._known(index)
            if writes.version < one.memory.floor or one.is_left:
                return []
            for id, body in zip(ids, bodies, strict=True):
                if body is not None and not is_text(body):
                    rejected.append(Rejection(index, id, writes.version, NO_TEXT))
                    continue
                before = one.waiting.get(id)
                if before is None or before[0] <= writes.version:
                    one.waiting[id] = writes.version, body
                    one.waiting_bytes += len(id) + len(body or b"") + _ROW_BYTES
            if one.waiting_bytes > _MERGE_BYTES:
                self._merge(one)
        return rejected

    def outdone(self) -> int:
        """Not counted."""
        return 0

    def flush(self) -> None:
        """Merge what waits: a commit for each index that was written to."""
        with self._lock:
            self._require_open()
            for one in self._indexes.values():
                self._merge(one)

    def clear(self, index: str, version: Lsn) -> None:
        """Delete what is not above the version, and remember it with the generation."""
        with self._lock:
            one = self._known(index)
            if version < one.memory.floor or one.is_left:
                return
            one.waiting = {id: row for id, row in one.waiting.items() if row[0] > version}
            self._remember(one, replace(one.memory, floor=version))
            one.table.delete(version, one.memory.application)

    def look(self, index: str, ids: Sequence[str]) -> Mapping[str, Held]:
        """Rows of the table, and what waits to be merged into it. Reads all ids: ask for many at once."""
        with self._lock:
            one = self._known(index)
            held = {id: Held(version, body) for id, (version, body) in one.table.rows(ids).items()}
            for id in ids:
                if (waits := one.waiting.get(id)) and (id not in held or waits[0] >= held[id].version):
                    held[id] = Held(*waits)
            return held

    def scan(self, index: str) -> Iterator[list[str]]:
        """The ids of the table's last commit."""
        with self._lock:
            portions = self._known(index).table.ids()
        yield from portions

    @property
    def alone(self) -> bool:
        """On a path of this machine, as long as it is open: there is a lock."""
        with self._lock:
            return self._writer_lock is not None

    def stamp(self, index: str) -> str:
        """That of the index's generation."""
        with self._lock:
            return self._known(index).memory.stamp

    def restamp(self, stamp: str) -> None:
        """A commit for each index, to the table that remembers."""
        with self._lock:
            self._require_open()
            self._stamp = stamp
            for one in self._indexes.values():
                if one.role == PROPERTY:
                    self._remember(one, replace(one.memory, stamp=stamp))

    def forget(self, index: str) -> None:
        """Its tables, which hold their logs; what waits to be merged is merged first, where its table is there."""
        with self._lock:
            if one := self._indexes.get(index):
                with suppress(GoneError):
                    self._merge(one)
                del self._indexes[index]

    def holdings(self, name: str) -> Sequence[str]:
        """The readers' table of the name, and the one that remembers."""
        places = [self._place(name), self._place(_OURS, name)]
        found = [(place, find(place, self._storage)) for place in places]
        return [f"the table {place}, commit {table.version}" for place, table in found if table]

    def remove(self, name: str) -> None:
        """Remove both tables of the name, with all their files. A table of somebody else stays."""
        with self._lock:
            self._become_the_writer()
            for place in (self._place(name), self._place(_OURS, name)):
                table = find(place, self._storage)
                if table is not None and table.is_of_ours():
                    table.remove(self._storage)

    def close(self) -> None:
        """Forget what was not flushed, and give up the right to write."""
        with self._lock:
            self._is_closed = True
            self._indexes.clear()
            if self._writer_lock is not None:
                self._writer_lock.release()
                self._writer_lock = None

    def _place(self, *names: str) -> str:
        return "/".join([self._path, *names])

    def _require_open(self) -> None:
        if self._is_closed:
            raise RetryableError(f"the sink {self.name} is closed", hint="Its indexes have to be opened again.")

    def _known(self, index: str) -> _Index:
        self._require_open()
        if index not in self._indexes:
            raise BugError(f"the index {index} was not opened in the sink {self.name}")
        return self._indexes[index]

    def _become_the_writer(self) -> None:
        if self._writer_lock is not None or "://" in self._path:
            return
        ours = Path(self._place(_OURS))
        try:
            ours.mkdir(parents=True, exist_ok=True)
            self._writer_lock = WriterLock(ours / "writer")
        except OSError as error:
            raise DiskError(
                f"{self._path} cannot be used: {error.strerror}", hint="Check the path, its owner and the disk."
            ) from None

    def _remember(self, one: _Index, memory: Memory) -> None:
        one.workshop.remember(memory.written(one.role))
        one.memory = memory

    def _remembered(self, workshop: DocumentTable | None, name: str) -> tuple[Memory | None, Memory | None]:
        """The current generation, and the one that readers were about to leave when it was begun."""
        properties, place = workshop.properties if workshop else {}, self._place(_OURS, name)
        return read(properties, place), read(properties, place, OUTGOING)

    def _merge(self, one: _Index) -> None:
        if one.is_left:
            one.waiting.clear()
        if not one.waiting:
            return
        one.table.merge(one.waiting, one.memory.application, self._merging())
        one.waiting, one.waiting_bytes = {}, 0
        one.merges += 1
        if one.merges % _COMPACT_EVERY == 0:
            one.table.compact()
            if self._clock() - one.vacuumed_s > _VACUUM_S:
                one.vacuumed_s = self._clock()
                self._purge(one)
                one.table.vacuum()

    def _purge(self, one: _Index) -> None:
        """Remove tombstones that are a week old: those up to the mark that was set a week ago, or before."""
        now_s = int(self._clock())
        if now_s - one.memory.purge_s < TOMBSTONE_S:
            return
        if one.memory.purge_upto:
            one.table.delete(one.memory.purge_upto, one.memory.application, only_tombstones=True)
        upto = one.table.merged(one.memory.application) or Lsn.ZERO
        self._remember(one, replace(one.memory, purge_upto=upto, purge_s=now_s))


def _plain(path: str) -> str:
    """What is on this machine is locked and synced, however it is written."""
    return url2pathname(urlsplit(path).path) if path.startswith("file://") else path


def _is_seen(readers: DocumentTable | None, memory: Memory | None) -> bool:
    """Whether it was shown in the readers' table."""
    return readers is not None and memory is not None and readers.merged(memory.application) is not None


def _seen(readers: DocumentTable | None, memory: Memory | None, outgoing: Memory | None) -> Memory | None:
    """Which of the two readers see: once the current one was shown, it is not the other."""
    return next((one for one in (memory, outgoing) if _is_seen(readers, one)), None)


if TYPE_CHECKING:
    _as_sink: type[ReadableSink] = DeltaSink
    _as_stamped_sink: type[StampedSink] = DeltaSink
