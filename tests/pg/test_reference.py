"""Reference tables on real servers: one slot, several tables, each with its own place in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.contracts import ReferenceTableSource, SourceCheckpoint
from penstock.demo.server import Server
from penstock.errors import ConfigError, OperatorError, PositionError, SlotLostError, SlotMissingError
from penstock.model import Lsn, Position, ReplicationConfig
from penstock.reference import PostgresReferenceTableSource, PostgresSnapshotSource, ReferenceCapture, ReferenceView
from penstock.reference.checkpoint import acknowledged, decode, encode
from penstock.reference.keeping import keep_current
from tests.fixtures.references import Dimensions, await_changes, await_waiting, fill, read_snapshot, told
from tests.fixtures.waiting import wait_until


def test_a_snapshot_then_changes_without_gap_or_overlap(dims: Dimensions) -> None:
    """E90, E91: the contract of one table, from its first poll on."""
    fill(dims, "city")
    source = dims.capture().table("city")
    assert isinstance(source, ReferenceTableSource)
    assert not source.is_snapshot_complete()
    assert source.poll_changes() is None, "before completion: nothing, and nothing is consumed"
    first = source.poll_snapshot()
    assert first is not None and first.to_pylist() == [{"id": 1, "name": "one"}, {"id": 2, "name": "two"}]
    assert not source.is_snapshot_complete()
    dims.execute("INSERT INTO city VALUES (3, 'three')")
    assert source.poll_changes() is None
    for _ in range(3):
        assert source.poll_snapshot() is None
        assert source.is_snapshot_complete()
    dims.execute("UPDATE city SET id = 4 WHERE id = 1")
    dims.execute("TRUNCATE city")
    found = await_changes(source, 4)
    assert told(found) == [
        ("insert", 3), ("update_preimage", 1), ("update_postimage", 4), ("truncate", None),
    ]  # fmt: skip
    assert [change["_seq"] for change in found] == [0, 0, 0, 0]
    assert found[0]["_commit_lsn"] < found[1]["_commit_lsn"] == found[2]["_commit_lsn"] < found[3]["_commit_lsn"]
    assert source.poll_changes() is None
    dims.execute("INSERT INTO city VALUES (5, 'five')")
    assert told(await_changes(source)) == [("insert", 5)], "None was not the end"


def test_a_checkpoint_is_pure_and_covers_what_was_delivered(dims18: Dimensions) -> None:
    """E92: a hundred checkpoints move nothing; what is buffered is not covered; a cut transaction does not pass."""
    fill(dims18, "city")
    source = dims18.capture().table("city")
    before = source.checkpoint()
    read_snapshot(source)
    dims18.execute("INSERT INTO city SELECT n, 'x' FROM generate_series(10, 40000) AS n")
    dims18.execute("INSERT INTO city VALUES (3, 'three')")
    wait_until(lambda: source._capture.wait(1), what="the transaction")
    start = source.checkpoint()
    first = await_changes(source)
    assert len(first) < 39_991
    slot, cut = dims18.confirmed(), source.checkpoint()
    assert all(source.checkpoint() == cut for _ in range(100))
    assert cut.position == (first[-1]["_commit_lsn"], first[-1]["_seq"])
    assert acknowledged(cut) == acknowledged(start), "the transaction is not whole yet"
    source.confirm(cut)
    rest = await_changes(source, 39_992 - len(first))
    assert told(rest)[-1] == ("insert", 3)
    assert dims18.confirmed() < cut.position.lsn, "nothing but a whole transaction that is confirmed moves the slot"
    source.restore(cut)
    assert await_changes(source, len(rest)) == rest, "a restored source goes on exactly behind the checkpoint"
    source.confirm(source.checkpoint())
    wait_until(lambda: dims18.confirmed() > max(slot, cut.position.lsn), what="the slot to move")
    with pytest.raises(PositionError, match="has passed"):
        source.restore(cut)
    source.restore(before)
    assert not source.is_snapshot_complete()
    assert len(read_snapshot(source)) == 39_994


def test_the_slot_stands_at_the_least_of_what_its_tables_have_saved(dims: Dimensions) -> None:
    """E92: two tables and one slot; a closed one keeps its place until it is forgotten."""
    fill(dims, "city", "country")
    capture = dims.capture()
    city, country = capture.table("city"), capture.table("country")
    read_snapshot(city)
    city.confirm(city.checkpoint())
    assert capture.acknowledged == Lsn.ZERO, "a table that has no place yet holds the slot"
    read_snapshot(country)
    first = country.checkpoint()
    country.confirm(first)
    dims.execute("UPDATE city SET name = 'x'")
    await_changes(city, 2)
    city.confirm(city.checkpoint())
    assert capture.acknowledged < city.checkpoint().position.lsn
    country.close()
    city.confirm(city.checkpoint())
    assert capture.acknowledged == acknowledged(first)
    with pytest.raises(PositionError, match="was delivered up to"):
        city.confirm(city.checkpoint()._replace(position=Position(Lsn(1 << 60), 0)))
    capture.forget("country")
    wait_until(lambda: dims.confirmed() == capture.acknowledged > acknowledged(first), what="the slot to move")


def test_a_table_without_changes_pins_no_wal(dims: Dimensions) -> None:
    """E92: who only polls, takes checkpoints and confirms them lets the slot go on, whatever others write."""
    fill(dims, "city", "country")
    dims.execute("CREATE TABLE unrelated (v text)")
    capture = dims.capture()
    sources = [capture.table("city"), capture.table("country")]
    for source in sources:
        read_snapshot(source)
    dims.execute("INSERT INTO unrelated SELECT repeat('x', 1000) FROM generate_series(1, 5000)")
    dims.execute("UPDATE city SET name = 'last' WHERE id = 1")
    end = dims.wal_end()

    def slot_has_passed() -> bool:
        for source in sources:
            source.poll_changes()
            source.confirm(source.checkpoint())
        return dims.confirmed() >= end

    wait_until(slot_has_passed, 20, "the slot to pass what no table is interested in")


def test_a_table_that_joins_later_has_every_row_once(dims: Dimensions) -> None:
    """E90, E93: a transaction that is open while the snapshot is taken is in it or behind it, also after a restart."""
    fill(dims, "city", "country")
    capture = dims.capture()
    city = capture.table("city")
    read_snapshot(city)
    dims.execute("INSERT INTO country VALUES (3, 'before it is published')")
    country = capture.table("country")
    opened = dims.database.connect(autocommit=False), dims.database.connect(autocommit=False)
    with opened[0] as open_one, opened[1] as later_one, ThreadPoolExecutor() as pool:
        open_one.execute("INSERT INTO city VALUES (7, 'open')")  # not country, which is to be published
        coming = pool.submit(read_snapshot, country)
        await_waiting(dims)
        later_one.execute("INSERT INTO country VALUES (6, 'begun meanwhile')")
        dims.execute("INSERT INTO country VALUES (4, 'meanwhile')")
        dims.execute("INSERT INTO city VALUES (8, 'meanwhile')")
        # What is received meanwhile waits for both tables; the snapshot will have seen it.
        assert told(await_changes(city)) == [("insert", 8)]
        open_one.execute("INSERT INTO country VALUES (5, 'open')")
        open_one.commit()
        rows = coming.result(20)
        later_one.commit()
    saved = decode(encode(country.checkpoint()))
    dims.execute("UPDATE country SET name = 'after' WHERE id = 5")
    assert told(await_changes(city)) == [("insert", 7)]
    behind = [("insert", 6), ("update_postimage", 5)]
    assert sorted(row["id"] for row in rows) == [1, 2, 3, 4, 5]
    assert told(await_changes(country, 2)) == behind
    capture.close()
    again = dims.capture().table("country")
    again.restore(saved)
    assert told(await_changes(again, 2)) == behind
    assert "seen" not in again.checkpoint().metadata, "it is past what the snapshot saw"


def test_after_a_restart_every_table_goes_on_where_it_was_saved(dims: Dimensions) -> None:
    """E93: each at its own place, also one that was saved long before the others."""
    fill(dims, "city", "country")
    capture = dims.capture()
    city, country = capture.table("city"), capture.table("country")
    read_snapshot(city), read_snapshot(country)
    saved = country.checkpoint()
    country.confirm(saved)
    dims.execute("INSERT INTO city VALUES (3, 'x'), (4, 'x')")
    dims.execute("INSERT INTO country VALUES (3, 'x')")
    dims.execute("INSERT INTO city VALUES (5, 'x')")
    assert told(await_changes(city, 3)) == [("insert", 3), ("insert", 4), ("insert", 5)]
    later = city.checkpoint()
    city.confirm(later)
    capture.close()
    dims.execute("INSERT INTO city VALUES (6, 'x')")
    again = dims.capture()
    city, country = again.table("city"), again.table("country")
    city.restore(decode(encode(later)))
    country.restore(saved)
    assert city.is_snapshot_complete()
    assert city.poll_snapshot() is None
    assert told(await_changes(city)) == [("insert", 6)]
    assert told(await_changes(country)) == [("insert", 3)]


def test_a_checkpoint_of_elsewhere_is_refused(dims: Dimensions) -> None:
    """E93: another slot, another table, another server, a slot that is gone or was moved by somebody else."""
    fill(dims, "city", "country")
    capture = dims.capture()
    city, country = capture.table("city"), capture.table("country")
    read_snapshot(city)
    good = city.checkpoint()
    with pytest.raises(PositionError, match="belongs to table"):
        country.restore(good)
    with pytest.raises(PositionError, match=f"belongs to slot {dims.slot}"):
        dims.capture(slot="another").table("city").restore(good)
    with pytest.raises(PositionError, match="belongs to the server with system identifier 4711"):
        city.restore(good._replace(system_id="4711"))
    with pytest.raises(ConfigError, match="no checkpoint"):
        city.restore("garbage")  # type: ignore[arg-type]
    assert city.poll_changes() is None, "what was refused has changed nothing"
    capture.close()

    def restored(checkpoint: SourceCheckpoint) -> PostgresReferenceTableSource:
        source = dims.capture().table("city")
        source.restore(checkpoint)
        return source

    with pytest.raises(PositionError, match="belongs to the server with system identifier 4711"):
        restored(good._replace(system_id="4711")).poll_changes()
    wait_until(lambda: not dims.execute("SELECT 1 FROM pg_replication_slots WHERE active"), what="the slot to be free")
    dims.execute("INSERT INTO city VALUES (9, 'skipped')")
    dims.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", dims.slot)
    moved = restored(good)
    with pytest.raises(PositionError, match="somebody else consumed it"):
        moved.poll_changes()
    moved.again()
    assert len(read_snapshot(moved)) == 3, "a new snapshot puts it right"
    moved.confirm(moved.checkpoint())
    dims.execute("UPDATE city SET name = 'followed' WHERE id = 9")
    assert told(await_changes(moved)) == [("update_postimage", 9)]
    moved._capture.close()
    wait_until(lambda: not dims.execute("SELECT 1 FROM pg_replication_slots WHERE active"), what="the slot to be free")
    dims.execute("SELECT pg_drop_replication_slot(%s)", dims.slot)
    lost = restored(good)
    with pytest.raises(SlotMissingError, match=f"slot {dims.slot} is gone"):
        lost.poll_changes()
    lost.again()
    assert len(read_snapshot(lost)) == 3, "a new snapshot, and a new slot, put it right"


def test_a_closed_table_does_not_hold_a_slot_in_which_it_has_no_place(dims18: Dimensions) -> None:
    """E92: the slot that it had a place in is gone; the tables that go on with a new one are all that it waits for."""
    fill(dims18, "city", "country")
    capture = dims18.capture()
    city, country = capture.table("city"), capture.table("country")
    read_snapshot(city), read_snapshot(country)
    country.close()
    dims18.drop_slot_in_use()
    with pytest.raises(SlotMissingError):
        wait_until(lambda: city.poll_changes() is not None, what="the word that the slot is gone")
    city.again()
    read_snapshot(city)
    dims18.execute("UPDATE city SET name = 'x'")
    await_changes(city, 2)
    city.confirm(checkpoint := city.checkpoint())
    assert capture.acknowledged == acknowledged(checkpoint)


def test_a_stream_that_is_hung_up_before_it_was_open_is_opened_anew(dims18: Dimensions) -> None:
    """Another table that goes back to an earlier place hangs up, also while the first one still waits for the slot."""
    fill(dims18, "city")
    holder, capture = dims18.capture(), dims18.capture()
    read_snapshot(holder.table("city"))
    with ThreadPoolExecutor() as pool:
        coming = pool.submit(read_snapshot, capture.table("city"))
        wait_until(lambda: capture._receiver is not None, what="the wait for the slot")
        with capture.locked():
            capture._hang_up()
        holder.close()
        try:
            assert len(coming.result(20)) == 2
        finally:
            capture.close()


def test_a_stream_that_begins_again_takes_nothing_from_a_table_with_changes_waiting(dims18: Dimensions) -> None:
    """E92: what waited for a table when another one had the stream begin anew was not delivered, and comes again."""
    fill(dims18, "city", "country")
    capture = dims18.capture()
    city, country = capture.table("city"), capture.table("country")
    read_snapshot(city), read_snapshot(country)
    start = country.checkpoint()
    dims18.execute("INSERT INTO city SELECT n, 'x' FROM generate_series(10, 40000) AS n")
    first = await_changes(city)
    assert len(first) < 39_991
    cut = city.checkpoint()
    country.restore(start)
    assert city.checkpoint() == cut
    rest = await_changes(city, 39_991 - len(first))
    assert [change["id"] for change in first + rest] == list(range(10, 40_001))


def test_a_slot_that_goes_while_a_snapshot_is_taken_is_told_to_whoever_takes_it(dims18: Dimensions) -> None:
    """The table whose snapshot it is, too: its changes would come from a slot that is no more."""
    fill(dims18, "city", "country")
    capture = dims18.capture()
    city, country = capture.table("city"), capture.table("country")
    read_snapshot(city)
    with ThreadPoolExecutor() as pool, dims18.database.connect(autocommit=False) as open_one:
        open_one.execute("SELECT pg_current_xact_id()")
        coming = pool.submit(read_snapshot, country)
        await_waiting(dims18)
        dims18.drop_slot_in_use()
        with pytest.raises(SlotMissingError):
            wait_until(lambda: city.poll_changes() is not None, what="the word that the slot is gone")
        open_one.commit()
        with pytest.raises(SlotMissingError):
            coming.result(20)
    assert len(read_snapshot(country)) == 2, "and a new slot puts it right"


def test_tables_that_cannot_be_followed_are_refused(dims18: Dimensions) -> None:
    """E96: no table, no key, a key that is not unique or that a delete would not name, a view."""
    fill(dims18, "city")
    dims18.execute("CREATE TABLE bare (v text)")
    dims18.execute("ALTER TABLE bare REPLICA IDENTITY FULL")
    dims18.execute("CREATE TABLE coded (id int PRIMARY KEY, code text UNIQUE)")
    dims18.execute("CREATE VIEW shown AS SELECT * FROM city")
    dims18.execute("CREATE TABLE late (pos int PRIMARY KEY DEFERRABLE)")
    dims18.execute("ALTER TABLE late REPLICA IDENTITY FULL")
    dims18.execute("CREATE TABLE area (id int PRIMARY KEY)")
    dims18.execute("CREATE TABLE island () INHERITS (area)")
    capture = dims18.capture()
    for table, key, said in [
        ("nothing", (), "table public.nothing does not exist"),
        ("bare", (), "has no primary key"),
        ("city", ("name",), "no unique index over name"),
        ("city", ("nome",), "no column 'nome'"),
        ("coded", ("code",), "replica identity of public.coded does not hold code"),
        ("shown", (), "is a view"),
        ("late", (), "unique index over pos of table public.late is deferrable"),
        ("area", (), r"rows of public.area are also in tables that inherit from it \(public.island\)"),
    ]:
        with pytest.raises(ConfigError, match=said):
            capture.table(table, key=key).poll_snapshot()
        capture.forget(table)
    with pytest.raises(ConfigError, match="lasting slot"):
        dims18.capture(temporary_slot=True)


def test_rows_are_told_apart_by_a_key_with_nulls(dims18: Dimensions) -> None:
    """E96: composite, with NULL parts, where the database itself takes NULLs for equal."""
    dims18.execute("CREATE TABLE price (region text, day int, v int, UNIQUE NULLS NOT DISTINCT (region, day))")
    dims18.execute("ALTER TABLE price REPLICA IDENTITY FULL")
    dims18.execute("INSERT INTO price VALUES ('1', 1, 1), (NULL, 1, 2), (NULL, NULL, 3), ('', NULL, 4)")
    with ReferenceView(dims18.capture().table("price", key=["region", "day"])) as view:
        view.update()
        dims18.execute("UPDATE price SET v = 20 WHERE region IS NULL AND day = 1")
        dims18.execute("DELETE FROM price WHERE region IS NULL AND day IS NULL")
        dims18.execute("UPDATE price SET region = NULL WHERE region = ''")

        def values() -> list[int | None]:
            view.update()
            keys = [("1", 1), (None, 1), (None, None), ("", None)]
            return [row["v"] if (row := view.lookup(*key)) else None for key in keys]

        wait_until(lambda: values() == [1, 20, 4, None], what="the changes")
        dims18.execute("UPDATE price SET v = v + 1, day = CASE v WHEN 1 THEN 7 ELSE day END")
        wait_until(lambda: values() == [None, 21, 5, None] and len(view) == 3, what="the changes of all rows")
        with pytest.raises(ConfigError, match="key column day is int32"):
            view.lookup("1", "1")


ALTERATIONS = [
    ("ALTER TABLE city DROP COLUMN name", "its column name is gone"),
    ("ALTER TABLE city ALTER name TYPE int USING id", "its column name has another type"),
    ("ALTER TABLE city RENAME TO town", "was renamed while it was followed: it is public.town now"),
]


@pytest.mark.parametrize("then", ["INSERT INTO {} (id) VALUES (4)", "TRUNCATE {}"])
@pytest.mark.parametrize(("alteration", "said"), ALTERATIONS)
def test_an_altered_table_stops_by_name_with_its_last_good_contents(
    dims18: Dimensions, alteration: str, said: str, then: str
) -> None:
    """A column that is gone or retyped, a new name: the view stays what it was and says how old it is; others go on."""
    fill(dims18, "city", "country")
    capture = dims18.capture()
    with ReferenceView(capture.table("city")) as view, ReferenceView(capture.table("country")) as other:
        view.update(), other.update()
        dims18.execute("ALTER TABLE city ADD COLUMN more int")
        dims18.execute("INSERT INTO city (id, name) VALUES (3, 'three')")
        wait_until(lambda: view.update() or len(view) == 3, what="a row with one column more, which is left out")
        dims18.execute(alteration)
        dims18.execute(then.format("town" if "town" in alteration else "city"))
        dims18.execute("INSERT INTO country VALUES (3, 'three')")
        wait_until(lambda: other.update() or len(other) == 3, what="the other table")
        for _ in range(2):
            with pytest.raises(OperatorError, match=said):
                view.update()
        status = view.status()
        assert (status.rows, view.lookup(3)) == (3, {"id": 3, "name": "three"})
        assert status.age_s is not None and status.error is not None
        if "town" not in alteration:
            view.refresh()
            assert (len(view), view.status().error) == (0 if "TRUNCATE" in then else 4, None)
            assert set(view.schema.names) >= {"id", "more"}


@pytest.mark.parametrize("state", ["never polled", "in its snapshot", "waiting for a snapshot"])
def test_a_table_that_lags_behind_stops_no_other(
    dims18: Dimensions, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    """E92: memory is bounded, so is the disk; the rest waits in the slot, and comes when the table is polled again."""
    fill(dims18, "city", "country")
    dims18.execute("INSERT INTO country SELECT n, 'first' FROM generate_series(-40000, -1) AS n")
    capture = dims18.capture(buffer_bytes=100_000, spool_bytes=1_000_000)
    city, country = capture.table("city"), capture.table("country")
    read_snapshot(city)
    coming: Future[list[dict[str, Any]]] | None = None
    with ThreadPoolExecutor() as pool, dims18.database.connect(autocommit=False) as open_one:
        if state == "waiting for a snapshot":
            open_one.execute("SELECT pg_current_xact_id()")
            coming = pool.submit(read_snapshot, country)
            await_waiting(dims18)
        elif state == "in its snapshot":
            assert country.poll_snapshot() is not None
        else:
            read_snapshot(country)
        for number in range(30):
            ids = list(range(100 * number + 10, 100 * number + 110))
            dims18.execute("INSERT INTO country SELECT unnest(%s::int[]), repeat('x', 500)", ids)
            dims18.execute("UPDATE city SET name = %s", str(number))
            assert {change["name"] for change in await_changes(city, 2)} >= {str(number)}
            waiting = [one.backlog for one in capture._deliveries.values()]
            assert sum(backlog.memory_bytes for backlog in waiting) < 400_000
            assert sum(backlog.disk_bytes for backlog in waiting) < 1_400_000
        assert "bytes of changes of public.country wait on disk" in caplog.text
        lagging = country.checkpoint()
        open_one.commit()
        rows = coming.result(20) if coming else read_snapshot(country)
    assert lagging.position.lsn < city.checkpoint().position.lsn
    inserted = [row["id"] for row in rows if row["id"] >= 10]
    while len(inserted) < 3_000:
        inserted += [change["id"] for change in await_changes(country)]
    assert inserted == list(range(10, 3_010))
    assert country.poll_changes() is None
    dims18.execute("UPDATE city SET name = 'last'")
    await_changes(city, 2)
    for source in city, country:
        source.confirm(source.checkpoint())
    assert capture.acknowledged > lagging.position.lsn


def test_one_transaction_larger_than_the_disk_limit_stops_nobody_for_good(dims18: Dimensions) -> None:
    """The first view goes on beside what waits for the second, which has all of it in the end."""
    fill(dims18, "city", "country")
    capture, stop = dims18.capture(buffer_bytes=100_000, spool_bytes=100_000), threading.Event()
    with ReferenceView(capture.table("city")) as city, ReferenceView(capture.table("country")) as country:
        city.update(), country.update()
        dims18.execute("INSERT INTO country SELECT n, repeat('x', 500) FROM generate_series(10, 5000) AS n")
        dims18.execute("INSERT INTO city VALUES (3, 'three')")

        def seen(view: ReferenceView) -> None:
            if (len(city), len(country)) == (3, 4_993):
                stop.set()

        over = threading.Timer(30, stop.set)
        over.start()
        keep_current([city, country], stop, after_each=seen)
        over.cancel()
        assert (len(city), len(country)) == (3, 4_993)


def test_a_view_behind_a_backlog_says_how_old_it_is(dims18: Dimensions, tmp_path: Path) -> None:
    """E93: after a restart it is never younger than a commit that it does not show."""
    fill(dims18, "city")
    for rows in 0, 20_000:
        if rows:
            dims18.execute("INSERT INTO city SELECT n, 'x' FROM generate_series(10, %s) AS n", rows)
            dims18.execute("INSERT INTO city VALUES (3, 'last')")
        committed_at = time.time()
        capture = dims18.capture()
        with ReferenceView(capture.table("city"), path=tmp_path) as view:

            def is_there() -> bool:
                view.update()
                status, now = view.status(), time.time()
                if rows and view.lookup(3) is None:  # noqa: B023
                    assert status.age_s is not None and now - status.age_s <= committed_at  # noqa: B023
                return status.age_s is not None and now - status.age_s > committed_at  # noqa: B023

            wait_until(is_there, 30, "the view to be younger than the last commit")
            assert len(view) == (rows - 6 if rows else 2)
        capture.close()


def test_a_partitioned_table_is_one_table(dims: Dimensions) -> None:
    """E95: rows of partitions, also of one that is made meanwhile; a row that moves; TRUNCATE of all, and of one."""
    dims.execute("CREATE TABLE city (id int PRIMARY KEY, name text) PARTITION BY RANGE (id)")
    dims.execute("CREATE TABLE low PARTITION OF city FOR VALUES FROM (0) TO (10)")
    dims.execute("CREATE TABLE high (name text, id int NOT NULL)")  # other places of the same columns
    dims.execute("ALTER TABLE city ATTACH PARTITION high FOR VALUES FROM (10) TO (20)")
    dims.execute("INSERT INTO city VALUES (1, 'one'), (11, 'eleven')")
    with ReferenceView(dims.capture().table("city")) as view:

        def held() -> dict[int, str]:
            view.update()
            return {row["id"]: row["name"] for row in view.to_arrow().to_pylist()}

        assert held() == {1: "one", 11: "eleven"}
        dims.execute("UPDATE city SET id = 12 WHERE id = 1")
        dims.execute("CREATE TABLE top PARTITION OF city FOR VALUES FROM (20) TO (30)")
        dims.execute("INSERT INTO city VALUES (21, 'new'), (2, 'two')")
        wait_until(lambda: held() == {11: "eleven", 12: "one", 21: "new", 2: "two"}, what="the changes")
        dims.execute("TRUNCATE city")
        dims.execute("INSERT INTO city VALUES (3, 'three')")
        wait_until(lambda: held() == {3: "three"}, what="the truncated table")
        dims.execute("TRUNCATE low")
        with pytest.raises(OperatorError, match="was truncated"):
            wait_until(lambda: held() == {}, what="an error")
        view.refresh()
        assert held() == {}


def test_a_snapshot_alone_needs_neither_a_slot_nor_a_publication(dims18: Dimensions) -> None:
    """Refresh modes: a view of SQL is read by a plain role; a new snapshot replaces the old one as a whole."""
    fill(dims18, "city")
    dims18.execute("CREATE VIEW capitals AS SELECT id, upper(name) AS name FROM city WHERE id < 10")
    url = dims18.database.role("reader")
    dims18.execute("GRANT SELECT ON capitals TO reader")
    source = PostgresSnapshotSource(url, "capitals", key=["id"])
    with ReferenceView(source, refresh="periodic", every_s=0) as view:
        view.update()
        assert view.lookup(1) == {"id": 1, "name": "ONE"}
        dims18.execute("DELETE FROM city WHERE id = 1")
        view.update()
        assert (view.lookup(1), len(view)) == (None, 1)
        dims18.execute("DROP VIEW capitals")
        with pytest.raises(ConfigError, match="capitals does not exist"):
            view.update()
        assert len(view) == 1
    assert not dims18.execute("SELECT 1 FROM pg_replication_slots WHERE database = current_database()")
    dims18.execute("DROP OWNED BY reader")


def test_a_lost_slot_leaves_the_saved_contents_until_it_is_dropped(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    """E93: a typed error with the next step; the contents are there, with their age; a new slot puts it right."""
    server = start_server(16, {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB"})
    config = ReplicationConfig(slot="dims", publication="dims")
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE city (id int PRIMARY KEY, name text)")
        connection.execute("INSERT INTO city VALUES (1, 'Rome')")
        with ReferenceCapture(config, server.url()) as first, ReferenceView(first.table("city"), path=tmp_path) as view:
            view.update()

        def is_lost() -> bool:
            connection.execute("UPDATE city SET name = 'Roma'")
            connection.execute("SELECT pg_switch_wal()")
            connection.execute("CHECKPOINT")
            query = "SELECT FROM pg_replication_slots WHERE slot_name = 'dims' AND wal_status = 'lost'"
            return bool(connection.execute(query).fetchall())

        wait_until(is_lost, what="the slot to be lost")
        with (
            ReferenceCapture(config, server.url()) as second,
            ReferenceView(second.table("city"), path=tmp_path) as view,
        ):
            with pytest.raises(SlotLostError, match="slot dims is lost"):
                view.update()
            status = view.status()
            assert view.lookup(1) == {"id": 1, "name": "Rome"}
            assert isinstance(status.error, SlotLostError)
            assert status.age_s is not None and status.age_s > 0
            connection.execute("SELECT pg_drop_replication_slot('dims')")
            view.refresh()
            assert view.lookup(1) == {"id": 1, "name": "Roma"}
