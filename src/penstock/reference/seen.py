"""Which transactions of the stream a snapshot has seen.

The stream tells transactions in the order of their commits; others see them in the order in which the server ends them,
which may differ: a commit that waits for a standby is told long before it is seen. So a snapshot is no place in the
WAL. It is the list of what was running when it was taken, and holds up to a place behind which nothing is in it.
Guarantees: plain values, no I/O. Deliberately not: numbers that are two thousand million transactions apart.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.model import Lsn
from penstock.postgres.columns import Ints, Mask

_EPOCH = 1 << 32  # the stream numbers transactions by 32 bits, snapshots by 64


class Seen(NamedTuple):
    """`state` is the snapshot as the server prints it (`xmin:xmax:xip,…`); nothing that ends behind `upto` is in it."""

    state: str
    upto: Lsn

    def covers(self, lsns: Ints, xids: Ints) -> Mask:
        """Which changes, by the ends of their transactions and by their numbers, the snapshot shows."""
        _, end, running = self.state.split(":")
        age = (int(end) - xids) % _EPOCH
        finished = (age > 0) & (age < _EPOCH // 2)
        in_progress = np.array([int(one) % _EPOCH for one in running.split(",") if one], np.int64)
        found: Mask = (lsns <= self.upto) & finished & ~np.isin(xids, in_progress)
        return found


def encode(seen: Seen) -> list[str]:
    """As it stands in a checkpoint."""
    return [seen.state, str(seen.upto)]


def decode(found: list[str]) -> Seen:
    """What `encode` made; an error of any usual kind where it is none."""
    state, upto = found
    xmin, xmax, running = state.split(":")
    if not all(one.isdigit() for one in (xmin, xmax, *running.split(",")) if one):
        raise ValueError(state)
    return Seen(state, Lsn.parse(upto))
