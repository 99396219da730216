"""What values of `penstock.toml` may look like, beyond texts, numbers and words: secrets, sizes, addresses, names.

Guarantees: what is wrong with a secret is said without showing it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.document.reading_shapes import BAD, Found, JsonSchema, Key, Table, Text, refuse
from penstock.document.reading_tree import Node, Problems
from penstock.document.schema import Place

_SIZE = re.compile(r"([0-9]+)\s*(B|kB|KB|KiB|MB|MiB|GB|GiB|TB|TiB)", re.ASCII)
# Powers of 1024 under either name, as in Postgres' own settings.
_UNITS = {"B": 0, "K": 1, "M": 2, "G": 3, "T": 4}


class Given(NamedTuple):
    """A secret as a file gives it: a text, or the name of a variable."""

    place: Place
    literal: str | None = None
    env: str = ""

    def __repr__(self) -> str:
        return f"Given({self.place}, {self.env or 'a text'})"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text of a certain form; `lower` says that no letter of any script may be a capital, which the form cannot."""

    pattern: str
    accepted: str
    most_bytes: int = 255
    shown: bool = True
    lower: bool = False

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        text = node.value
        if not isinstance(text, str):
            return refuse(node, name, problems, self.accepted)
        is_low = not self.lower or text == text.lower()
        if is_low and re.fullmatch(self.pattern, text) and len(text.encode()) <= self.most_bytes:
            return text
        # A URL in the wrong place may hold a password.
        shown = self.shown and text.isprintable() and len(text) <= 80 and "://" not in text
        found = f"`{text}`" if shown else "a text of another form"
        problems.add(node.place, f"`{name}` is {found}", f"accepted: {self.accepted}")
        return BAD

    def json_schema(self) -> JsonSchema:
        return {"type": "string", "pattern": f"^(?:{self.pattern})$", "maxLength": self.most_bytes}


VARIABLE = Pattern(r"[A-Za-z_][A-Za-z0-9_]*", "the name of a variable of the environment", shown=False)
ADDRESS = Pattern(r"(?:[^\s:\[\]]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}", "host:port")
SLOT_NAME = Pattern(r"[a-z0-9_]+", "1 to 63 lower-case letters, digits and underscores", 63)
PUBLICATION_NAME = Pattern(r"[^\x00]+", "a name of at most 63 bytes", 63)
INTERVAL = Pattern(r"-1|[0-9]+(?:ms|s|m|h|d)", 'a time such as "10s" or "500ms", or "-1" for never')
_INDEX = r'[a-z0-9][^\sA-Z,:"*+/\\|?#<>]*'
_INDEX_WORDS = 'lower case, starting with a letter or digit, without spaces and , : " * + / \\ | ? # < >'
PREFIX = Pattern(f"(?:{_INDEX})?", f"at most 50 bytes, {_INDEX_WORDS}", 50, lower=True)
INDEX_NAME = Pattern(_INDEX, f"at most 150 bytes, {_INDEX_WORDS}", 150, lower=True)
SINK_NAME = Pattern(r"[A-Za-z_][A-Za-z0-9_-]*", "letters, digits, underscores and hyphens, at most 63", 63)

REFERENCE = Table("a secret", (Key("env", VARIABLE, "The variable that holds the value.", required=True),))


@dataclass(frozen=True, slots=True)
class SecretValue:
    """A text, or `{ env = "NAME" }`. What it starts with is checked where `starts` says so."""

    accepted: str = 'a text, or { env = "NAME" }'
    starts: tuple[str, ...] = ()

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        if isinstance(node.value, str) and node.value:
            if node.value.startswith(self.starts or ""):
                return Given(node.place, node.value)
            problems.add(node.place, f"`{name}` is a text of another form", f"accepted: {self.accepted}")
            return BAD
        if not isinstance(node.value, Mapping):
            # Not what it is: a number may be a password that lacks its quotes.
            kind = "empty" if node.value in (None, "") else "no text"
            problems.add(node.place, f"`{name}` is {kind}", f"accepted: {self.accepted}")
            return BAD
        found: Found = REFERENCE.read(node, name, problems)
        return Given(node.place, env=found["env"]) if found.complete else BAD

    def json_schema(self) -> JsonSchema:
        return {"oneOf": [{"type": "string", "minLength": 1}, REFERENCE.json_schema()]}


@dataclass(frozen=True, slots=True)
class SecretMap:
    """A mapping of names to texts, each of which may be secret."""

    accepted: str = 'a table of texts, each of which may be { env = "NAME" }'

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        if not isinstance(node.value, Mapping):
            return refuse(node, name, problems, self.accepted)
        shape = SecretValue()
        values = {key: shape.read(entry.node, key, problems) for key, entry in node.value.items()}
        return BAD if BAD in values.values() else values

    def json_schema(self) -> JsonSchema:
        return {"type": "object", "additionalProperties": SecretValue().json_schema()}


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes: a number, or a text with a unit."""

    accepted: str = 'a number of bytes above 0, or a text such as "20GB"'

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        value = node.value
        if isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())):
            value = int(found[1]) << 10 * _UNITS[found[2][0].upper()]
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        return refuse(node, name, problems, self.accepted)

    def json_schema(self) -> JsonSchema:
        return {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": f"^{_SIZE.pattern}$"}]}


@dataclass(frozen=True, slots=True)
class Connection:
    """A URL, `{ env = "NAME" }`, or the parts of one."""

    parts: Table
    url: SecretValue = SecretValue("a postgres:// URL", ("postgres://", "postgresql://"))

    @property
    def accepted(self) -> str:
        return f'a postgres:// URL, {{ env = "NAME" }}, or a table of {", ".join(self.parts.names())}'

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        if not isinstance(node.value, Mapping):
            return SecretValue(self.accepted, self.url.starts).read(node, name, problems)
        if node.value.keys() & {"env"}:
            return self.url.read(node, name, problems)
        return self.parts.read(node, name, problems)

    def json_schema(self) -> JsonSchema:
        forms: list[JsonSchema] = self.url.json_schema()["oneOf"]
        return {"oneOf": [*forms, self.parts.json_schema()]}


PATH = Text("a path")
