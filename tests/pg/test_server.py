"""The throw-away server: starts, crashes, restarts, and vanishes."""

from __future__ import annotations

import os
import pwd
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg
import pytest

from penstock.demo import server as module
from penstock.demo.server import Server
from penstock.errors import OperatorError, UnavailableError

Start = Callable[..., Server]


def answer(server: Server, query: str) -> str:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        (value,) = connection.execute(query).fetchone() or ("",)
        return str(value)


def test_committed_rows_survive_a_crash_of_the_server(start_server: Start) -> None:
    server = start_server()
    before = server.pid
    with psycopg.connect(server.url()) as connection:
        connection.execute("CREATE TABLE t AS SELECT 42 AS a")
    server.restart(signal.SIGQUIT)
    assert server.pid != before
    assert answer(server, "SELECT a FROM t") == "42"


def test_the_server_listens_on_this_machine_only_and_never_runs_as_root(start_server: Start) -> None:
    process = psutil.Process(start_server().pid)
    assert {connection.laddr.ip for connection in process.net_connections() if connection.status == "LISTEN"} == {
        "127.0.0.1"
    }
    owner = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    assert process.username() == owner


def test_programs_in_a_private_folder_are_copied_to_where_the_server_can_run_them(
    start_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_reachable", lambda path: False)
    assert answer(start_server(), "SELECT 1") == "1"


def test_root_is_told_of_temporary_files_that_the_server_could_not_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = tmp_path / "private"
    (private / "tmp").mkdir(parents=True)
    private.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(tempfile, "tempdir", str(private / "tmp"))
    with pytest.raises(OperatorError, match="may be entered by its owner only") as told:
        Server()
    assert "TMPDIR" in told.value.hint
    assert not list((private / "tmp").iterdir())


def test_variables_of_the_caller_do_not_steer_the_server(start_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGDATA", "elsewhere")
    monkeypatch.setenv("PGOPTIONS", "-c wal_level=minimal")
    server = start_server()
    monkeypatch.undo()
    assert answer(server, "SHOW wal_level") == "logical"


def test_a_server_that_cannot_start_says_why_and_leaves_nothing(servers, start_server: Start) -> None:
    with pytest.raises(UnavailableError, match="shared_buffers"):
        start_server(18, {"shared_buffers": "many"})
    (server,) = servers.own
    assert not server.folder.exists()


def test_reload_returns_when_the_new_settings_count(start_server: Start) -> None:
    server = start_server()
    server.configure({"log_line_prefix": "new "})
    server.reload()
    assert answer(server, "SHOW log_line_prefix") == "new "
