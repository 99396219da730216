"""How a query's reader is doing, for other processes on the same machine.

Spark has no place for a source's own figures, so each reader keeps a small file with its position, how far it has
received, how far the server is, and whether it streams at all: every second, also while Spark or a sink takes its
time. How far the server is, is asked every ten seconds over a short connection. Guarantees: files are the user's
alone (0600 in a 0700 folder), hold no secret and no row value, appear whole or not at all, and are gone when the
reader ends; one left by a killed reader is told by its process and removed by whoever looks.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from penstock.errors import PenstockError
from penstock.model import Lsn
from penstock.postgres import processes

_FORMAT = 2
_EVERY_S = 1.0
_NEWEST_EVERY_S = 10.0
_CLOSE_S = 5.0


@dataclass(frozen=True, slots=True)
class ReaderHealth:
    """One reader, at `updated_at` (Unix time).

    `acknowledged`: the slot is told so; `received`: everything up to here has come; `done`: no change up to here is not
    done by Spark; `newest`: the end of the server's WAL when it was last asked; `lag_bytes`: from `done` to there.
    `state`: `starting`, `streaming`, `waiting` (for the server or the slot, to try again) or `failed`; `error`: what
    last went wrong, also if it is over; `silent_s`: how long nothing has come from the server.
    """

    slot: str
    server: str
    pid: int
    acknowledged: str
    received: str
    lag_bytes: int
    updated_at: float
    done: str = "0/0"
    format: int = _FORMAT
    newest: str = "0/0"
    state: str = ""
    error: str = ""
    silent_s: float = 0.0


class Progress(Protocol):
    """What a report tells of."""

    @property
    def acknowledged(self) -> Lsn: ...
    @property
    def reached(self) -> Lsn: ...
    @property
    def done(self) -> Lsn: ...
    @property
    def state(self) -> str: ...
    @property
    def trouble(self) -> str: ...
    @property
    def silent_s(self) -> float: ...


def folder() -> Path:
    """Where the reports of this user are, if there are any."""
    return Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"


def _is_ours(place: Path) -> bool:
    """Whether the folder is there and nobody else could have put anything into it."""
    try:
        found = place.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


class Report:
    """The file of one reader; a folder that cannot be written costs the report, not the stream.

    `newest` asks the server how far its WAL reaches.
    """

    def __init__(self, slot: str, server: str, progress: Progress, newest: Callable[[], Lsn]) -> None:
        self._slot = slot
        self._server = server
        self._progress = progress
        self._ask = newest
        self._newest, self._asked_at = Lsn.ZERO, -math.inf
        name = hashlib.sha256(f"{server} {slot}".encode()).hexdigest()[:16]
        self._name = f"reader-{name}-{os.getpid()}.json"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"penstock-health-{slot}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self._write()
            self._sample()
            if self._stop.wait(_EVERY_S):
                return

    def _sample(self) -> None:
        """Ask the server, while it answers and it is time to."""
        if self._progress.state != "streaming" or time.monotonic() - self._asked_at < _NEWEST_EVERY_S:
            return
        try:
            self._newest = self._ask()
        except PenstockError:
            pass  # the stream will tell
        self._asked_at = time.monotonic()

    def _write(self) -> None:
        progress = self._progress
        done, acknowledged, received = progress.done, progress.acknowledged, progress.reached
        newest = max(self._newest, received)
        report = ReaderHealth(
            self._slot, self._server, os.getpid(), str(acknowledged), str(received),
            max(newest - done, 0) if done else 0, time.time(), str(done), newest=str(newest),
            state=progress.state, error=progress.trouble, silent_s=round(progress.silent_s, 1),
        )  # fmt: skip
        try:
            place = folder()
            place.mkdir(mode=0o700, exist_ok=True)
            if not _is_ours(place):
                return
            target = place / self._name
            fresh = target.with_suffix(".new")
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(asdict(report), file)
            fresh.replace(target)
        except OSError:
            pass

    def close(self) -> None:
        """The reader ends, and its file with it."""
        self._stop.set()
        self._thread.join(_CLOSE_S)
        place = folder()
        if _is_ours(place):
            (place / self._name).unlink(missing_ok=True)
            _remove_if_empty(place)


def readers() -> list[ReaderHealth]:
    """The readers of this user that run on this machine."""
    place = folder()
    if not _is_ours(place):
        return []
    found = []
    for path in sorted(place.glob("reader-*.json")):
        try:
            report = ReaderHealth(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            continue  # it ended just now, or is of another version
        if processes.runs(report.pid):
            found.append(report)
        else:
            path.unlink(missing_ok=True)
    for path in place.glob("reader-*.new"):  # of one that was killed while it wrote, its first report maybe
        pid = path.stem.rpartition("-")[2]
        if pid.isdigit() and not processes.runs(int(pid)):
            path.unlink(missing_ok=True)
    _remove_if_empty(place)
    return found


def _remove_if_empty(place: Path) -> None:
    try:
        place.rmdir()
    except OSError:
        pass  # there are others
