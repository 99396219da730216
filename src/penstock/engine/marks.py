"""Indexes that are to be reconciled: changes that no row event told of, and what the tables looked like before.

A page of its own in the state. Guarantees: durable when a method returns; a mark that was set while a reconcile ran is
not taken away by it. Deliberately not: knowing what a shape means (`document.drift` does).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.engine.state import State

_MARK = (
    "INSERT INTO marked (name, reason) VALUES (?, ?)"
    " ON CONFLICT (name) DO UPDATE SET reason = excluded.reason, number = number + 1"
)


@dataclass(frozen=True, slots=True)
class Mark:
    """Why an index is to be reconciled, how often that was found, and since when (UTC)."""

    reason: str
    number: int
    since: str


class Marks:
    """Any thread may call any method."""

    def __init__(self, state: State) -> None:
        self._state = state

    def mark(self, reasons: Mapping[str, str]) -> None:
        """These indexes are to be reconciled; the last reason stays."""
        self._state.write((_MARK, list(reasons.items())))

    def marked(self) -> dict[str, Mark]:
        """The indexes that are, with the reason."""
        rows = self._state.read("SELECT name, reason, number, since FROM marked ORDER BY name")
        return {name: Mark(*words) for name, *words in rows}

    def clear(self, index: str, mark: Mark) -> None:
        """The index was reconciled since it had this mark."""
        self._state.write(("DELETE FROM marked WHERE name = ? AND number = ?", [(index, mark.number)]))

    def sources(self) -> dict[str, str]:
        """For each index, the source of which its shape was noted down."""
        return dict(self._state.read("SELECT name, source FROM shape"))

    def shapes(self, sources: Mapping[str, str]) -> dict[str, str]:
        """For each index, what its tables looked like; none where that was noted down for another source of it."""
        rows = self._state.read("SELECT name, source, shape FROM shape")
        return {name: shape for name, source, shape in rows if sources.get(name) == source}

    def note(self, shapes: Mapping[str, str], sources: Mapping[str, str], reasons: Mapping[str, str]) -> None:
        """This is what they look like now; what changed meanwhile is marked with it, in one step.

        An index of another source than before is seeded anew: what it was marked for is over.
        """
        rows = [(index, sources[index], shape) for index, shape in shapes.items()]
        another = "SELECT 1 FROM shape WHERE shape.name = marked.name AND source <> ?2"
        self._state.write(
            (f"DELETE FROM marked WHERE name = ?1 AND EXISTS ({another})", [row[:2] for row in rows]),
            (_MARK, list(reasons.items())),
            ("INSERT OR REPLACE INTO shape VALUES (?, ?, ?)", rows),
        )
