"""What people do when something went wrong: quarantine, reconcile, explain, on one running deployment."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from penstock.engine.marks import Marks
from penstock.engine.state import State
from penstock.ops.control import ask
from tests.fixtures import market
from tests.fixtures.commands import run_penstock
from tests.fixtures.opensearch import Node
from tests.fixtures.pipelines import LIMIT, START_S, Deployed, Run, fresh_database
from tests.fixtures.servers import Servers
from tests.fixtures.waiting import wait_until

pytestmark = LIMIT

DAYS = """
version: 1
table: day
fields: [{date: at}, {keyword: note}]
"""
EVENTS = """
version: 1
table: event
fields: [{integer: note}]
"""
TABLES = """
CREATE TABLE day (id int PRIMARY KEY, at date, note text);
INSERT INTO day SELECT n, '2026-01-01', n FROM generate_series(1, 9) n;
CREATE TABLE event (id int, part int, note int, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE event_1 PARTITION OF event FOR VALUES IN (1);
CREATE TABLE event_2 PARTITION OF event FOR VALUES IN (2);
INSERT INTO event SELECT n, n % 2 + 1, n FROM generate_series(1, 20) n;
"""


SINKS = ("local", "search")
CHANGES = [
    "UPDATE customer SET name = name || 'x' WHERE id = $",
    "UPDATE customer SET gone = CASE WHEN gone IS NULL THEN now() END WHERE id = $",
    "DELETE FROM customer WHERE id = 100 + $",
    "INSERT INTO customer VALUES (100 + $, 'new') ON CONFLICT (id) DO UPDATE SET name = 'again'",
    "UPDATE invoice SET customer_id = $ WHERE id = 2 * $",
    "UPDATE product SET name = name || 'y' WHERE id = $",
    "INSERT INTO event VALUES (1000 + $, 1, 0) ON CONFLICT (id, part) DO UPDATE SET note = event.note + 1",
    "DELETE FROM event WHERE id = 1000 + $",
]


class Operated:
    """A deployment that runs, and the command line beside it."""

    def __init__(self, deployed: Deployed, node: Node) -> None:
        self.deployed, self.node = deployed, node
        self.execute = deployed.database.execute

    @property
    def run(self) -> Run:
        return self.deployed.runs[-1]

    def penstock(self, *arguments: str, code: int = 0) -> str:
        """What a command prints; it ends with this code."""
        config = str(self.deployed.folder / "penstock.toml")
        done = run_penstock(*arguments, "--config", config, timeout_s=START_S)
        assert done.returncode == code, f"{done.returncode}: {done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def told(self, *arguments: str, code: int = 0) -> Any:
        """The JSON that a command prints."""
        return json.loads(self.penstock(*arguments, "--json", code=code).splitlines()[0])

    def reconcile(self, *arguments: str, code: int = 0) -> dict[tuple[str, str], dict[str, Any]]:
        """What a reconcile found, by index and sink, where there was something."""
        told = self.told("reconcile", *arguments, code=code)
        assert not told["error"]
        assert not told["skipped"]
        return {(one["index"], one["sink"]): one for one in told["comparisons"] if one["differing"]}

    def judge(self) -> None:
        """Every document in every sink is what SQL by hand says."""
        self.deployed.judge(*market.SCHEMAS)
        for index, query in (("days", "SELECT id, at, note FROM day"), ("events", "SELECT id, part, note FROM event")):
            rows = self.execute(query)
            wanted = {str(id): {"at": str(at), "note": note} for id, at, note in rows}
            if index == "events":
                wanted = {f"{id}|{part}": {"note": note} for id, part, note in rows}
            for found in self.deployed.found(index).values():
                assert found == wanted

    def reject_words(self, rejecting: bool = True) -> None:
        """Have the search server reject every day whose note is no number, or take it again."""
        body = {"processors": [{"convert": {"field": "note", "type": "integer"}}]}
        assert self.node.ask("PUT", "/_ingest/pipeline/numbers", body)[0] == 200
        settings = {"index": {"final_pipeline": "numbers" if rejecting else "_none"}}
        assert self.node.ask("PUT", f"/{self.deployed.prefix}days/_settings", settings)[0] == 200


@contextmanager
def traffic(deployed: Deployed, rng: random.Random, changes: list[str]) -> Iterator[None]:
    """Rows change, come and go, until the end of the block."""
    ended = threading.Event()

    def go() -> None:
        with deployed.database.connect() as connection:
            while not ended.is_set():
                connection.execute(rng.choice(changes).replace("$", str(rng.randint(1, 40))))

    writer = threading.Thread(target=go)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


@pytest.fixture(scope="module")
def operated(servers: Servers, node: Node) -> Iterator[Operated]:
    """The market and a table of days, into a search server and a local sink."""
    database = fresh_database(servers.get(18))
    database.execute(market.ROWS)
    database.execute(TABLES)
    deployed = Deployed(database, node)
    deployed.top = 'on_error = "quarantine"'
    deployed.write(days=DAYS, events=EVENTS, **market.SCHEMAS)
    try:
        deployed.start().await_live()
        yield Operated(deployed, node)
    finally:
        deployed.close()
        database.remove()


def test_a_document_leaves_quarantine_when_a_sink_takes_it(operated: Operated) -> None:
    """E81: by a replay, by the next change of its row, by its delete; and stays while it is rejected."""
    operated.reject_words()
    operated.execute("UPDATE day SET note = 'secret ' || id WHERE id IN (2, 3, 4)")
    operated.run.await_status(quarantined=3)
    listed = operated.told("quarantine", "list", "days")
    assert [(one["index"], one["sink"], one["id"]) for one in listed] == [("days", "search", id) for id in "234"]
    assert listed[0]["reason"] == "illegal_argument_exception"
    for shown in (operated.penstock("quarantine", "list"), operated.penstock("quarantine", "show", "days", "3")):
        assert "search" in shown
        assert "secret" not in shown
    assert operated.told("quarantine", "replay", code=1) == {"taken": 0, "rejected": 3, "skipped": {}}
    operated.reject_words(False)
    assert operated.told("quarantine", "replay", "days", "2") == {"taken": 1, "rejected": 0, "skipped": {}}
    assert operated.deployed.search("days")["2"] == {"at": "2026-01-01", "note": "secret 2"}
    operated.execute("UPDATE day SET note = 'mended' WHERE id = 3; DELETE FROM day WHERE id = 4")
    operated.run.await_status(quarantined=0)
    assert operated.deployed.search("days") == operated.deployed.local("days")
    assert "Nothing is in quarantine" in operated.penstock("quarantine", "list")
    assert "is not in quarantine" in operated.penstock("quarantine", "show", "days", "3", code=1)
    assert "there is no index 'nights'" in operated.penstock("quarantine", "replay", "nights", code=2)


def test_what_somebody_changed_in_a_sink_is_found_and_mended(operated: Operated) -> None:
    """E83: missing, extra and different, by id, in each sink; nothing else is told, and nothing is left."""
    deployed, node = operated.deployed, operated.node
    alias = f"/{deployed.prefix}customers/_doc"
    assert node.ask("DELETE", f"{alias}/7")[0] == 200
    assert node.ask("PUT", f"{alias}/9", {"name": "another", "bills": 0, "dearest": [], "invoices": []})[0] == 200
    assert node.ask("PUT", f"{alias}/no%20number", {"name": "nobody's"})[0] == 201
    with closing(sqlite3.connect(deployed.folder / "local.db", timeout=30)) as file:
        name = [f"{deployed.prefix}places"]
        ((number,),) = file.execute("SELECT number FROM generation WHERE name = ? AND shown", name)
        file.execute(f"DELETE FROM documents_{number} WHERE id = 'DE|M'")
        copied = f"SELECT 'too|many', min(version), ? FROM documents_{number}"
        file.execute(f"INSERT INTO documents_{number} (id, version, body) {copied}", ['{"name": "x"}'])
        file.commit()
    operated.run.catch_up()
    for arguments, code in (((), 1), (("--repair",), 0)):
        found = operated.reconcile(*arguments, code=code)
        assert found.keys() == {("customers", "search"), ("places", "local")}
        customers, places = found["customers", "search"], found["places", "local"]
        assert customers["first"] == {"missing": ["7"], "extra": ["no number"], "different": ["9"]}
        assert places["first"] == {"missing": ["DE|M"], "extra": ["too|many"], "different": []}
        assert (customers["left"], places["left"]) == ((0, 0) if code == 0 else (3, 2))
    assert operated.reconcile() == {}
    operated.judge()
    shown = operated.penstock("reconcile", "customers")
    assert "the same" in shown
    assert "places" not in shown
    assert "there is no index 'nights'" in operated.penstock("reconcile", "nights", code=2)


def test_a_document_is_explained_by_its_rows_and_its_sinks(operated: Operated) -> None:
    """Keys and counts of the rows it is made of, the tables that touch it, each sink beside the database."""
    told = operated.told("explain", "products", "7")
    rows = {one["role"]: (one["table"], one["count"], one["keys"]) for one in told["rows"]}
    assert rows["root"] == ("public.product", 1, [["7"]])
    assert rows["brand"] == ("public.brand", 1, [["3"]])
    assert rows["first"] == ("public.product", 1, [["6"]])
    assert rows["sequels"] == ("public.product", 1, [["8"]])
    assert rows["tags (junction)"] == ("public.product_tag", 1, [["7", "8"]])
    assert rows["tags"] == ("public.tag", 1, [["8"]])
    assert rows["rated (junction)"][1] == 2
    assert {(one["table"], one["role"]) for one in told["touched_by"]} >= {
        ("public.tag", "tags"),
        ("public.brand", "brand"),
    }
    assert {one["sink"]: (one["state"], one["differs"]) for one in told["sinks"]} == dict.fromkeys(
        SINKS, ("the same", [])
    )
    assert all(one["version"] for one in told["sinks"])
    place = f"/{operated.deployed.prefix}products/_update/7"
    assert operated.node.ask("POST", place, {"doc": {"name": "tampered", "brand": {"name": "nobody"}}})[0] == 200
    shown = operated.penstock("explain", "products", "7")
    assert "brand.name" in shown
    assert "tampered" not in shown
    assert "product 7" not in shown
    shown = operated.penstock("explain", "products", "7", "--values")
    assert "tampered" in shown
    assert "product 7" in shown
    operated.run.catch_up()
    operated.reconcile("products", "--repair")
    assert [one["count"] for one in operated.told("explain", "places", "DE|B")["rows"]] == [1, 2]
    assert operated.told("explain", "places", "DE", "B")["id"] == "DE|B"
    assert operated.told("explain", "customers", "12345", code=1)["exists"] is False
    for key in ("seven", "007", "1|2"):
        assert "is no key of index products" in operated.penstock("explain", "products", key, code=2)
    assert "(country text, code text), written as COUNTRY|CODE" in operated.penstock("explain", "places", "DE", code=2)
    assert "there is no index 'nights'" in operated.penstock("explain", "nights", "1", code=2)


def test_a_healthy_and_busy_system_has_no_difference(operated: Operated, rng: random.Random) -> None:
    """E83: whatever is on its way, each time."""
    with traffic(operated.deployed, rng, CHANGES):
        for arguments in ((), ("--repair",)):
            assert operated.reconcile(*arguments) == {}
    operated.run.catch_up()
    operated.judge()


def marked(operated: Operated) -> dict[str, str]:
    return dict((operated.run.status() or {}).get("marked", {}))


def test_rows_that_no_event_told_of_are_marked_and_mended(operated: Operated) -> None:
    """E77: partitions attached and detached with their rows, a table written anew; not what leaves the rows alone."""
    execute = operated.execute
    execute("CREATE TABLE event_3 PARTITION OF event FOR VALUES IN (3)")
    execute("VACUUM FULL day")
    execute("VACUUM FULL event_1")
    execute("INSERT INTO event VALUES (50, 3, 50); ALTER TABLE day ADD COLUMN more float DEFAULT random()")
    execute("ALTER TABLE customer ALTER name SET NOT NULL")
    execute("CREATE TABLE event_4 (LIKE event INCLUDING ALL); INSERT INTO event_4 VALUES (61, 4, 61), (62, 4, 62)")
    execute("ALTER TABLE event ATTACH PARTITION event_4 FOR VALUES IN (4)")
    wait_until(lambda: "event_4 was attached" in marked(operated).get("events", ""), 60, "the mark")
    assert marked(operated).keys() == {"events"}
    assert operated.reconcile("events", code=1)["events", "local"]["first"]["missing"] == ["61|4", "62|4"]
    assert "has to be reconciled" in operated.penstock("status")
    operated.reconcile("events", "--repair")
    execute("ALTER TABLE event DETACH PARTITION event_2; ALTER TABLE day ALTER at TYPE date USING at + 1")
    wait_until(lambda: marked(operated).keys() == {"events", "days"}, 60, "both marks")
    assert "no longer a part" in marked(operated)["events"]
    assert "written anew" in marked(operated)["days"]
    assert operated.reconcile("--repair").keys() == {(index, sink) for index in ("events", "days") for sink in SINKS}
    wait_until(lambda: not marked(operated), 60, "the marks to go")
    operated.judge()


def test_a_table_that_is_not_published_is_marked_until_it_is_told_of_again(operated: Operated) -> None:
    """E77: what it misses is mended, but the mark stays as long as changes are lost."""
    execute, publication = operated.execute, operated.deployed.slot
    execute(f"ALTER PUBLICATION {publication} DROP TABLE day")
    execute("UPDATE day SET note = '77' WHERE id = 7")
    wait_until(lambda: marked(operated).get("days") == "day was not in the publication", 60, "the mark")
    assert marked(operated).keys() == {"days"}
    assert operated.reconcile("days", "--repair").keys() == {("days", sink) for sink in SINKS}
    assert marked(operated).keys() == {"days"}
    execute(f"ALTER PUBLICATION {publication} ADD TABLE day")
    wait_until(lambda: "for a while" in marked(operated)["days"], 60, "it to be told of again")
    assert operated.reconcile("days", "--repair") == {}
    wait_until(lambda: not marked(operated), 60, "the mark to go")
    execute("UPDATE day SET note = '7' WHERE id = 7")
    operated.run.catch_up()
    operated.judge()


def test_a_lost_slot_is_made_anew_and_every_index_mended(operated: Operated) -> None:
    """E26, E27, E29, E81: nothing runs; a repair joins live at a new slot, the generations stay, the gap is mended."""
    deployed, execute = operated.deployed, operated.execute
    operated.reject_words()
    execute("UPDATE day SET note = 'word' WHERE id = 5")
    operated.run.await_status(quarantined=1)
    assert operated.run.stop() == 0
    assert [one["id"] for one in operated.told("quarantine", "list")] == ["5"]
    assert "no penstock run uses" in operated.penstock("quarantine", "replay", code=1)
    assert "needs a yes" in operated.penstock("quarantine", "drop", code=2)
    assert operated.told("quarantine", "drop", "days", "5", "--yes") == {"dropped": 1}
    operated.reject_words(False)
    execute(f"ALTER PUBLICATION {deployed.slot} DROP TABLE product")
    assert operated.reconcile("days", "--repair")["days", "search"]["first"]["different"] == ["5"]
    with closing(State(deployed.state)) as state:
        assert Marks(state).marked()["products"].reason == "product was not in the publication"
    execute(f"SELECT pg_drop_replication_slot('{deployed.slot}')")
    execute("DELETE FROM place WHERE code = 'M'; UPDATE product SET name = 'in the gap' WHERE id = 4")
    execute("INSERT INTO event VALUES (70, 3, 70); INSERT INTO event_2 VALUES (71, 2, 71)")
    refused = deployed.start()
    assert refused.ended() == 1
    assert "penstock reconcile --repair" in refused.err
    assert "is gone" in operated.penstock("reconcile", code=1)
    found = operated.reconcile("--repair")
    assert found["products", "search"]["counts"]["different"] >= 1
    assert operated.told("explain", "products", "4", "--values")["sinks"][0]["state"] == "the same"
    assert found["places", "local"]["first"]["extra"] == ["DE|M"]
    operated.judge()
    run = deployed.start()
    execute("UPDATE customer SET name = 'after the gap' WHERE id < 5")
    run.catch_up()
    operated.judge()
    told = run.status()
    assert told
    assert told["marked"] == {}
    assert {one["seeded"] for one in told["indexes"].values()} == {0}
    assert run.stop() == 0


@pytest.mark.long
def test_a_reconcile_that_is_killed_is_simply_done_again(deploy: Callable[..., Deployed], rng: random.Random) -> None:
    """E21, E83: kill -9 in the middle of a repair while rows change; the rest is found by the next one."""
    deployed = deploy()
    deployed.database.execute(market.ROWS)
    deployed.database.execute("INSERT INTO customer SELECT n, 'c' || n FROM generate_series(1000, 41000) n")
    deployed.write(**market.SCHEMAS)
    deployed.start().catch_up()
    with closing(sqlite3.connect(deployed.folder / "local.db", timeout=30)) as file:
        name = [f"{deployed.prefix}customers"]
        ((number,),) = file.execute("SELECT number FROM generation WHERE name = ? AND shown", name)
        file.execute(f"DELETE FROM documents_{number} WHERE id % 2 = 0")
        file.commit()
    with traffic(deployed, rng, [change for change in CHANGES if "event" not in change]):
        ask(deployed.state, "reconcile", action="start", indexes=["customers"], repair=True)

        def is_mending() -> bool:
            told = ask(deployed.state, "reconcile", action="state")
            assert told["running"], "it was too quick to be killed"
            return 0 < told["done"] < told["ranges"]

        wait_until(is_mending, 60, "the repair to be under way")
        deployed.runs[-1].kill()
        run = deployed.start()
        run.await_live()
        config = str(deployed.folder / "penstock.toml")
        done = run_penstock("reconcile", "--repair", "--json", "--config", config, timeout_s=START_S)
        assert done.returncode == 0, done.stdout + done.stderr
        found = [one["counts"] for one in json.loads(done.stdout)["comparisons"] if one["differing"]]
        assert [(one["extra"], one["different"]) for one in found] == [(0, 0)]
    run.catch_up()
    deployed.judge()
    assert run.stop() == 0
