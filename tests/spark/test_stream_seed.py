"""A stream that starts with what its table holds, then follows the changes since."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.errors import ConfigError, PenstockError
from penstock.postgres import slot
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
    steps.execute("INSERT INTO t VALUES (-1, 'late')")
    steps.execute("DELETE FROM t WHERE id = 1")
    steps.execute("UPDATE t SET v = 'changed' WHERE id = 2000")
    seeded = until_streaming(steps)
    assert len(steps.offsets) > 3
    assert sorted(row["id"] for row in seeded) == list(range(1, 2001))
    assert {(row["_change_type"], row["_xid"], row["_commit_timestamp"]) for row in seeded} == {("insert", None, None)}
    assert len({(row["_commit_lsn"], row["_seq"]) for row in seeded}) == 2000
    changes = steps.rows(3)
    assert [(row["_change_type"], row["id"]) for row in changes] == [
        ("insert", -1), ("delete", 1), ("update_postimage", 2000),
    ]  # fmt: skip
    assert all(row["_commit_lsn"] > seeded[0]["_commit_lsn"] for row in changes)
    assert replayed(seeded + changes) == stored(steps)
    wait_until(lambda: not steps.execute(HOLDERS), what="the snapshot to be let go")


def test_a_start_that_was_killed_is_begun_again_in_a_fresh_snapshot_and_converges(steps: Steps) -> None:
    """E52, E100: every chunk, and every change since the slot's start."""
    fill(steps)
    steps.begin(table="t", startingPosition="snapshot", maxRowsPerTrigger=500)
    rows = steps.batch() + steps.batch()
    wait_until(steps.poll, what="the next chunk")
    steps.read()  # planned and read, but not committed
    steps.execute("DELETE FROM t WHERE id % 3 = 0")
    steps.execute("UPDATE t SET v = 'moved' WHERE id % 3 = 1")
    steps.restart()
    assert steps.read() == []
    steps.commit()
    rows += until_streaming(steps)
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


@pytest.mark.parametrize(
    ("table", "options", "words"),
    [
        ("CREATE TABLE t (id int)", {}, "t"),
        ("CREATE TABLE t (id int PRIMARY KEY)", {"temporarySlot": "true"}, "lasting slot"),
        ("CREATE TABLE t (id int PRIMARY KEY)", {"mode": "keys"}, "mode rows"),
    ],
)
def test_what_cannot_start_with_a_snapshot_is_refused(
    steps: Steps, table: str, options: dict[str, str], words: str
) -> None:
    """E53: a table without a key, by name; a slot or a mode that does not fit."""
    steps.execute(table)
    with pytest.raises(PenstockError, match=words) as caught:
        steps.begin(table="t", startingPosition="snapshot", **options)
        steps.poll()
    assert isinstance(caught.value, ConfigError) or "key" in str(caught.value)
    steps.close_reader()


def test_spark_reads_the_snapshot_and_then_the_changes(stream: Streamed) -> None:
    """E50, E101: in one query; AvailableNow ends behind the snapshot."""
    fill(stream, 300)
    first = stream.available_now(table="t", startingPosition="snapshot")
    assert sorted(row["id"] for row in first.rows) == list(range(1, 301))
    stream.execute("DELETE FROM t WHERE id = 7")
    second = stream.available_now(table="t", startingPosition="snapshot")
    assert [(row["_change_type"], row["id"]) for row in second.rows] == [("delete", 7)]
