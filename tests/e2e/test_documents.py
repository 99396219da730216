"""Every kind of change through a running deployment, on both paths, into a search server and a local sink.

One deployment serves all tests of a path. After each story every document in every sink is held against SQL by hand, so
that a document nobody thought of is found.
"""

from __future__ import annotations

import signal
import threading
from typing import Any

import psycopg
import pytest

from tests.fixtures.market import SCHEMAS
from tests.fixtures.pipelines import LIMIT, START_S, Deployed, pass_time
from tests.fixtures.standbys import no_standby_answers
from tests.fixtures.waiting import wait_until

pytestmark = LIMIT


class Market:
    """The running deployment, told by transactions."""

    def __init__(self, deployed: Deployed) -> None:
        self.deployed = deployed
        self.database = deployed.database
        self.run = deployed.runs[-1]

    def do(self, *statements: str) -> None:
        """Commit the statements, one transaction each; then all documents are right, in every sink."""
        for statement in statements:
            with psycopg.connect(self.database.url) as connection:
                connection.execute(statement)
        self.run.catch_up()
        self.deployed.judge()

    def of(self, index: str, name: str) -> Any:
        """A document as both sinks have it, None where there is none."""
        found = self.deployed.found(index)
        assert found["local"].get(name) == found["search"].get(name)
        return found["local"].get(name)


@pytest.fixture
def running_market(shared_market: Deployed) -> Market:
    """The path's market."""
    return Market(shared_market)


def test_what_was_there_is_seeded(running_market: Market) -> None:
    """E50, E53: every document of every index, in both sinks, before anything changes."""
    running_market.deployed.judge()
    assert len(running_market.deployed.local("customers")) == 40
    told = running_market.run.status()
    assert told
    assert set(told["indexes"]) == set(SCHEMAS)


def test_the_path_is_the_one_asked_for(running_market: Market, path: str) -> None:
    """Small batches take the direct path unless every batch is to be spread."""
    running_market.do("UPDATE customer SET name = 'another' WHERE id = 40")
    told = running_market.run.status()
    assert told
    assert told["direct_batches"] == (told["batches"] if path == "direct" else 0)


def test_how_long_a_commit_took_to_be_searchable_is_known(running_market: Market) -> None:
    """On Spark's tasks, too: the reader tells when the transactions were committed, whoever works on them."""
    told = running_market.run.status()
    assert told
    running_market.do("UPDATE customer SET name = 'measured' WHERE id = 40")
    after = running_market.run.status()
    assert after
    assert after["latency"]["transactions"] > told["latency"]["transactions"]
    assert after["latency"]["p99_s"] is not None
    assert {"resolve", "build", "write", "flush"} <= after["stages_s"].keys()


def test_roots_come_change_and_go(running_market: Market) -> None:
    """E60: inserted, updated, given another key, deleted, and put back under the same key in one transaction."""
    market = running_market
    market.do(
        "INSERT INTO customer VALUES (1001, 'Ada'), (1002, 'Ben')", "UPDATE customer SET name = 'Al' WHERE id = 1001"
    )
    assert market.of("customers", "1001")["name"] == "Al"
    market.do("UPDATE customer SET id = 1003 WHERE id = 1001")
    assert market.of("customers", "1001") is None
    assert market.of("customers", "1003")["name"] == "Al"
    market.do("DELETE FROM customer WHERE id = 1003; INSERT INTO customer VALUES (1003, 'Cy')")
    market.do("DELETE FROM customer WHERE id IN (1002, 1003)")
    assert market.of("customers", "1003") is None


@pytest.mark.parametrize(
    ("table", "link", "parents", "value"),
    [
        ("invoice", "customer_id", (1, 2), "note = 'new'"),
        ("line", "invoice_id", (1, 2), "item = 'new'"),
        ("stamp", "line_id", (1, 2), "value = 9"),
    ],
)
def test_children_come_change_move_and_go(
    running_market: Market, table: str, link: str, parents: tuple[int, int], value: str
) -> None:
    """E61: at depth one, two and three; the old parent's document and the new one's are right."""
    first, second = parents
    running_market.do(f"INSERT INTO {table} (id, {link}) VALUES (2001, {first})")
    running_market.do(f"UPDATE {table} SET {value} WHERE id = 2001")
    running_market.do(f"UPDATE {table} SET {link} = {second} WHERE id = 2001")
    running_market.do(
        f"UPDATE {table} SET {link} = NULL WHERE id = 2001", f"DELETE FROM {table} WHERE {link} = {first}"
    )
    running_market.do(f"UPDATE {table} SET {link} = {first}, id = 2002 WHERE id = 2001")
    running_market.do(f"DELETE FROM {table} WHERE id = 2002")


def test_links_and_far_rows_of_junctions(running_market: Market) -> None:
    """E62, E65: links added, repointed, removed, far rows changed and deleted; lists and aggregates follow."""
    running_market.do(
        "INSERT INTO product_tag VALUES (1, 7), (1, 8)", "INSERT INTO rating VALUES (901, 1, 7), (902, 1, 7)"
    )
    running_market.do("UPDATE product_tag SET tag_id = 9 WHERE (product_id, tag_id) = (1, 8)")
    running_market.do(
        "UPDATE rating SET product_id = 2 WHERE id = 901", "UPDATE rating SET tag_id = NULL WHERE id = 902"
    )
    running_market.do("UPDATE tag SET grade = 4, name = 'seven' WHERE id = 7", "DELETE FROM tag WHERE id = 6")
    running_market.do("DELETE FROM product_tag WHERE product_id < 4; DELETE FROM rating WHERE id % 3 = 0")


