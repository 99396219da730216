"""An append log of changes in Parquet files: a folder an index, a file for each flush.

A row is an operation: `index`, `id`, `version` (the LSN as a number), `op` (`upsert`, `delete`, `clear`: every document
up to this version is gone, `complete`: the seed is whole), `body` (the document's JSON text) and `seq`, which counts an
index's rows in the order they were taken. Files lie in `PATH/NAME/generation=N/`. Guarantees: what was flushed is a
whole file, synced; rows are never changed or removed. The log keeps every write, also late ones and repeats: who wants
the documents as they stand takes, of the last generation with a `complete`, the row of the highest version and, among
equals, the highest `seq`. So read, it keeps every promise of `penstock.contracts.Sink`. One process writes.
Deliberately not: comparing versions, and joining small files.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.contracts import Rejection, Target, Writes
from penstock.errors import BugError, RetryableError
from penstock.model import Lsn
from penstock.sinks.columns import NO_TEXT, is_text, texts, versions
from penstock.sinks.local_file import WriterLock
from penstock.sinks.parquet_folder import Folder, Memory, located, translated

if TYPE_CHECKING:
    from penstock.contracts import StampedSink

SCHEMA = pa.schema(
    [
        pa.field("index", pa.string(), nullable=False),
        pa.field("id", pa.string()),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("op", pa.string(), nullable=False),
        pa.field("body", pa.string()),
        pa.field("seq", pa.int64(), nullable=False),
    ]
)
# Rows that wait for a flush are written from here on, so that memory stays bounded.
_FILE_BYTES = 64 << 20
# What a row takes in memory beside its texts: deletes are nothing else.
_ROW_BYTES = 200


@dataclass(frozen=True, slots=True)
class ParquetSettings:
    """What the deployment calls the sink, and the folder (or its URL) of the logs."""

    name: str
    path: str


@dataclass(slots=True)
class _Log:
    """The log of one index: where it is, how far it has come, and the rows that wait."""

    name: str
    folder: Folder
    memory: Memory
    seq: int
    ids: list[str | None] = field(default_factory=list)
    lsns: list[Lsn] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)
    bodies: list[bytes | None] = field(default_factory=list)
    waiting_bytes: int = 0

    def add(self, id: str | None, version: Lsn, op: str, body: bytes | None = None) -> None:
        """Let a row wait."""
        self.ids.append(id)
        self.lsns.append(version)
        self.ops.append(op)
        self.bodies.append(body)
        self.waiting_bytes += len(body or b"") + len(id or "") + _ROW_BYTES

    def append(self) -> None:
        """Write what waits as one file."""
        count = len(self.ids)
        if not count:
            return
        columns = [
            pa.array([self.name] * count, pa.string()),
            pa.array(self.ids, pa.string()),
            versions(self.lsns),
            pa.array(self.ops, pa.string()),
            texts(self.bodies),
            pa.array(range(self.seq + 1, self.seq + count + 1), pa.int64()),
        ]
        self.folder.append(pa.Table.from_arrays(columns, schema=SCHEMA), self.memory.generation, self.seq + count)
        self.seq += count
        self.ids, self.lsns, self.ops, self.bodies, self.waiting_bytes = [], [], [], [], 0


class ParquetSink:
    """See `penstock.contracts.Sink`."""

    shared = False

    def __init__(self, settings: ParquetSettings) -> None:
        self.name = settings.name
        self._files, self._path = located(settings.path)
        self._lock = threading.RLock()
        self._writer_lock: WriterLock | None = None
        self._logs: dict[str, _Log] = {}
        self._stamp = ""
        self._is_closed = False

    def open(self, target: Target) -> None:
        """Go on with the index's log; in a new generation where it is of another schema or source.

        What waits is written first, to the generation that it was meant for.
        """
        with self._lock:
            self._become_the_writer()
            self._is_closed = False
            if before := self._logs.get(target.index):
                before.append()
            folder = Folder(self._files, f"{self._path}/{target.name}")
            generation, seq = folder.last()
            memory = folder.remembered()
            if memory is None or not memory.fits(target) or not _is_there(memory, generation):
                last = max(generation, memory.generation if memory else 0)
                memory = Memory(target.schema_hash, target.source, last + 1, stamp=self._stamp)
                folder.remember(memory)
            self._logs[target.index] = _Log(target.name, folder, memory, seq)

    def shows(self, target: Target) -> bool:
        """No: a log has one generation that is written to."""
        return False

    def revive(self, target: Target) -> bool:
        """No: a new one begins."""
        return False

    def generation(self, index: str) -> str:
        """What tells it from those of any other folder, too."""
        with self._lock:
            return self._known(index).memory.token

    def seeded(self, index: str) -> Lsn | None:
        """The version of `complete`, where the newest generation is complete."""
        with self._lock:
            return self._known(index).memory.seeded

    def seeding(self, index: str) -> None:
        """Nothing to do: readers look at generations with a `complete`."""

    def complete(self, index: str, version: Lsn) -> None:
        """Say so in the log, then remember it."""
        with self._lock:
            log = self._known(index)
            log.add(None, version, "complete")
            log.append()
            memory = replace(log.memory, seeded=version)
            log.folder.remember(memory)
            log.memory = memory

    def write(self, writes: Writes) -> Sequence[Rejection]:
        """Take a row for each document and each tombstone. What is no text is rejected."""
        index, ids, bodies = writes.documents
        rejected = []
        with self._lock:
            log = self._known(index)
            for id, body in zip(ids, bodies, strict=True):
                if body is not None and not is_text(body):
                    rejected.append(Rejection(index, id, writes.version, NO_TEXT))
                else:
                    log.add(id, writes.version, "delete" if body is None else "upsert", body)
            if log.waiting_bytes > _FILE_BYTES:
                log.append()
        return rejected

    def outdone(self) -> int:
        """Not counted."""
        return 0

    def flush(self) -> None:
        """Write what waits: a file for each index that was written to."""
        with self._lock:
            self._require_open()
            for log in self._logs.values():
                log.append()

    def clear(self, index: str, version: Lsn) -> None:
        """Say in the log that everything up to the version is gone."""
        with self._lock:
            self._known(index).add(None, version, "clear")

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
        """In the memory of each index."""
        with self._lock:
            self._require_open()
            self._stamp = stamp
            for log in self._logs.values():
                memory = replace(log.memory, stamp=stamp)
                log.folder.remember(memory)
                log.memory = memory

    def forget(self, index: str) -> None:
        """What waits is written first."""
        with self._lock:
            if log := self._logs.get(index):
                log.append()
                del self._logs[index]

    def holdings(self, name: str) -> Sequence[str]:
        """The generations of the name's log."""
        folder = Folder(self._files, f"{self._path}/{name}")
        return [f"{folder.path}/{generation}, {files} files" for generation, files in folder.generations().items()]

    def remove(self, name: str) -> None:
        """Remove the folder of the name's log."""
        with self._lock:
            self._become_the_writer()
            Folder(self._files, f"{self._path}/{name}").remove()

    def close(self) -> None:
        """Forget what was not flushed, and give up the right to write."""
        with self._lock:
            self._is_closed = True
            self._logs.clear()
            if self._writer_lock is not None:
                self._writer_lock.release()
                self._writer_lock = None

    def _require_open(self) -> None:
        if self._is_closed:
            raise RetryableError(f"the sink {self.name} is closed", hint="Its indexes have to be opened again.")

    def _known(self, index: str) -> _Log:
        self._require_open()
        if index not in self._logs:
            raise BugError(f"the index {index} was not opened in the sink {self.name}")
        return self._logs[index]

    def _become_the_writer(self) -> None:
        if self._writer_lock is not None or self._files.type_name != "local":
            return
        with translated(self._path):
            Path(self._path).mkdir(parents=True, exist_ok=True)
            self._writer_lock = WriterLock(Path(self._path, "_penstock"))


def _is_there(memory: Memory, generation: int) -> bool:
    """Whether the files that there are go with what is remembered: those of a complete generation cannot be missing."""
    return memory.generation == generation or (memory.generation > generation and memory.seeded is None)


if TYPE_CHECKING:
    _as_sink: type[StampedSink] = ParquetSink
