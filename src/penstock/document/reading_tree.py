"""A file as a tree whose every part knows its place, and the problems found in it.

Both formats are read into this tree, so that what is said about a key, a word or a number is said once, in
`reading_shapes`. Guarantees: problems are collected, not raised one by one, and come out in the order of the file; a
problem shows no value that may be secret. Deliberately not: knowing YAML or TOML.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, time
from typing import Any, NamedTuple

from penstock.document.schema import Place
from penstock.errors import ConfigError


class Entry(NamedTuple):
    """One key of a mapping: where the key stands, and its value."""

    place: Place
    node: Node


@dataclass(frozen=True, slots=True)
class Node:
    """A value of a file: a scalar, a tuple of nodes, or a mapping of entries."""

    place: Place
    value: str | int | float | bool | date | time | tuple[Node, ...] | Mapping[str, Entry] | None

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The keys of a mapping; none where it is none."""
        return self.value if isinstance(self.value, Mapping) else {}

    @property
    def kind(self) -> str:
        """What it is, in words."""
        value = self.value
        if value is None:
            return "empty"
        if isinstance(value, bool):
            return f"the word {str(value).lower()}"
        if isinstance(value, int | float):
            return f"the number {value}"
        if isinstance(value, str):
            return "a text"
        if isinstance(value, date | time):
            return "a date or time"
        return "a list" if isinstance(value, tuple) else "a mapping"

    def plain(self) -> Any:
        """The value as Python has it, without places."""
        if isinstance(self.value, tuple):
            return [one.plain() for one in self.value]
        if isinstance(self.value, Mapping):
            return {key: entry.node.plain() for key, entry in self.value.items()}
        return self.value


class Problem(NamedTuple):
    """One thing wrong in a file: what was found (`message`), and what is accepted or to be done (`hint`)."""

    place: Place
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.message}; {self.hint}" if self.hint else f"{self.place}: {self.message}"


class FileErrors(ConfigError):
    """Everything that is wrong in the files of a deployment, in the order of files and lines."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


_LONGEST = 300
"""Characters of a message, about three lines of a terminal."""


class Problems:
    """Where problems gather while files are read."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def add(self, place: Place, message: str, hint: str = "") -> None:
        """Note a problem. What it quotes from the file cannot steer a terminal, and does not fill it."""
        self.found.append(Problem(place, _shown(message), hint))

    def raise_any(self) -> None:
        """Raise what was noted, sorted within each file, files in the order in which they were met."""
        if not self.found:
            return
        order = {file: at for at, file in enumerate(dict.fromkeys(one.place.file for one in self.found))}
        self.found.sort(key=lambda one: (order[one.place.file], one.place.line, one.place.column))
        raise FileErrors(dict.fromkeys(self.found))


def _shown(text: str) -> str:
    """On one line, what does not print written as an escape, the middle left out where it is long."""
    if not text.isprintable():
        text = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}…{text[-_LONGEST // 2 :]}"


def nearest(word: str, words: Iterable[str]) -> str:
    """The known word that was probably meant; empty where none is near."""
    return next(iter(difflib.get_close_matches(word.lower(), list(words), 1, 0.6)), "")


def choices(word: str, words: Iterable[str], given: Iterable[str] = ()) -> str:
    """What is accepted instead of a word: the nearest that is not given yet, then all."""
    known = list(words)
    close = nearest(word, [one for one in known if one not in set(given)])
    suggestion = f"did you mean `{close}`? " if close else ""
    return f"{suggestion}accepted: {', '.join(f'`{one}`' for one in known) or 'none'}"
