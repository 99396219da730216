"""What each part is shown to do by itself, through the whole pipeline: where the parts meet."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.demo.server import Server
from tests.fixtures import market
from tests.fixtures.opensearch import Node
from tests.fixtures.opensearch_faults import Faulty
from tests.fixtures.pipelines import LIMIT, START_S, Deployed
from tests.fixtures.trade import Trade
from tests.fixtures.waiting import wait_until

pytestmark = LIMIT

Deploy = Callable[..., Deployed]
CUSTOMERS = {"customers": market.CUSTOMERS, "marks": market.MARKS}


def test_random_histories_end_as_sql_says(shared_market: Deployed, rng: random.Random) -> None:
    """E70: every kind of change at random, in transactions of several; the run's seed replays the choices."""
    with Trade(shared_market.database, rng, pause_s=0) as trade:
        trade.await_more(400)
    shared_market.runs[-1].catch_up()
    shared_market.judge()


def test_the_slot_moves_on_though_nothing_published_changes(shared_market: Deployed) -> None:
    """E23: others fill the WAL; what is not read does not hold it."""
    before = shared_market.written()
    noise = "SELECT count(pg_logical_emit_message(false, 'noise', repeat('x', 1 << 20))) FROM generate_series(1, 80)"
    shared_market.database.execute(noise)
    wait_until(lambda: shared_market.confirmed() > before, 60, "the slot to move")
    shared_market.database.execute("UPDATE customer SET name = 'after the noise'")
    shared_market.runs[-1].catch_up()
    shared_market.judge()


def test_an_older_write_that_comes_late_brings_nothing_back(shared_market: Deployed) -> None:
    """E72, E83, E88: a slow task's, in the server's own words; it keeps a delete's version far longer than a minute."""
    deployed, node = shared_market, shared_market.node
    assert node
    deployed.database.execute("INSERT INTO customer VALUES (7001, 'brief'), (7002, 'stays')")
    deployed.runs[-1].catch_up()
    place = f"/{deployed.prefix}customers"
    versions = {one: node.ask("GET", f"{place}/_doc/{one}")[1]["_version"] for one in (7001, 7002)}
    deployed.database.execute("DELETE FROM customer WHERE id = 7001; UPDATE customer SET name = 'new' WHERE id = 7002")
    deployed.runs[-1].catch_up()
    for one, version in versions.items():
        late = f"{place}/_doc/{one}?version={version}&version_type=external_gte"
        assert node.ask("PUT", late, {"name": "late"})[0] == 409
    deployed.judge()
    (settings,) = node.ask("GET", f"{place}/_settings")[1].values()
    assert settings["settings"]["index"]["gc_deletes"] == "1h"


@pytest.fixture
def granted(deploy: Deploy) -> Iterator[tuple[Deployed, str]]:
    """A deployment whose role may read, and no more: publication and identities were made for it. And the role."""
    deployed = deploy()
    execute, role = deployed.database.execute, f"runs_{deployed.slot}"
    execute(market.ROWS)
    for table in ("customer", "invoice", "line", "stamp", "product", "mark"):
        execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    execute(f"CREATE PUBLICATION {deployed.slot} FOR ALL TABLES")
    deployed.reach(deployed.database.role(role))
    execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    deployed.write(**CUSTOMERS)
    yield deployed, role
    for run in deployed.runs:
        run.end()
    execute(f"DROP OWNED BY {role}")


def test_a_role_that_may_not_do_what_is_needed_is_told(granted: tuple[Deployed, str]) -> None:
    """E34, E74: no right to replicate, then policies that hide rows from it: nothing is made, nothing begins."""
    deployed, role = granted
    execute = deployed.database.execute
    run = deployed.start()
    assert run.ended() == 2
    assert f"the role '{role}' may not open replication connections" in run.err, run.err
    execute(f"ALTER ROLE {role} REPLICATION; ALTER TABLE invoice ENABLE ROW LEVEL SECURITY")
    run = deployed.start()
    assert run.ended() == 2
    assert "row-level security" in run.err and "invoice" in run.err, run.err
    assert not execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", deployed.slot)


