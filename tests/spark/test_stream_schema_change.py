"""A table that is altered while a query runs: a clear stop before any wrong row, and its new shape at a restart."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from penstock.errors import OperatorError
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


def test_a_table_dropped_and_made_again_goes_on_where_its_columns_are_the_same(opened: Steps) -> None:
    """E5: by its name; managePublication publishes the new one at the restart."""
    opened.execute("INSERT INTO t VALUES (1, 5)")
    opened.rows(1)
    opened.close_reader()
    opened.execute("DROP TABLE t")
    opened.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    opened.restart()
    opened.poll()
    opened.execute("INSERT INTO t VALUES (2, 6)")
    found: Rows = []
    while not found:
        found += opened.batch()
    assert own(found) == [(2, 6, [])]


def test_columns_that_the_publication_leaves_out_are_missing_not_null(steps: Steps) -> None:
    """E8: a column list of the user's own, and generated columns that are not published."""
    steps.execute("CREATE TABLE t (id int PRIMARY KEY, v text, w text, g int GENERATED ALWAYS AS (id + 1) STORED)")
    steps.execute("CREATE PUBLICATION pub FOR TABLE t (id, v)")
    steps.begin(table="t", publication="pub", managePublication="false")
    steps.open()
    steps.execute("INSERT INTO t VALUES (1, 'a', 'b')")
    assert own(steps.rows(1)) == [(1, "a", None, None, ["w", "g"])]
