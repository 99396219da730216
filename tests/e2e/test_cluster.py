"""A deployment on a standalone cluster whose workers are somebody else; an executor is killed on the way."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fixtures import market
from tests.fixtures.clusters import Cluster
from tests.fixtures.opensearch import Node
from tests.fixtures.pipelines import LIMIT, Deployed
from tests.fixtures.trade import Trade
from tests.fixtures.waiting import wait_until


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="c-", ignore_cleanup_errors=True) as folder:
        found = Cluster(Path(folder))
        try:
            yield found
        finally:
            found.stop()


@LIMIT
@pytest.mark.long
def test_an_executor_is_lost_while_documents_are_written(
    cluster: Cluster, deploy: Callable[..., Deployed], node: Node, rng: random.Random
) -> None:
    """E20, E21: seeded and kept by tasks that reach no file of the driver's; every document is right in both sinks."""
    deployed = deploy(node)
    deployed.database.execute(market.ROWS)
    deployed.write(**market.SCHEMAS)
    cluster.start()
    settings = [f"--conf={name}={value}" for name, value in cluster.conf().items()]
    run = deployed.start(spread=True, arguments=("--master", cluster.master, *settings), **cluster.variables())
    run.await_live()
    with Trade(deployed.database, rng) as trade:
        trade.await_more(50)
        lost = rng.choice(cluster.executors())
        assert lost.uids().real == cluster.uid
        may_be_us = os.geteuid() != 0 and not os.environ.get("CI")  # only root can start processes as somebody else
        assert may_be_us or cluster.uid != os.geteuid(), "workers are somebody else"
        lost.kill()
        trade.await_more(50)
        wait_until(lambda: len(cluster.executors()) == 2, 120, "another executor in its place")
        trade.await_more(50)
    run.catch_up()
    deployed.judge()
    told = run.status()
    assert told
    assert told["batches"] > told["direct_batches"] == 0
    assert run.stop() == 0
