"""The control socket, asked over a real unix socket: who may, what is answered, what a killed process leaves."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError, OperatorError, RetryableError
from penstock.ops.control import Control, ask

LEAVE_BEHIND = """
import os, signal, sys, tempfile; from pathlib import Path; from penstock.ops.control import Control
Control(Path(sys.argv[1]), {}); os.kill(os.getpid(), signal.SIGKILL)
"""


def fail(_: Mapping[str, Any]) -> Any:
    raise ValueError("no way")


def refuse(_: Mapping[str, Any]) -> Any:
    raise ConfigError("that is no key", hint="Write another one.")


ANSWERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "status": lambda _: {"batches": 3},
    "echo": lambda asked: asked["word"],
    "fail": fail,
    "refuse": refuse,
}


@pytest.fixture
def state() -> Iterator[Path]:
    """A folder whose path is short enough for a socket, whatever pytest's own is."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def far(state: Path) -> Path:
    """A folder whose path is too long."""
    found = state / ("long" * 30)
    found.mkdir()
    return found


@pytest.fixture
def control(state: Path) -> Iterator[Control]:
    found = Control(state, ANSWERS)
    yield found
    found.close()


def raw(path: Path, line: bytes) -> Any:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(10)
        asking.connect(str(path))
        asking.sendall(line)
        return json.loads(asking.makefile().readline())


def test_a_question_gets_its_answer(control: Control, state: Path) -> None:
    assert ask(state, "status") == {"batches": 3}
    assert ask(state, "echo", word="grüß dich") == "grüß dich"


def test_a_long_answer_comes_whole(state: Path) -> None:
    long = ["x" * 1000] * 1000
    control = Control(state, {"long": lambda _: long})
    assert ask(state, "long") == long
    control.close()


def test_only_its_user_may_connect(control: Control, state: Path) -> None:
    assert os.stat(state / "control.sock").st_mode & 0o777 == 0o600


def test_the_users_umask_is_as_before(state: Path) -> None:
    before = os.umask(0o022)
    try:
        Control(state, {}).close()
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    "line", [b"", b"status", b"[]", b'"ask"', b"{}", b'{"ask": []}', b'{"ask": "no"}', b"\xff", b"[" * 99_999]
)
def test_what_is_not_understood_gets_a_sentence(control: Control, state: Path, line: bytes) -> None:
    said = raw(state / "control.sock", line + b"\n")
    assert said == {"error": "not understood; there are: echo, fail, refuse, status"}
    assert ask(state, "status") == {"batches": 3}, "and it goes on"


def test_an_answer_that_fails_is_told_to_who_asked(control: Control, state: Path) -> None:
    with pytest.raises(OperatorError, match="no way"):
        ask(state, "fail")
    with pytest.raises(ConfigError, match="no key") as refused:
        ask(state, "refuse")
    assert refused.value.hint == "Write another one."
    assert ask(state, "status") == {"batches": 3}


def test_a_caller_that_leaves_without_a_word_disturbs_nobody(control: Control, state: Path) -> None:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(state / "control.sock"))
    assert ask(state, "status") == {"batches": 3}


def test_an_answer_that_takes_long_holds_up_no_other(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And whoever knows that it takes long waits longer than others."""
    asked, go_on, said = threading.Event(), threading.Event(), []

    def slow(_: Mapping[str, Any]) -> str:
        asked.set()
        go_on.wait(10)
        return "done"

    monkeypatch.setattr("penstock.ops.control._PATIENCE_S", 0.5)
    control = Control(state, {**ANSWERS, "slow": slow})
    waiting = threading.Thread(target=lambda: said.append(ask(state, "slow", patience_s=10)))
    waiting.start()
    assert asked.wait(10)
    assert ask(state, "status", patience_s=10) == {"batches": 3}
    with pytest.raises(RetryableError, match="does not answer"):
        ask(state, "slow")
    go_on.set()
    waiting.join(10)
    assert said == ["done"]
    control.close()


def test_where_nothing_runs_the_next_step_is_told(state: Path) -> None:
    with pytest.raises(OperatorError, match="no penstock run uses") as found:
        ask(state, "status")
    assert found.value.message == f"no penstock run uses the state folder {state}"
    assert "penstock run" in found.value.hint


def test_a_run_that_does_not_answer_is_not_taken_for_none(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.ops.control._PATIENCE_S", 0.05)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(state / "control.sock"))
        deaf.listen()
        with pytest.raises(RetryableError, match="does not answer"):
            ask(state, "status")


def test_the_state_of_another_user_is_told_as_that(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(OperatorError, match="belongs to another user"):
        ask(state, "status")


def test_what_a_killed_process_left_is_taken_over(state: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LEAVE_BEHIND, str(state)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (state / "control.sock").exists()
    with pytest.raises(OperatorError, match="no penstock run uses"):
        ask(state, "status")
    control = Control(state, ANSWERS)
    assert ask(state, "status") == {"batches": 3}
    control.close()


def test_a_closed_one_leaves_nothing(state: Path) -> None:
    control = Control(state, ANSWERS)
    control.close()
    control.close()
    assert list(state.iterdir()) == []


def test_a_path_too_long_for_a_socket_is_no_trouble(far: Path) -> None:
    control = Control(far, ANSWERS)
    assert ask(far, "status") == {"batches": 3}
    folder = Path((far / "control.path").read_text())
    assert os.stat(folder).st_mode & 0o777 == 0o700
    control.close()
    assert not folder.exists()
    with pytest.raises(OperatorError, match="no penstock run uses"):
        ask(far, "status")


def test_a_run_that_knows_its_folder_by_a_short_name_is_found_by_the_long_one(
    far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(far)
    control = Control(Path(), ANSWERS)
    assert ask(Path(), "status") == {"batches": 3}
    monkeypatch.chdir("/")
    assert ask(far, "status") == {"batches": 3}
    monkeypatch.chdir(far)
    control.close()


def test_a_killed_process_with_a_long_path_is_taken_over_too(far: Path) -> None:
    subprocess.run([sys.executable, "-c", LEAVE_BEHIND, str(far)], check=False)
    left = Path((far / "control.path").read_text())
    assert left.exists()
    control = Control(far, ANSWERS)
    assert not left.exists()
    assert ask(far, "status") == {"batches": 3}
    control.close()


def test_a_state_that_was_moved_to_a_short_path_is_found_there(far: Path, state: Path) -> None:
    subprocess.run([sys.executable, "-c", LEAVE_BEHIND, str(far)], check=False)
    (far / "control.path").rename(state / "control.path")
    control = Control(state, ANSWERS)
    assert ask(state, "status") == {"batches": 3}
    control.close()
