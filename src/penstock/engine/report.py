"""What a running deployment tells about itself, as plain values: phases, counts, positions, how long things take.

Guarantees: cheap to update, safe from any thread. `told` is what `penstock status` shows, and holds no value of a row;
keys of what was changed last are told by `changes_made` alone, to whoever asks for values.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from penstock.engine.batch import Tally
from penstock.engine.histogram import BOUNDS_S, Histogram, quantile
from penstock.engine.recent import Changed, Deed, Recent
from penstock.engine.state import Seed
from penstock.model import Lsn

# What the quantiles of `told` are of; its histogram, with quantiles of its own, goes back as far as one keeps.
_LATELY_S = 60
_WINDOW_S = 300


class Phase(StrEnum):
    """How far an index is."""

    WAITING = "waiting"
    SEEDING = "seeding"
    LIVE = "live"
    STOPPED = "stopped"


@dataclass(slots=True)
class IndexReport:
    """One index: its seed in chunks and documents, and what live has written since the start."""

    phase: Phase = Phase.WAITING
    chunks: int = 0
    chunks_done: int = 0
    seeded: int = 0
    seed_began: float = 0.0
    done_before: int = 0
    written: int = 0
    deleted: int = 0
    reason: str = ""
    """Why it is stopped."""
    rebuild: str = ""
    """How far a new generation is, beside the one that readers see; nothing where there is none."""
    rebuild_error: str = ""

    @property
    def eta_s(self) -> float | None:
        """Seconds until the seed is complete, by its pace in this run."""
        fresh = self.chunks_done - self.done_before
        if self.phase is not Phase.SEEDING or not fresh:
            return None
        return (time.monotonic() - self.seed_began) / fresh * (self.chunks - self.chunks_done)


@dataclass(frozen=True, slots=True)
class Course:
    """How a batch went: how long it took, when its transactions were committed, what they changed.

    `commits` are unix times by the server's clock, each with how many transactions it stands for.
    """

    seconds: float = 0.0
    commits: Sequence[tuple[float, int]] = ()
    changed: tuple[Changed, ...] = ()


@dataclass(slots=True)
class Report:
    """The whole deployment. `latency` is from a commit until its documents are durable in every sink."""

    indexes: dict[str, IndexReport] = field(default_factory=dict)
    batches: int = 0
    changes: int = 0
    direct: int = 0
    end: Lsn = Lsn.ZERO
    restarts: int = 0
    filled: int = 0
    """Documents that seeds have written in this run: it only grows, while a seed that begins counts from its own."""
    outdone: int = 0
    """Writes that met something newer in a sink, and lost: what came twice, or late."""
    marked: Mapping[str, str] = field(default_factory=dict)
    """The indexes that have to be reconciled, and why."""
    trouble: str = ""
    away: dict[str, str] = field(default_factory=dict)
    """The sinks that were left behind, and why."""
    started: float = field(default_factory=time.time)
    latency: Histogram = field(default_factory=lambda: Histogram(_WINDOW_S), repr=False)
    duration: Histogram = field(default_factory=Histogram, repr=False)
    """Of batches that held changes."""
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds that were spent, by what on."""
    recent: Recent = field(default_factory=Recent, repr=False)
    _begun: float | None = None
    _ended: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def seeding(self, seed: Seed) -> None:
        """A seed begins, or goes on in this run."""
        with self._lock:
            one = self.indexes[seed.index]
            one.phase, one.chunks, one.chunks_done, one.seeded = Phase.SEEDING, seed.total, seed.done, seed.documents
            one.seed_began, one.done_before = time.monotonic(), seed.done

    def seeded(self, index: str, chunks: int, documents: int, outdone: int = 0) -> None:
        """Some chunks of a seed are durable."""
        with self._lock:
            self.outdone += outdone
            self.indexes[index].chunks_done += chunks
            self.indexes[index].seeded += documents
            self.filled += documents

    def live(self, indexes: Iterable[str]) -> None:
        """These are complete."""
        with self._lock:
            for index in indexes:
                one = self.indexes.get(index)  # an outgoing generation is not told of
                if one and one.phase is not Phase.STOPPED:
                    one.phase = Phase.LIVE

    def rebuilding(self, index: str, how_far: str, error: str = "") -> None:
        """A new generation is asked for, under way, or (nothing) shown, or could not be begun."""
        with self._lock:
            self.indexes[index].rebuild, self.indexes[index].rebuild_error = how_far, error

    def building(self, index: str) -> bool:
        """Whether a new generation is asked for or under way."""
        with self._lock:
            return bool(self.indexes[index].rebuild)

    def stopped(self, index: str, reason: str) -> None:
        """Live keeps the index no longer."""
        with self._lock:
            one = self.indexes.setdefault(index, IndexReport())
            one.phase, one.reason = Phase.STOPPED, reason

    @contextmanager
    def applying(self) -> Iterator[None]:
        """A batch is under way."""
        self._begun = time.monotonic()
        try:
            yield
        finally:
            self._begun, self._ended = None, time.monotonic()

    @property
    def idle_s(self) -> float:
        """For how long there was nothing to do; 0 while a batch is under way, or before the first one."""
        return 0.0 if self._begun is not None or not self.batches else time.monotonic() - self._ended

    def batch(self, tally: Tally, end: Lsn, direct: bool, course: Course | None = None) -> None:
        """A batch is durable everywhere."""
        with self._lock:
            if course is not None and tally.changes:
                self._took(course, tally, end, direct)
            self.batches += 1
            self.direct += direct
            self.changes += tally.changes
            self.outdone += tally.older
            self.end = max(self.end, end)
            for index, one in self.indexes.items():
                one.written += tally.written.get(index, 0)
                one.deleted += tally.deleted.get(index, 0)
            self.trouble = ""

    def _took(self, course: Course, tally: Tally, end: Lsn, direct: bool) -> None:
        now = time.time()
        latencies = [(max(0.0, now - committed), count) for committed, count in course.commits]
        for latency_s, count in latencies:
            self.latency.observe(latency_s, now, count)
        self.duration.observe(course.seconds, now)
        for stage, seconds in tally.spent.items():
            self.stages[stage] = self.stages.get(stage, 0.0) + seconds
        touched = {
            index: tally.written.get(index, 0) + tally.deleted.get(index, 0)
            for index in sorted({*tally.written, *tally.deleted} & self.indexes.keys())  # no outgoing generation
        }
        slowest = max((latency_s for latency_s, _ in latencies), default=None)
        self.recent.add(Deed(now, end, course.changed, touched, slowest, direct, dict(tally.touched)))

    def failed(self, message: str) -> None:
        """The stream failed and will be tried again."""
        with self._lock:
            self.restarts += 1
            self.trouble = message

    def changes_made(self, *, values: bool = False) -> list[dict[str, Any]]:
        """The last batches and the documents they touched; keys and ids only with `values`."""
        with self._lock:
            return self.recent.told(values=values)

    def _latency(self) -> dict[str, Any]:
        now = time.time()
        counts, lately = self.latency.recent(now, _WINDOW_S), self.latency.recent(now, _LATELY_S)
        parts = {f"p{percent}_s": quantile(lately, percent / 100) for percent in (50, 95, 99)}
        parts |= {f"counts_p{percent}_s": quantile(counts, percent / 100) for percent in (50, 99)}
        return {
            **{name: None if value is None else round(value, 4) for name, value in parts.items()},
            "transactions": self.latency.count,
            "bounds_s": list(BOUNDS_S),
            "counts": counts,
        }

    def told(self) -> dict[str, Any]:
        """Everything as JSON has it."""
        with self._lock:
            indexes = {
                name: {
                    "phase": one.phase.value,
                    "chunks": one.chunks,
                    "chunks_done": one.chunks_done,
                    "seeded": one.seeded,
                    "eta_s": None if one.eta_s is None else round(one.eta_s, 1),
                    "written": one.written,
                    "deleted": one.deleted,
                    "reason": one.reason,
                    "rebuild": one.rebuild,
                    "rebuild_error": one.rebuild_error,
                }
                for name, one in self.indexes.items()
            }
            return {
                "indexes": indexes,
                "batches": self.batches,
                "changes": self.changes,
                "direct_batches": self.direct,
                "position": str(self.end),
                "restarts": self.restarts,
                "outdone": self.outdone,
                "marked": dict(self.marked),
                "trouble": self.trouble,
                "away": dict(self.away),
                "running_s": round(time.time() - self.started, 1),
                "latency": self._latency(),
                "stages_s": {stage: round(seconds, 4) for stage, seconds in self.stages.items()},
            }
