"""A stream that starts with what its table holds, then follows the changes since."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.errors import ConfigError, PenstockError, PrivilegeError, SlotActiveError, UnavailableError
from penstock.postgres import slot
from penstock.spark import live, seeding
from tests.fixtures.databases import Database
from tests.fixtures.streams import Rows, Steps, Streamed
from tests.fixtures.waiting import wait_until

HOLDERS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"


def fill(steps: Steps | Streamed, rows: int = 2000) -> None:
    steps.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text, j jsonb)")
    steps.execute(
        "INSERT INTO t SELECT n, repeat('x', 200), jsonb_build_object('n', n) FROM generate_series(1, %s) n", rows
    )


def replayed(rows: Rows, column: str = "v") -> dict[int, Any]:
    """The table as a sink keyed by its primary key holds it: a value that was not sent stays."""
    table: dict[int, Any] = {}
    for row in rows:
        if row["_change_type"] in ("delete", "update_preimage"):
            table.pop(row["id"], None)
        elif column not in row["_missing"]:
            table[row["id"]] = row[column]
        else:
            table.setdefault(row["id"], None)
    return table


def stored(steps: Steps | Streamed, column: str = "v") -> dict[int, Any]:
    return dict(steps.execute(f"SELECT id, {column} FROM t"))


def until_streaming(steps: Steps) -> Rows:
    """Batches until the last chunk is done."""
    rows = steps.batch()
    while steps.offsets[-1].get("chunk") != steps.offsets[-1].get("chunks"):
        rows += steps.batch()
    return rows


def test_an_uninterrupted_start_is_exact(steps: Steps) -> None:
    """E50, E51, E100: each row of the slot's moment once, each later change once, whatever is written meanwhile."""
    fill(steps)
    steps.begin(table="t", startingPosition="snapshot", maxRowsPerTrigger=500)
    assert steps.batch() == []  # the plan is written down, and the slot made
    steps.execute("INSERT INTO t VALUES (-1, 'late'), (-2, 'short-lived')")
    steps.execute("DELETE FROM t WHERE id = 1")
    steps.execute("UPDATE t SET v = 'changed' WHERE id = 2000")
    seeded = steps.batch()
    steps.execute("DELETE FROM t WHERE id = -2")
    seeded += until_streaming(steps)
    assert len(steps.offsets) > 3
    assert sorted(row["id"] for row in seeded) == list(range(1, 2001))
    assert {(row["_change_type"], row["_xid"], row["_commit_timestamp"]) for row in seeded} == {("insert", None, None)}
    assert len({(row["_commit_lsn"], row["_seq"]) for row in seeded}) == 2000
    changes = steps.rows(5)
    assert [(row["_change_type"], row["id"]) for row in changes] == [
        ("insert", -1), ("insert", -2), ("delete", 1), ("update_postimage", 2000), ("delete", -2),
    ]  # fmt: skip
    assert all(row["_commit_lsn"] > seeded[0]["_commit_lsn"] for row in changes)
    assert replayed(seeded + changes) == stored(steps)
    wait_until(lambda: not steps.execute(HOLDERS), what="the snapshot to be let go")


def test_a_start_that_was_killed_is_begun_again_in_a_fresh_snapshot_and_converges(steps: Steps) -> None:
    """E51, E52, E100: every chunk, and every change since the slot's start; what came and went meanwhile is gone."""
    fill(steps)
    steps.begin(table="t", startingPosition="snapshot", maxRowsPerTrigger=500)
    rows = steps.batch() + steps.batch()
    wait_until(steps.poll, what="the next chunk")
    steps.read()  # planned and read, but not committed
    steps.execute("DELETE FROM t WHERE id % 3 = 0")
    steps.execute("UPDATE t SET v = 'moved' WHERE id % 3 = 1")
    steps.execute("INSERT INTO t VALUES (-1, 'in the fresh snapshot'), (-2, 'in none')")
    steps.execute("DELETE FROM t WHERE id = -2")
    steps.restart()
    assert steps.read() == []
    steps.commit()
    seeded = steps.batch()
    steps.execute("DELETE FROM t WHERE id = -1")
    seeded += until_streaming(steps)
    assert -1 in {row["id"] for row in seeded} and -2 not in {row["id"] for row in seeded}
    rows += seeded
    while replayed(rows) != stored(steps):
        rows += steps.batch()
    assert steps.offsets[-1].get("chunk") is None