def test_targets_and_rows_in_several_roles(running_market: Market) -> None:
    """E63, E64: who refers to a changed or deleted row is built again, in both indexes, itself included."""
    running_market.do("UPDATE brand SET name = 'renamed' WHERE id = 1", "DELETE FROM brand WHERE id = 2")
    running_market.do("UPDATE product SET name = 'first of all' WHERE id = 1")
    running_market.do("UPDATE product SET sequel_of = id WHERE id = 5", "UPDATE product SET id = 99 WHERE id = 4")
    running_market.do("DELETE FROM product WHERE id = 7", "INSERT INTO brand VALUES (2, 'back')")


def test_soft_deletes_and_filters(running_market: Market) -> None:
    """E67: set and cleared, entered and left; a child that enters the filter of an ordered, limited list."""
    market = running_market
    market.do("UPDATE customer SET gone = now() WHERE id = 5", "UPDATE customer SET kind = 'hidden' WHERE id = 6")
    assert market.of("customers", "5") is None
    market.do("UPDATE customer SET gone = NULL WHERE id = 5", "UPDATE customer SET kind = 'person' WHERE id = 6")
    assert market.of("customers", "5") is not None
    market.do("UPDATE invoice SET total = 1000 - total WHERE customer_id IN (5, 6, 7)")


def test_keys_of_two_parts(running_market: Market) -> None:
    """E68: ids that need escaping do not collide; both parts of a key may change."""
    market = running_market
    assert {"a\\|b|c", "a|b\\|c"} <= market.deployed.local("places").keys()
    market.do(
        "UPDATE place SET country = 'AT', code = 'W' WHERE code = 'M'", "INSERT INTO visit VALUES (9, 'AT', 'W', 'x')"
    )
    assert market.of("places", "AT|W")["visits"] == [{"note": "x"}]
    market.do("UPDATE visit SET country = 'a', code = 'b|c' WHERE id = 3", "DELETE FROM place WHERE country = 'DE'")


def test_many_changes_of_one_document_are_built_once(running_market: Market) -> None:
    """E69: and one change that touches many documents reaches them all."""
    market = running_market
    before = market.run.status()
    market.do("DO $$ BEGIN FOR n IN 1..200 LOOP UPDATE customer SET name = 'turn ' || n WHERE id = 9; END LOOP; END $$")
    after = market.run.status()
    assert before
    assert after
    assert after["indexes"]["customers"]["written"] - before["indexes"]["customers"]["written"] == 1
    rows = "SELECT n, 'p' || n, 3 FROM generate_series(5001, 6500) n"
    market.do(f"INSERT INTO product (id, name, brand_id) {rows}", "UPDATE brand SET name = 'giant' WHERE id = 3")
    market.do("DELETE FROM product WHERE id > 5000")


def test_tables_are_truncated(running_market: Market) -> None:
    """E66: a junction, a child, a root with rows written in the same transaction, and several at once."""
    market = running_market
    market.do("TRUNCATE product_tag")
    market.do("TRUNCATE stamp", "INSERT INTO stamp VALUES (1, 3, 3)")
    market.do("TRUNCATE place; INSERT INTO place VALUES ('FR', 'P', 'Paris')")
    assert market.deployed.local("places").keys() == {"FR|P"}
    market.do("TRUNCATE customer, invoice, line, stamp", "INSERT INTO customer VALUES (1, 'Eve')")
    market.do("INSERT INTO invoice VALUES (1, 1, 'n', 12)", "INSERT INTO product_tag VALUES (10, 1)")


def test_a_commit_that_cannot_be_seen_yet_is_waited_for(running_market: Market) -> None:
    """E71: a synchronous standby that never answers; nothing stale is written, and all is right once it is released."""
    market = running_market
    market.do("INSERT INTO customer VALUES (4001, 'seen')")
    hanging = market.database.connect(application_name="hangs")
    deleting = threading.Thread(target=hanging.execute, args=["DELETE FROM customer WHERE id = 4001"])
    with no_standby_answers(market.database):
        deleting.start()
        waits = "SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'hangs'"
        wait_until(lambda: market.database.execute(waits), START_S, "the commit to hang")
        sent = "SELECT FROM pg_stat_replication WHERE sent_lsn >= pg_current_wal_flush_lsn()"
        wait_until(lambda: market.database.execute(sent), START_S, "the change to be sent")
        pass_time(1.0)
        assert market.of("customers", "4001")["name"] == "seen"
    deleting.join()
    hanging.close()
    market.do("INSERT INTO customer VALUES (4002, 'after')")
    assert market.of("customers", "4001") is None


def test_the_slot_follows_what_is_durable(running_market: Market) -> None:
    """E20: it moves on once a batch is durable in both sinks."""
    market = running_market
    before = market.deployed.confirmed()
    market.do("UPDATE customer SET name = 'moves on'")
    wait_until(lambda: market.deployed.confirmed() > before, 10, "the slot to move")


def test_a_lost_reader_and_lost_connections_are_replaced(running_market: Market) -> None:
    """E32: the stream's process is killed, every connection is ended; the run goes on by itself."""
    market = running_market
    reader = market.run.part("reader")
    assert reader
    reader.send_signal(signal.SIGKILL)
    market.do("UPDATE customer SET name = 'without a reader'")
    market.database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'penstock%%' AND pid <> pg_backend_pid()"
        " AND application_name <> 'penstock-tests'"
    )
    market.do("UPDATE product SET name = 'without connections'")
