"""Killed at every named step and at random: the batches together are the history, each change once.

A seed of the run's own picks the places; it is printed, and `PENSTOCK_SEED` repeats them.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.spark import health
from tests.fixtures.drivers import Drivers
from tests.fixtures.followers import Follower, FollowerNursery, Log
from tests.fixtures.programs import LIMIT
from tests.fixtures.spark import Engine
from tests.fixtures.streams import Batches, Running, Steps, Streamed, Writer, reader_of, workers_of
from tests.fixtures.waiting import wait_until

FAILPOINTS = ("receive", "assemble", "spill", "deliver", "acknowledge", "feedback")
TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, v text)"
# Small enough that a transaction of some rows goes by way of the disk, and that the receiver has to wait for Spark.
SMALL = {"table": "t", "spoolMaxBytes": 8000, "maxRowsPerTrigger": 1000}


class Followed:
    """A reader that is killed and started again, with a log that outlives it."""

    def __init__(self, steps: Steps, nursery: FollowerNursery, file: Path, rng: random.Random) -> None:
        self.steps, self.rng, self.log = steps, rng, Log(file)
        self._nursery, self._file = nursery, file
        steps.execute(TABLE)
        steps.execute(f"CREATE PUBLICATION {steps.slot} FOR TABLE t")
        steps.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", steps.slot)
        self.writer = Writer(steps.database, rng)
        self._follower: Follower | None = None
        self.options: dict[str, Any] = SMALL

    def start(self, failpoint: str = "") -> Follower:
        self._follower = self._nursery.start(self.steps.options(**self.options), self._file, failpoint)
        return self._follower

    def write_until_death(self, follower: Follower, large: bool) -> None:
        def over() -> bool:
            self.writer.write(1)
            if large:
                self.writer.write_large(2000)
            return follower.ended()

        wait_until(over, 30, "the follower's end")
        assert follower.status == -signal.SIGKILL

    def finish(self) -> None:
        self.writer.write_last()
        wait_until(self.start().ended, 60, "the last row")
        assert self.log.history() == self.writer.history

    def close(self) -> None:
        if self._follower:
            self._follower.kill()
        self.log.close()
        health.readers()  # whoever looks removes what killed readers left


@pytest.fixture
def followed(followers: FollowerNursery, steps: Steps, tmp_path: Path, rng: random.Random) -> Iterator[Followed]:
    found = Followed(steps, followers, tmp_path / "log", rng)
    yield found
    found.close()


def test_a_reader_that_dies_at_a_named_step_loses_and_repeats_nothing(followed: Followed) -> None:
    """E13, E20, E21, E100, E106: receiving, assembling, spilling, delivering, reporting; each at several passes."""
    rng = followed.rng
    points = [f"{point}:{rng.randint(*passes)}" for point in FAILPOINTS for passes in ((1, 1), (2, 6))]
    for failpoint in rng.sample(points, len(points)):
        followed.write_until_death(followed.start(failpoint), large=failpoint.startswith("spill"))
    followed.finish()


def test_a_reader_killed_at_random_loses_and_repeats_nothing(followed: Followed) -> None:
    """E21, E22, E100, E102: also between the sink's write and the log's word of it."""
    for _ in range(10):
        follower = followed.start()
        target = followed.log.batches() + followed.rng.randint(0, 4)
        wait_until(lambda target=target: _far_enough(followed, target), 30, "some batches")
        follower.kill()
    followed.finish()


def test_a_reader_killed_while_it_starts_with_a_snapshot_leaves_the_right_table(followed: Followed) -> None:
    """E21, E52, E100: before its slot is made, between any two chunks, and behind the last; rows move meanwhile."""
    steps = followed.steps
    steps.drop()
    followed.options = {**SMALL, "startingPosition": "snapshot", "maxRowsPerTrigger": 300}
    followed.writer.write_large(2000)
    for _ in range(6):
        follower = followed.start()
        target = followed.log.batches() + followed.rng.randint(0, 4)
        wait_until(lambda target=target: _moved(followed, target), 30, "some batches")
        follower.kill()
        steps.execute(followed.rng.choice(["VACUUM t", "VACUUM FULL t"]))
    follower = followed.start()

    def ended() -> bool:
        followed.writer.write_last()  # until it comes as a change, not as a row of the snapshot
        return follower.ended()

    wait_until(ended, 60, "the last row")
    assert followed.log.table() == dict(steps.execute("SELECT id, v FROM t"))


def _moved(followed: Followed, batches: int) -> bool:
    """No TRUNCATE: it waits for the snapshot, and new tasks for it."""
    first = followed.rng.randint(1, 2000)
    followed.steps.execute("DELETE FROM t WHERE id BETWEEN %s AND %s", first, first + 20)
    followed.steps.execute("UPDATE t SET v = v || 'u' WHERE id BETWEEN %s AND %s", first + 21, first + 40)
    return followed.log.batches() >= batches


def _far_enough(followed: Followed, batches: int) -> bool:
    followed.writer.write(1)
    return followed.log.batches() >= batches


def drain(stream: Streamed, batches: Batches) -> None:
    stream.start(then=batches.take, trigger={"availableNow": True}, **SMALL).await_end()


def test_readers_and_workers_of_spark_killed_at_random_lose_and_repeat_nothing(
    stream: Streamed, engine: Engine, rng: random.Random
) -> None:
    """E21, E100, E102: at any moment, also while a worker holds rows."""
    stream.execute(TABLE)
    batches, writer = Batches(), Writer(stream.database, rng)
    drain(stream, batches)
    for victim in rng.sample(["reader", "worker", "worker"], 3):
        running = stream.start(then=batches.take, **SMALL)
        stream.await_streaming()
        writer.write(rng.randint(1, 8))
        seen = len(running.calls)
        kill(reader_of(engine) if victim == "reader" else rng.choice(workers_of(engine)))

        def batch_or_end(running: Running = running, seen: int = seen) -> bool:
            writer.write(1)
            return len(running.calls) > seen or not running.query.isActive

        wait_until(batch_or_end, what="a batch, or the query's end")  # a worker that was idle is not missed
        running.query.stop()
        stream.await_free()
    drain(stream, batches)
    assert batches.history() == writer.history


def kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        pass  # it ended by itself


@LIMIT
def test_a_driver_lost_at_any_moment_loses_and_repeats_nothing(steps: Steps, scratch: Path, rng: random.Random) -> None:
    """E21, E100, E102: after the sink's write and before Spark's own word of it; and the JVM at random."""
    steps.execute(TABLE)
    steps.execute(f"CREATE PUBLICATION {steps.slot} FOR TABLE t")
    steps.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", steps.slot)
    writer, drivers = Writer(steps.database, rng), Drivers(scratch, steps.options(table="t"))
    try:
        writer.write(5)
        writer.write_large(1)
        drivers.start(die=writer.history[-1][1]).await_loss()
        assert drivers.log.history() == writer.history
        again = drivers.start()
        again.said()
        target = drivers.log.count() + rng.randint(1, 100)
        wait_until(lambda: _more(writer, drivers, target), 60, "more rows")
        again.lose()
        writer.write(5)
        writer.write_last()
        drivers.start().finish()
        assert drivers.log.history() == writer.history
    finally:
        drivers.close()
        steps.await_free()


def _more(writer: Writer, drivers: Drivers, target: int) -> bool:
    if len(writer.history) < target + 200:  # no more than is read soon
        writer.write(1)
    return drivers.log.count() >= target
