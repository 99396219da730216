"""The reports of readers: there while one runs, the user's alone, and gone with it however it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model import Lsn
from penstock.spark import health
from tests.fixtures.waiting import wait_until


class Standing:
    """A progress that stands where it is put."""

    acknowledged = Lsn(100)
    reached = Lsn(150)
    done = Lsn(120)
    state = "streaming"
    trouble = ""
    silent_s = 0.04


def newest() -> Lsn:
    return Lsn(400)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(health.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(health, "_EVERY_S", 0.01)
    yield health.folder()
    assert not list(tmp_path.iterdir()), "nothing is left"


def test_a_reader_is_seen_while_it_runs_and_not_after(place: Path) -> None:
    progress = Standing()
    report = health.Report("s", "u@h:5432/d", progress, newest)
    (found,) = wait_until(health.readers, what="the first report")
    assert (found.slot, found.server, found.pid) == ("s", "u@h:5432/d", os.getpid())
    assert (found.acknowledged, found.received, found.done) == ("0/64", "0/96", "0/78")
    assert (found.state, found.error, found.silent_s) == ("streaming", "", 0.0)
    wait_until(lambda: health.readers()[0].newest == "0/190", what="the server's word")
    assert health.readers()[0].lag_bytes == 280
    progress.done, progress.state, progress.trouble, progress.silent_s = Lsn(400), "waiting", "no route", 7.25
    found = wait_until(lambda: next((r for r in health.readers() if r.error), None), what="a later report")
    assert (found.lag_bytes, found.state, found.error, found.silent_s) == (0, "waiting", "no route", 7.2)
    assert place.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in place.glob("*.json")} == {0o600}
    other = health.Report("other", "u@h:5432/d", progress, newest)
    wait_until(lambda: len(health.readers()) == 2, what="both")
    report.close()
    assert [one.slot for one in health.readers()] == ["other"]
    other.close()
    assert health.readers() == []


def test_what_a_killed_reader_left_is_removed_by_whoever_looks(place: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    place.mkdir(mode=0o700)
    (place / f"reader-1-{gone.pid}.new").write_text('{"slot":')  # its first report, half written
    left = health.ReaderHealth("s", "h", gone.pid, "0/1", "0/1", 0, 0.0)
    (place / "reader-0-1.json").write_text(json.dumps({name: getattr(left, name) for name in left.__slots__}))
    assert health.readers() == []


def test_looking_makes_no_folder(place: Path) -> None:
    assert health.readers() == []
    assert not place.exists()


def test_a_folder_that_somebody_else_laid_out_is_neither_written_nor_read(place: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    place.symlink_to(elsewhere)
    report = health.Report("s", "h", Standing(), newest)
    report.close()
    assert not list(elsewhere.iterdir())
    assert health.readers() == []
    place.unlink()
    place.mkdir()
    place.chmod(0o777)
    health.Report("s", "h", Standing(), newest).close()
    assert not list(place.iterdir())
    place.rmdir()
    elsewhere.rmdir()


def test_what_cannot_be_understood_is_left_alone(place: Path) -> None:
    place.mkdir(mode=0o700)
    (place / "reader-0-1.json").write_text('{"format": 2}')
    (place / "reader-0-2.json").write_text("{")
    assert health.readers() == []
    for path in place.iterdir():
        path.unlink()
    place.rmdir()
