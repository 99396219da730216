"""However a query's reader is told to end, what it holds is let go of first."""

from __future__ import annotations

import subprocess
import sys

import pytest

# What Spark's own loop does around a reader, with the signal at the moments that are hardest to meet.
PROGRAM = """
import os, signal, sys
from penstock.spark.reader import ChangeReader

class Held:
    def close(self):
        print("let go", flush=True)

def told_to_end():
    os.kill(os.getpid(), signal.SIGTERM)

reader = ChangeReader(None, None)
reader._end_on_sigterm()
reader._live = Held()
try:
    try:
        {first}
    finally:
        {second}
        reader.stop()
except BaseException:
    sys.exit(-1)
"""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("told_to_end()", "pass"),
        ("told_to_end()", "told_to_end()"),
        ("raise EOFError", "told_to_end()"),
        ("raise BrokenPipeError", "told_to_end()"),
        ("raise EOFError", "pass"),
    ],
)
def test_a_reader_that_is_told_to_end_at_any_moment_lets_go_once(first: str, second: str) -> None:
    """Spark closes its side and sends SIGTERM, twice, in no certain order."""
    program = PROGRAM.format(first=first, second=second)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "let go\n", done.stderr
    assert "Traceback" not in done.stderr
