"""The settings that make Spark quick for small, steady micro-batches, each with its value and its reason.

Measured on PySpark 4.3 with a Python source: together they take a micro-batch from 223–261 ms to 57 ms (median, warm).
`settings` gives what a new session is built with, `costs` what a session that somebody else built pays.

Guarantees: plain functions over plain values, but for the one that asks whether a session still runs; nothing here
imports PySpark. Deliberately not: settings that were tried
and gained nothing (adaptive execution off, asynchronous progress tracking, another way to fork, a lower tier of the
JIT).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# The variable by which a session whose tasks all run on this machine tells the readers that its JVM starts of a folder
# where batches may lie as files: twice as fast as through the JVM, and none of its heap.
LOCAL_FOLDER = "PENSTOCK_LOCAL_FOLDER"
# A JVM keeps its environment when its session is stopped, and the next one there may be of a cluster. So the session
# leaves a link in that folder, to one that Spark removes when it is stopped.
RUNNING = "session"
_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting; `cost` says what a session without it pays in latency, where it pays anything."""

    name: str
    value: str
    reason: str
    cost: str = ""
    one_machine: bool = False  # only where driver and executors share a machine


TABLE = (
    Setting(
        "spark.sql.streaming.checkpointFileManagerClass",
        _CHECKPOINTS,
        "without Hadoop's native library the default one forks some 20 processes a micro-batch to write its checkpoint;"
        " for checkpoints on a local or mounted disk",
        cost="about 100 ms a micro-batch where the checkpoint is on a local disk",
        one_machine=True,
    ),
    Setting(
        "spark.hadoop.fs.file.impl",
        "org.apache.hadoop.fs.RawLocalFileSystem",
        "no .crc file beside each file of a local disk, and half the forks that are left",
        cost="about 20 ms a micro-batch where the checkpoint is on a local disk",
        one_machine=True,
    ),
    Setting(
        "spark.python.unix.domain.socket.enabled",
        "true",
        "the TCP link to a Python worker stalls in each task; a unix socket does not",
        cost="about 50 ms a task",
    ),
    Setting(
        "spark.sql.session.timeZone",
        "UTC",
        "timestamps come as Arrow in UTC; any other name, even Etc/UTC, fails the comparison of schemas in mapInArrow",
    ),
    Setting(
        "spark.sql.shuffle.partitions",
        "{cores}",
        "the default of 200 makes 200 tasks of each shuffle, however few the rows",
        cost="about 300 ms a shuffle, spent on tasks without rows",
        one_machine=True,
    ),
    Setting(
        "spark.sql.streaming.numRecentProgressUpdates",
        "10",
        "the default keeps 100 reports of each query in memory; penstock.spark.progress hands each on as it comes",
    ),
    Setting(
        "spark.ui.enabled",
        "false",
        "a web server and its memory of past jobs, rarely looked at on one machine",
        one_machine=True,
    ),
    Setting("spark.ui.showConsoleProgress", "false", "a bar on stderr for each micro-batch hides what is logged"),
    Setting(
        "spark.python.daemon.module",
        "penstock.spark.daemon",
        "workers load PySpark from its folder, where it lies compiled, and not from a zip file: half a second for each",
        one_machine=True,
    ),
    Setting("spark.driver.memory", "1g", "rows pass through in pieces: half of it took batches of a million rows"),
)


# Nothing of a local session listens to the network, and a host name that does not resolve is no trouble.
LOCAL_ADDRESS = "127.0.0.1"

# For a driver whose own work is outside the JVM: it starts with half the CPU, and keeps a third of the memory. A small
# space for new objects is another 77 MB less, and takes no more CPU.
ENGINE_DRIVER = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms32m -Xmn40m",
}

# No file of counters in /tmp for each JVM, which nobody reads.
JVM_OPTIONS = ("-XX:-UsePerfData",)

# Errors only, from the first line on: Spark's warnings come with every start and tell a user nothing to do, and
# `spark.log.level` is read too late to quiet them. A query tells its own failure. PySpark counts as a shell to Spark,
# which lifts the root's level to that of the shell's logger.
LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS}{UTC}Z %level{lowerCase=true} %c{1}: %m%n%ex
"""


def local_folder() -> str | None:
    """Where batches may lie as files, while all tasks run on this machine; asked in a process that the JVM started."""
    folder = os.environ.get(LOCAL_FOLDER)
    return folder if folder and Path(folder, RUNNING).exists() else None


def settings(master: str, cores: int) -> dict[str, str]:
    """What a new session at `master` is built with."""
    local = master.startswith("local")
    return {one.name: one.value.format(cores=cores) for one in TABLE if local or not one.one_machine}


def costs(get: Callable[[str], str | None], master: str, cores: int) -> list[str]:
    """A sentence for each setting by which a session at `master` pays latency; `get`: its value, None if not set."""
    local = master.startswith("local")
    return [
        f"{one.name} is {get(one.name) or 'not set'}: it costs {one.cost}. Set it to {one.value.format(cores=cores)}."
        for one in TABLE
        if one.cost and (local or not one.one_machine) and not _is_fit(one, get(one.name), cores)
    ]


def _is_fit(setting: Setting, value: str | None, cores: int) -> bool:
    wanted = setting.value.format(cores=cores)
    if wanted.isdigit():  # a number of tasks: a few more than there are cores do no harm
        return value is not None and value.isdigit() and int(value) <= max(int(wanted) * 4, 16)
    return (value or "").lower() == wanted.lower()
