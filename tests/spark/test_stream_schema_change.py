"""A table that is altered while a query runs: a clear stop before any wrong row, and its new shape at a restart."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from penstock.errors import OperatorError, PositionError
from penstock.spark.tables import TableWatch
from tests.fixtures.streams import Rows, Steps, Streamed
from tests.fixtures.waiting import wait_until

ALTERED = "was altered while the query ran"


def own(rows: Rows) -> list[tuple[Any, ...]]:
    """Each row's own columns, then those it lacks."""
    return [(*(value for name, value in row.items() if not name.startswith("_")), row["_missing"]) for row in rows]


@pytest.fixture
def opened(steps: Steps) -> Steps:
    steps.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    return steps.begin(table="t").open()


def refusal(steps: Steps) -> str:
    """What the reader says of the next batch."""
    wait_until(steps.poll, what="a row")
    with pytest.raises(OperatorError) as caught:
        steps.read()
    return str(caught.value)


def test_a_column_added_while_a_query_runs_stops_it_and_comes_with_the_restart(stream: Streamed) -> None:
    """E5: the rows of before come too, without it; nothing is acknowledged that was not handed on."""
    stream.execute("CREATE TABLE t (id int PRIMARY KEY)")
    stream.available_now(table="t")
    running = stream.start(table="t")
    stream.await_streaming()
    writing = stream.database.connect(autocommit=False)
    writing.execute("INSERT INTO t VALUES (1)")
    writing.execute("ALTER TABLE t ADD COLUMN v text DEFAULT 'd'")
    writing.execute("INSERT INTO t VALUES (2, 'x')")
    writing.commit()
    said = running.await_failure()
    assert f"table public.t {ALTERED}: its columns are not those that the query started with" in said
    assert "Restart the query: it adopts the table's new columns" in said
    assert running.rows == []
    stream.await_free()
    confirmed = stream.confirmed()
    rows = stream.available_now(table="t").rows
    assert confirmed < rows[0]["_commit_lsn"]
    assert own(rows) == [(1, None, ["v"]), (2, "x", [])]


def alter(steps: Steps, alteration: str, row: str) -> None:
    """A row of the old shape, the alteration and a row of the new shape, in one transaction."""
    with steps.database.connect(autocommit=False) as writing:
        writing.execute("INSERT INTO t VALUES (1, 5)")
        writing.execute(alteration.encode())
        writing.execute(f"INSERT INTO t VALUES {row}".encode())


@pytest.mark.parametrize(
    ("alteration", "row", "after"),
    [
        ("DROP COLUMN v", "(2)", [(1, []), (2, [])]),
        ("RENAME COLUMN v TO w", "(2, 7)", [(1, None, ["w"]), (2, 7, [])]),
        ("ALTER v TYPE bigint", "(2, 7)", [(1, 5, []), (2, 7, [])]),
        ("ALTER v TYPE text", "(2, 'x')", [(1, "5", []), (2, "x", [])]),
        ("ALTER v TYPE numeric(6,2)", "(2, 1.5)", [(1, Decimal("5.00"), []), (2, Decimal("1.50"), [])]),
    ],
    ids=["drop", "rename", "widen", "to text", "to numeric"],
)
def test_a_column_dropped_renamed_or_retyped_stops_a_query_and_is_adopted(
    opened: Steps, alteration: str, row: str, after: list[Any]
) -> None:
    """E5, E104: rows of both shapes come in one batch."""
    alter(opened, f"ALTER TABLE t {alteration}", row)
    assert ALTERED in refusal(opened)
    assert own(opened.restart().read()) == after


def test_a_partitioned_table_that_is_retyped_behind_rows_that_wait_stops_the_query(partitioned: Steps) -> None:
    """E5, E104: though the catalog is read for another table's sake, and the rows have the shape that is expected."""
    partitioned.execute("ALTER TABLE p ADD v int")
    partitioned.begin(table="p", publication="pub", unrepresentable="null").open()
    partitioned.execute("INSERT INTO p VALUES (1, 5); INSERT INTO t VALUES (1); ALTER TABLE p ALTER v TYPE bigint")
    assert ALTERED in refusal(partitioned)
    assert own(partitioned.restart().read()) == [(1, 5, [])]


