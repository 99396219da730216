"""Killed at every step, and at any moment: after the restarts everything is there, and nothing that should not be."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from penstock import failpoints
from tests.fixtures.trials import Trial
from tests.fixtures.waiting import wait_until
from tests.fixtures.writers import Writer

# At which pass the process ends, run after run: early ones, and some in the midst of the work.
PASSES = {
    "receive": (1, 7, 60),
    "assemble": (1, 3, 25),
    "spill": (1, 2, 3),
    "deliver": (1, 3, 15),
    "confirm": (1, 6, 40),
    "feedback": (1, 2, 4),
}


@pytest.mark.parametrize("name", failpoints.CAPTURE)
def test_killed_at_a_step_and_started_again(trial: Trial, name: str, rng: random.Random) -> None:
    """E21, E13, E20: three times at that step, under a writer that goes on, by thin changes and by Arrow batches."""
    arrow = rng.random() < 0.5
    with Writer(trial.published.database, rng, large=0.15 if name == "spill" else 0.03):
        for passes in PASSES[name]:
            assert trial.start(f"{name}:{passes}", arrow).ended() == -signal.SIGKILL
            trial.note_crash()
    trial.finish()


def test_killed_at_random(trial: Trial, rng: random.Random) -> None:
    """E21: at any moment, under a writer that goes on; the run's seed replays the choices."""
    with Writer(trial.published.database, rng, pause_s=0.001):
        for _ in range(6):
            consumer = trial.start(arrow=rng.random() < 0.5)
            until = time.monotonic() + rng.uniform(0.05, 0.4)
            wait_until(lambda until=until: time.monotonic() > until)  # type: ignore[misc]
            consumer.kill()
            assert consumer.ended() == -signal.SIGKILL
            trial.note_crash()
    trial.finish()
    assert trial.kept.count() > 100


def test_killed_between_begin_and_commit(trial: Trial) -> None:
    """E13: nothing of the transaction is seen; after the restart all of it is."""
    published = trial.published
    with published.database.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 2000) i")
        assert trial.start("spill:1").ended() == -signal.SIGKILL, "it was being received"
        trial.note_crash()
        assert trial.kept.count() == 0
        writer.execute("INSERT INTO t SELECT i, 'x' FROM generate_series(2001, 2100) i")
    trial.finish()
    assert len(trial.kept.state()) == 2100


def test_the_second_process_takes_over_when_the_first_is_killed(trial: Trial, rng: random.Random) -> None:
    """E33, E21: it waits as long as the first lives, and goes on behind what was confirmed."""
    with Writer(trial.published.database, rng):
        first = trial.start()
        wait_until(trial.kept.count, what="the first to be at work")
        second = trial.start()
        first.kill()
        assert first.ended() == -signal.SIGKILL
        reached = trial.kept.count()
        wait_until(lambda: trial.kept.count() > reached, what="the second to be at work")
        second.kill()
        assert second.ended() == -signal.SIGKILL
        trial.note_crash()
    trial.finish()


def test_a_server_and_its_consumer_crash_in_turn(trial: Trial) -> None:
    """E20, E21: the slot is set back by the one, and the other has forgotten what it had received."""
    for number in range(3):
        consumer = trial.start()
        trial.published.insert(number * 10, number * 10 + 1)
        wait_until(lambda number=number: trial.kept.count() >= 2 * (number + 1))  # type: ignore[misc]
        trial.published.database.server.restart(signal.SIGQUIT)
        trial.published.insert(number * 10 + 2)
        consumer.kill()
        consumer.ended()
    trial.finish()


def test_a_failpoint_is_set_by_the_environment_of_any_process() -> None:
    """E21: without the variable a pass does nothing."""
    program = (
        "from penstock import failpoints\nfor _ in range(3): failpoints.passing('spill'); print('passed', flush=True)"
    )
    for said, passed, status in (("spill:3", 2, -signal.SIGKILL), ("", 3, 0), ("receive:1", 3, 0)):
        environment = {**os.environ, "PENSTOCK_FAILPOINT": said, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
        assert (done.returncode, done.stdout.count(b"passed")) == (status, passed)
