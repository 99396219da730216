"""The settings of a session, and what is said about one that somebody else built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.postgres import processes
from penstock.spark import requirement, settings
from penstock.spark.batch import _beside_the_driver
from penstock.spark.daemon import without_zips
from penstock.spark.session import cut

ROOT = Path(__file__).parents[2]
SOCKETS = "spark.python.unix.domain.socket.enabled"
PARTITIONS = "spark.sql.shuffle.partitions"


def test_every_setting_has_its_reason() -> None:
    assert not [one.name for one in settings.TABLE if len(one.reason) < 10]
    assert len({one.name for one in settings.TABLE}) == len(settings.TABLE)


def test_a_session_with_our_settings_costs_nothing() -> None:
    chosen = settings.settings("local[3]", 3)
    assert chosen[PARTITIONS] == "3"
    assert settings.costs(chosen.get, "local[3]", 3) == []


def test_what_holds_for_one_machine_only_is_left_out_on_a_cluster() -> None:
    chosen = settings.settings("spark://host:7077", 3)
    assert chosen[SOCKETS] == "true"
    assert chosen["spark.sql.session.timeZone"] == "UTC"
    assert not {one.name for one in settings.TABLE if one.one_machine} & chosen.keys()
    assert "spark.ui.enabled" not in chosen, "a cluster's is looked at"
    (told,) = settings.costs({PARTITIONS: "200"}.get, "spark://host:7077", 3)
    assert told.startswith(SOCKETS), "the driver's cores say nothing about a cluster's"


def test_each_setting_that_costs_latency_is_told_with_its_price_and_the_value_to_set() -> None:
    told = settings.costs({SOCKETS: "false", PARTITIONS: "200"}.get, "local[2]", 2)
    assert f"{SOCKETS} is false: it costs about 50 ms a task. Set it to true." in told
    assert f"{PARTITIONS} is 200: it costs about 300 ms a shuffle, spent on tasks without rows. Set it to 2." in told
    assert any("checkpointFileManagerClass is not set" in sentence for sentence in told)
    assert len(told) == len([one for one in settings.TABLE if one.cost])


def test_a_few_tasks_more_than_cores_are_no_fault() -> None:
    fit = settings.settings("local[2]", 2)
    assert settings.costs({**fit, PARTITIONS: "16"}.get, "local[2]", 2) == []
    assert settings.costs({**fit, PARTITIONS: "17"}.get, "local[2]", 2) != []


@pytest.mark.parametrize("version", ["4.2.0", "4.2.1", "4.3.0", "4.3.0.dev1"])
def test_known_versions_of_pyspark_are_taken(version: str) -> None:
    assert requirement.check_version(version) == version


@pytest.mark.parametrize("version", ["3.5.6", "4.1.4", "4.4.0", "5.0.0", "next"])
def test_another_version_of_pyspark_is_refused_in_one_sentence(version: str) -> None:
    with pytest.raises(ConfigError) as caught:
        requirement.check_version(version)
    assert caught.value.message == f"PySpark {version} is installed; Penstock runs on 4.2 and 4.3"
    assert caught.value.hint == 'Run: pip install "penstock[spark]"'


def test_without_pyspark_the_error_holds_the_install_line() -> None:
    program = "import sys; sys.modules['pyspark'] = None\nfrom penstock.spark.session import session\nsession()"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT / "src", capture_output=True, text=True, check=False)
    assert 'MissingExtraError: PySpark is not installed\nRun: pip install "penstock[spark]"' in run.stderr


def test_a_log_that_grew_large_keeps_its_end_and_is_appended_to(tmp_path: Path) -> None:
    """Also while the JVM has it open."""
    log = tmp_path / "spark.log"
    cut(log)
    with open(log, "ab", buffering=0) as jvm:
        line = b"a line of some length\n"
        jvm.write(line * ((17 << 20) // len(line)) + b"the last one\n")
        cut(log)
        jvm.write(b"one more\n")
        kept = log.read_bytes()
    assert len(kept) <= 1 << 20
    assert kept.startswith(line)
    assert kept.endswith(line + b"the last one\none more\n")
    cut(log)
    assert log.read_bytes() == kept


def test_on_another_version_the_source_says_so_when_it_is_used_and_harms_no_other() -> None:
    """Spark imports every module of that name, whatever format is asked for."""
    program = (
        "import pyspark.version; pyspark.version.__version__ = '4.1.4'\n"
        "from pyspark_penstock import DefaultSource\n"
        "print(DefaultSource.name())\n"
        "DefaultSource({'table': 't'})"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT / "src", capture_output=True, text=True, check=False)
    assert run.stdout == "penstock\n"
    assert run.stderr.endswith(
        'ConfigError: PySpark 4.1.4 is installed; Penstock runs on 4.2 and 4.3\nRun: pip install "penstock[spark]"\n'
    )


def test_a_worker_leaves_the_zip_file_of_the_pyspark_that_it_finds_as_a_folder(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    for name in "pyspark", "py4j":
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").touch()
    zips = [str(packages / "pyspark" / "python" / "lib" / name) for name in ("pyspark.zip", "py4j-0.10-src.zip")]
    others = ["/opt/spark/python/lib/pyspark.zip", "/somewhere/deps.zip"]
    assert without_zips([*zips, *others, str(packages)]) == [*others, str(packages)]
    assert without_zips([*zips, *others]) == [*zips, *others], "PySpark is nowhere else"


def test_the_daemon_that_workers_are_forked_from_has_no_threads() -> None:
    program = "import sys, penstock.spark.daemon; print([name for name in ('pyarrow', 'numpy') if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "jvm"),
    [
        ("python -m pyspark.daemon pyspark.worker", 20),
        ("python -m penstock.spark.daemon pyspark.worker", 20),
        ("java --conf spark.python.daemon.module=penstock.spark.daemon pyspark-shell", 10),
    ],
)
def test_who_reads_a_snapshot_finds_the_jvm_behind_any_daemon(
    monkeypatch: pytest.MonkeyPatch, words: str, jvm: int
) -> None:
    monkeypatch.setattr("os.getppid", lambda: 10)
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    monkeypatch.setattr(processes, "command", {10: words}.__getitem__)
    monkeypatch.setattr(processes, "parent", {10: 20}.__getitem__)
    monkeypatch.setattr(processes, "mark", lambda pid: pid)
    folder, watched = _beside_the_driver()
    assert (watched, folder.name.rpartition("-")[2]) == (jvm, str(jvm))
