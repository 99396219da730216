"""How building behaves: bounded, streamed, settled, planned well, and over connections that may go away."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from penstock.demo.server import Server
from penstock.document.build import PgDocumentBuilder
from penstock.document.reading import read_schema
from penstock.document.spec import SourceSpec
from penstock.errors import ConfigError, RetryableError
from penstock.model import ReplicationConfig
from penstock.postgres.capture import WalChangeCapture
from penstock.postgres.sessions import Sessions
from penstock.postgres.settings import resolve
from tests.fixtures.stories import Story
from tests.fixtures.waiting import wait_until

SHELVES = """
CREATE TABLE shelf (id int PRIMARY KEY, name text);
CREATE TABLE book (id int PRIMARY KEY, shelf_id int REFERENCES shelf, title text);
"""
BOOKS = "table: book\nfields:\n  - {belongs_to: shelf, column: shelf_id, table: shelf, fields: [{keyword: name}]}"
SHELF = "table: shelf\nfields:\n  - {has_many: books, table: book, foreign_key: shelf_id, fields: [{keyword: title}]}"


def spec(**schemas: str) -> SourceSpec:
    return SourceSpec([read_schema(f"version: 1\n{text}", index) for index, text in schemas.items()])


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every node of a plan as EXPLAIN shows it."""
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def test_a_shared_parent_with_100_000_children(story18: Story) -> None:
    """E63, E69: one change of a hundred thousand documents is streamed: no list of all keys, bounded memory."""
    story18.begin(SHELVES + "CREATE INDEX ON book (shelf_id); INSERT INTO shelf VALUES (1, 'a')", books=BOOKS)
    story18.execute("INSERT INTO book SELECT n, 1, 'title' FROM generate_series(1, 100000) n")
    story18.changes()
    changes = story18.changes("UPDATE shelf SET name = 'b'")
    with PgDocumentBuilder(spec(books=BOOKS), story18.database.url, chunk_keys=1000) as built:
        tracemalloc.start()
        keys = documents = 0
        for some in built.affected("books", changes):
            assert len(some) <= 1000
            keys += len(some)
            for found in built.build("books", some):
                documents += found.bodies.count(b'{"shelf":{"name":"b"}}')
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (keys, documents) == (100_000, 100_000)
    assert peak < 40 << 20, "what is remembered of 100,000 keys, and one chunk"


def test_many_changes_of_one_document_build_it_once(story18: Story) -> None:
    """E69: in one batch, whatever led to it."""
    story18.begin(SHELVES + "INSERT INTO shelf VALUES (1, 'a'), (2, 'b')", shelves=SHELF)
    changes = story18.changes(
        "INSERT INTO book SELECT n, 1, 'x' FROM generate_series(1, 500) n",
        "UPDATE book SET title = 'y'",
        "UPDATE shelf SET name = 'c' WHERE id = 1",
        "DELETE FROM book WHERE id > 3",
    )
    assert changes.num_rows > 1400
    assert list(story18.builder.affected("shelves", changes)) == [[("1",)]]
    story18.apply(changes)
    assert len(story18.documents["shelves"]["1"]["books"]) == 3


def test_a_move_that_cannot_be_traced_is_told(story18: Story, caplog: pytest.LogCaptureFixture) -> None:
    """E42: once for a table, by name; what the change does say is followed."""
    story18.begin(SHELVES + "INSERT INTO shelf VALUES (1, 'a'); INSERT INTO book VALUES (1, 1, 'x')", shelves=SHELF)
    story18.execute("ALTER TABLE book REPLICA IDENTITY DEFAULT")
    for _ in range(2):
        changes = story18.changes("DELETE FROM book", "INSERT INTO book VALUES (1, 1, 'x')")
        assert list(story18.builder.affected("shelves", changes)) == [[("1",)]]
    assert [record.getMessage() for record in caplog.records if "identity" in record.getMessage()] == [
        'public.book: its replica identity lacks "shelf_id": deletes and moves leave old parents stale'
    ]


def test_chunks_are_bounded_by_keys_and_bytes(story18: Story) -> None:
    """E69: every key asked for comes exactly once, also one that is asked for twice or is no document."""
    story18.execute(SHELVES + "INSERT INTO shelf SELECT n, repeat('x', 1000) FROM generate_series(1, 100) n")
    plain = "table: shelf\nfields: [{keyword: name}]"
    with PgDocumentBuilder(spec(s=plain), story18.database.url, chunk_keys=30, chunk_bytes=10_000) as built:
        keys = [(str(n),) for n in [*range(1, 121), 5, 6]]
        found = list(built.build("s", keys))
        assert sorted(one for some in found for one in some.ids) == sorted(str(n) for n in range(1, 121))
        assert sum(some.bodies.count(None) for some in found) == 20
        ranged = list(built.build_range("s", None, None))
        assert sum(len(some.ids) for some in ranged) == 100
        for some in found + ranged:
            assert len(some.ids) <= 30
            assert sum(len(body or b"") for body in some.bodies) < 12_000
        assert list(built.build("s", [])) == []
        assert list(built.build_range("s", ("100",), None)) == []


