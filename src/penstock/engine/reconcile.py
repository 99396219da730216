"""What a sink holds, held against what the database says now: found, looked at again, mended.

Documents are built by ranges of keys and compared with what each sink has of them. What a sink holds beyond that is
found by sums over hashes of ids: sums that do not agree tell where to look. Guarantees: memory is bounded, whatever the
index holds; live goes on meanwhile. What seems to differ is built once more, and counts only if it differs although
live, which by then had brought everything committed before, did not write it since before the build: then live will
not mend it. What is mended is built anew at a version that was settled before (invariant 5). Deliberately not: knowing
who keeps the index current; `Ground` says what it wrote, and when it has caught up.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum

from penstock.contracts import Documents, Held, Key, ReadableSink
from penstock.engine import batch
from penstock.engine.batch import Parts, Tally
from penstock.model import Lsn

# What is compared at once: for some sinks a look costs the same, however many documents it is for.
_LOOK_DOCUMENTS, _LOOK_BYTES = 10_000, 32 << 20
# How many documents that seem to differ are gathered before they are looked at again.
_SUSPECTS = 5_000
_ROUNDS = 8
_FIRST = 10
_SUMS = 1 << 16

Range = tuple[Key | None, Key | None]


class Kind(StrEnum):
    """How a sink differs from the database."""

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERENT = "different"


@dataclass(slots=True)
class Comparison:
    """One index in one sink: how many documents were compared, and what differs.

    `first` are some ids by kind. What was mended is `repaired`; the rest the sink `rejected`, or has a newer version of
    (`newer`), which no write of ours may replace.
    """

    index: str
    sink: str
    compared: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, Kind), 0))
    first: dict[str, list[str]] = field(default_factory=lambda: {str(kind): [] for kind in Kind})
    repaired: int = 0
    rejected: int = 0
    newer: int = 0

    @property
    def differing(self) -> int:
        """How many documents differ, or did before they were mended."""
        return sum(self.counts.values())

    @property
    def left(self) -> int:
        """How many still do."""
        return self.differing - self.repaired

    def found(self, kind: Kind, id: str) -> None:
        """Count it, and keep it if it is one of the first."""
        self.counts[kind] += 1
        if len(self.first[kind]) < _FIRST:
            self.first[kind].append(id)


@dataclass(frozen=True, slots=True)
class Ground:
    """What a comparison stands on.

    `version` gives an LSN that is settled now. `watch` notes from its return on which of these documents of an index
    live writes; the function that it gives tells them. `catch_up` returns when everything committed before the call is
    durable in the sinks. `judge` is told what came of a repair at a version; `aside` gives what is in quarantine then,
    as `Parts` has it. `advanced` is told after each portion how many ranges are done; it may raise to end it all.
    """

    version: Callable[[], Lsn]
    watch: Callable[[str, Collection[str]], Callable[[], Collection[str]]]
    catch_up: Callable[[], None]
    judge: Callable[[Tally, Lsn], None]
    aside: Callable[[], frozenset[tuple[str, str]]]
    advanced: Callable[[int], None]
    repair: bool = False


def compare(parts: Parts, index: str, ranges: Iterable[Range], ground: Ground) -> list[Comparison]:
    """Hold an index against the database, in each of its sinks (which all can be asked)."""
    sides = [_Side(parts, index, sink, ground) for sink in parts.sinks[index] if isinstance(sink, ReadableSink)]
    for side in sides:
        side.count()
    for done, documents in _portions(parts, index, ranges):
        for side in sides:
            side.look_at(documents)
        _judge(sides, index, ground, more_than=_SUSPECTS)
        ground.advanced(done)
    for side in sides:
        for _ in side.look_beyond():
            _judge(sides, index, ground, more_than=_SUSPECTS)
    _judge(sides, index, ground)
    return [side.told for side in sides]


def _judge(sides: Sequence[_Side], index: str, ground: Ground, more_than: int = 0) -> None:
    """Look again at what seems to differ, if it is that much, until each turns out the same, or different."""
    if sum(len(side.suspects) for side in sides) <= more_than:
        return
    for _ in range(_ROUNDS):
        ids = sorted({id for side in sides for id in side.suspects})
        if not ids:
            return
        written = ground.watch(index, ids)
        built = sides[0].build(ids)
        ground.catch_up()
        for side in sides:
            side.conclude(built, written)
    for side in sides:
        side.suspects.clear()  # live writes these all the time: it keeps them


def _portions(parts: Parts, index: str, ranges: Iterable[Range]) -> Iterator[tuple[int, Documents]]:
    """Documents of one range after the other, many at once; with how many ranges they are the end of."""
    gathered, size, done = Documents(index, [], []), 0, 0

    def build(edges: Range) -> list[Documents]:
        return list(parts.builder.build_range(index, *edges))

    for built in batch.in_flight(build, ranges):
        for _, ids, bodies in built:
            gathered.ids.extend(ids)
            gathered.bodies.extend(bodies)
            size += sum(len(body or b"") for body in bodies)
        done += 1
        if len(gathered.ids) >= _LOOK_DOCUMENTS or size >= _LOOK_BYTES:
            yield done, gathered
            gathered, size, done = Documents(index, [], []), 0, 0
    yield done, gathered


class _Side:
    """One sink's side of a comparison."""

    def __init__(self, parts: Parts, index: str, sink: ReadableSink, ground: Ground) -> None:
        self._parts = replace(parts, sinks={index: [sink]})
        self._index, self._sink, self._ground = index, sink, ground
        self._sums = array("Q", bytes(8 * _SUMS))
        self.suspects: set[str] = set()
        self.told = Comparison(index, sink.name)

    def count(self) -> None:
        """Sum up the ids that the sink lists."""
        for ids in self._sink.scan(self._index):
            self._add(ids)

    def _add(self, ids: Iterable[str]) -> None:
        """Each id counts twice or not at all: the order does not matter, nor which side it came from."""
        for id in ids:
            code = hash(id) & 0xFFFFFFFFFFFFFFFF
            self._sums[code % _SUMS] ^= code

    def look_at(self, documents: Documents) -> None:
        """Compare documents as they were built with what the sink has of them."""
        held = self._sink.look(self._index, documents.ids)
        self._add(documents.ids)
        self.told.compared += len(documents.ids)
        pairs = zip(documents.ids, documents.bodies, strict=True)
        self.suspects.update(id for id, body in pairs if not _is_same(held.get(id), body))

    def look_beyond(self) -> Iterator[None]:
        """Where the sums do not agree, look for documents that the database has no rows for, portion by portion."""
        wrong = {at for at, code in enumerate(self._sums) if code}
        for ids in self._sink.scan(self._index) if wrong else ():
            some = [id for id in ids if hash(id) % _SUMS in wrong]
            built = self.build(some)
            self.suspects.update(id for id in some if built[id] is None)
            yield

    def build(self, ids: Collection[str]) -> Mapping[str, bytes | None]:
        """The documents of these ids as the database has them now."""
        found: dict[str, bytes | None] = dict.fromkeys(ids)
        keys = self._parts.builder.keys(self._index, ids)
        for _, built, bodies in self._parts.builder.build(self._index, list(keys.values())) if keys else ():
            found.update((id, body) for id, body in zip(built, bodies, strict=True) if id in found)
        return found

    def conclude(self, built: Mapping[str, bytes | None], written: Callable[[], Collection[str]]) -> None:
        """What still differs, and live did not write meanwhile, counts; what live wrote is looked at once more."""
        held = self._sink.look(self._index, sorted(self.suspects))
        differing = {id for id in self.suspects if not _is_same(held.get(id), built[id])}
        self.suspects = differing & set(written())
        wrong = {id: held.get(id) for id in sorted(differing - self.suspects)}
        for id, found in wrong.items():
            is_there = found is not None and found.body is not None
            kind = Kind.EXTRA if built[id] is None else Kind.DIFFERENT if is_there else Kind.MISSING
            self.told.found(kind, id)
        if wrong and self._ground.repair:
            self._repair(wrong)

    def _repair(self, wrong: Mapping[str, Held | None]) -> None:
        """Build them anew and write them; where that changed nothing, and should have, our write lost."""
        version, parts = self._ground.version(), replace(self._parts, aside=self._ground.aside())
        tally = batch.rebuilt(parts, self._index, wrong.keys(), version)
        self._ground.judge(tally, version)
        rejected = {one.id for _, one in tally.rejected}
        now = self._sink.look(self._index, sorted(wrong))
        as_before = {id for id in wrong.keys() - rejected if now.get(id) == wrong[id]}
        built = self.build(as_before)
        newer = {id for id in as_before if not _is_same(now.get(id), built[id])}
        self.told.rejected += len(rejected)
        self.told.newer += len(newer)
        self.told.repaired += len(wrong) - len(rejected) - len(newer)


def _is_same(held: Held | None, built: bytes | None) -> bool:
    """Whether a sink has the document that was built; where it wrote its text anew, the values count."""
    body = held.body if held else None
    if body == built or body is None or built is None:
        return body == built
    return value_of(body) == value_of(built)


def value_of(body: bytes) -> object:
    """A document's value, to be compared with another one: numbers exactly, and none of them is a truth value.

    A document that is no JSON is its own value.
    """
    try:
        return json.loads(body, parse_int=_number, parse_float=_number)
    except ValueError:
        return body


def _number(text: str) -> tuple[Decimal]:
    """Nothing else in JSON is a tuple; by itself, 1 is the same as true to Python."""
    return (Decimal(text),)
