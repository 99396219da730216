"""What an SQLSTATE means here: the typed error, the sentence and the next step for each that a statement ends with.

Guarantees: an error is told by its SQLSTATE, never by the text of a message, which is in the server's language; where
one state has several meanings, the name of the server's routine (a field of the error, not its text) tells them
apart. No message holds a row value: DETAIL is never taken, and the server's own sentence only for states whose
sentence names nothing but objects. Deliberately not: errors while connecting (`refusal`), waiting, retrying.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg
from psycopg import pq

from penstock.errors import (
    BugError,
    CapacityError,
    DatabaseMissingError,
    OperatorError,
    PenstockError,
    PrivilegeError,
    RecoveryError,
    RetryableError,
    SlotActiveError,
    SlotExistsError,
    SlotMissingError,
    UnavailableError,
)


class ServerError(NamedTuple):
    """What the server said, as far as we use it: the state, its own sentence, and the routine that raised it."""

    sqlstate: str | None
    sentence: str = ""
    routine: str = ""


class Meaning(NamedTuple):
    """How a state is told. `quoted`: the server's own sentence names only objects, and is worth repeating."""

    kind: type[PenstockError]
    sentence: str
    hint: str = ""
    quoted: bool = False


_USERS_RAISE = "exec_stmt_raise"  # a user's function chose the sentence, which may say anything
_LOST = Meaning(UnavailableError, "the connection to the server was lost", "Check that the server runs.")
_ENDED = Meaning(UnavailableError, "the server ended the connection", "It is stopping, starting, or was told to.")
_SLOTS = "SELECT slot_name, active FROM pg_replication_slots"

_MEANINGS: dict[str, Meaning] = {
    "0A000": Meaning(OperatorError, "the server does not support that", quoted=True),
    "25006": Meaning(
        RecoveryError,
        "the server takes no writes: it is a standby, or default_transaction_read_only is on",
        "Connect to the primary (target_session_attrs=read-write picks it among several hosts).",
    ),
    "3D000": Meaning(DatabaseMissingError, "the database does not exist", quoted=True),
    "3F000": Meaning(OperatorError, "a schema does not exist", quoted=True),
    "40001": Meaning(RetryableError, "the server could not serialize the transaction"),
    "40P01": Meaning(RetryableError, "the server broke a deadlock"),
    "42501": Meaning(PrivilegeError, "the role lacks a right", "Grant it, or use another role.", quoted=True),
    "42601": Meaning(BugError, "the server does not understand the statement"),
    "42703": Meaning(OperatorError, "a column does not exist", quoted=True),
    "42704": Meaning(OperatorError, "something named there does not exist", quoted=True),
    "42710": Meaning(OperatorError, "something of that name exists already", quoted=True),
    "42P01": Meaning(OperatorError, "a table does not exist", quoted=True),
    "53100": Meaning(OperatorError, "the server's disk is full", f"Free space there; unused slots hold WAL: {_SLOTS};"),
    "53200": Meaning(RetryableError, "the server is out of memory"),
    "53300": Meaning(
        CapacityError, "the server has no connection free", "Raise max_connections, or end idle sessions."
    ),
    "53400": Meaning(CapacityError, "a limit that the server is configured with is reached", quoted=True),
    "55000": Meaning(OperatorError, "the server is not in the state that this needs", quoted=True),
    "55006": Meaning(SlotActiveError, "another process uses it", "Stop that process, or wait for it.", quoted=True),
    "55P03": Meaning(
        RetryableError,
        "a lock was not free in time",
        "See who holds locks: SELECT pid, relation::regclass, mode FROM pg_locks WHERE granted;",
    ),
    "57014": Meaning(
        OperatorError,
        "the statement was cancelled, by its time limit or by somebody",
        "Raise statement_timeout, or look for what slows the server down.",
    ),
    "57P04": Meaning(DatabaseMissingError, "the database was dropped"),
}
# A whole class of states, where the state itself is not listed.
_CLASSES: dict[str, Meaning] = {
    "08": _LOST,
    "53": Meaning(CapacityError, "the server is out of a resource"),
    "57": _ENDED,
    "58": Meaning(OperatorError, "the server cannot reach a file of its own", "Its log says which."),
    "XX": Meaning(OperatorError, "the server reports an internal error of its own", "Its log says more."),
}
# Raised by the server's slot code (routines of slot.c and those that call it), the same states mean a slot.
_OF_SLOTS: dict[str, Meaning] = {
    "42704": Meaning(
        SlotMissingError, "the replication slot does not exist", f"See which ones do: {_SLOTS};", quoted=True
    ),
    "42710": Meaning(
        SlotExistsError, "a replication slot of that name exists already", f"Look at it: {_SLOTS};", quoted=True
    ),
    "53400": Meaning(
        CapacityError,
        "no replication slot is free",
        "Drop one that nobody uses (penstock slots list), or raise max_replication_slots and restart the server.",
    ),
    "55006": Meaning(
        SlotActiveError,
        "another process holds the replication slot",
        "Stop that process, or wait until the server has noticed that it is gone (wal_sender_timeout).",
        quoted=True,
    ),
}


