"""How a run takes memory: from few pools, so that what was freed is used again.

By itself glibc gives each of many threads a pool of its own, and so does the allocator that Arrow brings: what was
freed in one is no use to the others, and threads that come and go with batches and seeds leave each pool as large as it
ever was. Guarantees: a setting of the operator's own (`MALLOC_ARENA_MAX`, `ARROW_DEFAULT_MEMORY_POOL`) stays.
Deliberately not: C libraries that have no such pools.
"""

from __future__ import annotations

import ctypes
import os

_VARIABLE = "MALLOC_ARENA_MAX"
_M_ARENA_MAX = -8  # mallopt's name for it
# One for the threads that work off batches, one for the rest.
_POOLS = 2


def share_memory() -> None:
    """Have the threads of this process share a few pools, and so those of every process that it starts from now on.

    Arrow's own allocator stays what it is in other processes: there it is quicker, and few threads use it.
    """
    import pyarrow as pa  # takes a while

    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())
    if _VARIABLE in os.environ:
        return
    os.environ[_VARIABLE] = str(_POOLS)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _POOLS)
