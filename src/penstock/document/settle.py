"""Settled before built: waiting until delivered transactions are visible to whoever looks from now on.

The stream carries a commit as soon as it is flushed; other sessions see its rows only later, for example when a
synchronous standby has answered. A document that is built in between is stale, and nothing would build it again.
Guarantee: `settle` returns only after a fresh snapshot showed every transaction as finished. Deliberately not:
connecting; it is given a way to ask.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from penstock.errors import RetryableError

SNAPSHOT = "SELECT pg_current_snapshot()"
_EPOCH = 1 << 32  # the stream numbers transactions by 32 bits, snapshots by 64
_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05


def unfinished(xids: Collection[int], snapshot: str) -> set[int]:
    """Those transactions that the snapshot (`xmin:xmax:xip,…`) does not show as finished."""
    _, end, running = snapshot.split(":")
    xmax = int(end)
    in_progress = {int(one) % _EPOCH for one in running.split(",") if one}
    return {xid for xid in xids if xid in in_progress or not 0 < (xmax - xid) % _EPOCH < _EPOCH // 2}


def settle(xids: Collection[int], look: Callable[[], str], timeout_s: float) -> None:
    """Return when `look`, which takes a fresh snapshot each time, shows all of them as finished."""
    deadline = time.monotonic() + timeout_s
    pause_s = _PAUSE_S
    left = set(xids)
    while left:
        late = time.monotonic() > deadline
        left = unfinished(left, look())
        if left and late:
            raise RetryableError(
                f"{len(left)} streamed transactions are not visible after {timeout_s:g} s",
                hint="A commit may wait for a synchronous standby: see wait_event = 'SyncRep' in pg_stat_activity.",
            )
        if left:
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
