"""Putting tables into a publication: no change falls between, no user is held up for long, and rivals get along."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from penstock.demo.server import Server
from penstock.errors import BugError, CoverageError, PrivilegeError, UnavailableError
from penstock.model import Lsn, QualifiedTable
from penstock.postgres import publication
from penstock.postgres.publication import Ensured
from tests.fixtures.databases import Database
from tests.fixtures.peeking import peeking
from tests.fixtures.waiting import wait_until


def q(name: str) -> QualifiedTable:
    return QualifiedTable("public", name)


TABLES = "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); CREATE TABLE keyless (id int)"


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    """Threads of the test's own, ended with it."""
    with ThreadPoolExecutor(8) as pool:
        yield pool


def provision(database: Database, *names: str, lock_timeout_s: float = 20.0) -> Ensured:
    with psycopg.connect(database.url, autocommit=True, application_name="provisioning") as conn:
        return publication.provision(conn, "p", {q(name) for name in names}, True, lock_timeout_s=lock_timeout_s)


def waiting_since(database: Database) -> list[Any]:
    """When the statements began with which sessions of `provision` wait for a lock now."""
    query = "SELECT query_start FROM pg_stat_activity WHERE application_name = 'provisioning'"
    return database.execute(f"{query} AND wait_event_type = 'Lock' AND datname = current_database()")


def wait_for_two_waits(database: Database) -> None:
    waits: set[Any] = set()

    def has_waited_twice() -> bool:
        waits.update(waiting_since(database))
        return len(waits) > 1

    wait_until(has_waited_twice, what="the try to give up and the deed to wait")


def published(database: Database) -> set[str]:
    return {
        name for (name,) in database.execute("SELECT tablename::text FROM pg_publication_tables WHERE pubname = 'p'")
    }


def test_ensure_answers_with_what_it_saw_and_then_acts(database: Database) -> None:
    """E41: the report is of the time before; a second call finds nothing to do."""
    database.execute(TABLES)
    conn = database.connect()
    first = publication.ensure(conn, "p", {q("a")}, manage=True)
    assert (first.present, first.missing) == (frozenset(), {q("a")})
    second = publication.ensure(conn, "p", {q("a"), q("b")}, manage=True)
    assert (second.present, second.missing) == ({q("a")}, {q("b")})
    assert published(database) == {"a", "b"}
    third = publication.provision(conn, "p", {q("a"), q("b")}, manage=True)
    assert third == Ensured(third.report) and third.report.complete


