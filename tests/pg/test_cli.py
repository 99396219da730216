"""The command line on real servers: slots, coverage, and changes as they come."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from penstock.cli import main
from penstock.model import Lsn
from tests.fixtures.commands import COMMAND, environment, run_penstock, running
from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until

Penstock = Callable[..., str]


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Penstock:
    """`penstock(database, "slots", "list")` runs a command here and gives its output; `code` is what is expected."""

    def run(database: Database, *arguments: str, code: int = 0) -> str:
        monkeypatch.setenv("PENSTOCK_URL", database.url)
        assert main.run(arguments) == code, capsys.readouterr().err
        shown = capsys.readouterr()
        return shown.out if code == 0 else shown.out + shown.err

    return run


def publish(database: Database, *tables: str) -> None:
    for table in tables:
        database.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, v text)")
    database.execute(f"CREATE PUBLICATION penstock FOR TABLE {', '.join(tables)}")


def slot_names(database: Database) -> list[str]:
    query = "SELECT slot_name FROM pg_replication_slots WHERE database = %s ORDER BY 1"
    return [name for (name,) in database.execute(query, database.name)]


def confirmed(database: Database, slot: str) -> Lsn:
    query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
    return Lsn.parse(database.execute(query, slot)[0][0])


def await_reader(database: Database) -> str:
    """The slot that somebody streams from."""
    query = (
        "SELECT slot_name FROM pg_replication_slots JOIN pg_stat_replication ON pid = active_pid WHERE database = %s"
        " AND pg_stat_replication.state IN ('catchup', 'streaming')"
    )
    return str(wait_until(lambda: database.execute(query, database.name), 30, "a reader")[0][0])


@pytest.fixture
def shop(database: Database) -> Iterator[Database]:
    """Two published tables, on each major in turn; slots that a test made are dropped."""
    publish(database, "t", "u")
    yield database
    database.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", database.name
    )


@pytest.fixture
def shop18(db18: Database) -> Iterator[Database]:
    """The same on Postgres 18."""
    publish(db18, "t", "u")
    yield db18
    db18.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", db18.name)


def test_a_slot_from_its_making_to_its_end(shop: Database, penstock: Penstock) -> None:
    """E30: made, listed, measured, moved and dropped; dropping what is not there is no error."""
    made = json.loads(penstock(shop, "slots", "create", "mine", "--publication", "penstock", "--json"))
    assert made == {
        "slot": "mine", "database": shop.name, "consistent_point": str(confirmed(shop, "mine")), "failover": False,
    }  # fmt: skip
    shop.execute("SELECT pg_logical_emit_message(true, 'tests', repeat('x', 3000))")
    (listed,) = (one for one in json.loads(penstock(shop, "slots", "list", "--json")) if one["name"] == "mine")
    assert (listed["plugin"], listed["active"], listed["lost"], listed["note"]) == ("pgoutput", False, False, "")
    assert listed["confirmed_flush_lsn"] == made["consistent_point"]
    lag = json.loads(penstock(shop, "slots", "lag", "mine", "--json"))
    assert lag["retained_bytes"] >= lag["lag_bytes"] > 3000
    assert penstock(shop, "slots", "lag", "mine").startswith("mine: ")
    ((end,),) = shop.execute("SELECT pg_current_wal_flush_lsn()::text")
    stands = json.loads(penstock(shop, "slots", "advance", "mine", end, "--yes", "--json"))
    assert stands == {"slot": "mine", "confirmed_flush_lsn": str(confirmed(shop, "mine"))}
    assert confirmed(shop, "mine") == Lsn.parse(end)
    assert "the WAL ends before" in penstock(shop, "slots", "advance", "mine", "FFFF/0", "--yes")
    assert json.loads(penstock(shop, "slots", "drop", "mine", "--yes", "--json")) == {"slot": "mine", "dropped": True}
    assert slot_names(shop) == []
    assert penstock(shop, "slots", "drop", "mine", "--yes") == "There is no slot mine.\n"


def test_slots_that_are_not_for_this_database_are_marked(shop18: Database, penstock: Penstock) -> None:
    """E28: another database's, another plugin's, a physical one."""
    with psycopg.connect(shop18.server.url(), autocommit=True) as elsewhere:
        elsewhere.execute("SELECT pg_create_logical_replication_slot('b_elsewhere', 'pgoutput')")
        elsewhere.execute("SELECT pg_create_physical_replication_slot('d_physical')")
        shop18.execute("SELECT pg_create_logical_replication_slot('a_ours', 'pgoutput')")
        shop18.execute("SELECT pg_create_logical_replication_slot('c_plugin', 'test_decoding')")
        try:
            head, *rows = penstock(shop18, "slots", "list").splitlines()
            notes = {row.split()[0]: row[head.index("note") :] for row in rows}
            assert notes == {
                "a_ours": "", "b_elsewhere": "another database", "c_plugin": "another plugin", "d_physical": "physical",
            }  # fmt: skip
        finally:
            elsewhere.execute("SELECT pg_drop_replication_slot('b_elsewhere'), pg_drop_replication_slot('d_physical')")


def test_a_new_slot_says_whom_it_waits_for_and_can_be_given_up(shop18: Database, tmp_path: Path) -> None:
    """E36: the process in the way is named; Ctrl-C leaves no slot."""
    blocker = shop18.connect(autocommit=False, application_name="nightly")
    blocker.execute("INSERT INTO t VALUES (1)")
    with running(tmp_path, "slots", "create", "waiting", PENSTOCK_URL=shop18.url) as create:
        wait_until(lambda: f"pid {blocker.info.backend_pid} (postgres nightly" in create.err, 15, "who blocks")
        assert create.end() == 130
        assert "Given up: slot waiting was not made." in create.err
    blocker.rollback()
    assert slot_names(shop18) == []


def test_a_slot_before_any_publication_is_warned_about(db18: Database, penstock: Penstock) -> None:
    """E40: publication first; the one that is named must be there."""
    done = run_penstock("slots", "create", "early", PENSTOCK_URL=db18.url)
    assert done.returncode == 0
    assert "the database has no publication" in done.stderr
    penstock(db18, "slots", "drop", "early", "--yes")
    publish(db18, "t")
    done = run_penstock("slots", "create", "late", PENSTOCK_URL=db18.url)
    assert done.stderr == ""
    penstock(db18, "slots", "drop", "late", "--yes")


def in_terminal(database: Database, *arguments: str, typed: str) -> tuple[int, str]:
    """Run a command at a terminal and type; its exit code and everything that the terminal showed."""
    controller, terminal = pty.openpty()
    variables = environment(PENSTOCK_URL=database.url, TERM="xterm", COLUMNS="200")
    with subprocess.Popen(
        [*COMMAND, *arguments], env=variables, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    ) as process:
        os.close(terminal)
        os.write(controller, typed.encode())
        shown = b""
        while select.select([controller], [], [], 30)[0]:
            try:
                shown += os.read(controller, 4096)
            except OSError:  # the other side is closed
                break
        os.close(controller)
        return process.wait(30), shown.decode()


def test_what_cannot_be_taken_back_is_asked_for(shop18: Database, penstock: Penstock) -> None:
    """E30: no means no; without a terminal only --yes means yes."""
    penstock(shop18, "slots", "create", "mine")
    at = confirmed(shop18, "mine")
    for arguments in (("advance", "mine", "FFFF/0"), ("drop", "mine")):
        code, shown = in_terminal(shop18, "slots", *arguments, typed="n\n")
        assert code == 1, shown
        assert "[y/N]" in shown
        assert "nothing was changed" in shown
        for unattended in ((), ("--json",)):
            assert "Add --yes." in penstock(shop18, "slots", *arguments, *unattended, code=2)
    assert confirmed(shop18, "mine") == at
    code, shown = in_terminal(shop18, "slots", "drop", "mine", typed="y\n")
    assert code == 0, shown
    assert slot_names(shop18) == []


def test_a_terminal_gets_a_table_with_colours(shop18: Database, penstock: Penstock) -> None:
    penstock(shop18, "slots", "create", "mine")
    code, shown = in_terminal(shop18, "slots", "list", typed="")
    assert code == 0
    assert "mine" in shown
    assert "─" in shown
    assert "\x1b[" in shown
    assert "\x1b[" not in penstock(shop18, "slots", "list")


def test_coverage_reports_and_mends_only_when_told_to(database: Database, penstock: Penstock) -> None:
    """E41: what is missing, the exact SQL, and the exit code; --fix does it."""
    database.execute('CREATE TABLE a (id int PRIMARY KEY); CREATE SCHEMA s; CREATE TABLE s."B" (id int PRIMARY KEY)')
    shown = penstock(database, "coverage", "a", 's."B"', code=1)
    sql = 'CREATE PUBLICATION "penstock" FOR TABLE "public"."a", "s"."B";'
    assert "carries 0 of 2 tables" in shown
    assert sql in shown
    assert database.execute("SELECT pubname FROM pg_publication") == []
    report = json.loads(penstock(database, "coverage", "a", "--json", code=1).splitlines()[0])
    assert (report["missing"], report["complete"], report["manageable"]) == (["public.a"], False, True)
    assert "added    public.a" in penstock(database, "coverage", "a", "--fix")
    fixed = json.loads(penstock(database, "coverage", "a", 's."B"', "--fix", "--json"))
    assert (fixed["added"], fixed["missing"], fixed["complete"]) == (['s."B"'], [], True)
    whole = json.loads(penstock(database, "coverage", "--json"))
    assert whole["present"] == ["public.a", 's."B"']
    assert penstock(database, "coverage").startswith("Publication penstock carries 2 of 2 tables.")


def test_changes_are_shown_as_they_are_committed_and_nothing_is_left(shop: Database, tmp_path: Path) -> None:
    """E31: over a temporary slot; a line is there before the next change happens; Ctrl-C ends it."""
    with running(tmp_path, "tail", PENSTOCK_URL=shop.url) as tail:
        name = await_reader(shop)
        assert name.startswith("penstock_tail_")
        assert not any("postgresql://" in word for word in psutil.Process(tail.process.pid).cmdline())
        shop.execute("INSERT INTO t VALUES (1, 'secret')")
        (line,) = tail.await_lines(1)
        assert line.rstrip().endswith("insert    public.t  id=1")
        shop.execute("UPDATE t SET id = 2")
        shop.execute("DELETE FROM t")
        shop.execute("TRUNCATE t, u")
        lines = [line.rstrip().split("  ", 2)[2].lstrip() for line in tail.await_lines(5)]
        assert lines[1:3] == ["update    public.t  id=2  (was id=1)", "delete    public.t  id=2"]
        assert sorted(lines[3:]) == ["truncate  public.t", "truncate  public.u"]
        assert "secret" not in "".join(tail.lines)
        shown = Lsn.parse(tail.lines[-1].split()[2].split(":")[0])
        wait_until(lambda: confirmed(shop, name) >= shown, what="the temporary slot to let go of WAL")
        assert tail.end() == 130
        assert tail.err == ""
    wait_until(lambda: slot_names(shop) == [], what="the temporary slot to go")


def test_whole_rows_as_json_lines(shop: Database, tmp_path: Path) -> None:
    """E3: a value that was not sent is left out, which null is not; SIGTERM ends it."""
    shop.execute("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    with running(tmp_path, "tail", "--json", "--rows", PENSTOCK_URL=shop.url) as tail:
        await_reader(shop)
        shop.execute("INSERT INTO t VALUES (1, repeat('y', 5000)), (2, NULL)")
        shop.execute("UPDATE t SET id = 3 WHERE id = 1")
        shop.execute("DELETE FROM t WHERE id = 3")
        found = [json.loads(line) for line in tail.await_lines(4)]
        assert [one["op"] for one in found] == ["insert", "insert", "update", "delete"]
        assert [one["row"] for one in found] == [0, 1, 0, 0]
        assert found[0]["new"] == {"id": 1, "v": "y" * 5000}
        assert found[1]["new"] == {"id": 2, "v": None}
        assert (found[2]["new"], found[2]["old"]) == ({"id": 3}, {"id": 1})
        assert (found[3]["new"], found[3]["old"]) == (None, {"id": 3})
        assert found[0]["lsn"] == found[1]["lsn"] != found[2]["lsn"]
        assert found[0]["xid"] == found[1]["xid"] != found[2]["xid"]
        assert tail.end(signal.SIGTERM) == 143
        assert tail.err == ""


def test_a_named_slot_moves_only_over_what_was_printed_and_confirmed(shop18: Database, penstock: Penstock) -> None:
    """E20, E15: looking moves nothing; a transaction that was printed in part comes again whole."""
    penstock(shop18, "slots", "create", "mine")
    shop18.execute("INSERT INTO t SELECT generate_series(1, 3)")
    shop18.execute("INSERT INTO t VALUES (4)")

    def tail(*flags: str) -> list[int]:
        wait_until(lambda: not shop18.execute("SELECT 1 FROM pg_replication_slots WHERE active"), what="a free slot")
        shown = penstock(shop18, "tail", "--slot", "mine", "--json", *flags)
        return [json.loads(line)["new"]["id"] for line in shown.splitlines()]

    start = confirmed(shop18, "mine")
    assert tail("--limit", "4") == [1, 2, 3, 4]
    assert confirmed(shop18, "mine") == start
    assert tail("--limit", "2", "--confirm") == [1, 2]
    assert confirmed(shop18, "mine") == start
    assert tail("--limit", "3", "--confirm") == [1, 2, 3]
    assert confirmed(shop18, "mine") > start
    assert tail("--limit", "1", "--confirm") == [4]
    shop18.execute("INSERT INTO t VALUES (5)")
    assert tail("--limit", "1") == [5]


def test_only_the_named_tables_and_their_partitions_are_shown(db18: Database, tmp_path: Path) -> None:
    """E7: a partitioned table's changes come under the names of its partitions."""
    db18.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    db18.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    db18.execute("CREATE TABLE other (id int PRIMARY KEY)")
    db18.execute("CREATE PUBLICATION penstock FOR TABLE p, other")
    with running(tmp_path, "tail", "p", "--limit", "2", PENSTOCK_URL=db18.url) as tail:
        await_reader(db18)
        db18.execute("INSERT INTO p VALUES (1)")
        db18.execute("INSERT INTO other VALUES (1)")
        db18.execute("INSERT INTO p VALUES (2)")
        lines = tail.await_lines(2)
        assert [line.split("  ")[-2:] for line in lines] == [["public.p1", "id=1\n"], ["public.p1", "id=2\n"]]
        assert tail.process.wait(30) == 0