# Each moves rows from blocks that are still to be read into those that are done, while nobody holds the snapshot.
MOVES = {
    "an update that sends no unchanged value": (
        "VACUUM t",
        "UPDATE t SET v = repeat('m', 200) WHERE id > 1960",
    ),
    "a table written anew": ("VACUUM FULL t",),
}


@pytest.mark.parametrize("moves", MOVES.values(), ids=list(MOVES))
@pytest.mark.parametrize("planned", [0, 1, 4], ids=["between batches", "inside one", "at the last step"])
def test_a_row_that_moved_into_a_part_that_was_read_is_not_lost_by_a_restart(
    steps: Steps, moves: tuple[str, ...], planned: int
) -> None:
    """E52, E100: wherever it was ended, a value that no change brings again is read again."""
    steps.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text, j text)")
    steps.execute("ALTER TABLE t ALTER j SET STORAGE EXTERNAL")
    steps.execute("INSERT INTO t SELECT n, repeat('x', 200), CASE WHEN n > 1960 THEN repeat('y', 5000) END"
                  " FROM generate_series(1, 2000) n")  # fmt: skip
    steps.begin(table="t", startingPosition="snapshot", maxRowsPerTrigger=500)
    rows = steps.batch() + steps.batch()
    for _ in range(planned - 1):
        rows += steps.batch()
    if planned:
        wait_until(steps.poll, what="the next chunk")
    steps.close_reader()
    steps.execute("DELETE FROM t WHERE id < 300")
    for one in moves:
        steps.execute(one)
    ((block,),) = steps.execute("SELECT min((ctid::text::point)[0]) FROM t WHERE id > 1960")
    assert block < 10 or "FULL" in moves[0]
    steps.restart()
    rows += until_streaming(steps)
    while any(replayed(rows, column) != stored(steps, column) for column in ("v", "j")):
        rows += steps.batch()


def test_a_start_that_was_killed_behind_its_last_chunk_reads_nothing_again(steps: Steps) -> None:
    """E100: the step without rows tells that all of it was read in one snapshot."""
    fill(steps, 100)
    steps.begin(table="t", startingPosition="snapshot")
    assert len(steps.batch() + until_streaming(steps)) == 100
    steps.execute("INSERT INTO t VALUES (-1, 'late')")
    steps.restart()
    assert [row["id"] for row in steps.rows(1)] == [-1]


