"""Killed at every step and at any moment, under a writer that never rests: the documents are those of the database."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

import pytest

from penstock.demo.server import Server
from penstock.failpoints import ENGINE
from tests.fixtures import market
from tests.fixtures.crashes import Crashes
from tests.fixtures.pipelines import LIMIT, Deployed
from tests.fixtures.trade import Trade
from tests.fixtures.waiting import wait_until

pytestmark = LIMIT

ROUNDS = 2


@pytest.mark.long
def test_killed_at_every_step_of_a_batch(path: str, deploy: Callable[..., Deployed], rng: random.Random) -> None:
    """E21: settle, resolve, build, write, flush: each next run meets the same batch again, and dies one step later."""
    deployed = deploy()
    deployed.database.execute(market.ROWS)
    deployed.write(**market.SCHEMAS)
    spread = path == "spread"
    run = deployed.start(spread=spread)
    run.catch_up()
    before = deployed.written()
    for step in ENGINE:
        run.kill()
        with Trade(deployed.database, rng) as trade:
            trade.await_more(5)
        run = deployed.start(spread=spread, PENSTOCK_FAILPOINT=step)
        if spread and step in ("settle", "resolve"):  # a task's process dies there, each time it tries
            run.await_trouble()
        else:
            assert run.ended() == -signal.SIGKILL
        assert deployed.confirmed() <= before, "nothing of the batch is acknowledged"
    run = deployed.start(spread=spread)
    run.catch_up()
    deployed.judge()
    wait_until(lambda: deployed.confirmed() > before, what="the slot to move on")
    assert run.stop() == 0


def test_killed_at_random(path: str, start_server: Callable[..., Server], deploy: Callable[..., Deployed],
                          rng: random.Random) -> None:  # fmt: skip
    """E21, E20, E32: driver, JVM, worker, the stream's reader, the server; the run's seed replays the choices."""
    deployed = deploy(server=start_server())
    crashes = Crashes(deployed, rng, spread=path == "spread")
    crashes.rounds(ROUNDS)
    crashes.finish()
