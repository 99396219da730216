"""Whether the columns that documents are made of are still what they were when the schemas were bound.

Guarantees: reads the catalog only, in one short connection; an index is named by the first column that is gone or of
another type. What a schema does not name may change as it likes. Deliberately not: the columns inside a condition in
SQL, which only the server can find: a statement that fails because of them tells of itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.contracts import Catalog
from penstock.document.check import Facts
from penstock.document.check_uses import uses
from penstock.document.schema import DocumentSchema
from penstock.document.sql_catalog import SqlCatalog
from penstock.model import quote
from penstock.postgres.catalog import read_tables
from penstock.postgres.connection import open_sql
from penstock.postgres.domains import base_types
from penstock.postgres.settings import ConnectionSettings


def drifted(settings: ConnectionSettings, schemas: Iterable[DocumentSchema], before: Catalog) -> dict[str, str]:
    """The indexes (of bound schemas) that the database no longer fits, each with what is wrong."""
    chosen = list(schemas)
    tables = {table for schema in chosen for table in schema.tables}
    with open_sql(settings) as connection:
        now = SqlCatalog(read_tables(connection, tables), base_types(connection))
    return {schema.index: found for schema in chosen if (found := _drift(schema, before, now))}


def _drift(schema: DocumentSchema, before: Catalog, now: SqlCatalog) -> str:
    """What is wrong, or nothing."""
    for use in uses(schema, Facts(now.tables)):
        was, found = before.column(use.table, use.column), now.column(use.table, use.column)
        if was is None:
            continue  # no column of its own, such as the system's
        if found is None:
            return f"column {quote(use.column)} of {use.table} is gone"
        if found.name != was.name:
            return f"column {quote(use.column)} of {use.table} was {was.name} and is {found.name} now"
    return ""
