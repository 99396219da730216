"""Every key of a schema file, with its shape, its default and its meaning: the one table that the reader, the JSON
Schema and the reference page share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from penstock.document.reading_filters import ANY, COMPARISON, FILTERS, RAW, FilterShape
from penstock.document.reading_names import DocumentKey, Name, TableName
from penstock.document.reading_shapes import (
    BAD,
    Anything,
    Flag,
    Found,
    JsonSchema,
    Key,
    Listed,
    Table,
    Text,
    Value,
    Whole,
    Word,
    refuse,
)
from penstock.document.reading_tree import Node, Problems, choices
from penstock.document.schema import AggregateKind, JoinKind, LeafType, Transform

VERSION = 1
"""The newest version of the format that is read."""

TEXTS = (LeafType.TEXT, LeafType.IDENTIFIER, LeafType.KEYWORD, LeafType.ENUM)
NUMBERS = (
    LeafType.SHORT, LeafType.INTEGER, LeafType.LONG, LeafType.FLOAT, LeafType.DOUBLE, LeafType.DECIMAL,
)  # fmt: skip
_NO_SCALAR = (LeafType.BINARY, LeafType.JSON, LeafType.CUSTOM)
_NO_NUMBER = tuple(one for one in LeafType if one not in NUMBERS)
_NAMES = Listed(Name(), least=1, single=True, distinct=True)


class Direction(StrEnum):
    """Which way rows are sorted."""

    ASC = "asc"
    DESC = "desc"


@dataclass(frozen=True, slots=True)
class _Version:
    """The version of the format."""

    accepted: str = f"{VERSION}"

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        if node.value == VERSION and type(node.value) is int:
            return VERSION
        problems.add(node.place, f"`{name}` is {node.kind}", f"this Penstock reads version {VERSION}")
        return BAD

    def json_schema(self) -> JsonSchema:
        return {"const": VERSION}


class FieldFound(NamedTuple):
    """A field as the file holds it: the word that is its type, and its keys."""

    type: str
    found: Found


@dataclass(frozen=True, slots=True)
class Fields:
    """A list of fields; a key of the document occurs once in it."""

    accepted: str = "a list of fields, one at least"

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        if not isinstance(node.value, tuple) or not node.value:
            return refuse(Node(node.place, node.value or None), name, problems, self.accepted)
        fields = [self._field(one, problems) for one in node.value]
        seen: dict[str, int] = {}
        for one in fields:
            key = one and one.found[one.type]
            if one and key in seen:
                at = one.found.at(one.type)
                problems.add(at, f"`{key}` is a key of the document twice, first in line {seen[key]}", "rename one")
            elif one and key:
                seen[key] = one.found.at(one.type).line
        return tuple(one for one in fields if one)

    def _field(self, node: Node, problems: Problems) -> FieldFound | None:
        if not node.entries:
            problems.add(node.place, f"a field is {node.kind}", "accepted: a mapping such as `keyword: name`")
            return None
        types = [word for word in node.entries if word in FIELDS]
        if len(types) == 1:
            return FieldFound(types[0], FIELDS[types[0]].read(node, types[0], problems))
        if types:
            words = " and ".join(f"`{word}`" for word in types)
            problems.add(node.entries[types[1]].place, f"a field has the types {words}", "a field has one type")
        elif unknown := [word for word in node.entries if word not in _SIBLINGS]:
            word = unknown[0]
            problems.add(node.entries[word].place, f"`{word}` is not a type of a field", choices(word, FIELDS))
        else:
            problems.add(node.place, "a field has no type", choices("", FIELDS))
        return None

    def json_schema(self) -> JsonSchema:
        return {"type": "array", "minItems": 1, "items": {"$ref": "#/definitions/field"}}


_COLUMN = Key("column", Name(), "The column.", shown="the document key in lower case")
_REQUIRED = Key("required", Flag(), "The value is never null.", False)
_OPTIONS = Key("options", Anything(), "Further properties of the mapping; they win.", {}, shown="none")
_TABLE = Key("table", TableName(), "The other table.", required=True)
_SCHEMA = Key("schema", Name("a schema name"), "The other table's schema.", shown="that of the table above", added=True)
_THEIR_KEY = Key("primary_key", _NAMES, "The other table's key: a column, or a list.", (), shown="the table's own")
_MEMBERS = Key("fields", Fields(), "What is taken from each row.", (), required=True)
_FOREIGN = "The column of the other table, or the list, that points at this row's key."

ORDER = Table(
    "an order",
    (
        Key("column", Name(), "The column to sort by.", required=True),
        Key("direction", Word(Direction), "Up or down; nulls come last either way.", Direction.ASC),
    ),
)
THROUGH = Table(
    "`through`",
    (
        Key("table", TableName(), "The junction: a table whose rows link the two.", required=True),
        Key("left_key", _NAMES, "The junction's column, or list, that points at this row's key.", (), required=True),
        Key("right_key", _NAMES, "The junction's column, or list, that points at the other's.", (), required=True),
    ),
)
_ORDER_BY = Key("order_by", Listed(ORDER), "How rows are sorted; then by their key.", (), shown="by key")
_LIMIT = Key("limit", Whole(1), "At most so many rows, after filters and order.", shown="all")
_THROUGH = Key("through", THROUGH, "The junction.", required=True)


def _field(type_: str, *keys: Key) -> Table:
    article = "an" if type_[0] in "aeio" else "a"
    return Table(
        f"{article} `{type_}` field", (Key(type_, DocumentKey(), "The key of the document.", required=True), *keys)
    )


def _scalar(type_: LeafType) -> Table:
    keys = [_COLUMN, _REQUIRED]
    if type_ not in (LeafType.BINARY, LeafType.JSON):
        keys.append(Key("default", Value(nullable=True), "What stands in for null.", shown="none"))
    if type_ in (*TEXTS, LeafType.CUSTOM):
        shape = Listed(Word(Transform), distinct=True)
        keys.append(Key("transforms", shape, "What is done to the text, in order.", (), shown="none"))
    if type_ is LeafType.ENUM:
        shape = Listed(Text(), least=1, distinct=True)
        keys.append(Key("variants", shape, "The words in their order; sorts by it.", (), shown="none"))
    if type_ is LeafType.CUSTOM:
        keys += [
            Key("postgres", Listed(Text(), least=1, single=True), "The types accepted.", (), required=True),
            Key("opensearch", Text(), "The type in the search mapping.", "", required=True),
        ]
    return _field(type_, *keys, _OPTIONS)


def _join(kind: JoinKind) -> Table:
    link = {
        JoinKind.BELONGS_TO: Key("column", _NAMES, "The column of this table, or the list, that points at their key.",
                                 (), shown="the document key in lower case"),
        JoinKind.MANY_TO_MANY: _THROUGH,
    }.get(kind, Key("foreign_key", _NAMES, _FOREIGN, (), required=True))  # fmt: skip
    to_one = kind in (JoinKind.BELONGS_TO, JoinKind.HAS_ONE)
    order = () if kind is JoinKind.BELONGS_TO else (_ORDER_BY,)
    last = _REQUIRED if to_one else _LIMIT
    return _field(kind, _TABLE, _SCHEMA, _THEIR_KEY, link, _MEMBERS, FILTERS, *order, last, _OPTIONS)


def _aggregate(kind: AggregateKind) -> Table:
    keys = [_TABLE, _SCHEMA, Key("primary_key", _NAMES, _THEIR_KEY.meaning, (), shown=_THEIR_KEY.shown, added=True)]
    keys += [
        Key("foreign_key", _NAMES, f"{_FOREIGN} Either this or `through`.", (), shown="none"),
        Key("through", THROUGH, "The junction. Either this or `foreign_key`.", shown="none"),
    ]
    if kind not in (AggregateKind.COUNT, AggregateKind.IDS):
        keys.append(Key("column", Name(), "The column of the other table.", required=True))
    if kind is AggregateKind.SUM:
        keys.append(Key("value_type", Word(LeafType, without=_NO_NUMBER), "What the sum is.", required=True))
    elif kind in (AggregateKind.MIN, AggregateKind.MAX):
        keys.append(Key("value_type", Word(LeafType, without=_NO_SCALAR), "What the value is.", required=True))
    elif kind is AggregateKind.IDS:
        keys.append(Key("element_type", Word(LeafType, without=_NO_SCALAR), "What each key is.", required=True))
    return _field(kind, *keys, FILTERS, Key("options", Anything(), _OPTIONS.meaning, {}, shown="none", added=True))


FIELDS: Mapping[str, Table] = {
    **{str(one): _scalar(one) for one in LeafType},
    "geo": _field(
        "geo",
        Key("lat", Name(), "The column with the latitude; goes with `lon`.", shown="none"),
        Key("lon", Name(), "The column with the longitude; goes with `lat`.", shown="none"),
        Key("column", Name(), "The one column with the point; in place of `lat` and `lon`.", shown="none"),
        _REQUIRED,
        _OPTIONS,
    ),
    "object": _field("object", Key("fields", Fields(), "The fields of this row inside.", (), required=True), _OPTIONS),
    "map": _field(
        "map",
        Key("values", Word(LeafType, without=_NO_SCALAR), "What each value is.", required=True),
        _COLUMN,
        _REQUIRED,
        _OPTIONS,
    ),
    "constant": _field("constant", Key("value", Value(nullable=True), "The value.", shown="null"), _OPTIONS),
    **{str(one): _join(one) for one in JoinKind},
    **{str(one): _aggregate(one) for one in AggregateKind},
}
"""By the word that is a field's type, the keys that may stand beside it."""

