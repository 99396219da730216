"""A deployment at work on Spark: one query keeps every index current, and seeds run beside it.

Guarantees: a batch counts as done when it is durable in every sink (Spark then logs it, and only then is the slot
acknowledged); a seed goes on where it stood after any crash, and is complete only when each of its chunks is durable;
live goes on for all indexes meanwhile. A stream that failed is started again with growing waits, unless its trouble is
somebody's to mend. An index that the database no longer fits is stopped by name; the others go on. Deliberately not:
what is done with a batch (`engine`), or who the parts are (`app`).
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from pyspark import SparkContext

from penstock.contracts import Extent, Key, Sink
from penstock.engine import batch
from penstock.engine.batch import Parts, Tally
from penstock.engine.policy import Backoff, judge
from penstock.engine.report import Report
from penstock.engine.state import Chunk, Seed, State
from penstock.errors import ConfigError, PenstockError, RetryableError, UnavailableError
from penstock.model import Lsn
from penstock.spark import direct, failures, spread
from penstock.spark.source import PenstockSource
from penstock.spark.spread import Opener

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.spark.spread import Session

log = logging.getLogger(__name__)

_T = TypeVar("_T")
# Chunks of a seed that are dealt out at once: enough to keep tasks busy, few enough that little is done twice.
_WAVE = 64
_KEYS_AT_ONCE = 1000
# How often the catalog is asked whether the database still fits the schemas.
_LOOK_EVERY_S = 5.0


@dataclass(frozen=True)
class Plan:
    """What runs: by `app`, from a deployment.

    `parts` are this process's, with every sink; `opener` gives tasks theirs, with the sinks of these names. `seeds` are
    the sinks (by name) that each index has still to be seeded into. `misfits` asks the database which indexes it no
    longer fits, and why: by its catalog, or, where something failed, by everything that `check` knows. `without` is the
    plan for the others.
    """

    options: Mapping[str, str]
    checkpoint: str
    socket: str
    parts: Parts
    opener: Callable[[Sequence[str]], Opener]
    identities: Mapping[str, str]
    on_error: Mapping[str, str]
    seeds: Mapping[str, tuple[str, ...]]
    cuts: Callable[[str], Sequence[Key]]
    confirmed: Callable[[], Lsn]
    misfits: Callable[[bool], Mapping[str, str]]
    without: Callable[[Mapping[str, str]], Plan]

    def shared(self) -> list[str]:
        """The names of the sinks that several processes may write to."""
        return sorted(sink.name for sink in self.parts.every_sink if sink.shared)

    def single(self) -> Parts:
        """The parts for sinks that only this process writes to."""
        own = {index: [sink for sink in sinks if not sink.shared] for index, sinks in self.parts.sinks.items()}
        return replace(self.parts, sinks=own)


@dataclass
class Pipeline:
    """A plan at work. `run` returns when `stop` was called and everything under way is durable."""

    spark: Session
    plan: Plan
    state: State
    report: Report
    _stopping: threading.Event = field(default_factory=threading.Event)
    _idle: threading.Lock = field(default_factory=threading.Lock)
    _wanted: threading.Event = field(default_factory=threading.Event)
    _shed: threading.Event = field(default_factory=threading.Event)
    _pausing: threading.Event = field(default_factory=threading.Event)
    _failure: BaseException | None = None
    _seed_error: BaseException | None = None
    _backoff: Backoff = field(default_factory=Backoff)

    def stop(self) -> None:
        """End after the batch under way. Any thread, any number of times."""
        self._stopping.set()
        self._wanted.set()

    def run(self) -> None:
        """Keep every index current until `stop`; raises what somebody has to mend."""
        try:
            self._run()
        except Exception as error:
            to_mend = isinstance(error, PenstockError) and not isinstance(error, RetryableError)
            if to_mend or not _has_jvm_ended():
                raise
            log.debug("lost Spark", exc_info=error)
            raise UnavailableError(
                "the JVM of Spark has ended", hint="Start penstock run again: it goes on where it stood."
            ) from None

    def _run(self) -> None:
        seeder = threading.Thread(target=self._seed_all, name="penstock-seed", daemon=True)
        try:
            while not self._stopping.is_set():
                if query := self._start():
                    if seeder.ident is None:
                        seeder.start()
                    self._watch(query)
                if self._failure is not None:
                    self._bear(self._failure)
        finally:
            self.stop()
            if seeder.ident is not None:
                seeder.join(timeout=60)
        if self._seed_error is not None:
            raise self._seed_error

    def _start(self) -> StreamingQuery | None:
        """The query, or None with the failure noted."""
        self._failure = None
        self._shed.clear()
        self._pausing.clear()
        try:
            with failures.telling():
                stream = self.spark.readStream.format("penstock").options(**self.plan.options).load()
                writing = stream.writeStream.foreachBatch(self._on_batch).queryName("penstock")
                return writing.option("checkpointLocation", self.plan.checkpoint).start()
        except RetryableError as error:
            if "DATA_SOURCE_NOT_FOUND" in error.message:
                # Spark looks for sources once, in a process of its own; had that died, it would never look again.
                self.spark.dataSource.register(PenstockSource)
            self._failure = error
            return None

    def _watch(self, query: StreamingQuery) -> None:
        """Wait until the query ends, or end it between two batches."""
        look = time.monotonic() + _LOOK_EVERY_S
        while not self._stopping.wait(0.2) and not self._shed.is_set():
            if not query.isActive:
                self._failure = self._failure or failures.told(query.exception())
                return
            if time.monotonic() > look:
                self._look_at_schemas()
                look = time.monotonic() + _LOOK_EVERY_S
        self._pausing.set()
        with self._idle:
            pass  # the batch under way is done; the next one is not begun
        query.stop()
        self._failure = None

    def _look_at_schemas(self) -> None:
        """Stop what the database no longer fits, before anything fails because of it."""
        try:
            self._stop_indexes(self.plan.misfits(False))
        except RetryableError as error:
            log.debug("the catalog could not be read: %s", error)

    def _stop_indexes(self, misfits: Mapping[str, str]) -> bool:
        """Go on without them; an error where none would be left."""
        misfits = {index: reason for index, reason in misfits.items() if index in self.plan.parts.indexes}
        for index, reason in misfits.items():
            self.state.stop_index(index, reason)
            self.report.stopped(index, reason)
            log.error("index %s is stopped: %s. Mend that and start again: it will be seeded anew.", index, reason)
        if misfits.keys() >= set(self.plan.parts.indexes):
            index, reason = next(iter(misfits.items()))
            raise ConfigError(
                f"index {index} does not fit the database any more: {reason}",
                hint="Change the schema, or the table back, and start again: penstock check tells what is wrong.",
            )
        if misfits:
            self.plan = self.plan.without(misfits)
            self._shed.set()
        return bool(misfits)

    def _bear(self, failure: BaseException) -> None:
        """Wait before the next try, or give up; an index that is the cause is stopped, and the others go on."""
        try:
            to_mend = isinstance(failure, PenstockError) and not isinstance(failure, RetryableError)
            if to_mend and self._stop_indexes(self.plan.misfits(True)):
                return
        except RetryableError as error:
            failure = error
        if not isinstance(failure, RetryableError) or _has_jvm_ended():
            raise failure
        wait_s = self._backoff.next_s()
        self.report.failed(str(failure))
        log.warning("the stream failed and starts again in %.1f s: %s", wait_s, failure)
        self._stopping.wait(wait_s)

    def _on_batch(self, frame: DataFrame, number: int) -> None:
        with self._idle:
            if self._stopping.is_set() or self._pausing.is_set():
                raise UnavailableError("penstock is stopping")  # not begun: the batch comes again
            try:
                with failures.telling():
                    self._apply(frame)
            except BaseException as error:
                self._failure = error
                raise
            self._backoff.succeeded()

    def _apply(self, frame: DataFrame) -> None:
        fetched = direct.fetch(self.plan.socket) if self.plan.socket else None
        seeding = frozenset(index for index in self.plan.parts.indexes if self.state.seed(index))
        if fetched is not None and fetched.changes is None:
            tally, end = Tally(), fetched.end
        elif fetched is not None:
            end = fetched.end
            tally = batch.apply(replace(self.plan.parts, seeding=seeding), fetched.changes, end, self._truncated)
        else:
            tally, end = self._spread(frame, seeding)
        self._judge(tally)
        for index in seeding & {index for index, _ in tally.gone}:
            self.state.note_gone(index, [key for one, key in tally.gone if one == index])
        self.report.batch(tally, end, fetched is not None)

    def _spread(self, frame: DataFrame, seeding: frozenset[str]) -> tuple[Tally, Lsn]:
        """The batch, by Spark's tasks."""
        found = spread.resolve(frame, self.plan.opener(()))
        try:
            for index, extent in found.extents.items():
                self._truncated(index, extent, found.version)
            tally = Tally()
            if shared := self.plan.shared():
                tally = spread.deliver(found, self.plan.opener(shared), found.version, seeding)
            single = self.plan.single()
            if single.every_sink:
                own = batch.delivered(replace(single, seeding=seeding), spread.keys_of(found), found.version)
                tally = _beside(tally, own) if shared else own
            tally.changes = found.changes
            return tally, found.version
        finally:
            found.release()

    def _judge(self, tally: Tally) -> None:
        self.report.quarantined += judge(tally.rejected, self.plan.on_error, self.state)

    def _truncated(self, index: str, extent: Extent, version: Lsn) -> None:
        """Clear what is gone, and note down, durably, that what is left has to be built again."""
        if extent >= Extent.SOME_ROOTS:
            for sink in self.plan.parts.sinks[index]:
                sink.clear(index, version)
        if extent is not Extent.ROOTS:
            names = tuple(sink.name for sink in self.plan.parts.sinks[index])
            self.state.begin_seed(Seed(index, self.plan.identities[index], names, version), self.plan.cuts(index))
            self._wanted.set()

    def _seed_all(self) -> None:
        """Seed what has to be, then whatever a TRUNCATE asks for."""
        try:
            for index in self.plan.seeds:
                self._seed_step(functools.partial(self._ensure_seed, index))
            while not self._stopping.is_set():
                self._wanted.clear()
                for index in self.plan.parts.indexes:
                    while not self._stopping.is_set() and self._seed_step(functools.partial(self._seed_once, index)):
                        pass
                self._wanted.wait(1.0)
        except BaseException as error:  # noqa: BLE001 - told to the thread that waits
            if not self._stopping.is_set():
                self._seed_error = error
                self.stop()

    def _seed_step(self, act: Callable[[], _T]) -> _T | None:
        """Do it; None where its index was stopped instead."""
        try:
            return self._retrying(act)
        except PenstockError as error:
            if isinstance(error, RetryableError) or not self._stop_indexes(self.plan.misfits(True)):
                raise
            return None

    def _ensure_seed(self, index: str) -> None:
        """Go on with the seed that was under way, where it fills these sinks; else begin, and fill its sinks, too."""
        if index not in self.plan.parts.sinks:
            return  # stopped
        sinks, found = self.plan.seeds[index], self.state.seed(index)
        if found is not None and found.identity != self.plan.identities[index]:
            self.state.end_seed(found)
            found = None
        held = {sink.name for sink in self.plan.parts.sinks[index]}
        others = held.intersection(found.sinks) if found else set()
        if not sinks or (found and set(sinks) <= set(found.sinks) <= held):
            return
        version = max(self.plan.confirmed(), found.version if found else Lsn.ZERO)
        names = tuple(sorted(others.union(sinks)))
        self.state.begin_seed(Seed(index, self.plan.identities[index], names, version), self.plan.cuts(index))

    def _seed_once(self, index: str) -> bool:
        """One seed of the index to its end; False where there is none to do."""
        seed = self.state.seed(index)
        if seed is None or index not in self.plan.parts.sinks:
            self.report.live([index])
            return False
        self.report.seeding(seed)
        sinks = [sink for sink in self.plan.parts.sinks[index] if sink.name in seed.sinks]
        for sink in sinks:
            sink.seeding(index)
        while (left := self.state.chunks_left(index)) and not self._stopping.is_set():
            wave = left[:_WAVE]
            tally = self._retrying(lambda: self._fill(seed, wave, sinks))  # noqa: B023 - called at once
            if not self._is_under_way(seed):
                return True
            documents = tally.written.get(index, 0)
            self.state.finish_chunks(seed, wave, documents)
            self.report.seeded(index, len(wave), documents)
        if self._stopping.is_set():
            return False
        if self._is_under_way(seed):
            self._complete(seed, sinks)
        return True

    def _is_under_way(self, seed: Seed) -> bool:
        """Whether no other seed took its place, and the index was not stopped."""
        now = self.state.seed(seed.index)
        return now is not None and now.version == seed.version

    def _fill(self, seed: Seed, wave: Sequence[Chunk], sinks: Sequence[Sink]) -> Tally:
        shared = [sink for sink in sinks if sink.shared]
        single = [sink for sink in sinks if not sink.shared]
        tally = Tally()
        if shared:
            opener = self.plan.opener(sorted(sink.name for sink in shared))
            tally = spread.seed(self.spark, seed.index, wave, opener, seed.version)
        if single:
            parts = replace(self.plan.parts, sinks={seed.index: single})
            own = batch.seeded(parts, seed.index, [(chunk.after, chunk.upto) for chunk in wave], seed.version)
            tally = _beside(tally, own) if shared else own
        self._judge(tally)
        return tally

    def _complete(self, seed: Seed, sinks: Sequence[Sink]) -> None:
        """What live deleted meanwhile is looked at once more; then the seed counts."""
        gone = self.state.gone(seed.index)
        parts = replace(self.plan.parts, sinks={seed.index: sinks})
        chunks = [(seed.index, gone[at : at + _KEYS_AT_ONCE]) for at in range(0, len(gone), _KEYS_AT_ONCE)]
        version = Lsn(max(seed.version, self.report.end))
        self._judge(self._retrying(lambda: batch.delivered(parts, chunks, version)))
        for sink in sinks:
            sink.complete(seed.index, seed.version)
        if self.state.end_seed(seed):
            log.info("index %s is seeded: %d documents", seed.index, self.report.indexes[seed.index].seeded)

    def _retrying(self, act: Callable[[], _T]) -> _T:
        """Do it; passing trouble is waited out."""
        backoff = Backoff()
        while True:
            try:
                return act()
            except RetryableError as error:
                wait_s = backoff.next_s()
                log.warning("seeding waits for %.1f s: %s", wait_s, error)
                if self._stopping.wait(wait_s):
                    raise


def _beside(tally: Tally, other: Tally) -> Tally:
    """What came of the same documents in other sinks: they are counted once."""
    return replace(tally, rejected=[*tally.rejected, *other.rejected], gone=[*tally.gone, *other.gone])


def _has_jvm_ended() -> bool:
    process = getattr(SparkContext._gateway, "proc", None)  # none where Spark started this process, or runs elsewhere
    return process is not None and process.poll() is not None
