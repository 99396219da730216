"""Spark's own daemon of Python workers, with PySpark from its folder instead of its zip file.

    spark.python.daemon.module = penstock.spark.daemon

Spark puts `pyspark.zip` first on the path of its workers, and Python keeps nothing compiled of what a zip file holds:
each worker would compile PySpark anew, which takes half a second of CPU. The zip file of another installation stays.

Deliberately not: modules that Spark's daemon does not load. Workers are forks of it, and a process with threads, which
pyarrow has, must not be forked.
"""

from __future__ import annotations

import runpy
import sys
from importlib.machinery import PathFinder
from pathlib import Path

NAMES = frozenset({"pyspark.daemon", "penstock.spark.daemon"})
"""A process with one of these among its words is such a daemon: Spark's, or this one."""


def without_zips(path: list[str]) -> list[str]:
    """The path without the zip files of the very PySpark that is found on it as a folder."""
    rest = [place for place in path if not place.endswith(".zip")]
    found = PathFinder.find_spec("pyspark", rest)
    if found is None or found.origin is None or PathFinder.find_spec("py4j", rest) is None:
        return path
    zips = Path(found.origin).parent / "python" / "lib"
    return [place for place in path if Path(place).parent != zips]


if __name__ == "__main__":
    sys.path[:] = without_zips(sys.path)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
