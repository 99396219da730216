"""What Spark's Python processes load, and what they need not."""

from __future__ import annotations

import importlib
import subprocess
import sys

from penstock.spark import daemon
from penstock.spark.settings import settings


def test_workers_of_this_machine_are_forked_from_a_process_that_has_their_modules() -> None:
    assert settings("local[2]", 2)["spark.python.daemon.module"] == daemon.__name__
    assert "spark.python.daemon.module" not in settings("spark://host:7077", 2), "executors elsewhere may lack it"
    for name in daemon.MODULES:
        importlib.import_module(name)


def test_planning_a_query_loads_no_pandas() -> None:
    """Spark keeps a process for each of three steps of that: half of what each takes was pandas."""
    program = "import sys; import penstock.spark.source; print('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"