def test_a_batch_of_the_snapshot_is_within_the_limits(steps: Steps) -> None:
    """E101: of rows, also where the first rows are far from the usual size; of bytes, what lies beside included."""
    steps.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text, j jsonb)")
    steps.execute("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    steps.execute("INSERT INTO t SELECT n, repeat('x', 1500) FROM generate_series(1, 200) n")
    steps.execute(
        "INSERT INTO t SELECT n, CASE n % 200 WHEN 0 THEN repeat('x', 40000) END FROM generate_series(201, 4000) n"
    )
    for limits in {"maxRowsPerTrigger": 700}, {"maxBytesPerTrigger": 200_000}, {"maxRowsPerTrigger": 100_000}:
        steps.begin(table="t", startingPosition="snapshot", **limits)
        batches = [steps.batch()]
        while steps.offsets[-1].get("chunk") != steps.offsets[-1].get("chunks"):
            batches.append(steps.batch())
        assert sorted(row["id"] for rows in batches for row in rows) == [*range(1, 4001)]
        assert max(map(len, batches)) <= limits.get("maxRowsPerTrigger", 4000)
        sizes = [sum(len(row["v"] or "") for row in rows) for rows in batches]
        assert max(sizes) <= 2 * limits.get("maxBytesPerTrigger", 1 << 20), "about as large as asked for"
        assert len(batches) < 60 and (len(batches) < 5 or limits != {"maxRowsPerTrigger": 100_000})
        steps.close_reader()
        steps.drop()
        del steps.offsets[:]
        steps.done = 0
        steps._given.clear()


def test_partitions_of_any_size_are_cut_together(steps: Steps) -> None:
    """E53, E101: one that is large beside others that are small or empty."""
    steps.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    for first, end in (0, 50), (50, 100), (100, 3000), (3000, 4000):
        steps.execute(f"CREATE TABLE t{first} PARTITION OF t FOR VALUES FROM ({first}) TO ({end})")
    steps.execute("INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(0, 2999) n")
    steps.begin(table="t", startingPosition="snapshot", maxRowsPerTrigger=500)
    batches = [steps.batch()]
    while steps.offsets[-1].get("chunk") != steps.offsets[-1].get("chunks"):
        batches.append(steps.batch())
    assert sorted(row["id"] for rows in batches for row in rows) == [*range(3000)]
    assert max(map(len, batches)) <= 500 and len(batches) < 20


def test_what_is_waited_for_and_held_is_said(
    steps: Steps, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E36, E55: whose transaction the slot waits for, and that vacuum waits for us."""
    monkeypatch.setattr(slot, "_ASK_BLOCKERS_AFTER_S", 0.0)
    fill(steps, 10)
    writing = steps.database.connect(autocommit=False)
    writing.execute("INSERT INTO t VALUES (-1)")
    steps.begin(table="t", startingPosition="snapshot")
    opening = threading.Thread(target=steps.poll)
    opening.start()
    wait_until(lambda: f"pid {writing.info.backend_pid} " in caplog.text, what="the one in the way to be named")
    writing.commit()
    opening.join()
    assert "a snapshot of public.t is held open" in caplog.text
    assert {record.levelname for record in caplog.records} == {"WARNING"}, "seen without any set-up"


def test_a_table_written_anew_behind_the_slots_snapshot_is_not_taken_for_empty(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E50: ALTER TABLE sends no rows, and a snapshot of before finds none in the new files."""
    fill(steps)
    take = seeding.take_ticket

    def late(connection: Any, tables: Any, adopted: str | None = None) -> Any:
        if adopted:
            steps.execute("ALTER TABLE t ALTER id TYPE bigint USING id + 10000")
        return take(connection, tables, adopted)

    monkeypatch.setattr(seeding, "take_ticket", late)
    steps.begin(table="t", startingPosition="snapshot")
    rows = until_streaming(steps)
    assert len(rows) == 2000
    assert replayed(rows) == stored(steps)


def test_the_snapshot_of_a_slot_that_was_there_before_converges(steps: Steps) -> None:
    """E50: a run that died between making the slot and writing down its plan."""
    fill(steps, 100)
    steps.execute("CREATE PUBLICATION pub FOR TABLE t")
    steps.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", steps.slot)
    steps.execute("UPDATE t SET v = 'before' WHERE id = 1")
    steps.begin(table="t", publication="pub", startingPosition="snapshot")
    rows = steps.batch() + until_streaming(steps)
    assert len(rows) == 100
    rows += steps.rows(1)
    assert replayed(rows) == stored(steps)


def test_a_snapshot_row_and_a_streamed_row_of_the_same_state_are_equal(steps: Steps) -> None:
    """E4, E104: value by value, what the type cannot hold included."""
    steps.execute(
        """CREATE TABLE t (id int PRIMARY KEY, a numeric(10,2), b numeric, c timestamptz, d date, e bytea, f jsonb,
           g uuid, h char(5), i text[], k interval, l time, m float8, n boolean, o inet, p int4range, q jsonb)"""
    )
    rows = """(1, 1.50, 1.2300, '2024-02-29 12:00:00.123456+02', '2024-02-29', '\\x00ff', '{"a": [1, null]}',
               gen_random_uuid(), 'ab', '{a,NULL,"NULL"}', '1 day', '24:00', 'NaN', true, '10.0.0.1/8', '[1,5)', '1'),
              (2, 'NaN', 'Infinity', 'infinity', '20240-01-01', '', 'null', NULL, NULL, NULL, NULL, NULL, '-0', NULL,
               NULL, NULL, '1e400')"""
    steps.execute(f"INSERT INTO t VALUES {rows}")
    steps.begin(table="t", startingPosition="snapshot", unrepresentable="null")
    seeded = steps.batch() + until_streaming(steps)
    steps.execute("DELETE FROM t")
    assert len(steps.rows(2)) == 2
    steps.execute("CREATE TABLE kept AS SELECT * FROM t")
    steps.execute(f"INSERT INTO t VALUES {rows.replace('gen_random_uuid()', repr(str(seeded[0]['g'])))}")
    streamed = steps.rows(2)
    added = ("_change_type", "_commit_lsn", "_seq", "_xid", "_commit_timestamp")
    for one, other in zip(seeded, streamed, strict=True):
        assert {k: repr(v) for k, v in one.items() if k not in added} == {
            k: repr(v) for k, v in other.items() if k not in added
        }
    assert streamed[1]["_missing"] == ["a", "c", "d", "q"]


KEYED = "CREATE TABLE t (id int PRIMARY KEY)"


@pytest.mark.parametrize(
    ("tables", "options", "words"),
    [
        (["CREATE TABLE t (id int)"], {}, "public.t: it has no primary key and no other replica identity"),
        (["CREATE TABLE t (id int)", "ALTER TABLE t REPLICA IDENTITY FULL"], {}, "table public.t has no primary key"),
        ([KEYED], {"temporarySlot": "true"}, "needs a lasting slot"),
        ([KEYED], {"mode": "keys"}, "for one table in mode rows"),
        ([KEYED, "CREATE TABLE u (id int PRIMARY KEY)"], {"table": None, "tables": "t, u"}, "for one table in mode"),
    ],
    ids=["no identity", "no key", "a temporary slot", "keys", "several tables"],
)
def test_what_cannot_start_with_a_snapshot_is_refused_and_leaves_no_slot(
    steps: Steps, tables: list[str], options: dict[str, Any], words: str
) -> None:
    """E53: a table without a key, by name; a slot or a mode that does not fit."""
    for one in tables:
        steps.execute(one)
    with pytest.raises(PenstockError, match=words):
        steps.begin(**{"table": "t", "startingPosition": "snapshot", **options}).poll()
    assert not slots(steps)


def slots(steps: Steps) -> list[tuple[Any, ...]]:
    return steps.execute("SELECT slot_name FROM pg_replication_slots WHERE slot_name = %s", steps.slot)


def test_a_snapshot_that_cannot_be_held_leaves_no_slot(steps: Steps) -> None:
    """E50: it would hold WAL back, and the next start would take it for an older one."""
    fill(steps, 10)
    steps.execute("CREATE PUBLICATION pub FOR TABLE t")
    url = steps.database.role("sightless", attributes="LOGIN REPLICATION")
    steps.begin(url=url, table="t", publication="pub", startingPosition="snapshot")
    with pytest.raises(PrivilegeError, match="permission denied for table t"):
        steps.poll()
    assert not slots(steps)
    steps.execute("GRANT SELECT ON t TO sightless")
    assert len(steps.restart().batch() + until_streaming(steps)) == 10
    steps.close_reader()
    steps.execute("DROP OWNED BY sightless")


def test_a_reader_that_is_ended_while_its_slot_is_made_leaves_none(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E36: the server would make it in the end, and nobody would read it."""

    def end(*_: Any) -> None:
        raise SystemExit(143)

    monkeypatch.setattr(slot, "_ASK_BLOCKERS_AFTER_S", 0.0)
    monkeypatch.setattr(seeding, "tell_who_blocks", end)
    fill(steps, 10)
    writing = steps.database.connect(autocommit=False)
    writing.execute("INSERT INTO t VALUES (-1)")
    with pytest.raises(SystemExit):
        steps.begin(table="t", startingPosition="snapshot").poll()
    wait_until(lambda: not slots(steps), what="the slot to be gone, while the transaction is open")


def test_a_connection_that_ends_while_the_slot_is_made_is_one_sentence(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E32, E36: in our words, and without a slot."""

    def cut(*_: Any) -> None:
        steps.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'walsender'")

    monkeypatch.setattr(slot, "_ASK_BLOCKERS_AFTER_S", 0.0)
    monkeypatch.setattr(seeding, "tell_who_blocks", cut)
    fill(steps, 10)
    writing = steps.database.connect(autocommit=False)
    writing.execute("INSERT INTO t VALUES (-1)")
    with pytest.raises(UnavailableError, match="the server"):
        steps.begin(table="t", startingPosition="snapshot").poll()
    wait_until(lambda: not slots(steps), what="the slot to be gone")


def test_a_slot_that_somebody_is_making_is_waited_for(
    steps: Steps, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E28, E50: a server whose client was killed makes it all the same."""
    fill(steps, 100)
    steps.execute("CREATE PUBLICATION pub FOR TABLE t")
    writing, making = steps.database.connect(autocommit=False), steps.database.connect()
    writing.execute("INSERT INTO t VALUES (-1)")
    query = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
    maker = threading.Thread(target=making.execute, args=(query, [steps.slot]))
    maker.start()
    wait_until(lambda: slots(steps), what="the slot to be begun")
    steps.begin(table="t", publication="pub", startingPosition="snapshot")
    with monkeypatch.context() as impatient, pytest.raises(SlotActiveError, match="is still being made"):
        impatient.setattr(live, "_MAKING_S", 0.0)
        steps.poll()
    opening = threading.Thread(target=steps.poll)
    opening.start()
    wait_until(lambda: "is still being made" in caplog.text, what="the wait to be told")
    writing.commit()
    maker.join()
    opening.join()
    rows = steps.batch() + until_streaming(steps)
    assert replayed(rows) == stored(steps)


@pytest.mark.parametrize("start", ["slot", "snapshot"])
def test_a_slot_that_survives_a_failover_is_made_where_the_server_can(steps: Steps, db16: Database, start: str) -> None:
    """E32: from Postgres 17 on; before, and with a slot that ends with the query, it is refused."""
    fill(steps, 10)
    steps.begin(table="t", startingPosition=start, failover="true").batch()
    assert steps.execute("SELECT failover FROM pg_replication_slots WHERE slot_name = %s", steps.slot) == [(True,)]
    with pytest.raises(ConfigError, match="a temporary slot ends with the query"):
        steps.begin(startingPosition="slot", temporarySlot="true")
    older = Steps(db16, "steps_before_17")
    fill(older, 10)
    with pytest.raises(ConfigError, match="failover slots need Postgres 17; the server is 16"):
        wait_until(older.begin(table="t", startingPosition=start, failover="true").poll)
    assert not slots(older)
    older.close()


def test_spark_reads_the_snapshot_and_then_the_changes(stream: Streamed) -> None:
    """E50, E101: in one query; AvailableNow ends behind the snapshot."""
    fill(stream, 300)
    first = stream.available_now(table="t", startingPosition="snapshot")
    assert sorted(row["id"] for row in first.rows) == list(range(1, 301))
    stream.execute("DELETE FROM t WHERE id = 7")
    second = stream.available_now(table="t", startingPosition="snapshot")
    assert [(row["_change_type"], row["id"]) for row in second.rows] == [("delete", 7)]
