"""One batch of changes, from settled to durable: resolve, build, write, flush.

`apply` is the whole of it in one process; `resolved` and `delivered` are its two halves, which tasks run apart when a
batch is spread. Guarantees: nothing is resolved or built before every transaction of the batch is settled; a document
that several changes touch is built once; a write's version is the batch's end; on return everything is durable in every
sink, or an error was raised and the batch comes again. Deliberately not: Spark, Postgres or any sink by name.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock import failpoints
from penstock.contracts import DocumentBuilder, Documents, Extent, Key, Rejection, Sink, Writes
from penstock.document.ids import document_id
from penstock.engine.state import EVERY
from penstock.errors import RetryableError, UnavailableError
from penstock.model import Lsn

FROM_SINK = "this came from sink "
"""What is noted of an error beside its `sink`: a task's errors come back as texts."""

_T = TypeVar("_T")
_R = TypeVar("_R")

# How many ids of an index a tally remembers, for whoever watches.
NAMED = 8
# How many chunks are built or written at a time: the database builds one while a sink takes another.
IN_FLIGHT = 2
# Content that is older than this when its turn comes is not sent, but built again: sinks remember deletes, but not for
# ever (`opensearch_generation.DELETES_KEPT`). A quarter of an hour, because one statement may well build for minutes.
STALE_S = 900.0


@dataclass(slots=True)
class Tally:
    """What came of a batch, or of a part of it."""

    changes: int = 0
    written: dict[str, int] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    rejected: list[tuple[str, Rejection]] = field(default_factory=list)
    """With the name of the sink that rejects."""
    gone: list[tuple[str, Key]] = field(default_factory=list)
    """Keys that turned out to have no document, of indexes that are being seeded."""
    healed: list[tuple[str, str, str]] = field(default_factory=list)
    """Sink, index and id of what is taken now and was, or may have been, in quarantine."""
    older: int = 0
    """Writes that met something newer in a sink, and lost."""
    spent: dict[str, float] = field(default_factory=dict, compare=False)
    """Seconds by stage, of all threads together."""
    touched: dict[str, list[str]] = field(default_factory=dict, compare=False, repr=False)
    """By index, the ids of some documents that live built."""

    def add(self, other: Tally) -> None:
        """Take in another part's."""
        self.changes += other.changes
        self.older += other.older
        for own, more in ((self.written, other.written), (self.deleted, other.deleted)):
            for index, count in more.items():
                own[index] = own.get(index, 0) + count
        for stage, seconds in other.spent.items():
            self.spend(stage, seconds)
        for index, ids in other.touched.items():
            self.touch(index, ids)
        self.rejected += other.rejected
        self.gone += other.gone
        self.healed += other.healed

    def spend(self, stage: str, seconds: float) -> None:
        """So much time went into this."""
        self.spent[stage] = self.spent.get(stage, 0.0) + seconds

    def touch(self, index: str, ids: Sequence[str]) -> None:
        """Remember a few of them."""
        known = self.touched.setdefault(index, [])
        known += ids[: max(0, NAMED - len(known))]

    def beside(self, other: Tally) -> Tally:
        """With what came of the same documents in other sinks: they are counted once."""
        return replace(
            self,
            rejected=[*self.rejected, *other.rejected],
            gone=[*self.gone, *other.gone],
            healed=[*self.healed, *other.healed],
            older=self.older + other.older,
        )

    def count(self, documents: Documents) -> None:
        """Count documents once, however many sinks take them."""
        gone = documents.bodies.count(None)
        for own, count in ((self.written, len(documents.ids) - gone), (self.deleted, gone)):
            if count:
                own[documents.index] = own.get(documents.index, 0) + count


def _always() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Parts:
    """What a batch is worked on with: a builder, and for each index the sinks that hold it.

    `seeding` are the indexes whose seed is under way; `aside` is what is in quarantine, by index and id (or `EVERY`).
    `claim` raises where this process must not write any more: another one may have taken its place.
    """

    builder: DocumentBuilder
    sinks: Mapping[str, Sequence[Sink]]
    seeding: frozenset[str] = frozenset()
    aside: frozenset[tuple[str, str]] = frozenset()
    claim: Callable[[], None] = field(default=_always, compare=False)

    @property
    def indexes(self) -> tuple[str, ...]:
        """The indexes that are kept."""
        return tuple(self.sinks)

    @property
    def every_sink(self) -> list[Sink]:
        """Each sink once."""
        return list({id(sink): sink for sinks in self.sinks.values() for sink in sinks}.values())


Truncate = Callable[[str, Extent, Lsn], None]
"""What is to be done about a TRUNCATE of a table that the index reads, at the batch's end."""


def settle(parts: Parts, changes: pa.RecordBatch) -> None:
    """Wait until every transaction of the batch can be seen."""
    failpoints.passing("settle")
    xids = pc.unique(changes.column("xid")).to_pylist()
    parts.builder.settle([xid for xid in xids if xid is not None])


def resolved(parts: Parts, changes: pa.RecordBatch) -> Iterator[tuple[str, list[Key]]]:
    """For each index, the keys that the changes touch."""
    for index in parts.indexes:
        for keys in parts.builder.affected(index, changes):
            failpoints.passing("resolve")
            yield index, keys


