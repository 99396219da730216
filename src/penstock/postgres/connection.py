"""Open connections: the one place in Penstock where a connection to Postgres is made.

Every connection, for SQL or for replication, obeys the same settings: TLS, hosts in turn, a deadline, session
settings that fix how values are written as text, and a server of a version that Penstock knows.

Guarantees: a failure is a typed error with a sentence and a next step, told by SQLSTATE, and holds no secret.
Deliberately not: retrying (callers know their budget) and pooling.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import random
import re
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import psycopg
from psycopg import pq

from penstock.errors import (
    AuthenticationError,
    ConfigError,
    PenstockError,
    RecoveryError,
    UnavailableError,
    VersionError,
)
from penstock.postgres.diagnosis import diagnose
from penstock.postgres.refusal import (
    Attempt,
    broken_off,
    no_password,
    no_session_settings,
    not_accepted_by_libpq,
    refused,
    silent,
)
from penstock.postgres.settings import ConnectionSettings, Endpoint, resolve
from penstock.postgres.sqlstate import is_retryable, translate, translating
from penstock.postgres.tls import check_files

__all__ = ["ConnectionSettings", "is_retryable", "open_pgconn", "open_sql", "resolve", "translate", "translating"]

DEFAULT_TIMEOUT_S = 10.0
SUPPORTED = range(14, 19)

# pgoutput and json write values as the session says; with these, text from any connection means the same.
PINNED: Mapping[str, str] = {
    "datestyle": "ISO",
    "timezone": "UTC",
    "extra_float_digits": "3",
    "intervalstyle": "iso_8601",
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
}
# Those that the server reports by itself: a pooler that drops ours is noticed without a question.
_REPORTED = {b"TimeZone": b"UTC", b"IntervalStyle": b"iso_8601", b"standard_conforming_strings": b"on"}
# A peer that vanished (half-open connection) is noticed after 30 s of silence and 3 unanswered probes, or when sent
# bytes stay unanswered for 60 s. The user's own values win.
_DEFAULTS = {
    "application_name": "penstock",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
_SQLSTATE = re.compile(r":  ([0-9A-Z]{5}): ")
_ROUTINE = re.compile(r":  (\w+), \w+\.c:\d+")
_VERBOSE, _DEFAULT = 2, 1  # PGVerbosity


def open_pgconn(
    settings: ConnectionSettings,
    *,
    replication: bool = False,
    timeout_s: float | None = None,
    options: Mapping[str, str] | None = None,
) -> pq.abc.PGconn:
    """Connect to the first host that will do, within `timeout_s` (else `connect_timeout`, else 10 s) for all of them.

    `options` are further session settings by name. The caller owns the connection and finishes it.
    """
    check_files(settings)
    session = _session(settings, replication, options or {})
    deadline = time.monotonic() + (timeout_s or max(int(settings.get("connect_timeout", "0")), 0) or DEFAULT_TIMEOUT_S)
    wanted = settings.get("target_session_attrs", "any")
    targets = ("standby", "any") if wanted == "prefer-standby" else (wanted,)
    endpoints = _addresses(settings)
    tries = [(endpoint, target) for target in targets for endpoint in endpoints]
    troubles: list[PenstockError] = []
    for index, (endpoint, target) in enumerate(tries):
        now = time.monotonic()
        share_s = max(deadline - now, 0.0) / (len(tries) - index)  # a silent host must not eat the time of the next
        try:
            return _connect(Attempt(settings, endpoint, replication), session, target, now + share_s)
        except (AuthenticationError, ConfigError):  # the other hosts would say the same
            raise
        except PenstockError as trouble:
            troubles.append(trouble)
    raise _most_telling(troubles, settings)


def _most_telling(troubles: list[PenstockError], settings: ConnectionSettings) -> PenstockError:
    """Of what the hosts said, the one that somebody must act upon; else that it may be better in a moment."""
    passing = (UnavailableError, RecoveryError)  # among several hosts, a standby may be promoted at any moment
    if firm := [trouble for trouble in troubles if not isinstance(trouble, passing)]:
        return firm[0]
    if len(settings.endpoints) > 1 and all(isinstance(trouble, RecoveryError) for trouble in troubles):
        return UnavailableError(
            f"no host of {settings.describe()} is {settings.get('target_session_attrs')} now",
            hint="Promote one, name another host, or change target_session_attrs.",
        )
    return next((trouble for trouble in troubles if isinstance(trouble, UnavailableError)), troubles[-1])


def open_sql(
    settings: ConnectionSettings,
    *,
    timeout_s: float | None = None,
    statement_timeout_s: float | None = None,
    lock_timeout_s: float | None = None,
) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection for SQL, in autocommit. A time limit that is not given stays as the server has it."""
    limits = {"statement_timeout": statement_timeout_s, "lock_timeout": lock_timeout_s}
    options = {name: f"{round(limit * 1000)}ms" for name, limit in limits.items() if limit is not None}
    pgconn = open_pgconn(settings, timeout_s=timeout_s, options=options)
    connection: psycopg.Connection[tuple[Any, ...]] = psycopg.Connection(pgconn)
    connection.autocommit = True
    return connection


def _session(settings: ConnectionSettings, replication: bool, options: Mapping[str, str]) -> ConnectionSettings:
    """The settings of every attempt. The user's own `options` come first, so ours hold where both set one."""
    words = [f"-c {name}={_escaped(value)}" for name, value in {**options, **PINNED}.items()]
    own = {
        "options": " ".join([settings.get("options"), *words]).strip(),
        "client_encoding": "UTF8",
        "target_session_attrs": "any",  # looked at here, host by host, as the list of hosts is
        "load_balance_hosts": "",
        "replication": "database" if replication else "",
    }
    defaults = {name: value for name, value in _DEFAULTS.items() if not settings.get(name)}
    return settings.merged({**defaults, **own})