def test_a_reader_that_has_enough_ends_it_also_while_nothing_happens(shop18: Database, tmp_path: Path) -> None:
    """`penstock tail | head -1`: the closed pipe is noticed without another change, and is no error."""
    head_end, tail_end = os.pipe()
    with running(tmp_path, "tail", stdout=tail_end, PENSTOCK_URL=shop18.url) as tail:
        os.close(tail_end)
        await_reader(shop18)
        shop18.execute("INSERT INTO t VALUES (1)")
        assert os.read(head_end, 1000).endswith(b"public.t  id=1\n")
        os.close(head_end)
        assert tail.process.wait(30) == 0
        assert tail.err == ""
    wait_until(lambda: slot_names(shop18) == [], what="the temporary slot to go")


def test_a_temporary_slot_that_went_with_its_connection_is_told_as_that(shop18: Database, tmp_path: Path) -> None:
    """E26: changes may be missing from the output, so it ends and says so."""
    with running(tmp_path, "tail", "--log-level", "error", PENSTOCK_URL=shop18.url) as tail:
        await_reader(shop18)
        shop18.execute("INSERT INTO t VALUES (1)")
        tail.await_lines(1)
        shop18.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
        assert tail.process.wait(30) == 1
        assert "the temporary slot went with it" in tail.err
        assert "--slot NAME" in tail.err