_SIBLINGS = frozenset(name for table in FIELDS.values() for name in table.names()) - FIELDS.keys()

SOFT_DELETE = Table(
    "`soft_delete`",
    (
        Key("column", Name(), "The column that marks a row as deleted. Either this or `field`.", shown="none"),
        Key("field", DocumentKey(), "The field whose column does. Either this or `column`.", shown="none"),
        Key("when", Listed(FilterShape()), "Only where these hold, too.", (), shown="none"),
    ),
)

SCHEMA = Table(
    "the schema",
    (
        Key("version", _Version(), "The version of the format.", required=True),
        Key("table", TableName(), "The table whose rows become documents.", required=True),
        Key("schema", Name("a schema name"), "The table's schema.", "public"),
        Key("primary_key", _NAMES, "The table's key: a column, or a list.", (), shown="the table's own"),
        Key("doc_id", _NAMES, "The columns that make the document's id.", (), shown="`primary_key`", added=True),
        Key("soft_delete", SOFT_DELETE, "When a row counts as deleted.", shown="never"),
        FILTERS,
        Key("fields", Fields(), "The fields of the document.", (), required=True),
    ),
)

TABLES = (SCHEMA, SOFT_DELETE, RAW, COMPARISON, ANY, ORDER, THROUGH, *FIELDS.values())
"""Every table of keys that a schema file may hold."""


def json_schema() -> JsonSchema:
    """The JSON Schema of a schema file."""
    filters = [table.json_schema() for table in (RAW, ANY, COMPARISON)]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Penstock document schema",
        **SCHEMA.json_schema(),
        "definitions": {
            "field": {"oneOf": [table.json_schema() for table in FIELDS.values()]},
            "filter": {"oneOf": filters},
        },
    }