@pytest.mark.long
def test_rows_that_a_policy_begins_to_hide_are_not_taken_for_deleted(granted: tuple[Deployed, str]) -> None:
    """E74: while it runs; an error, and every document stays until somebody has decided."""
    deployed, role = granted
    execute = deployed.database.execute
    execute(f"ALTER ROLE {role} REPLICATION")
    run = deployed.start()
    run.catch_up()
    before = deployed.local("customers")
    execute("ALTER TABLE customer ENABLE ROW LEVEL SECURITY; UPDATE customer SET name = 'hidden' WHERE id < 9")
    wait_until(lambda: "row-level security" in run.err, START_S, "the error")
    assert deployed.local("customers") == before
    execute("ALTER TABLE customer DISABLE ROW LEVEL SECURITY")
    run.kill()
    run = deployed.start()
    run.catch_up()
    deployed.judge()
    assert run.stop() == 0


@pytest.mark.long
def test_a_seed_holds_no_transaction_open(deploy: Deploy, node: Node) -> None:
    """E55: transactions come and go while an index is seeded; none of them is as old as the seed."""
    deployed = deploy(node)
    deployed.database.execute("INSERT INTO customer SELECT n, 'c' || n FROM generate_series(1, 200000) n")
    deployed.write(**CUSTOMERS)
    run = deployed.start()
    open_now = (
        "SELECT pid, xact_start, now() - xact_start FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_xmin IS NOT NULL AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    seen: dict[tuple[Any, Any], float] = {}
    seeding: set[str] = set()

    def is_live() -> bool:
        told = run.status()
        seeding.update({told["indexes"]["customers"]["phase"]} if told else ())
        if "seeding" in seeding:
            seen.update({(pid, at): age.total_seconds() for pid, at, age in deployed.database.execute(open_now)})
        return seeding >= {"seeding", "live"}

    run.wait(is_live, START_S, "the seed to end")
    assert len(seen) > 10, "many short ones"
    begun = [at for _, at in seen]
    assert max(seen.values()) < (max(begun) - min(begun)).total_seconds() / 2
    run.catch_up()
    deployed.judge()
    assert run.stop() == 0


class Troubled:
    """A market whose search server stands behind one that makes trouble."""

    def __init__(self, deployed: Deployed, between: Faulty) -> None:
        self.deployed, self.between, self.execute = deployed, between, deployed.database.execute
        deployed.reach(deployed.database.url, between.url)
        deployed.top = 'on_error = "quarantine"'
        self.execute(market.ROWS)
        # Sessions of this database, the stream's among them.
        self.execute(f"ALTER DATABASE {deployed.database.name} SET wal_sender_timeout = '2s'")
        deployed.write(**market.SCHEMAS)
        self.run = deployed.start()
        self.run.catch_up()

    def reader(self) -> Any:
        """The server's process that sends."""
        query = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
        return wait_until(lambda: self.execute(query, self.deployed.slot)[0][0], 30, "the stream")

    def settle(self) -> None:
        """Everything is right again."""
        self.run.catch_up()
        self.deployed.judge()

    def block(self, value: bool | None) -> None:
        """As a node does whose disk is full."""
        assert self.deployed.node
        where = f"/{self.deployed.prefix}customers-*/_settings"
        assert self.deployed.node.ask("PUT", where, {"index.blocks.read_only_allow_delete": value})[0] == 200

    def restart(self) -> None:
        self.run = self.deployed.start()


@pytest.fixture
def troubled(
    start_server: Callable[..., Server], node: Node, faulty: Callable[..., Faulty], deploy: Deploy
) -> Iterator[Troubled]:
    """Running, with a server of its own."""
    found = Troubled(deploy(node, start_server()), faulty())
    yield found
    found.run.end()


@pytest.mark.long
def test_a_search_server_in_every_kind_of_trouble(troubled: Troubled) -> None:
    """E24, E27, E72, E80, E82, E83, E87: one run meets them in turn; nothing is lost, dropped or brought back."""
    between, execute = troubled.between, troubled.execute
    # Turned away, overloaded, reset, taken unheard: tried again, and the slot holds meanwhile.
    between.faults += [429, 503, "reset", "lost", "busy"]
    execute("UPDATE customer SET name = 'in the end'; DELETE FROM product WHERE id < 5")
    troubled.settle()
    assert not between.faults
    _blocked_for_long(troubled)
    _late(troubled)
    _too_large(troubled)
    _read_only(troubled)
    _lost_slot(troubled)


def _blocked_for_long(troubled: Troubled) -> None:
    """E24: the sink says nothing for longer than the server waits for its reader: that connection stays."""
    reader = troubled.reader()
    troubled.between.faults += ["silent"]
    troubled.execute("UPDATE customer SET name = 'after ten seconds'")
    troubled.settle()
    assert not troubled.between.faults
    assert troubled.reader() == reader


def _late(troubled: Troubled) -> None:
    """E72, E83: a request that was given up comes after those that followed it."""
    troubled.between.faults += ["late"]
    troubled.execute("INSERT INTO customer VALUES (501, 'brief'), (502, 'first')")
    wait_until(lambda: troubled.between.held, 30, "the request to be held")
    troubled.execute("DELETE FROM customer WHERE id = 501; UPDATE customer SET name = 'second' WHERE id = 502")
    troubled.settle()
    troubled.between.release()
    troubled.deployed.judge()


def _too_large(troubled: Troubled) -> None:
    """E82: a bulk is halved; what is too large by itself is put aside until it is not; a delete of nothing is none."""
    between, execute = troubled.between, troubled.execute
    between.limit = 30_000
    execute("UPDATE customer SET name = repeat('large ', 2000) WHERE id < 9")
    execute("INSERT INTO customer VALUES (601, 'x'); DELETE FROM customer WHERE id = 601")
    troubled.settle()
    execute(
        "UPDATE customer SET name = repeat('larger ', 6000) WHERE id = 9; UPDATE customer SET name = '' WHERE id = 10"
    )
    troubled.run.catch_up()
    troubled.run.await_status(quarantined=1)
    assert troubled.deployed.search("customers")["10"]["name"] == ""
    between.limit = None
    execute("UPDATE customer SET name = 'small' WHERE id = 9")
    troubled.settle()
    troubled.run.await_status(quarantined=0)


def _read_only(troubled: Troubled) -> None:
    """E87: a block is the operator's to lift, and told so; then all goes on."""
    before = troubled.deployed.written()
    troubled.block(True)
    troubled.execute("UPDATE customer SET name = 'while it is blocked'")
    assert troubled.run.ended() == 1
    assert "blocked for writes (cluster_block_exception)" in troubled.run.err
    assert troubled.deployed.confirmed() <= before
    troubled.block(None)
    troubled.restart()
    troubled.settle()


def _lost_slot(troubled: Troubled) -> None:
    """E27: held back by a sink that is down, it needs more WAL than the server keeps; the way out is told."""
    server = troubled.deployed.database.server
    server.configure({"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"})
    server.reload()
    troubled.between.is_down = True
    troubled.between.cut()
    troubled.execute("UPDATE customer SET name = 'never read'")
    status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"

    def lost() -> bool:
        troubled.execute("SELECT pg_logical_emit_message(true, 'noise', 'x'), pg_switch_wal()")
        troubled.execute("CHECKPOINT")
        return troubled.execute(status, troubled.deployed.slot) == [("lost",)]

    wait_until(lost, START_S, "the slot to be lost")
    assert troubled.run.ended() == 1
    assert f"slot {troubled.deployed.slot} is lost" in troubled.run.err
    assert "penstock reconcile" in troubled.run.err
