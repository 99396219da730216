"""What is done about WAL that a slot holds back: when to warn, and what a sink that stays down leads to.

Guarantees: plain values, no clock of its own; a warning comes once for each doubling, not with each look; a sink that
fails only now is not one that stays down. Deliberately not: asking the server, or a sink.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from penstock.errors import OperatorError

HOLD, STOP, DETACH = "hold", "stop", "detach"
# Without a limit of the deployment's own.
_MUCH_BYTES = 1 << 30
# WAL is held back by other things, too (a stop over a weekend, an open transaction): that the limit is passed says
# nothing about a sink. A node that restarts is back within a minute, and to seed it would take longer than that.
LASTING_S = 60.0


class SinkDownError(OperatorError):
    """A sink stays down, the limit is reached, and the setting is to stop."""


@dataclass(slots=True)
class Retention:
    """Watches what is held back, against a limit or without one."""

    limit: int | None = None
    _warned: int = 0
    _failing: dict[str, float] = field(default_factory=dict)

    def lasting(self, down: Collection[str], now_s: float) -> set[str]:
        """Which of these sinks, all of which fail now (by any steady clock), have been failing for a while."""
        for sink in down:
            self._failing.setdefault(sink, now_s)
        return {sink for sink in down if now_s - self._failing[sink] >= LASTING_S}

    def recovered(self, but: Collection[str] = ()) -> None:
        """No sink fails now, but for these."""
        self._failing = {sink: since for sink, since in self._failing.items() if sink in but}

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
