"""One moment of the database, shared by many connections.

A transaction exports its snapshot; others adopt it, at any time while the first is open, and see the same rows. The
tables are locked first (ACCESS SHARE, as any query does), so that no TRUNCATE and no rewriting ALTER can empty them
under a reader that comes later.

Guarantees: a connection that adopted a snapshot sees exactly its rows, or the caller gets an error: the server itself
is compared, too, where a host name stands for several. Row-level security that would hide rows is an error.
Deliberately not: holding a snapshot for other processes (`holder`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import psycopg

from penstock.errors import OperatorError
from penstock.model import QualifiedTable, literal, quote
from penstock.postgres.connection import ConnectionSettings, open_sql
from penstock.postgres.sqlstate import translating

if TYPE_CHECKING:  # it brings Arrow, which a process that only keeps snapshots open does without
    from penstock.postgres.snapshot_plan import Selection

Connection = psycopg.Connection[tuple[Any, ...]]

# A reader waits this long behind a statement that wants the table for itself and in turn waits for the snapshot's end.
_LOCK_S = 10
# The server ends an exporting transaction that nobody pinged for this long: its holder, or its machine, is gone.
_ABANDONED_S = 60

_STATE = "SELECT pg_catalog.pg_current_snapshot()::text, pg_catalog.pg_postmaster_start_time()::text"
_SHAPE = """
SELECT a.attname::text, a.atttypid, a.atttypmod FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped
"""
# The catalog is read as of the snapshot, the function tells of now.
_MOVED = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class c
    WHERE (c.oid = {table}::regclass OR c.oid IN (SELECT relid FROM pg_catalog.pg_partition_tree({table}::regclass)))
    AND c.relfilenode <> pg_catalog.pg_relation_filenode(c.oid)
)
"""
# What the server answers where the exporting transaction is over, or was never its own.
_GONE = frozenset({"22023", "42704", "55000"})


@dataclass(frozen=True, slots=True)
class Ticket:
    """How to adopt an exported snapshot: its name, what it shows, and the server that has it."""

    name: str
    state: str
    server: str
    host: str
    port: str


class Lockable(Protocol):
    """A table, and whether the server lets it be locked."""

    @property
    def table(self) -> QualifiedTable: ...
    @property
    def lockable(self) -> bool: ...


class Export:
    """An open transaction whose snapshot others adopt. It holds back vacuum: close it as soon as all have read."""

    def __init__(self, settings: ConnectionSettings, tables: Iterable[Lockable] = ()) -> None:
        self._connection = open_reading(settings)
        try:
            with translating("exporting a snapshot"):
                self._connection.execute(f"SET idle_in_transaction_session_timeout = '{_ABANDONED_S}s'")
                self.ticket = take_ticket(self._connection, tables)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def ping(self) -> None:
        """Show the server that somebody is still there, more often than every minute."""
        with translating("holding a snapshot"):
            self._connection.execute("SELECT")

    def close(self) -> None:
        """End the transaction: from now on nobody can adopt its snapshot."""
        self._connection.close()


def take_ticket(connection: Connection, tables: Iterable[Lockable], adopted: str | None = None) -> Ticket:
    """Start a transaction and export what it sees: this moment, or the snapshot that somebody else exported."""
    if adopted is None:
        begin(connection, tables)
    else:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(f"SET TRANSACTION SNAPSHOT {literal(adopted)}".encode())
        lock(connection, tables)
    state, server = _row(connection, _STATE)
    (name,) = _row(connection, "SELECT pg_catalog.pg_export_snapshot()")
    return Ticket(name, state, server, connection.info.host, str(connection.info.port))


def was_written_anew(connection: Connection, table: QualifiedTable) -> bool:
    """Whether an ALTER TABLE came between the adopted snapshot and the lock: to that snapshot the table is empty."""
    (found,) = _row(connection, _MOVED.format(table=literal(table.sql)))
    return bool(found)


def open_reading(settings: ConnectionSettings) -> Connection:
    """A connection that reads every row, or fails."""
    connection = open_sql(settings)
    try:
        with translating("opening a snapshot"):
            connection.execute("SET row_security = off")
    except BaseException:
        connection.close()
        raise
    return connection


def begin(connection: Connection, tables: Iterable[Lockable]) -> None:
    """Start a transaction that sees one moment, with the tables locked before that moment is chosen."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    lock(connection, tables)


def lock(connection: Connection, tables: Iterable[Lockable]) -> None:
    """Keep others from truncating or rewriting the tables until the transaction ends."""
    connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_S}s'")
    for one in tables:
        if one.lockable:
            connection.execute(f"LOCK TABLE {one.table.sql} IN ACCESS SHARE MODE".encode())


def adopt(settings: ConnectionSettings, ticket: Ticket, selection: Selection) -> Connection:
    """A connection of the caller's own, inside the exported snapshot."""
    connection = open_reading(_pinned(settings, ticket))
    try:
        with translating(f"reading a snapshot of {selection.table}"):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            _import(connection, ticket)
            lock(connection, [selection])
            check_shape(connection, selection)
    except BaseException:
        connection.close()
        raise
    return connection


def check_shape(connection: Connection, selection: Selection) -> None:
    """Make sure that the table's columns are still those that the read was planned with."""
    table = selection.table
    found = {name: kind for name, *kind in connection.execute(_SHAPE, [table.schema, table.name])}
    changed = [c.name for c in selection.columns if found.get(c.name) != [c.type_oid, c.typmod]]
    if changed:
        raise OperatorError(
            f"table {table} was altered after the read was planned: column {quote(changed[0])} is not what it was",
            hint="Load it again.",
        )


def _import(connection: Connection, ticket: Ticket) -> None:
    try:
        connection.execute(f"SET TRANSACTION SNAPSHOT {literal(ticket.name)}".encode())
    except psycopg.Error as error:
        if error.sqlstate not in _GONE:
            raise
        raise gone("the server no longer has it", sqlstate=error.sqlstate) from None
    if _row(connection, _STATE) != (ticket.state, ticket.server):
        raise gone(f"{ticket.host} leads to another server here than where it was taken")


def gone(why: str, *, sqlstate: str | None = None) -> OperatorError:
    """The error for a snapshot that cannot be adopted any more."""
    return OperatorError(
        f"the snapshot that this read shares is gone: {why}",
        hint="Rows of different moments are never mixed, so the read ends here. Run it again: it takes a new snapshot.",
        sqlstate=sqlstate,
    )


def _pinned(settings: ConnectionSettings, ticket: Ticket) -> ConnectionSettings:
    """Of several hosts, the one that has the snapshot."""
    endpoints = settings.endpoints
    if len(endpoints) == 1:
        return settings
    found = [one for one in endpoints if ticket.host in (one.host, one.hostaddr) and one.port == ticket.port]
    return settings.merged(found[0]._asdict()) if found else settings


def _row(connection: Connection, query: str) -> Sequence[Any]:
    return connection.execute(query.encode()).fetchone()  # type: ignore[return-value]  # a query of one row
