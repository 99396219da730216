"""The source inside a declarative pipeline, run by Spark's own command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from penstock.spark.java import find_java, home_for_spark
from tests.fixtures.programs import LIMIT, PATIENCE_S, environment
from tests.spark.conftest import Source

SPEC = """
name: changes
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""

TRANSFORMATION = """
from pyspark import pipelines as dp

@dp.table
def changes():
    return spark.readStream.format("penstock").options(**{options}).load().select("id", "v", "_change_type")
"""


@LIMIT
@pytest.mark.smoke
def test_a_table_of_a_pipeline_is_filled_with_changes(source18: Source, tmp_path: Path, scratch: Path) -> None:
    source18.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source18.execute(f"CREATE PUBLICATION {source18.slot} FOR TABLE t")
    source18.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", source18.slot)
    source18.execute("INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    source18.execute("UPDATE t SET v = 'zwei' WHERE id = 2")
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    (tmp_path / "transformations").mkdir()
    transformation = TRANSFORMATION.replace("{options}", repr(source18.options(table="t")))
    (tmp_path / "transformations/changes.py").write_text(transformation)
    warehouse = tmp_path / "warehouse"
    command = [str(Path(sys.executable).with_name("spark-pipelines")), "run"]
    command += ["--conf", f"spark.sql.warehouse.dir={warehouse}"]
    given = environment(
        JAVA_HOME=str(home_for_spark(find_java(), scratch)),
        PYSPARK_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
        SPARK_TESTING="1",  # any free port
        TMPDIR=str(scratch),
        JDK_JAVA_OPTIONS=f"-Djava.io.tmpdir={scratch}",
    )
    done = subprocess.run(
        command, cwd=tmp_path, env=given, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    rows = pyarrow.parquet.read_table(warehouse / "changes").sort_by([("id", "ascending"), ("v", "ascending")])
    assert rows.to_pylist() == [
        {"id": 1, "v": "one", "_change_type": "insert"},
        {"id": 2, "v": "two", "_change_type": "insert"},
        {"id": 2, "v": "zwei", "_change_type": "update_postimage"},
    ]
