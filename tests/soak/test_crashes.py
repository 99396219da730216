"""Kills without end: the consumer, its connection and its server, in any order, under a writer that never rests."""

from __future__ import annotations

import os
import random
import signal
import time

from tests.fixtures.consumers import Consumer
from tests.fixtures.trials import Trial
from tests.fixtures.waiting import wait_until
from tests.fixtures.writers import Writer

KILLS = int(os.environ.get("SOAK_KILLS", "200"))
ROWS = int(os.environ.get("SOAK_ROWS", "10000000")) // 20  # 100,000 at least, so that it spills often enough


def pass_time(rng: random.Random, longest_s: float) -> None:
    """Let the others work for a while."""
    until = time.monotonic() + rng.uniform(0.02, longest_s)
    wait_until(lambda: time.monotonic() > until, longest_s + 10)


def test_killed_at_random_for_long(trial: Trial, rng: random.Random) -> None:
    """E21, E20: hundreds of times; the run's seed replays the choices."""
    with Writer(trial.published.database, rng, pause_s=0.001):
        for _ in range(KILLS):
            consumer = trial.start(arrow=rng.random() < 0.5)
            pass_time(rng, 1.0)
            consumer.kill()
            assert consumer.ended() == -signal.SIGKILL
            trial.note_crash()
    trial.finish()


def test_everything_breaks_in_any_order(trial: Trial, rng: random.Random) -> None:
    """E21, E20, E32: kills, ended walsenders, restarts and crashes of the server; the writer takes turns with them."""
    consumer: Consumer | None = None
    for _ in range(KILLS // 4):
        consumer = consumer or trial.start(arrow=rng.random() < 0.5)
        wait_until(trial.published.walsender, what="the consumer to stream")  # what breaks its first connect is told
        with Writer(trial.published.database, rng, pause_s=0.001):
            pass_time(rng, 0.5)
            if rng.random() < 0.5:
                trial.published.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
                pass_time(rng, 0.3)
        match rng.choice(["kill", "crash", "restart", "nothing"]):
            case "kill":
                consumer.kill()
                assert consumer.ended() == -signal.SIGKILL
                trial.note_crash()
                consumer = None
            case "crash":
                trial.published.database.server.restart(signal.SIGQUIT)
            case "restart":
                trial.published.database.server.restart()
            case _:
                pass
    if consumer:
        consumer.kill()
        consumer.ended()
    trial.finish()


def test_killed_in_the_midst_of_a_large_transaction_again_and_again(trial: Trial, rng: random.Random) -> None:
    """E13, E21: nothing of it is seen until it comes whole."""
    trial.published.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, %s::bigint) i", ROWS)
    for _ in range(10):
        assert trial.start(f"spill:{rng.randint(1, 8)}").ended() == -signal.SIGKILL
        trial.note_crash()
        assert trial.kept.count() == 0
    trial.finish()
    assert len(trial.kept.state()) == ROWS
