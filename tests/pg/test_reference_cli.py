"""`penstock follow` and `penstock lookup` on a real server."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from tests.fixtures.commands import running
from tests.fixtures.references import Dimensions, read_snapshot
from tests.fixtures.waiting import wait_until


class Shell:
    """Commands on the test's database and folder, run here."""

    def __init__(self, dims: Dimensions, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = ("--path", str(folder))
        self.follow = ("--url", dims.database.url, "--slot", dims.slot, "--publication", "dims", *self.path)
        self._capsys = capsys

    def run(self, *words: str, code: int = 0) -> list[Any]:
        """Run a command; what it answered as JSON, a value a line."""
        given = main.run([*words, "--json", *(self.follow if words[0] == "follow" else self.path)])
        shown = self._capsys.readouterr()
        assert given == code, shown.err
        return [json.loads(line) for line in (shown.out or shown.err).splitlines()]


@pytest.fixture
def shell(dims18: Dimensions, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    dims18.execute("CREATE TABLE city (id int PRIMARY KEY, name text)")
    dims18.execute("CREATE TABLE price (region text, day date, v numeric(9, 2), PRIMARY KEY (region, day))")
    dims18.execute("INSERT INTO city VALUES (1, 'Rome'), (2, NULL)")
    dims18.execute("INSERT INTO price VALUES ('1', '2026-01-31', 1.50)")
    return Shell(dims18, tmp_path / "views", capsys)


def test_a_copy_is_kept_current_and_looked_up(dims18: Dimensions, shell: Shell, tmp_path: Path) -> None:
    """E93, E96: followed in the foreground, looked up beside it, gone on with after a restart."""
    with running(tmp_path, "follow", "city", "price", "--json", *shell.follow) as follower:
        first = [json.loads(line) for line in follower.await_lines(2)]
        assert {(one["table"], one["rows"]) for one in first} == {("public.city", 2), ("public.price", 1)}
        assert all(one["position"] and one["lag_bytes"] >= 0 and one["age_s"] < 60 for one in first)
        dims18.execute("INSERT INTO city VALUES (3, 'Oslo')")
        wait_until(lambda: any(json.loads(line)["rows"] == 3 for line in follower.lines), 20, "the new row")
        assert follower.end() == 130
    (found,) = shell.run("lookup", "city", "3")
    assert (found["row"], found["table"]) == ({"id": 3, "name": "Oslo"}, "public.city")
    assert shell.run("lookup", "price", "1", "2026-01-31")[0]["row"]["v"] == "1.50"
    dims18.execute("DELETE FROM city WHERE id = 1")
    told = shell.run("follow", "city", "price", "--once")
    assert {one["table"]: one["rows"] for one in told} == {"public.city": 2, "public.price": 1}
    assert shell.run("lookup", "city", "1", code=1)[0]["row"] is None
    dims18.execute("SELECT pg_drop_replication_slot(%s)", dims18.slot)
    (error,) = shell.run("follow", "city", "price", "--once", code=1)
    assert error["error"]["type"] == "SlotMissingError"
    assert shell.run("lookup", "city", "2")[0]["row"] == {"id": 2, "name": None}, "the last good contents"
    shell.run("follow", "city", "price", "--once", "--fresh")
    next((tmp_path / "views" / "public.city").glob("base-*")).write_bytes(b"damaged")
    (error,) = shell.run("follow", "city", "price", "--once", code=1)
    assert "is damaged" in error["error"]["message"] and "--fresh" in error["error"]["hint"]
    shell.run("follow", "city", "price", "--once", "--fresh")
    assert shell.run("lookup", "city", "3")[0]["row"] == {"id": 3, "name": "Oslo"}


def test_what_is_wrong_is_told(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    for words, code, said in [
        (["lookup", "city", "1"], 1, "there is no saved view"),
        (["follow", "nothing", "--once"], 2, "public.nothing does not exist"),
        (["follow", "city", "--key", "name", "--once"], 2, "no unique index over name"),
    ]:
        (told,) = shell.run(*words, code=code)
        assert said in told["error"]["message"]
    shell.run("follow", "city", "--once", "--refresh", "snapshot")
    (told,) = shell.run("lookup", "city", "secret", code=2)
    assert "secret" not in json.dumps(told)
    assert main.run(["lookup", "city", "1", *shell.path]) == 0
    shown = capsys.readouterr()
    assert shown.out == "id    1\nname  Rome\n"
    assert "The copy is" in shown.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--database", "nowhere"], "there is no database 'nowhere'"),
        (["--path", "/dev/null/copies"], "/dev/null/copies/public.city cannot be used"),
    ],
)
def test_what_no_wait_will_mend_ends_it_at_once(words: list[str], said: str, shell: Shell, tmp_path: Path) -> None:
    with running(tmp_path, "follow", "city", *shell.follow, *words) as follower:
        assert follower.process.wait(30) == 1
    assert f"Error: {said}" in follower.err


@pytest.mark.parametrize("waiting", ["a held slot", "a new slot", "a snapshot"])
def test_an_end_is_heard_whatever_is_waited_for(dims18: Dimensions, shell: Shell, tmp_path: Path, waiting: str) -> None:
    """Ctrl-C ends the wait for a slot that is in use, and for transactions that a slot or a snapshot waits for."""
    if waiting != "a new slot":
        read_snapshot(dims18.capture().table("city"))
    if waiting == "a snapshot":
        dims18.close()
        dims18.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", dims18.slot)
    with dims18.database.connect(autocommit=False) as open_one:
        open_one.execute("SELECT pg_current_xact_id()")
        with running(tmp_path, "follow", "city", *shell.follow, "--log-level", "info") as follower:
            who = "a snapshot of public.city" if waiting == "a snapshot" else waiting
            said = "which is in use" if waiting == "a held slot" else f"{who} waits for every running transaction"
            wait_until(lambda: said in follower.err.lower(), 30, "the word on what is waited for")
            began_at = time.monotonic()
            assert follower.end() == 130
            assert time.monotonic() - began_at < 15
    assert "Traceback" not in follower.err
    if waiting == "a new slot":
        query = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s"
        wait_until(lambda: not dims18.execute(query, dims18.slot), what="nothing to be left behind")


def test_once_reads_what_is_there_now(dims18: Dimensions, shell: Shell) -> None:
    """However young the copy is; each table by its own key; what no type can hold as null, where that is asked for."""
    dims18.execute("CREATE TABLE code (id int PRIMARY KEY, code text NOT NULL UNIQUE, at date)")
    dims18.execute("ALTER TABLE code REPLICA IDENTITY FULL")
    dims18.execute("INSERT INTO code VALUES (1, 'one', 'infinity')")
    (told,) = shell.run("follow", "code", "--once", "--refresh", "snapshot", "--key", "code", code=1)
    assert "holds a value that" in told["error"]["message"]
    words = "follow", "city", "code", "--once", "--refresh", "periodic", "--every", "1000", "--key", "code=code"
    shell.run(*words, "--unrepresentable", "null")
    assert shell.run("lookup", "code", "one")[0]["row"] == {"id": 1, "code": "one", "at": None}
    dims18.execute("INSERT INTO city VALUES (3, 'Oslo')")
    shell.run(*words, "--unrepresentable", "null")
    assert shell.run("lookup", "city", "3")[0]["row"] == {"id": 3, "name": "Oslo"}
    (told,) = shell.run("follow", "city", "code", "--once", "--key", "code", code=2)
    assert "is of none of the tables" in told["error"]["message"]


def test_a_server_that_is_away_at_the_start_is_waited_for_in_few_words(shell: Shell, tmp_path: Path) -> None:
    """What is waited for is told once, not with every try, and Ctrl-C ends the wait in good order."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        away = str(taken.getsockname()[1])
    with running(tmp_path, "follow", "city", *shell.follow, "--port", away, "--log-level", "debug") as follower:
        wait_until(lambda: "no update: nothing listens" in follower.err, 30, "the word on what is waited for")
        assert follower.end() == 130
    assert follower.err.count("nothing listens") == 1
    assert "Traceback" not in follower.err
