"""Killed at every step and at any moment, under a writer that never rests: the documents are those of the database."""

from __future__ import annotations

import random

import pytest

from penstock.failpoints import ENGINE
from tests.fixtures.crashes import PARTS, Crashes
from tests.fixtures.pipelines import LIMIT

pytestmark = LIMIT

ROUNDS = 2
# Where a batch is spread, these steps are those of tasks: the others are the same on both paths.
TASKS = ENGINE


def test_killed_at_random(crashes: Crashes, seed: int) -> None:
    """E20, E21, E32, E80, E86: two parts, others on the other path, and a step; the run's seed replays the choices.

    Of driver, JVM, a worker, the stream's reader, the server, the search server and the network; of all steps of a
    batch. After each part every document in both sinks is right. `make soak` does all of them, again and again.
    """
    turn = random.Random(seed)
    parts = turn.sample(PARTS, len(PARTS))
    for part in parts[ROUNDS:][:ROUNDS] if crashes.spread else parts[:ROUNDS]:
        crashes.round(part)
    crashes.step(turn.choice(TASKS if crashes.spread else crashes.steps))
    crashes.finish()


@pytest.mark.long
@pytest.mark.timeout(3600)  # a start for each step, and another one
def test_killed_at_every_step_of_a_batch(crashes: Crashes) -> None:
    """E21: read, spool, settle, resolve, build, write, flush, checkpoint, acknowledge, with two sinks.

    After each step every document in both sinks is right, before anything else is changed.
    """
    crashes.round()
    for step in crashes.steps:
        crashes.step(step)
    crashes.finish()