def test_a_type_that_does_not_hold_the_old_values_has_a_way_on(opened: Steps) -> None:
    """E104: null by name, where the user says so."""
    alter(opened, "ALTER TABLE t ALTER v TYPE date USING '2024-01-01'", "(2, '2024-01-02')")
    assert ALTERED in refusal(opened)
    opened.restart()
    with pytest.raises(OperatorError, match="had another type when rows were written") as caught:
        opened.read()
    assert "Set unrepresentable to null" in str(caught.value)
    opened.restart(unrepresentable="null")
    assert own(opened.read()) == [(1, None, ["v"]), (2, date(2024, 1, 2), [])]


def test_what_does_not_touch_the_columns_does_not_stop_a_query(opened: Steps) -> None:
    """E76: indexes, comments, defaults, constraints, statistics."""
    opened.execute("INSERT INTO t VALUES (1, 5)")
    opened.rows(1)
    opened.execute("CREATE INDEX ON t (v)")
    opened.execute("COMMENT ON COLUMN t.v IS 'x'")
    opened.execute("ALTER TABLE t ALTER v SET DEFAULT 3, ALTER v SET NOT NULL, ADD CHECK (v > 0)")
    opened.execute("ANALYZE t")
    opened.execute("INSERT INTO t (id) VALUES (2)")
    assert own(opened.rows(1)) == [(2, 3, [])]


def test_a_renamed_table_is_a_clear_stop_in_every_mode(steps: Steps) -> None:
    """E76: its rows are not taken for somebody else's."""
    steps.execute("CREATE TABLE t (id int PRIMARY KEY)")
    steps.begin(tables="t", mode="keys").open()
    steps.execute("ALTER TABLE t RENAME TO u")
    steps.execute("INSERT INTO u VALUES (1)")
    assert f"table public.t {ALTERED}: it is public.u now" in refusal(steps)


@pytest.fixture
def partitioned(steps: Steps) -> Steps:
    """A plain table `t`, and `p` with partitions `p0` and `p1`, all of them in a publication of all tables."""
    steps.execute("CREATE TABLE t (id int PRIMARY KEY)")
    steps.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    for n in 0, 1:
        steps.execute(f"CREATE TABLE p{n} PARTITION OF p FOR VALUES FROM ({n}0) TO ({n + 1}0)")
    steps.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    return steps


def write(steps: Steps, *statements: str) -> None:
    """One transaction, and so one batch; at its start a row of a partition that is new: the catalog is read again."""
    first = "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (20) TO (30)", "INSERT INTO p VALUES (22)"
    with steps.database.connect(autocommit=False) as writing:
        for one in (*first, *statements):
            writing.execute(one.encode())


@pytest.mark.parametrize("mode", ["rows", "keys"])
@pytest.mark.parametrize(
    ("also", "now"),
    [
        (["INSERT INTO u VALUES (1)"], "it is public.u now"),
        ([], "it is public.u now"),
        (["DROP TABLE u"], "it was dropped"),
        (["CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO u VALUES (1)"], "it is public.u now"),
    ],
    ids=["with a row", "quietly", "dropped", "replaced"],
)
def test_a_table_renamed_beside_a_partitioned_one_is_a_clear_stop(
    partitioned: Steps, mode: str, also: list[str], now: str
) -> None:
    """E76: though the catalog is read again, for a partition that is new."""
    partitioned.begin(tables="t, p", mode=mode, publication="pub").open()
    write(partitioned, "INSERT INTO t VALUES (0)", "ALTER TABLE t RENAME TO u", *also)
    assert f"table public.t {ALTERED}: {now}" in refusal(partitioned)


