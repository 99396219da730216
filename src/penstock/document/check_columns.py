"""Whether every column that a schema names exists, fits what it is used for, and is null only where that is allowed.

Guarantees: pure; each finding has its place. A missing table or column is reported once for each place that names it,
and nothing else is said about it there. Deliberately not: links between tables (`check_links`), and conditions in SQL
(`check_filters`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from penstock.document import types
from penstock.document.check import Diagnostic, Facts, Severity
from penstock.document.check_uses import Scope, Use, comparisons, filtered, flat, scopes, uses
from penstock.document.schema import (
    Aggregate,
    AggregateKind,
    DocumentSchema,
    Field,
    FilterOp,
    Geo,
    Join,
    JoinKind,
    LeafType,
    OpenMap,
    Place,
    Scalar,
)
from penstock.model import QualifiedTable, quote
from penstock.postgres.catalog import TableKind
from penstock.postgres.type_catalog import TypeInfo


def check_columns(schema: DocumentSchema, facts: Facts) -> Iterator[Diagnostic]:
    """Everything about single columns."""
    yield from _existence(schema, facts)
    for scope in scopes(schema, facts):
        for one in flat(scope.fields):
            yield from _Judge(schema.index, facts).field(scope, one)
    yield from _filters(schema, facts)


def _existence(schema: DocumentSchema, facts: Facts) -> Iterator[Diagnostic]:
    missing: set[QualifiedTable] = set()
    for table, place in _tables(schema, facts):
        info = facts.tables.get(table)
        if info is None and table not in missing:
            missing.add(table)
            close = difflib.get_close_matches(str(table), map(str, (*facts.tables, *facts.others)), n=1)
            hint = f"The nearest one is {close[0]}." if close else "Check its name and its schema."
            yield Diagnostic(Severity.ERROR, "table-missing", f"there is no table {table}", schema.index, place, hint)
        elif info and info.kind not in (TableKind.TABLE, TableKind.PARTITIONED):
            message = f"{table} is a {info.kind}: Postgres streams changes of tables only"
            yield Diagnostic(
                Severity.ERROR, "not-a-table", message, schema.index, place, "Name the tables that it is made of."
            )
    for use in uses(schema, facts):
        if use.table in facts.tables and facts.column(use.table, use.column) is None:
            yield _no_column(schema.index, use, facts)


def _tables(schema: DocumentSchema, facts: Facts) -> Iterator[tuple[QualifiedTable, Place]]:
    for scope in scopes(schema, facts):
        yield scope.table, scope.place
        for one in flat(scope.fields):
            if isinstance(one, Join | Aggregate) and one.through:
                yield one.through.table, one.through.place
            if isinstance(one, Aggregate):
                yield one.table, one.place


def _no_column(index: str, use: Use, facts: Facts) -> Diagnostic:
    names = [column.name for column in facts.tables[use.table].columns]
    close = difflib.get_close_matches(use.column, names, n=1)
    hint = f"The nearest one is {close[0]}." if close else f"It has: {', '.join(names)}."
    message = f"{use.role}: {use.table} has no column {quote(use.column)}"
    return Diagnostic(Severity.ERROR, "column-missing", message, index, use.place, hint)


class _Judge:
    """Looks at the fields of one index."""

    def __init__(self, index: str, facts: Facts) -> None:
        self._index = index
        self._facts = facts

    def field(self, scope: Scope, one: Field) -> Iterator[Diagnostic]:
        if isinstance(one, Scalar):
            yield from self._scalar(scope, one)
        elif isinstance(one, OpenMap):
            yield from self._one_of(scope, one, one.column, types.MAP_COLUMN)
            yield from self._nullable(scope, one)
        elif isinstance(one, Geo):
            for column in filter(None, (one.column, one.lat, one.lon)):
                wanted = types.GEO_COLUMN if column == one.column else types.GEO_HALF
                yield from self._one_of(scope, one, column, wanted)
            yield from self._nullable(scope, one)
        elif isinstance(one, Aggregate):
            yield from self._aggregate(one)
        elif isinstance(one, Join):
            yield from self._join(scope, one)

    def _scalar(self, scope: Scope, one: Scalar) -> Iterator[Diagnostic]:
        found = self._facts.type(scope.table, one.column)
        if found is None:
            return
        if not types.accepts(one.type, found, one.postgres):
            wanted = ", ".join(one.postgres) or types.sql_names(types.ACCEPTED.get(one.type, ()))
            enums = " or an enum" if one.type is LeafType.ENUM else ""
            yield self._unfit(one, f"{one.type} takes {wanted}{enums}", scope.table, one.column, found)
        elif one.transforms and not types.is_text(found):
            yield self._unfit(one, f"{', '.join(one.transforms)} is for texts", scope.table, one.column, found)
        yield from self._nullable(scope, one)

    def _one_of(self, scope: Scope, one: OpenMap | Geo, column: str, wanted: tuple[str, ...]) -> Iterator[Diagnostic]:
        found = self._facts.type(scope.table, column)
        if found and (found.is_array or not types.is_one_of(found, wanted)):
            takes = f"{'map' if isinstance(one, OpenMap) else 'geo'} takes {types.sql_names(wanted)}"
            yield self._unfit(one, takes, scope.table, column, found)

    def _nullable(self, scope: Scope, one: Scalar | OpenMap | Geo) -> Iterator[Diagnostic]:
        if not one.required or (isinstance(one, Scalar) and one.default is not None):
            return
        names = (one.column, one.lat, one.lon) if isinstance(one, Geo) else (one.column,)
        for name in filter(None, names):
            column = self._facts.column(scope.table, name)
            if column and column.nullable:
                yield self._may_be_null(one, scope.table, name)

    def _may_be_null(self, one: Scalar | OpenMap | Geo | Join, table: QualifiedTable, column: str) -> Diagnostic:
        return Diagnostic(
            Severity.WARNING,
            "nullable",
            f"field {one.key!r} is required, and column {quote(column)} of {table} may be null",
            self._index,
            one.place,
            "Take `required` away, give a default, or forbid nulls.",
            f"ALTER TABLE {table.sql} ALTER COLUMN {quote(column)} SET NOT NULL;",
        )

    def _join(self, scope: Scope, one: Join) -> Iterator[Diagnostic]:
        for order in one.order_by:
            found = self._facts.type(one.table, order.column)
            if found and not types.is_sortable(found):
                message = f"the order of {one.key!r}: {quote(order.column)} is {found}, which has no order"
                yield Diagnostic(Severity.ERROR, "no-order", message, self._index, order.place, "Name another column.")
        if one.kind is JoinKind.BELONGS_TO and one.required:
            for name in one.column:
                column = self._facts.column(scope.table, name)
                if column and column.nullable:
                    yield self._may_be_null(one, scope.table, name)

    def _aggregate(self, one: Aggregate) -> Iterator[Diagnostic]:
        if one.kind is AggregateKind.IDS:
            for name in self._facts.key(one.table, one.primary_key)[:1]:
                found = self._facts.type(one.table, name)
                if found and one.type and not types.accepts(one.type, found):
                    yield self._unfit(one, f"element_type {one.type} does not take it", one.table, name, found)
        elif one.column:
            found = self._facts.type(one.table, one.column)
            if found and not types.aggregates(one.kind, found, one.type):
                into = f" into {one.type}" if one.type else ""
                yield self._unfit(one, f"{one.kind}{into} cannot be made of it", one.table, one.column, found)

    def _unfit(self, one: Field, why: str, table: QualifiedTable, column: str, found: TypeInfo) -> Diagnostic:
        leaves = types.leaves_for(found)
        custom = f"custom with postgres: [{found.name}]"
        hint = f"For {found}: {', '.join(leaves) or custom}." if not isinstance(one, Aggregate) else ""
        message = f"field {one.key!r}: column {quote(column)} of {table} is {found}; {why}"
        return Diagnostic(Severity.ERROR, "type", message, self._index, one.place, hint)


def _filters(schema: DocumentSchema, facts: Facts) -> Iterator[Diagnostic]:
    for table, filters in filtered(schema, facts):
        for one in comparisons(filters):
            found = facts.type(table, one.column)
            if found and one.op in (FilterOp.LIKE, FilterOp.ILIKE) and not types.is_text(found):
                message = f"a filter: column {quote(one.column)} of {table} is {found}; {one.op} compares its text form"
                yield Diagnostic(Severity.WARNING, "filter-type", message, schema.index, one.place, "Use another op.")
