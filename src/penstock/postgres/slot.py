"""The one home of replication slots: create, inspect, verify, advance, drop, lag.

Every function takes an open connection, for SQL or for replication, and uses the simple query protocol, which both
understand. Errors are recognised by SQLSTATE; where one state has several causes (55000), the slot and the server are
looked at and the cause is named. Deliberately not: waiting for a slot to become free (`replication` does that).
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import pq

from penstock.errors import (
    ConfigError,
    OperatorError,
    PenstockError,
    PositionError,
    PrivilegeError,
    RecoveryError,
    SlotLostError,
    SlotMismatchError,
    SlotMissingError,
    UnavailableError,
    WalLevelError,
)
from penstock.model import Lsn, literal, quote
from penstock.postgres.connection import translate, translating
from penstock.postgres.refusal import allow_replication

Connection = psycopg.Connection[tuple[Any, ...]]

_PLUGIN = "pgoutput"
_ASK_BLOCKERS_AFTER_S = 3.0
_CANCEL_S = 5.0
# How long a slot may be seen without its plugin while somebody makes it: a moment, on a busy server.
_NAMING_S = 5.0


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """A slot as the server shows it. `retained_bytes` is WAL kept for it, `lag_bytes` WAL not yet confirmed."""

    name: str
    plugin: str | None
    kind: str
    database: str | None
    temporary: bool
    active_pid: int | None
    restart_lsn: Lsn | None
    confirmed_flush_lsn: Lsn | None
    wal_status: str | None
    safe_wal_bytes: int | None
    retained_bytes: int | None
    lag_bytes: int | None
    failover: bool
    invalidation: str | None

    @property
    def active(self) -> bool:
        """Whether a process holds the slot."""
        return self.active_pid is not None

    @property
    def lost(self) -> bool:
        """Whether the server has thrown away WAL that the slot needed, or has invalidated it."""
        return self.wal_status == "lost" or self.invalidation is not None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A session whose open transaction keeps a new slot waiting."""

    pid: int
    user: str
    application: str
    state: str
    open_s: float


