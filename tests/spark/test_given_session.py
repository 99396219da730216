"""A session that somebody else built, with settings of their own taste, reads the same rows as ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.databases import Database
from tests.fixtures.spark import Engine
from tests.fixtures.streams import Rows, Streamed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASTES = {
    "elsewhere, lax, in small pieces": {
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.storeAssignmentPolicy": "LEGACY",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    },
    "without zones, strict, with large texts, pushing": {
        "spark.sql.session.timeZone": "+05:45",
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.adaptive.enabled": "true",
    },
}
TABLE = """CREATE TABLE t (id int PRIMARY KEY, "Id" text, at timestamptz, plain timestamp, d date, j jsonb,
    n numeric(8,2), y bytea, tags text[], u uuid, f float8)"""
ROWS = """INSERT INTO t SELECT n, 'v' || n, timestamptz '2024-03-10 07:30:00.123456Z' + n * interval '1 hour',
    timestamp '2024-03-10 02:30' + n * interval '1 hour', date '1899-12-31' + n, jsonb_build_object('a', n), n / 4.0,
    decode('00ff', 'hex'), ARRAY['a', NULL, n::text], '00000000-0000-0000-0000-000000000001', 'NaN'
    FROM generate_series({}, {}) n"""


@pytest.fixture
def given(db18: Database, spark: SparkSession, engine: Engine, tmp_path: Path) -> Iterator[Streamed]:
    """Queries in a session beside the run's, whose settings a test may change."""
    found = Streamed(db18, "given", spark.newSession(), tmp_path)
    yield found
    # A batch read's snapshot is kept for a moment, for tasks that Spark runs again.
    db18.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'penstock'")
    found.close()


VALUES = ("micros", "shown", "d", "json", "n", "y", "tags", "u", "f")  # as no session shows them differently
SELECT = ("*", "unix_micros(at) AS micros", "cast(plain AS string) AS shown", "to_json(j) AS json")
EXPECTED = """SELECT id, "Id", (extract(epoch FROM at) * 1000000)::bigint, plain::text, d, replace(j::text, ' ', ''), n,
    y, tags::text, u, 'nan' FROM t ORDER BY id"""


def told(rows: Rows) -> list[tuple[str, ...]]:
    """The rows in order of their keys."""
    return [tuple(str(row[name]) for name in ("id", "Id", *VALUES)) for row in sorted(rows, key=lambda row: row["id"])]


@pytest.mark.parametrize("taste", TASTES)
def test_a_given_session_reads_the_same_rows_whatever_its_settings(given: Streamed, taste: str) -> None:
    """E4: in a batch read and in a stream, of each type that a setting of Spark's could bend."""
    session = given.spark
    for name, value in {"spark.sql.caseSensitive": "true", **TASTES[taste]}.items():
        session.conf.set(name, value)
    given.execute(TABLE)
    given.available_now(table="t")
    given.execute(ROWS.format(1, 40))
    frame = given.load(table="t").selectExpr(*SELECT)
    streamed = given.start(frame, trigger={"availableNow": True}).await_end().rows
    read = session.read.format("penstock").options(url=given.database.url, table="t", numPartitions="2").load()
    found = [row.asDict(recursive=True) for row in read.where("id > 0").selectExpr(*SELECT).collect()]
    expected = [tuple(map(str, row)) for row in given.execute(EXPECTED)]
    assert len(expected) == 40
    assert told(found) == expected
    assert told(streamed) == expected
