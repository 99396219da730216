"""What the makers of statements ask about tables: types, what is unique, what is a foreign key.

Guarantees: plain answers from what the catalog said at one moment; a column that is missing is a ConfigError that
names the index and the column. Types are given as they are cast to: without the length or precision of a column, by
which a cast would cut or round a value. Deliberately not: asking the database (`read` in `penstock.postgres` does).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.contracts import ColumnType
from penstock.document.schema import Columns
from penstock.errors import ConfigError
from penstock.model import QualifiedTable, quote
from penstock.postgres.catalog import TableInfo

_MODIFIER = re.compile(r"\(\d+(,-?\d+)?\)")
# Without a length these two words would mean a length of one.
_UNBOUNDED = {"character": "bpchar", "bit": "varbit"}
# Types whose values have one text each, by families within which equal values have equal texts.
_FAMILIES = [
    {"smallint", "integer", "bigint"},
    {"text", "character varying"},
    *({one} for one in ("uuid", "boolean", "date", "timestamp without time zone", "timestamp with time zone")),
]
# Types of which no collation can make another order.
_ORDERED = {"smallint", "integer", "bigint", "uuid", "date", "timestamp without time zone", "timestamp with time zone"}


def unmodified(type_name: str) -> str:
    """The type without length or precision."""
    array = "[]" if type_name.endswith("[]") else ""
    plain = _MODIFIER.sub("", type_name.removesuffix("[]"))
    return _UNBOUNDED.get(plain, plain) + array


@dataclass(frozen=True, slots=True)
class SqlCatalog:
    """The tables of a deployment as statements see them; `bases` has the type below each domain, by its name."""

    tables: Mapping[QualifiedTable, TableInfo]
    bases: Mapping[str, str] = field(default_factory=dict)

    def column(self, table: QualifiedTable, name: str) -> ColumnType | None:
        """The column's type, or None where there is no such table or column."""
        for column in self.tables[table].columns if table in self.tables else ():
            if column.name == name:
                base = self.bases.get(unmodified(column.type_name), column.type_name)
                return ColumnType(column.type_name, column.nullable, base)
        return None

    def type_of(self, table: QualifiedTable, name: str, index: str) -> str:
        """The column's base type, without modifiers."""
        found = self.column(table, name)
        if found is None:
            raise ConfigError(
                f"index {index}: table {table} has no column {quote(name)}",
                hint="Correct the name in the schema, or add the column.",
            )
        return unmodified(found.base)

    def is_unique(self, table: QualifiedTable, columns: Columns) -> bool:
        """Whether no two rows can hold the same values there, nulls aside."""
        info = self.tables.get(table)
        return info is not None and any(
            index.unique and index.valid and not index.partial and not index.expression
            and set(index.columns) <= set(columns)
            for index in info.indexes
        )  # fmt: skip

    def refers(self, table: QualifiedTable, columns: Columns, to: QualifiedTable, key: Columns) -> bool:
        """Whether a foreign key holds the columns to rows that exist."""
        info = self.tables.get(table)
        wanted = set(zip(columns, key, strict=True))
        return info is not None and any(
            one.references == to and set(zip(one.columns, one.referenced_columns, strict=True)) == wanted
            for one in info.foreign_keys
        )


def same_text(one: str, other: str) -> bool:
    """Whether equal values of the two types are printed alike."""
    return any(one in family and other in family for family in _FAMILIES)


def same_order(one: str, other: str) -> bool:
    """Whether a range of values means the same in columns of the two types."""
    return one in _ORDERED and same_text(one, other)
