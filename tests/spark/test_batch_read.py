"""`spark.read.format("penstock")`: a table as it stands, in parallel, in one moment."""

from __future__ import annotations

import datetime
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from penstock.spark.settings import LOCAL_FOLDER
from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def numbers(database: Database, count: int = 5000) -> None:
    database.execute(f"CREATE TABLE t AS SELECT n, repeat('x', 100) AS pad FROM generate_series(1, {count}) n")


def listed(frame: DataFrame) -> list[int]:
    return sorted(row.n for row in frame.select("n").collect())


def held(database: Database) -> int:
    """How many transactions are open and idle."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'penstock' AND state = 'idle in transaction'"
    )
    return int(database.execute(query)[0][0])


def holders_sockets() -> list[Any]:
    """Where the process that keeps the snapshots of this run's session listens."""
    ours = os.environ[LOCAL_FOLDER]
    running = psutil.process_iter(["cmdline", "environ"])  # None of those that ended meanwhile
    holders = [one for one in running if "penstock.postgres.holder" in str(one.info["cmdline"])]
    found = [one for one in holders if (one.info["environ"] or {}).get(LOCAL_FOLDER) == ours]
    return [sock for one in found for sock in one.net_connections() if sock.status == psutil.CONN_LISTEN]


def test_every_row_comes_once_by_blocks_by_key_and_in_one_part(load: Callable[..., DataFrame], db18: Database) -> None:
    """E53: no primary key is needed."""
    numbers(db18)
    for options, parts in (({}, 1), ({"numPartitions": 3}, 3), ({"numPartitions": 3, "partitionColumn": "n"}, 3)):
        frame = load(**options)
        assert listed(frame) == list(range(1, 5001))
        sizes = [row["count"] for row in frame.groupBy(f.spark_partition_id()).count().collect()]
        assert len(sizes) == parts and max(sizes) < 1.5 * 5000 / parts
    assert {one.laddr.ip for one in holders_sockets()} == {"127.0.0.1"}, "a local session is nobody else's to reach"


def test_types_are_those_of_the_stream(load: Callable[..., DataFrame], db18: Database) -> None:
    """E4"""
    db18.execute(
        "CREATE TABLE t (a int2, b int8, c float4, d numeric(10,2), e numeric, f text, g char(4), h bytea, i date,"
        " j timestamp, k timestamptz, l uuid, m jsonb, n int[], o bool)"
    )
    db18.execute(
        "INSERT INTO t VALUES (1, 2, 0.5, 1.50, 1e-20, 'ä\\t\\n\\\\', 'ab', '\\x00ff', '2024-02-29',"
        " '2024-01-01 00:00:00.5', '2024-01-01 12:00:00+02', '0A0b0c0d-0000-4000-8000-ffffffffffff',"
        " '{\"k\": [1, null]}', '{1,NULL}', true)"
    )
    db18.execute("INSERT INTO t (a) VALUES (NULL)")
    frame = load()
    types = [kind for _, kind in frame.dtypes]
    assert types == [
        "smallint", "bigint", "float", "decimal(10,2)", "string", "string", "string", "binary", "date", "timestamp_ntz",
        "timestamp", "string", "variant", "string", "boolean",
    ]  # fmt: skip
    row, nothing = frame.withColumn("m", f.col("m").cast("string")).orderBy(f.col("a").isNull()).collect()
    noon = datetime.datetime(2024, 1, 1, 10, tzinfo=datetime.UTC).astimezone().replace(tzinfo=None)
    assert list(row)[:3] == [1, 2, 0.5]
    assert [str(row.d), row.e, row.f, row.g, bytes(row.h)] == [
        "1.50",
        "0.00000000000000000001",
        "ä\\t\\n\\\\",
        "ab  ",
        b"\0\xff",
    ]
    assert [row.i, row.j] == [datetime.date(2024, 2, 29), datetime.datetime(2024, 1, 1, 0, 0, 0, 500000)]
    assert row.k == noon
    assert [row.l, row.m, row.n, row.o] == ["0a0b0c0d-0000-4000-8000-ffffffffffff", '{"k":[1,null]}', "{1,NULL}", True]
    assert set(nothing) == {None}
    assert load(jsonColumns="string").select("m").orderBy("a").collect()[1].m == '{"k": [1, null]}'


def test_an_empty_table_has_its_types_and_no_rows(load: Callable[..., DataFrame], db18: Database) -> None:
    """E53"""
    db18.execute("CREATE TABLE t (n int PRIMARY KEY, v numeric(5,2))")
    frame = load(numPartitions=8)
    assert frame.collect() == []
    assert frame.dtypes == [("n", "int"), ("v", "decimal(5,2)")]


