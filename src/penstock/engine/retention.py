"""What is done about WAL that a slot holds back: when to warn, and what a sink that stays down leads to.

Guarantees: plain values, no clock; a warning comes once for each doubling, not with each look. Deliberately not: asking
the server, or a sink.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock.errors import OperatorError

HOLD, STOP, DETACH = "hold", "stop", "detach"
# Without a limit of the deployment's own.
_MUCH_BYTES = 1 << 30


class SinkDownError(OperatorError):
    """A sink stays down, the limit is reached, and the setting is to stop."""


@dataclass(slots=True)
class Retention:
    """Watches what is held back, against a limit or without one."""

    limit: int | None = None
    _warned: int = 0

    def warning(self, retained: int) -> str:
        """What to say now; nothing where it was said, or is not worth it."""
        first = self.limit // 2 if self.limit else _MUCH_BYTES
        if retained < first:
            self._warned = 0
            return ""
        if retained < 2 * self._warned:
            return ""
        self._warned = retained
        allowed = f", and max_retained_wal is {_said(self.limit)}" if self.limit else ""
        return f"the slot holds {_said(retained)} of WAL{allowed}"

    def is_exceeded(self, retained: int) -> bool:
        """Whether the limit is passed."""
        return self.limit is not None and retained > self.limit

    def leaving(self, down: Collection[str], on_down: Mapping[str, str], retained: int) -> list[str]:
        """Past the limit: the sinks to go on without. Raises where one of them is to stop the run."""
        for sink in sorted(down):
            if on_down.get(sink, HOLD) == STOP:
                raise SinkDownError(
                    f"sink {sink} is down, and the slot holds {_said(retained)} of WAL: more than max_retained_wal"
                    f" ({_said(self.limit or 0)})",
                    hint="Bring the sink back and start again: nothing is lost. Or raise max_retained_wal, or set"
                    f' on_down = "detach" for {sink}: it is then left behind, and seeded anew when it is back.',
                )
        return [sink for sink in sorted(down) if on_down.get(sink, HOLD) == DETACH]


def _said(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 1 << 30 else f"{size / 2**20:.1f} MiB"