def test_without_leave_to_manage_nothing_changes_and_the_sql_is_said(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """E41: `manage` off changes nothing and warns with the SQL to run."""
    database.execute(TABLES)
    with caplog.at_level(logging.INFO, "penstock"):
        report = publication.ensure(database.connect(), "p", {q("a"), q("keyless")}, manage=False)
    assert report.missing == {q("a"), q("keyless")} and published(database) == set()
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "does not carry public.a, public.keyless" in record.message
    assert all(statement in record.message for statement in report.sql) and len(report.sql) == 2
    caplog.clear()
    with caplog.at_level(logging.INFO, "penstock"):
        publication.ensure(database.connect(), "p", {q("a"), q("keyless")}, manage=True)
    told, warned = caplog.records
    assert told.message == 'publication "p" now carries public.a'
    assert "does not carry public.keyless" in warned.message and "REPLICA IDENTITY FULL" in warned.message
    assert "CREATE PUBLICATION" not in warned.message, "that part has been done"


def test_a_row_written_before_and_committed_after_is_seen_by_the_seed(
    database: Database, aside: ThreadPoolExecutor
) -> None:
    """E43: ensure waits for a transaction that has written; what it wrote is then visible, what follows is streamed."""
    database.execute(f"{TABLES}; CREATE PUBLICATION p FOR TABLE a")
    with peeking(database, "p") as peek:
        writer = database.connect(autocommit=False)
        writer.execute("INSERT INTO b VALUES (1)")
        waiting = aside.submit(provision, database, "a", "b")
        wait_until(lambda: waiting_since(database), what="ensure to wait for the writer")
        assert not waiting.done() and published(database) == {"a"}
        writer.execute("INSERT INTO b VALUES (2)")
        writer.commit()
        ensured = waiting.result(timeout=20)
        assert ensured.added == {q("b")} and ensured.marker is not None
        seed = {id for (id,) in database.execute("SELECT id FROM b")}
        database.execute("INSERT INTO b VALUES (3)")
        streamed = {int(row.new["id"]): row.lsn for row in peek.rows() if row.table == "b" and row.new}
    assert seed == {1, 2}
    assert streamed.keys() == {3}, "1 and 2 are not in the stream: without the wait they would be nowhere"
    assert ensured.marker <= streamed[3], "a record begins where the one before it ends"


def write_until(database: Database, halt: threading.Event, numbers: Iterator[int], rng: random.Random) -> set[int]:
    """Transactions of random length, some rolled back; the keys that were committed."""
    kept: set[int] = set()
    with psycopg.connect(database.url) as conn:
        while not halt.is_set():
            keys = [next(numbers) for _ in range(rng.randint(1, 5))]
            for key in keys:
                conn.execute("INSERT INTO b VALUES (%s)", [key])
                conn.execute("SELECT pg_sleep(%s)", [rng.random() * 0.003])
            if rng.random() < 0.2:
                conn.rollback()
            else:
                conn.commit()
                kept.update(keys)
    return kept


def test_between_seed_and_stream_nothing_is_lost_under_load(
    database: Database, aside: ThreadPoolExecutor, rng: random.Random
) -> None:
    """E43: writers in the midst of their transactions; each committed row is in the seed taken after, or streamed."""
    database.execute(f"{TABLES}; CREATE PUBLICATION p FOR TABLE a")
    halt = threading.Event()
    with peeking(database, "p") as peek:
        lanes = [iter(range(lane * 1_000_000, (lane + 1) * 1_000_000)) for lane in range(4)]
        seeds = [random.Random(rng.random()) for _ in lanes]
        writers = [aside.submit(write_until, database, halt, *lane) for lane in zip(lanes, seeds, strict=True)]
        try:
            wait_until(lambda: database.execute("SELECT 1 FROM b HAVING count(*) > 20"), what="some rows")
            ensured = provision(database, "a", "b")
            seed = {id for (id,) in database.execute("SELECT id FROM b")}
            wait_until(lambda: len(peek.rows()) > 20, what="some rows in the stream")
        finally:
            halt.set()
        committed = set().union(*(writer.result(timeout=20) for writer in writers))
        streamed = [(int(row.new["id"]), row.lsn) for row in peek.rows() if row.new]
    assert seed | {key for key, _ in streamed} == committed
    assert ensured.marker is not None and any(lsn >= ensured.marker for _, lsn in streamed)


def test_who_is_in_the_way_is_named_and_nothing_has_changed(database: Database) -> None:
    """E43: a lock that cannot be had in time is a typed error: who holds it, for how long; never what it runs."""
    database.execute(f"{TABLES}; CREATE PUBLICATION p FOR TABLE a")
    holder = database.connect(autocommit=False, application_name="night job")
    holder.execute("INSERT INTO b VALUES (424242)")
    with pytest.raises(CoverageError) as caught:
        provision(database, "a", "b", "keyless", lock_timeout_s=0.1)
    said = str(caught.value)
    assert caught.value.sqlstate == "55P03"
    assert f"held by: pid {holder.info.backend_pid} night job (idle in transaction, its transaction open for " in said
    assert "public.b" in said and "within 0.1 s" in said and "nothing was changed" in said
    assert "424242" not in said and "INSERT" not in said
    assert published(database) == {"a"}
    holder.rollback()
    provision(database, "a", "b")
    assert published(database) == {"a", "b"}


def test_a_role_that_may_not_look_still_learns_who_is_in_the_way(database: Database) -> None:
    """E43: another user's session shows its pid and its name, if not its state."""
    role = f"owner_{database.name}"
    url = database.role(role)
    database.execute(f"{TABLES}; CREATE PUBLICATION p FOR TABLE a; GRANT CREATE ON DATABASE {database.name} TO {role}")
    database.execute(f"ALTER PUBLICATION p OWNER TO {role}; ALTER TABLE b OWNER TO {role}")
    holder = database.connect(autocommit=False, application_name="night job")
    holder.execute("INSERT INTO b VALUES (1)")
    with pytest.raises(CoverageError, match=rf"pid {holder.info.backend_pid} night job \(state not visible\)"):
        publication.ensure(database.connect(url), "p", {q("b")}, True, lock_timeout_s=0.1)
    holder.rollback()
    database.execute(f"REVOKE CREATE ON DATABASE {database.name} FROM {role}")


def test_a_prepared_transaction_in_the_way_is_named(start_server: Callable[..., Server]) -> None:
    """E43: it has no process, so it is told by its name; on a partition of the table, too."""
    database = Database(start_server(16, {"max_prepared_transactions": "2"}), "postgres")
    database.execute("""
        CREATE TABLE a (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE a;
        CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE leaf PARTITION OF r FOR VALUES FROM (0) TO (9)""")
    database.execute("BEGIN; INSERT INTO leaf VALUES (1); PREPARE TRANSACTION 'forgotten'")
    with pytest.raises(
        CoverageError, match=r"held by: prepared transaction forgotten \(prepared, its transaction open"
    ):
        provision(database, "r", lock_timeout_s=0.1)
    database.execute("COMMIT PREPARED 'forgotten'")
    assert provision(database, "r").added == {q("r")}
    database.close()


def all_at_once(database: Database, aside: ThreadPoolExecutor, *requests: tuple[str, ...]) -> list[Future[Ensured]]:
    start = threading.Barrier(len(requests))

    def go(names: tuple[str, ...]) -> Ensured:
        start.wait()
        return provision(database, *names)

    return [aside.submit(go, names) for names in requests]


def test_processes_that_publish_at_once_all_succeed(database: Database, aside: ThreadPoolExecutor) -> None:
    """E41: made by somebody else at the same moment (42710) is made; nobody deadlocks, and every table gets in."""
    names = [f"t{n}" for n in range(6)]
    database.execute("; ".join(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in names))
    requests = [tuple(names[:4]), tuple(names[2:]), tuple(names), tuple(reversed(names))]
    for done in all_at_once(database, aside, *requests):
        done.result(timeout=30)
    assert published(database) == set(names)
    for _ in range(3):
        database.execute("ALTER PUBLICATION p SET TABLE t0")
        for done in all_at_once(database, aside, *requests):
            done.result(timeout=30)
        assert published(database) == set(names)


@pytest.mark.parametrize("of_rival", ["FOR TABLE a", ""], ids=["waits_for_its_table", "waits_for_its_name"])
def test_creating_it_a_moment_too_late_is_success(database: Database, aside: ThreadPoolExecutor, of_rival: str) -> None:
    """E41: the rival's CREATE PUBLICATION is not committed yet when ours starts; ours waits, and then adds the rest."""
    database.execute(TABLES)
    rival = database.connect(autocommit=False)
    rival.execute(f"CREATE PUBLICATION p {of_rival}")
    late = aside.submit(provision, database, "a", "b")
    wait_for_two_waits(database)
    rival.commit()
    assert late.result(timeout=20).report.missing == {q("a"), q("b")}
    assert published(database) == {"a", "b"}


def test_the_marker_lies_past_everything_committed_before(database: Database) -> None:
    """E43: and before what is committed after."""
    database.execute(TABLES)
    ensured = provision(database, "a")
    ((flushed,),) = database.execute("SELECT pg_current_wal_insert_lsn()::text")
    with peeking(database, "p") as peek:
        database.execute("INSERT INTO a VALUES (1)")
        (row,) = peek.rows()
    assert ensured.marker is not None and Lsn.ZERO < ensured.marker <= Lsn.parse(flushed) <= row.lsn


def test_an_open_transaction_of_the_caller_is_refused(database: Database) -> None:
    conn = database.connect()
    with conn.transaction(), pytest.raises(BugError):
        publication.ensure(conn, "p", {q("a")}, manage=True)


def test_driver_errors_come_out_typed(database: Database) -> None:
    """E41: a right lost between try and deed, and a session that was ended."""
    role = f"owner_{database.name}"
    url = database.role(role)
    database.execute(f"{TABLES}; CREATE PUBLICATION p FOR TABLE a; GRANT CREATE ON DATABASE {database.name} TO {role}")
    database.execute(f"ALTER PUBLICATION p OWNER TO {role}; ALTER TABLE b OWNER TO {role}")
    database.execute(f"REVOKE ALL ON b FROM {role}")  # an owner without rights may publish, but not lock
    conn = database.connect(url)
    with pytest.raises(PrivilegeError):
        publication.ensure(conn, "p", {q("b")}, manage=True)
    assert published(database) == {"a"}
    database.execute("SELECT pg_terminate_backend(%s, 5000)", conn.info.backend_pid)
    with pytest.raises(UnavailableError):
        publication.inspect(conn, "p", {q("b")})
    database.execute(f"REVOKE CREATE ON DATABASE {database.name} FROM {role}")


def test_where_the_try_could_not_tell_the_deed_is_still_done(database: Database, aside: ThreadPoolExecutor) -> None:
    """E41: a try that met a lock decides nothing; ensure has the longer patience."""
    database.execute(TABLES)
    holder = database.connect(autocommit=False)
    holder.execute("LOCK TABLE a IN SHARE UPDATE EXCLUSIVE MODE")  # as a vacuum does
    patient = aside.submit(provision, database, "a")
    wait_for_two_waits(database)
    holder.rollback()
    ensured = patient.result(timeout=20)
    assert not ensured.report.manageable and "could not tell" in ensured.report.notes[0]
    assert published(database) == {"a"}


def test_only_the_columns_asked_for_are_published_where_no_write_can_break(database: Database) -> None:
    """A list holds the identity, and is left out for a table that is FULL or has partitions; writes go on as before."""
    database.execute(
        "CREATE TABLE wide (id int PRIMARY KEY, link int, body text);"
        "CREATE TABLE full_one (id int PRIMARY KEY, link int, body text); ALTER TABLE full_one REPLICA IDENTITY FULL;"
        "CREATE TABLE parted (id int PRIMARY KEY, link int, body text) PARTITION BY RANGE (id);"
        "CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (10)"
    )
    names = {q(name) for name in ("wide", "full_one", "parted")}
    conn = database.connect()
    ensured = publication.provision(conn, "p", names, manage=True, lists={name: ["link"] for name in names})
    assert ensured.added == names
    info = publication.read_publication(conn, "p")
    assert info
    found = {str(table): published.columns for table, published in info.published.items()}
    assert found["public.wide"] == (("id", "link") if conn.info.server_version >= 150000 else None)
    assert {found["public.full_one"], found["public.part"]} == {None}
    for table in ("wide", "full_one", "parted"):
        database.execute(f"INSERT INTO {table} VALUES (1, 2, 'x'); UPDATE {table} SET body = 'y', id = 2")
        database.execute(f"DELETE FROM {table}")
    again = publication.provision(conn, "p", names, manage=True, lists={name: ["link"] for name in names})
    assert not again.added
    assert publication.inspect(conn, "p", names).complete
