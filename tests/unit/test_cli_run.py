"""How `penstock run` ends, with everything but its ending played by stand-ins."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.cli import run as command
from penstock.cli import status
from penstock.errors import ConfigError, OperatorError, PenstockError
from tests.fixtures.waiting import wait_until

beats: list[tuple[Any, ...]] = []
OWN = {"MALLOC_ARENA_MAX": "7", "ARROW_DEFAULT_MEMORY_POOL": "mimalloc"}


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`stopped(error, by=…)`: the exit code of a run that a signal ends, while Spark fails with an error."""

    def run(error: Exception, *, by: signal.Signals | None) -> int:
        beats.clear()
        pipeline = SimpleNamespace(asked=False)
        pipeline.stop = lambda: setattr(pipeline, "asked", True)

        def show(_: object) -> None:
            if by:
                os.kill(os.getpid(), by)
                wait_until(lambda: pipeline.asked, what="the pipeline to be asked to stop")
            raise error

        nothing = SimpleNamespace(close=lambda: None)
        monkeypatch.setattr("penstock.app.heartbeat.beating", lambda *asked: beats.append(asked) or nullcontext())
        monkeypatch.setattr(command, "_start", lambda *_: pipeline)
        monkeypatch.setattr(command, "_show", show)
        monkeypatch.setattr("penstock.app.commands.commands", lambda *_: {})
        monkeypatch.setattr("penstock.ops.control.Control", lambda *_: nothing)
        source = SimpleNamespace(slot="shop", publication="shop", heartbeat_s=7.0)
        deployment: Any = SimpleNamespace(
            source=source, prefix="", enabled=[], state=".penstock", locate=lambda path: str(tmp_path / path)
        )
        prepared = SimpleNamespace(end=lambda: None, settings="where", deployment=deployment)
        monkeypatch.setattr("penstock.app.running.prepare", lambda *_: prepared)
        watching: Any = SimpleNamespace(page="", attach=lambda *_: {}, pause=None, close=lambda: None)
        return command._run(deployment, watching, ("local[*]", {}), False)

    return run


def test_a_signal_that_ends_spark_as_well_ends_the_run_in_good_order(
    stopped: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A service manager signals all processes of a service: what Spark then fails with is no defect."""
    assert stopped(ConnectionResetError("the JVM is gone"), by=signal.SIGTERM) == 0
    assert beats == [("where", 7.0)], "a heartbeat as long as it runs, where one is asked for"
    shown = capsys.readouterr().err
    assert "done again by the next run" in shown
    assert "What stays: slot shop" in shown


def test_what_fails_unasked_or_is_told_by_us_is_not_taken_for_the_end(stopped: Any) -> None:
    with pytest.raises(ConnectionResetError):
        stopped(ConnectionResetError("the JVM is gone"), by=None)
    with pytest.raises(OperatorError, match="the disk is full"):
        stopped(OperatorError("the disk is full"), by=signal.SIGTERM)


@pytest.mark.parametrize("error", [ConfigError("others can read it"), OperatorError("it does not answer")])
def test_a_link_that_cannot_be_had_ends_nothing(
    error: PenstockError, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's address is told without one."""

    def refuse(*_: object) -> str:
        raise error

    monkeypatch.setattr("penstock.app.watching.page_link", refuse)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    command._tell_where(Path(), "http://127.0.0.1:1/")
    status._tell_page(Path(), "http://127.0.0.1:1/")
    shown = capsys.readouterr()
    assert shown.err == shown.out == f"The page: http://127.0.0.1:1/ (no link into it: {error.message})\n"


def test_memory_is_taken_from_few_pools_unless_the_operator_says_otherwise() -> None:
    """By this process and those that it starts, the JVM's among them."""
    program = (
        "import os, pyarrow; from penstock.app.allocation import share_memory; share_memory();"
        " print(os.environ['MALLOC_ARENA_MAX'], pyarrow.default_memory_pool().backend_name)"
    )

    def told(**own: str) -> str:
        given = {name: value for name, value in os.environ.items() if name not in OWN}
        done = subprocess.run(
            [sys.executable, "-c", program], env=given | own, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert told() == "2 system"
    assert told(**OWN) == "7 mimalloc"
