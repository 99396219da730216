"""Which Postgres types each leaf of a document takes, which columns can be compared, summed and sorted.

Guarantees: pure answers over what the catalog says; a leaf takes a narrower number than its own, because no value is
lost. An array column counts as its elements. Deliberately not: how a value is written (`sql`) or indexed (`mapping`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.document.schema import AggregateKind, LeafType
from penstock.postgres.type_catalog import TypeInfo

_TEXTS = ("text", "varchar", "bpchar", "citext", "name")
_INTEGERS = ("int2", "int4", "int8")
_NUMBERS = frozenset({*_INTEGERS, "float4", "float8", "numeric", "money"})
_JSON = ("json", "jsonb")

ACCEPTED: Mapping[LeafType, tuple[str, ...]] = {
    LeafType.TEXT: _TEXTS,
    LeafType.IDENTIFIER: _TEXTS,
    LeafType.KEYWORD: _TEXTS,
    LeafType.ENUM: _TEXTS,
    LeafType.UUID: ("uuid",),
    LeafType.BOOLEAN: ("bool",),
    LeafType.SHORT: _INTEGERS[:1],
    LeafType.INTEGER: _INTEGERS[:2],
    LeafType.LONG: _INTEGERS,
    LeafType.FLOAT: ("float4",),
    LeafType.DOUBLE: ("float4", "float8"),
    LeafType.DECIMAL: ("numeric", "money"),
    LeafType.DATE: ("date",),
    LeafType.TIMESTAMP: ("timestamp", "timestamptz", "time", "timetz"),
    LeafType.BINARY: ("bytea",),
    LeafType.JSON: _JSON,
}
"""By the catalog's own names; `custom` takes what its field lists, and `enum` every Postgres enum as well."""

MAP_COLUMN = _JSON
GEO_COLUMN = (*_JSON, *_TEXTS, "point")
GEO_HALF = tuple(sorted(_NUMBERS - {"money"}))

# As SQL writes them, where the catalog's name is another.
_SQL_NAMES = {
    "varchar": "character varying", "bpchar": "character", "bool": "boolean", "int2": "smallint", "int4": "integer",
    "int8": "bigint", "float4": "real", "float8": "double precision", "timestamptz": "timestamp with time zone",
    "timetz": "time with time zone",
}  # fmt: skip
_UNSORTABLE = frozenset({"json", "xml", "point", "box", "line", "lseg", "path", "polygon", "circle", "xid", "cid"})
# No smallest or largest of these in every supported major.
_NO_EXTREME = _UNSORTABLE | {"bool", "uuid", "jsonb", "bytea"}
_COMPARABLE = (_NUMBERS - {"money"}, frozenset(_TEXTS))


def accepts(leaf: LeafType, found: TypeInfo, listed: Collection[str] = ()) -> bool:
    """Whether a column of that type serves for that leaf; `listed` is what a custom leaf names."""
    if leaf is LeafType.CUSTOM:
        named = {" ".join(name.lower().split()) for name in listed}
        return bool(named & {found.short, found.name, f"{found.schema}.{found.short}", str(found)})
    return (leaf is LeafType.ENUM and found.is_enum) or is_one_of(found, ACCEPTED[leaf])


def is_one_of(found: TypeInfo, names: Collection[str]) -> bool:
    """Whether it is one of the server's own types with these names, or citext, wherever that is installed."""
    return found.short in names and (found.schema == "pg_catalog" or found.short == "citext")


def leaves_for(found: TypeInfo) -> list[str]:
    """The leaves that take a type, the best first: for a message."""
    return [leaf.value for leaf in ACCEPTED if accepts(leaf, found)]


def sql_names(names: Collection[str]) -> str:
    """Types as people write them, for a message."""
    return ", ".join(_SQL_NAMES.get(name, name) for name in names)


def comparable(one: TypeInfo, other: TypeInfo) -> bool:
    """Whether rows can be joined over columns of these types."""
    if one.is_array or other.is_array:
        return one == other
    same = (one.schema, one.short) == (other.schema, other.short)
    return same or any(is_one_of(one, family) and is_one_of(other, family) for family in _COMPARABLE)


def is_text(found: TypeInfo) -> bool:
    """Whether a text's transforms and LIKE make sense on it."""
    return is_one_of(found, _TEXTS)


def is_sortable(found: TypeInfo) -> bool:
    """Whether rows can be ordered by it."""
    return found.short not in _UNSORTABLE


def aggregates(kind: AggregateKind, found: TypeInfo, leaf: LeafType | None) -> bool:
    """Whether a column of that type can be aggregated so, and the result is a value of that leaf."""
    numeric = is_one_of(found, _NUMBERS) and not found.is_array
    to_number = leaf in (LeafType.FLOAT, LeafType.DOUBLE, LeafType.DECIMAL)
    if kind is AggregateKind.AVG:
        return numeric and found.short != "money"
    if kind is AggregateKind.SUM:
        whole = leaf in (LeafType.SHORT, LeafType.INTEGER, LeafType.LONG) and found.short in _INTEGERS
        return numeric and (leaf is None or to_number or whole)
    if found.is_array or found.short in _NO_EXTREME:
        return False
    return leaf is None or accepts(leaf, found) or (numeric and to_number)
