"""What Spark's checkpoint of the stream says, read from its files.

Guarantees: nothing is written there; what cannot be read, because it is not there, or Spark was ended while it wrote,
is nothing; after `sync` a machine that loses power starts again from there. Deliberately not: what an offset means,
which the stream's reader knows.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from penstock.errors import DiskError


def of(state: str | Path) -> Path:
    """Where it is in a state folder, by a path that every process understands."""
    return Path(state, "checkpoint").absolute()


def identity(checkpoint: Path) -> str:
    """What tells it from every other one; empty where there is none."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text())["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def planned(checkpoint: Path) -> list[int]:
    """The batches whose ends are noted down, the newest first."""
    return _numbers(checkpoint / "offsets")


def done(checkpoint: Path) -> list[int]:
    """The batches that are noted down as done, the newest first."""
    return _numbers(checkpoint / "commits")


def end(checkpoint: Path, batch: int) -> dict[str, Any] | None:
    """The offset at which a batch ends."""
    try:
        found = json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return None
    return found if isinstance(found, dict) else None


def sync(checkpoint: Path) -> None:
    """Bring to disk what a start goes by, the last batches: Spark writes them, and does not sync."""
    offsets, commits = checkpoint / "offsets", checkpoint / "commits"
    # For its last batch Spark starts at the end of the one before.
    files = [offsets / str(one) for one in planned(checkpoint)[:2]]
    if not files:
        raise DiskError(f"{checkpoint} is gone", hint="Look after that folder's disk, and start again.")
    files += [commits / str(one) for one in done(checkpoint)[:1]]
    try:
        for path in (*files, checkpoint / "metadata", offsets, commits, checkpoint):
            if path.exists():
                _sync(path)
    except OSError as error:
        raise DiskError(
            f"{checkpoint} cannot be brought to disk: {error.strerror}",
            hint="Look after that disk. Nothing is acknowledged beyond what is on it.",
        ) from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _numbers(folder: Path) -> list[int]:
    return sorted((int(one.name) for one in folder.glob("[0-9]*") if one.name.isdigit()), reverse=True)
