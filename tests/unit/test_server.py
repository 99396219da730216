"""Finding a server's programs, without starting any."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.demo.server import Server, find_binaries
from penstock.errors import MissingExtraError


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with a `postgres` that claims to be version 99."""
    fake = tmp_path / "postgres"
    fake.write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 99.3 (Some Linux 99.3-1)'\n")
    fake.chmod(0o755)
    return tmp_path


def test_pg_bin_comes_first(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG_BIN", str(programs))
    assert find_binaries() == programs
    assert find_binaries(99) == programs


def test_another_major_is_looked_for_further_on(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG_BIN", str(programs))
    assert find_binaries(18) != programs


@pytest.mark.parametrize("major", [18, 16])
def test_both_majors_come_with_the_test_environment(major: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PG_BIN", raising=False)
    assert (find_binaries(major) / "initdb").exists()


def test_no_server_is_an_error_that_says_what_to_install() -> None:
    with pytest.raises(MissingExtraError, match=r"no Postgres 7 was found\n.*penstock\[demo\]"):
        find_binaries(7)


def test_a_server_that_never_started_stops_without_a_trace() -> None:
    server = Server(find_binaries(18))
    assert server.pid is None
    assert server.url("shop", "ann") == f"postgresql://ann@127.0.0.1:{server.port}/shop"
    server.stop()
    server.stop()
    assert not server.folder.exists()
