"""The names in a schema file: columns and tables as SQL spells them, keys of a document as they are.

Guarantees: unquoted names fold to lower case as Postgres folds them, quoted ones keep theirs; what comes out is the
catalog's own spelling. A name that Postgres would cut off, or that would need quotes, is a problem.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.document.reading_shapes import BAD, JsonSchema, refuse
from penstock.document.reading_tree import Node, Problems
from penstock.model import QualifiedTable

_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_PART = r'"(?:[^"\x00]|"")+"|[^\W\d][\w$]*'
_QUOTED = ", in double quotes where it has upper case, spaces or signs"
_LONGEST = 63
"""Bytes of a name; Postgres cuts longer ones off."""

# The search engine's own fields of a document.
_RESERVED = frozenset(
    [
        "_id",
        "_index",
        "_type",
        "_source",
        "_routing",
        "_version",
        "_seq_no",
        "_primary_term",
        "_size",
        "_nested_path",
        "_field_names",
        "_ignored",
        "_ignored_source",
        "_meta",
        "_tier",
        "_doc_count",
        "_score",
        "_name",
        "_data_stream",
    ]
)


def fold(text: str) -> str:
    """An unquoted name as Postgres takes it."""
    return text.translate(_LOWER)


def _catalog(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else fold(part)


def is_name(text: str) -> bool:
    """Whether a text is a name that needs no quotes."""
    return bool(re.fullmatch(r"[^\W\d][\w$]*", text)) and len(text.encode()) <= _LONGEST


@dataclass(frozen=True, slots=True)
class Name:
    """A column, or a schema."""

    accepted: str = "a column name"

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        if not isinstance(node.value, str):
            return refuse(node, name, problems, self.accepted)
        text = node.value.strip()
        if not re.fullmatch(_PART, text):
            problems.add(node.place, f"`{name}` is `{text}`, which is no name", f"accepted: {self.accepted}{_QUOTED}")
            return BAD
        return _short_enough(_catalog(text), node, name, problems)

    def json_schema(self) -> JsonSchema:
        return {"type": "string", "minLength": 1, "maxLength": 130}


class SpelledTable(NamedTuple):
    """A table as the file spells it; the schema is empty where it names none."""

    schema: str
    name: str

    def within(self, schema: str) -> QualifiedTable:
        """The table, in that schema where the file names none."""
        return QualifiedTable(self.schema or schema, self.name)


@dataclass(frozen=True, slots=True)
class TableName:
    """A table, with or without its schema."""

    accepted: str = "a table name, or schema.table"

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        if not isinstance(node.value, str):
            return refuse(node, name, problems, self.accepted)
        found = re.fullmatch(rf"(?:({_PART})\.)?({_PART})", node.value.strip())
        if not found:
            hint = f"accepted: {self.accepted}{_QUOTED}"
            problems.add(node.place, f"`{name}` is `{node.value}`, which is no name", hint)
            return BAD
        parts = [_short_enough(_catalog(part or ""), node, name, problems) for part in found.groups()]
        return BAD if BAD in parts else SpelledTable(*parts)

    def json_schema(self) -> JsonSchema:
        return {"type": "string", "minLength": 1}


@dataclass(frozen=True, slots=True)
class DocumentKey:
    """A key of the document; keeps its case."""

    accepted: str = "a key of the document: a word without dots"

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        if not isinstance(node.value, str):
            return refuse(node, name, problems, self.accepted)
        text = node.value.strip()
        if text in _RESERVED:
            problems.add(node.place, f"`{name}` is `{text}`, which the search engine keeps for itself", "take another")
            return BAD
        if text and "." not in text and text.isprintable() and len(text.encode()) <= 255:
            return text
        problems.add(node.place, f"`{name}` is {f'`{text}`' if text else 'empty'}", f"accepted: {self.accepted}")
        return BAD

    def json_schema(self) -> JsonSchema:
        return {"type": "string", "pattern": r"^[^.]+$", "maxLength": 255}


def _short_enough(text: str, node: Node, name: str, problems: Problems) -> Any:
    if len(text.encode()) <= _LONGEST:
        return text
    problems.add(node.place, f"`{name}` has {len(text.encode())} bytes", f"accepted: names of at most {_LONGEST} bytes")
    return BAD
