"""Named places where a test may end the process as if it were killed.

`PENSTOCK_FAILPOINT=spill:3` kills the process (SIGKILL: no clean-up, no flush) when it passes `spill` the third time;
the last that it says on stderr is `killed at spill`, so that this end is told from any other.
Guarantee: without that variable a pass costs one comparison and does nothing.
"""

from __future__ import annotations

import os
import signal

CAPTURE = ("receive", "assemble", "spill", "deliver", "confirm", "feedback")
REFERENCE = ("base", "head", "unlink", "saved")
ENGINE = ("settle", "resolve", "build", "write", "flush")
# Durable in every sink, a batch is about to be logged by Spark; logged, the slot is about to pass it, or just did.
SPARK = ("checkpoint", "acknowledge")
# A generation is filled and about to be verified; verified, about to be shown; shown, and the one before about to go.
SUCCESSION = ("verify", "swap", "retire")

_name, _, _passes = os.environ.get("PENSTOCK_FAILPOINT", "").partition(":")
_left = int(_passes or 1)


def passing(name: str) -> None:
    """Say that execution passes the failpoint `name`."""
    global _left  # noqa: PLW0603 - a countdown for the whole process is the point
    if name == _name:
        _left -= 1
        if _left <= 0:
            os.write(2, f"{said(name)}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)


def said(name: str) -> str:
    """What a process says that is killed at the failpoint `name`."""
    return f"killed at {name}"
