"""A Spark session that is quick for small, steady micro-batches, on whatever Java is here.

    spark = penstock.spark.session()                                    # all cores of this machine
    spark = penstock.spark.session(master="spark://host:7077", conf={"spark.executor.memory": "4g"})

Guarantees: what `conf` names goes before our settings. A session that exists, or whose settings are made elsewhere
(spark-submit, a Spark Connect server), is taken as it is, and `advise` tells what it pays. Python workers run this
interpreter unless `PYSPARK_PYTHON` names another one. Building a session sets `JAVA_HOME` and `PYSPARK_PYTHON` for this
process and its children, because Spark reads them there.

Deliberately not: stopping the session, or changing one that somebody else built.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark import settings
from penstock.spark.java import archive_options, find_java, home_for_spark
from penstock.spark.requirement import require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# macOS allows the path of a unix socket 103 characters, Linux 107; the name that Spark gives one takes 43 of them.
_LONGEST_SOCKET_FOLDER = 103 - 43
LOG_FILE = "spark.log"
"""What it is called in the state folder."""
_LARGE_LOG_BYTES, _KEPT_LOG_BYTES = 16 << 20, 1 << 20

_log = logging.getLogger(__name__)


def session(
    app_name: str = "penstock",
    *,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    log_file: Path | None = None,
) -> SparkSession:
    """The session of this process, built if there is none. spark-submit's and a Connect server's master stay theirs.

    What a JVM that is built here and its workers say goes to `log_file`, where there is one, instead of stderr.
    """
    require_pyspark()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name).config(map=dict(conf or {}))
    if SparkContext._active_spark_context is None and not _is_made_elsewhere(conf or {}):
        chosen: dict[str, bool | float | int | str | None] = {**_prepare(master, conf or {})}
        with _stderr_to(log_file) if log_file else nullcontext():
            made = builder.config(map=chosen).getOrCreate()
        if settings.LOCAL_FOLDER in os.environ:
            _show_running()
        return made
    found = SparkSession.getActiveSession() or builder.getOrCreate()
    advise(found)
    return found


def _show_running() -> None:
    """Leave the sign by which readers know that the session which they are of runs its tasks here."""
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    sign = _folder() / settings.RUNNING
    sign.unlink(missing_ok=True)
    sign.symlink_to(jvm.org.apache.spark.SparkFiles.getRootDirectory())


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Let processes that are started meanwhile write there, always at its end."""
    cut(path)
    before, file = os.dup(2), os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(file)


def cut(path: Path) -> None:
    """Leave of a log that has grown large its end, also while others append to it: that is where they go on."""
    if not path.exists() or path.stat().st_size <= _LARGE_LOG_BYTES:
        return
    with open(path, "r+b") as file:
        file.seek(-_KEPT_LOG_BYTES, os.SEEK_END)
        end = file.read()
        file.truncate(0)
    with open(path, "ab") as file:
        file.write(end[end.find(b"\n") + 1 :])


def advise(spark: SparkSession) -> list[str]:
    """What the session's settings cost in latency, a sentence each; they are logged as warnings, too."""
    master = spark.conf.get("spark.master", "") or ""
    found = settings.costs(lambda name: spark.conf.get(name, None), master, _cores(master))
    for sentence in found:
        _log.warning(sentence)
    return found


def _is_made_elsewhere(conf: Mapping[str, str]) -> bool:
    remote = conf.get("spark.remote") or os.environ.get("SPARK_REMOTE", "")
    return "PYSPARK_GATEWAY_PORT" in os.environ or remote.startswith("sc://")


def _prepare(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Make this machine ready for a JVM, and say how to build the session."""
    folder, java = _folder(), find_java()
    os.environ["JAVA_HOME"] = str(home_for_spark(java, folder))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    remote = conf.get("spark.remote") or os.environ.get("SPARK_REMOTE")  # local[*]: a Connect server in this process
    master = remote or conf.get("spark.master") or master
    chosen = {**settings.settings(master, _cores(master)), **({} if remote else {"spark.master": master}), **conf}
    ours = [*settings.JVM_OPTIONS, *archive_options(java), f"-Djava.io.tmpdir={folder}"]
    ours += [f"-Dlog4j2.configurationFile={_log_settings(folder)}"]
    chosen["spark.driver.extraJavaOptions"] = " ".join([*ours, conf.get("spark.driver.extraJavaOptions", "")]).strip()
    os.environ.pop(settings.LOCAL_FOLDER, None)
    if re.match(r"local(\[|$)", master):  # and not local-cluster
        os.environ[settings.LOCAL_FOLDER] = str(folder)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", settings.LOCAL_ADDRESS)
    return chosen


def _log_settings(folder: Path) -> Path:
    written = folder / "log4j2.properties"
    written.write_text(settings.LOGGING)
    return written


def _cores(master: str) -> int:
    """How many tasks a local master runs at once."""
    named = re.match(r"local\[(\d+)", master)
    return int(named[1]) if named else os.cpu_count() or 1


@functools.cache
def _folder() -> Path:
    """A folder of this process's own for the JVM's files, its sockets among them; gone when the process ends."""
    usual = tempfile.gettempdir()
    made = tempfile.mkdtemp(prefix="penstock-", dir=usual)
    if len(made) > _LONGEST_SOCKET_FOLDER:
        os.rmdir(made)
        made = tempfile.mkdtemp(prefix="penstock-", dir="/tmp")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)
