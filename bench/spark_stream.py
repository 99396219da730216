"""How soon a committed row is in `foreachBatch`, and how fast the stream drains a backlog beside `pg_recvlogical`.

Latency is measured from just before a row's transaction is sent to the row in the hands of `foreachBatch`'s function,
in a session by `penstock.spark.session` and in one with Spark's own settings. The backlog is drained from copies of
one slot, in turn, by `pg_recvlogical -f /dev/null` and by a query that ends when it has caught up (its start counts);
figures are medians of ratios within a round, so that a noisy machine counts for both. Before speed, results: counts
and checksums of every column must equal what the server itself computes.

    python bench/spark_stream.py [--rows 2000000] [--rounds 3] [--samples 300] [--warmup 600]

The last line is one JSON object. Each measurement runs in a process of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

import penstock.spark
from penstock.demo.server import Server, find_binaries

COLUMNS = """id bigint PRIMARY KEY, a int, b bigint, c text, d timestamptz, e numeric(12,2), f boolean, g uuid,
             h jsonb, i double precision"""
FILL = """INSERT INTO event SELECT n, n % 100, n * 17, 'text value number ' || n || repeat('x', (n % 80)::int), now(),
          (n % 10000) / 100.0, n % 2 = 0, gen_random_uuid(), jsonb_build_object('k', n, 'name', 'n' || n), n / 7.0
          FROM generate_series({first}::bigint, {last}::bigint) n"""
# The same sums in the server's words and in Spark's; a checksum stands for the bytes of a text.
SUMS = {
    "rows": ("count(*)", "count(*)"),
    "id": ("sum(id)", "sum(id)"),
    "a": ("sum(a)", "sum(a)"),
    "b": ("sum(b)", "sum(b)"),
    "c": ("sum(crc32(c::bytea))", "sum(crc32(c))"),
    "d": ("sum((extract(epoch FROM d) * 1000000)::bigint % 1000000007)", "sum(unix_micros(d) % 1000000007)"),
    "e": ("sum(e)", "sum(e)"),
    "f": ("sum(f::int)", "sum(int(f))"),
    "g": ("sum(crc32(g::text::bytea))", "sum(crc32(g))"),
    "h": ("sum((h->>'k')::bigint + length(h->>'name'))", "sum(h:k::bigint + length(h:name::string))"),
    "i": ("sum(round(i)::bigint)", "sum(bigint(round(i)))"),
}
GOALS = {"latency_ms_p50": "≤ 80", "latency_ms_p99": "", "latency_ms_p50_defaults": "", "backlog_ratio": "≥ 0.8"}
SETTINGS = {"max_wal_size": "8GB", "checkpoint_timeout": "1h"}


def session(tuned: bool) -> SparkSession:
    """A session on two cores: ours, or Spark's own settings with what a virtual environment needs."""
    if tuned:
        return penstock.spark.session("bench", master="local[2]")
    from penstock.spark.java import find_java, home_for_spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["JAVA_HOME"] = str(home_for_spark(find_java(), Path(tempfile.mkdtemp(prefix="penstock-bench-"))))
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    return SparkSession.builder.master("local[2]").config(map=dict(quiet)).getOrCreate()


def latency(tuned: bool, warmup: int, samples: int) -> dict[str, Any]:
    """Milliseconds from a single-row transaction to its row in `foreachBatch`, ten transactions a second."""
    found: list[float] = []

    def take(batch: DataFrame, number: int) -> None:
        sent = batch.toArrow()["sent_ns"].to_pylist()
        now = time.monotonic_ns()
        found.extend((now - one) / 1e6 for one in sent)

    spark = session(tuned)
    with Server(find_binaries()) as server, tempfile.TemporaryDirectory() as folder:
        with psycopg.connect(server.url(), autocommit=True) as sql:
            sql.execute("CREATE TABLE moment (sent_ns bigint PRIMARY KEY)")
            stream = spark.readStream.format("penstock").options(url=server.url(), table="moment", slot="moment").load()
            query = stream.writeStream.foreachBatch(take).option("checkpointLocation", folder).start()
            while not sql.execute("SELECT 1 FROM pg_replication_slots WHERE active").fetchall():
                time.sleep(0.01)  # what is committed before there is a slot is no change
            for at in range(warmup + samples):
                # A JVM is slow at first: the warm-up waits for each row, so that it is not one large batch.
                sql.execute("INSERT INTO moment VALUES (%s)", [time.monotonic_ns()])
                while len(found) <= at and (at < warmup or len(found) < at - 20):
                    if query.exception():
                        raise query.exception() or SystemExit
                    time.sleep(0.001)
                if at >= warmup:
                    time.sleep(0.1)
            while len(found) < warmup + samples and not query.exception():
                time.sleep(0.01)
            query.stop()
        spark.stop()
    measured = sorted(found[warmup:])
    return {"p50": statistics.median(measured), "p99": measured[int(len(measured) * 0.99)], "min": measured[0]}


