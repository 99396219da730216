"""The life of a stream in Spark: what it makes, how it follows, what it tells of itself, and how it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.model import Lsn
from penstock.spark import health
from tests.fixtures.databases import Database
from tests.fixtures.endings import await_end
from tests.fixtures.programs import environment
from tests.fixtures.spark import Engine
from tests.fixtures.standins import StandIn
from tests.fixtures.streams import Streamed, reader_of
from tests.fixtures.waiting import wait_until

LOOK = """
import dataclasses, json
from penstock.spark import health
print(json.dumps([dataclasses.asdict(one) for one in health.readers()]))
"""


def readers_seen_by_another_process() -> list[dict[str, Any]]:
    done = subprocess.run([sys.executable, "-c", LOOK], env=environment(), capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


@pytest.mark.smoke
def test_a_stream_makes_what_it_needs_follows_and_ends_without_a_trace(stream: Streamed, engine: Engine) -> None:
    """E20, E40: publication before slot; the slot follows what is done; health is seen from outside while it runs."""
    stream.execute("CREATE TABLE t (id bigint PRIMARY KEY)")
    running = stream.start(table="t")
    stream.await_streaming()
    assert stream.execute("SELECT pubname FROM pg_publication") == [(stream.slot,)]
    for one in range(5):
        stream.execute("INSERT INTO t VALUES (%s)", one)
        running.await_rows(one + 1)
    assert [row["id"] for row in running.rows] == [*range(5)]
    last = running.rows[-1]["_commit_lsn"]
    wait_until(lambda: stream.confirmed() >= last, what="the slot to follow, though nothing comes after it")

    def acknowledged() -> dict[str, Any] | None:
        found = next(iter(readers_seen_by_another_process()), None)
        if found is None:
            return None  # its first report is not written yet
        return found if Lsn.parse(found["acknowledged"]) >= last and Lsn.parse(found["newest"]) >= last else None

    seen = wait_until(acknowledged, 20, "the reader's word")
    assert (seen["slot"], seen["pid"], seen["state"]) == (stream.slot, reader_of(engine).pid, "streaming")
    assert seen["server"] == f"postgres@127.0.0.1:{stream.database.server.port}/{stream.database.name}"
    progress = running.query.lastProgress
    assert progress is not None
    source = progress["sources"][0]
    assert Lsn.parse(json.loads(source["latestOffset"])["lsn"]) >= last and source["numInputRows"] == 1
    running.stop()
    assert health.readers() == []
    assert stream.execute("SELECT active FROM pg_replication_slots") == [(False,)]


def test_an_idle_query_costs_nothing_and_a_change_wakes_it(stream: Streamed, engine: Engine) -> None:
    """E23, E101: while others write, no batch runs and the reader does not spin."""
    stream.execute("CREATE TABLE t (id bigint PRIMARY KEY)")
    running = stream.start(table="t")
    stream.await_streaming()
    stream.execute("CREATE TABLE elsewhere AS SELECT generate_series(1, 1000)")
    reader = reader_of(engine)
    wait_until(lambda: len(running.calls) == 1, 60, "the first, empty batch")
    polls = len(running.calls), reader.num_ctx_switches().voluntary
    ((began,),) = stream.execute("SELECT clock_timestamp()")
    wait_until(
        lambda: stream.execute("SELECT clock_timestamp() > %s + interval '3 s'", began) == [(True,)], what="3 seconds"
    )
    assert len(running.calls) == polls[0]
    assert reader.num_ctx_switches().voluntary - polls[1] < 300, "some ten wake-ups a second, not hundreds"
    stream.execute("INSERT INTO t VALUES (1)")
    running.await_rows(1)
    running.stop()


def test_a_killed_reader_leaves_no_word_and_no_hold(stream: Streamed, engine: Engine) -> None:
    """E21, E102: no report that counts, and the next query resumes."""
    stream.execute("CREATE TABLE t (id bigint PRIMARY KEY)")
    running = stream.start(table="t")
    stream.await_streaming()
    stream.execute("INSERT INTO t VALUES (1)")
    running.await_rows(1)
    reader = reader_of(engine)
    wait_until(lambda: [one.pid for one in health.readers()] == [reader.pid], what="its report")
    reader.kill()
    running.await_failure()
    await_end([reader])
    assert health.readers() == []
    stream.await_free()
    stream.execute("INSERT INTO t VALUES (2)")
    again = stream.available_now(table="t")
    assert [row["id"] for row in again.rows][-1:] == [2]


def refusal(spark: SparkSession, **options: str) -> str:
    """What Spark says to a stream with these options, before it starts or soon after."""
    with pytest.raises(PySparkException) as caught:
        spark.readStream.format("penstock").options(**options).load()
    return str(caught.value)


def test_wrong_options_are_one_sentence_inside_sparks_error(spark: SparkSession, db18: Database) -> None:
    url = db18.url
    said = refusal(spark, url=url, table="t", slt="x")
    assert "the penstock source has no option 'slt'" in said and "Did you mean slot?" in said
    assert "no table is given" in refusal(spark, url=url, slot="s")
    assert "table public.nowhere does not exist in the database" in refusal(spark, url=url, table="nowhere", slot="s")
    assert "maxRowsPerTrigger is 'many'" in refusal(spark, url=url, table="t", slot="s", maxRowsPerTrigger="many")


def test_a_stream_without_a_slot_says_so(stream: Streamed) -> None:
    stream.execute("CREATE TABLE t (id int PRIMARY KEY)")
    assert "a stream needs a slot" in stream.start(table="t", slot=None).await_failure()


def test_a_wrong_password_is_one_sentence_inside_sparks_error(
    spark: SparkSession, stand_in: Callable[..., StandIn]
) -> None:
    """E34, E103: and does not show the password."""
    server = stand_in(refuses="28P01")
    said = refusal(spark, url=server.url("ada"), password="s3cr3t-word", table="t", slot="s")
    assert "password" in said and "ada" in said and "28P01" not in said.splitlines()[0]
    assert "s3cr3t-word" not in said


def test_a_server_that_is_not_there_is_one_sentence(spark: SparkSession) -> None:
    said = refusal(spark, url="postgresql://ada@127.0.0.1:1/d", table="t", slot="s")
    assert "127.0.0.1" in said and "UnavailableError" in said
