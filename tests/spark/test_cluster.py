"""A cluster whose workers are somebody else and cannot read the driver's folders, and an executor lost on the way."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.clusters import Cluster
from tests.fixtures.drivers import Drivers
from tests.fixtures.programs import LIMIT
from tests.fixtures.secrets import in_command_lines, in_files, in_pages
from tests.fixtures.streams import Steps, Writer
from tests.fixtures.waiting import wait_until

SECRET = "Pa55w0rd-4711"
ROLE = "streamer"


@pytest.fixture
def cluster(scratch: Path) -> Iterator[Cluster]:
    folder = scratch / "cluster"
    folder.mkdir()
    scratch.chmod(0o711)
    found = Cluster(folder)
    yield found
    found.stop()


@pytest.fixture
def drivers(steps: Steps, scratch: Path) -> Iterator[Drivers]:
    """Drivers in a folder of their own, who connect by a password that the server asks for."""
    private = scratch / "private"
    private.mkdir(mode=0o700)
    server, database = steps.database.server, steps.database.name
    steps.database.role(ROLE, SECRET, "LOGIN REPLICATION")
    where = {"url": None, "host": "127.0.0.1", "port": server.port, "database": database}
    found = Drivers(private, steps.options(**where, user=ROLE, password=SECRET, table="t"))
    with server.access(f"host all {ROLE} 127.0.0.1/32 scram-sha-256"):
        yield found
        found.close()


def assert_apart(seen: dict[str, Any]) -> None:
    """As root, workers are somebody else, who does not reach the driver's folder; nobody else can change users."""
    is_root = os.geteuid() == 0
    assert {(uid == os.geteuid(), reaches) for uid, reaches in seen["tasks"]} == {(not is_root, not is_root)}


@LIMIT
def test_a_table_is_read_whole_and_followed_from_there_by_workers_that_reach_no_file_of_the_drivers(
    cluster: Cluster, drivers: Drivers, steps: Steps, rng: random.Random
) -> None:
    """E50, E105: by a batch read in parts of one moment, and by a stream that starts with a snapshot."""
    steps.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    steps.execute(f"GRANT SELECT ON t TO {ROLE}")
    steps.execute(f"CREATE PUBLICATION {steps.slot} FOR TABLE t")
    writer = Writer(steps.database, rng)
    writer.write_large(9000)
    cluster.start()
    drivers.options |= {"startingPosition": "snapshot", "maxRowsPerTrigger": "4000"}
    driver = drivers.start(
        cluster.master, cluster.conf(), variables=cluster.variables(),
        read={"numPartitions": "3"}, not_read=["startingPosition", "maxRowsPerTrigger"],
    )  # fmt: skip
    seen = driver.said()
    assert_apart(seen)
    assert seen["found"] == [3, 9000, 9000 * 300]
    wait_until(lambda: drivers.log.count() == 9000, 90, "the snapshot")
    writer.write(10)
    writer.write_large(5000)
    writer.write_last()
    driver.finish()
    assert sorted(drivers.log.history()[:9000]) == sorted(writer.history[:9000])
    assert drivers.log.history()[9000:] == writer.history[9000:]


@LIMIT
def test_an_executor_lost_with_rows_in_its_hands_costs_nothing_and_shows_nothing(
    cluster: Cluster, drivers: Drivers, steps: Steps, rng: random.Random
) -> None:
    """E102, E103, E105: workers that run as another user and reach no file of the driver's give the same results.

    A password that was given as an option is in no log, event, page, checkpoint or command line of any of them.
    """
    steps.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    steps.execute(f"CREATE PUBLICATION {steps.slot} FOR TABLE t")
    steps.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", steps.slot)
    writer = Writer(steps.database, rng)
    writer.write(10)
    writer.write_large(5000)  # a piece of more than is handed on as a file where all is on one machine
    held = writer.history[-1][1]
    writer.truncate()  # it parts what stands before it from what comes after: more than one task
    writer.write(10)
    writer.write_last()
    events = drivers.folder / "events"
    events.mkdir()
    told = {
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": str(events), "spark.eventLog.compress": "false",
        "spark.ui.enabled": "true", "spark.ui.port": "0",
    }  # fmt: skip
    cluster.start()
    driver = drivers.start(
        cluster.master, {**cluster.conf(), **told}, variables=cluster.variables(), level="INFO",
        hold=held, marks=str(cluster.marks),
    )  # fmt: skip
    seen = driver.said()
    holder = cluster.holder()
    assert holder.uids().real == cluster.uid
    assert_apart(seen)
    assert drivers.log.count() == 0, "the batch is under way"
    assert in_command_lines(SECRET) == []
    showing, looked_at = in_pages(SECRET, seen["ui"], seen["app"])
    assert showing == [] and looked_at > 5
    holder.kill()
    ended = driver.finish()
    assert drivers.log.history() == writer.history
    assert SECRET not in str(seen) + str(ended)
    assert in_files(steps.slot, [drivers.folder / "checkpoint"]) and in_files("penstock", [events]), (
        "they are looked at"
    )
    assert in_files(SECRET, [cluster.folder, drivers.folder]) == []
