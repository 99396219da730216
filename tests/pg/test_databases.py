"""The databases of the tests: fresh, on both majors, and nothing stays behind on the server unseen."""

from __future__ import annotations

import psycopg
import pytest

from penstock.demo.server import Server
from tests.fixtures.databases import Database


def test_each_major_is_what_it_says(database: Database, request: pytest.FixtureRequest) -> None:
    (version,) = database.execute("SELECT current_setting('server_version_num')::int / 10000")[0]
    assert f"pg{version}" in request.node.name
    assert database.execute("SHOW wal_level") == [("logical",)]


def test_rows_without_columns_are_rows(db18: Database) -> None:
    assert db18.execute("SELECT FROM generate_series(1, 2)") == [(), ()]
    assert db18.execute("SELECT FROM pg_class WHERE false") == []
    assert db18.execute("CREATE TABLE t ()") == []


def test_statements_survive_a_restart(database: Database) -> None:
    database.execute("CREATE TABLE t AS SELECT 1 AS a")
    database.server.restart()
    assert database.execute("SELECT a FROM t WHERE a = %s", 1) == [(1,)]


def test_a_role_connects_by_its_url_and_its_password_is_checked_where_the_rules_ask(db18: Database) -> None:
    url = db18.role("O'Brien", password="p@ss/word")
    with db18.server.access('host all "O\'Brien" 127.0.0.1/32 scram-sha-256'):
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT current_user").fetchone() == ("O'Brien",)
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url.replace("word", "wrong"))


def test_a_left_slot_and_a_left_connection_are_named_and_removed(pg18: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fixtures.waiting.PATIENCE_S", 2.0)
    with psycopg.connect(pg18.url(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE untidy")
        admin.execute("CREATE ROLE untidy LOGIN")
        database = Database(pg18, "untidy")
        database.execute("SELECT pg_create_logical_replication_slot('forgotten', 'pgoutput')")
        with psycopg.connect(database.url, application_name="forgotten") as connection:
            left = database.remove()
        assert connection.closed
        assert len(left) == 2, left
        assert "'forgotten'" in left[0]
        assert left[1] == "replication slot forgotten"
        assert not admin.execute("SELECT 1 FROM pg_replication_slots").fetchall()
        admin.execute("DROP ROLE untidy")


def test_a_server_of_its_own_settings(start_server) -> None:
    server = start_server(18, {"wal_level": "replica"})
    with psycopg.connect(server.url()) as connection:
        assert connection.execute("SHOW wal_level").fetchone() == ("replica",)
