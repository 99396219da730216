"""Progress of a query as plain values, from real queries: of ours, of Spark's own sources, of one that fails."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from penstock.model import Lsn
from penstock.spark.progress import (
    Progress,
    ProgressListener,
    SourceProgress,
    Terminated,
    parse_progress,
    shorten_error,
)
from tests.fixtures.streams import Streamed
from tests.fixtures.waiting import wait_until


class Failing(DataSource):
    """Two batches of a row each, then an error of ours."""

    @classmethod
    def name(cls) -> str:
        return "failing"

    def schema(self) -> str:
        return "n bigint"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return FailingReader()


class FailingReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:
        return {"lsn": "0/0"}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        n = int(start["lsn"][2:])
        if n == 2:
            from penstock.errors import SlotMissingError

            raise SlotMissingError("the slot is gone", hint="Make it again.")
        return {"lsn": f"0/{n + 1}"}

    def reportLatestOffset(self) -> dict[str, Any]:
        return {"lsn": "0/10"}

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return [InputPartition(int(end["lsn"][2:]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield (partition.value,)


@contextmanager
def listening(spark: SparkSession, *callbacks: Any) -> Iterator[None]:
    listener = ProgressListener(*callbacks)
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        spark.streams.removeListener(listener)


@pytest.mark.smoke
def test_each_batch_and_the_end_arrive_as_plain_values(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(_by_value(Failing))
    batches: list[Progress] = []
    ends: list[Terminated] = []
    with listening(spark, batches.append, ends.append):
        stream = spark.readStream.format("failing").load().writeStream.queryName("failing").format("noop")
        query = stream.option("checkpointLocation", str(tmp_path)).start()
        wait_until(lambda: ends, 60, "the query to fail")
    assert [batch.rows for batch in batches] == [1, 1]
    first, second = batches
    assert (first.batch_id, second.batch_id) == (0, 1)
    assert second.query_id == query.id and second.run_id == query.runId and second.name == "failing"
    (source,) = second.sources
    assert (source.start, source.end, source.latest) == ({"lsn": "0/1"}, {"lsn": "0/2"}, {"lsn": "0/10"})
    assert source.lag_bytes == second.lag_bytes == 14, "0/10 is sixteen"
    assert second.durations_ms["addBatch"] <= second.durations_ms["triggerExecution"]
    assert pickle.loads(pickle.dumps(batches)) == batches
    (end,) = ends
    assert (end.query_id, end.run_id) == (query.id, query.runId)
    assert end.error == "penstock.errors.SlotMissingError: the slot is gone\nMake it again."
    assert end.error_class == "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR"


def test_a_stream_of_ours_tells_how_far_it_is_and_what_ended_it(stream: Streamed) -> None:
    """Offsets that Spark logged, the lag to the server's end, and the one sentence of a failure."""
    batches: list[Progress] = []
    ends: list[Terminated] = []
    stream.execute("CREATE TABLE t (id int PRIMARY KEY)")
    first = stream.available_now(table="t")

    def later() -> list[Terminated]:
        """Spark may tell of the first run's end when somebody listens to the second one already."""
        return [end for end in ends if end.run_id != first.query.runId]

    with listening(stream.spark, batches.append, ends.append):
        running = stream.start(table="t")
        stream.await_streaming()
        stream.execute("INSERT INTO t VALUES (1), (2)")
        running.await_rows(2)
        batch = wait_until(lambda: next((one for one in batches if one.rows), None), 60, "its report")
        (row, _) = running.rows
        (source,) = batch.sources
        assert (batch.rows, source.rows, batch.query_id) == (2, 2, running.query.id)
        assert source.start and source.end and Lsn.parse(source.start["lsn"]) < Lsn.parse(source.end["lsn"])
        assert Lsn.parse(source.end["lsn"]) == row["_commit_lsn"]
        assert source.end["slot"] == stream.slot
        assert batch.lag_bytes is not None and 0 <= batch.lag_bytes < 1 << 20
        running.stop()
        wait_until(later, 60, "the end")
        stream.drop()
        stream.start(table="t").await_failure()
        wait_until(lambda: len(later()) > 1, 60, "the failure")
    stopped, failed = later()
    assert stopped.error is None and failed.error is not None
    assert failed.error.startswith(f"penstock.errors.SlotMissingError: slot {stream.slot} is gone, but the checkpoint")


def test_an_error_in_a_callback_is_logged_and_harms_neither_the_query_nor_the_next_report(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []
    ends: list[Terminated] = []

    def fail(batch: Progress) -> None:
        seen.append(batch.batch_id)
        raise ValueError("mine")

    with listening(spark, fail, ends.append):
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
        wait_until(lambda: len(seen) > 2, 60, "three reports")
        assert query.isActive
        query.stop()
        wait_until(lambda: ends, 60, "the end")
    assert ends[0].error is None and ends[0].error_class is None
    assert "a callback for a query's progress failed" in caplog.messages


REPORT = {
    "id": "q", "runId": "r", "name": None, "timestamp": "2026-01-01T00:00:00.000Z", "batchId": 3, "batchDuration": 12,
    "numInputRows": 5, "inputRowsPerSecond": 2.5, "durationMs": {"addBatch": 7},
    "sources": [
        {"description": "ours", "endOffset": {"lsn": "0/7"}, "latestOffset": '{"lsn": "0/5"}', "numInputRows": 5},
        {"description": "plain", "startOffset": 1, "endOffset": "two", "latestOffset": None, "numInputRows": 0},
    ],
}  # fmt: skip


def test_a_report_with_gaps_and_foreign_offsets_is_read() -> None:
    progress = parse_progress(json.dumps(REPORT))
    assert progress == Progress(
        "q", "r", None, "2026-01-01T00:00:00.000Z", 3, 5, 2.5, 0.0, 12, {"addBatch": 7},
        (
            SourceProgress("ours", None, {"lsn": "0/7"}, {"lsn": "0/5"}, 5, 0.0, 0.0),
            SourceProgress("plain", {"value": 1}, {"value": "two"}, None, 0, 0.0, 0.0),
        ),
    )  # fmt: skip
    assert progress.lag_bytes == 0, "the source reported before the batch's end was known"
    assert progress.sources[1].lag_bytes is None


FRAMES = '  File "a.py", line 1, in main\n    work()\n    ^^^^^^\n'
TRACEBACK = f"Traceback (most recent call last):\n{FRAMES}"


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("java.lang.Error: no room\n\tat a.b(c:1)\n\tat d.e(f:2)\n", "java.lang.Error: no room"),
        (f"[X] failed: {TRACEBACK}ValueError: a\n\nb\n SQLSTATE: 38000\n\tat a", "ValueError: a\n\nb"),
        (
            f"[X] {TRACEBACK}penstock.errors.DiskError: full\nMake room:\n  df\n\n"
            f"During handling of the above exception, another exception occurred:\n\n"
            f"{TRACEBACK}UnboundLocalError: reader\n SQLSTATE: 38000 SQLSTATE: XXKST",
            "penstock.errors.DiskError: full\nMake room:\n  df",
        ),
        (
            f"{TRACEBACK}KeyError: 1\n\nThe above exception was the direct cause of the following exception:\n\n"
            f"{TRACEBACK}RuntimeError: 2\n=== Streaming Query ===\nIdentifier",
            "RuntimeError: 2",
        ),
    ],
)  # fmt: skip
def test_an_error_is_told_without_frames(text: str, short: str) -> None:
    assert shorten_error(text) == short


def _by_value(source: type[DataSource]) -> type[DataSource]:
    """Send the class itself to Spark's workers, which cannot import the tests."""
    import sys

    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return source
