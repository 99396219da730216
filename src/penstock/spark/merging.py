"""Spark's own MERGE behind the delta sink, where the session brings a Delta that fits it.

A merge that may have to write much of a large table anew is spread over the session's tasks; smaller ones are done
sooner by delta-rs, in this process. Guarantees: the same rows, conditions and numbers of the application as delta-rs
writes, so that either goes on with the other's table. Delta skips a commit whose number it has seen before: versions
decide here, so a number that says nothing new is not given, and what was skipped all the same is merged without one. A
jar that is not known to fit is left alone, and the log says so: one that does not may commit what cannot be read.
Deliberately not: anything else that is done with a table (`sinks.delta_table`), which needs no session.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, OperatorError, UnavailableError
from penstock.sinks.delta_table import COUNTS, SCHEMA, Merge, OvertakenError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from penstock.sinks.delta_table import Merging

log = logging.getLogger(__name__)

LEAST_BYTES = "spark.penstock.deltaMergeBytes"
# On two cores a merge into a table of 50 MB took Spark ten times as long as delta-rs, and longer for a few rows: it is
# ahead where the files are more than one process gets through in a few seconds. That is an estimate.
_LEAST_BYTES = 1 << 30
# Which Delta was run with which Spark.
_FITTING = {"4.2": "4.4"}
_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
# A table of a few hundred files: Delta's default of 50 tasks to read its log takes seconds for each merge.
_LOG_TASKS = "spark.databricks.delta.snapshotPartitions"
_APPLICATION, _NUMBER = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_ROWS_A_FILE = "spark.sql.files.maxRecordsPerFile"
_ROWS = "penstock_rows"


def fitting() -> Merging | None:
    """Spark's MERGE, if this process has a session and that brings a Delta that fits."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    return None if context is None else _examined(context)


@functools.lru_cache(maxsize=1)
def _examined(context: SparkContext) -> Merging | None:
    from pyspark.sql import SparkSession

    session = SparkSession.active()
    extensions = session.conf.get("spark.sql.extensions", None) or ""
    if _EXTENSION not in extensions or session.conf.get("spark.sql.catalog.spark_catalog", None) != _CATALOG:
        return None
    version, jar = _brought(context)
    if not is_known_to_fit(session.version, version, jar):
        log.warning(
            "the session brings Delta %s, which is not known to fit Spark %s: delta sinks go on without it",
            version or "by name only", session.version,
        )  # fmt: skip
        return None
    return SparkMerging(session)


