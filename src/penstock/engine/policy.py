"""What is done about documents that a sink will not take, and about a stream that failed.

Guarantees: plain functions; what goes to quarantine is durable there before the batch counts as done.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.contracts import Rejection
from penstock.engine.state import State
from penstock.errors import OperatorError

STOP, QUARANTINE = "stop", "quarantine"


class RejectedError(OperatorError):
    """A sink rejects a document, and the policy is to stop there."""


def judge(rejected: Iterable[tuple[str, Rejection]], on_error: Mapping[str, str], state: State) -> int:
    """Put what was rejected into quarantine, or raise where its index is to stop; how many went there."""
    found = list(rejected)
    for sink, one in found:
        if on_error.get(one.index, STOP) == STOP:
            raise RejectedError(
                f"sink {sink} rejects document {one.id!r} of index {one.index}: {one.reason}",
                hint=f'Mend the row or the schema; or set on_error = "quarantine" for {one.index}, which puts such '
                "documents into quarantine and goes on. Nothing is acknowledged beyond the last batch.",
            )
    if found:
        state.quarantine(found)
    return len(found)


@dataclass(slots=True)
class Backoff:
    """How long to wait before the next try: longer each time, never twice the same, from the start after a success."""

    first_s: float = 1.0
    most_s: float = 60.0
    chance: random.Random = field(default_factory=random.Random)
    failures: int = 0

    def next_s(self) -> float:
        """Another failure: wait this long."""
        self.failures += 1
        longest = min(self.most_s, self.first_s * 2.0 ** min(self.failures - 1, 64))
        return longest * self.chance.uniform(0.5, 1.0)

    def succeeded(self) -> None:
        """What was tried works again."""
        self.failures = 0
