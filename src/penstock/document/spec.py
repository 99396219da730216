"""`SourceSpec`: what the documents of a deployment read from their source.

Guarantees: plain values, picklable, no I/O. It answers which tables have to be published and which columns of them a
thin change has to carry, so that every change can be traced to its documents. Deliberately not: knowing the database;
columns of keys that the files leave to the tables' own are known once `binding` has filled them in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.document.paths import entries
from penstock.document.schema import DocumentSchema
from penstock.errors import ConfigError
from penstock.model import QualifiedTable


@dataclass(frozen=True, slots=True, init=False)
class SourceSpec:
    """The schemas of every enabled index."""

    schemas: tuple[DocumentSchema, ...]

    def __init__(self, schemas: Sequence[DocumentSchema]) -> None:
        names = [schema.index for schema in schemas]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"two indexes are named {', '.join(twice)}", hint="Give each index a name of its own.")
        object.__setattr__(self, "schemas", tuple(schemas))

    @property
    def all_tables(self) -> frozenset[QualifiedTable]:
        """Every table that any index reads."""
        return frozenset(table for schema in self.schemas for table in schema.tables)

    def schema(self, index: str) -> DocumentSchema:
        """The schema of one index."""
        for schema in self.schemas:
            if schema.index == index:
                return schema
        known = ", ".join(schema.index for schema in self.schemas)
        raise ConfigError(f"there is no index {index}", hint=f"There are: {known}.")

    def thin_columns(self) -> Mapping[QualifiedTable, Sequence[str]]:
        """For each table, the columns by which its changes lead to documents: for `ReplicationConfig.columns`."""
        found: dict[QualifiedTable, dict[str, None]] = {}
        for schema in self.schemas:
            for table, columns in entries(schema):
                found.setdefault(table, {}).update(dict.fromkeys(columns))
        return {table: tuple(columns) for table, columns in found.items()}
