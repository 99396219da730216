"""The README's Spark example does what it shows: a stream that begins with a snapshot, and a batch read."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark.sql import SparkSession

from tests.fixtures.waiting import wait_until
from tests.spark.conftest import Source

README = Path(__file__).parents[2] / "README.md"


def test_the_stream_of_the_readme_holds_what_was_there_and_what_came(
    spark: SparkSession, source18: Source, tmp_path: Path
) -> None:
    source18.execute("CREATE TABLE orders (id int PRIMARY KEY, total numeric(9, 2))")
    source18.execute("INSERT INTO orders VALUES (1, 9.50)")
    code, _ = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    code = code.replace("postgresql://penstock@localhost/shop", source18.database.url)
    names: dict[str, object] = {}
    exec(compile(code.replace('"/data/', f'"{tmp_path}/'), "README.md", "exec"), names)
    (query,) = spark.streams.active
    try:
        source18.await_slot("orders_lake")
        source18.execute("UPDATE orders SET total = 8 WHERE id = 1")

        def done() -> bool:
            return sum(batch.numInputRows for batch in query.recentProgress) == 2

        wait_until(lambda: done() or not query.isActive, 60, "the snapshot and a change")
        assert done(), query.exception()
        rows = spark.read.parquet(str(tmp_path / "orders_changes")).orderBy("_commit_lsn", "_seq").collect()
        assert [row._change_type for row in rows] == ["insert", "update_postimage"]
        assert [tuple(map(str, row)) for row in names["now"].collect()] == [("1", "8.00")]  # type: ignore[attr-defined]
    finally:
        query.stop()
