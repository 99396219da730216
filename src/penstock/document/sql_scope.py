"""Which rows a build reads: from the keys or the range asked for, down the tree of a schema.

A scope belongs to a place in the tree and answers one question: which values may the columns of a joined table have,
so that its rows belong to the documents asked for? Guarantees: never too few rows (the joins sort out the rest), and
only those that the keys lead to, so that a small build reads little whatever the tables hold. A build of the whole
table restricts nothing where a foreign key says that every row belongs somewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.document.schema import Columns
from penstock.document.sql_catalog import SqlCatalog, same_order, same_text
from penstock.document.sql_filters import operator
from penstock.model import QualifiedTable, quote


@dataclass(frozen=True, slots=True)
class Link:
    """Columns of a table that hold values of another's."""

    table: QualifiedTable
    columns: Columns

    def sql(self, alias: str = "") -> list[str]:
        """The columns, by an alias or by the name of their table."""
        return [f"{alias or quote(self.table.name)}.{quote(column)}" for column in self.columns]


class Scope(Protocol):
    """The rows at one place of the tree that a build may need."""

    @property
    def everything(self) -> bool:
        """Whether they are all rows of their table."""

    def restrict(self, link: Link, to: Columns) -> str:
        """The condition that `link` holds values of the columns `to` of those rows; empty: no condition."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The root rows asked for: `keys` by arrays in `$1` …, otherwise a range whose open ends are not given."""

    table: QualifiedTable
    key: Columns
    catalog: SqlCatalog
    index: str
    keys: bool
    after: bool = False
    upto: bool = False
    conditions: tuple[str, ...] = ()

    @property
    def everything(self) -> bool:
        return not (self.keys or self.after or self.upto or self.conditions)

    @property
    def kinds(self) -> list[str]:
        """The types of the key's columns."""
        return [self.catalog.type_of(self.table, column, self.index) for column in self.key]

    def own(self) -> list[str]:
        """The conditions that the root rows themselves fulfil."""
        asked = self._asked(Link(self.table, self.key).sql())
        return [*([asked] if asked else []), *self.conditions]

    def restrict(self, link: Link, to: Columns) -> str:
        if self.everything and self.catalog.refers(link.table, link.columns, self.table, to):
            return ""
        if self._direct(link, to):
            order = [link.columns[to.index(column)] for column in self.key]
            return self._asked(Link(link.table, tuple(order)).sql())
        return contained(link, Link(self.table, to), self.own(), self.catalog, self.index)

    def _direct(self, link: Link, to: Columns) -> bool:
        """Whether the link holds the keys themselves, so that the root need not be read."""
        if sorted(to) != sorted(self.key) or not (self.keys or self.after or self.upto):
            return False
        alike = same_text if self.keys else same_order
        pairs = zip(to, link.columns, strict=True)
        kinds = dict(zip(self.key, self.kinds, strict=True))
        return all(alike(kinds[own], self.catalog.type_of(link.table, one, self.index)) for own, one in pairs)

    def _asked(self, columns: Sequence[str]) -> str:
        if self.keys:
            return among_keys(columns, self.kinds)
        first = 1 + len(columns) if self.after else 1
        parts = [_compared(columns, ">", self.kinds, 1)] if self.after else []
        return " AND ".join([*parts, *([_compared(columns, "<=", self.kinds, first)] if self.upto else [])])


@dataclass(frozen=True, slots=True)
class Within:
    """The rows of a joined table that belong to rows of another scope."""

    table: QualifiedTable
    conditions: tuple[str, ...]
    catalog: SqlCatalog
    index: str

    @property
    def everything(self) -> bool:
        return not self.conditions

    def restrict(self, link: Link, to: Columns) -> str:
        if self.everything and self.catalog.refers(link.table, link.columns, self.table, to):
            return ""
        return contained(link, Link(self.table, to), self.conditions, self.catalog, self.index)


def contained(link: Link, of: Link, conditions: Sequence[str], catalog: SqlCatalog, index: str) -> str:
    """The condition that `link` holds values that `of` has in rows that fulfil the conditions."""
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    kinds = [catalog.type_of(of.table, column, index) for column in of.columns]
    symbol = operator("=", kinds[0]) if len(kinds) == 1 else "="
    return f"{_row(link.sql())} {symbol} ANY (SELECT {', '.join(of.sql())} FROM {of.table.sql}{where})"


def among_keys(columns: Sequence[str], kinds: Sequence[str]) -> str:
    """That the columns hold a key of the arrays in `$1` …, one array for each column."""
    if len(columns) == 1:
        return f"{columns[0]} {operator('=', kinds[0])} ANY ($1::{kinds[0]}[])"
    arrays = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(kinds, 1))
    return f"{_row(columns)} = ANY (SELECT * FROM unnest({arrays}))"


def _compared(columns: Sequence[str], symbol: str, kinds: Sequence[str], first: int) -> str:
    values = [f"${n}::{kind}" for n, kind in enumerate(kinds, first)]
    return f"{_row(columns)} {operator(symbol, kinds[0]) if len(kinds) == 1 else symbol} {_row(values)}"


def _row(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
