"""What this session may read, and whether the server can stream at all.

Guarantees: reads catalogs only, locks and writes nothing. Row-level security counts as a hindrance, not as a filter: a
session of ours switches it off, and the server then refuses instead of hiding rows. The right to replicate is found by
opening a replication connection, because managed services grant it in ways of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.model import QualifiedTable
from penstock.postgres import slot
from penstock.postgres.catalog import SqlConnection, one_snapshot
from penstock.postgres.connection import open_pgconn
from penstock.postgres.settings import ConnectionSettings
from penstock.postgres.sqlstate import translating

_ACCESS = """
SELECT wanted.schema, wanted.name, pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
       pg_catalog.has_table_privilege(c.oid, 'SELECT'),
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
               AND pg_catalog.has_column_privilege(c.oid, a.attnum, 'SELECT')),
       pg_catalog.row_security_active(c.oid)
FROM unnest(%s::text[], %s::text[]) AS wanted (schema, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.schema::name
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name::name
"""

_SERVER = """
SELECT current_user::text, pg_catalog.current_database()::text,
       pg_catalog.current_setting('wal_level'), pg_catalog.pg_is_in_recovery(),
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots),
       pg_catalog.current_setting('max_replication_slots')::int
"""


@dataclass(frozen=True, slots=True)
class Access:
    """What the session may read of a table. `unreadable` are wanted columns that it may not."""

    schema_usable: bool
    unreadable: tuple[str, ...]
    row_security: bool


@dataclass(frozen=True, slots=True)
class ServerState:
    """What a stream needs of the server beside a role's rights."""

    role: str
    database: str
    wal_level: str
    in_recovery: bool
    slots: int
    max_slots: int


def read_access(conn: SqlConnection, wanted: Mapping[QualifiedTable, Collection[str]]) -> dict[QualifiedTable, Access]:
    """For each table that exists, what of the wanted columns this session may read."""
    tables = sorted(wanted)
    with translating("asking what may be read"), one_snapshot(conn):
        rows = conn.execute(_ACCESS, [[t.schema for t in tables], [t.name for t in tables]]).fetchall()
    found: dict[QualifiedTable, Access] = {}
    for schema, name, usable, whole, readable, hidden in rows:
        table = QualifiedTable(schema, name)
        unreadable = () if whole else tuple(sorted(set(wanted[table]) - set(readable)))
        found[table] = Access(usable, unreadable, hidden)
    return found


def read_server(conn: SqlConnection) -> ServerState:
    """How the server stands now."""
    with translating("asking how the server is set up"):
        row: Any = conn.execute(_SERVER).fetchone()
    return ServerState(*row)


def try_replication(settings: ConnectionSettings) -> None:
    """Open a replication connection and close it again; the typed error where the server does not let us."""
    with psycopg.Connection(open_pgconn(settings, replication=True)) as connection, translating("trying to replicate"):
        connection.autocommit = True
        slot.execute(connection, "IDENTIFY_SYSTEM")
