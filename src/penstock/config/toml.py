"""TOML as a tree with places.

Python's own reader says what a file means, and this module where each key and value stands: it walks the same text,
which is known to be valid by then, and needs to understand quotes, brackets and headers only. Guarantees: every key
and every item of a list that the reader found has its place. Deliberately not: a second opinion on values.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.document.reading_tree import Entry, Node, Problems
from penstock.document.schema import Place

Path = tuple[str | int, ...]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\[\s\S])*?"""(?:"{0,2})'
    r"|'''[\s\S]*?'''(?:'{0,2})"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'"
)
_OTHER = re.compile(r"[^,\]}#\n]*")
_WHERE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


class Span(NamedTuple):
    """Where something stands in a text: the key that names it, its value, and the value's end."""

    key: int
    start: int
    end: int


def parse_toml(text: str, file: str, problems: Problems) -> Node | None:
    """The tree of a file, or None where it is no TOML; what is wrong is noted."""
    text = text.replace("\r\n", "\n")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.add(_error_place(str(error), text, file), f"not valid TOML: {_without_place(str(error))}", _HINT)
        return None
    except RecursionError:
        problems.add(Place(file, 1, 1), "the file is nested too deeply to be read", "write it flatter")
        return None
    lines = _Lines(text, file)
    return _node(data, (), find_spans(text), lines, Place(file, 1, 1))


_HINT = "look at quotes, brackets, and keys that are given twice"


def _without_place(message: str) -> str:
    found = _WHERE.sub("", message)
    return found[:1].lower() + found[1:]


def _error_place(message: str, text: str, file: str) -> Place:
    found = _WHERE.search(message)
    if found and found[1]:
        return Place(file, int(found[1]), int(found[2]))
    return Place(file, text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1)


class _Lines:
    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file

    def place(self, offset: int) -> Place:
        line_start = self._text.rfind("\n", 0, offset) + 1
        return Place(self._file, self._text.count("\n", 0, offset) + 1, offset - line_start + 1)


def _node(data: Any, path: Path, spans: dict[Path, Span], lines: _Lines, place: Place) -> Node:
    if isinstance(data, dict):
        entries = {}
        for key, value in data.items():
            span = spans[*path, key]
            node = _node(value, (*path, key), spans, lines, lines.place(span.start))
            entries[key] = Entry(lines.place(span.key), node)
        return Node(place, entries)
    if isinstance(data, list):
        starts = (lines.place(spans[*path, at].start) for at in range(len(data)))
        return Node(place, tuple(_node(data[at], (*path, at), spans, lines, start) for at, start in enumerate(starts)))
    return Node(place, data)


def find_spans(text: str) -> dict[Path, Span]:
    """Where every key and every item of a valid TOML text stands."""
    scan = _Scan(text)
    scan.run()
    return scan.spans


class _Scan:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lengths: dict[Path, int] = {}  # of the lists that [[headers]] make
        self.spans: dict[Path, Span] = {}

    def run(self) -> None:
        table: Path = ()
        while self._skip_blank():
            if self._text.startswith("[[", self._at):
                table = self._list_header()
            elif self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Path:
        start = self._at
        self._at += 1
        path: Path = ()
        for part, offset in self._key():
            span = Span(offset, start, start)
            path = self._enter(path, part, span)
        self.spans[path] = span  # where another header only passed through it, this one is its place
        self._at = self._text.index("]", self._at) + 1
        return path

    def _list_header(self) -> Path:
        start = self._at
        self._at += 2
        *above, (last, offset) = self._key()
        path: Path = ()
        for part, at in above:
            path = self._enter(path, part, Span(at, start, start))
        path = (*path, last)
        self.spans.setdefault(path, Span(offset, start, start))
        number = self._lengths[path] = self._lengths.get(path, 0) + 1
        path = (*path, number - 1)
        self.spans[path] = Span(offset, start, start)
        self._at = self._text.index("]]", self._at) + 2
        return path

    def _enter(self, path: Path, part: str, span: Span) -> Path:
        """One step down: into the newest item where the key is a list that headers made."""
        path = (*path, part)
        self.spans.setdefault(path, span)
        return (*path, self._lengths[path] - 1) if path in self._lengths else path

    def _pair(self, table: Path) -> None:
        *above, (last, offset) = self._key()
        path = table
        for part, at in above:
            path = (*path, part)
            self.spans.setdefault(path, Span(at, at, at))
        self._at = self._text.index("=", self._at) + 1
        self._skip_blank()
        path = (*path, last)
        start = self._at
        self._value(path)
        self.spans[path] = Span(offset, start, self._at)

    def _key(self) -> list[tuple[str, int]]:
        return list(self._key_parts())

    def _key_parts(self) -> Iterator[tuple[str, int]]:
        while True:
            self._skip_blank()
            quoted = _STRING.match(self._text, self._at)
            bare = quoted or _BARE_KEY.match(self._text, self._at)
            assert bare is not None  # the text is valid
            yield tomllib.loads(f"key = {bare[0]}")["key"] if quoted else bare[0], self._at
            self._at = bare.end()
            self._skip_blank()
            if self._text[self._at] != ".":
                return
            self._at += 1

    def _value(self, path: Path) -> None:
        opening = self._text[self._at]
        if opening == "[":
            self._items(path)
        elif opening == "{":
            self._inline_table(path)
        else:
            found = _STRING.match(self._text, self._at) or _OTHER.match(self._text, self._at)
            assert found is not None  # the latter matches anything
            self._at += len(found[0].rstrip())

    def _items(self, path: Path) -> None:
        self._at += 1
        number = 0
        while self._skip_to("]"):
            start = self._at
            self._value((*path, number))
            self.spans[*path, number] = Span(start, start, self._at)
            number += 1

    def _inline_table(self, path: Path) -> None:
        self._at += 1
        while self._skip_to("}"):
            self._pair(path)

    def _skip_to(self, closing: str) -> bool:
        """Skip to the next item; False where the bracket closes."""
        self._skip_blank()
        if self._text[self._at] == ",":
            self._at += 1
            self._skip_blank()
        if self._text[self._at] != closing:
            return True
        self._at += 1
        return False

    def _skip_blank(self) -> bool:
        found = _BLANK.match(self._text, self._at)
        assert found is not None  # it matches nothing, too
        self._at = found.end()
        return self._at < len(self._text)
