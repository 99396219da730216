"""Errors of statements as a real server raises them: the type, the sentence, and never a row value."""

from __future__ import annotations

import itertools
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import pq

from penstock.demo.server import Server
from penstock.errors import (
    BugError,
    CapacityError,
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
from penstock.postgres.connection import is_retryable, open_pgconn, open_sql, resolve, translate, translating
from penstock.postgres.sqlstate import ServerError, _typed
from tests.fixtures.databases import Database

ROW = "row-value-4711"
_numbers = itertools.count(1)


def failing(connection: psycopg.Connection[Any], *statements: str) -> PenstockError:
    """What the last of the statements comes to, after a look at everything that it would show."""
    with pytest.raises(PenstockError) as caught, translating("trying it"):
        for statement in statements:
            connection.execute(statement.encode())
    error = caught.value
    assert error.__cause__ is None and error.__suppress_context__
    printed = "".join(traceback.format_exception(error)) + repr(pickle.loads(pickle.dumps(error)))
    assert ROW not in printed
    assert error.message.startswith("trying it failed: ")
    return error


@pytest.mark.parametrize(
    ("statement", "sqlstate", "kind", "said"),
    [
        ("SELECT FROM missing", "42P01", OperatorError, '"missing"'),
        ("SELECT missing FROM pg_class", "42703", OperatorError, '"missing"'),
        ("ALTER PUBLICATION missing ADD TABLE t", "42704", OperatorError, '"missing"'),
        ("CREATE PUBLICATION p", "42710", OperatorError, '"p"'),
        ("CREATE TABLE missing.t ()", "3F000", OperatorError, '"missing"'),
        (f"SELECT 1 + '{ROW}' '{ROW}'", "42601", BugError, "does not understand"),
        (f"INSERT INTO t VALUES ('{ROW}')", "23505", OperatorError, "UniqueViolation"),
        (f"SELECT '{ROW}'::int", "22P02", OperatorError, "InvalidTextRepresentation"),
        (f"SELECT '{ROW}' FROM t, missing", "42P01", OperatorError, '"missing"'),
        (f"DO $$ BEGIN RAISE EXCEPTION '{ROW}' USING DETAIL = '{ROW}'; END $$", "P0001", OperatorError, "P0001"),
        (f"DO $$ BEGIN RAISE '{ROW}' USING ERRCODE = 'XY123'; END $$", "XY123", OperatorError, "XY123"),
        (f"DO $$ BEGIN RAISE '{ROW}' USING ERRCODE = '42501'; END $$", "42501", PrivilegeError, "lacks a right"),
        ("SELECT pg_sleep(10)", "57014", OperatorError, "cancelled"),
        ("SET transaction_read_only = on; CREATE TABLE u ()", "25006", RecoveryError, "takes no writes"),
        ("DO $$ BEGIN RAISE '' USING ERRCODE = '40P01'; END $$", "40P01", RetryableError, "deadlock"),
        ("DO $$ BEGIN RAISE '' USING ERRCODE = '53100'; END $$", "53100", OperatorError, "disk is full"),
    ],
)
def test_each_state_has_its_type_and_no_row_value(
    statement: str, sqlstate: str, kind: type, said: str, database: Database
) -> None:
    """E25: told by SQLSTATE; of the server's own words only those that name objects."""
    database.execute(f"CREATE TABLE t (a text PRIMARY KEY); INSERT INTO t VALUES ('{ROW}'); CREATE PUBLICATION p")
    within_s = 0.2 if "pg_sleep" in statement else 30.0
    with open_sql(resolve(database.url, env={}), statement_timeout_s=within_s) as connection:
        error = failing(connection, statement)
    assert type(error) is kind
    assert error.sqlstate == sqlstate
    assert said in error.message
    assert is_retryable(error) == (kind is RetryableError)


def test_a_right_that_is_lacking_is_named(database: Database) -> None:
    """E34: 42501 with the object's name."""
    database.execute("CREATE TABLE secret ()")
    with open_sql(resolve(database.role("reader"), env={})) as connection:
        error = failing(connection, "SELECT FROM secret")
    assert isinstance(error, PrivilegeError)
    assert "secret" in error.message


def test_a_lock_that_is_not_free_is_retryable(database: Database) -> None:
    """E43: 55P03, by lock_timeout."""
    database.execute("CREATE TABLE t ()")
    holder = database.connect(autocommit=False)
    holder.execute("LOCK TABLE t")
    with open_sql(resolve(database.url, env={}), lock_timeout_s=0.05) as connection:
        error = failing(connection, "ALTER TABLE t ADD a int")
    assert type(error) is RetryableError and is_retryable(error)
    assert "lock" in error.message


def test_slots_missing_duplicate_active_and_none_free(database: Database) -> None:
    """E25, E28, E34: 42704, 42710 and 55006 mean a slot where the server's slot code raises them."""
    settings = resolve(database.url, env={})
    create = "SELECT pg_create_logical_replication_slot('{}', 'pgoutput')"
    name = f"slot_{next(_numbers)}"
    with open_sql(settings) as connection:
        connection.execute(create.format(name).encode())
        missing = failing(connection, "SELECT pg_drop_replication_slot('missing')")
        assert isinstance(missing, SlotMissingError) and '"missing"' in missing.message
        assert isinstance(failing(connection, create.format(name)), SlotExistsError)
        database.execute("CREATE PUBLICATION p")
        stream = open_pgconn(settings, replication=True)
        try:
            start = f"START_REPLICATION SLOT {name} LOGICAL 0/0 (proto_version '1', publication_names 'p')"
            assert stream.exec_(start.encode()).status == pq.ExecStatus.COPY_BOTH
            active = failing(connection, f"SELECT pg_drop_replication_slot('{name}')")
            assert isinstance(active, SlotActiveError) and is_retryable(active)
            other = open_pgconn(settings, replication=True)
            try:
                assert isinstance(translate(other.exec_(start.encode()), "streaming"), SlotActiveError)
                unknown = other.exec_(start.replace(name, "missing").encode())
                assert isinstance(translate(unknown, "streaming"), SlotMissingError)
            finally:
                other.finish()
        finally:
            stream.finish()
    database.execute("SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE active")
    database.execute(f"SELECT pg_drop_replication_slot('{name}')")


def test_no_slot_is_free(start_server: Callable[..., Server]) -> None:
    """E34: 53400, with the setting to raise."""
    server = start_server(18, {"max_replication_slots": "1"})
    create = "SELECT pg_create_physical_replication_slot('{}')"
    with open_sql(resolve(server.url(), env={})) as connection:
        error = failing(connection, create.format("a"), create.format("b"))
    assert isinstance(error, CapacityError)
    assert error.sqlstate == "53400"
    assert "no replication slot is free" in error.message and "max_replication_slots" in error.hint


def test_an_ended_and_a_closed_connection_are_retryable(database: Database) -> None:
    """E32: 57P01 as the server says it, then the bare loss of the connection, then its use after that."""
    with open_sql(resolve(database.url, env={})) as connection:
        pid = connection.info.backend_pid
        error = failing(connection, f"SELECT pg_terminate_backend({pid})", "SELECT 1")
        assert isinstance(error, UnavailableError) and is_retryable(error)
        error = failing(connection, "SELECT 1")
        assert isinstance(error, UnavailableError)
    with pytest.raises(psycopg.Error) as caught:
        connection.execute("SELECT 1")
    assert is_retryable(caught.value)


def test_a_misuse_of_the_driver_is_a_bug(db18: Database) -> None:
    """Without an SQLSTATE and without trouble of the connection, it is ours; and not retried."""
    with open_sql(resolve(db18.url, env={})) as connection:
        with pytest.raises(BugError) as caught, translating("trying it"):
            connection.execute("SELECT %s", [ROW, ROW])
        assert ROW not in str(caught.value)
        assert not is_retryable(caught.value)


def test_a_bare_sqlstate_is_about_a_slot() -> None:
    """E25: where only the state is at hand."""
    kinds = {"55006": SlotActiveError, "42704": SlotMissingError, "42710": SlotExistsError, "53400": CapacityError}
    for sqlstate, kind in kinds.items():
        assert type(translate(sqlstate, "creating the slot")) is kind


def test_a_standby_before_16_says_0a000() -> None:
    """E35: the answer of a server that is not at hand here; elsewhere 0A000 only says that something cannot be."""
    standby = _typed(ServerError("0A000", "", "CheckLogicalDecodingRequirements"), "creating the slot")
    assert isinstance(standby, RecoveryError)
    assert type(_typed(ServerError("0A000", "cannot do that", "elsewhere"), "x")) is OperatorError


def test_an_error_that_is_not_raised_from_none_still_hides_its_origin(db18: Database) -> None:
    """The driver's error quotes DETAIL: a traceback must not print it."""
    db18.execute(f"CREATE TABLE t (a text PRIMARY KEY); INSERT INTO t VALUES ('{ROW}')")
    connection = db18.connect()
    with pytest.raises(OperatorError) as caught:
        try:
            connection.execute("INSERT INTO t SELECT a FROM t")
        except psycopg.Error as error:
            assert ROW in str(error)
            raise translate(error, "x")  # noqa: B904 - the point
    assert ROW not in "".join(traceback.format_exception(caught.value))
