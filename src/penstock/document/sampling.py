"""A few keys of an index, to show documents of it without building them all.

Guarantees: reads no more than the first rows that the server comes upon. Deliberately not: telling whether those rows
have a document; a filter may leave them out.
"""

from __future__ import annotations

from penstock.contracts import Key
from penstock.document.paths import root_key
from penstock.document.schema import DocumentSchema
from penstock.model import quote
from penstock.postgres.connection import open_sql
from penstock.postgres.settings import ConnectionSettings
from penstock.postgres.sqlstate import translating

_STATEMENT_TIMEOUT_S = 60.0


def first_keys(settings: ConnectionSettings, schema: DocumentSchema, count: int) -> list[Key]:
    """Keys of root rows of a bound schema, as Postgres prints them."""
    columns = ", ".join(f"{quote(name)}::pg_catalog.text" for name in root_key(schema))
    query = f"SELECT {columns} FROM {schema.table.sql} LIMIT {count}"
    with open_sql(settings, statement_timeout_s=_STATEMENT_TIMEOUT_S) as conn, translating("reading keys"):
        conn.execute("SET row_security = off")
        return [key for key in conn.execute(query).fetchall() if None not in key]
