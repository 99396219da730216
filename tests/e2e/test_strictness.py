"""The test run's own rules: with CI set nothing may be skipped, and what a test leaves behind fails it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXCUSES = """
import pytest

def test_plain(): pass

@pytest.mark.skip(reason="not today")
def test_skipped(): pass

@pytest.mark.xfail(strict=False)
def test_expected_to_fail(): assert False

@pytest.mark.xfail(strict=False)
def test_passes_against_expectation(): pass
"""

LEFTOVERS = """
import subprocess, tempfile, threading

def test_thread(): threading.Thread(target=threading.Event().wait, daemon=True, name="forgotten").start()

def test_process():
    global child
    child = subprocess.Popen(["sleep", "60"])

def test_folder(): tempfile.mkdtemp(prefix="penstock-forgotten-")

def test_clean(): pass
"""

ENDS_BADLY = """
import pytest

@pytest.fixture
def server():
    yield
    assert not {broken}, "it did not end"

def test_plain(): pass

def test_with(server): pass
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run pytest with the project's plugins on files of the test's own."""

    def run(ci: str, *arguments: str, **sources: str) -> subprocess.CompletedProcess[str]:
        root = Path(__file__).parents[2]
        (tmp_path / "conftest.py").write_text(
            (root / "tests/conftest.py").read_text()
            + "import tests.fixtures.waiting\ntests.fixtures.waiting.PATIENCE_S = 0.1\n"
        )
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)
        environment = {**os.environ, "CI": ci, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-q"]
        return subprocess.run(
            [*command, *arguments, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
        )

    return run


def test_an_excuse_fails_the_run_in_ci_and_is_named(run: Run) -> None:
    done = run(ci="true", test_single=EXCUSES, test_module="import pytest\npytest.skip('', allow_module_level=True)")
    assert done.returncode == 1, done.stdout
    for name in "skipped", "expected_to_fail", "passes_against_expectation":
        assert f"test_{name}: " in done.stdout
    assert "test_module.py: skipped as a whole" in done.stdout
    assert "test_plain" not in done.stdout


def test_an_excuse_passes_outside_ci(run: Run) -> None:
    assert run(ci="", test_single=EXCUSES).returncode == 0


def test_what_a_test_leaves_fails_it_by_name_and_the_seed_is_printed(run: Run) -> None:
    done = run(ci="", test_sample=LEFTOVERS)
    assert done.returncode == 1, done.stdout
    assert "left behind: thread forgotten" in done.stdout
    assert "sleep 60" in done.stdout
    assert "left behind: temporary penstock-forgotten-" in done.stdout
    assert "4 passed, 3 errors" in done.stdout, "each left-over is its own test's, and only its own"
    assert "PENSTOCK_SEED=" in done.stdout


def test_each_test_keeps_its_last_result_also_one_that_ends_badly(run: Run, tmp_path: Path) -> None:
    results = tmp_path / "last-run.txt"

    def told() -> list[tuple[str, str]]:
        lines = [line for line in results.read_text().splitlines() if not line.startswith("#")]
        return [(line.split()[0], line.rpartition("::")[2]) for line in lines]

    run("", "--results", str(results), test_one=ENDS_BADLY.format(broken=True), test_two="def test_old(): pass")
    assert told() == [("passed", "test_plain"), ("FAILED", "test_with"), ("passed", "test_old")]
    (tmp_path / "test_two.py").unlink()
    run("", "--results", str(results), test_one=ENDS_BADLY.format(broken=False))
    assert told() == [("passed", "test_plain"), ("passed", "test_with"), ("passed", "test_old")]