def test_what_was_written_before_a_rename_comes_under_the_name_that_is_asked_for_then(steps: Steps) -> None:
    """E76: a restart with the new name is the way on from that stop."""
    steps.execute("CREATE TABLE t (id int PRIMARY KEY)")
    steps.begin(table="t").open()
    with steps.database.connect(autocommit=False) as writing:
        writing.execute("INSERT INTO t VALUES (1)")
        writing.execute("ALTER TABLE t RENAME TO u")
        writing.execute("INSERT INTO u VALUES (2)")
    assert "it is public.u now" in refusal(steps)
    steps.restart(table="u")
    assert own(steps.read()) == [(1, []), (2, [])]


@pytest.mark.parametrize("mode", ["rows", "keys"])
@pytest.mark.parametrize("change", ["DROP TABLE p1", "ALTER TABLE p DETACH PARTITION p1", "ALTER TABLE p1 RENAME TO q"])
def test_rows_of_a_partition_that_is_gone_come_all_the_same(partitioned: Steps, mode: str, change: str) -> None:
    """E7: they were written while it was one, and the catalog is read again before they are read."""
    partitioned.begin(table="p", mode=mode, publication="pub").open()
    write(partitioned, "INSERT INTO p VALUES (1), (11)", "UPDATE p SET id = id + 1", change)
    assert len(partitioned.batch()) == (6 if mode == "keys" else 9), "a key that changed has two images"


def test_rows_of_a_partition_that_was_renamed_before_a_restart_come_under_its_table(partitioned: Steps) -> None:
    """E7: under the name that it had when they were written."""
    partitioned.begin(table="p", publication="pub").open()
    partitioned.execute("INSERT INTO p VALUES (11)")
    partitioned.close_reader()
    partitioned.execute("ALTER TABLE p1 RENAME TO q")
    partitioned.restart()
    assert own(partitioned.rows(1)) == [(11, [])]


def test_rows_of_a_partition_that_was_dropped_before_a_restart_are_not_left_out_in_silence(
    partitioned: Steps, caplog: pytest.LogCaptureFixture
) -> None:
    """E7: nobody knows any more what it was a partition of; it is named."""
    partitioned.begin(table="p", publication="pub").open()
    partitioned.execute("INSERT INTO p VALUES (11)")
    partitioned.close_reader()
    partitioned.execute("DROP TABLE p1")
    partitioned.execute("INSERT INTO t VALUES (1)")
    partitioned.execute("INSERT INTO p VALUES (2)")
    partitioned.restart()
    assert own(partitioned.rows(1)) == [(2, [])]
    assert "rows of table public.p1 are left out" in caplog.text and "public.t" not in caplog.text


def test_a_partition_that_is_detached_is_one_until_the_query_is_restarted(
    partitioned: Steps, caplog: pytest.LogCaptureFixture
) -> None:
    """E7: where it is still published; then it is a table like any other, and nobody knows what it was."""
    partitioned.begin(table="p", publication="pub").open()
    partitioned.execute("INSERT INTO p VALUES (11)")
    assert own(partitioned.rows(1)) == [(11, [])]
    partitioned.execute("ALTER TABLE p DETACH PARTITION p1")
    partitioned.execute("INSERT INTO p1 VALUES (12)")
    assert own(partitioned.rows(1)) == [(12, [])], "and 11 is not deleted"
    partitioned.close_reader()
    partitioned.execute("INSERT INTO p1 VALUES (13)")
    partitioned.restart()
    assert partitioned.batch() == [] and "left out" not in caplog.text
    partitioned.execute("ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (10) TO (20)")
    partitioned.execute("INSERT INTO p VALUES (14)")
    assert own(partitioned.rows(1)) == [(14, [])], "and 13 comes not"


