"""From what a file says of its fields to the schema's values, with the checks that look at more than one key.

Guarantees: whatever comes out is whole; a field with a problem is left out, and the fields inside it are still looked
at, so that all problems are told at once. Deliberately not: asking a database; a key that the file leaves to the
table's own stays empty, and its number of columns unchecked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.document.reading_names import SpelledTable, fold, is_name
from penstock.document.reading_shapes import Found
from penstock.document.reading_tree import Problems
from penstock.document.reading_words import NUMBERS, Direction, FieldFound
from penstock.document.schema import (
    Aggregate,
    AggregateKind,
    Columns,
    Constant,
    Field,
    Geo,
    Group,
    Join,
    JoinKind,
    LeafType,
    Literal,
    OpenMap,
    Order,
    Scalar,
    Through,
)
from penstock.model import QualifiedTable


class Above(NamedTuple):
    """The table whose row a field belongs to, and its key where the file says it."""

    table: QualifiedTable
    primary_key: Columns


def assemble(fields: Iterable[FieldFound], above: Above, problems: Problems) -> tuple[Field, ...]:
    """The fields that are whole."""
    made = [_assemble_one(one, above, problems) for one in fields]
    return tuple(one for one in made if one is not None)


def _assemble_one(field: FieldFound, above: Above, problems: Problems) -> Field | None:
    type_, found = field
    if type_ in set(LeafType):
        return _scalar(LeafType(type_), found, problems)
    if type_ in set(JoinKind):
        return _join(JoinKind(type_), found, above, problems)
    if type_ in set(AggregateKind):
        return _aggregate(AggregateKind(type_), found, above, problems)
    if type_ == "geo":
        return _geo(found, problems)
    if type_ == "object":
        inside = assemble(found["fields"], above, problems)
        return Group(found["object"], inside, found["options"], found.place) if found.complete else None
    if type_ == "map":
        return _map(found, problems)
    return Constant(found["constant"], found["value"], found["options"], found.place) if found.complete else None


def _column(found: Found, key: str, problems: Problems) -> str | None:
    """The column that a field reads: the one named, or the document key in lower case."""
    if "column" in found:
        return str(found["column"])
    if not key or is_name(key):
        return fold(key) if key else None
    problems.add(found.place, f"`{key}` is no name of a column", "name one with `column`")
    return None


def _scalar(type_: LeafType, found: Found, problems: Problems) -> Scalar | None:
    column = _column(found, found[type_], problems)
    default = found["default"] if "default" in found.values else None
    if default is not None and not _fits(default, type_):
        problems.add(found.at("default"), f"`default` is no value of `{type_}`", f"accepted: {_values_of(type_)}")
        return None
    if not found.complete or column is None:
        return None
    some: Mapping[str, object] = {
        name: found[name] for name in ("transforms", "variants", "postgres", "opensearch") if name in found.values
    }
    return Scalar(
        found[type_], type_, column, found["required"],
        default=default, options=found["options"], place=found.place, **some,  # type: ignore[arg-type]
    )  # fmt: skip


def _fits(value: Literal, type_: LeafType) -> bool:
    if type_ is LeafType.CUSTOM:
        return True
    if type_ is LeafType.BOOLEAN:
        return isinstance(value, bool)
    if type_ in NUMBERS:
        whole = type_ in (LeafType.SHORT, LeafType.INTEGER, LeafType.LONG)
        return isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    return isinstance(value, str)


def _values_of(type_: LeafType) -> str:
    if type_ is LeafType.BOOLEAN:
        return "true or false"
    if type_ in NUMBERS:
        return "a whole number" if type_ in (LeafType.SHORT, LeafType.INTEGER, LeafType.LONG) else "a number"
    return "a text (put quotes around it)"


def _geo(found: Found, problems: Problems) -> Geo | None:
    named = {name for name in ("column", "lat", "lon") if name in found}
    if named not in ({"column"}, {"lat", "lon"}):
        what = " and ".join(f"`{name}`" for name in sorted(named)) or "no column"
        problems.add(found.place, f"a `geo` field has {what}", "accepted: `lat` and `lon`, or `column`")
        return None
    if not found.complete:
        return None
    column, lat, lon = (found[name] or "" for name in ("column", "lat", "lon"))
    return Geo(found["geo"], column, lat, lon, found["required"], found["options"], found.place)


def _map(found: Found, problems: Problems) -> OpenMap | None:
    column = _column(found, found["map"], problems)
    if not found.complete or column is None:
        return None
    return OpenMap(found["map"], column, found["values"], found["required"], found["options"], found.place)


def _join(kind: JoinKind, found: Found, above: Above, problems: Problems) -> Join | None:
    table = place_table(found, above.table.schema, problems)
    own = Above(table or above.table, found["primary_key"])
    inside = assemble(found["fields"], own, problems)
    column: Columns = ()
    if kind is JoinKind.BELONGS_TO:
        default = () if "column" in found else (_column(found, found[kind], problems),)
        column = found["column"] or tuple(one for one in default if one)
        _match(found, "column", column, "primary_key", own.primary_key, problems)
    through = _through(found, own, above, problems)
    foreign = found.values.get("foreign_key", ())
    _match(found, "foreign_key", foreign, "primary_key of the table above", above.primary_key, problems)
    if not found.complete or table is None or (kind is JoinKind.BELONGS_TO and not column):
        return None
    return Join(
        found[kind], kind, table, inside, column, foreign, through, own.primary_key, found["filters"],
        _orders(found), found.values.get("limit"), found.values.get("required", False), found["options"], found.place,
    )  # fmt: skip


def _orders(found: Found) -> tuple[Order, ...]:
    orders = found.values.get("order_by", ())
    return tuple(Order(one["column"], one["direction"] == Direction.DESC, one.place) for one in orders if one.complete)


def _aggregate(kind: AggregateKind, found: Found, above: Above, problems: Problems) -> Aggregate | None:
    table = place_table(found, above.table.schema, problems)
    own = Above(table or above.table, found["primary_key"])
    links = [name for name in ("foreign_key", "through") if name in found]
    if len(links) != 1:
        what = "both `foreign_key` and `through`" if links else "neither `foreign_key` nor `through`"
        problems.add(found.place, f"a `{kind}` field has {what}", "accepted: exactly one of them")
    through = _through(found, own, above, problems)
    foreign = found["foreign_key"]
    _match(found, "foreign_key", foreign, "primary_key of the table above", above.primary_key, problems)
    if kind is AggregateKind.IDS and len(own.primary_key) > 1:
        problems.add(found.at("primary_key"), "`ids` of a key of several columns", "accepted: a key of one column")
    if not found.complete or table is None or len(links) != 1:
        return None
    type_ = found.values.get("value_type") or found.values.get("element_type")
    return Aggregate(
        found[kind], kind, table, found.values.get("column") or "", foreign, through, own.primary_key, type_,
        found["filters"], found["options"], found.place,
    )  # fmt: skip


def _through(found: Found, own: Above, above: Above, problems: Problems) -> Through | None:
    inner: Found | None = found.values.get("through")
    if inner is None:
        return None
    _match(inner, "left_key", inner["left_key"], "primary_key of the table above", above.primary_key, problems)
    _match(inner, "right_key", inner["right_key"], "primary_key", own.primary_key, problems)
    if not inner.complete:
        found.bad.add("through")
        return None
    table: SpelledTable = inner["table"]
    return Through(table.within(own.table.schema), inner["left_key"], inner["right_key"], inner.place)


def _match(found: Found, name: str, columns: Columns, other: str, key: Columns, problems: Problems) -> None:
    """Two ends of a link have as many columns, as far as the file says."""
    if columns and key and len(columns) != len(key):
        found.bad.add(name)
        message = f"`{name}` has {_counted(len(columns))}, and the {other} has {_counted(len(key))}"
        problems.add(found.at(name), message, "both need the same number, in the same order")


def _counted(number: int) -> str:
    return "1 column" if number == 1 else f"{number} columns"


def place_table(found: Found, default: str, problems: Problems) -> QualifiedTable | None:
    """The table that a mapping names by `table` and `schema`; None where it names none."""
    spelled: SpelledTable | None = found["table"]
    if spelled is None:
        return None
    if spelled.schema and "schema" in found:
        problems.add(found.at("schema"), "the schema is given twice: in `table`, and as `schema`", "keep one of them")
    return spelled.within((found["schema"] or default) if "schema" in found else default)