def read_error(error: psycopg.Error | pq.abc.PGresult | str) -> ServerError:
    """The fields we use, from a driver's error, a result, or a bare SQLSTATE (then taken to be about a slot)."""
    if isinstance(error, str):
        return ServerError(error, routine="ReplicationSlot")
    if isinstance(error, psycopg.Error):
        diag = error.diag
        return ServerError(error.sqlstate or diag.sqlstate, diag.message_primary or "", diag.source_function or "")
    field = pq.DiagnosticField
    values = [error.error_field(one) for one in (field.SQLSTATE, field.MESSAGE_PRIMARY, field.SOURCE_FUNCTION)]
    sqlstate, sentence, routine = ((value or b"").decode("utf-8", "replace") for value in values)
    return ServerError(sqlstate or None, sentence, routine)


def translate(error: psycopg.Error | pq.abc.PGresult | str, what: str) -> PenstockError:
    """The typed error for a statement that failed; `what` says what was being done ("creating the slot").

    Raise it `from None`: the driver's error quotes DETAIL, which may hold row values.
    """
    said = read_error(error)
    if said.sqlstate is None and isinstance(error, psycopg.Error) and not _is_connection_trouble(error):
        typed: PenstockError = BugError(f"{what} failed: the driver refused it ({type(error).__name__})")
    else:
        typed = _typed(said, what)
    typed.__suppress_context__ = True  # holds also where a caller forgets `from None`
    return typed


@contextmanager
def translating(what: str) -> Iterator[None]:
    """Turn every driver error inside into its typed error."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, what) from None


def is_retryable(error: BaseException) -> bool:
    """Whether trying again, without anybody acting, may help."""
    if isinstance(error, psycopg.Error):
        error = translate(error, "a statement")
    return isinstance(error, RetryableError)


def _typed(said: ServerError, what: str) -> PenstockError:
    if said.sqlstate is None:
        return _LOST.kind(f"{what} failed: {_LOST.sentence}", hint=_LOST.hint)
    meaning = _meaning(said)
    if meaning is None:
        name = _condition(said.sqlstate)
        return OperatorError(
            f"{what} failed: the server answered SQLSTATE {said.sqlstate}{name}",
            hint="The server's log has its whole message.",
            sqlstate=said.sqlstate,
        )
    by_server = said.sentence and said.routine != _USERS_RAISE
    quoted = f": {said.sentence}" if meaning.quoted and by_server else ""
    return meaning.kind(
        f"{what} failed: {meaning.sentence}{quoted} (SQLSTATE {said.sqlstate})",
        hint=meaning.hint,
        sqlstate=said.sqlstate,
    )


def _meaning(said: ServerError) -> Meaning | None:
    state = said.sqlstate or ""
    if "ReplicationSlot" in said.routine and state in _OF_SLOTS:
        return _OF_SLOTS[state]
    if state == "0A000" and said.routine == "CheckLogicalDecodingRequirements":  # before 16, on any standby
        return _MEANINGS["25006"]._replace(sentence="the server is a standby, and decodes no WAL there")
    return _MEANINGS.get(state) or _CLASSES.get(state[:2])


def _condition(sqlstate: str) -> str:
    try:
        return f" ({psycopg.errors.lookup(sqlstate).__name__})"
    except KeyError:
        return ""


def _is_connection_trouble(error: psycopg.Error) -> bool:
    """Without an SQLSTATE the server said nothing: a lost or closed connection, or a misuse of the driver."""
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