def test_a_commit_that_is_streamed_before_it_is_visible(start_server: Callable[..., Server]) -> None:
    """E71: settling waits; nobody builds the document without it, and it is right once the commit is released."""
    server = start_server(18, {"synchronous_standby_names": "ghost", "synchronous_commit": "local"})
    with psycopg.connect(server.url(), autocommit=True) as sql:
        sql.execute("CREATE TABLE r (id int PRIMARY KEY, v text); CREATE PUBLICATION story FOR ALL TABLES")
        sql.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        writer = psycopg.connect(server.url())
        writer.execute("SET synchronous_commit = on")
        writer.execute("INSERT INTO r VALUES (1, 'new')")
        hanging = threading.Thread(target=writer.commit)
        hanging.start()
        with WalChangeCapture(ReplicationConfig("s", "story"), server.url()).key_batches() as stream:
            changes = next(stream).changes
        (xid,) = set(changes.column("xid").to_pylist())
        schema = spec(r="table: r\nfields: [{keyword: v}]")
        with PgDocumentBuilder(schema, server.url(), settle_timeout_s=0.2) as built:
            ((key,),) = built.affected("r", changes)
            assert next(built.build("r", [key])).bodies == [None], "it is streamed, and not visible"
            with pytest.raises(RetryableError, match="1 streamed transactions are not visible"):
                built.settle({xid})
        with PgDocumentBuilder(schema, server.url()) as built:
            settled = threading.Thread(target=built.settle, args=({xid},))
            settled.start()
            waiting = "SELECT count(*) > 1 FROM pg_stat_activity WHERE query LIKE '%pg_current_snapshot%'"
            wait_until(lambda: sql.execute(waiting).fetchone() == (True,), what="the builder to look")
            assert settled.is_alive()
            sql.execute("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
            hanging.join(10)
            settled.join(10)
            assert not settled.is_alive()
            assert next(built.build("r", [key])).bodies == [b'{"v":"new"}']
        writer.close()
        wait_until(lambda: sql.execute("SELECT active FROM pg_replication_slots").fetchone() == (False,))
        sql.execute("SELECT pg_drop_replication_slot('s')")


def test_a_builder_outlives_its_connections(story18: Story) -> None:
    """E32: those that the server ended while nobody used them are replaced."""
    story18.execute(SHELVES + "INSERT INTO shelf VALUES (1, 'a')")
    ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'penstock'"
    with PgDocumentBuilder(spec(s=SHELF), story18.database.url) as built:
        for _ in range(2):
            assert next(built.build("s", [("1",)])).bodies == [b'{"books":[]}']
            wait_until(lambda: story18.execute(ours) == [(1,)], what="those that were closed to go")
            ended = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'penstock'"
            assert story18.execute(ended) == [(True,)]


def test_an_iterator_that_is_left_early_gives_its_connection_back(story18: Story) -> None:
    """E22: the statement is not waited for, and no more connections are open than allowed."""
    story18.execute(SHELVES + "INSERT INTO shelf SELECT n, 'x' FROM generate_series(1, 5000) n")
    plain = "table: shelf\nfields: [{keyword: name}]"
    with PgDocumentBuilder(spec(s=plain), story18.database.url, max_connections=2, chunk_keys=10) as built:
        for _ in range(5):
            found = built.build_range("s", None, None)
            assert len(next(found).ids) == 10
            found.close()  # type: ignore[attr-defined]
        assert len(list(built.build("s", [("1",)]))) == 1


def test_a_builder_that_is_abandoned_ends_every_wait(story18: Story) -> None:
    """E25: for a transaction that is not settled, and for a lock; whoever waited may try again, with another one."""
    story18.execute(SHELVES + "INSERT INTO shelf VALUES (1, 'a')")
    failed: list[RetryableError] = []

    def fail(act: Callable[[], Any]) -> None:
        with pytest.raises(RetryableError) as caught:
            act()
        failed.append(caught.value)

    with PgDocumentBuilder(spec(s=SHELF), story18.database.url) as built, story18.database.connect() as other:
        list(built.build("s", [("1",)]))
        with other.transaction():
            ((xid,),) = other.execute("SELECT pg_current_xact_id()::text::bigint").fetchall()
            other.execute("LOCK TABLE shelf")
            acts = (lambda: built.settle({xid}), lambda: list(built.build("s", [("1",)])))
            waits = [threading.Thread(target=fail, args=(act,)) for act in acts]
            for one in waits:
                one.start()
            locked = "SELECT FROM pg_stat_activity WHERE application_name = 'penstock' AND wait_event_type = 'Lock'"
            wait_until(lambda: story18.execute(locked), what="a statement to wait")
            built.abandon()
            for one in waits:
                one.join(10)
            assert len(failed) == 2
        fail(lambda: list(built.build("s", [("1",)])))


def test_connections_are_bounded(story18: Story) -> None:
    """E69: whoever wants one more waits for it, and is told in time."""
    sessions = Sessions(resolve(story18.database.url), 1, wait_s=0.05)
    with sessions.borrow() as one:
        assert [row for portion in one.rows("SELECT 1, NULL, $1::text", ["é"]) for row in portion] == [
            (b"1", None, "é".encode())
        ]
        with pytest.raises(RetryableError, match="all 1 connections are in use"), sessions.borrow():
            pass
    with sessions.borrow() as again:
        assert again is one
    sessions.close()
    with pytest.raises(ConfigError, match="at least one connection"):
        PgDocumentBuilder(spec(s=SHELF), story18.database.url, max_connections=0)


def test_one_connection_is_free_for_the_next_chunk_while_the_last_is_written(story18: Story) -> None:
    """E69: two chunks in flight over one connection, which nobody holds when the builder rests."""
    story18.execute(SHELVES + "INSERT INTO shelf SELECT n, 'x' FROM generate_series(1, 25) n")
    url = f"{story18.database.url}?application_name=resting"
    others = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'resting'"
    with PgDocumentBuilder(spec(s=SHELF), url, max_connections=1, chunk_keys=10) as built:
        first, second = built.build_range("s", None, ("10",)), built.build("s", [(str(n),) for n in range(11, 21)])
        assert [len(next(first).ids), len(next(second).ids)] == [10, 10]  # the first is not at its end yet
        assert [len(one.ids) for one in (*first, *second)] == []
        assert [len(found.ids) for found in built.build_range("s", None, None)] == [10, 10, 5]
        wait_until(lambda: story18.execute(others) == [(1,)], what="one connection")
        built.rest()
        wait_until(lambda: story18.execute(others) == [(0,)], what="the connection to be closed")
        assert [len(found.ids) for found in built.build_range("s", ("20",), None)] == [5]


def test_a_small_build_reads_little_whatever_the_tables_hold(story18: Story) -> None:
    """E69: by indexes, with or without statistics, at any number of keys, and never row by row of a relation."""
    story18.execute(SHELVES + "CREATE INDEX ON book (shelf_id); ALTER TABLE book SET (autovacuum_enabled = off)")
    story18.execute("ALTER TABLE shelf SET (autovacuum_enabled = off)")
    with PgDocumentBuilder(spec(s=SHELF), story18.database.url, chunk_keys=5000) as built:
        assert next(built.build("s", [("1",)])).bodies == [None]  # planned while the tables are empty
        story18.execute("INSERT INTO shelf SELECT n, 'x' FROM generate_series(1, 20000) n")
        story18.execute("INSERT INTO book SELECT n, n % 20000 + 1, 'y' FROM generate_series(1, 60000) n")
        plan = built._plan.index("s").by_keys
        for mode in "force_generic_plan", "force_custom_plan":
            with psycopg.connect(story18.database.url) as sql:
                sql.execute(f"SET plan_cache_mode = {mode}")
                sql.execute(f"PREPARE p AS {plan}")
                for count in 1, 100, 5000:
                    array = "{" + ",".join(map(str, range(1, count + 1))) + "}"
                    (shown,) = sql.execute(f"EXPLAIN (ANALYZE, FORMAT json) EXECUTE p('{array}')").fetchone() or ()
                    found = list(nodes(shown[0]["Plan"]))
                    assert [one["Actual Loops"] for one in found if one["Node Type"] in ("Aggregate", "Hash")]
                    assert all(one["Actual Loops"] == 1 for one in found), "a relation is read once"
                    assert count > 1 or not any(one["Node Type"] == "Seq Scan" for one in found)
        assert sum(len(some.ids) for some in built.build("s", [(str(n),) for n in range(1, 5001)])) == 5000
