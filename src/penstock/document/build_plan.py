"""What a builder works by: the schemas bound to the catalog as it was read, and every statement written out.

Guarantees: read in a moment, then only looked at; which table a partition's changes belong to is part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.document.binding import bind
from penstock.document.paths import paths
from penstock.document.schema import DocumentSchema
from penstock.document.spec import SourceSpec
from penstock.document.sql_build import build_by_keys, build_by_range
from penstock.document.sql_catalog import SqlCatalog
from penstock.document.sql_resolve import Resolution, resolution
from penstock.errors import ConfigError
from penstock.model import QualifiedTable
from penstock.postgres.catalog import read_tables
from penstock.postgres.connection import ConnectionSettings, open_sql
from penstock.postgres.domains import base_types


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """The statements of one index. `by_range` is chosen by which ends of the range are given."""

    schema: DocumentSchema
    resolutions: tuple[Resolution, ...]
    by_keys: str
    by_range: Mapping[tuple[bool, bool], str]


@dataclass(slots=True)
class SourcePlan:
    """All indexes. `names` has the table of the schemas for each name that changes come under; None: of no interest."""

    spec: SourceSpec
    catalog: SqlCatalog
    indexes: Mapping[str, IndexPlan]
    names: dict[str, QualifiedTable | None]

    def index(self, name: str) -> IndexPlan:
        """The plan of one index."""
        if name not in self.indexes:
            raise ConfigError(f"there is no index {name}", hint=f"There are: {', '.join(self.indexes)}.")
        return self.indexes[name]

    def learn(self, name: str, settings: ConnectionSettings) -> None:
        """Find out whether a table that changes name is a partition that was made since."""
        table = QualifiedTable.parse(name)
        with open_sql(settings) as connection:
            info = read_tables(connection, {table}).get(table)
        ours = self.spec.all_tables
        self.names[name] = next((above for above in info.ancestors if above in ours), None) if info else None


def plan_index(schema: DocumentSchema, catalog: SqlCatalog) -> IndexPlan:
    """The statements of a bound schema."""
    ends = [(after, upto) for after in (False, True) for upto in (False, True)]
    return IndexPlan(
        schema,
        tuple(resolution(path, schema, catalog) for path in paths(schema)),
        build_by_keys(schema, catalog),
        {(after, upto): build_by_range(schema, catalog, after=after, upto=upto) for after, upto in ends},
    )


def read_plan(spec: SourceSpec, settings: ConnectionSettings) -> SourcePlan:
    """Bind the schemas to what the database holds now."""
    with open_sql(settings) as connection:
        tables = read_tables(connection, spec.all_tables)
        catalog = SqlCatalog(tables, base_types(connection))
    bound = SourceSpec([bind(schema, tables) for schema in spec.schemas])
    names: dict[str, QualifiedTable | None] = {
        str(leaf): table for table, info in tables.items() for leaf in info.partitions
    }
    names.update({str(table): table for table in tables})
    return SourcePlan(bound, catalog, {one.index: plan_index(one, catalog) for one in bound.schemas}, names)
