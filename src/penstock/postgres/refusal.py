"""What it means that a server refused a connection: the typed error, the sentence and the next step by SQLSTATE.

Guarantees: decided by SQLSTATE and, where one state has several meanings, by the name of the server's routine (a
field of the error, the same in every language), never by the message's text; where the routine is not known, the
sentence names every meaning. The text of the server's message is not repeated. Deliberately not: I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from penstock.errors import (
    AccessError,
    AuthenticationError,
    CapacityError,
    ConfigError,
    DatabaseMissingError,
    OperatorError,
    PenstockError,
    PrivilegeError,
    UnavailableError,
)
from penstock.model import quote
from penstock.postgres.settings import ConnectionSettings, Endpoint

# Settings by which libpq itself ends a connection to a server that is otherwise in order.
_DEMANDS = ("require_auth", "channel_binding", "requirepeer", "gssencmode", "min_protocol_version")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to connect: with which settings, to which address, and whether for replication."""

    settings: ConnectionSettings
    endpoint: Endpoint
    replication: bool = False


def refused(states: Sequence[str], routines: Collection[str], attempt: Attempt) -> PenstockError:
    """The error for a connection that the server refused with these states, in the order it gave them.

    With sslmode prefer there are two, one with TLS and one without; 28000 then only says that one way is closed.
    """
    sqlstate = next((state for state in states if state != "28000"), states[0])
    error = _error(sqlstate, routines, attempt)
    error.sqlstate = sqlstate
    return error


def broken_off(attempt: Attempt, told: bool) -> PenstockError:
    """The error for a connection that ended without a word, though network and TLS are in order.

    Not `told`: the driver does not let us read the server's SQLSTATE, so there may have been a word.
    """
    demands = [keyword for keyword in _DEMANDS if attempt.settings.get(keyword) not in ("", "prefer", "disable")]
    if demands or not told:
        return AuthenticationError(
            f"the connection to {attempt.endpoint} was broken off before the server let {attempt.settings.user!r} in",
            hint=f"The settings ask for what the server may not offer: {', '.join(demands)}."
            if demands
            else 'The server\'s log says why; pip install "psycopg[binary]" lets Penstock say it.',
        )
    return UnavailableError(
        f"the server at {attempt.endpoint} ended the connection without an answer",
        hint="It may be starting, stopping or overloaded, ask for a way to authenticate that is not supported, or not"
        " be Postgres at all.",
    )


def silent(attempt: Attempt) -> UnavailableError:
    """The error for a server that has not let us in when time is up."""
    return UnavailableError(
        f"the server at {attempt.endpoint} did not answer in time",
        hint="Check the host and port, and that no firewall drops the connection; connect_timeout gives it longer.",
    )


def no_password(attempt: Attempt) -> AuthenticationError:
    """The error for a server that asks for a password where there is none to send."""
    return AuthenticationError(
        f"the server at {attempt.endpoint} asks {attempt.settings.user!r} for a password, and none is given",
        hint="Put it into the URL, PGPASSWORD, or a password file that only you can read (PGPASSFILE, ~/.pgpass).",
    )


def not_accepted_by_libpq(attempt: Attempt) -> ConfigError:
    """The error for settings that libpq finds wrong before it connects anywhere."""
    names = sorted(attempt.settings.keywords().keys() - {"host", "port", "user", "password", "dbname"})
    return ConfigError(
        f"libpq does not accept the value of one of these connection settings: {', '.join(names)}",
        hint="Correct it where it is written: the connection URL, the service file or a PG* variable.",
    )


def _error(sqlstate: str, routines: Collection[str], attempt: Attempt) -> PenstockError:
    if sqlstate in _BY_STATE:
        return _BY_STATE[sqlstate](attempt, routines)
    if sqlstate[:2] == "28":
        return _wrong_password(attempt, routines)
    if sqlstate[:2] in ("08", "57") or sqlstate == "53200":
        return _not_now(attempt, routines)
    return OperatorError(
        f"the server at {attempt.endpoint} refused the connection with SQLSTATE {sqlstate}",
        hint="The server's log has its whole message.",
    )


def _wrong_password(attempt: Attempt, routines: Collection[str]) -> PenstockError:
    return AuthenticationError(
        f"the server at {attempt.endpoint} did not accept the password of {attempt.settings.user!r}",
        hint="Check the user and the password (URL, PGPASSWORD, password file). A role that does not exist, has no"
        " password, or whose password has expired is answered the same way.",
    )


def _no_access(attempt: Attempt, routines: Collection[str]) -> PenstockError:
    settings = attempt.settings
    role, database = quote(settings.user), quote(settings.database)
    if "InitializeSessionUserId" in routines:
        return AuthenticationError(
            f"the server at {attempt.endpoint} has no role {settings.user!r} that may log in",
            hint=f"CREATE ROLE {role} LOGIN; or, where it exists, ALTER ROLE {role} LOGIN;",
        )
    who = f"{settings.user!r} into database {settings.database!r}"
    rule = f"host {database} {role} <address of this machine>/32 scram-sha-256"
    if settings.sslmode == "disable" and not attempt.endpoint.is_local:
        return AccessError(
            f"the server at {attempt.endpoint} does not let {who} without TLS, or not from here at all",
            hint=f"Try sslmode=require (better verify-full). If that is refused too, pg_hba.conf lacks a line: {rule}",
        )
    return AccessError(
        f"the server at {attempt.endpoint} does not let {who} from here",
        hint=f"pg_hba.conf needs a line like: {rule} (a replication connection is matched by the database's name too)."
        " The server answers the same where the role does not exist, may not log in, or needs a client certificate"
        " (sslcert, sslkey).",
    )