def test_the_catalog_is_asked_once_for_a_stranger_until_it_is_described_anew(
    partitioned: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7: it takes time from every batch; a table that is attached is described anew, and comes."""
    partitioned.execute("CREATE TABLE other (id int PRIMARY KEY)")
    partitioned.begin(table="p", publication="pub").open()
    asked: list[TableWatch] = []
    read = TableWatch._read
    monkeypatch.setattr(TableWatch, "_read", lambda watch: (asked.append(watch), read(watch)))
    for number in range(20, 24):
        partitioned.execute(f"INSERT INTO t VALUES ({number})")
        assert partitioned.batch() == []
        partitioned.execute(f"INSERT INTO other VALUES ({number})")
        assert partitioned.batch() == []
    assert len(asked) == 2, "once for each of them"
    partitioned.execute("ALTER TABLE p ATTACH PARTITION t FOR VALUES FROM (20) TO (30)")
    partitioned.execute("INSERT INTO p VALUES (24)")
    assert own(partitioned.rows(1)) == [(24, [])]
    assert len(asked) == 3


def test_a_stranger_that_took_the_name_of_a_partition_is_a_clear_stop(partitioned: Steps) -> None:
    """E7: its rows are not taken for the table's; after a restart they stay out."""
    partitioned.begin(table="p", publication="pub").open()
    partitioned.execute("INSERT INTO p VALUES (11)")
    assert own(partitioned.rows(1)) == [(11, [])]
    partitioned.execute("DROP TABLE p1")
    partitioned.execute("CREATE TABLE p1 (id int PRIMARY KEY)")
    partitioned.execute("INSERT INTO p1 VALUES (12)")
    assert f"table public.p {ALTERED}: public.p1 is the name of another table now" in refusal(partitioned)
    partitioned.restart()
    assert partitioned.batch() == []
    partitioned.execute("INSERT INTO p VALUES (1)")
    assert own(partitioned.rows(1)) == [(1, [])]


def test_a_table_dropped_and_made_again_goes_on_where_its_columns_are_the_same(opened: Steps) -> None:
    """E5, E29: by its name, once it was said that what was written meanwhile may be lost."""
    opened.execute("INSERT INTO t VALUES (1, 5)")
    opened.rows(1)
    opened.close_reader()
    opened.execute("DROP TABLE t")
    opened.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    opened.restart()
    with pytest.raises(PositionError, match=r"public\.t, which the checkpoint has read, is not in publication"):
        opened.poll()
    assert not opened.execute("SELECT FROM pg_publication_tables"), "nothing is changed"
    opened.restart(failOnDataLoss="false")
    opened.poll()
    opened.execute("INSERT INTO t VALUES (2, 6)")
    found: Rows = []
    while not found:
        found += opened.batch()
    assert own(found) == [(2, 6, [])]


@pytest.mark.parametrize("start", ["slot", "snapshot"])
def test_columns_that_the_publication_leaves_out_are_none_of_the_stream(steps: Steps, start: str) -> None:
    """E8, E4: a column list of the user's own, and generated columns; a snapshot row and a streamed one are equal."""
    steps.execute("CREATE TABLE t (id int PRIMARY KEY, v text, w text, g int GENERATED ALWAYS AS (id + 1) STORED)")
    steps.execute("CREATE PUBLICATION pub FOR TABLE t (id, v)")
    steps.execute("INSERT INTO t VALUES (0, 'a', 'b')")
    steps.begin(table="t", publication="pub", managePublication="false", startingPosition=start)
    if start == "slot":
        steps.open()
    steps.execute("INSERT INTO t VALUES (1, 'a', 'b')")
    wanted = [(0, "a", []), (1, "a", [])][start == "slot" :]
    assert own(steps.rows(len(wanted))) == wanted


@pytest.mark.parametrize("sent", [False, True])
def test_a_generated_column_is_there_where_it_is_published(steps: Steps, sent: bool) -> None:
    """E4: from Postgres 18 on, where the publication was told to; it is never out of date."""
    steps.execute("CREATE TABLE t (id int PRIMARY KEY, v int, twice int GENERATED ALWAYS AS (v * 2) STORED)")
    steps.execute(f"CREATE PUBLICATION pub FOR TABLE t {'WITH (publish_generated_columns = stored)' if sent else ''}")
    steps.execute("INSERT INTO t VALUES (1, 5)")
    steps.begin(table="t", publication="pub", managePublication="false", startingPosition="snapshot")
    first = steps.rows(1)
    steps.execute("UPDATE t SET v = 50")
    assert own(first + steps.rows(1)) == [(1, 5, 10, []), (1, 50, 100, [])] if sent else [(1, 5, []), (1, 50, [])]
