"""Which generations a deployment has made, and which of its sinks missed changes: a page of its own in the state.

Guarantees: durable when a method returns. A sink that was detached is told from itself before by a mark, so that what
it held then is never taken for current; a sink that returns is marked present before anything is written to it, so
that a crash in between leads to a seed, never to a gap. Deliberately not: what is in a generation; its sink knows that.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from penstock.engine.state import State


class Lineage:
    """A page of the state's file. Any thread may call any method."""

    def __init__(self, state: State) -> None:
        self._state = state

    def detach(self, sinks: Iterable[str]) -> None:
        """These miss changes from now on; each has another mark when it returns."""
        rows = [(sink, secrets.token_hex(6)) for sink in sinks]
        self._state.write(("INSERT OR REPLACE INTO detached (sink, mark, away) VALUES (?, ?, 1)", rows))

    def attach(self, sink: str) -> None:
        """It is written to from now on, and has to be seeded."""
        self._state.write(("UPDATE detached SET away = 0 WHERE sink = ?", [(sink,)]))

    def away(self) -> tuple[str, ...]:
        """The sinks that are detached."""
        return tuple(sink for (sink,) in self._state.read("SELECT sink FROM detached WHERE away ORDER BY sink"))

    def marks(self) -> dict[str, str]:
        """For each sink that was ever detached, what tells its generations from those before."""
        return dict(self._state.read("SELECT sink, mark FROM detached"))
