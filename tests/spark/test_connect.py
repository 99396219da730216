"""The source on Spark Connect: found by itself, read and streamed through a server that runs in the same process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fixtures.programs import LIMIT, run
from tests.spark.conftest import Source

PROGRAM = """
import json, sys
import penstock.spark
options, folder = json.loads(sys.argv[1]), sys.argv[2]
spark = penstock.spark.session(conf={"spark.remote": "local[2]"})
stream = spark.readStream.format("penstock").options(**options).load()
query = stream.writeStream.format("parquet").option("path", folder + "/rows")
query = query.option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
query.awaitTermination()
rows = spark.read.parquet(folder + "/rows").orderBy("_commit_lsn", "_seq").collect()
now = spark.read.format("penstock").option("url", options["url"]).option("table", "t").option("numPartitions", 2).load()
print(json.dumps({
    "session": type(spark).__module__,
    "rows": [(row["id"], row["v"], row["_change_type"]) for row in rows],
    "now": [tuple(row) for row in now.collect()],
}))
spark.stop()
"""


@LIMIT
@pytest.mark.smoke
def test_changes_stream_through_spark_connect(source18: Source, tmp_path: Path, scratch: Path) -> None:
    source18.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source18.execute(f"CREATE PUBLICATION {source18.slot} FOR TABLE t")
    source18.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", source18.slot)
    source18.execute("INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    source18.execute("DELETE FROM t WHERE id = 1")
    given = {"TMPDIR": str(scratch), "SPARK_TESTING": "1"}  # any free port
    shown = run(PROGRAM, json.dumps(source18.options(table="t")), str(tmp_path), **given)
    assert shown["session"].startswith("pyspark.sql.connect")
    assert shown["now"] == [[2, "two"]], "a batch read, too, by two tasks in one moment"
    assert shown["rows"] == [[1, "one", "insert"], [2, "two", "insert"], [1, None, "delete"]]
