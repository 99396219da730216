"""A document's shape as a tree for people: each key, what it is to the index, and where its value comes from.

Guarantees: pure; the order is the file's. Deliberately not: how a terminal shows it (`cli`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.document.mapping import IndexSettings, field_mapping
from penstock.document.schema import (
    Aggregate,
    AggregateKind,
    Columns,
    Constant,
    DocumentSchema,
    Field,
    Geo,
    Group,
    Join,
    JoinKind,
    OpenMap,
    Scalar,
    Through,
)


@dataclass(frozen=True, slots=True)
class Branch:
    """One key of a document: its type in the index with subfields, its origin, and the keys below it."""

    key: str
    type: str
    origin: str = ""
    subfields: tuple[str, ...] = ()
    below: tuple[Branch, ...] = ()


def mapping_tree(schema: DocumentSchema, settings: IndexSettings | None = None) -> Branch:
    """The whole document; the root's type is "index"."""
    return Branch(schema.index, "index", str(schema.table), below=_below(schema.fields, settings))


def _below(fields: Iterable[Field], settings: IndexSettings | None) -> tuple[Branch, ...]:
    return tuple(_branch(one, settings) for one in fields)


def _branch(field: Field, settings: IndexSettings | None) -> Branch:
    mapping = field_mapping(field, settings)
    below = _below(field.fields, settings) if isinstance(field, Group | Join) else ()
    return Branch(field.key, _type(field, mapping["type"]), _origin(field), tuple(mapping.get("fields", ())), below)


def _type(field: Field, indexed: str) -> str:
    """The index's word, with the file's where they differ."""
    if isinstance(field, Scalar):
        return indexed if field.type in (indexed, "custom") else f"{indexed} ({field.type})"
    if isinstance(field, OpenMap):
        return f"{indexed} (map of {field.values})"
    return f"{indexed} []" if isinstance(field, Aggregate) and field.kind is AggregateKind.IDS else indexed


def _origin(field: Field) -> str:
    if isinstance(field, Scalar | OpenMap | Geo):
        columns = f"{field.lat}, {field.lon}" if isinstance(field, Geo) and not field.column else field.column
        return columns + (", required" if field.required else "")
    if isinstance(field, Constant):
        return "constant"
    if isinstance(field, Group):
        return "of the same row"
    if isinstance(field, Aggregate):
        return _aggregate(field)
    return _join(field)


def _join(join: Join) -> str:
    words = [f"{join.kind} {join.table} by {_link(join.column or join.foreign_key, join.through)}"]
    if join.filters:
        words.append("filtered")
    if join.order_by:
        words.append(f"by {', '.join(o.column + (' desc' if o.descending else '') for o in join.order_by)}")
    if join.limit is not None and join.kind is not JoinKind.BELONGS_TO:
        words.append(f"at most {join.limit}")
    return ", ".join(words)


def _aggregate(field: Aggregate) -> str:
    of = f" {field.column}" if field.column else ""
    where = ", filtered" if field.filters else ""
    return f"{field.kind}{of} of {field.table} by {_link(field.foreign_key, field.through)}{where}"


def _link(columns: Columns, through: Through | None) -> str:
    if through is None:
        return ", ".join(columns)
    return f"{through.table} ({', '.join(through.left_key)} → {', '.join(through.right_key)})"
