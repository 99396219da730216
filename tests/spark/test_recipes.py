"""The recipes of the docs do what they say: the code of each page is run as it stands, on a real server."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.fixtures.waiting import wait_until
from tests.spark.conftest import Source

pytestmark = pytest.mark.smoke  # together they use nearly all of the source

PAGES = Path(__file__).parents[2] / "docs/how-to"
PATIENCE_S = 60.0
LARGE = 100_000  # characters: kept out of the row, and not sent again when it does not change

Names = dict[str, Any]
Play = Callable[[str, Callable[[Names], None]], Names]


@pytest.fixture
def play(spark: SparkSession, source18: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Run the code of a page; `meanwhile` is called where it waits for its query, which is stopped afterwards."""

    def play(page: str, meanwhile: Callable[[Names], None]) -> Names:
        names: Names = {}

        def await_termination(query: StreamingQuery, timeout: Any = None) -> None:
            names["query"] = query
            meanwhile(names)
            query.stop()

        monkeypatch.setattr(StreamingQuery, "awaitTermination", await_termination)
        code = "".join(re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL))
        assert "postgresql://penstock@localhost/shop" in code and '"/data/' in code
        code = code.replace("postgresql://penstock@localhost/shop", source18.database.url)
        exec(compile(code.replace('"/data/', f'"{tmp_path}/'), page, "exec"), names)
        return names

    source18.execute("CREATE TABLE customers (id int PRIMARY KEY, name text)")
    source18.execute("CREATE TABLE orders (id int PRIMARY KEY, customer_id int, total numeric(9, 2), note text)")
    # Kept out of the row as it is: the large note is neither compressed nor sent with an update that leaves it alone.
    source18.execute("ALTER TABLE orders ALTER COLUMN note SET STORAGE EXTERNAL")
    return play


def await_true(names: Names, condition: Callable[[], object], what: str) -> None:
    """Wait while the page's query runs."""
    query = names["query"]
    wait_until(lambda: condition() or not query.isActive, PATIENCE_S, what)
    assert query.isActive, query.exception()


def insert(source: Source, *ids: int) -> None:
    query = "INSERT INTO orders SELECT id, id * 10, id + 0.5, repeat('x', %s) FROM unnest(%s::int[]) AS id"
    source.execute(query, LARGE, list(ids))


def await_rows(names: Names, number: int) -> None:
    """Wait until the page's query is done with that many rows."""
    query = names["query"]
    await_true(names, lambda: sum(batch.numInputRows for batch in query.recentProgress) == number, f"{number} rows")


def test_stream_to_parquet(play: Play, spark: SparkSession, source18: Source, tmp_path: Path) -> None:
    def meanwhile(names: Names) -> None:
        source18.await_slot("orders_log")
        insert(source18, 1, 2)
        source18.execute("UPDATE orders SET total = 9 WHERE id = 1")
        source18.execute("DELETE FROM orders WHERE id = 2")
        await_rows(names, 4)

    play("spark-to-parquet.md", meanwhile)
    rows = spark.read.parquet(str(tmp_path / "orders_log")).orderBy("_commit_lsn", "_seq").collect()
    assert [(row.id, row._change_type) for row in rows] == [
        (1, "insert"), (2, "insert"), (1, "update_postimage"), (2, "delete"),
    ]  # fmt: skip
    assert rows[2]._missing == ["note"], "a large value that did not change is not sent again"


def test_take_a_snapshot_then_follow(play: Play, source18: Source) -> None:
    """E3, E50: rows from before the query, and changes while it runs, one of them of a key beside a large value."""
    insert(source18, 1, 2, 3)

    def meanwhile(names: Names) -> None:
        await_rows(names, 3)
        source18.execute("UPDATE orders SET total = 9 WHERE id = 1")
        source18.execute("DELETE FROM orders WHERE id = 2")
        source18.execute("UPDATE orders SET id = 33 WHERE id = 3")
        insert(source18, 4)
        await_rows(names, 8)

    names = play("spark-snapshot-then-follow.md", meanwhile)
    assert same_as_source(names["orders"].collect(), source18)


def test_keep_a_delta_table_current(play: Play, source18: Source, tmp_path: Path) -> None:
    """E3, E50: a large value that did not change is not nulled, not even when the key changes."""
    from deltalake import DeltaTable

    insert(source18, 1, 2, 3)

    def is_current() -> bool:
        if not DeltaTable.is_deltatable(str(tmp_path / "orders")):
            return False
        return same_as_source(DeltaTable(str(tmp_path / "orders")).to_pyarrow_table().to_pylist(), source18)

    def meanwhile(names: Names) -> None:
        await_true(names, is_current, "the snapshot")
        source18.execute("UPDATE orders SET total = 9 WHERE id = 1")
        source18.execute("DELETE FROM orders WHERE id = 2")
        source18.execute("UPDATE orders SET id = 33 WHERE id = 3")
        source18.execute("DELETE FROM orders WHERE id = 1; UPDATE orders SET id = 1 WHERE id = 33")
        insert(source18, 4)
        await_true(names, is_current, "the changes")
        source18.execute("TRUNCATE orders")
        insert(source18, 5)
        await_true(names, is_current, "the truncated table")

    names = play("spark-to-delta.md", meanwhile)
    version = DeltaTable(str(tmp_path / "orders")).version()
    number = DeltaTable(str(tmp_path / "orders")).transaction_version(names["query"].id)
    names["spark"].sparkContext.setLocalProperty("sql.streaming.queryId", names["query"].id)
    names["merge"](names["spark"].createDataFrame([], names["changes"].schema), number)
    assert DeltaTable(str(tmp_path / "orders")).version() == version, "a batch that was merged is not merged again"


def test_join_changes_with_a_table(play: Play, spark: SparkSession, source18: Source, tmp_path: Path) -> None:
    source18.execute("INSERT INTO customers VALUES (10, 'ten')")

    def meanwhile(names: Names) -> None:
        source18.await_slot("orders_join")
        insert(source18, 1, 2)
        await_rows(names, 2)

    play("spark-join.md", meanwhile)
    rows = spark.read.parquet(str(tmp_path / "orders_named")).orderBy("id").collect()
    assert [(row.id, row["name"]) for row in rows] == [(1, "ten"), (2, None)]


def same_as_source(rows: list[Any], source: Source) -> bool:
    """Whether rows hold exactly what the table holds."""
    columns = ("id", "customer_id", "total", "note")
    return sorted(tuple(row[name] for name in columns) for row in rows) == sorted(
        source.execute("SELECT id, customer_id, total, note FROM orders")
    )
