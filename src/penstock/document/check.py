"""What is wrong with a schema, as values: each finding with its place in the file and what fixes it.

`check_columns` and `check_links` judge one schema by what the catalog said, without a connection: columns, types,
nullability, keys, links, indexes. `check_filters` and `check_source` ask the server the rest; `check_live` runs all.
Guarantees: deterministic; every finding is reported, not only the first; nothing in a message comes from a row.
Deliberately not: what a file may say at all (`reading`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.document.schema import NOWHERE, Columns, Place
from penstock.model import QualifiedTable
from penstock.postgres.catalog import ColumnInfo, TableInfo
from penstock.postgres.type_catalog import TypeInfo


class Severity(StrEnum):
    """How bad a finding is: an index cannot be kept right; it can, at a price; worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. `code` is a word that stays the same; `hint` is what to change, `sql` what to run.

    `index` is empty where it is about the server or the deployment as a whole.
    """

    severity: Severity
    code: str
    message: str
    index: str = ""
    place: Place = NOWHERE
    hint: str = ""
    sql: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the catalog says: tables by name, types by oid. `others` are tables that no schema names, for a guess."""

    tables: Mapping[QualifiedTable, TableInfo]
    types: Mapping[int, TypeInfo] = field(default_factory=dict)
    others: tuple[QualifiedTable, ...] = ()

    def column(self, table: QualifiedTable, name: str) -> ColumnInfo | None:
        """The column, or None."""
        info = self.tables.get(table)
        return next((column for column in info.columns if column.name == name), None) if info else None

    def type(self, table: QualifiedTable, name: str) -> TypeInfo | None:
        """What a column's type really is, or None where there is no such column."""
        column = self.column(table, name)
        return self.types.get(column.type_oid) if column else None

    def key(self, table: QualifiedTable, given: Columns) -> Columns:
        """The key that a file gives, else the table's own."""
        info = self.tables.get(table)
        return given or (info.primary_key if info else ())


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was found."""

    diagnostics: tuple[Diagnostic, ...] = ()

    def of(self, severity: Severity) -> tuple[Diagnostic, ...]:
        """The findings of one severity."""
        return tuple(one for one in self.diagnostics if one.severity is severity)

    @property
    def worst(self) -> Severity | None:
        """The gravest severity that occurs."""
        return next((severity for severity in Severity if self.of(severity)), None)


def in_order(found: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Each finding once: by index, then by place, the grave ones first."""
    ranks = list(Severity)
    unique: Iterator[Diagnostic] = iter(dict.fromkeys(found))
    return tuple(sorted(unique, key=lambda one: (one.index, one.place, ranks.index(one.severity), one.message)))
