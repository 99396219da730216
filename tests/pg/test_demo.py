"""The demo: ends by itself, tells the truth about what it saw, and leaves nothing."""

from __future__ import annotations

import io
import json
import random
import signal
import tempfile
from collections import Counter
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from penstock.demo import run as story
from penstock.demo import shop
from penstock.demo.mirror import Mirror
from penstock.demo.run import Request
from penstock.demo.workload import END_MARK, Workload
from penstock.model import Op
from penstock.postgres.connection import resolve
from tests.fixtures.commands import run_penstock, running
from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until


def folders() -> set[Path]:
    """The folders of servers. The fixtures look after each test for what is left of anything."""
    return set(Path(tempfile.gettempdir()).glob("penstock-pg-*"))


def test_it_ends_by_itself_and_the_changes_replayed_are_the_tables() -> None:
    """Every operation was seen, and the caller's PG* variables do not lead it astray."""
    before = folders()
    done = run_penstock("demo", "--json", DEMO_SECONDS="1", PGSSLMODE="verify-full", PGPORT="1")
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["equal"] is True
    assert outcome["faults"] == []
    assert set(outcome["changes"]) == {"insert", "update", "delete", "truncate"}
    assert all(count > 0 for count in outcome["changes"].values())
    assert outcome["tables"]["public.items"]["rows"] > 0
    assert outcome["latency_ms_p50"] < 1000
    assert folders() == before


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_early_with_the_same_comparison_and_nothing_left(how: signal.Signals, tmp_path: Path) -> None:
    before = folders()
    with running(tmp_path, "demo") as demo:
        demo.await_lines(2)
        (server,) = [child for child in psutil.Process(demo.process.pid).children() if "postgres" in child.name()]
        assert demo.end(how) == 0
        assert demo.lines[-1].startswith("Equal: ")
        assert demo.err == ""
    wait_until(lambda: not server.is_running(), what="the server to end")
    assert folders() == before


def test_a_signal_before_the_server_is_up_leaves_nothing(tmp_path: Path) -> None:
    before = folders()
    with running(tmp_path, "demo") as demo:
        wait_until(lambda: folders() - before, 30, "the server's folder")
        assert demo.end(signal.SIGTERM) == 0
        assert "Equal: " in demo.lines[-1]
    assert folders() == before


def perform(**settings: float) -> story.Outcome:
    return story.run(Request(seconds=0, rate=1000, quiet=True, **settings), Console(file=io.StringIO()))


def test_a_change_that_was_not_replayed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: rows that are missing, rows that should be gone, counts that differ."""
    apply, seen = Mirror.apply, Counter[str]()

    def forgetful(self: Mirror, batch: story.ChangeBatch) -> None:
        apply(self, batch)
        for part in batch.tables:
            seen[str(part.table)] += 1
        if seen["public.users"]:
            self.tables[shop.USERS].clear()

    monkeypatch.setattr(Mirror, "apply", forgetful)
    outcome = perform()
    assert any(fault.startswith("changes that do not fit the row before: ") for fault in outcome.faults)
    assert any(fault.startswith("public.users: ") and "not in the mirror" in fault for fault in outcome.faults)


def test_a_change_that_was_not_counted_and_an_operation_unseen_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.demo.tally._OPS", {"insert": Op.INSERT, "update_postimage": Op.UPDATE})
    outcome = perform()
    assert "no delete was seen" in outcome.faults
    assert "no truncate was seen" in outcome.faults
    assert any("deletes were written, 0 were seen" in fault for fault in outcome.faults)


def test_a_workload_that_fails_ends_the_demo_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shop, "USERS", shop.USERS._replace(name="nowhere"))
    with pytest.raises(Exception, match="a table does not exist") as caught:
        perform()
    assert type(caught.value).__name__ == "OperatorError"


def test_the_opening_holds_every_kind_of_change_and_the_same_seed_plans_the_same() -> None:
    first, second = shop.Shop(random.Random(5)), shop.Shop(random.Random(5))
    opening = [first.plan() for _ in range(shop.Shop.OPENING)]
    assert opening == [second.plan() for _ in range(shop.Shop.OPENING)]
    kinds = {(statement.table, statement.op) for one in opening if not one.rolled_back for statement in one.statements}
    assert {op for _, op in kinds} == set(Op)
    assert (shop.ITEMS, Op.UPDATE) in kinds
    assert any(one.rolled_back for one in opening)
    assert [first.plan() for _ in range(50)] != [shop.Shop(random.Random(6)).plan() for _ in range(50)]


def test_no_planned_statement_meets_a_missing_row(db18: Database) -> None:
    """2,000 transactions: each touches what it is meant to, and only those that roll back leave nothing."""
    ended: list[bool] = []
    workload = Workload(resolve(db18.url, env={}), 100, 1, lambda: ended.append(True))
    workload.prepare()
    connection = db18.connect()
    for _ in range(2000):
        transaction = workload._shop.plan()
        before = Counter(workload.counts)
        workload._execute(connection, transaction)
        done = workload.counts - before
        if transaction.rolled_back:
            assert not done
            continue
        for statement in transaction.statements:
            empties = statement.table == shop.ITEMS and statement.op is Op.DELETE  # an order whose items were moved
            assert done[statement.table, statement.op] or empties, statement.sql
    workload.start()
    workload.stop()
    workload.join()
    assert workload.error is None
    assert ended == [True]
    assert db18.execute("SELECT payload FROM staging ORDER BY id DESC LIMIT 1") == [(END_MARK,)]