def _brought(context: SparkContext) -> tuple[str, str]:
    """The version of Delta in the session's JVM, and the name of its jar; empty where there is none."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        loader = context._jvm.java.lang.Thread.currentThread().getContextClassLoader()  # type: ignore[union-attr]
        loaded = loader.loadClass(_CATALOG)
        jar = str(loaded.getProtectionDomain().getCodeSource().getLocation().toString()).rpartition("/")[2]
        return loaded.getPackage().getImplementationVersion() or "", jar
    except Py4JError:
        return "", ""


def is_known_to_fit(spark: str, delta: str, jar: str) -> bool:
    """Whether this Delta was run with this Spark; a jar that names another Spark does not fit, whatever its version."""
    ours = ".".join(spark.split(".")[:2])
    named = re.search(r"delta-spark_(\d+\.\d+)_", jar)
    return _FITTING.get(ours) == ".".join(delta.split(".")[:2]) and (named is None or named[1] == ours)


class SparkMerging:
    """See `penstock.sinks.delta_table.Merging`. Any thread; one merge at a time."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session.newSession()  # its settings are changed for each merge
        self._lock = threading.Lock()
        self._session.conf.set(_LOG_TASKS, session.conf.get(_LOG_TASKS, None) or "2")
        given = session.conf.get(LEAST_BYTES, None) or str(_LEAST_BYTES)
        if not given.isdigit():
            raise ConfigError(f"{LEAST_BYTES} is {given!r}", hint="Give a number of bytes: 1073741824, say.")
        self._least_bytes = int(given)

    def takes(self, uri: str, rewritten_bytes: int) -> bool:
        """Large merges; on S3 only where the session names how commits are kept apart, for by default they are not."""
        if rewritten_bytes < self._least_bytes:
            return False
        scheme = self._place(uri).partition("://")[0]
        return not scheme.startswith("s3") or bool(self._session.conf.get(f"spark.delta.logStore.{scheme}.impl", None))

    def merge(self, uri: str, rows: pa.Table, merge: Merge) -> None:
        """One MERGE, by tasks."""
        with self._lock, _translated(uri):
            self._session.createDataFrame(rows).createOrReplaceTempView(_ROWS)
            self._set(_ROWS_A_FILE, merge.rows_a_file)
            try:
                if not self._run(uri, merge.application, merge.number):
                    self._run(uri, "", None)  # somebody else's number is as high: it says nothing about these rows
            finally:
                self._session.catalog.dropTempView(_ROWS)

    def _run(self, uri: str, application: str, number: int | None) -> bool:
        """Whether Delta did it, and did not take it for something that was done before."""
        self._set(_APPLICATION, application if number is not None else None)
        self._set(_NUMBER, number)
        place = self._place(uri).replace("`", "``")
        setting = ", ".join(f"t.{name} = s.{name}" for name in SCHEMA.names)
        names, values = ", ".join(SCHEMA.names), ", ".join(f"s.{name}" for name in SCHEMA.names)
        told = self._session.sql(
            f"MERGE INTO delta.`{place}` AS t USING ({self._counting(place)}) AS s ON t.id = s.id"
            f" WHEN MATCHED AND ({COUNTS}) THEN UPDATE SET {setting}"
            f" WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})"
        ).collect()
        return bool(told)

    def _counting(self, place: str) -> str:
        """The rows that count. Spark would write anew each file that has a row of these ids, and the change feed would
        tell of it, whether the row changes or not."""
        return (
            f"SELECT s.* FROM {_ROWS} AS s LEFT JOIN delta.`{place}` AS t ON t.id = s.id WHERE t.id IS NULL OR {COUNTS}"
        )

    def _set(self, name: str, value: object) -> None:
        if value is None:
            self._session.conf.unset(name)
        else:
            self._session.conf.set(name, str(value))

    def _place(self, uri: str) -> str:
        """Where Spark finds it: a path is one of this machine, and S3 is called as Hadoop calls it."""
        if "://" not in uri:
            return f"file://{os.path.abspath(uri)}"
        if uri.startswith("s3://") and not self._session.conf.get("spark.hadoop.fs.s3.impl", None):
            return f"s3a://{uri.removeprefix('s3://')}"
        return uri


@contextmanager
def _translated(uri: str) -> Iterator[None]:
    """Turn errors of the JVM into ours; its own words are left out, they may quote a value."""
    from py4j.protocol import Py4JError
    from pyspark.errors import AnalysisException, PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        kinds = _kinds(error)
        if any("Concurrent" in kind or kind.endswith("MetadataChangedException") for kind in kinds):
            raise OvertakenError from None
        log.debug("Spark's MERGE failed", exc_info=error)
        found = f"{uri}: Spark could not merge into the Delta table ({kinds[0] if kinds else type(error).__name__})"
        if isinstance(error, AnalysisException) or any(kind.startswith("NoSuch") for kind in kinds):
            raise OperatorError(
                found, hint="Check that the session reaches the path, or run without Delta's jar: it is not needed."
            ) from None
        raise UnavailableError(found, hint="spark.log, in the state folder, tells more.") from None


def _kinds(error: BaseException) -> list[str]:
    """The names of the JVM's errors, the outer one first."""
    found: list[str] = []
    java: Any = getattr(getattr(error, "_origin", None) or error, "java_exception", None)
    while java is not None and len(found) < 10:
        found.append(java.getClass().getSimpleName())
        java = java.getCause()
    return found