def test_columns_and_a_condition_are_read_by_postgres(load: Callable[..., DataFrame], db18: Database) -> None:
    numbers(db18)
    frame = load(columns="pad, n", where="n % 10 = 0 -- only some", numPartitions=2)
    assert frame.columns == ["pad", "n"]
    assert listed(frame) == list(range(10, 5001, 10))


def test_tasks_see_one_moment_while_rows_change(load: Callable[..., DataFrame], db18: Database) -> None:
    """E50: the total of all accounts never changes, and each task reads only a part of them."""
    db18.execute("CREATE TABLE t AS SELECT n, 100 AS amount, repeat('x', 500) AS pad FROM generate_series(1, 4000) n")
    frame, stop = load(numPartitions=8), threading.Event()
    writer = threading.Thread(target=_move_money, args=(db18.url, stop))
    writer.start()
    try:
        for _ in range(3):
            assert frame.agg(f.count("n"), f.sum("amount")).collect()[0] == (4000, 400_000)
    finally:
        stop.set()
        writer.join()


def _move_money(url: str, stop: threading.Event) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        while not stop.is_set():
            connection.execute(
                "WITH two AS (SELECT ceil(random() * 4000)::int AS a, ceil(random() * 4000)::int AS b)"
                " UPDATE t SET amount = amount + (n = a)::int - (n = b)::int FROM two WHERE n IN (a, b) AND a <> b"
            )


def test_a_task_that_starts_late_reads_the_moment_of_the_first(load: Callable[..., DataFrame], db18: Database) -> None:
    """E50, E55: one part after the other, rows changing in between; then nothing is held open."""
    numbers(db18)
    rows = load(numPartitions=4).select("n").toLocalIterator()  # a job for each part, when it is asked for
    first = next(rows).n
    db18.execute("UPDATE t SET n = n + 10000")
    db18.execute("DELETE FROM t WHERE n > 14000")
    wait_until(lambda: held(db18) == 1, what="the first task's connection to end")
    assert sorted([first, *(row.n for row in rows)]) == list(range(1, 5001))
    wait_until(lambda: held(db18) == 0, 20, "the snapshot to end")


def test_each_use_of_a_frame_reads_the_table_anew(load: Callable[..., DataFrame], db18: Database) -> None:
    """As with every other source; the frame was planned once."""
    numbers(db18)
    frame = load(numPartitions=2)
    assert frame.count() == 5000
    wait_until(lambda: held(db18) == 0, 20, "the snapshot to end")
    db18.execute("DELETE FROM t WHERE n > 300")
    assert frame.count() == 300
    assert frame.union(frame).count() == 600
    assert frame.join(frame.withColumnRenamed("pad", "other"), "n").count() == 300
    assert frame.rdd.count() == 300


def test_what_is_wrong_is_one_sentence(load: Callable[..., DataFrame], db18: Database, spark: SparkSession) -> None:
    db18.execute("CREATE TABLE t (n int)")
    for table, options, told in (
        ("absent", {}, "table public.absent does not exist in the database"),
        ("t", {"columns": "nn"}, "table public.t has no column 'nn'"),
        ("t", {"where": "n >> "}, "the condition in where is not understood at its end"),
        ("t", {"partitionColumn": "m"}, "table public.t has no column 'm'"),
        ("t", {"numPartitions": 0}, "numPartitions is '0'"),
    ):
        with pytest.raises(PySparkException) as caught:
            load(table, **options).collect()
        assert told in str(caught.value)
    with pytest.raises(PySparkException, match=r"column n of public.t is int, and the schema says string"):
        spark.read.format("penstock").schema("n string").options(url=db18.url, table="t").load().collect()


def test_row_level_security_is_an_error_never_fewer_rows(load: Callable[..., DataFrame], db18: Database) -> None:
    """E74"""
    numbers(db18, 10)
    url = db18.role("sees_some_rows", "secret word")
    db18.execute("GRANT SELECT ON t TO sees_some_rows")
    db18.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    with pytest.raises(PySparkException, match="row-level security") as caught:
        load(url=url).collect()
    assert "secret word" not in str(caught.value)


def test_passwords_are_nowhere_to_be_seen(load: Callable[..., DataFrame], db18: Database) -> None:
    """E103: not in plans, not in errors."""
    numbers(db18)
    url = db18.role("careful", "a very secret word")
    db18.execute("GRANT SELECT ON t TO careful")
    frame = load(url=url, numPartitions=2)
    assert frame.count() == 5000
    assert "secret word" not in frame._jdf.queryExecution().toString()
    db18.execute("REVOKE SELECT ON t FROM careful")
    wait_until(lambda: held(db18) == 0, 20, "the snapshot to end")
    with pytest.raises(PySparkException, match="permission denied") as caught:
        frame.count()
    assert "secret word" not in str(caught.value)