def delivered(parts: Parts, chunks: Iterable[tuple[str, Sequence[Key]]], version: Lsn) -> Tally:
    """Build the documents of these keys and write them to their sinks; durable when this returns."""
    tally = Tally()

    def deliver(chunk: tuple[str, Sequence[Key]]) -> Tally:
        index, keys = chunk
        part, since = Tally(), time.monotonic()
        for documents in timed(parts.builder.build(index, keys), "build", part):
            failpoints.passing("build")
            part.touch(index, documents.ids)
            write(parts, Writes(version, documents), part, since)
            if index in parts.seeding and None in documents.bodies:
                without = {one for one, body in zip(documents.ids, documents.bodies, strict=True) if body is None}
                part.gone += [(index, key) for key in keys if document_id(key) in without]
        return part

    for part in in_flight(deliver, chunks):
        tally.add(part)
    with timing("flush", tally):
        flush(parts.every_sink)
    tally.older += sum(sink.outdone() for sink in parts.every_sink)
    return tally


def rebuilt(parts: Parts, index: str, ids: Collection[str], version: Lsn) -> Tally:
    """Build documents of one index by their ids and write them; durable when this returns.

    An id that no key gives is that of no document: it is deleted.
    """
    since, keys = time.monotonic(), parts.builder.keys(index, ids)
    tally = delivered(parts, [(index, list(keys.values()))] if keys else [], version)
    if lost := sorted(set(ids) - keys.keys()):
        write(parts, Writes(version, Documents(index, lost, [None] * len(lost))), tally, since)
        flush(parts.sinks[index])
    return tally


def seeded(parts: Parts, index: str, ranges: Iterable[tuple[Key | None, Key | None]], version: Lsn) -> Tally:
    """Build and write the documents of some ranges of keys; durable when this returns."""
    tally = Tally()

    def fill(edges: tuple[Key | None, Key | None]) -> Tally:
        part, since = Tally(), time.monotonic()
        for documents in parts.builder.build_range(index, *edges):
            write(parts, Writes(version, documents), part, since)
        return part

    for part in in_flight(fill, ranges):
        tally.add(part)
    flush(parts.sinks[index])
    tally.older += sum(sink.outdone() for sink in parts.sinks[index])
    return tally


def write(parts: Parts, writes: Writes, tally: Tally, since: float) -> None:
    """Give the writes to every sink of their index, and count them.

    Their building began at `since`, by the monotonic clock. Each sink may keep us for long, so before each it is seen
    that the content is not too old by then, and that this process still has the right to write.
    """
    index = writes.documents.index
    tally.count(writes.documents)
    with timing("write", tally):
        for sink in parts.sinks[index]:
            failpoints.passing("write")
            parts.claim()
            if time.monotonic() - since > STALE_S:
                raise UnavailableError(f"building and writing documents of {index} took more than {STALE_S:.0f} s")
            with naming(sink):
                _give(sink, writes, tally, parts.aside)


def _give(sink: Sink, writes: Writes, tally: Tally, aside: frozenset[tuple[str, str]]) -> None:
    rejected = sink.write(writes)
    tally.rejected += [(sink.name, rejection) for rejection in rejected]
    if aside:
        index, ids, _ = writes.documents
        refused, every = {rejection.id for rejection in rejected}, (index, EVERY) in aside
        found = (id for id in ids if every or (index, id) in aside)
        tally.healed += [(sink.name, index, id) for id in found if id not in refused]


def flush(sinks: Iterable[Sink]) -> None:
    """Return when every sink is durable."""
    for sink in sinks:
        failpoints.passing("flush")
        with naming(sink):
            sink.flush()


@contextmanager
def naming(sink: Sink) -> Iterator[None]:
    """Passing trouble says which sink it came from."""
    try:
        yield
    except RetryableError as error:
        error.sink = sink.name
        error.add_note(f"{FROM_SINK}{sink.name}")
        raise


def apply(parts: Parts, changes: pa.RecordBatch, version: Lsn, truncate: Truncate) -> Tally:
    """The whole batch, in this process."""
    tally = Tally()
    with timing("settle", tally):
        settle(parts, changes)
    for index in parts.indexes:
        extent = parts.builder.truncated(index, changes)
        if extent is not Extent.NONE:
            truncate(index, extent, version)
    tally.add(delivered(parts, timed(resolved(parts, changes), "resolve", tally), version))
    tally.changes = changes.num_rows
    return tally


@contextmanager
def timing(stage: str, tally: Tally) -> Iterator[None]:
    """Count what is done inside as time of this stage."""
    began = time.perf_counter()
    try:
        yield
    finally:
        tally.spend(stage, time.perf_counter() - began)


def timed(items: Iterator[_T], stage: str, tally: Tally) -> Iterator[_T]:
    """The items; the time that it takes to get each one is of this stage."""
    while True:
        with timing(stage, tally):
            item = next(items, None)
        if item is None:
            return
        yield item


def in_flight(act: Callable[[_T], _R], items: Iterable[_T]) -> Iterator[_R]:
    """Run `act` over the items, a few at a time, never holding more of them than that; results come as they are.

    Of several that fail, the one that names a sink is told: it may be what the others waited for.
    """
    waiting = iter(items)
    first = list(itertools.islice(waiting, IN_FLIGHT))
    if len(first) < 2:
        yield from map(act, first)
        return
    flying = set[Future[_R]]()
    try:
        with ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="penstock-deliver") as pool:
            flying = running = {pool.submit(act, item) for item in first}
            for item in waiting:
                ended = set[Future[_R]]()
                if len(running) == IN_FLIGHT:
                    ended, running = wait(running, return_when=FIRST_COMPLETED)
                results = [one.result() for one in ended]
                running.add(pool.submit(act, item))  # first, so that nothing idles while somebody looks at results
                flying = running
                yield from results
            for one in as_completed(running):
                yield one.result()
    except RetryableError as error:
        told = [failure for one in flying if isinstance(failure := one.exception(), RetryableError) and failure.sink]
        if error.sink or not told:
            raise
        raise told[0] from None
