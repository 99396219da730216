"""Every column that a schema names, wherever it does: fields, keys, links, filters, order, soft delete.

Guarantees: pure; in the file's order; a key that the file leaves to the table's own is filled in from what the catalog
said. The columns inside a raw condition are the server's to find. Deliberately not: judging (`check_columns`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.document.check import Facts
from penstock.document.schema import (
    Aggregate,
    AggregateKind,
    AnyOf,
    Columns,
    Comparison,
    DocumentSchema,
    Field,
    Filter,
    Geo,
    Group,
    Join,
    JoinKind,
    OpenMap,
    Place,
    Raw,
    Scalar,
)
from penstock.model import QualifiedTable


@dataclass(frozen=True, slots=True)
class Use:
    """A column that is named, and as what."""

    table: QualifiedTable
    column: str
    role: str
    place: Place


@dataclass(frozen=True, slots=True)
class Scope:
    """A table at one point of the tree, with its key and the fields that are made of its rows."""

    table: QualifiedTable
    key: Columns
    fields: tuple[Field, ...]
    filters: tuple[Filter, ...]
    place: Place
    join: Join | None = None


def scopes(schema: DocumentSchema, facts: Facts) -> Iterator[Scope]:
    """The root and every joined table; a group belongs to the scope it stands in."""
    key = facts.key(schema.table, schema.primary_key)
    yield from _scopes(Scope(schema.table, key, schema.fields, schema.filters, schema.place), facts)


def _scopes(scope: Scope, facts: Facts) -> Iterator[Scope]:
    yield scope
    for one in flat(scope.fields):
        if isinstance(one, Join):
            key = facts.key(one.table, one.primary_key)
            yield from _scopes(Scope(one.table, key, one.fields, one.filters, one.place, one), facts)


def flat(fields: Iterable[Field]) -> Iterator[Field]:
    """The fields with those of groups in their place."""
    for one in fields:
        if isinstance(one, Group):
            yield from flat(one.fields)
        else:
            yield one


def comparisons(filters: Iterable[Filter]) -> Iterator[Comparison]:
    """Every comparison of a column, those inside `any` too."""
    for one in filters:
        if isinstance(one, AnyOf):
            yield from comparisons(one.filters)
        elif isinstance(one, Comparison):
            yield one


def raws(filters: Iterable[Filter]) -> Iterator[Raw]:
    """Every condition in SQL, those inside `any` too."""
    for one in filters:
        if isinstance(one, AnyOf):
            yield from raws(one.filters)
        elif isinstance(one, Raw):
            yield one


def filtered(schema: DocumentSchema, facts: Facts) -> Iterator[tuple[QualifiedTable, tuple[Filter, ...]]]:
    """Each list of filters with the table whose rows it is about."""
    if schema.soft_delete:
        yield schema.table, schema.soft_delete.when
    for scope in scopes(schema, facts):
        yield scope.table, scope.filters
        for one in flat(scope.fields):
            if isinstance(one, Aggregate):
                yield one.table, one.filters


def uses(schema: DocumentSchema, facts: Facts) -> Iterator[Use]:
    """Every column named anywhere."""
    for column in schema.doc_id:
        yield Use(schema.table, column, "the id", schema.place)
    if schema.soft_delete:
        yield Use(schema.table, schema.soft_delete.column, "soft delete", schema.soft_delete.place)
    for table, filters in filtered(schema, facts):
        for compared in comparisons(filters):
            yield Use(table, compared.column, "a filter", compared.place)
    for scope in scopes(schema, facts):
        yield from _named(scope.table, scope.key, "the primary key", scope.place)
        for one in flat(scope.fields):
            yield from _of_field(scope, one, facts)


def _named(table: QualifiedTable, columns: Columns, role: str, place: Place) -> Iterator[Use]:
    for column in columns:
        yield Use(table, column, role, place)


def _of_field(scope: Scope, one: Field, facts: Facts) -> Iterator[Use]:
    role = f"field {one.key!r}"
    if isinstance(one, Scalar | OpenMap):
        yield Use(scope.table, one.column, role, one.place)
    elif isinstance(one, Geo):
        yield from _named(scope.table, tuple(filter(None, (one.column, one.lat, one.lon))), role, one.place)
    elif isinstance(one, Join):
        yield from _named(scope.table, one.column, f"the link of {one.key!r}", one.place)
        yield from _links(one)
        for order in one.order_by:
            yield Use(one.table, order.column, f"the order of {one.key!r}", order.place)
        if one.kind is JoinKind.BELONGS_TO or one.through:
            yield from _named(one.table, facts.key(one.table, one.primary_key), f"the key of {one.key!r}", one.place)
    elif isinstance(one, Aggregate):
        yield from _links(one)
        if one.column:
            yield Use(one.table, one.column, role, one.place)
        if one.kind is AggregateKind.IDS or one.through:
            yield from _named(one.table, facts.key(one.table, one.primary_key), f"the key of {one.key!r}", one.place)


def _links(one: Join | Aggregate) -> Iterator[Use]:
    yield from _named(one.table, one.foreign_key, f"the foreign key of {one.key!r}", one.place)
    if one.through:
        keys = (*one.through.left_key, *one.through.right_key)
        yield from _named(one.through.table, keys, f"the junction of {one.key!r}", one.through.place)
