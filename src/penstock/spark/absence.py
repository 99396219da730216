"""Sinks that stay down: watched, warned about, left behind past the limit, and taken back when they answer again.

Guarantees: as long as a sink is part of the deployment the slot holds for it, and one that fails for a moment stays.
One that is left behind is marked so, durably, before the first batch that it misses; it joins again between two
batches, as a sink that has to be seeded. Deliberately not: deciding what a limit or a setting means
(`engine.retention`), or how a sink is opened (`app`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.contracts import Sink
from penstock.engine.policy import Backoff
from penstock.engine.retention import Retention
from penstock.errors import PenstockError, RetryableError

if TYPE_CHECKING:
    from penstock.spark.pipeline import Pipeline, Plan

log = logging.getLogger(__name__)

# How long to wait between two tries to reach a sink that was left behind, at most.
_LOOK_S = 15.0


@dataclass(frozen=True)
class Roll:
    """Which sinks take part, by `app`.

    `retained` asks the server what the slot holds back, `silent` each sink whether it answers. `leave` is the plan
    without some sinks, noted down; `open` opens one that is away, `join` is the plan with it, noted down.
    """

    limit: int | None
    on_down: Mapping[str, str]
    away: tuple[str, ...]
    retained: Callable[[], int | None]
    silent: Callable[[], Mapping[str, str]]
    leave: Callable[[Collection[str]], Plan]
    open: Callable[[str], Sink]
    join: Callable[[Sink], Plan]


@dataclass
class Absence:
    """The sinks of a pipeline that are away, or may soon be."""

    pipeline: Pipeline
    clock: Callable[[], float] = time.monotonic
    _waiting: dict[str, threading.Thread] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._retention = Retention(self._roll.limit)

    @property
    def _roll(self) -> Roll:
        return self.pipeline.plan.roll

    def look(self) -> int | None:
        """What the slot holds back now, warned about where that is much; None where the server does not say."""
        try:
            retained = self._roll.retained()
        except PenstockError as error:
            log.debug("what the slot holds back is not known: %s", error)
            return None
        if retained is not None and (said := self._retention.warning(retained)):
            log.warning("%s; penstock status tells what holds it", said)
        return retained

    def consider(self, failure: RetryableError) -> bool:
        """The stream failed: whether it goes on at once, without the sinks that are down and have been for a while."""
        lasting = self._retention.lasting({failure.sink} - {""}, self.clock())
        retained = self.look()
        if retained is None or not self._retention.is_exceeded(retained):
            return False
        if not failure.sink:
            silent = set(self._roll.silent())
            self._retention.recovered(but=silent)
            lasting = self._retention.lasting(silent, self.clock())
        leaving = self._retention.leaving(lasting, self._roll.on_down, retained)
        if not leaving:
            return False
        self.pipeline.change(lambda: self._roll.leave(leaving))
        self._retention.recovered()
        for sink in leaving:
            self.pipeline.report.away[sink] = failure.message
            log.error("sink %s is left behind: %s. It is seeded anew when it answers again.", sink, failure.message)
        self.await_returns()
        return True

    def recovered(self) -> None:
        """Every sink has taken a batch."""
        self._retention.recovered()

    def await_returns(self) -> None:
        """Wait, in threads of their own, for every sink that is away."""
        for sink in self._roll.away:
            self.pipeline.report.away.setdefault(sink, "it was left behind by an earlier run")
            if sink not in self._waiting or not self._waiting[sink].is_alive():
                name = f"penstock-return-{sink}"
                self._waiting[sink] = threading.Thread(target=self._await, args=(sink,), name=name, daemon=True)
                self._waiting[sink].start()

    def _await(self, name: str) -> None:
        backoff = Backoff(most_s=_LOOK_S)
        while not self.pipeline.stopping.is_set():
            try:
                self._take_back(self._roll.open(name))
            except PenstockError as error:
                log.debug("sink %s is still away: %s", name, error)
                self.pipeline.stopping.wait(backoff.next_s())
                continue
            self.pipeline.report.away.pop(name, None)
            log.warning("sink %s is back, and is seeded", name)
            return

    def _take_back(self, sink: Sink) -> None:
        try:
            self.pipeline.join(lambda: self._roll.join(sink))
        except BaseException:
            sink.close()
            raise
