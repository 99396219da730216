"""How a query's reader is doing, for other processes on the same machine.

Spark has no place for a source's own figures, so each reader keeps a small file with its position, how far it has
received, and when it last said so. Guarantees: files are the user's alone (0600 in a 0700 folder), hold no secret and
no row value, appear whole or not at all, and are gone when the reader ends; one left by a killed reader is told by its
process and removed by whoever looks.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from penstock.model import Lsn

_FORMAT = 1
_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class ReaderHealth:
    """One reader. `lag_bytes`: received, but not yet done by Spark."""

    slot: str
    server: str
    pid: int
    acknowledged: str
    received: str
    lag_bytes: int
    updated_at: float
    format: int = _FORMAT


class Progress(Protocol):
    """What a report tells of."""

    @property
    def acknowledged(self) -> Lsn: ...
    @property
    def reached(self) -> Lsn: ...


def folder() -> Path:
    """Where the reports of this user are."""
    place = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    if place.stat().st_uid != os.getuid():
        raise PermissionError(f"{place} belongs to somebody else")
    return place


class Report:
    """The file of one reader; a folder that cannot be written costs the report, not the stream."""

    def __init__(self, slot: str, server: str) -> None:
        self._slot = slot
        self._server = server
        name = hashlib.sha256(f"{server} {slot}".encode()).hexdigest()[:16]
        self._name = f"reader-{name}-{os.getpid()}.json"
        self._written_at = float("-inf")

    def write(self, progress: Progress) -> None:
        """Say where the reader stands, at most once a second."""
        if time.monotonic() - self._written_at < _EVERY_S:
            return
        self._written_at = time.monotonic()
        done, received = progress.acknowledged, progress.reached
        lag = max(received - done, 0) if done else 0
        report = ReaderHealth(self._slot, self._server, os.getpid(), str(done), str(received), lag, time.time())
        try:
            target = folder() / self._name
            fresh = target.with_suffix(".new")
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(asdict(report), file)
            fresh.replace(target)
        except OSError:
            pass

    def remove(self) -> None:
        """The reader ends."""
        try:
            place = folder()
            (place / self._name).unlink(missing_ok=True)
            place.rmdir()  # the last one leaves nothing
        except OSError:
            pass


def readers() -> list[ReaderHealth]:
    """The readers of this user that run on this machine."""
    found = []
    for path in sorted(folder().glob("reader-*.json")):
        try:
            report = ReaderHealth(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            continue  # it ended just now, or is of another version
        if _runs(report.pid):
            found.append(report)
        else:
            path.unlink(missing_ok=True)
    return found


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
