"""What a task does to the Python process that it runs in, once."""

from __future__ import annotations

import functools
import gc


def spare_the_collector() -> None:
    """Spark collects garbage after each task; what a worker has imported need not be looked at every time (20 ms)."""
    from pyspark import TaskContext

    if TaskContext.get() is not None:  # not in a process that is somebody else's
        _spare_the_collector()


@functools.cache
def _spare_the_collector() -> None:
    gc.collect()
    gc.freeze()
