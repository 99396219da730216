"""What a running deployment tells about itself, as plain values: phases, counts, positions.

Guarantees: cheap to update, safe from any thread, never a row value. `told` is what `penstock status` shows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from penstock.engine.batch import Tally
from penstock.engine.state import Seed
from penstock.model import Lsn


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

    @property
    def eta_s(self) -> float | None:
        """Seconds until the seed is complete, by its pace in this run."""
        fresh = self.chunks_done - self.done_before
        if self.phase is not Phase.SEEDING or not fresh:
            return None
        return (time.monotonic() - self.seed_began) / fresh * (self.chunks - self.chunks_done)


@dataclass(slots=True)
class Report:
    """The whole deployment."""

    indexes: dict[str, IndexReport] = field(default_factory=dict)
    batches: int = 0
    changes: int = 0
    direct: int = 0
    end: Lsn = Lsn.ZERO
    restarts: int = 0
    quarantined: int = 0
    trouble: str = ""
    started: float = field(default_factory=time.time)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def seeding(self, seed: Seed) -> None:
        """A seed begins, or goes on in this run."""
        with self._lock:
            one = self.indexes[seed.index]
            one.phase, one.chunks, one.chunks_done, one.seeded = Phase.SEEDING, seed.total, seed.done, seed.documents
            one.seed_began, one.done_before = time.monotonic(), seed.done

    def seeded(self, index: str, chunks: int, documents: int) -> None:
        """Some chunks of a seed are durable."""
        with self._lock:
            self.indexes[index].chunks_done += chunks
            self.indexes[index].seeded += documents

    def live(self, indexes: Iterable[str]) -> None:
        """These are complete."""
        with self._lock:
            for index in indexes:
                if self.indexes[index].phase is not Phase.STOPPED:
                    self.indexes[index].phase = Phase.LIVE

    def stopped(self, index: str, reason: str) -> None:
        """Live keeps the index no longer."""
        with self._lock:
            one = self.indexes.setdefault(index, IndexReport())
            one.phase, one.reason = Phase.STOPPED, reason

    def batch(self, tally: Tally, end: Lsn, direct: bool) -> None:
        """A batch is durable everywhere."""
        with self._lock:
            self.batches += 1
            self.direct += direct
            self.changes += tally.changes
            self.end = max(self.end, end)
            for index, count in tally.written.items():
                self.indexes[index].written += count
            for index, count in tally.deleted.items():
                self.indexes[index].deleted += count
            self.trouble = ""

    def failed(self, message: str) -> None:
        """The stream failed and will be tried again."""
        with self._lock:
            self.restarts += 1
            self.trouble = message

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
                "quarantined": self.quarantined,
                "trouble": self.trouble,
                "running_s": round(time.time() - self.started, 1),
            }
