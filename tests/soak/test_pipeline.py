"""A deployment whose parts are killed again and again, on both paths, under a writer that never rests."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

from penstock.demo.server import Server
from tests.fixtures.crashes import Crashes
from tests.fixtures.pipelines import Deployed

CRASHES = int(os.environ.get("PENSTOCK_CRASHES", "50"))


def test_killed_at_random_for_long(
    path: str, start_server: Callable[..., Server], deploy: Callable[..., Deployed], rng: random.Random
) -> None:
    """E20, E21, E32: driver, JVM, worker, the stream's reader, the server; looked at after every ten crashes."""
    crashes = Crashes(deploy(server=start_server()), rng, spread=path == "spread")
    for done in range(0, CRASHES // 2, 10):
        crashes.rounds(min(10, CRASHES // 2 - done))
        crashes.finish()
