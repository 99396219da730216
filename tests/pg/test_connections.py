"""Connections on real servers: the same session settings on each, every way to be refused, several hosts.

What only managed services, poolers and other versions answer is played by stand-ins that speak the protocol.
"""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

import penstock
from penstock.demo.server import Server
from penstock.errors import (
    AccessError,
    AuthenticationError,
    CapacityError,
    ConfigError,
    DatabaseMissingError,
    OperatorError,
    PenstockError,
    PrivilegeError,
    RecoveryError,
    UnavailableError,
    VersionError,
)
from penstock.postgres import connection as module
from penstock.postgres.connection import is_retryable, open_pgconn, open_sql, resolve
from tests.fixtures.databases import Database
from tests.fixtures.standins import StandIn
from tests.fixtures.waiting import wait_until

PASSWORD = "hunter2-?:/@% secret"
PINNED = {
    "datestyle": "ISO, MDY",
    "timezone": "UTC",
    "extra_float_digits": "3",
    "intervalstyle": "iso_8601",
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
    "client_encoding": "UTF8",
    "application_name": "penstock",
}


def shown(url: str, name: str, replication: bool = False, **more: Any) -> str:
    """A session setting as the server sees it, on one kind of connection."""
    pgconn = open_pgconn(resolve(url, env={}), replication=replication, **more)
    try:
        return (pgconn.exec_(f"SHOW {name}".encode()).get_value(0, 0) or b"").decode()
    finally:
        pgconn.finish()


def failure(url: str, replication: bool = False, **more: Any) -> PenstockError:
    """The error of a connection that must fail, after a look at everything it would show."""
    with pytest.raises(PenstockError) as caught:
        open_pgconn(resolve(url, env={}), replication=replication, **more).finish()
    error = caught.value
    printed = "".join(traceback.format_exception(error)) + repr(error) + repr(pickle.loads(pickle.dumps(error)))
    assert "hunter2" not in printed
    assert "messaggio" not in printed
    assert error.hint
    return error


@pytest.fixture
def scram(db18: Database) -> Iterator[Callable[[str], str]]:
    """Make a role whose password the server checks; its URL."""
    rules: list[Any] = []

    def role(name: str) -> str:
        url = db18.role(name, PASSWORD)
        rule = db18.server.access(f'host all "{name}" 127.0.0.1/32 scram-sha-256')
        rule.__enter__()
        rules.append(rule)
        return url

    yield role
    for rule in reversed(rules):
        rule.__exit__(None, None, None)


# One session for all


def test_every_connection_has_the_same_session_settings(database: Database) -> None:
    """E111: for SQL and for replication, on both majors, whatever the role, the database and the user's options say."""
    url = database.role("odd", attributes="LOGIN REPLICATION")
    for statement in (
        "ALTER ROLE odd SET datestyle = 'German'",
        "ALTER ROLE odd SET intervalstyle = 'postgres'",
        "ALTER ROLE odd SET bytea_output = 'escape'",
        f"ALTER DATABASE {database.name} SET timezone = 'Asia/Tokyo'",
        f"ALTER DATABASE {database.name} SET extra_float_digits = 0",
    ):
        database.execute(statement)
    url += "?options=-c%20datestyle%3DSQL%20-c%20search_path%3Dodd&client_encoding=LATIN1"
    for name, value in PINNED.items():
        assert shown(url, name) == value
        assert shown(url, name, replication=True) == value
    assert shown(url, "search_path") == "odd"


def test_further_options_and_limits_reach_the_server(db18: Database) -> None:
    """E111: values with spaces and backslashes too; a limit that is not given stays the server's."""
    assert shown(db18.url, "search_path", options={"search_path": r'"a b", "c\d"'}) == r'"a b", "c\d"'
    with open_sql(resolve(db18.url, env={}), statement_timeout_s=1.5, lock_timeout_s=0.25) as connection:
        assert connection.autocommit
        assert connection.execute("SHOW statement_timeout").fetchone() == ("1500ms",)
        assert connection.execute("SHOW lock_timeout").fetchone() == ("250ms",)
    assert shown(db18.url, "statement_timeout") == "0"


