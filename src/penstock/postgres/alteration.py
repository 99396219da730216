"""Putting tables into a publication without losing a change, and saying who is in the way.

Guarantees: all tables or none; after `add`, every row of them is either visible to any snapshot taken from then on,
or in the stream (E43), also rows of a transaction that wrote before and committed after; a wait for a lock is
bounded, because writers queue behind it. Deliberately not: deciding which tables (`coverage`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.errors import CoverageError
from penstock.model import Lsn, QualifiedTable, quote
from penstock.postgres.catalog import SqlConnection
from penstock.postgres.coverage import Addition, set_lock_timeout
from penstock.postgres.sqlstate import translate, translating

MARKER_PREFIX = "penstock"

# No lock in time, deadlocked, or cancelled by the statement timeout: others were in the way.
_IN_THE_WAY = frozenset({"55P03", "40P01", "57014"})
# Somebody else did the same at the same moment: seen (42710), or met on the catalog's unique index (23505).
_ALREADY_DONE = frozenset({"42710", "23505"})


def add(conn: SqlConnection, addition: Addition, lock_timeout_s: float) -> bool:
    """Add the tables and commit; False where somebody else was faster with some of them, and nothing was changed.

    The lock waits for every transaction that has written to the tables: its rows would be in neither stream nor
    snapshot otherwise. A publication made anew needs no lock: the slot that reads it comes later, and waits by itself.
    """
    locks = [] if addition.creates else [addition.lock]
    try:
        with conn.transaction():
            for statement in [set_lock_timeout(lock_timeout_s), *locks, addition.statement]:
                conn.execute(statement)
    except psycopg.Error as error:
        if error.sqlstate in _ALREADY_DONE:
            return False
        if error.sqlstate in _IN_THE_WAY:
            raise _blocked(conn, addition, lock_timeout_s, error.sqlstate) from None
        raise translate(error, f"changing publication {quote(addition.publication)}") from None
    return True


def emit_marker(conn: SqlConnection, publication: str) -> Lsn:
    """Write a marker into the WAL; whatever was committed before the call lies before the LSN that it returns."""
    with translating("writing a marker into the WAL"), conn.transaction():
        row: Any = conn.execute(
            "SELECT pg_catalog.pg_logical_emit_message(false, %s, %s)::text", [MARKER_PREFIX, f"coverage {publication}"]
        ).fetchone()
    return Lsn.parse(row[0])


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A session that keeps a table from being locked. What it runs is not read: a query may hold row values."""

    session: str
    state: str
    open_s: int | None

    def __str__(self) -> str:
        age = f", its transaction open for {self.open_s} s" if self.open_s is not None else ""
        return f"{self.session} ({self.state}{age})"


# The modes that conflict with SHARE ROW EXCLUSIVE. A prepared transaction has no process, only its transaction id.
_HOLDERS = """
WITH RECURSIVE family (oid) AS (
    SELECT c.oid FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN unnest(%s::text[], %s::text[]) AS wanted (schema, name)
      ON n.nspname = wanted.schema::name AND c.relname = wanted.name::name
    UNION
    SELECT i.inhrelid FROM family f JOIN pg_catalog.pg_inherits i ON i.inhparent = f.oid
)
SELECT DISTINCT
       CASE WHEN l.pid IS NULL THEN pg_catalog.concat_ws(' ', 'prepared transaction', p.gid)
            ELSE pg_catalog.concat_ws(' ', 'pid', l.pid, nullif(a.application_name, ''),
                                      nullif(a.backend_type, 'client backend')) END,
       coalesce(a.state, CASE WHEN l.pid IS NULL THEN 'prepared' ELSE 'state not visible' END),
       extract(epoch FROM pg_catalog.clock_timestamp() - coalesce(a.xact_start, p.prepared))::int
FROM pg_catalog.pg_locks l
JOIN family f ON f.oid = l.relation
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_catalog.pg_locks own ON l.pid IS NULL AND own.locktype = 'transactionid' AND own.granted
                                 AND own.virtualtransaction = l.virtualtransaction
LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = own.transactionid
WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
  AND l.mode IN ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock',
                 'ExclusiveLock', 'AccessExclusiveLock')
ORDER BY 1
"""


def find_lock_holders(conn: SqlConnection, tables: Iterable[QualifiedTable]) -> tuple[LockHolder, ...]:
    """Who holds a lock on these tables, or on partitions of them, that `add` has to wait for."""
    wanted = sorted(tables)
    with translating("asking who holds a lock"):
        rows = conn.execute(_HOLDERS, [[t.schema for t in wanted], [t.name for t in wanted]]).fetchall()
    return tuple(LockHolder(*row) for row in rows)


def _blocked(conn: SqlConnection, addition: Addition, waited_s: float, sqlstate: str | None) -> CoverageError:
    held_by = "; ".join(map(str, find_lock_holders(conn, addition.tables))) or "whoever held it has gone since"
    tables = ", ".join(map(str, sorted(addition.tables)))
    return CoverageError(
        f"no lock on {tables} within {waited_s:g} s: not published, nothing was changed; held by: {held_by}",
        hint="Try again when those transactions have ended, or end one with SELECT pg_terminate_backend(<pid>).",
        sqlstate=sqlstate,
    )
