"""What operators do to a deployment: look after it, change it, lose a sink, take it down."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any, Self

import pytest

from penstock import failpoints
from penstock.engine.lineage import Lineage, Role
from penstock.engine.marks import Marks
from penstock.engine.state import State
from tests.fixtures import market
from tests.fixtures.commands import COMMAND, run_penstock
from tests.fixtures.opensearch import Node
from tests.fixtures.opensearch_faults import Faulty
from tests.fixtures.pipelines import LIMIT, START_S, Deployed, Run
from tests.fixtures.waiting import wait_until

pytestmark = LIMIT

Deploy = Callable[..., Deployed]
CUSTOMERS = {"customers": market.CUSTOMERS, "marks": market.MARKS}


def penstock(deployed: Deployed, *arguments: str) -> Any:
    return run_penstock(*arguments, "--config", str(deployed.folder / "penstock.toml"))


def test_the_doctor_looks_and_teardown_leaves_nothing(deploy: Deploy, node: Node) -> None:
    """E85, E89: refused while it runs; shown before it is removed; a second time finds nothing."""
    deployed = deploy(node)
    execute = deployed.database.execute
    execute(market.ROWS)
    deployed.sinks |= {name: f'type = "{name}"\npath = "{name}"' for name in ("delta", "parquet")}
    deployed.write(**CUSTOMERS)
    before = penstock(deployed, "doctor", "--json")
    assert before.returncode == 0, before.stdout
    assert not deployed.state.exists(), "the doctor makes nothing"
    run = deployed.start()
    run.catch_up()
    told = {one["about"]: one for one in json.loads(penstock(deployed, "doctor", "--json").stdout)["findings"]}
    assert told["state"]["message"].startswith("a run is at work")
    assert "holds 2 of 2 indexes" in told["sink search"]["message"]
    assert told["slot"]["verdict"] == told["clock"]["verdict"] == "good"
    refused = penstock(deployed, "teardown", "--yes")
    assert (refused.returncode, "a penstock runs" in refused.stderr) == (1, True)
    assert run.stop() == 0
    execute("SELECT pg_drop_replication_slot(%s)", deployed.slot)
    assert penstock(deployed, "doctor").returncode == 1, "the slot of a checkpoint is gone"
    asked = penstock(deployed, "teardown")
    assert (asked.returncode, "Add --yes" in asked.stderr) == (2, True)
    for said in (
        f"publication  {deployed.slot}",
        "in sink search",
        "in sink local",
        "in sink delta",
        "in sink parquet",
    ):
        assert said in asked.stdout
    assert deployed.search("customers")
    done = penstock(deployed, "teardown", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert (json.loads(done.stdout)["slot"], json.loads(done.stdout)["removed"]) == (None, True)
    assert node.ask("GET", f"/{deployed.prefix}*")[1] == {}
    assert not deployed.state.exists()
    assert not (deployed.folder / "local.db").exists()
    assert not [*deployed.folder.glob("delta/*customers*"), *deployed.folder.glob("parquet/*customers*")]
    assert not execute("SELECT FROM pg_publication WHERE pubname = %s", deployed.slot)
    again = penstock(deployed, "teardown", "--json")
    assert (again.returncode, json.loads(again.stdout)["removed"]) == (0, False)


ROOTS = 70_000


class Market:
    """A writer that never rests, and a reader that looks how many documents there are, over and over."""

    def __init__(self, deployed: Deployed, rng: random.Random) -> None:
        self.fewest = ROOTS
        self.looks = 0
        self._deployed, self._rng = deployed, random.Random(rng.getrandbits(64))
        self._over = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._guarded, args=(act,)) for act in (self._write, self._read)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._failures and kind is None:
            raise self._failures[0]

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            while not self._over.wait(0.01):
                act()
        except BaseException as error:  # noqa: BLE001 - raised by the test's own thread
            self._failures.append(error)

    def _write(self) -> None:
        key, other = self._rng.randint(1, ROOTS), self._rng.randint(1, 1000)
        with self._deployed.database.connect() as connection:
            connection.execute("UPDATE customer SET name = name || '.' WHERE id = %s", [key])
            connection.execute("INSERT INTO customer VALUES (%s, 'brief') ON CONFLICT DO NOTHING", [-other])
            connection.execute("DELETE FROM customer WHERE id = %s", [-self._rng.randint(1, 1000)])
            connection.execute("UPDATE invoice SET customer_id = %s WHERE id = %s", [key, other % 80])

    def _read(self) -> None:
        node, name = self._deployed.node, f"{self._deployed.prefix}customers"
        assert node
        status, said = node.ask("GET", f"/{name}/_count")
        assert status == 200, said
        self.fewest = min(self.fewest, said["count"], self._deployed.count("customers"))
        self.looks += 1


def generations(deployed: Deployed) -> list[str]:
    assert deployed.node
    found = deployed.node.ask("GET", f"/{deployed.prefix}customers-*")[1]
    return sorted(found, key=lambda name: int(name.rpartition("-")[2]))


def rebuild(run: Run) -> str:
    told = run.status()
    return str(told["indexes"]["customers"]["rebuild"]) if told else "?"


def test_a_reindex_that_is_killed_goes_on_and_readers_never_see_less(
    deploy: Deploy, node: Node, rng: random.Random
) -> None:
    """E84: a new generation beside the old one, which stays current; kill -9 half way, under a running workload."""
    deployed = deploy(node)
    execute = deployed.database.execute
    execute(market.ROWS)
    execute("INSERT INTO customer SELECT n, 'c' || n FROM generate_series(1, %s) n ON CONFLICT DO NOTHING", ROOTS)
    deployed.write(**CUSTOMERS)
    run = deployed.start()
    run.catch_up()
    (first,) = generations(deployed)
    assert penstock(deployed, "reindex", "nonsense").returncode == 2
    with Market(deployed, rng) as busy:
        assert penstock(deployed, "reindex", "customers", "--no-wait").returncode == 0
        some = "SELECT 1 FROM chunk WHERE name = 'customers' AND done"
        run.wait(lambda: deployed.remember(some), START_S, "some chunks of the new generation")
        execute("UPDATE customer SET name = 'canary' WHERE id = 7")
        shown = f"/{first}/_doc/7"
        run.wait(lambda: node.ask("GET", shown)[1]["_source"]["name"] == "canary", START_S, "the old one to be current")
        assert deployed.remember("SELECT 1 FROM seed WHERE name = 'customers'"), "the new one is not complete"
        run.kill()
        run = deployed.start()
        run.wait(lambda: rebuild(run) == "", START_S, "readers to change over")
    assert busy.fewest >= ROOTS - 1000
    assert busy.looks > 20
    run.catch_up()
    deployed.judge("customers")
    before, now = generations(deployed)
    assert (before, node.ask("GET", f"/_alias/{deployed.prefix}customers")[1].keys()) == (first, {now})
    assert run.stop() == 0


@pytest.mark.long
def test_a_reindex_that_is_killed_at_each_of_its_last_steps_goes_on(deploy: Deploy, node: Node) -> None:
    """E84: before it is verified, before readers change over, and after that, before the old one is given up."""
    deployed = deploy(node)
    deployed.database.execute(market.ROWS)
    deployed.write(**CUSTOMERS)
    for step in failpoints.SUCCESSION:
        run = deployed.start(PENSTOCK_FAILPOINT=step)
        run.catch_up()
        *_, before = generations(deployed)
        assert penstock(deployed, "reindex", "customers", "--no-wait").returncode == 0
        assert run.ended() == -signal.SIGKILL, step
        deployed.database.execute("UPDATE customer SET name = name || %s WHERE id %% 2 = 0", step)
        run = deployed.start()
        run.wait(lambda run=run: rebuild(run) == "", START_S, "readers to change over")
        run.catch_up()
        deployed.judge("customers")
        kept, now = generations(deployed)
        assert (kept, node.ask("GET", f"/_alias/{deployed.prefix}customers")[1].keys()) == (before, {now}), step
        assert run.stop() == 0


MORE = "  - {keyword: again, column: extra}\n"
OTHERWISE = market.CUSTOMERS.replace("text: name", "keyword: name", 1) + MORE


def look_and_leave_it(deployed: Deployed) -> None:
    """Commands that only read use the schema that an index was built by; nothing is another afterwards."""

    def standing() -> tuple[Any, ...]:
        with closing(State(deployed.state, only_read=True)) as state:
            return generations(deployed), Lineage(state).made(Role.CURRENT), Marks(state).marked()

    before = standing()
    told = json.loads(penstock(deployed, "explain", "customers", "7", "--json").stdout)
    assert {one["sink"]: one["state"] for one in told["sinks"]} == {"local": "the same", "search": "the same"}
    told = json.loads(penstock(deployed, "reconcile", "customers", "--json").stdout.splitlines()[0])
    assert [one["first"]["different"] for one in told["comparisons"]] == [["8"], ["8"]]
    assert told["skipped"] == {}
    assert standing() == before


@pytest.mark.long
def test_a_changed_schema_is_built_beside_the_old_one_and_can_be_taken_back(deploy: Deploy, node: Node) -> None:
    """E84, E85: the old one is current, by its own schema, until readers change over; a rollback outlives a restart."""
    deployed = deploy(node)
    execute = deployed.database.execute
    execute(market.ROWS)
    execute("INSERT INTO customer SELECT n, 'c' || n FROM generate_series(1, %s) n ON CONFLICT DO NOTHING", ROOTS)
    execute("ALTER TABLE customer ADD COLUMN extra text DEFAULT 'x'")
    deployed.write(**CUSTOMERS)
    run = deployed.start()
    run.catch_up()
    assert run.stop() == 0
    deployed.write(customers=OTHERWISE)
    execute("UPDATE customer SET name = 'while nothing ran' WHERE id = 8")
    look_and_leave_it(deployed)
    run = deployed.start()
    run.wait(lambda: rebuild(run) == "under way", START_S, "the new generation")
    execute("UPDATE customer SET name = 'canary' WHERE id = 7; DELETE FROM customer WHERE id = 9")

    def is_current() -> bool:
        found = deployed.local("customers")
        return (found["7"]["name"], found["8"]["name"], "9" in found) == ("canary", "while nothing ran", False)

    run.wait(is_current, START_S, "readers to see it")
    run.wait(lambda: rebuild(run) == "", START_S, "readers to change over")
    run.catch_up()
    wanted = market.expected(deployed.database, "customers")
    renewed = {name: {**body, "again": "x"} for name, body in wanted.items()}
    assert deployed.found("customers") == {"local": renewed, "search": renewed}
    first, second = generations(deployed)
    assert penstock(deployed, "reindex", "customers", "--rollback").returncode == 0
    assert node.ask("GET", f"/_alias/{deployed.prefix}customers")[1].keys() == {first}
    assert generations(deployed) == [first, second]
    execute("UPDATE customer SET name = 'after the rollback' WHERE id = 7")
    run.catch_up()
    deployed.judge("customers")
    run.kill()
    execute("UPDATE customer SET name = 'and a kill' WHERE id = 8")
    run = deployed.start()
    run.catch_up()
    deployed.judge("customers")
    assert "index customers was rolled back" in run.err
    assert {one["seeded"] for one in run.status()["indexes"].values()} == {0}
    assert penstock(deployed, "reindex", "customers").returncode == 0
    assert deployed.local("customers")["7"] == {**renewed["7"], "name": "after the rollback"}
    assert len(generations(deployed)) == 2
    assert run.stop() == 0
    execute("ALTER TABLE customer DROP COLUMN extra")
    deployed.write(customers=market.CUSTOMERS)
    run = deployed.start()
    run.catch_up()
    deployed.judge("customers")
    assert "readers of customers see it as it stands" in run.err
    assert run.stop() == 0


@pytest.mark.long
def test_fields_are_added_in_place(deploy: Deploy, node: Node) -> None:
    """E84: no new generation where documents only gain, and every one of them does; readers see all of them."""
    deployed = deploy(node)
    execute = deployed.database.execute
    execute(market.ROWS)
    execute("ALTER TABLE customer ADD COLUMN extra text DEFAULT 'x'")
    deployed.write(**CUSTOMERS)
    run = deployed.start()
    run.catch_up()
    before = generations(deployed)
    assert run.stop() == 0
    deployed.write(customers=market.CUSTOMERS + MORE)
    execute("DELETE FROM customer WHERE id > 30; UPDATE customer SET name = 'while nothing ran' WHERE id = 8")
    run = deployed.start()
    run.catch_up()
    wanted = market.expected(deployed.database, "customers")
    grown = {name: {**body, "again": "x"} for name, body in wanted.items()}
    assert deployed.found("customers") == {"local": grown, "search": grown}
    assert generations(deployed) == before
    assert run.status()["indexes"]["marks"]["seeded"] == 0
    refused = penstock(deployed, "reindex", "customers", "--rollback")
    assert (refused.returncode, "no generation of customers to go back to" in refused.stderr) == (1, True)
    assert run.stop() == 0


@pytest.mark.long
def test_a_sink_that_stays_down_is_left_behind_and_seeded_on_its_return(
    deploy: Deploy, node: Node, faulty: Callable[..., Faulty], monkeypatch: pytest.MonkeyPatch
) -> None:
    """E73, E86: past the limit the slot goes on without it, also over a restart; or the run stops, by setting."""
    impatient = "from penstock.engine import retention; retention.LASTING_S = 1; " + COMMAND[-1]
    monkeypatch.setattr("tests.fixtures.pipelines.COMMAND", [*COMMAND[:-1], impatient])
    between = faulty()
    deployed = deploy(node)
    execute = deployed.database.execute
    execute(market.ROWS)
    search = f'type = "opensearch"\nurl = "{between.url}"\nnumber_of_replicas = 0\nmax_retries = 0\n'
    deployed.sinks["search"] = search + 'on_down = "detach"'
    deployed.write(source='max_retained_wal = "4MB"', **CUSTOMERS)
    run = deployed.start()
    run.catch_up()
    between.is_down = True
    between.cut()
    before = deployed.written()
    execute("UPDATE customer SET name = 'gone on without it'; DELETE FROM customer WHERE id < 5")
    run.wait(lambda: (run.status() or {}).get("trouble"), START_S, "the trouble to be told")
    assert not (run.status() or {})["away"], "below the limit the slot holds"
    execute("INSERT INTO customer SELECT 1000 + n, repeat('x', 500) FROM generate_series(1, 10000) n")
    run.wait(lambda: "search" in (run.status() or {"away": ()})["away"], START_S, "the sink to be left behind")
    run.catch_up()
    wait_until(lambda: deployed.confirmed() > before, what="the slot to go on")
    assert len(deployed.local("customers")) == len(market.expected(deployed.database, "customers"))
    assert "gone on without it" not in str(deployed.search("customers"))
    run.kill()
    execute("DELETE FROM customer WHERE id > 2000")
    run = deployed.start()
    run.catch_up()
    assert "is left behind" in penstock(deployed, "status").stdout
    between.is_down = False
    run.wait(lambda: not (run.status() or {"away": "?"})["away"], START_S, "the sink to be back")
    run.catch_up()
    deployed.judge()
    deployed.sinks["search"] = search + 'on_down = "stop"'
    assert run.stop() == 0
    deployed.write(source='max_retained_wal = "1MB"')
    run = deployed.start()
    run.catch_up()
    between.is_down = True
    between.cut()
    execute("UPDATE customer SET name = repeat('y', 900)")
    assert run.ended() == 1
    assert "sink search is down, and the slot holds" in run.err
    deployed.write(source='max_retained_wal = "1GB"')
    run = deployed.start()
    run.wait(lambda: "sink search cannot be opened; tried again" in run.err, START_S, "it to wait for the sink")
    run.kill()
    deployed.sinks["search"] = search + 'on_down = "detach"'
    deployed.write(source='max_retained_wal = "1MB"')
    run = deployed.start()
    run.catch_up()
    assert (run.status() or {})["away"].keys() == {"search"}, "left behind at the start, and so the slot goes on"