def _no_database(attempt: Attempt, routines: Collection[str]) -> PenstockError:
    return DatabaseMissingError(
        f"there is no database {attempt.settings.database!r} on the server at {attempt.endpoint}",
        hint="Check the database in the connection URL; without one, libpq takes the user's name. "
        f"To make it: CREATE DATABASE {quote(attempt.settings.database)};",
    )


def _closed_database(attempt: Attempt, routines: Collection[str]) -> PenstockError:
    return AccessError(
        f"the database {attempt.settings.database!r} takes no connections",
        hint=f"ALTER DATABASE {quote(attempt.settings.database)} WITH ALLOW_CONNECTIONS true;",
    )


def _not_now(attempt: Attempt, routines: Collection[str]) -> PenstockError:
    return UnavailableError(
        f"the server at {attempt.endpoint} takes no connections now",
        hint="It is starting, stopping or recovering; its log says which.",
    )


def _too_many(attempt: Attempt, routines: Collection[str]) -> PenstockError:
    role, database = quote(attempt.settings.user), quote(attempt.settings.database)
    if {"InitializeSessionUserId", "CheckMyDatabase"}.intersection(routines):
        return CapacityError(
            f"the role {attempt.settings.user!r} or the database {attempt.settings.database!r} has all the connections"
            " that it may have",
            hint=f"ALTER ROLE {role} CONNECTION LIMIT -1; or ALTER DATABASE {database} CONNECTION LIMIT -1;",
        )
    if attempt.replication:
        return CapacityError(
            f"the server at {attempt.endpoint} has no walsender free",
            hint="Stop a reader that nobody needs (SELECT pid, application_name FROM pg_stat_replication;), or raise"
            " max_wal_senders (on managed services: in the parameter group) and restart the server.",
        )
    return CapacityError(
        f"the server at {attempt.endpoint} has no connection free",
        hint="End sessions that nobody needs (SELECT pid, application_name, state FROM pg_stat_activity;), or raise"
        " max_connections and restart the server.",
    )


def allow_replication(user: str) -> str:
    """How a role gets the right to replicate, on a server of one's own and on managed services."""
    role = quote(user)
    return (
        f"ALTER ROLE {role} REPLICATION; (as a superuser). Amazon RDS and Aurora: GRANT rds_replication TO {role};"
        f" Google Cloud SQL and AlloyDB: ALTER USER {role} WITH REPLICATION; Azure: ALTER ROLE {role} WITH REPLICATION;"
        " as the server's administrator."
    )


def _no_right(attempt: Attempt, routines: Collection[str]) -> PenstockError:
    role, database = quote(attempt.settings.user), quote(attempt.settings.database)
    if attempt.replication and "CheckMyDatabase" not in routines:
        return PrivilegeError(
            f"the role {attempt.settings.user!r} may not open replication connections",
            hint=allow_replication(attempt.settings.user),
        )
    return PrivilegeError(
        f"the role {attempt.settings.user!r} may not connect to database {attempt.settings.database!r}",
        hint=f"GRANT CONNECT ON DATABASE {database} TO {role};",
    )


def _pooler(attempt: Attempt, routines: Collection[str]) -> PenstockError:
    tls = " Where it insists on TLS, add sslmode=require." if attempt.settings.sslmode == "disable" else ""
    if attempt.replication:
        return ConfigError(
            f"what answers at {attempt.endpoint} looks like a connection pooler: it takes no replication connection",
            hint=f"Logical replication needs a direct connection: use the server's own host and port.{tls}",
        )
    return no_session_settings(attempt, tls)


def no_session_settings(attempt: Attempt, also: str = "") -> ConfigError:
    """The error for an endpoint that refuses, or drops, the session settings that every connection needs."""
    return ConfigError(
        f"what answers at {attempt.endpoint} looks like a connection pooler: it does not take session settings",
        hint=f"Use the server's own host and port: a pooled session would write values in another form.{also}",
    )


def _bad_option(attempt: Attempt, routines: Collection[str]) -> PenstockError:
    return ConfigError(
        f"the server at {attempt.endpoint} does not accept a session setting that the connection asks for",
        hint="Look at `options` in the connection URL, the service file or PGOPTIONS; the server's log names it.",
    )


_BY_STATE = {
    "28P01": _wrong_password,
    "28000": _no_access,
    "3D000": _no_database,
    "55000": _closed_database,
    "53300": _too_many,
    "42501": _no_right,
    "08P01": _pooler,
    "22023": _bad_option,
    "42704": _bad_option,
    "42601": _bad_option,
}