def _escaped(value: str) -> str:
    return re.sub(r"([\\\s])", r"\\\1", value)


def _addresses(settings: ConnectionSettings) -> list[Endpoint]:
    """Every address of every host, in the order to try them: libpq gives each of them no deadline of its own."""
    found: list[Endpoint] = []
    unknown: list[Endpoint] = []
    for endpoint in settings.endpoints:
        if endpoint.is_local or endpoint.hostaddr:
            found.append(endpoint)
            continue
        try:
            answers = socket.getaddrinfo(endpoint.host, int(endpoint.port), type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            unknown.append(endpoint)
            continue
        found += [endpoint._replace(hostaddr=address) for address in dict.fromkeys(str(a[4][0]) for a in answers)]
    if not found:
        raise UnavailableError(
            f"the host name of {' and '.join(map(str, unknown))} is not known here",
            hint="Check the host in the connection URL, and the name service of this machine.",
        )
    if settings.get("load_balance_hosts") == "random":
        random.shuffle(found)
    return found


def _connect(attempt: Attempt, session: ConnectionSettings, target: str, deadline: float) -> pq.abc.PGconn:
    one = session.merged(attempt.endpoint._asdict())
    pgconn = pq.PGconn.connect_start(one.conninfo())
    try:
        verbose = _set_verbosity(pgconn, _VERBOSE)
        if pgconn.status == pq.ConnStatus.BAD and pq.PGconn.ping(one.conninfo()) == pq.Ping.NO_ATTEMPT:
            raise not_accepted_by_libpq(attempt)
        if pgconn.status != pq.ConnStatus.BAD and not _finished(pgconn, deadline):
            raise silent(attempt)
        if pgconn.status != pq.ConnStatus.OK:
            raise _failure(pgconn, attempt, deadline, verbose)
        _check(pgconn, attempt, target)
        _set_verbosity(pgconn, _DEFAULT)
    except BaseException:
        pgconn.finish()
        raise
    return pgconn


def _finished(pgconn: pq.abc.PGconn, deadline: float) -> bool:
    """Drive the connection until it stands or has failed; False when time ran out first."""
    state = pq.PollingStatus.WRITING
    while True:
        poll = select.poll()  # libpq may change sockets between steps
        poll.register(pgconn.socket, select.POLLIN if state == pq.PollingStatus.READING else select.POLLOUT)
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0 or not poll.poll(remaining_s * 1000):
            return False
        state = pq.PollingStatus(pgconn.connect_poll())
        if state in (pq.PollingStatus.OK, pq.PollingStatus.FAILED):
            return True


def _failure(pgconn: pq.abc.PGconn, attempt: Attempt, deadline: float, verbose: bool) -> PenstockError:
    text = pgconn.error_message.decode("utf-8", "replace")
    states = _SQLSTATE.findall(text)
    if states:
        return refused(states, _ROUTINE.findall(text), attempt)
    if pgconn.needs_password:
        return no_password(attempt)
    return diagnose(_placed(pgconn, attempt), deadline) or broken_off(attempt, verbose)


def _placed(pgconn: pq.abc.PGconn, attempt: Attempt) -> Attempt:
    """The same with the socket folder that libpq took by itself: each build of it has its own."""
    if attempt.endpoint.host or attempt.endpoint.hostaddr:
        return attempt
    return replace(attempt, endpoint=attempt.endpoint._replace(host=pgconn.host.decode("utf-8", "replace")))


def _check(pgconn: pq.abc.PGconn, attempt: Attempt, target: str) -> None:
    """Refuse a server of another version, a session without our settings, or a role that is not asked for."""
    if pgconn.server_version // 10000 not in SUPPORTED:
        raise VersionError(
            f"the server at {attempt.endpoint} is Postgres {pgconn.server_version // 10000}",
            hint=f"Penstock works with Postgres {SUPPORTED[0]} to {SUPPORTED[-1]}.",
        )
    if any(pgconn.parameter_status(name) != value for name, value in _REPORTED.items()):
        raise no_session_settings(attempt)
    standby = pgconn.parameter_status(b"in_hot_standby") == b"on"
    read_only = standby or pgconn.parameter_status(b"default_transaction_read_only") == b"on"
    fits = {"read-write": not read_only, "read-only": read_only, "primary": not standby, "standby": standby}
    if not fits.get(target, True):  # any
        raise RecoveryError(
            f"the server at {attempt.endpoint} is not {target}, as target_session_attrs asks",
            hint="Connect to the one that is, or change target_session_attrs.",
        )


@functools.cache
def _libpq() -> Any:
    """The libpq that psycopg has loaded, or None where it cannot be reached: errors then lack their SQLSTATE."""
    try:
        module = importlib.import_module(pq.PGconn.__module__)
        if pq.__impl__ == "python":
            return importlib.import_module("psycopg.pq._pq_ctypes").pq
        return ctypes.CDLL(module.__file__)
    except (ImportError, OSError, AttributeError):
        return None


def _set_verbosity(pgconn: pq.abc.PGconn, verbosity: int) -> bool:
    """Verbose: a failed connect then tells its SQLSTATE, which psycopg offers no other way to learn."""
    set_verbosity = getattr(_libpq(), "PQsetErrorVerbosity", None)
    pointer = getattr(pgconn, "pgconn_ptr", None)
    if set_verbosity is None or not pointer:
        return False
    set_verbosity(ctypes.c_void_p(pointer), verbosity)
    return True
