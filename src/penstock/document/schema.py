"""A document's schema as plain values: the fields, joins, aggregates and filters of one `*.schema.yml`.

Guarantees: immutable, comparable, picklable; names are the catalog's own (case folded, unquoted); each part knows the
place in its file, which does not count when two are compared. Deliberately not: reading files (`reading` does), and
knowing the database: `primary_key` is empty where the file leaves it to the table's own, until `binding` fills it in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from penstock.model import QualifiedTable

Columns = tuple[str, ...]
Literal = str | int | float | bool | None
"""A value as a file gives it."""


class Place(NamedTuple):
    """Where in a file something stands, counted from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


NOWHERE = Place("", 0, 0)


class LeafType(StrEnum):
    """What a single value is to the search engine; the words are those of the file."""

    TEXT = "text"
    IDENTIFIER = "identifier"
    KEYWORD = "keyword"
    ENUM = "enum"
    UUID = "uuid"
    BOOLEAN = "boolean"
    SHORT = "short"
    INTEGER = "integer"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    DATE = "date"
    TIMESTAMP = "timestamp"
    BINARY = "binary"
    JSON = "json"
    CUSTOM = "custom"


class Transform(StrEnum):
    """What is done to a text before it is a value of the document."""

    LOWERCASE = "lowercase"
    TRIM = "trim"


class JoinKind(StrEnum):
    """How rows of another table belong to a row."""

    BELONGS_TO = "belongs_to"
    HAS_ONE = "has_one"
    HAS_MANY = "has_many"
    MANY_TO_MANY = "many_to_many"


class AggregateKind(StrEnum):
    """What is computed over the rows of another table."""

    COUNT = "count"
    AVG = "avg"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    IDS = "ids"


class FilterOp(StrEnum):
    """How a filter compares a column."""

    IS_NULL = "is_null"
    IS_NOT_NULL = "is_not_null"
    EQ = "eq"
    NEQ = "neq"
    LT = "lt"
    LTE = "lte"
    GT = "gt"
    GTE = "gte"
    LIKE = "like"
    ILIKE = "ilike"
    IN = "in"
    NOT_IN = "not_in"
    BETWEEN = "between"


@dataclass(frozen=True, slots=True)
class Raw:
    """A condition in SQL over the columns of its table."""

    sql: str
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A column compared: `values` holds none, one, two (between) or several (in, not_in) values."""

    column: str
    op: FilterOp
    values: tuple[Literal, ...] = ()
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Holds where at least one of its filters does."""

    filters: tuple[Filter, ...]
    place: Place = field(default=NOWHERE, compare=False)


Filter = Raw | Comparison | AnyOf


@dataclass(frozen=True, slots=True)
class SoftDelete:
    """A row counts as deleted where the column is true, or not null where it is no boolean, and `when` holds."""

    column: str
    when: tuple[Filter, ...] = ()
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Scalar:
    """A column of the row as one value, or as several where the column is an array.

    `variants` rank an enum; `postgres` and `opensearch` say what a custom type accepts and becomes.
    """

    key: str
    type: LeafType
    column: str
    required: bool = False
    transforms: tuple[Transform, ...] = ()
    default: Literal = None
    variants: tuple[str, ...] = ()
    postgres: tuple[str, ...] = ()
    opensearch: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Geo:
    """A point: of two columns, or of one. Null where a half is."""

    key: str
    column: str = ""
    lat: str = ""
    lon: str = ""
    required: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Group:
    """An `object`: columns of the same row under one key, never null."""

    key: str
    fields: tuple[Field, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class OpenMap:
    """A `map`: a json column with any keys, each value of one leaf type."""

    key: str
    column: str
    values: LeafType
    required: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Constant:
    """The same value in every document."""

    key: str
    value: Literal
    options: Mapping[str, Any] = field(default_factory=dict)
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Through:
    """A junction: `left_key` points at this side's key, `right_key` at the other table's."""

    table: QualifiedTable
    left_key: Columns
    right_key: Columns
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Order:
    """One column that rows are sorted by; nulls come last either way."""

    column: str
    descending: bool = False
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Join:
    """Rows of another table inside this one.

    Links, by kind: belongs_to, our `column` → their `primary_key`; has_one and has_many, their `foreign_key` → our
    primary key; many_to_many, `through`'s left_key → our primary key and right_key → their `primary_key`.
    """

    key: str
    kind: JoinKind
    table: QualifiedTable
    fields: tuple[Field, ...]
    column: Columns = ()
    foreign_key: Columns = ()
    through: Through | None = None
    primary_key: Columns = ()
    filters: tuple[Filter, ...] = ()
    order_by: tuple[Order, ...] = ()
    limit: int | None = None
    required: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One value over rows of another table, linked by exactly one of `foreign_key` (theirs) and `through`.

    `type` is what a sum, min or max is (`value_type`), or an element of ids (`element_type`); `primary_key` is the
    other table's, which `ids` lists and a junction points at.
    """

    key: str
    kind: AggregateKind
    table: QualifiedTable
    column: str = ""
    foreign_key: Columns = ()
    through: Through | None = None
    primary_key: Columns = ()
    type: LeafType | None = None
    filters: tuple[Filter, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    place: Place = field(default=NOWHERE, compare=False)


Field = Scalar | Geo | Group | OpenMap | Constant | Join | Aggregate


@dataclass(frozen=True, slots=True)
class DocumentSchema:
    """One kind of document. `index` is the name that the deployment gives it."""

    index: str
    table: QualifiedTable
    fields: tuple[Field, ...]
    primary_key: Columns = ()
    doc_id: Columns = ()
    soft_delete: SoftDelete | None = None
    filters: tuple[Filter, ...] = ()
    version: int = 1
    place: Place = field(default=NOWHERE, compare=False)

    @property
    def tables(self) -> frozenset[QualifiedTable]:
        """Every table that a document reads."""
        return frozenset(_tables(self.table, self.fields))


def _tables(own: QualifiedTable, fields: tuple[Field, ...]) -> Iterator[QualifiedTable]:
    yield own
    for one in fields:
        if isinstance(one, Group):
            yield from _tables(own, one.fields)
        elif isinstance(one, Join | Aggregate):
            if one.through:
                yield one.through.table
            yield from _tables(one.table, one.fields if isinstance(one, Join) else ())
