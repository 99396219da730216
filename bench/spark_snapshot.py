"""How fast Spark reads a table through Penstock, beside Spark's own JDBC source and one plain COPY.

Two million rows of ten mixed columns, two partitions, into a sink that throws rows away. All sides run in turn; figures
are medians of ratios within a round, so that a noisy machine counts for all. Before speed, results: both frames must
have the same columns, the same number of rows and the same checksum over every value.

    python bench/spark_snapshot.py [--rows 2000000] [--rounds 5]

JDBC's driver comes from Maven Central, through Spark. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg
from rich.console import Console
from rich.table import Table

from penstock import spark as penstock_spark
from penstock.demo.server import Server, find_binaries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DRIVER = "org.postgresql:postgresql:42.7.14"
PARTITIONS = 2
FETCH_ROWS = 10_000
WARM_UPS = 2
COLUMNS = """id bigint PRIMARY KEY, a int, b bigint, c text, d timestamptz, e numeric(12,2), f boolean, g uuid,
             h jsonb, i double precision"""
FILL = """INSERT INTO event SELECT n, n % 100, n * 17, 'text value number ' || n || repeat('x', (n % 80)::int),
          timestamptz '2024-01-01+00' + n * interval '1 second', (n % 10000) / 100.0, n % 2 = 0, md5(n::text)::uuid,
          jsonb_build_object('k', n, 'name', 'n' || n), n / 7.0 FROM generate_series(1::bigint, {rows}) n"""
GOALS = {"snapshot_vs_jdbc": 1.2, "snapshot_vs_copy": 0.9}


def fill(server: Server, rows: int) -> None:
    """The table, at rest: no hint bit is left to be written by whoever reads it first."""
    with psycopg.connect(server.url(), autocommit=True) as sql:
        sql.execute(f"CREATE TABLE event ({COLUMNS})")
        sql.execute(FILL.format(rows=rows))
        sql.execute("VACUUM (FREEZE, ANALYZE) event")
        sql.execute("CHECKPOINT")


def by_penstock(spark: SparkSession, server: Server) -> DataFrame:
    """The table through our source; json as text, as JDBC has it."""
    options = {"url": server.url(), "table": "event", "numPartitions": str(PARTITIONS), "jsonColumns": "string"}
    return spark.read.format("penstock").options(**options).load()


def by_jdbc(spark: SparkSession, server: Server, rows: int) -> DataFrame:
    """The table through Spark's own source."""
    url = f"jdbc:postgresql://127.0.0.1:{server.port}/postgres?user=postgres"
    bounds: dict[str, str | int] = {
        "partitionColumn": "id",
        "lowerBound": 1,
        "upperBound": rows + 1,
        "numPartitions": PARTITIONS,
    }
    reader = spark.read.format("jdbc").options(url=url, dbtable="event", driver="org.postgresql.Driver")
    return reader.options(fetchsize=FETCH_ROWS, **bounds).load()


def compare_results(ours: DataFrame, theirs: DataFrame, rows: int) -> None:
    """Stop unless both frames hold the same rows."""
    if ours.dtypes != theirs.dtypes:
        raise SystemExit(f"columns differ:\n  ours {ours.dtypes}\n  JDBC {theirs.dtypes}")
    sums = [
        frame.selectExpr("count(*)", "bit_xor(xxhash64(*))", "sum(xxhash64(*) % 1000)").first()
        for frame in (ours, theirs)
    ]
    if sums[0] != sums[1] or sums[0] is None or sums[0][0] != rows:
        raise SystemExit(f"results differ:\n  ours {sums[0]}\n  JDBC {sums[1]}")


def into_nothing(frame: DataFrame) -> None:
    """Have Spark read every row."""
    frame.write.format("noop").mode("overwrite").save()


def copy(server: Server) -> None:
    """One plain COPY, to nowhere."""
    command = [str(server.binaries / "psql"), "-qX", server.url(), "-c", "COPY event TO STDOUT (FORMAT binary)"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def seconds(act: Callable[[], None]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def measure(spark: SparkSession, server: Server, rows: int, rounds: int) -> dict[str, float]:
    """Rows a second of each side, and the ratios."""
    ours, theirs = by_penstock(spark, server), by_jdbc(spark, server, rows)
    compare_results(ours, theirs, rows)
    sides: dict[str, Callable[[], None]] = {
        "penstock": lambda: into_nothing(ours),
        "jdbc": lambda: into_nothing(theirs),
        "copy": lambda: copy(server),
    }
    for _ in range(WARM_UPS):
        for act in sides.values():
            act()
    found = [{name: seconds(act) for name, act in sides.items()} for _ in range(rounds)]
    middle = statistics.median
    rates = {f"{name}_rows_per_s": rows / middle(one[name] for one in found) for name in sides}
    ratios = {f"snapshot_vs_{name}": middle(one[name] / one["penstock"] for one in found) for name in ("jdbc", "copy")}
    return {**rates, **ratios}


def run(rows: int, rounds: int, spark: SparkSession | None = None) -> dict[str, float]:
    """Everything, on a server of its own; the session is made here unless one that has JDBC's driver is given."""
    with Server(
        find_binaries(), {"max_wal_size": "8GB", "checkpoint_timeout": "1h", "shared_buffers": "1GB"}
    ) as server:
        fill(server, rows)
        session = spark or penstock_spark.session(
            "bench", master=f"local[{PARTITIONS}]", conf={"spark.jars.packages": DRIVER}
        )
        try:
            return measure(session, server, rows, rounds)
        finally:
            if spark is None:
                session.stop()


def show(found: dict[str, float]) -> None:
    """A table for people."""
    table = Table("what", "rows/s", "Penstock ÷ it", "goal", title="Snapshot in Spark")
    table.add_row("penstock", f"{found['penstock_rows_per_s']:,.0f}", "", "")
    for name in ("jdbc", "copy"):
        ratio = f"snapshot_vs_{name}"
        table.add_row(name, f"{found[f'{name}_rows_per_s']:,.0f}", f"{found[ratio]:.2f}", f"≥ {GOALS[ratio]}")
    Console(file=sys.stderr).print(table)


def main() -> None:
    """Run everything, print a table for people and a line for machines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    found = run(options.rows, options.rounds)
    show(found)
    print(json.dumps({name: round(found[name], 3) for name in GOALS}))


if __name__ == "__main__":
    main()
