"""What the demo shows while it runs, as plain values: how far each index is, how fast changes come, how far behind.

Guarantees: taking a look costs one question to the pipeline and one to the server; memory is bounded however long the
demo runs.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from penstock.demo.deployment import Deployment
from penstock.demo.probe import Probe
from penstock.demo.workload import Counts, Workload
from penstock.model import Lsn

_WINDOW_S = 3.0
# How often the link that is shown is made to last, or replaced where it was used.
_LINK_S = 5.0


@dataclass(frozen=True, slots=True)
class Figures:
    """One look. `indexes` are those of `penstock status`."""

    indexes: dict[str, dict[str, Any]] = field(default_factory=dict)
    position: Lsn = Lsn.ZERO
    changes: int = 0
    per_second: float = 0.0
    lag_bytes: int | None = None
    latency_ms_p50: float | None = None
    trouble: str = ""
    deeds: Counts = field(default_factory=Counts)
    page: str = field(default="", repr=False)
    """A link into the page, for one browser."""

    @property
    def is_live(self) -> bool:
        """Whether every index is complete and follows."""
        return bool(self.indexes) and all(one["phase"] == "live" for one in self.indexes.values())


class Watch:
    """Takes looks at a running demo."""

    def __init__(self, deployment: Deployment, workload: Workload, probe: Probe) -> None:
        self._deployment = deployment
        self._workload = workload
        self._probe = probe
        self._seen: deque[tuple[float, int]] = deque()
        self._page, self._page_due = "", 0.0

    def look(self, connection: Any) -> Figures:
        """How it stands now."""
        ((written,),) = connection.execute("SELECT pg_catalog.pg_current_wal_flush_lsn()::text").fetchall()
        told = self._deployment.status()
        if told is None:
            return Figures(deeds=self._workload.counts)
        position = Lsn.parse(told["position"])
        if not self._page or time.monotonic() >= self._page_due:
            self._page_due = time.monotonic() + _LINK_S
            self._page = self._deployment.page_link(self._page) or self._page
        return Figures(
            indexes=told["indexes"],
            position=position,
            changes=told["changes"],
            per_second=self._per_second(told["changes"]),
            lag_bytes=max(0, Lsn.parse(written) - position) if position else None,
            latency_ms_p50=self._probe.latency_ms_p50(),
            trouble=told["trouble"],
            deeds=self._workload.counts,
            page=self._page,
        )

    def _per_second(self, changes: int) -> float:
        now = time.monotonic()
        self._seen.append((now, changes))
        while self._seen[0][0] < now - _WINDOW_S:
            self._seen.popleft()
        began, before = self._seen[0]
        return (changes - before) / (now - began) if now > began else 0.0
