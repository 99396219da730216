"""What a value in a file may look like: one description that reads it, says what is accepted, and is its JSON Schema.

A shape answers three questions: what a node means (`read`; `BAD` where it means nothing, and then the problem is
noted), what is accepted in words (`accepted`), and the same for editors (`json_schema`). `Table` is a mapping with
known keys: unknown ones, missing ones and those given twice are problems. Deliberately not: which keys there are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from penstock.document.reading_tree import Node, Problems, choices, nearest
from penstock.document.schema import Place

BAD: Final[Any] = object()
"""Read, and found wrong: the problem is noted."""

JsonSchema = dict[str, Any]


class Shape(Protocol):
    """How one value of a file is read and described."""

    @property
    def accepted(self) -> str:
        """What is accepted, in words."""

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        """The value of `name`, or `BAD`."""

    def json_schema(self) -> JsonSchema:
        """What is accepted, for editors."""


def refuse(node: Node, name: str, problems: Problems, accepted: str) -> Any:
    """Note that a value is not what is accepted there."""
    shown = name if " " in name else f"`{name}`"  # the file as a whole has no key
    problems.add(node.place, f"{shown} is {node.kind}", f"accepted: {accepted}")
    return BAD


@dataclass(frozen=True, slots=True)
class Text:
    """A text that is not empty."""

    accepted: str = "a text"

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        if isinstance(node.value, str) and node.value.strip():
            return node.value
        if node.value == "":
            return refuse(Node(node.place, None), name, problems, self.accepted)
        return refuse(node, name, problems, self.accepted)

    def json_schema(self) -> JsonSchema:
        return {"type": "string", "minLength": 1}


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    accepted: str = "true or false"

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        return node.value if isinstance(node.value, bool) else refuse(node, name, problems, self.accepted)

    def json_schema(self) -> JsonSchema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number within bounds."""

    least: int = 0
    most: int | None = None

    @property
    def accepted(self) -> str:
        upto = f"from {self.least} to {self.most}" if self.most is not None else f"of at least {self.least}"
        return f"a whole number {upto}"

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        value = node.value
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= self.least
        if fits and (self.most is None or value <= self.most):  # type: ignore[operator]  # an int by now
            return value
        return refuse(node, name, problems, self.accepted)

    def json_schema(self) -> JsonSchema:
        bounds = {"minimum": self.least} | ({"maximum": self.most} if self.most is not None else {})
        return {"type": "integer", **bounds}


@dataclass(frozen=True, slots=True)
class Seconds:
    """A length of time, more than none."""

    accepted: str = "a number of seconds above 0"

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        value = node.value
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
            return value
        return refuse(node, name, problems, self.accepted)

    def json_schema(self) -> JsonSchema:
        return {"type": "number", "exclusiveMinimum": 0}


@dataclass(frozen=True, slots=True)
class Word:
    """One of several words. `aliases` are further spellings."""

    words: type[StrEnum]
    aliases: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    @property
    def known(self) -> list[str]:
        """Every spelling that is accepted."""
        return [*(str(one) for one in self.words if one not in self.without), *self.aliases]

    @property
    def accepted(self) -> str:
        return ", ".join(f"`{one}`" for one in self.known)

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        if not isinstance(node.value, str):
            return refuse(node, name, problems, self.accepted)
        if node.value in self.known:
            return self.words(self.aliases.get(node.value, node.value))
        shown = f"`{node.value}`" if re.fullmatch(r"[\w-]{1,40}", node.value) else "another text"
        problems.add(node.place, f"`{name}` is {shown}", choices(node.value, self.known))
        return BAD

    def json_schema(self) -> JsonSchema:
        return {"enum": self.known}


@dataclass(frozen=True, slots=True)
class Value:
    """A single value: text, number, true or false; null where `nullable`."""

    nullable: bool = False

    @property
    def accepted(self) -> str:
        return "a text, a number, true or false" + (", null" if self.nullable else "")

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        value = node.value
        if isinstance(value, str | int | float) and (not isinstance(value, float) or math.isfinite(value)):
            return value
        if value is None and self.nullable:
            return None
        return refuse(node, name, problems, self.accepted)

    def json_schema(self) -> JsonSchema:
        return {"type": ["string", "number", "boolean", *(["null"] if self.nullable else [])]}


@dataclass(frozen=True, slots=True)
class Anything:
    """A mapping that is passed on as it is."""

    accepted: str = "a mapping"

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        return node.plain() if isinstance(node.value, Mapping) else refuse(node, name, problems, self.accepted)

    def json_schema(self) -> JsonSchema:
        return {"type": "object"}


