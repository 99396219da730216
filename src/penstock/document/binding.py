"""A schema made whole by what the catalog says: every key that its file leaves to the table's own.

Guarantees: pure; the result has no empty `primary_key`, and links have as many columns at both ends. Everything that
is wrong is said at once, each with its place in the file. Deliberately not: columns and their types (`check` and the
statements' own maker look at those).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.document.schema import (
    Aggregate,
    AggregateKind,
    Columns,
    DocumentSchema,
    Field,
    Group,
    Join,
    JoinKind,
    Place,
)
from penstock.errors import ConfigError
from penstock.model import QualifiedTable
from penstock.postgres.catalog import TableInfo

Tables = Mapping[QualifiedTable, TableInfo]


def bind(schema: DocumentSchema, tables: Tables) -> DocumentSchema:
    """The schema with every key filled in; ConfigError with the places where a table or a key is missing."""
    binding = _Binding(tables)
    key = schema.primary_key or binding.own_key(schema.table, schema.place)
    bound = replace(schema, primary_key=key, fields=binding.fields(schema.fields, key))
    if schema.doc_id:
        binding.require_unique(schema.table, schema.doc_id, schema.place)
    if binding.findings:
        first = f"index {schema.index} does not fit the database: "
        raise ConfigError(
            first + "; ".join(f"{place}: {found}" if place.file else found for place, found in binding.findings),
            hint="Change the schema, or the tables.",
        )
    return bound


class _Binding:
    """One schema being bound, and what was found wrong so far."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.findings: list[tuple[Place, str]] = []

    def own_key(self, table: QualifiedTable, place: Place) -> Columns:
        info = self._tables.get(table)
        if info is None:
            self._found(place, f"there is no table {table}")
        elif not info.primary_key:
            self._found(place, f"table {table} has no primary key, and the schema names none (primary_key)")
        else:
            return info.primary_key
        return ()

    def require_unique(self, table: QualifiedTable, columns: Columns, place: Place) -> None:
        info = self._tables.get(table)
        if info and not any(index.identifies and set(index.columns) <= set(columns) for index in info.indexes):
            self._found(place, f"doc_id ({', '.join(columns)}) is not unique: no index over NOT NULL columns says so")

    def fields(self, fields: tuple[Field, ...], key: Columns) -> tuple[Field, ...]:
        return tuple(self._field(one, key) for one in fields)

    def _field(self, field: Field, key: Columns) -> Field:
        if isinstance(field, Group):
            return replace(field, fields=self.fields(field.fields, key))
        if isinstance(field, Join):
            own = field.primary_key or self.own_key(field.table, field.place)
            self._links(field, key, own)
            return replace(field, primary_key=own, fields=self.fields(field.fields, own))
        if isinstance(field, Aggregate):
            own = field.primary_key or self._key_of(field)
            self._links(field, key, own)
            if field.kind is AggregateKind.IDS and len(own) > 1:
                self._found(field.place, f"field {field.key}: ids of {field.table} have several columns; ids lists one")
            return replace(field, primary_key=own)
        return field

    def _key_of(self, field: Aggregate) -> Columns:
        """The key, where the aggregate needs one: to list it, or because a junction points at it."""
        needed = field.through or field.kind is AggregateKind.IDS
        return self.own_key(field.table, field.place) if needed else ()

    def _links(self, field: Join | Aggregate, key: Columns, own: Columns) -> None:
        """The columns at both ends of a link; an end that is not known was reported already."""
        if field.through:
            pairs = [(field.through.left_key, key), (field.through.right_key, own)]
        elif isinstance(field, Join) and field.kind is JoinKind.BELONGS_TO:
            pairs = [(field.column, own)]
        else:
            pairs = [(field.foreign_key, key)]
        for here, there in pairs:
            if there and len(here) != len(there):
                ends = f"({', '.join(here)}) cannot refer to the key ({', '.join(there)})"
                self._found(field.place, f"field {field.key}: {ends}: the number of columns differs")

    def _found(self, place: Place, what: str) -> None:
        if (place, what) not in self.findings:
            self.findings.append((place, what))
