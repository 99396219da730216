"""JSON text put together in SQL: literals and expressions in turn, joined by as few calls as possible."""

from __future__ import annotations

from penstock.model import literal

# Postgres takes at most 100 arguments in a call.
_ARGUMENTS = 100


class Text:
    """A text in the making; neighbouring literals become one."""

    def __init__(self, start: str = "") -> None:
        self._parts: list[tuple[bool, str]] = [(True, start)]

    def add(self, text: str) -> None:
        """Add a literal."""
        is_literal, last = self._parts[-1]
        if is_literal:
            self._parts[-1] = (True, last + text)
        else:
            self._parts.append((True, text))

    def expression(self, sql: str) -> None:
        """Add an expression, which must not be null."""
        self._parts.append((False, sql))

    def extend(self, other: Text) -> None:
        """Add all of another text."""
        for is_literal, part in other._parts:
            if is_literal:
                self.add(part)
            else:
                self.expression(part)

    def sql(self) -> str:
        """The expression that gives the text."""
        parts = [literal(part) if is_literal else part for is_literal, part in self._parts]
        while len(parts) > _ARGUMENTS:
            groups = [parts[at : at + _ARGUMENTS] for at in range(0, len(parts), _ARGUMENTS)]
            parts = [f"concat({', '.join(group)})" for group in groups]
        return f"concat({', '.join(parts)})"
