"""What a person at a terminal sees of something that takes long: bars and lines that move, and go when it is over."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

PATIENCE_S = 60.0

RUN = """
import threading
from penstock.cli.run_display import Display
from penstock.engine.report import IndexReport, Report
from penstock.engine.state import Seed
from penstock.model import Lsn
report = Report({name: IndexReport() for name in ("users", "odd[b]", "there")})
report.live(["there"])
report.seeding(Seed("users", "i", ("search",), Lsn(1), total=40, done=10, documents=500))
done = threading.Event()
shown = threading.Thread(target=Display(report).show, args=(done,))
shown.start()
input()
report.seeded("users", 20, 1000)
input()
report.seeded("users", 10, 500)
report.live(["users"])
report.stopped("gone", "it does not fit")
input()
done.set()
shown.join()
"""
CHECK = """
from penstock.cli.check import progress
with progress(False) as tell:
    tell("the catalog")
    input()
    tell("index [b]users[/b]")
    input()
"""
REINDEX = """
from penstock.cli.reindex import _progress
told = {"phase": "seeding", "rebuild": "under way", "seeded": 1500, "chunks_done": 30, "chunks": 40}
with _progress("odd[b]", quiet=False) as tell:
    tell(told)
    input()
    tell(told | {"rebuild": "being verified"})
    input()
"""
RECONCILE = """
from penstock.cli.reconcile import _teller
tell = _teller(quiet=False)
tell({"index": "odd[b]", "done": 3, "ranges": 40, "running": True})
input()
tell({"index": "users", "done": 40, "ranges": 40, "running": False})
"""


@dataclass
class Terminal:
    """What a program shows at a terminal, without the codes that move and colour; `press` lets it go on."""

    process: subprocess.Popen[bytes]
    controller: int
    screen: str = ""

    def read(self, timeout_s: float) -> bool:
        """Whether there was more."""
        if not select.select([self.controller], [], [], timeout_s)[0]:
            return False
        try:
            more = os.read(self.controller, 65536)
        except OSError:  # the other side is closed
            return False
        self.screen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", more.decode(errors="replace"))
        return bool(more)

    def wait_for(self, *wanted: str) -> None:
        """Read until it shows all of these, from now on."""
        until, before = time.monotonic() + PATIENCE_S, len(self.screen)
        while not all(one in self.screen[before:] for one in wanted):
            assert time.monotonic() < until, f"{wanted} is not shown:\n{self.screen[-2000:]}"
            assert self.read(1.0) or self.process.poll() is None, f"it has ended:\n{self.screen[-2000:]}"

    def press(self) -> None:
        """Enter."""
        assert self.process.stdin
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()


@contextmanager
def at_terminal(program: str) -> Iterator[Terminal]:
    """It has to end by itself, and well."""
    controller, terminal = pty.openpty()
    variables = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=terminal, stderr=terminal, env=variables
    ) as process:
        os.close(terminal)
        try:
            found = Terminal(process, controller)
            yield found
            while found.read(PATIENCE_S):
                pass
            assert process.wait(PATIENCE_S) == 0, found.screen
            assert "Traceback" not in found.screen
        finally:
            process.kill()
            os.close(controller)


def test_a_run_shows_a_bar_for_each_index_that_moves() -> None:
    with at_terminal(RUN) as seen:
        seen.wait_for("users", "10/40", "seeding: 500 seeded", "odd[b]", "1/1", "live: 0 seeded")
        seen.press()
        seen.wait_for("30/40", "seeding: 1500 seeded")
        seen.press()
        seen.wait_for("40/40", "live: 2000 seeded", "gone", "stopped: 0 seeded")
        seen.press()


@pytest.mark.parametrize(
    ("program", "steps"),
    [
        (CHECK, ("the catalog", "index [b]users[/b]")),
        (REINDEX, ("odd[b]: 1500 documents, 30 of 40 ranges", "odd[b]: being verified")),
        (RECONCILE, ("odd[b]: 3 of 40 ranges",)),
    ],
    ids=["check", "reindex", "reconcile"],
)
def test_a_command_that_takes_long_says_what_it_is_at(program: str, steps: tuple[str, ...]) -> None:
    with at_terminal(program) as seen:
        for step in steps:
            seen.wait_for(step)
            seen.press()
