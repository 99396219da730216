"""A batch of changes, or a seed, spread over Spark's tasks: each opens the engine's parts and does its share.

Two stages for a batch: tasks settle and resolve their changes; when all have, the distinct keys are dealt out, built
and written where they are. Guarantees: no document passes through the driver; nothing is built before every transaction
of the batch is settled; what a task did is durable before Spark hears of it, and a task that runs again does it again
with the same version. Deliberately not: deciding anything (`engine` does).
"""

from __future__ import annotations

import functools
import itertools
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.contracts import Extent, Key, Rejection
from penstock.engine.batch import Parts, Tally, delivered, resolved, seeded, settle
from penstock.engine.state import Chunk
from penstock.model import Lsn
from penstock.spark.failures import telling
from penstock.spark.workers import spare_the_collector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Session = SparkSession

# How many keys a task takes at once.
_CHUNK_KEYS = 1000
# About how many keys the driver takes at once, for sinks of its own: some megabytes in the JVM, and again in Python.
_PART_KEYS = 50_000
# A row with a key is one to build. Those without are for the driver: `number` is what a TRUNCATE means for the index,
# or, without an index, how many changes there were.
_RESOLVED = pa.schema([("index", pa.string()), ("key", pa.string()), ("number", pa.int32()), ("lsn", pa.int64())])
_RESOLVED_SQL = "index string, key string, number int, lsn bigint"
_TALLY_SQL = "tally binary"


@dataclass(frozen=True, slots=True)
class Opener:
    """How a task gets its parts: `open` is a plain function of an importable module. They live as long as it."""

    open: Callable[..., Parts]
    arguments: tuple[Any, ...] = ()
    token: str = ""
    """Tells one deployment's parts from another's, in workers that serve several."""

    @contextmanager
    def parts(self) -> Iterator[Parts]:
        """The parts of this process; no connection to the database outlives the block."""
        parts = _kept(self)
        try:
            yield parts
        finally:
            parts.builder.rest()


_opened: OrderedDict[str, Parts] = OrderedDict()
# Three take turns: without a sink, with all, and with those that an index is seeded into; a few more where several are.
_MOST_OPENED = 4


def _kept(opener: Opener) -> Parts:
    """The parts of this process by their token; those that were not used for longest give way, and are closed.

    A worker does one task at a time, so nobody uses them.
    """
    parts = _opened.pop(opener.token, None)
    if parts is None:
        parts = opener.open(*opener.arguments)
        spare_the_collector()
    _opened[opener.token] = parts
    while len(_opened) > _MOST_OPENED:
        _, left = _opened.popitem(last=False)
        for sink in left.every_sink:
            sink.close()
    return parts


class Shares(NamedTuple):
    """How many connections to the database live and seeds may have: the parts of one bound."""

    live: int
    seeds: int


@dataclass(slots=True)
class Resolved:
    """The keys of a batch, spread over tasks and held there; what the driver has to know of them."""

    frame: DataFrame
    tasks: int
    version: Lsn = Lsn.ZERO
    changes: int = 0
    extents: dict[str, Extent] = field(default_factory=dict)

    def release(self) -> None:
        """Let Spark forget them."""
        self.frame.unpersist()


def resolve(changes: DataFrame, opener: Opener, tasks: int) -> Resolved:
    """Settle and resolve a batch, in so many tasks at a time; on return every task has."""
    frame = changes.coalesce(tasks).mapInArrow(functools.partial(_resolve, opener), _RESOLVED_SQL).persist()
    with telling():
        heads = frame.filter("key IS NULL").toArrow()
    found = Resolved(frame, tasks)
    for row in heads.to_pylist():
        found.version = Lsn(max(found.version, row["lsn"] or 0))
        if row["index"] is None:
            found.changes += row["number"]
        else:
            extent = Extent(row["number"])
            found.extents[row["index"]] = max(found.extents.get(row["index"], Extent.NONE), extent)
    return found


def deliver(found: Resolved, opener: Opener, version: Lsn, watched: Mapping[str, Any]) -> Tally:
    """Build and write every key once, in the tasks; `watched` as `Parts` has it (seeding, aside)."""
    keys = found.frame.filter("key IS NOT NULL").select("index", "key").distinct().coalesce(found.tasks)
    return _gathered(keys.mapInArrow(functools.partial(_deliver, opener, version, watched), _TALLY_SQL))


def keys_of(found: Resolved) -> Iterator[tuple[str, list[Key]]]:
    """The keys on the driver, a list at a time, for sinks that only one process may write to."""
    rows = _distinct(found).toLocalIterator(prefetchPartitions=True)
    return _listed((row["index"], row["key"]) for row in rows)