def execute(connection: Connection, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Run one statement by the simple query protocol and give its rows; driver errors pass untranslated."""
    cursor = psycopg.ClientCursor(connection)
    cursor.execute(statement.encode(), parameters or None)
    return cursor.fetchall() if cursor.description else []


def show(connection: Connection) -> list[SlotInfo]:
    """All slots of the server, by name."""
    version = connection.info.server_version
    failover = "failover" if version >= 170000 else "false"
    invalidation = "invalidation_reason" if version >= 170000 else "NULL::text"
    statement = f"""SELECT slot_name, plugin, slot_type, database, temporary, active_pid, restart_lsn::text,
                   confirmed_flush_lsn::text, wal_status, safe_wal_size,
                   pg_catalog.pg_wal_lsn_diff(newest, restart_lsn)::bigint,
                   greatest(pg_catalog.pg_wal_lsn_diff(newest, confirmed_flush_lsn), 0)::bigint,
                   {failover}, {invalidation}
            FROM pg_catalog.pg_replication_slots,
                 (SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                              ELSE pg_catalog.pg_current_wal_flush_lsn() END) AS wal (newest)
            ORDER BY slot_name"""
    with translating("reading the replication slots"):
        rows = execute(connection, statement)
    return [SlotInfo(*(*row[:6], _lsn(row[6]), _lsn(row[7]), *row[8:])) for row in rows]


def _lsn(text: str | None) -> Lsn | None:
    return Lsn.parse(text) if text else None


def inspect(connection: Connection, name: str) -> SlotInfo | None:
    """One slot, or None where there is none of that name."""
    deadline = time.monotonic() + _NAMING_S
    while True:
        found = next((slot for slot in show(connection) if slot.name == name), None)
        if found is None or found.kind != "logical" or found.plugin or time.monotonic() > deadline:
            return found
        time.sleep(0.005)  # it is being made: its plugin is noted a moment after its name


def verify(slot: SlotInfo, database: str) -> None:
    """Refuse a slot that cannot serve this database's changes."""
    if slot.kind != "logical" or slot.plugin != _PLUGIN:
        found = "a physical slot" if slot.kind != "logical" else f"made for the plugin {slot.plugin}"
        raise SlotMismatchError(f"slot {slot.name} is {found}; {_PLUGIN} is needed", hint="Choose another slot name.")
    if slot.database != database:
        raise SlotMismatchError(
            f"slot {slot.name} belongs to database {slot.database}, not to {database}",
            hint="Choose another slot name: slot names are shared by all databases of a server.",
        )
    if slot.lost:
        why = f" ({slot.invalidation})" if slot.invalidation else ""
        raise SlotLostError(
            f"slot {slot.name} is lost{why}: the server has removed WAL that it still needed",
            hint="Changes are missing for good. For a deployment, penstock reconcile --repair makes a new slot and"
            " repairs every index; a reader of your own needs a new copy from a new slot"
            f" (penstock slots drop {slot.name}). To prevent it, raise max_slot_wal_keep_size.",
        )


def require_primary(connection: Connection, what: str) -> None:
    """Refuse a standby for `what`: its slots are the primary's copies, or end with it."""
    if connection.info.parameter_status("in_hot_standby") == "on":
        raise _in_recovery(what)


def _in_recovery(what: str) -> RecoveryError:
    return RecoveryError(
        f"{what} is not possible: the server is a standby in recovery",
        hint="Connect to the primary (target_session_attrs=read-write picks it among several hosts).",
    )


def create(
    connection: Connection,
    name: str,
    *,
    temporary: bool = False,
    failover: bool = False,
    stop: threading.Event | None = None,
    on_wait: Callable[[], None] | None = None,
) -> Lsn:
    """Create a logical slot and give its consistent point.

    The server waits for every transaction that is running: after 3 s `on_wait` is called once, and `stop` cancels.
    A temporary slot lives as long as `connection`.
    """
    _require_fit(connection, name, temporary, failover)
    flags = [literal(name), literal(_PLUGIN), str(temporary).lower(), "false", *(["true"] if failover else [])]
    statement = f"SELECT lsn::text FROM pg_catalog.pg_create_logical_replication_slot({', '.join(flags)})"
    with translating(f"creating slot {name}"):
        result = _patiently(connection, statement, stop or threading.Event(), on_wait)
    if result.status != pq.ExecStatus.TUPLES_OK:
        raise _refused(connection, f"creating slot {name}", name, result)
    return Lsn.parse((result.get_value(0, 0) or b"0/0").decode())


def _require_fit(connection: Connection, name: str, temporary: bool, failover: bool) -> None:
    """Refuse what the server would refuse in its own words, or do in a way that nobody wants."""
    require_primary(connection, f"creating slot {name}")  # from 16 on a standby would have one of its own, in its time
    version = connection.info.server_version // 10000
    if failover and version < 17:
        raise ConfigError(f"failover slots need Postgres 17; the server is {version}", hint="Leave failover out.")
    if failover and temporary:
        raise ConfigError("a temporary slot cannot survive a failover", hint="Leave one of the two out.")


def create_exporting(
    connection: Connection,
    name: str,
    *,
    failover: bool = False,
    on_wait: Callable[[], None] | None = None,
) -> tuple[Lsn, str]:
    """Create a slot over a replication connection; its consistent point, and the name of the snapshot of that moment.

    The snapshot can be adopted until `connection` runs its next command or ends. It waits as `create`; where the
    waiting ends with an exception, the server gives it up, too.
    """
    _require_fit(connection, name, False, failover)
    version = connection.info.server_version
    words = ["SNAPSHOT 'export'", *(["FAILOVER"] if failover else [])]
    options = f"({', '.join(words)})" if version >= 150000 else "EXPORT_SNAPSHOT"
    statement = f"CREATE_REPLICATION_SLOT {quote(name)} LOGICAL {_PLUGIN} {options}"
    with translating(f"creating slot {name}"):
        try:
            result = _patiently(connection, statement, threading.Event(), on_wait)
        except BaseException:
            with suppress(psycopg.Error):  # there may be nobody left to tell
                connection.cancel_safe(timeout=_CANCEL_S)
            raise
    if result.status != pq.ExecStatus.TUPLES_OK:
        raise _refused(connection, f"creating slot {name}", name, result)
    lsn, snapshot = ((result.get_value(0, column) or b"").decode() for column in (1, 2))
    return Lsn.parse(lsn), snapshot


def _patiently(
    connection: Connection, statement: str, stop: threading.Event, on_wait: Callable[[], None] | None
) -> pq.abc.PGresult:
    """Run a statement that may wait long, and cancel it when told to stop."""
    pgconn, last = connection.pgconn, None
    pgconn.send_query(statement.encode())
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    asked_at = time.monotonic()
    while True:
        while pgconn.is_busy():
            if poll.poll(100):
                pgconn.consume_input()
                continue
            if on_wait and time.monotonic() - asked_at >= _ASK_BLOCKERS_AFTER_S:
                on_wait()
                on_wait = None
            if stop.is_set():
                # Until it is done: a server left alone would make the slot in the end, and nobody would read it.
                connection.cancel_safe(timeout=_CANCEL_S)
        result = pgconn.get_result()
        if result is None:
            break
        last = result
    if last is None:
        raise UnavailableError("the server ended the connection")
    return last


def running(connection: Connection) -> list[int]:
    """Every transaction that may be running, as the stream numbers them; some have ended already.

    A snapshot lists only those with a number below that of the last one that ended: of the rest, all are taken that
    were given out. For that a number is taken, whose transaction waits for no standby.
    """
    with translating("looking for open transactions"):
        execute(connection, "SET synchronous_commit = local")
        ((state, last),) = execute(
            connection, "SELECT pg_catalog.pg_current_snapshot()::text, pg_catalog.pg_current_xact_id()::text"
        )
    _, end, listed = state.split(":")
    xids = [*(int(one) for one in listed.split(",") if one), *range(int(end), int(last))]
    return [xid & 0xFFFFFFFF for xid in xids]


def waiting_for(connection: Connection) -> list[Waiting]:
    """Whose open transactions a new slot waits for, the oldest first."""
    statement = """SELECT pid, coalesce(usename, ''), coalesce(application_name, ''), coalesce(state, backend_type),
                  extract(epoch FROM pg_catalog.clock_timestamp() - xact_start)::float8
           FROM pg_catalog.pg_stat_activity
           WHERE backend_xid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid() AND xact_start IS NOT NULL
           ORDER BY xact_start"""
    with translating("looking for open transactions"):
        rows = execute(connection, statement)
    return [Waiting(*row) for row in rows]


def describe_waiting(waiting: Sequence[Waiting], what: str = "A new slot") -> str:
    """One sentence about who keeps a new slot, or something else, waiting."""
    if not waiting:
        return "The server is waiting for running transactions (prepared ones, or on a standby, perhaps)."
    shown = ", ".join(f"pid {w.pid} ({w.user} {w.application}, {w.state}, open {w.open_s:.0f} s)" for w in waiting[:3])
    more = f" and {len(waiting) - 3} more" if len(waiting) > 3 else ""
    return f"{what} waits for every running transaction: {shown}{more}. End one with pg_terminate_backend(pid)."


def advance(connection: Connection, name: str, to: Lsn) -> Lsn:
    """Move the slot forward and give where it stands then: the server stops at the end of its WAL. Zero: no move."""
    if to == Lsn.ZERO:
        slot = inspect(connection, name)
        if slot is None:
            raise missing(name)
        return slot.confirmed_flush_lsn or Lsn.ZERO
    statement = "SELECT end_lsn::text FROM pg_catalog.pg_replication_slot_advance(%s, %s)"
    try:
        ((text,),) = execute(connection, statement, name, str(to))
    except psycopg.Error as error:
        raise _refused(connection, f"advancing slot {name}", name, error, to) from None
    return Lsn.parse(text)


def drop(connection: Connection, name: str) -> bool:
    """Drop the slot; False where there was none. A slot that is in use stays, with an error."""
    try:
        execute(connection, "SELECT pg_catalog.pg_drop_replication_slot(%s)", name)
    except psycopg.errors.UndefinedObject:
        return False
    except psycopg.Error as error:
        raise _refused(connection, f"dropping slot {name}", name, error) from None
    return True


def lag(connection: Connection, name: str) -> int | None:
    """Bytes of WAL that the slot's consumer has not confirmed; None where there is no such slot."""
    slot = inspect(connection, name)
    return slot.lag_bytes if slot else None


def wal_end(connection: Connection) -> Lsn:
    """How far the server's WAL is flushed."""
    with translating("asking how far the WAL reaches"):
        ((text,),) = execute(connection, "SELECT pg_catalog.pg_current_wal_flush_lsn()::text")
    return Lsn.parse(text)


def heartbeat(connection: Connection) -> Lsn:
    """Write a small message into the WAL, which moves slots whose own tables are quiet; where it stands."""
    statement = "SELECT pg_catalog.pg_logical_emit_message(false, 'penstock', 'heartbeat')::text"
    with translating("writing a heartbeat"):
        ((text,),) = execute(connection, statement)
    return Lsn.parse(text)


def missing(name: str) -> SlotMissingError:
    """The error for a slot that is not there."""
    return SlotMissingError(
        f"slot {name} does not exist",
        hint=f"Create it with penstock slots create {name}; changes made before that are not in it.",
        sqlstate="42704",
    )


def _refused(
    connection: Connection, what: str, name: str, error: psycopg.Error | pq.abc.PGresult, to: Lsn | None = None
) -> PenstockError:
    """The typed error, with the cause found by looking where the SQLSTATE leaves several."""
    sqlstate = error.sqlstate if isinstance(error, psycopg.Error) else _field(error)
    if sqlstate == "42704":
        return missing(name)
    if sqlstate == "42501":
        user = connection.info.user
        return PrivilegeError(
            f"{what} failed: the role {user!r} may not use replication slots",
            hint=allow_replication(user),
            sqlstate=sqlstate,
        )
    if sqlstate in ("55000", "25006", "0A000"):
        return explain_55000(connection, what, name, to)
    return translate(error, what)


def _field(result: pq.abc.PGresult) -> str:
    return (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()


def explain_55000(connection: Connection, what: str, name: str, to: Lsn | None = None) -> PenstockError:
    """Why the server was not in the state that `what` needs: WAL level, recovery, a lost slot, a position passed."""
    ((wal_level, recovery),) = execute(
        connection, "SELECT pg_catalog.current_setting('wal_level'), pg_catalog.pg_is_in_recovery()"
    )
    if wal_level != "logical":
        return WalLevelError(
            f"the server has wal_level = {wal_level}; logical is needed",
            hint="ALTER SYSTEM SET wal_level = 'logical', then restart the server. Managed services have a setting of "
            "their own: rds.logical_replication = 1 (Amazon), cloudsql.logical_decoding = on (Google), "
            "azure.replication_support = logical (older Azure).",
            sqlstate="55000",
        )
    slot = inspect(connection, name)
    if slot and slot.lost:
        try:
            verify(slot, slot.database or "")
        except PenstockError as error:
            return error
    if recovery:
        return _in_recovery(what)
    if slot and to is not None and slot.confirmed_flush_lsn and to < slot.confirmed_flush_lsn:
        return PositionError(
            f"slot {name} stands at {slot.confirmed_flush_lsn}; it cannot go back to {to}",
            hint="A slot only moves forward; what it has passed is not sent again.",
            sqlstate="55000",
        )
    return OperatorError(f"{what} was refused: the server is not in the state it needs", sqlstate="55000")