class Backlog:
    """A server whose slot holds a backlog, and the two ways to drain a copy of it."""

    def __init__(self, server: Server, spark: SparkSession, rows: int) -> None:
        self.server, self.spark, self.rows = server, spark, rows
        self._numbers = itertools.count()
        self.sql = psycopg.connect(server.url(), autocommit=True)
        self.sql.execute(f"CREATE TABLE event ({COLUMNS})")
        self.sql.execute("CREATE PUBLICATION whole FOR TABLE event")
        self.sql.execute("SELECT pg_create_logical_replication_slot('filled', 'pgoutput')")
        for first in range(0, rows, 1000):
            self.sql.execute(FILL.format(first=first, last=first + 999))
        ((self.end,),) = self.sql.execute("SELECT pg_current_wal_lsn()::text").fetchall()
        self.sql.execute("CREATE TABLE after_the_end ()")

    def _slot(self) -> str:
        name = f"run_{next(self._numbers)}"
        self.sql.execute("SELECT pg_copy_logical_replication_slot('filled', %s)", [name])
        return name

    def _drop(self, name: str) -> None:
        self.sql.execute("SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s"
                         " AND active_pid IS NOT NULL", [name])  # fmt: skip
        self.sql.execute("SELECT pg_drop_replication_slot(%s)", [name])

    def receive_s(self) -> float:
        """Seconds that `pg_recvlogical` takes."""
        name = self._slot()
        command = [str(self.server.binaries / "pg_recvlogical"), "-d", self.server.url(), "-S", name, "--start"]
        options = ["-o", "proto_version=1", "-o", "publication_names=whole", "-E", self.end, "-F", "0"]
        began = time.perf_counter()
        subprocess.run([*command, "-f", "/dev/null", *options], check=True, stderr=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
        self._drop(name)
        return seconds

    def stream_s(self, sink: Callable[[DataFrame, int], None]) -> float:
        """Seconds that a query takes, from its start to its end."""
        name = self._slot()
        options = {"url": self.server.url(), "table": "event", "slot": name, "publication": "whole"}
        stream = self.spark.readStream.format("penstock").options(**options).load()
        with tempfile.TemporaryDirectory() as folder:
            writing = stream.writeStream.foreachBatch(sink).option("checkpointLocation", folder)
            began = time.perf_counter()
            writing.trigger(availableNow=True).start().awaitTermination()
            seconds = time.perf_counter() - began
        self._drop(name)
        return seconds

    def check(self) -> None:
        """Results first."""
        totals: dict[str, Any] = dict.fromkeys(SUMS, 0)

        def add(batch: DataFrame, number: int) -> None:
            for row in batch.selectExpr(*(f"{spark} AS {name}" for name, (_, spark) in SUMS.items())).collect():
                for name in SUMS:
                    totals[name] += row[name] or 0

        self.stream_s(add)
        expected = dict(zip(SUMS, self.sql.execute(_in_the_servers_words()).fetchone() or (), strict=True))
        if totals != expected:
            raise SystemExit(f"results differ:\n  ours       {totals}\n  the server {expected}")


def _in_the_servers_words() -> Any:
    return f"SELECT {', '.join(sql for sql, _ in SUMS.values())} FROM event".encode()


def drain(batch: DataFrame, number: int) -> None:
    """Have every column of every row, and keep nothing: what /dev/null is to the other side."""
    batch.write.format("noop").mode("overwrite").save()


def backlog(rows: int, rounds: int) -> dict[str, Any]:
    """The stream's rows a second ÷ pg_recvlogical's, on the same WAL."""
    with Server(find_binaries(18), SETTINGS) as server:
        spark = session(tuned=True)
        work = Backlog(server, spark, rows)
        work.check()  # and the JVM is warm
        ratios, theirs, ours = [], [], []
        for _ in range(rounds):
            reference_s, own_s = work.receive_s(), work.stream_s(drain)
            ratios.append(reference_s / own_s)
            theirs.append(rows / reference_s)
            ours.append(rows / own_s)
        work.sql.close()
        spark.stop()
    return {"ratio": statistics.median(ratios), "theirs": statistics.median(theirs), "ours": statistics.median(ours)}


def measure(what: str, *arguments: int) -> dict[str, Any]:
    """One measurement in a process of its own, so that each has a fresh JVM."""
    command = [sys.executable, __file__, "--measure", what, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run(rows: int, rounds: int, warmup: int, samples: int) -> dict[str, float]:
    """Everything, with a table for people."""
    tuned = measure("tuned", warmup, samples)
    defaults = measure("defaults", warmup // 2, samples // 2)
    caught_up = measure("backlog", rows, rounds)
    figures = {
        "latency_ms_p50": round(tuned["p50"], 1),
        "latency_ms_p99": round(tuned["p99"], 1),
        "latency_ms_p50_defaults": round(defaults["p50"], 1),
        "backlog_ratio": round(caught_up["ratio"], 3),
    }
    beside = {
        "latency_ms_p50": f"quickest {tuned['min']:.0f} ms",
        "backlog_ratio": f"{caught_up['ours']:,.0f} rows/s; pg_recvlogical {caught_up['theirs']:,.0f}",
    }
    table = Table("what", "figure", "goal", "", title="Stream on Spark")
    for name, value in figures.items():
        table.add_row(name, str(value), GOALS[name], beside.get(name, ""))
    Console().print(table)
    return figures


def main() -> None:
    """Measure, print a table for people and a line for machines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the backlog")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=300, help="transactions timed for latency")
    parser.add_argument("--warmup", type=int, default=600, help="transactions before them: a JVM is slow at first")
    parser.add_argument("--measure", nargs=3, metavar=("WHAT", "N", "M"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        what, first, second = options.measure[0], *map(int, options.measure[1:])
        found = backlog(first, second) if what == "backlog" else latency(what == "tuned", first, second)
        print(json.dumps(found))
        return
    print(json.dumps(run(options.rows, options.rounds, options.warmup, options.samples)))


if __name__ == "__main__":
    main()