def _distinct(found: Resolved) -> DataFrame:
    """The keys, each once, in parts of about `_PART_KEYS`: Spark hands them over a whole part at a time."""
    keys = found.frame.filter("key IS NOT NULL").select("index", "key")
    return keys.repartition(max(1, -(-keys.count() // _PART_KEYS)), "index", "key").distinct()


def warm_up(spark: Session, opener: Opener, tasks: int) -> None:
    """Have so many workers with their parts open."""
    with telling():
        spark.range(0, tasks, 1, tasks).mapInArrow(functools.partial(_open, opener), _TALLY_SQL).toArrow()


class Filling(NamedTuple):
    """A seed as tasks know it: of which index, at which version, and what is in quarantine, as `Parts` has it."""

    index: str  # type: ignore[assignment]  # hides tuple.index, which nobody asks for here
    version: Lsn
    aside: frozenset[tuple[str, str]]


def seed(spark: Session, filling: Filling, chunks: Sequence[Chunk], opener: Opener, most: int) -> Tally:
    """Build and write some chunks of an index, in at most so many tasks: each keeps some in flight."""
    tasks = min(len(chunks), most)
    shares = [chunks[at::tasks] for at in range(tasks)]
    numbers = spark.range(0, tasks, 1, tasks)
    return _gathered(numbers.mapInArrow(functools.partial(_seed, opener, filling, shares), _TALLY_SQL))


def _resolve(opener: Opener, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    full = (changes for changes in batches if changes.num_rows)
    for first in full:
        with opener.parts() as parts:
            for changes in itertools.chain([first], full):
                yield from _resolved(parts, changes)


def _resolved(parts: Parts, changes: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    settle(parts, changes)
    lsn = pc.max(changes.column("_commit_lsn")).as_py()
    extents = [(index, parts.builder.truncated(index, changes)) for index in parts.indexes]
    heads = [(None, changes.num_rows), *((index, one) for index, one in extents if one is not Extent.NONE)]
    yield _rows([index for index, _ in heads], None, [number for _, number in heads], lsn)
    for index, keys in resolved(parts, changes):
        yield _rows([index] * len(keys), [json.dumps(key) for key in keys], [0] * len(keys), lsn)


def _rows(indexes: Sequence[str | None], keys: list[str] | None, numbers: list[int], lsn: int) -> pa.RecordBatch:
    count = len(indexes)
    columns = [
        pa.array(indexes, pa.string()),
        pa.nulls(count, pa.string()) if keys is None else pa.array(keys, pa.string()),
        pa.array(numbers, pa.int32()),
        pa.array([lsn] * count, pa.int64()),
    ]
    return pa.record_batch(columns, schema=_RESOLVED)


def _deliver(
    opener: Opener, version: Lsn, watched: Mapping[str, Any], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with opener.parts() as parts:
        tally = delivered(replace(parts, **watched), _chunks(batches), version)
    yield _told(tally)


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, list[Key]]]:
    columns = ((batch.column(0).to_pylist(), batch.column(1).to_pylist()) for batch in batches)
    return _listed(pair for indexes, keys in columns for pair in zip(indexes, keys, strict=True))


def _listed(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, list[Key]]]:
    """The keys in lists of one index and bounded length, however indexes take turns."""
    waiting: dict[str, list[Key]] = {}
    for index, key in pairs:
        keys = waiting.setdefault(index, [])
        keys.append(tuple(json.loads(key)))
        if len(keys) == _CHUNK_KEYS:
            yield index, waiting.pop(index)
    yield from waiting.items()


def _open(opener: Opener, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        with opener.parts():
            pass
    yield from ()


def _seed(
    opener: Opener, filling: Filling, shares: Sequence[Sequence[Chunk]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for number in [number for batch in batches for number in batch.column(0).to_pylist()]:
        ranges = [(chunk.after, chunk.upto) for chunk in shares[number]]
        with opener.parts() as parts:
            tally = seeded(replace(parts, aside=filling.aside), filling.index, ranges, filling.version)
        yield _told(tally)


def _told(tally: Tally) -> pa.RecordBatch:
    said = {**asdict(tally), "rejected": [(sink, *one) for sink, one in tally.rejected]}
    return pa.record_batch([pa.array([json.dumps(said).encode()], pa.binary())], names=["tally"])


def _gathered(frame: DataFrame) -> Tally:
    total = Tally()
    with telling():
        tallies = frame.toArrow()["tally"].to_pylist()
    for one in tallies:
        said = json.loads(one)
        rejected = [
            (sink, Rejection(index, key, Lsn(version), why)) for sink, index, key, version, why in said.pop("rejected")
        ]
        gone = [(index, tuple(key)) for index, key in said.pop("gone")]
        healed = [(sink, index, id) for sink, index, id in said.pop("healed")]
        total.add(Tally(**said, rejected=rejected, gone=gone, healed=healed))
    return total
