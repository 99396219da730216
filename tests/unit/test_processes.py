"""Other processes as the system tells of them."""

from __future__ import annotations

import os
import subprocess
import sys

from penstock.postgres import processes
from tests.fixtures.waiting import wait_until


def test_a_process_is_alive_until_it_ends_collected_or_not() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    watched = processes.mark(child.pid)
    assert processes.is_alive(watched)
    assert processes.runs(child.pid)
    assert processes.parent(child.pid) == os.getpid()
    wait_until(lambda: "input()" in processes.command(child.pid), what="the child to become its program")
    child.kill()
    wait_until(lambda: not processes.is_alive(watched), what="the process to end")
    assert not processes.runs(child.pid)
    child.communicate()
    assert not processes.is_alive(watched)
    assert not processes.runs(child.pid)
    assert processes.parent(child.pid) == 0
    assert processes.command(child.pid) == ""


def test_another_process_with_the_same_number_is_not_taken_for_it() -> None:
    pid, started = processes.mark(os.getpid())
    assert processes.is_alive([pid, started])
    assert not processes.is_alive([pid, f"{started}0"])
