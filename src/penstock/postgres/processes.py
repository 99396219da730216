"""Other processes, by what the system says of them: whether one is still there, and who started it.

Guarantee: a process is told from a later one that was given the same number, where the system tells (Linux).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

Watched = list[int | str]

# A process that has ended and was not collected yet is listed, but is no more.
_ENDED = "ended"


def mark(pid: int) -> Watched:
    """A process to watch: its number and when it was started."""
    return [pid, _started(pid)]


def is_alive(watched: Watched) -> bool:
    """Whether a marked process still runs."""
    pid, started = watched
    return runs(int(pid)) and _started(int(pid)) == started


def runs(pid: int) -> bool:
    """Whether there is a process of this number that has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is there, and somebody else's
        pass
    return _started(pid) != _ENDED


def parent(pid: int) -> int:
    """Who started a process; 0 where that is not known."""
    fields = _fields(pid)
    if fields:
        return int(fields[1])
    return int(_ps(pid, "ppid") or 0)


def command(pid: int) -> str:
    """The words it was started with; empty where that is not known."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return _ps(pid, "command")


def _started(pid: int) -> str:
    fields = _fields(pid)
    return "" if not fields else _ENDED if fields[0] == "Z" else fields[19]


def _fields(pid: int) -> list[str]:
    """What Linux tells of a process, from its state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _ps(pid: int, field: str) -> str:
    try:
        found = subprocess.run(["ps", "-o", f"{field}=", "-p", str(pid)], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return found.stdout.strip()
