"""What Spark's checkpoint of the stream says, read from its files.

Guarantees: nothing is written there; what cannot be read, because it is not there, or Spark was ended while it wrote,
is nothing. Deliberately not: what an offset means, which the stream's reader knows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


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


def _numbers(folder: Path) -> list[int]:
    return sorted((int(one.name) for one in folder.glob("[0-9]*") if one.name.isdigit()), reverse=True)