def test_an_application_name_of_the_users_own_is_kept(db18: Database) -> None:
    """E110: query options."""
    assert shown(f"{db18.url}?application_name=mine", "application_name") == "mine"


def test_a_driver_error_after_the_connect_is_as_short_as_ever(db18: Database) -> None:
    """The verbosity by which a failed connect tells its SQLSTATE is put back."""
    with open_sql(resolve(db18.url, env={})) as connection, pytest.raises(psycopg.errors.UndefinedTable) as caught:
        connection.execute("SELECT FROM missing")
    assert "LOCATION" not in str(caught.value)


# Ways to name a server


def test_a_password_is_found_wherever_it_is_written(
    db18: Database, scram: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E110: percent-encoded in the URL, as a part, PGPASSWORD, service file, password file."""
    url = scram("o'brien")
    where = {"host": "127.0.0.1", "port": db18.server.port, "database": db18.name, "user": "o'brien"}
    services = tmp_path / "services"
    services.write_text(f"[shop]\npassword={PASSWORD}\n")
    passfile = tmp_path / "pass"
    passfile.write_text(f"*:*:*:*:{PASSWORD.replace(':', chr(92) + ':')}\n")
    passfile.chmod(0o600)
    for settings in (
        resolve(url, env={}),
        resolve(env={}, password=PASSWORD, **where),
        resolve(env={"PGPASSWORD": PASSWORD}, **where),
        resolve(env={"PGSERVICEFILE": str(services), "PGSERVICE": "shop"}, **where),
        resolve(env={"PGPASSFILE": str(passfile)}, **where),
    ):
        with open_sql(settings) as connection:
            assert connection.execute("SELECT current_user").fetchone() == ("o'brien",)
            assert "hunter2" not in repr(connection)


def test_a_unix_socket(start_server: Callable[..., Server]) -> None:
    """E110: as a host in the URL, percent-encoded or in the query; and a folder where none is."""
    server = start_server(18, {"unix_socket_directories": "."})
    folder = str(server.data)
    for url in (
        f"postgresql://postgres@{folder.replace('/', '%2F')}:{server.port}/postgres",
        f"postgresql://postgres@/postgres?host={folder}&port={server.port}&sslmode=verify-full",
    ):
        assert shown(url, "timezone") == "UTC"
        assert shown(url, "timezone", replication=True) == "UTC"
    error = failure(f"postgresql://postgres@/postgres?host={folder}&port=1")
    assert isinstance(error, UnavailableError)
    assert "unix socket" in error.message


def test_an_ipv6_address(db18: Database) -> None:
    """E110: brackets in the URL; nothing listens there, and the sentence says where."""
    error = failure(f"postgresql://postgres@[::1]:{db18.server.port}/postgres")
    assert isinstance(error, UnavailableError)
    assert f"[::1]:{db18.server.port}" in error.message


# Ways to be refused, by a real server


def test_a_wrong_password(scram: Callable[[str], str]) -> None:
    """E110, E34: 28P01; the error names the user and where a password comes from."""
    error = failure(scram("bob").replace("secret", "wrong"))
    assert isinstance(error, AuthenticationError)
    assert error.sqlstate == "28P01"
    assert "did not accept the password of 'bob'" in error.message
    assert not is_retryable(error)


def test_a_missing_password(db18: Database, scram: Callable[[str], str], tmp_path: Path) -> None:
    """E110: libpq says so without an SQLSTATE."""
    scram("bob")
    error = failure(db18.server.url(db18.name, "bob") + f"?passfile={tmp_path}/none")
    assert isinstance(error, AuthenticationError)
    assert "none is given" in error.message


@pytest.mark.parametrize("replication", [False, True])
def test_no_such_database(server: Server, replication: bool) -> None:
    """E110: 3D000."""
    error = failure(server.url("it's%20gone"), replication)
    assert isinstance(error, DatabaseMissingError)
    assert error.sqlstate == "3D000"
    assert 'CREATE DATABASE "it\'s gone";' in error.hint


@pytest.mark.parametrize("replication", [False, True])
def test_no_such_role_and_a_role_that_may_not_log_in(database: Database, replication: bool) -> None:
    """E110: 28000, told from a refusal by pg_hba.conf by the routine that raised it."""
    database.role("group", attributes="NOLOGIN")
    for name in ("nobody-here", "group"):
        error = failure(database.server.url(database.name, name), replication)
        assert isinstance(error, AuthenticationError)
        assert error.sqlstate == "28000"
        assert f'"{name}" LOGIN' in error.hint


@pytest.mark.parametrize("replication", [False, True])
def test_refused_by_the_access_rules(database: Database, replication: bool) -> None:
    """E110: 28000 of pg_hba.conf; TLS is named first only to who came without it."""
    url = database.role("kept_out", attributes="LOGIN REPLICATION")
    with database.server.access("host all kept_out 127.0.0.1/32 reject"):
        error = failure(url, replication)
        plain = failure(url + "?sslmode=disable", replication)
    for one in (error, plain):
        assert isinstance(one, AccessError)
        assert one.sqlstate == "28000"
        assert f'host "{database.name}" "kept_out"' in one.hint
    assert "without TLS" in plain.message
    assert "without TLS" not in error.message


def test_no_right_to_connect(database: Database) -> None:
    """E34: 42501 of the database, on both kinds of connection."""
    url = database.role("visitor", attributes="LOGIN REPLICATION")
    database.execute(f"REVOKE CONNECT ON DATABASE {database.name} FROM PUBLIC")
    for replication in (False, True):
        error = failure(url, replication)
        assert isinstance(error, PrivilegeError)
        assert f'GRANT CONNECT ON DATABASE "{database.name}" TO "visitor";' in error.hint


def test_no_replication_right(database: Database) -> None:
    """E34, E35: 42501 on a replication connection; the remedy names the managed services' ways."""
    error = failure(database.role("reader"), replication=True)
    assert isinstance(error, PrivilegeError)
    assert error.sqlstate == "42501"
    assert error.hint.startswith('ALTER ROLE "reader" REPLICATION;')
    assert 'GRANT rds_replication TO "reader";' in error.hint
    assert 'ALTER USER "reader" WITH REPLICATION;' in error.hint


def test_no_walsender_and_no_connection_free_are_told_apart(start_server: Callable[..., Server]) -> None:
    """E34: 53300 twice, with different settings to raise."""
    settings = {"max_wal_senders": "1", "max_connections": "4", "superuser_reserved_connections": "0"}
    server = start_server(18, settings)
    held = [open_pgconn(resolve(server.url(), env={}), replication=True)]
    try:
        error = failure(server.url(), replication=True)
        assert isinstance(error, CapacityError)
        assert error.sqlstate == "53300"
        assert "no walsender free" in error.message and "max_wal_senders" in error.hint
        held += [open_pgconn(resolve(server.url(), env={})) for _ in range(4)]
        error = failure(server.url())
        assert isinstance(error, CapacityError)
        assert "no connection free" in error.message and "max_connections" in error.hint
    finally:
        for pgconn in held:
            pgconn.finish()


def test_the_limit_of_a_role_is_not_taken_for_the_servers(db18: Database) -> None:
    """E34: 53300 by ALTER ROLE … CONNECTION LIMIT."""
    error = failure(db18.role("few", attributes="LOGIN CONNECTION LIMIT 0"))
    assert isinstance(error, CapacityError)
    assert 'ALTER ROLE "few" CONNECTION LIMIT' in error.hint


def test_a_database_that_takes_no_connections(server: Server) -> None:
    """E110: template0, SQLSTATE 55000."""
    error = failure(server.url("template0"))
    assert isinstance(error, AccessError)
    assert "ALLOW_CONNECTIONS" in error.hint


def test_options_that_the_server_does_not_know(db18: Database) -> None:
    """E110: query options that reach the server."""
    for options in ("-c%20no_such_setting%3D1", "-c%20work_mem%3Dlots", "-x"):
        error = failure(f"{db18.url}?options={options}")
        assert isinstance(error, ConfigError), options


def test_a_server_that_is_down_then_starting(start_server: Callable[..., Server]) -> None:
    """E32: retryable, and the same call works once the server is back."""
    server = start_server(18)
    server.halt()
    for replication in (False, True):
        error = failure(server.url(), replication)
        assert isinstance(error, UnavailableError)
        assert is_retryable(error)
        assert "nothing listens at" in error.message
    server.start()
    assert shown(server.url(), "timezone") == "UTC"


# Ways to be refused, by stand-ins


@pytest.mark.parametrize(
    ("sqlstate", "routine", "kind", "said", "hint"),
    [
        ("28P01", "", AuthenticationError, "did not accept the password", "PGPASSWORD"),
        ("28000", "", AccessError, "without TLS", "Try sslmode=require"),
        ("3D000", "", DatabaseMissingError, "no database 'app'", "CREATE DATABASE"),
        ("57P01", "", UnavailableError, "takes no connections now", "starting"),
        ("57P03", "", UnavailableError, "takes no connections now", "starting"),
        ("53300", "", CapacityError, "no walsender free", "max_wal_senders"),
        ("53300", "CheckMyDatabase", CapacityError, "all the connections", "CONNECTION LIMIT -1"),
        ("42501", "", PrivilegeError, "may not open replication connections", "GRANT rds_replication"),
        ("08P01", "", ConfigError, "looks like a connection pooler", "Logical replication needs a direct connection"),
        ("0A000", "", OperatorError, "SQLSTATE 0A000", "log"),
        ("XX000", "", OperatorError, "SQLSTATE XX000", "log"),
    ],
)
def test_managed_services_and_poolers_are_told_by_sqlstate_alone(
    sqlstate: str, routine: str, kind: type, said: str, hint: str, stand_in: Callable[..., StandIn]
) -> None:
    """E35: stand-ins whose messages are in another language, on replication connections."""
    server = stand_in(refuses=sqlstate, routine=routine)
    error = failure(server.url(password="hunter2"), replication=True)
    assert type(error) is kind
    assert error.sqlstate == sqlstate
    assert said in error.message
    assert hint in error.hint
    assert server.startups[0]["replication"] == "database"


def test_a_pooler_that_refuses_or_drops_session_settings(stand_in: Callable[..., StandIn]) -> None:
    """E35: a pooled session would write values in another form, so it is refused on any connection."""
    for server in (stand_in(refuses="08P01"), stand_in(greets="16.1", TimeZone="Asia/Tokyo")):
        error = failure(server.url())
        assert isinstance(error, ConfigError)
        assert "pooler" in error.message and "own host and port" in error.hint


@pytest.mark.parametrize(("version", "fits"), [("13.22", False), ("14.1", True), ("18.9", True), ("19.0", False)])
def test_a_version_outside_14_to_18_is_refused_in_one_sentence(
    version: str, fits: bool, stand_in: Callable[..., StandIn]
) -> None:
    """E110: for every kind of connection."""
    url = stand_in(greets=version).url()
    for replication in (False, True):
        if fits:
            open_pgconn(resolve(url, env={}), replication=replication).finish()
            continue
        error = failure(url, replication)
        assert isinstance(error, VersionError)
        assert f"is Postgres {version.split('.')[0]}" in error.message
        assert error.hint == "Penstock works with Postgres 14 to 18."


def test_a_silent_server_is_given_up_in_time(stand_in: Callable[..., StandIn]) -> None:
    """E32: accepted and never answered; both the argument and connect_timeout count."""
    url = stand_in().url()
    for more, option in ({"timeout_s": 0.2}, ""), ({}, "&connect_timeout=1"):
        begin = time.monotonic()
        error = failure(url + option, **more)
        assert isinstance(error, UnavailableError) and is_retryable(error)
        assert "did not answer in time" in error.message
        assert time.monotonic() - begin < 3


def test_a_connection_that_is_closed_without_a_word_is_retryable(stand_in: Callable[..., StandIn]) -> None:
    """E32: as a proxy does whose server is gone; but a demand of ours that may be the reason is named."""
    url = stand_in(closes=True).url()
    assert isinstance(failure(url), UnavailableError)
    error = failure(url + "&require_auth=scram-sha-256")
    assert isinstance(error, AuthenticationError)
    assert "require_auth" in error.hint


def test_without_the_sqlstate_the_error_says_less_but_nothing_wrong(
    db18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where libpq cannot be asked to be verbose: a firm error, not one that is retried for ever."""
    monkeypatch.setattr(module, "_libpq", lambda: None)
    error = failure(db18.server.url("missing"))
    assert isinstance(error, AuthenticationError)
    assert "the server's log says why" in error.hint.lower()
    assert shown(db18.url, "timezone") == "UTC"


# Several hosts


def test_the_next_host_is_tried_when_one_is_down_or_silent(db18: Database, stand_in: Callable[..., StandIn]) -> None:
    """E32: a refused port, a stopping server and a black hole before the one that works, inside one deadline."""
    with socket.create_server(("127.0.0.1", 0)) as mute:  # takes a connection and says nothing
        silent = mute.getsockname()[1]
        starting = stand_in(refuses="57P03").port
        hosts = ",".join(f"127.0.0.1:{port}" for port in (1, starting, silent, db18.server.port))
        url = f"postgresql://postgres@{hosts}/{db18.name}"
        assert shown(url, "port", replication=True, timeout_s=4) == str(db18.server.port)


def test_a_wrong_password_is_not_tried_on_the_next_host(
    scram: Callable[[str], str], stand_in: Callable[..., StandIn]
) -> None:
    """E110: as libpq does; the role may be locked after some attempts."""
    second = stand_in(greets="18.0")
    url = scram("bob").replace("secret", "wrong")
    head, _, tail = url.rpartition("/")
    assert isinstance(failure(f"{head},127.0.0.1:{second.port}/{tail}?sslmode=disable"), AuthenticationError)
    assert second.startups == []


def test_a_host_of_the_right_role_is_chosen(stand_in: Callable[..., StandIn]) -> None:
    """E32: target_session_attrs, each of its words, with a primary, a standby and a read-only primary."""
    primary = stand_in(greets="18.0", in_hot_standby="off", default_transaction_read_only="off").port
    frozen = stand_in(greets="18.0", in_hot_standby="off", default_transaction_read_only="on").port
    standby = stand_in(greets="18.0", in_hot_standby="on", default_transaction_read_only="off").port

    def chosen(wanted: str, *ports: int) -> int:
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        url = f"postgresql://u@{hosts}/d?sslmode=disable&target_session_attrs={wanted}"
        pgconn = open_pgconn(resolve(url, env={}))
        try:
            return int(pgconn.port)
        finally:
            pgconn.finish()

    assert chosen("any", standby, primary) == standby
    assert chosen("read-write", standby, frozen, primary) == primary
    assert chosen("read-only", primary, frozen, standby) == frozen
    assert chosen("primary", standby, frozen, primary) == frozen
    assert chosen("standby", primary, frozen, standby) == standby
    assert chosen("prefer-standby", primary, standby) == standby
    assert chosen("prefer-standby", frozen, primary) == frozen
    with pytest.raises(RecoveryError, match="is not read-write"):
        chosen("read-write", standby)
    with pytest.raises(UnavailableError, match="is read-write now"):  # a failover may be under way
        chosen("read-write", standby, frozen)
    with pytest.raises(UnavailableError, match="nothing listens"):
        chosen("read-write", standby, 1)


# Secrets


def test_the_password_is_in_no_process_argument_and_no_server_view(db18: Database, scram: Callable[[str], str]) -> None:
    """E110: a process given the URL by its environment, seen from outside while it is connected."""
    code = (
        "import os; from penstock.postgres.connection import *; c = open_sql(resolve(os.environ['URL']));"
        "print('open', repr(c), flush=True); input()"
    )
    source = str(Path(penstock.__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={"URL": scram("bob"), "PYTHONPATH": source},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout and process.stdin
        line = process.stdout.readline()
        assert line.startswith("open"), line
        assert "hunter2" not in line
        assert "hunter2" not in " ".join(psutil.Process(process.pid).cmdline())
        seen = wait_until(lambda: db18.execute("SELECT a::text FROM pg_stat_activity a WHERE usename = 'bob'"))
        assert "penstock" in seen[0][0] and "hunter2" not in seen[0][0]
        process.stdin.write("\n")
        process.stdin.flush()
        rest = process.stdout.read()
        assert process.wait(10) == 0 and "hunter2" not in rest
