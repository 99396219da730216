"""The control socket of a running deployment: other processes of the same user ask it things.

A unix socket in the state folder; one line of JSON in, one line out. Guarantees: only its user may connect (0600 in a
folder of 0700); a question that is not understood gets a sentence, never an exception; a few callers are answered at a
time, so that one whose answer takes long holds up no other; a socket that a killed process left behind is taken over.
Where the state folder's path is too long for a socket, it lies in a private temporary folder and a file in the state
folder says where. Deliberately not: anything over the network.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock.errors import BugError, ConfigError, OperatorError, PenstockError, RetryableError

log = logging.getLogger(__name__)

_NAME = "control.sock"
_LONGEST = 100
_PATIENCE_S = 30.0
_MOST_CALLERS = 8
Answers = Mapping[str, Callable[[Mapping[str, Any]], Any]]


# What whoever asked has to do about an error travels by these words.
_KINDS: Mapping[str, type[PenstockError]] = {"mend": ConfigError, "retry": RetryableError, "report": BugError}


class NothingRunsError(OperatorError):
    """No deployment runs with this state."""


class Control:
    """The answering side. `close` it."""

    def __init__(self, state: Path, answers: Answers) -> None:
        self._answers = answers
        self._private: str | None = None
        self._path = state / _NAME
        pointer = self._path.with_suffix(".path")
        if pointer.exists():  # of a process that was killed; or the path was longer then
            shutil.rmtree(pointer.read_text(), ignore_errors=True)
            pointer.unlink()
        if len(os.fsencode(self._path.absolute())) > _LONGEST:  # so that it is found from any folder
            self._private = tempfile.mkdtemp(prefix="penstock-")
            pointer.write_text(self._private)
            self._path = Path(self._private) / _NAME
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            self._listener.bind(str(self._path))
        finally:
            os.umask(before)
        self._listener.listen(8)
        self._room = threading.Semaphore(_MOST_CALLERS)
        threading.Thread(target=self._serve, name="penstock-control", daemon=True).start()

    def _serve(self) -> None:
        while True:
            self._room.acquire()
            try:
                asking, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve_one, args=(asking,), name="penstock-asked", daemon=True).start()

    def _serve_one(self, asking: socket.socket) -> None:
        with asking:
            try:
                asking.settimeout(_PATIENCE_S)
                asking.sendall(json.dumps(self._answer(_line(asking))).encode() + b"\n")
            except OSError as error:
                log.debug("whoever asked is gone: %s", error)
            finally:
                self._room.release()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            asked = json.loads(line)
            act = self._answers[asked["ask"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            return {"error": f"not understood; there are: {', '.join(sorted(self._answers))}"}
        try:
            return {"answer": act(asked)}
        except PenstockError as error:
            kind = next((name for name, one in _KINDS.items() if isinstance(error, one)), "")
            return {"error": error.message, "hint": error.hint, "kind": kind}
        except Exception as error:  # noqa: BLE001 - whoever asked is told, and the process goes on
            return {"error": str(error)}

    def close(self) -> None:
        """Any number of times."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # a close alone leaves the thread waiting for callers
        self._listener.close()
        self._path.unlink(missing_ok=True)
        if self._private:
            shutil.rmtree(self._private, ignore_errors=True)


def ask(state: Path, question: str, *, patience_s: float | None = None, **details: Any) -> Any:
    """Ask the deployment that runs with this state folder; `patience_s` is for what takes longer than to tell."""
    patience_s = patience_s or _PATIENCE_S
    path = state / _NAME
    pointer = path.with_suffix(".path")
    try:
        if pointer.exists():
            path = Path(pointer.read_text()) / _NAME
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(patience_s)
            asking.connect(str(path))
            asking.sendall(json.dumps({"ask": question, **details}).encode() + b"\n")
            said = json.loads(_line(asking))
    except PermissionError:
        raise OperatorError(
            f"the state in {state} belongs to another user", hint="Ask as the user of penstock run."
        ) from None
    except TimeoutError:
        raise RetryableError(
            f"the run with the state in {state} does not answer within {patience_s:.0f} s", hint="See its log."
        ) from None
    except (OSError, ValueError):
        raise NothingRunsError(
            f"no penstock run uses the state folder {state}",
            hint="Start it with penstock run, or name the deployment with --config.",
        ) from None
    if "error" in said:
        raise _KINDS.get(said.get("kind", ""), OperatorError)(said["error"], hint=said.get("hint", ""))
    return said["answer"]


def _line(connection: socket.socket) -> bytes:
    found = b""
    while not found.endswith(b"\n") and (part := connection.recv(1 << 16)):
        found += part
    return found
