"""One generation of an index after another: begun beside the one that readers see, held against the database, shown.

Guarantees: a new generation joins live between two batches, and live keeps both from then on; readers change over in
one step, between two batches, when every sink has the new one complete and it was found to be what the database says.
Whatever ends the process, the next run goes on where this one stood. Deliberately not: filling it (`seeds`), and what a
generation is made of (`app`).
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock import failpoints
from penstock.contracts import Sink
from penstock.errors import PASSING, ConfigError, OperatorError, PenstockError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.engine.state import Seed
    from penstock.spark.pipeline import Pipeline, Plan

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Heirs:
    """What may be done about generations, by `app`.

    `outgoing` names, for an index that is built anew, the generation that readers still see. `rebuild` is the plan with
    a new generation beside it (or, as a rollback, the former one), `release` the plan without the outgoing one: because
    readers have left it, or because it cannot be kept. `verify` holds an index in some sinks against the database,
    mends what differs, and says how much that was.
    """

    outgoing: Mapping[str, str]
    rebuild: Callable[[str, bool], Plan]
    release: Callable[[str, bool], Plan]
    verify: Callable[[Pipeline, str, Sequence[Sink]], int]


@dataclass
class Succession:
    """The generations of a pipeline. Requests come from any thread; the rest is done by the one that seeds."""

    pipeline: Pipeline
    _requests: deque[tuple[str, bool]] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _begun: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for index in self._heirs.outgoing:  # by a run before
            self._begun.add(index)
            self.pipeline.report.rebuilding(index, "under way")

    @property
    def _heirs(self) -> Heirs:
        return self.pipeline.plan.heirs

    def request(self, index: str, *, rollback: bool) -> None:
        """Ask for a new generation of an index, or for the former one; an error where that cannot be."""
        with self._lock:
            if index not in self.pipeline.report.indexes:
                names = ", ".join(self.pipeline.report.indexes)
                raise ConfigError(f"there is no index {index!r}", hint=f"There are: {names}.")
            if index not in self.pipeline.plan.parts.indexes:
                raise OperatorError(f"index {index} is stopped", hint="penstock status tells why; start again then.")
            if self.pipeline.state.seed(index) or index in self._heirs.outgoing or self.pipeline.report.building(index):
                raise OperatorError(
                    f"index {index} is being built already", hint="penstock status shows how far it is."
                )
            self.pipeline.report.rebuilding(index, "asked for")
            self._requests.append((index, rollback))
        self.pipeline.wake()

    def begin(self) -> None:
        """Begin what was asked for."""
        while self._requests and not self.pipeline.stopping.is_set():
            index, rollback = self._requests[0]
            try:
                self.pipeline.join(functools.partial(self._rebuilt, index, rollback))
                self._begun.add(index)
                self.pipeline.report.rebuilding(index, "under way")
                log.info("index %s is built anew beside the one that readers see", index)
            except PASSING:
                raise
            except PenstockError as error:
                self.pipeline.report.rebuilding(index, "", error.message)
                log.error("index %s cannot be built anew: %s", index, error)
            self._requests.popleft()

    def _rebuilt(self, index: str, rollback: bool) -> Plan:
        return self._heirs.rebuild(index, rollback)

    def complete(self, seed: Seed, sinks: Sequence[Sink], show: Callable[[], bool]) -> bool:
        """A seed is filled: show it to readers; where a generation is outgoing, verified before and in one step."""
        if seed.index not in self._begun:
            with self.pipeline.between_batches():
                return show()
        self.pipeline.report.rebuilding(seed.index, "being verified")
        failpoints.passing("verify")
        mended = self._heirs.verify(self.pipeline, seed.index, sinks)
        if mended:
            log.warning(
                "index %s: %d documents differed before readers changed over, and are mended", seed.index, mended
            )
        with self.pipeline.between_batches():
            failpoints.passing("swap")
            if not show():
                return False
            failpoints.passing("retire")
            self._release(seed.index, is_done=True)
        return True

    def settle(self, index: str) -> None:
        """Nothing is left to seed of an index: an outgoing generation of it has been left, before a crash say."""
        if index in self._heirs.outgoing and not self.pipeline.plan.seeds.get(index):
            with self.pipeline.between_batches():
                self._release(index, is_done=True)

    def give_up(self, *names: str) -> bool:
        """Outgoing generations (by their name, or their index') cannot be kept: readers see them as they stand."""
        chosen = [index for index, name in self._heirs.outgoing.items() if index in names or name in names]
        for index in chosen:
            log.warning("readers of %s see it as it stands until its successor is complete", index)
            self._release(index, is_done=False)
        return bool(chosen)

    def _release(self, index: str, *, is_done: bool) -> None:
        if index in self._heirs.outgoing:
            self.pipeline.change(lambda: self._heirs.release(index, is_done))
        if is_done:
            self._begun.discard(index)
            self.pipeline.report.rebuilding(index, "")
