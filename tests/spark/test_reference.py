"""A view as a frame: what micro-batches see of a table that changes meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock.spark
from penstock.errors import ConfigError
from penstock.model import ReplicationConfig
from penstock.reference import ReferenceCapture, ReferenceView
from penstock.spark.reference import ViewDesk
from tests.spark.conftest import Source
from tests.spark.test_recipes import Names, Play, await_rows, insert, play

__all__ = ["play"]  # the fixture


@pytest.fixture
def cities(source18: Source) -> Iterator[ReferenceView]:
    """A view of the table `city`."""
    source18.execute("CREATE TABLE city (id int PRIMARY KEY, name text, founded date, area numeric(9, 2))")
    source18.execute("INSERT INTO city VALUES (1, 'Rome', '0753-04-21', 1.50), (2, 'Oslo', NULL, NULL)")
    config = ReplicationConfig(slot="cities", publication="cities")
    with ReferenceCapture(config, source18.database.url) as capture, ReferenceView(capture.table("city")) as view:
        yield view


class Events:
    """A stream of files, a micro-batch for each."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.folder = folder / "events"
        self.folder.mkdir()
        self.frame = (
            spark.readStream.schema("n int, city_id int").option("maxFilesPerTrigger", 1).json(str(self.folder))
        )
        self._files = 0

    def send(self, *rows: tuple[int, int | None]) -> None:
        lines = [json.dumps({"n": n, "city_id": city}) for n, city in rows]
        hidden = self.folder / f".{self._files}"
        hidden.write_text("\n".join(lines))
        hidden.rename(self.folder / f"{self._files}.json")
        self._files += 1


@pytest.mark.smoke
def test_each_micro_batch_sees_one_fresh_version(
    spark: SparkSession, source18: Source, cities: ReferenceView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E97: one version a micro-batch, changes visible to the next, NULL keys match nothing, a left join keeps rows.

    The frame is read twice in each micro-batch, and its table is changed each time that it was asked for.
    """
    asked, original = list[str](), ViewDesk.version

    def version(desk: ViewDesk, run: str) -> pa.Table:
        rows = original(desk, run)
        asked.append(run)
        source18.execute("UPDATE city SET name = name || '!' WHERE id = 1")
        return rows

    monkeypatch.setattr(ViewDesk, "version", version)
    events, seen = Events(spark, tmp_path), dict[int, list[tuple[Any, ...]]]()

    def keep(batch: DataFrame, number: int) -> None:
        seen[number] = sorted(tuple(row) for row in batch.select("n", "name", "again").collect())

    frame = penstock.spark.reference(spark, cities).select("id", "name")
    other = frame.where("id > 0").withColumnsRenamed({"id": "other", "name": "again"})
    joined = events.frame.join(F.broadcast(frame), F.col("city_id") == F.col("id"), "left")
    joined = joined.join(F.broadcast(other), F.col("city_id") == F.col("other"), "left")
    query = joined.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        events.send((1, 1), (2, None), (3, 9))
        query.processAllAvailable()
        source18.execute("INSERT INTO city VALUES (9, 'Bern'), (10, NULL)")
        events.send((4, 1), (5, 9), (6, 10))
        query.processAllAvailable()
    finally:
        query.stop()
    assert asked == [f"{query.id}/0/{query.runId}"] * 2 + [f"{query.id}/1/{query.runId}"] * 2
    assert seen == {
        0: [(1, "Rome", "Rome"), (2, None, None), (3, None, None)],
        1: [(4, "Rome!!", "Rome!!"), (5, "Bern", "Bern"), (6, None, None)],
    }


def test_a_micro_batch_that_is_run_again_by_a_restarted_query_sees_what_was_mended(
    spark: SparkSession, source18: Source, cities: ReferenceView, tmp_path: Path
) -> None:
    """E97: it is the same micro-batch of the same query, and another run; a job group of one's own parts no batch."""
    events, seen = Events(spark, tmp_path), list[list[str]]()

    def keep(batch: DataFrame, number: int) -> None:
        first = [row["name"] for row in batch.collect()]
        spark.sparkContext.setJobGroup("mine", "a part of the batch")
        source18.execute("UPDATE city SET name = name || '!' WHERE id = 1")
        seen.append(first + [row["name"] for row in batch.collect()])
        if len(seen) == 1:
            raise ValueError("the row is wrong")

    joined = events.frame.join(penstock.spark.reference(spark, cities), F.col("city_id") == F.col("id"))
    writer = joined.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "c"))
    events.send((1, 1))
    with pytest.raises(PySparkException, match="the row is wrong"):
        writer.start().awaitTermination(60)
    source18.execute("UPDATE city SET name = 'Roma' WHERE id = 1")
    query = writer.start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert seen == [["Rome", "Rome"], ["Roma", "Roma"]]


def test_a_frame_in_a_batch_query_is_of_the_moment_of_each_execution(
    spark: SparkSession, source18: Source, cities: ReferenceView, capfd: pytest.CaptureFixture[str]
) -> None:
    """E97: every type as the table has it, in several parts, read anew each time; the key shows in no plan."""
    with pytest.raises(ConfigError, match="at least 1"):
        penstock.spark.reference(spark, cities, partitions=0)
    frame = penstock.spark.reference(spark, cities, partitions=3)
    assert frame.dtypes == [("id", "int"), ("name", "string"), ("founded", "date"), ("area", "decimal(9,2)")]
    ((desk,),) = [[one.__self__ for one in cities._on_close]]  # type: ignore[attr-defined]
    frame.explain(True)
    assert desk.place.key.hex() not in capfd.readouterr().out
    assert sorted(tuple(row) for row in frame.collect()) == sorted(source18.execute("SELECT * FROM city"))
    source18.execute("UPDATE city SET name = 'Roma' WHERE id = 1")
    source18.execute("INSERT INTO city SELECT n, 'x' FROM generate_series(10, 999) AS n")
    assert frame.where("name = 'Roma'").count() == 1
    assert (frame.count(), frame.select("id").distinct().count()) == (992, 992)
    source18.execute("ALTER TABLE city DROP COLUMN area")
    source18.execute("INSERT INTO city VALUES (3, 'Bern')")
    assert frame.count() == 992, "a view that cannot go on is shown as it was"
    cities.refresh()
    with pytest.raises(PySparkException, match="are not those that the frame was made with"):
        frame.count()
    assert penstock.spark.reference(spark, cities).count() == 993
    cities.close()
    with pytest.raises(PySparkException, match="does not answer"):
        frame.count()


def test_join_a_stream_with_a_table_that_changes(
    play: Play, spark: SparkSession, source18: Source, tmp_path: Path
) -> None:
    """E97: the page's own code, with a customer who is renamed between two orders."""
    source18.execute("INSERT INTO customers VALUES (10, 'ten'), (20, 'twenty')")

    def meanwhile(names: Names) -> None:
        source18.await_slot("orders_named")
        insert(source18, 1)
        await_rows(names, 1)
        source18.execute("UPDATE customers SET name = 'TWENTY' WHERE id = 20")
        insert(source18, 2, 3)
        await_rows(names, 3)

    play("spark-reference-join.md", meanwhile)
    rows = spark.read.parquet(str(tmp_path / "orders_named")).orderBy("id").collect()
    assert [(row.id, row["name"]) for row in rows] == [(1, "ten"), (2, "TWENTY"), (3, None)]
