"""Seeds on Spark: every index that has to be filled is filled by ranges of keys, while live goes on.

Guarantees: a seed goes on where it stood after any crash, but only into the very generations that it was filling; it
is complete when each of its chunks is durable in each of its sinks, and what live deleted meanwhile was looked at once
more. Two waves of chunks are under way at a time, so that no core waits for the other. Passing trouble is waited out.
Deliberately not: deciding what has to be seeded (the plan and a TRUNCATE do).
"""

from __future__ import annotations

import functools
import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from penstock.contracts import Sink
from penstock.engine import batch, quarantine
from penstock.engine.batch import Tally
from penstock.engine.policy import Backoff
from penstock.engine.state import Chunk, Seed
from penstock.errors import PASSING, PenstockError
from penstock.model import Lsn
from penstock.spark import spread

if TYPE_CHECKING:
    from penstock.spark.pipeline import Pipeline, Plan

log = logging.getLogger(__name__)

_T = TypeVar("_T")
# Chunks that are dealt out at once: enough to keep tasks busy, few enough that little is done twice.
_WAVE = 32
_LOOK_S = 0.2


def _waves(chunks: Sequence[Chunk]) -> Iterator[Sequence[Chunk]]:
    """The chunks as they are dealt out: in equal parts for all who work on them, so that all end at the same time."""
    rounds = -(-len(chunks) // (_WAVE * batch.IN_FLIGHT))
    count = min(rounds * batch.IN_FLIGHT, len(chunks))
    for at in range(count):
        yield chunks[len(chunks) * at // count : len(chunks) * (at + 1) // count]


@dataclass
class Seeder:
    """The seeds of a pipeline. `run` is for a thread of its own."""

    pipeline: Pipeline
    wanted: threading.Event = field(default_factory=threading.Event)
    """Set when there may be something to seed."""

    @property
    def _plan(self) -> Plan:
        return self.pipeline.plan

    def _is_stopping(self) -> bool:
        return self.pipeline.stopping.is_set()

    def run(self, begun: threading.Event) -> None:
        """Seed what has to be, then whatever a TRUNCATE or a lost generation asks for, until the pipeline stops.

        Nothing is done before the stream has `begun`.
        """
        ensured: Plan | None = None
        self._warm_up()
        while not self._is_stopping() and not begun.wait(_LOOK_S):
            pass
        while not self._is_stopping():
            self.wanted.clear()
            if self.pipeline.is_torn:
                self.pipeline.reopen()
            self._step(self.pipeline.succession.begin)
            if self._plan is not ensured:
                ensured = self._plan
                for index in ensured.seeds:
                    self._step(functools.partial(self._ensure, index))
            for index in self._plan.parts.indexes:
                while not self._is_stopping() and self._step(functools.partial(self._seed, index)):
                    pass
            self.wanted.wait(1.0)

    def _warm_up(self) -> None:
        """Let tasks open their parts while the stream starts; what goes wrong comes again where it matters."""
        filled = {sink for sinks in self._plan.seeds.values() for sink in sinks}
        if names := [name for name in self._plan.shared() if name in filled]:
            try:
                spread.warm_up(self.pipeline.spark, self._plan.opener(names), self._plan.connections.seeds)
            except PenstockError as error:
                log.debug("tasks could not open their parts: %s", error)

    def _step(self, act: Callable[[], _T]) -> _T | None:
        """Do it; None where its index was stopped instead, by live maybe, while this was under way."""
        before = set(self._plan.parts.indexes)
        try:
            return self._retrying(act)
        except PenstockError as error:
            if isinstance(error, PASSING):
                raise
            if self.pipeline.stop_indexes(self._plan.misfits(True)) or not before <= set(self._plan.parts.indexes):
                return None
            raise

    def _retrying(self, act: Callable[[], _T]) -> _T:
        """Do it; passing trouble is waited out, with sinks opened again."""
        backoff = Backoff()
        while True:
            try:
                return act()
            except PASSING as error:
                wait_s = backoff.next_s()
                log.warning("seeding waits for %.1f s: %s", wait_s, error)
                if self.pipeline.stopping.wait(wait_s):
                    raise
                self.pipeline.reopen()

    def _identity(self, index: str, names: Sequence[str]) -> str:
        """Which schema, source and generations a seed is of."""
        held = {sink.name: sink for sink in self._plan.parts.sinks[index]}
        generations = [f"{name}={held[name].generation(index)}" for name in sorted(names)]
        return " ".join([self._plan.identities[index], *generations])

    def begin(self, index: str, names: Sequence[str], version: Lsn, *, sweeps: bool = False) -> None:
        """A new seed of the index, in place of any other. Quick: it is cut when its turn comes, live does not wait."""
        seed = Seed(index, self._identity(index, names), tuple(sorted(names)), version, sweeps=sweeps)
        self.pipeline.report.seeding(self.pipeline.state.begin_seed(seed))
        self.wanted.set()

    def _ensure(self, index: str) -> None:
        """Go on with the seed that was under way, where it fills these sinks; else begin, and fill its sinks, too."""
        if index not in self._plan.parts.sinks:
            return  # stopped
        lacking, found = set(self._plan.seeds[index]), self.pipeline.state.seed(index)
        held = {sink.name for sink in self._plan.parts.sinks[index]}
        if found and lacking <= set(found.sinks) <= held and found.identity == self._identity(index, found.sinks):
            return
        if names := lacking | (held & set(found.sinks) if found else set()):
            with self.pipeline.boundary() as version:
                self.begin(index, sorted(names), max(version, found.version if found else Lsn.ZERO))
        elif found:
            self.pipeline.state.end_seed(found)

    def _seed(self, index: str) -> bool:
        """One seed of the index to its end; False where there is none to do."""
        seed = self.pipeline.state.seed(index)
        if seed is None or index not in self._plan.parts.sinks:
            self.pipeline.succession.settle(index)
            self.pipeline.report.live([index])
            if begun := self.pipeline.state.seed(index):  # by a TRUNCATE, just now
                self.pipeline.report.seeding(begun)
            return False
        if not set(seed.sinks) <= {sink.name for sink in self._plan.parts.sinks[index]}:
            self._ensure(index)  # a sink was left behind
            return True
        if seed.identity != self._identity(index, seed.sinks):
            with self.pipeline.boundary() as version:  # a generation is gone
                self.begin(index, seed.sinks, max(version, seed.version))
            return True
        if seed.total == 1 and not seed.done:
            seed = self.pipeline.state.cut_seed(seed, self._plan.cuts(index))
        self.pipeline.report.seeding(seed)
        sinks = [sink for sink in self._plan.parts.sinks[index] if sink.name in seed.sinks]
        for sink in sinks:
            sink.seeding(index)
        self._fill_all(seed, sinks)
        if self._is_stopping():
            return False
        if self._is_under_way(seed):
            self._complete(seed, sinks)
        return True

    def _fill_all(self, seed: Seed, sinks: Sequence[Sink]) -> None:
        """Every chunk that is left, noted down wave by wave; ends early where the seed is no longer under way."""
        left = self.pipeline.state.chunks_left(seed.index)
        waves = itertools.takewhile(lambda _: not self._is_stopping(), _waves(left))

        def fill(wave: Sequence[Chunk]) -> tuple[Sequence[Chunk], Tally]:
            return wave, self._fill(seed, wave, sinks)

        at_work = batch.in_flight if self._plan.connections.seeds >= batch.IN_FLIGHT else map
        for wave, tally in at_work(fill, waves):
            if not self._is_under_way(seed):
                return
            documents = tally.written.get(seed.index, 0)
            self.pipeline.state.finish_chunks(seed, wave, documents)
            self.pipeline.report.seeded(seed.index, len(wave), documents, tally.older)

    def _is_under_way(self, seed: Seed) -> bool:
        """Whether no other seed took its place, and what it fills is still what it began to fill."""
        now = self.pipeline.state.seed(seed.index)
        held = {sink.name for sink in self._plan.parts.sinks.get(seed.index, ())}
        if now is None or now.token != seed.token or not set(seed.sinks) <= held:
            return False
        return seed.identity == self._identity(seed.index, seed.sinks)

    def _fill(self, seed: Seed, wave: Sequence[Chunk], sinks: Sequence[Sink]) -> Tally:
        shared = [sink for sink in sinks if sink.shared]
        single = [sink for sink in sinks if not sink.shared]
        tally, aside = Tally(), self.pipeline.state.aside()
        if shared:
            self._plan.parts.claim()
            opener = self._plan.opener(sorted(sink.name for sink in shared))
            tasks = max(1, self._plan.connections.seeds // batch.IN_FLIGHT)
            filling = spread.Filling(seed.index, seed.version, aside)
            tally = spread.seed(self.pipeline.spark, filling, wave, opener, tasks)
        if single:
            parts = replace(self._plan.parts, sinks={seed.index: single}, aside=aside)
            own = batch.seeded(parts, seed.index, [(chunk.after, chunk.upto) for chunk in wave], seed.version)
            tally = tally.beside(own) if shared else own
        self.pipeline.judge(tally, seed.version)
        return tally

    def _complete(self, seed: Seed, sinks: Sequence[Sink]) -> None:
        """What live deleted meanwhile is looked at once more; then the seed counts."""
        state = self.pipeline.state
        parts = replace(self._plan.parts, sinks={seed.index: sinks}, aside=state.aside())
        chunks = ((seed.index, keys) for keys in state.gone(seed.index))
        version = Lsn(max(seed.version, self.pipeline.report.end))
        self.pipeline.judge(batch.delivered(parts, chunks, version), version)

        def show() -> bool:
            parts.claim()
            if not self._is_under_way(seed):
                return False
            for sink in sinks:
                if seed.sweeps:
                    sink.clear(seed.index, Lsn(seed.version - 1))
                    sink.flush()
                sink.complete(seed.index, seed.version)
            quarantine.outlive(state, seed.index, seed.sinks, seed.version)
            return state.end_seed(seed)

        if self.pipeline.succession.complete(seed, sinks, show):
            log.info("index %s is seeded: %d documents", seed.index, self.pipeline.report.indexes[seed.index].seeded)
