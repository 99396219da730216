"""Documents in OpenSearch (or Elasticsearch): versioned bulk writes into generations behind an alias.

Guarantees: those of `penstock.contracts.Sink`. The version of a write is the server's own external version, so any
number of processes may write at once; a delete leaves its version behind for an hour, or until the server restarts:
then the engine's rule counts that rebuilds what was deleted during a seed. Readers' alias `NAME` moves in one step,
when a generation is complete and everything in it can be found. A write that returned is on disk on every
copy in sync (the translog is synced for each request); where an index was set to sync later, `flush` does it.
The generation that readers have left is kept until they leave the next one. Deliberately not: refreshing after each
write: what is written can be found within the index's refresh interval, and be read by id at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.contracts import Documents, Held, Rejection, Target, Writes
from penstock.errors import BugError, OperatorError, RetryableError
from penstock.model import Lsn
from penstock.sinks import opensearch_look
from penstock.sinks.opensearch_generation import DELETES_KEPT, Generation
from penstock.sinks.opensearch_http import Http, OpenSearchSettings
from penstock.sinks.opensearch_indexes import Indexes
from penstock.sinks.opensearch_write import Way, Writer

if TYPE_CHECKING:
    from penstock.contracts import ReadableSink, SharedSink

__all__ = ["OpenSearchSettings", "OpenSearchSink"]


class OpenSearchSink:
    """One server as a sink. Any thread may call any method."""

    shared = True

    def __init__(self, settings: OpenSearchSettings) -> None:
        self.name = settings.name
        self._older = 0
        self._settings = settings
        self._http = Http(settings)
        self._indexes = Indexes(self._http, settings.name)
        self._targets: dict[str, Target] = {}
        self._generations: dict[str, Generation] = {}
        self._unsynced: set[str] = set()
        self._lock = threading.Lock()
        self._syncing = threading.Lock()  # who flushes waits for a flush under way: it may be its own writes' too
        self._state = threading.Lock()  # the memory of a generation is read and written by one of us at a time

    def open(self, target: Target) -> None:
        """Find the current generation of the target, or make one."""
        index = target.body.get("settings", {}).get("index", {})
        for pipeline in {self._settings.pipeline, index.get("default_pipeline", "")} - {""}:
            self._indexes.check_pipeline(pipeline)
        with self._state:
            self._require_not_outdone(target)
            one = self._indexes.find_or_make(target)
            if "gc_deletes" not in one.settings:  # taken away by hand: the server's own minute is too short
                self._indexes.configure(one, {"gc_deletes": DELETES_KEPT})
        with self._lock:
            self._targets[target.index], self._generations[target.index] = target, one

    def join(self, target: Target, generation: str) -> None:
        """Look for it among those of its name, and change nothing on the server."""
        there = self._indexes.generations(target.name)
        one = next((one for one in there if one.identity == generation), None)
        if one is None:
            raise self._gone(generation)
        self._require_current(one)
        with self._lock:
            self._targets[target.index], self._generations[target.index] = target, one

    def shows(self, target: Target) -> bool:
        """Whether the generation that the alias leads to is this one."""
        return any(one.fits(target) and one.seeded is not None for one in self._indexes.generations(target.name))

    def revive(self, target: Target) -> bool:
        """Forget that it missed changes, and that it was complete."""
        for one in self._indexes.generations(target.name):
            again = one.remembering(superseded=False, seeded=None)
            if again.fits(target) and not one.is_read:
                self._indexes.remember(again)
                return True
        return False

    def generation(self, index: str) -> str:
        """What tells the current generation from every other, also from one of the same name that was deleted."""
        return self._known(index).identity

    def seeded(self, index: str) -> Lsn | None:
        """The version at which the generation was completely seeded, or None: it has to be, or it is gone."""
        now = self._indexes.look(self._known(index))
        return now.seeded if now else None

    def seeding(self, index: str) -> None:
        """Begin, or go on with, a seed: not complete any more, and no refreshes where nobody reads."""
        with self._current(index) as one:
            one = self._remember(index, one.remembering(seeded=None)) if one.memory.seeded is not None else one
            # A delete's version must outlast the slowest task of the seed (E88), whoever set this lower.
            settings: dict[str, Any] = {"gc_deletes": self._wanted(index, "gc_deletes") or DELETES_KEPT}
            if not one.is_read:
                settings["refresh_interval"] = "-1"
            self._indexes.configure(one, settings)

    def complete(self, index: str, version: Lsn) -> None:
        """Let everything be found, remember the seed, then lead readers here."""
        with self._current(index) as one:
            self._sync(one)
            self._indexes.refresh(one)
            self._indexes.configure(one, {"refresh_interval": self._wanted(index, "refresh_interval")})
            one = self._remember(index, one.remembering(seeded=version))
            before = self._indexes.generations(one.memory.name)
            self._indexes.show(one)
            self._indexes.tidy(one, before, self._targets[index].beside)

    def write(self, writes: Writes) -> Sequence[Rejection]:
        """Send the writes; they are on disk on return, unless the index was set to sync later (see `flush`)."""
        index = writes.documents.index
        one = self._known(index)
        writer = Writer(self._http, self._settings, lambda: self._way(index, self._look(index)), writes)
        try:
            writer.send(self._way(index, one))
        finally:
            with self._lock:
                self._older += writer.older
                if not one.is_durable:
                    self._unsynced.add(index)
        return writer.rejections

    def outdone(self) -> int:
        """How many writes the server answered with a conflict, since this was last asked."""
        with self._lock:
            found, self._older = self._older, 0
            return found

    def flush(self) -> None:
        """Nothing to do where every request was synced; else have the server do it now."""
        with self._syncing:
            with self._lock:
                unsynced, self._unsynced = self._unsynced, set()
            for index in unsynced:
                try:
                    self._indexes.sync(self._known(index))
                except BaseException:
                    with self._lock:
                        self._unsynced |= unsynced
                    raise

    def clear(self, index: str, version: Lsn) -> None:
        """Turn away every write below the version from now on, then delete what is not above it, until none is left."""
        with self._current(index) as one:
            one = self._keep(index, self._indexes.fence(one, version))
        while self._delete(index, one, version):
            pass

    def _delete(self, index: str, one: Generation, version: Lsn) -> int:
        """Delete what is found, which an older look of some copy may not tell in full; how much that was."""
        count = 0
        for ids in self._indexes.ids(one, version):
            rejections = self.write(Writes(version, Documents(index, ids, [None] * len(ids))))
            if rejections:
                raise BugError(f"a delete was rejected: {rejections[0].reason}")
            count += len(ids)
        return count

    @property
    def exact(self) -> bool:
        """Not where an ingest pipeline of ours, or of an index, changes documents on their way."""
        piped = [one for one in self._targets if self._wanted(one, "default_pipeline")]
        return not self._settings.pipeline and not piped

    def look(self, index: str, ids: Sequence[str]) -> Mapping[str, Held]:
        """Documents by their ids, as the server has them; tombstones it does not show."""
        one, held = self._known(index), dict[str, Held]()
        for at in range(0, len(ids), opensearch_look.AT_ONCE):
            held |= self._indexes.read(one, ids[at : at + opensearch_look.AT_ONCE])
        return held

    def scan(self, index: str) -> Iterator[list[str]]:
        """The ids of a moment: what is written later is not among them."""
        return self._indexes.ids(self._known(index), Lsn.MAX)

    def forget(self, index: str) -> None:
        """Its mapping, too, which may be large."""
        with self._lock:
            self._targets.pop(index, None)
            self._generations.pop(index, None)
            self._unsynced.discard(index)

    def holdings(self, name: str) -> Sequence[str]:
        """The generations of the name on the server."""
        return [
            f"the index {one.physical}" + (", which readers see" if one.is_read else "")
            for one in self._indexes.generations(name)
        ]

    def remove(self, name: str) -> None:
        """Delete every generation of the name; the readers' alias goes with the last one."""
        for one in self._indexes.generations(name):
            self._indexes.delete(one)

    def close(self) -> None:
        """Close connections, and end every wait."""
        self._http.close()

    def _known(self, index: str) -> Generation:
        with self._lock:
            if index not in self._generations:
                raise BugError(f"the index {index} was not opened in sink {self.name}")
            return self._generations[index]

    def _look(self, index: str) -> Generation:
        """The generation as the server has it now."""
        before = self._known(index)
        now = self._indexes.look(before)
        if now is None:
            raise self._gone(before.physical)
        return self._keep(index, now)

    def _gone(self, generation: str) -> RetryableError:
        return RetryableError(
            f"sink {self.name}: the index {generation.partition(' ')[0]} is gone",
            hint="It was deleted while it was written to. Opened again, it is made anew and has to be seeded.",
        )

    @contextmanager
    def _current(self, index: str) -> Iterator[Generation]:
        with self._state:
            one = self._look(index)
            self._require_current(one)
            yield one

    def _require_not_outdone(self, target: Target) -> None:
        """Who had it open, and finds another begun beside it by somebody else, would only begin the next one."""
        with self._lock:
            known, one = self._targets.get(target.index), self._generations.get(target.index)
        is_same = known and (known.schema_hash, known.source) == (target.schema_hash, target.source)
        if one and is_same and (now := self._indexes.look(one)):
            self._require_current(now)

    def _require_current(self, one: Generation) -> None:
        if one.memory.superseded:
            raise OperatorError(
                f"sink {self.name}: another generation of {one.memory.name} was begun beside {one.physical}",
                hint="Two deployments write to the same name: stop one, or give it a prefix of its own.",
            )

    def _keep(self, index: str, one: Generation) -> Generation:
        with self._lock:
            self._generations[index] = one
        return one

    def _remember(self, index: str, one: Generation) -> Generation:
        return self._keep(index, self._indexes.remember(one))

    def _sync(self, one: Generation) -> None:
        if not one.is_durable:
            self._indexes.sync(one)

    def _wanted(self, index: str, setting: str) -> Any:
        return self._targets[index].body.get("settings", {}).get("index", {}).get(setting)

    def _way(self, index: str, one: Generation) -> Way:
        properties = self._targets[index].body.get("mappings", {}).get("properties", {})
        return Way(one.alias, one.memory.floor, one.memory.clearing, properties)


if TYPE_CHECKING:
    _as_readable_sink: type[ReadableSink] = OpenSearchSink
    _as_shared_sink: type[SharedSink] = OpenSearchSink
