"""A deployment whose parts are killed again and again, on both paths, under a writer that never rests."""

from __future__ import annotations

import os
from itertools import islice

import pytest

from tests.fixtures.crashes import PARTS, Crashes, dealt

CRASHES = int(os.environ.get("PENSTOCK_CRASHES", "50"))


@pytest.mark.timeout(7200)
def test_killed_at_random_for_long(crashes: Crashes) -> None:
    """E20, E21, E32, E80, E86: driver, JVM, worker, reader, server, search server, network; looked at after each.

    In every third round another part is ended before the first is missed no more, while the run starts, say.
    """
    for part in islice(dealt(crashes.rng), CRASHES // 2):
        crashes.round(part, *([crashes.rng.choice(PARTS)] if crashes.rng.random() < 1 / 3 else []))
    crashes.finish()