@dataclass(frozen=True, slots=True)
class Listed:
    """A list, each item of one shape; where `single`, one item may stand alone."""

    item: Shape
    least: int = 0
    most: int | None = None
    single: bool = False
    distinct: bool = False
    words: str = ""

    @property
    def accepted(self) -> str:
        if self.words:
            return self.words
        if self.single:
            return f"{self.item.accepted}, or a list of them"
        number = f" of {self.most}" if self.most == self.least else f" of {self.least} or more" if self.least else ""
        return f"a list{number}; each item: {self.item.accepted}"

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        if self.single and not isinstance(node.value, tuple):
            one = self.item.read(node, name, problems)
            return BAD if one is BAD else (one,)
        if not isinstance(node.value, tuple):
            return refuse(node, name, problems, self.accepted)
        if len(node.value) < self.least or (self.most is not None and len(node.value) > self.most):
            counted = {0: "an empty list", 1: "a list of one"}.get(len(node.value), f"a list of {len(node.value)}")
            problems.add(node.place, f"`{name}` is {counted}", f"accepted: {self.accepted}")
            return BAD
        items = [self.item.read(one, name, problems) for one in node.value]
        if self.distinct:
            self._report_repeated(node.value, items, name, problems)
        return BAD if any(one is BAD for one in items) else tuple(items)

    def _report_repeated(self, nodes: tuple[Node, ...], items: list[Any], name: str, problems: Problems) -> None:
        for at, (node, item) in enumerate(zip(nodes, items, strict=True)):
            if item is not BAD and item in items[:at]:
                problems.add(node.place, f"`{name}` holds `{item}` twice", "keep one of them")

    def json_schema(self) -> JsonSchema:
        most = {"maxItems": self.most} if self.most is not None else {}
        least = {"minItems": max(self.least, int(self.single))} if self.least or self.single else {}
        whole = {"type": "array", "items": self.item.json_schema(), **least, **most}
        return {"oneOf": [self.item.json_schema(), whole]} if self.single else whole


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table. `shown` is what the reference says of a default that is no plain value."""

    name: str
    shape: Shape
    meaning: str
    default: Any = None
    required: bool = False
    shown: str = ""
    added: bool = False
    """Penstock's own, beyond flusso's format."""

    def json_schema(self) -> JsonSchema:
        plain = isinstance(self.default, str | int | float | bool) and not self.shown
        default = {"default": self.default} if plain else {}
        return {**self.shape.json_schema(), "description": self.meaning, **default}


class Found:
    """What a table held: by key, its value; the default where the key is not there or its value was wrong."""

    def __init__(self, table: Table, place: Place) -> None:
        self.place = place
        self.places: dict[str, Place] = {}
        self.values: dict[str, Any] = {key.name: key.default for key in table.keys}
        self.bad: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        """Whether the file gives the key."""
        return name in self.places

    def at(self, name: str) -> Place:
        """Where a key's value stands, or the table where it is not given."""
        return self.places.get(name, self.place)

    @property
    def complete(self) -> bool:
        """Every required key is there, and nothing that is there is wrong."""
        return not self.bad


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping with known keys. `title` names it in messages: `a filter`, `the schema`."""

    title: str
    keys: tuple[Key, ...]

    @property
    def accepted(self) -> str:
        return f"a mapping with {', '.join(f'`{key.name}`' for key in self.keys)}"

    def names(self) -> Iterator[str]:
        return (key.name for key in self.keys)

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        if not isinstance(node.value, Mapping):
            return refuse(node, name, problems, self.accepted)
        found = Found(self, node.place)
        known = {key.name: key for key in self.keys}
        meant = set()
        for word, entry in node.value.items():
            if word in known:
                self._take(known[word], entry.node, found, problems)
            else:
                meant.add(nearest(word, known.keys() - node.value.keys()))
                hint = choices(word, known, node.value)
                problems.add(entry.place, f"`{word}` is not a key of {self.title}", hint)
        for key in self.keys:
            if key.required and key.name not in node.value:
                found.bad.add(key.name)
                if key.name not in meant:  # else it is there, misspelt, and that is said
                    problems.add(node.place, f"{self.title} has no `{key.name}`", f"accepted: {key.shape.accepted}")
        return found

    def _take(self, key: Key, node: Node, found: Found, problems: Problems) -> None:
        found.places[key.name] = node.place
        value = key.shape.read(node, key.name, problems)
        if value is BAD:
            found.bad.add(key.name)
        else:
            found.values[key.name] = value

    def json_schema(self) -> JsonSchema:
        required = [key.name for key in self.keys if key.required]
        return {
            "type": "object",
            "properties": {key.name: key.json_schema() for key in self.keys},
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }
