"""The life of a deployment: stopped and started, taken over, changed between runs, killed while it is seeded."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from tests.fixtures import market
from tests.fixtures.commands import run_penstock
from tests.fixtures.databases import Database
from tests.fixtures.opensearch import Node
from tests.fixtures.opensearch_faults import Faulty
from tests.fixtures.pipelines import LIMIT, START_S, Deployed, Run, pass_time
from tests.fixtures.standbys import no_standby_answers
from tests.fixtures.waiting import wait_until

pytestmark = LIMIT

Deploy = Callable[..., Deployed]
# What a run may take to its end, whatever holds it up: ten seconds of its own, on a busy machine.
SECONDS = 60.0
CUSTOMERS = {"customers": market.CUSTOMERS, "marks": market.MARKS}


@contextmanager
def hanging_commit(database: Database, statement: str) -> Iterator[None]:
    """A transaction that is streamed, and cannot be seen: it waits for a synchronous standby that never answers."""
    with database.connect(application_name="hangs") as hanging:
        writing = threading.Thread(target=hanging.execute, args=[statement.encode()])
        with no_standby_answers(database):
            writing.start()
            waits = "SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'hangs'"
            wait_until(lambda: database.execute(waits), SECONDS, "the commit to hang")
            begun = "(SELECT query_start FROM pg_stat_activity WHERE application_name = 'hangs')"
            looks = (
                f"SELECT FROM pg_stat_activity WHERE query ~ '^SELECT pg_current_snapshot' AND query_start > {begun}"
            )
            wait_until(lambda: database.execute(looks), SECONDS, "the batch to wait for it")
            yield
        writing.join()


def test_stopped_in_good_order_it_goes_on_where_it_stood(deploy: Deploy) -> None:
    """E22, E20: SIGTERM drains, ends with 0 and prints what stays; the next run, of nothing but a lock file, seeds
    nothing and misses nothing, and every command finds it. A batch that cannot be built yet holds no end up (E71)."""
    deployed = deploy()
    deployed.database.execute(market.ROWS)
    deployed.write(**market.SCHEMAS)
    run = deployed.start()
    run.await_live()
    deployed.database.execute("UPDATE customer SET name = 'before the end'")
    assert run.stop() == 0
    for said in (f"slot {deployed.slot}", f"publication {deployed.slot}", f"{deployed.prefix}customers", "state"):
        assert said in run.err
    assert "Traceback" not in run.err
    deployed.database.execute("DELETE FROM customer WHERE id % 2 = 0; UPDATE invoice SET customer_id = 1")
    assert run_penstock("lock", "--config", str(deployed.folder)).returncode == 0
    for file in [deployed.folder / "penstock.toml", *deployed.folder.glob("*.schema.yml")]:
        file.unlink()
    run = deployed.start(locked=True)
    run.catch_up()
    deployed.judge()
    asked = run_penstock("status", "--config", str(deployed.folder), "--json")
    told = json.loads(asked.stdout)
    assert {one["phase"] for one in told["indexes"].values()} == {"live"}
    assert {one["seeded"] for one in told["indexes"].values()} == {0}
    found = run_penstock("search", "--config", str(deployed.folder), "customers", "before", "--json")
    assert found.returncode == 0, found.stderr
    found = run_penstock("quarantine", "list", "--config", str(deployed.folder / "penstock.lock"))
    assert found.stdout == "Nothing is in quarantine.\n"
    with hanging_commit(deployed.database, "UPDATE customer SET name = 'not seen yet' WHERE id = 1"):
        assert run.stop(signal.SIGINT, within_s=SECONDS) == 0
    assert "given up" in run.err
    asked = run_penstock("status", "--config", str(deployed.folder))
    assert asked.returncode == 1
    assert "no penstock run uses" in asked.stderr
    gone = run_penstock("teardown", "--yes", "--config", str(deployed.folder))
    assert gone.stdout.endswith("All of it is removed.\n"), gone.stderr
    assert not deployed.state.exists()


@pytest.mark.long
def test_a_second_instance_waits_and_takes_over(deploy: Deploy, node: Node, faulty: Callable[..., Faulty]) -> None:
    """E33: it writes nothing while the first one runs, and goes on where that one ends. One with another state folder
    waits, too: it begins no generation before the slot is its own, and then seeds."""
    deployed = deploy(node)
    deployed.database.execute(market.ROWS)
    deployed.write(**market.SCHEMAS)
    first = deployed.start()
    first.await_live()
    second = deployed.start()
    wait_until(lambda: "wait" in second.err, START_S, "the second one to say that it waits")
    deployed.database.execute("UPDATE customer SET name = 'by the first'")
    first.catch_up()
    deployed.judge()
    assert second.process.poll() is None
    first.kill()
    deployed.database.execute("UPDATE customer SET name = 'by nobody'")
    with closing(Deployed(deployed.database, node)) as apart:
        apart.slot, apart.prefix = deployed.slot, deployed.prefix
        between = faulty()
        apart.sinks["search"] = apart.sinks["search"].replace(node.url, between.url)
        apart.write(**market.SCHEMAS)
        second.catch_up()
        third = apart.start(spread=True)
        deployed.judge()
        told = second.status()
        assert told
        assert {one["seeded"] for one in told["indexes"].values()} == {0}
        third.wait(
            lambda: f"slot {deployed.slot}: it is in use (process" in third.err, START_S, "the third one to wait"
        )
        made = node.ask("GET", f"/{deployed.prefix}*/_mapping")
        deployed.database.execute("DELETE FROM customer WHERE id % 2 = 0")
        second.catch_up()
        deployed.judge()
        assert node.ask("GET", f"/{deployed.prefix}*/_mapping") == made
        second.kill()
        deployed.database.execute("UPDATE customer SET name = 'by nobody again'")
        third.catch_up()
        apart.judge()
        # A node that is silent, and stays so, does not hold the end up.
        between.faults += ["silent"] * 8
        seen = len(between.bulks)
        deployed.database.execute("UPDATE customer SET name = 'unheard'")
        third.wait(lambda: len(between.bulks) > seen, START_S, "the batch to wait for the node")
        assert third.stop(within_s=SECONDS) == 0
        assert "given up" in third.err


@pytest.mark.long
def test_sinks_indexes_and_schemas_change_between_runs(deploy: Deploy) -> None:
    """E43, E84–E86: only a new sink and an index that is new, changed or enabled again are seeded."""
    deployed = deploy()
    execute = deployed.database.execute
    execute(market.ROWS)
    deployed.write(**CUSTOMERS, places=market.PLACES)
    run = deployed.start()
    run.await_live()
    assert run.stop() == 0
    # A sink more, and an index more over tables that are not published yet.
    deployed.sinks["second"] = 'type = "local"\npath = "second.db"'
    deployed.write(products=market.PRODUCTS)
    with deployed.database.connect(autocommit=False) as open_transaction:
        open_transaction.execute("INSERT INTO tag VALUES (50, 'before the table is published', 5)")
        open_transaction.execute("INSERT INTO product_tag VALUES (1, 50)")
        run = deployed.start()
        waits = "SELECT FROM pg_locks WHERE mode = 'ShareRowExclusiveLock' AND NOT granted"
        wait_until(lambda: execute(waits), START_S, "the publication to wait for a writer")
        open_transaction.commit()
    run.catch_up()
    deployed.judge()
    assert [one["seeded"] for name, one in sorted(run.status()["indexes"].items())][:1] == [40]
    assert run.stop() == 0
    # An index is left out for a run, during which its rows change; another one's schema changes.
    deployed.write(disabled=("customers",))
    run = deployed.start()
    execute("UPDATE customer SET name = 'nobody looks'; DELETE FROM customer WHERE id > 30")
    run.catch_up()
    deployed.judge("products", "places")
    assert {one["seeded"] for one in run.status()["indexes"].values()} == {0}
    assert run.stop() == 0
    before = deployed.local("places")
    deployed.write(places=market.PLACES + "  - {keyword: again, column: name}\n")
    run = deployed.start()
    run.catch_up()
    deployed.judge("customers", "products")
    assert deployed.local("places") == {name: {**body, "again": body["name"]} for name, body in before.items()}
    told = run.status()["indexes"]
    assert {name for name, one in told.items() if one["seeded"]} == {"customers", "places"}
    assert run.stop() == 0


def phases(run: Run) -> dict[str, str]:
    told = run.status()
    return {name: one["phase"] for name, one in told["indexes"].items()} if told else {}


def test_an_index_that_no_longer_fits_is_stopped_and_the_others_go_on(deploy: Deploy) -> None:
    """E76: a column of another type, a link of another name; stopped until the database fits again, then seeded."""
    deployed = deploy()
    execute = deployed.database.execute
    execute(market.ROWS)
    deployed.write(**CUSTOMERS, places=market.PLACES, products=market.PRODUCTS)
    run = deployed.start()
    run.await_live()
    execute("ALTER TABLE place ADD COLUMN of_no_interest int; ALTER TABLE tag ALTER name SET NOT NULL")
    execute("UPDATE place SET name = 'after that'; UPDATE tag SET grade = grade + 1")
    run.catch_up()
    deployed.judge()
    # Nothing fails, but the documents would not be what the index was made for.
    execute("ALTER TABLE tag ALTER grade TYPE text; UPDATE customer SET name = 'still followed'")
    wait_until(lambda: phases(run).get("products") == "stopped", 60, "the index to stop")
    run.catch_up()
    deployed.judge("customers", "places")
    # The stream itself would lack the column.
    execute("ALTER TABLE visit RENAME code TO town; INSERT INTO visit VALUES (9, 'DE', 'B', 'unseen')")
    execute("UPDATE customer SET name = 'followed as before'")
    wait_until(lambda: phases(run).get("places") == "stopped", 60, "the other one to stop")
    run.catch_up()
    deployed.judge("customers")
    assert "index places is stopped" in run.err
    asked = run_penstock("status", "--config", str(deployed.folder / "penstock.toml"))
    assert 'Index products is stopped: column "grade" of public.tag was integer and is text now' in asked.stdout
    assert run.stop() == 0
    execute("ALTER TABLE visit RENAME town TO code; UPDATE customer SET name = 'once more'")
    run = deployed.start()
    run.catch_up()
    assert phases(run) == {"customers": "live", "marks": "live", "places": "live", "products": "stopped"}
    deployed.judge("customers", "places")
    assert run.stop() == 0


ROOTS = 70_000


def test_a_killed_seed_goes_on_where_it_stood(deploy: Deploy) -> None:
    """E52, E50, E51, E66: chunks that were done are not done again; changes and a TRUNCATE meanwhile are not missed."""
    deployed = deploy()
    execute = deployed.database.execute
    execute("INSERT INTO customer SELECT n, 'c' || n FROM generate_series(1, %s) n", ROOTS)
    deployed.write(**CUSTOMERS)
    # The last of the seed's four waves, or the third where live flushes, too: the first is noted down by then.
    run = deployed.start(PENSTOCK_FAILPOINT="flush:4")
    assert run.ended() == -signal.SIGKILL
    assert deployed.local("customers") == {}, "readers see nothing of it"
    ((total, done),) = deployed.remember("SELECT count(*), sum(done) FROM chunk WHERE name = 'customers'")
    assert 0 < done < total == ROOTS // 1000 + 1
    execute("DELETE FROM customer WHERE id % 7 = 0; UPDATE customer SET name = 'x' WHERE id % 5 = 0")
    run = deployed.start()

    def under_way() -> bool:
        told = run.status()
        return bool(told and told["indexes"]["customers"]["phase"] == "seeding")

    run.wait(under_way, START_S, "the seed")
    execute("INSERT INTO customer VALUES (-1, 'brief'); DELETE FROM customer WHERE id = -1")
    execute("INSERT INTO invoice VALUES (1, 1, 'n', 11)")
    run.catch_up()
    deployed.judge()
    assert run.status()["indexes"]["customers"]["chunks"] == total
    ((seeds,),) = deployed.remember("SELECT count(*) FROM seed")
    assert seeds == 0
    execute("TRUNCATE invoice; INSERT INTO customer VALUES (-2, 'after')")
    run.wait(under_way, START_S, "the seed that a truncated child asks for")
    execute("TRUNCATE customer; INSERT INTO customer VALUES (1, 'new')")
    run.catch_up()
    deployed.judge()
    assert run.stop() == 0


@pytest.mark.long
def test_a_stop_during_a_seed_does_not_complete_it(deploy: Deploy) -> None:
    """E52, E85: SIGTERM ends it within seconds; the next run does the rest, or all where the file was removed."""
    deployed = deploy()
    deployed.database.execute("INSERT INTO customer SELECT n, 'c' || n FROM generate_series(1, %s) n", 4 * ROOTS)
    deployed.write(**CUSTOMERS)
    run = deployed.start()
    some = "SELECT 1 FROM chunk WHERE name = 'customers' AND done"
    run.wait(lambda: run.status() and deployed.remember(some), START_S, "some chunks")
    assert run.stop() == 0
    assert deployed.local("customers") == {}
    ((done,),) = deployed.remember("SELECT sum(done) FROM chunk WHERE name = 'customers'")
    assert done > 0
    run = deployed.start()
    run.wait(lambda: run.status() and deployed.remember(f"{some} AND number > {done}"), START_S, "some more")
    assert run.stop() == 0
    for file in deployed.folder.glob("local.db*"):
        file.unlink()
    run = deployed.start()
    run.catch_up()
    deployed.judge()
    assert run.stop() == 0


@pytest.mark.long
@pytest.mark.parametrize("what", ["jvm", "worker"])
def test_a_part_that_dies(deploy: Deploy, what: str) -> None:
    """E21: without its JVM the run ends and says so; a lost worker is replaced. Nothing is missed either way."""
    deployed = deploy()
    deployed.database.execute(market.ROWS)
    deployed.write(**market.SCHEMAS)
    run = deployed.start(spread=True)
    run.catch_up()
    part = run.part(what)
    assert part
    deployed.database.execute("UPDATE customer SET name = 'last words'")
    part.kill()
    if what == "jvm":
        assert run.ended() == 3
        assert "the JVM of Spark has ended" in run.err
        run = deployed.start(spread=True)
    deployed.database.execute("DELETE FROM customer WHERE id < 20")
    run.catch_up()
    deployed.judge()
    assert run.stop() == 0


@pytest.mark.long
def test_a_slot_that_is_gone_is_told(deploy: Deploy) -> None:
    """E26, E89: a checkpoint without its slot is a clear stop, and so is a state folder that cannot be used."""
    deployed = deploy()
    deployed.database.execute(market.ROWS)
    deployed.write(**CUSTOMERS)
    run = deployed.start()
    run.catch_up()
    assert run.stop() == 0
    deployed.database.execute("SELECT pg_drop_replication_slot(%s)", deployed.slot)
    run = deployed.start()
    assert run.ended() == 1
    assert f"slot {deployed.slot} is gone" in run.err
    assert not deployed.database.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", deployed.slot)
    (deployed.folder / "file").touch()
    deployed.write(source="")
    file = deployed.folder / "penstock.toml"
    file.write_text(file.read_text().replace('state = "state"', 'state = "file"'))
    run = deployed.start()
    assert run.ended() == 1
    assert "the state folder" in run.err


DAYS = """
version: 1
table: day
fields: [{date: at}, {keyword: note}]
"""


@pytest.mark.long
def test_a_rejected_document_stops_the_run_or_is_put_aside(deploy: Deploy, node: Node) -> None:
    """E81: its neighbours land; nothing is acknowledged by the policy to stop; the other one goes on, and says so."""
    deployed = deploy(node)
    execute = deployed.database.execute
    execute("CREATE TABLE day (id int PRIMARY KEY, at date, note text); INSERT INTO day VALUES (1, '2026-01-01', 'x')")
    deployed.write(days=DAYS, marks=market.MARKS)
    run = deployed.start()
    run.catch_up()
    before = deployed.written()
    execute("INSERT INTO day VALUES (2, '2026-01-02', 'y'), (3, '0044-03-15 BC', 'no date of theirs'), (4, NULL, 'z')")
    assert run.ended() == 1
    assert "rejects document '3' of index days" in run.err
    assert "no date of theirs" not in run.err
    assert deployed.search("days").keys() == {"1", "2", "4"}
    assert deployed.confirmed() <= before
    deployed.top = 'on_error = "quarantine"'
    deployed.write()
    run = deployed.start()
    run.catch_up()
    assert run.await_status(quarantined=1)
    assert deployed.search("days").keys() == {"1", "2", "4"}
    assert deployed.local("days").keys() == {"1", "2", "3", "4"}
    assert deployed.remember("SELECT name, sink, id FROM quarantine") == [("days", "search", "3")]
    execute("UPDATE day SET at = '2026-01-03' WHERE id = 3")
    run.catch_up()
    assert deployed.search("days") == deployed.local("days")
    wait_until(lambda: deployed.confirmed() > before, what="the slot to move on")
    assert run.stop() == 0


@pytest.mark.long
def test_a_sink_that_is_down_holds_the_slot(deploy: Deploy, start_node: Callable[..., Node]) -> None:
    """E80, E86, E20: the node is killed while rows change; nothing is acknowledged until it has them."""
    deployed = deploy(start_node())
    assert deployed.node
    deployed.database.execute(market.ROWS)
    deployed.write(**market.SCHEMAS)
    run = deployed.start()
    run.catch_up()
    deployed.node.halt(signal.SIGKILL)
    before = deployed.written()
    deployed.database.execute("UPDATE customer SET name = 'while it is down'; DELETE FROM product WHERE id < 5")
    run.wait(lambda: (run.status() or {}).get("trouble"), START_S, "the trouble to be told")
    assert deployed.confirmed() <= before
    deployed.node.start()
    run.catch_up()
    deployed.judge()
    assert run.stop() == 0


def test_an_index_deleted_by_hand_is_made_anew_and_seeded(deploy: Deploy, node: Node) -> None:
    """E85: what was noted down of the old one is not believed; the other sink is not seeded again."""
    deployed = deploy(node)
    execute = deployed.database.execute
    execute("INSERT INTO customer SELECT n, 'c' || n FROM generate_series(1, 9000) n")
    deployed.write(**CUSTOMERS)
    run = deployed.start()
    run.await_live()
    node.ask("DELETE", f"/{deployed.prefix}customers-*")
    execute("UPDATE customer SET name = 'noticed' WHERE id = 7")
    run.wait(lambda: len(deployed.search("customers")) == 9000, START_S, "the index to be whole again")
    run.catch_up()
    deployed.judge()
    assert run.stop() == 0


@pytest.mark.long
def test_at_rest_no_table_is_read(deploy: Deploy) -> None:
    """E75: a minute without changes moves no scan counter of any table."""
    deployed = deploy()
    execute = deployed.database.execute
    execute(market.ROWS)
    deployed.write(**market.SCHEMAS)
    run = deployed.start()
    run.catch_up()
    counted = "SELECT sum(seq_scan + coalesce(idx_scan, 0) + seq_tup_read) FROM pg_stat_user_tables"
    pass_time(15)  # sessions hand their counters in with a delay
    before = execute(counted)
    pass_time(61)
    assert execute(counted) == before
    execute("UPDATE customer SET name = 'awake'")
    run.catch_up()
    deployed.judge()
    wait_until(lambda: execute(counted) > before, 60, "the counters to move, now that something is built")
    assert run.stop() == 0


# What reads rows, by how its last statement began; looks at the catalog are others.
READING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND query ~ '^(SELECT t0[.]|SELECT pg_current_snapshot|SET plan_cache)'
"""


@pytest.mark.long
@pytest.mark.parametrize("spread", [False, True])
def test_connections_stay_within_their_bound(deploy: Deploy, node: Node, spread: bool) -> None:
    """E69: of every process together, while an index is seeded and rows change; a task that is done keeps none."""
    deployed = deploy(node)
    execute = deployed.database.execute
    execute("INSERT INTO customer SELECT n, 'c' || n FROM generate_series(1, %s) n", ROOTS)
    deployed.write(**CUSTOMERS)
    run, seen = deployed.start(spread=spread), set[int]()

    def is_live() -> bool:
        ((reading,),) = execute(READING)
        seen.add(reading)
        if len(seen) > 1:  # the seed has begun
            execute("UPDATE customer SET name = name || '.' WHERE id % 500 = 0")
        told = run.status()
        return bool(told and told["indexes"]["customers"]["phase"] == "live")

    run.wait(is_live, START_S, "the seed to end")
    assert max(seen) in (3, 4), "seeds have two, live has one or two"
    run.catch_up()
    deployed.judge()
    wait_until(lambda: execute(READING) <= [(2,)], what="every task to let go")
    assert run.stop() == 0
