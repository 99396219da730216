"""The statement that builds documents: one for a whole array of root keys, or for a range of them.

Set-based: each relation is read once for all documents asked for, grouped by its link, and joined to the rows above;
Postgres assembles the JSON as text. The result has the key's columns and, last, the body. Guarantees: a row a
document; the rows of an array stand in the order asked for, then by their key, so that the same data give the same
bytes; no statement a row, at any depth. Deliberately not: running anything.

In a build by keys the relations are joined by FULL JOIN, of which the rows without a partner are dropped: it means the
same as LEFT JOIN, and cannot be run as a loop over one side for each row of the other. A planner that takes ten
thousand keys for ten (they are parameters) or a table for empty would choose that, and be slow by their product.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

from penstock.document.paths import root_key
from penstock.document.schema import (
    Aggregate,
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
)
from penstock.document.sql_aggregates import Aggregates
from penstock.document.sql_catalog import SqlCatalog
from penstock.document.sql_filters import Conditions, operator
from penstock.document.sql_scope import Asked, Scope
from penstock.document.sql_source import Source, joined_source, root_source
from penstock.document.sql_text import Text
from penstock.document.sql_values import column_json, geo_json, json_literal


def build_by_keys(schema: DocumentSchema, catalog: SqlCatalog) -> str:
    """Documents by their keys: `$1` is an array of the key's first column, `$2` of its second, and so on."""
    return _Statement(schema, catalog, "FULL JOIN").build(_asked(schema, catalog, keys=True))


def build_by_range(schema: DocumentSchema, catalog: SqlCatalog, *, after: bool, upto: bool) -> str:
    """Documents of a range: the key after which it begins, where given, then the last key of it, where given."""
    asked = replace(_asked(schema, catalog, keys=False), after=after, upto=upto)
    return _Statement(schema, catalog, "LEFT JOIN").build(asked)


def _asked(schema: DocumentSchema, catalog: SqlCatalog, *, keys: bool) -> Asked:
    conditions = Conditions(schema.table, catalog, schema.index)
    wanted = conditions.all(schema.filters)
    if schema.soft_delete:
        wanted.append(conditions.not_deleted(schema.soft_delete))
    return Asked(schema.table, root_key(schema), catalog, schema.index, keys, conditions=tuple(wanted))


class _Statement:
    """One statement in the making: names for its parts, and how relations are joined."""

    def __init__(self, schema: DocumentSchema, catalog: SqlCatalog, joining: str) -> None:
        self.schema = schema
        self.catalog = catalog
        self.joining = joining
        self.numbers = itertools.count(1)

    def build(self, asked: Asked) -> str:
        rows = root_source(self.schema.table, asked.own())
        level = _Level(self, rows, asked, self.schema.primary_key)
        body = level.object(self.schema.fields).sql()
        key = [rows.column(name) for name in asked.key]
        return f"SELECT {', '.join(key)}, {body} AS body\n{level.sources()}"


class _Level:
    """Rows of one table with what hangs on them: relations and aggregates, each a source more to join."""

    def __init__(self, statement: _Statement, rows: Source, scope: Scope, key: Columns) -> None:
        self._statement = statement
        self._rows = rows
        self._scope = scope
        self._key = key
        self._joins: list[str] = []
        self._aggregates = Aggregates(statement.catalog, statement.schema.index, statement.numbers)

    def object(self, fields: tuple[Field, ...]) -> Text:
        """The row as a JSON object."""
        text = Text("{")
        for number, field in enumerate(fields):
            text.add(f"{',' if number else ''}{json.dumps(field.key, ensure_ascii=False)}:")
            self._add(text, field)
        text.add("}")
        return text

    def _add(self, text: Text, field: Field) -> None:
        if isinstance(field, Constant):
            text.add(json_literal(field.value))
        elif isinstance(field, Group):
            text.extend(self.object(field.fields))
        else:
            text.expression(self._value(field))

    def _value(self, field: Scalar | Geo | OpenMap | Join | Aggregate) -> str:
        if isinstance(field, Join):
            return self._relation(field)
        if isinstance(field, Aggregate):
            return self._aggregates.value(field, self._scope, self._key)
        if isinstance(field, Geo):
            names = (field.column,) if field.column else (field.lat, field.lon)
            return geo_json(field, tuple(map(self._rows.column, names)), tuple(map(self._kind, names)))
        found = self._rows.column(field.column)
        return column_json(found, self._kind(field.column), field if isinstance(field, Scalar) else None)

    def _kind(self, column: str) -> str:
        return self._statement.catalog.type_of(self._rows.table, column, self._statement.schema.index)

    def _relation(self, join: Join) -> str:
        """The relation's value; what it is read from is added to the joins."""
        statement, name = self._statement, f"r{next(self._statement.numbers)}"
        ours = join.column if join.kind is JoinKind.BELONGS_TO else self._key
        rows, scope = joined_source(join, self._scope, ours, statement.catalog, statement.schema.index)
        rows.name = name.replace("r", "t")
        level = _Level(statement, rows, scope, join.primary_key)
        body = level.object(join.fields).sql()
        single = join.kind in (JoinKind.BELONGS_TO, JoinKind.HAS_ONE)
        links = rows.links()
        listed = ", ".join(f"{link} AS l{n}" for n, link in enumerate(links))
        if single:
            made = f"SELECT {listed}, {body} AS v\n{level.sources()}"
        else:
            listing = f"concat('[', string_agg({body}, ',' ORDER BY {', '.join(rows.order(join))}), ']')"
            made = f"SELECT {listed}, {listing} AS v\n{level.sources()}\nGROUP BY {', '.join(links)}"
        self._join(name, made, ours, rows.link_kinds)
        empty = "'null'" if single else "'[]'"
        return f"coalesce({name}.v, {empty})"

    def _join(self, name: str, made: str, ours: Columns, kinds: list[str]) -> None:
        same = [
            f"{name}.l{n} {operator('=', kind)} {self._rows.column(column)}"
            for n, (column, kind) in enumerate(zip(ours, kinds, strict=True))
        ]
        self._joins.append(f"{self._statement.joining} (\n{made}\n) AS {name} ON {' AND '.join(same)}")

    def sources(self) -> str:
        """FROM and, where needed, WHERE. To be asked for last: only then is it known which columns are used."""
        for name, made, kinds in self._aggregates.made():
            self._join(name, made, self._key, kinds)
        full = self._statement.joining == "FULL JOIN" and bool(self._joins)
        where = [f"coalesce({self._rows.name}.{self._rows.HERE}, false)"] if full else []
        if full:
            self._rows.mark()
        source = "\n".join([f"FROM {self._rows.sql()}", *self._joins])
        return source + (f"\nWHERE {' AND '.join(where)}" if where else "")
