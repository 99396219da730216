"""The check for left-overs sees into Spark: what a test leaves running there is found, named and stopped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader

from penstock.postgres.processes import is_alive, mark
from tests.fixtures.spark import Engine


class Idle(DataSource):
    """A stream of nothing."""

    @classmethod
    def name(cls) -> str:
        return "idle"

    def schema(self) -> str:
        return "n bigint"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return IdleReader()


class IdleReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:
        return {}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        return {}

    def partitions(self, start: Any, end: Any) -> list[Any]:
        return []

    def read(self, partition: Any) -> Iterator[tuple[int]]:
        return iter(())


def test_a_query_left_running_is_named_and_ends_with_its_reader(
    spark: SparkSession, engine: Engine, tmp_path: Path
) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's workers cannot import the tests
    spark.dataSource.register(Idle)
    rows = spark.readStream.format("idle").load().writeStream.queryName("forgotten").format("noop")
    rows.option("checkpointLocation", str(tmp_path)).start().processAllAvailable()
    (reader,) = engine.readers()
    watched = mark(reader.pid)
    assert "pyspark.sql.streaming.python_streaming_source_runner" in reader.cmdline()
    assert engine.clear() == ["streaming query forgotten"]
    assert not is_alive(watched)
    assert engine.clear() == []
