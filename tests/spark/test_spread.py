"""The keys of a batch on Spark, as the driver takes them for sinks that only one process may write to."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.functions import spark_partition_id

from penstock.spark import spread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_driver_takes_keys_in_bounded_parts_however_many_an_index_has(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E63: a part is in the JVM as a whole; of one index there may be millions, of another one a few."""
    monkeypatch.setattr(spread, "_PART_KEYS", 1000)
    books = spark.range(0, 40_000, 1, 2).selectExpr("'books'", "concat('[\"', id % 20000, '\"]')", "0", "1")
    others = spark.createDataFrame([("authors", '["1"]', 0, 1), (None, None, 40_001, 1)], spread._RESOLVED_SQL)
    found = spread.Resolved(others.union(books), 2)
    sizes = [row["count"] for row in spread._distinct(found).groupBy(spark_partition_id()).count().collect()]
    assert max(sizes) < 1000, sizes
    taken: Counter[tuple[str, str]] = Counter()
    for index, keys in spread.keys_of(found):
        assert len(keys) <= spread._CHUNK_KEYS
        taken.update((index, part) for (part,) in keys)
    assert taken == Counter([("authors", "1"), *(("books", str(at)) for at in range(20_000))])
