"""What was seen so far: changes by table and operation, how fast they come, how long each took from its commit.

Guarantees: plain counting over batches; the caller gives the time, so a test needs no clock. Memory is bounded
however long the demo runs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any

from penstock.model import Op, QualifiedTable
from penstock.postgres.capture import ChangeBatch

_WINDOW_S = 2.0
_SAMPLES = 2000
_RECENT = 10
_OPS = {"insert": Op.INSERT, "update_postimage": Op.UPDATE, "delete": Op.DELETE, "truncate": Op.TRUNCATE}


@dataclass(frozen=True, slots=True)
class Seen:
    """One of the last changes."""

    committed_at: datetime
    op: Op
    table: QualifiedTable
    key: dict[str, Any]


@dataclass(slots=True)
class Tally:
    """Counts, rates and latencies."""

    keys: dict[QualifiedTable, Sequence[str]]
    counts: Counter[tuple[QualifiedTable, Op]] = field(default_factory=Counter)
    lag_bytes: int | None = None
    recent: deque[Seen] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    _arrivals: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, batch: ChangeBatch, now: datetime) -> None:
        """Count a batch that arrived at `now`."""
        for part in batch.tables:
            kinds = Counter(part.rows.column("_change_type").to_pylist())
            for kind, op in _OPS.items():
                if kinds[kind]:
                    self.counts[part.table, op] += kinds[kind]
            times = part.rows.column("_commit_timestamp")
            self._latencies_ms.append((now - times[-1].as_py()).total_seconds() * 1000)
            for change in part.rows.slice(max(len(part.rows) - _RECENT, 0)).to_pylist():
                self._remember(part.table, change)
        self._arrivals.append((now.timestamp(), batch.rows))
        while self._arrivals[0][0] < now.timestamp() - _WINDOW_S:
            self._arrivals.popleft()

    def _remember(self, table: QualifiedTable, change: dict[str, Any]) -> None:
        op = _OPS.get(change["_change_type"])
        if op:
            key = {name: change[name] for name in self.keys[table] if name not in change["_missing"]}
            self.recent.append(Seen(change["_commit_timestamp"], op, table, key))

    def per_second(self, now: datetime) -> float:
        """Changes a second over the last moments."""
        return sum(rows for at, rows in self._arrivals if at >= now.timestamp() - _WINDOW_S) / _WINDOW_S

    def latency_ms_p50(self) -> float | None:
        """From commit to here, the median of the last batches; both clocks are this machine's."""
        return median(self._latencies_ms) if self._latencies_ms else None

    def by_op(self) -> dict[Op, int]:
        """Totals by operation, none left out."""
        return {op: sum(count for (_, one), count in self.counts.items() if one is op) for op in Op}
