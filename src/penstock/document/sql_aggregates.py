"""Aggregates of a row over rows of another table: those over the same rows are computed by reading them once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.document.schema import Aggregate, AggregateKind, Columns, Filter, Through
from penstock.document.sql_catalog import SqlCatalog
from penstock.document.sql_scope import Scope
from penstock.document.sql_source import Source, joined_source
from penstock.document.sql_values import column_json, number_json
from penstock.model import QualifiedTable

_SUMS = {"smallint": "bigint", "integer": "bigint", "bigint": "numeric"}
_Same = tuple[QualifiedTable, Columns, Through | None, Columns, tuple[Filter, ...]]


@dataclass(slots=True)
class _Reading:
    """Rows that are read once, and what is computed over them."""

    name: str
    rows: Source
    computed: dict[str, str] = field(default_factory=dict)

    def value(self, expression: str) -> str:
        number = self.computed.setdefault(expression, f"a{len(self.computed)}")
        return f"{self.name}.{number}"


class Aggregates:
    """The aggregates of one level of a document."""

    def __init__(self, catalog: SqlCatalog, index: str, numbers: Iterator[int]) -> None:
        self._catalog = catalog
        self._index = index
        self._numbers = numbers
        self._readings: dict[_Same, _Reading] = {}

    def value(self, one: Aggregate, above: Scope, ours: Columns) -> str:
        """The aggregate's value as JSON."""
        reading = self._reading(one, above, ours)
        if one.kind is AggregateKind.COUNT:
            return f"coalesce({reading.value('count(*)')}, 0)"
        if one.kind is AggregateKind.IDS:
            return self._ids(one, reading)
        column = reading.rows.column(one.column)
        kind = self._catalog.type_of(one.table, one.column, self._index)
        if one.kind is AggregateKind.AVG:
            return number_json(reading.value(f"avg({column})::double precision"))
        if one.kind is AggregateKind.SUM:
            kind = _SUMS.get(kind, kind)
        return column_json(reading.value(f"{one.kind}({column})"), kind)

    def _ids(self, one: Aggregate, reading: _Reading) -> str:
        (name,) = one.primary_key
        column = reading.rows.column(name)
        each = column_json(column, self._catalog.type_of(one.table, name, self._index))
        listed = reading.value(f"string_agg({each}, ',' ORDER BY {column})")
        return f"concat('[', {listed}, ']')"

    def _reading(self, one: Aggregate, above: Scope, ours: Columns) -> _Reading:
        key = one.primary_key if one.through else ()
        same = (one.table, one.foreign_key, one.through, key, one.filters)
        if same not in self._readings:
            number = next(self._numbers)
            rows, _ = joined_source(one, above, ours, self._catalog, self._index)
            rows.name = f"t{number}"
            self._readings[same] = _Reading(f"r{number}", rows)
        return self._readings[same]

    def made(self) -> Iterator[tuple[str, str, list[str]]]:
        """What is read: the name of each source, its SQL, and the types of its links."""
        for reading in self._readings.values():
            links = reading.rows.links()
            listed = [f"{link} AS l{n}" for n, link in enumerate(links)]
            computed = [f"{expression} AS {name}" for expression, name in reading.computed.items()]
            chosen = ", ".join([*listed, *computed])
            made = f"SELECT {chosen}\nFROM {reading.rows.sql()}\nGROUP BY {', '.join(links)}"
            yield reading.name, made, reading.rows.link_kinds
