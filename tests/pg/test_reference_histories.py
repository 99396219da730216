"""Random histories: views that are saved, lose their process and are restored at random equal their tables in the end.

`PENSTOCK_SEED` repeats a run's choices (the interleaving of processes is the machine's), `PENSTOCK_HISTORIES` says how
many histories there are for each major.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock import failpoints
from penstock.reference.checkpoint import acknowledged
from penstock.reference.store import read_saved
from tests.fixtures.commands import environment
from tests.fixtures.histories import History, Kind
from tests.fixtures.reference_consumers import Consumer
from tests.fixtures.references import Dimensions
from tests.fixtures.waiting import wait_until

HISTORIES = int(os.environ.get("PENSTOCK_HISTORIES", "3"))
POINTS = (*failpoints.REFERENCE, "deliver", "feedback")


class Killed:
    """A consumer in a process of its own, which ends by a kill: at a step of its saving, its reading, or anywhere."""

    def __init__(self, dims: Dimensions, folder: Path, late: Kind, kinds: list[Kind], rng: random.Random) -> None:
        point = f"{rng.choice(POINTS)}:{rng.randint(1, 20)}" if rng.random() < 0.6 else ""
        words = [dims.database.url, dims.slot, str(folder), str(rng.getrandbits(32)), late.name]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fixtures.reference_consumers", *words, *(kind.name for kind in kinds)],
            env=environment(PENSTOCK_FAILPOINT=point), stdout=subprocess.PIPE, cwd=Path(__file__).parents[2],
        )  # fmt: skip

    def await_work(self) -> None:
        """Until it has done something, or is dead already."""
        assert self.process.stdout
        self.process.stdout.readline()

    def await_death(self) -> None:
        try:
            self.process.communicate(timeout=60)
        finally:
            self.process.kill()
            self.process.communicate()
        assert self.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", range(HISTORIES))
def test_views_equal_their_tables_after_any_history(
    dims: Dimensions, number: int, rng: random.Random, tmp_path: Path
) -> None:
    """E90, E92, E93, E95: three writers, three tables, one of which joins later; saved, killed, restored at random."""
    history = History(dims.database, rng, alters=False)
    *kinds, late = history.tables
    dims.execute(f"CREATE PUBLICATION dims FOR TABLE {', '.join(kind.name for kind in history.tables)}")
    # Not beside a TRUNCATE, of which servers then lose track at times (XX000).
    dims.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", dims.slot)
    for _ in range(rng.randint(1, 3)):
        has_joined = (tmp_path / late.name / "view.json").exists()
        killed = Killed(dims, tmp_path, late, history.tables if has_joined else kinds, rng)
        killed.await_work()
        writing = threading.Thread(target=history.write, args=(15, 3))
        writing.start()
        killed.await_death()
        writing.join()
    consumer = Consumer(dims.capture(), tmp_path, [kind.name for kind in history.tables], rng)
    end = dims.wal_end()

    def caught_up() -> bool:
        for view in consumer.views.values():
            view.update()
            view.save()
        return dims.confirmed() >= end

    wait_until(caught_up, 30, "every view to be saved behind the end, and the slot to follow")
    for kind in history.tables:
        assert rows(consumer, kind) == history.rows(kind), kind.name
        saved = read_saved(tmp_path / kind.name)
        assert acknowledged(saved.checkpoint) >= end
        assert sorted(map(str, saved.contents.table().to_pylist())) == sorted(
            map(str, consumer.views[kind.name].to_arrow().to_pylist())
        )
    consumer.close()


def rows(consumer: Consumer, kind: Kind) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What the view of a table holds, by key."""
    found = consumer.views[kind.name].to_arrow().to_pylist()
    return {tuple(row[column] for column in kind.key): row for row in found}
