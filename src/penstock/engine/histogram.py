"""How long things take: counts in buckets that grow by a quarter, since the start and of the last minutes.

Guarantees: bounded memory, whatever is observed; one observation costs one search in a short list. Deliberately not:
safe from several threads (whoever keeps one has a lock), and exact quantiles: they are right to a tenth or so.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Sequence

_STEPS = (1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0)
BOUNDS_S: tuple[float, ...] = tuple(round(step * 10.0**power, 6) for power in range(-3, 3) for step in _STEPS)
"""Upper ends of the buckets, from 1 ms to 800 s; what takes longer is in one more bucket."""
COARSE_S: tuple[float, ...] = tuple(BOUNDS_S[at] for at in range(len(BOUNDS_S)) if _STEPS[at % 10] in (1.0, 2.0, 5.0))
"""Fewer of them, for whoever stores each as a series of its own."""


class Histogram:
    """Observations by bucket. `window_s` is how far back `recent` looks."""

    def __init__(self, window_s: int = 300) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0
        self._window_s = window_s
        self._seconds: deque[tuple[int, list[int]]] = deque()

    @property
    def count(self) -> int:
        """How many there were since the start."""
        return sum(self.counts)

    def observe(self, value_s: float, now: float, count: int = 1) -> None:
        """So many of this length, now."""
        bucket = bisect.bisect_left(BOUNDS_S, value_s)
        self.counts[bucket] += count
        self.total_s += value_s * count
        second = int(now)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, [0] * len(self.counts)))
        self._seconds[-1][1][bucket] += count
        while self._seconds[0][0] <= second - self._window_s:
            self._seconds.popleft()

    def recent(self, now: float, within_s: int) -> list[int]:
        """Counts by bucket of the last seconds."""
        found = [counts for second, counts in self._seconds if second > now - within_s]
        return [sum(column) for column in zip(*found, strict=True)] if found else [0] * len(self.counts)

    def cumulative(self, bounds: Sequence[float] = COARSE_S) -> list[int]:
        """For each of these bounds, how many were not longer."""
        sums: list[int] = []
        at = total = 0
        for bound in bounds:
            while at < len(BOUNDS_S) and BOUNDS_S[at] <= bound:
                total += self.counts[at]
                at += 1
            sums.append(total)
        return sums


def quantile(counts: Sequence[int], part: float) -> float | None:
    """The length that this part of the observations does not exceed, in seconds; None where there are none."""
    wanted = sum(counts) * part
    below = 0
    for at, count in enumerate(counts):
        if count and below + count >= wanted:
            if at == len(BOUNDS_S):
                return BOUNDS_S[-1]
            low = BOUNDS_S[at - 1] if at else 0.0
            return low + (BOUNDS_S[at] - low) * (wanted - below) / count
        below += count
    return None
