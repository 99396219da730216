"""Spark's classes made ready for the JVM, which then starts in half the time: `python -m penstock.spark.archive`.

Most of a start goes into reading, checking and linking some 15,000 classes. An archive of them (the JVM's class data
sharing) is mapped into memory instead. It is made once for an environment and the Java that runs Spark there, lies in
the environment's own folder, and serves every session that `penstock.spark.session` builds.

Guarantees: an archive is there whole or not at all. Whether it fits (the same Java, the same jars) the JVM looks at
each start, and does without one that does not. Deliberately not: making one unasked, since it takes a minute and 200
MB.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import OperatorError, PenstockError
from penstock.spark.java import VECTOR, Java, archive, find_java
from penstock.spark.requirement import require_pyspark
from penstock.spark.session import session
from penstock.spark.settings import ENGINE_DRIVER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DUMP_S = 600.0


def make() -> Path:
    """Make the archive for the Java that would run Spark here, in place of any other; where it is."""
    require_pyspark()
    java = find_java()
    place = archive(java)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)  # what is mapped from it would not be listed
        with tempfile.TemporaryDirectory(prefix="penstock-", dir=place.parent) as folder:
            made = Path(folder, "archive")
            _dump(java, Path(folder, "classes"), made)
            made.replace(place)
    except OSError as error:
        raise OperatorError(
            f"an archive cannot be written to {place.parent}: {error.strerror}",
            hint="Run it as whoever installed Penstock; without one, Spark takes a few seconds longer to start.",
        ) from error
    return place


def _dump(java: Java, classes: Path, made: Path) -> None:
    """Have the JVM write down the classes that it loads, and turn them into an archive under the same options."""
    heap = ENGINE_DRIVER["spark.driver.extraJavaOptions"]
    conf = {**ENGINE_DRIVER, "spark.driver.extraJavaOptions": f"{heap} -XX:DumpLoadedClassList={classes}"}
    spark = session("penstock-archive", master="local[2]", conf=conf)
    jvm: Any = spark.sparkContext._jvm
    unknown = set() if java.has_vector else {f"--add-modules={VECTOR}"}
    modules = jvm.org.apache.spark.launcher.JavaModuleOptions.defaultModuleOptionArray()
    options = [str(one) for one in modules if one not in unknown]
    class_path = str(jvm.java.lang.System.getProperty("java.class.path"))
    with tempfile.TemporaryDirectory(prefix="penstock-") as checkpoint:
        _exercise(spark, checkpoint)
    _end(spark)
    files = [f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={made}"]
    command = [str(java.home / "bin" / "java"), *options, *heap.split(), "-Xshare:dump", *files, "-cp", class_path]
    said = subprocess.run(command, capture_output=True, text=True, timeout=_DUMP_S, check=False)
    if said.returncode or not made.exists():
        raise OperatorError(
            f"{java} could not make an archive of Spark's classes (exit code {said.returncode})",
            hint="Go on without one: Spark takes a few seconds longer to start.",
        )


def _exercise(spark: SparkSession, checkpoint: str) -> None:
    """Do in small what sessions do: a query, Python in tasks, a stream from a Python source."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"at": 0}

        def latestOffset(self, start: object = None, limit: object = None) -> dict[str, int]:
            return {"at": 1}

        def partitions(self, start: object, end: object) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            yield pa.record_batch([pa.array([1])], names=["n"])

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "penstock_archive"

        def schema(self) -> str:
            return "n bigint"

        def streamReader(self, schema: object) -> Reader:
            return Reader()

    def on_batch(frame: DataFrame, number: int) -> None:
        keys = frame.coalesce(1).mapInArrow(lambda batches: batches, "n bigint").persist()
        keys.filter("n IS NOT NULL").distinct().coalesce(1).toArrow()
        keys.unpersist()

    spark.range(10).selectExpr("count(*)", "max(id)").collect()
    spark.dataSource.register(Source)
    writing = spark.readStream.format("penstock_archive").load().writeStream.foreachBatch(on_batch)
    writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def _end(spark: SparkSession) -> None:
    """End the JVM, which has written down its classes then."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
    SparkContext._gateway = SparkContext._jvm = None


def main() -> None:
    """Make it, and say where it is."""
    try:
        made = make()
    except PenstockError as error:
        sys.exit(str(error))
    print(f"Spark starts from {made} now ({made.stat().st_size >> 20} MB)")


if __name__ == "__main__":
    main()
