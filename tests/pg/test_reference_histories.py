"""Random histories: views that are saved, lose their process and are restored at random equal their tables in the end.

`PENSTOCK_SEED` repeats a run's choices (the interleaving of writers is the machine's), `PENSTOCK_HISTORIES` says how
many histories there are for each major.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.contracts import SourceCheckpoint
from penstock.model import Lsn
from penstock.reference import ReferenceCapture, ReferenceView
from penstock.reference.checkpoint import acknowledged
from penstock.reference.store import read_saved
from tests.fixtures.histories import History, Kind
from tests.fixtures.references import Dimensions
from tests.fixtures.waiting import wait_until

HISTORIES = int(os.environ.get("PENSTOCK_HISTORIES", "3"))


class Consumer:
    """A process that has views of some tables; `crash` ends it as a kill would."""

    def __init__(self, dims: Dimensions, folder: Path, kinds: list[Kind], rng: random.Random) -> None:
        self.rng = rng
        self.folder = folder
        # A small buffer, so that batches are cut inside of transactions and wait on disk.
        self.capture: ReferenceCapture = dims.capture(buffer_bytes=rng.choice([2_000, 64 << 20]))
        self.views: dict[str, ReferenceView] = {}
        for kind in kinds:
            self.join(kind)

    def join(self, kind: Kind) -> None:
        """Have a view more; one that was saved goes on from there."""
        source = self.capture.table(kind.name)
        self.views[kind.name] = ReferenceView(source, path=self.folder / kind.name, save_every_s=1e9)

    def step(self) -> None:
        view = self.rng.choice(list(self.views.values()))
        view.update()
        if self.rng.random() < 0.3:
            view.save()

    def crash(self) -> None:
        """Lose what was not saved."""
        self.capture.close()
        for view in self.views.values():
            if view._store:
                view._store.close()

    def rows(self, kind: Kind) -> dict[tuple[Any, ...], dict[str, Any]]:
        """What the view of a table holds, by key."""
        found = self.views[kind.name].to_arrow().to_pylist()
        return {tuple(row[column] for column in kind.key): row for row in found}


@pytest.mark.parametrize("number", range(HISTORIES))
def test_views_equal_their_tables_after_any_history(
    dims: Dimensions, number: int, rng: random.Random, tmp_path: Path
) -> None:
    """E90, E92, E93, E95: three writers, three tables, one of which joins later; saved, crashed, restored at random."""
    history = History(dims.database, rng, alters=False)
    *kinds, late = history.tables
    dims.execute(f"CREATE PUBLICATION dims FOR TABLE {', '.join(kind.name for kind in history.tables)}")
    joined, consumer = kinds, Consumer(dims, tmp_path, kinds, rng)
    consumer.step()  # makes the slot: not beside a TRUNCATE, of which servers then lose track at times (XX000)
    writing = threading.Thread(target=history.write, args=(40, 3))
    writing.start()
    crashes = rng.randint(1, 3)
    while writing.is_alive() or crashes:
        for _ in range(rng.randint(1, 10)):
            consumer.step()
        if late.name not in consumer.views and rng.random() < 0.3:
            joined = history.tables
            consumer.join(late)
        if crashes and rng.random() < 0.3:
            crashes -= 1
            consumer.crash()
            consumer = Consumer(dims, tmp_path, joined, rng)
    writing.join()
    if late.name not in consumer.views:
        consumer.join(late)
    end = dims.wal_end()

    def caught_up() -> bool:
        for view in consumer.views.values():
            view.update()
            view.save()
        return dims.confirmed() >= end

    wait_until(caught_up, 30, "every view to be saved behind the end, and the slot to follow")
    for kind in history.tables:
        assert consumer.rows(kind) == history.rows(kind), kind.name
        saved = read_saved(tmp_path / kind.name)
        assert position(saved.checkpoint) >= end
        assert sorted(map(str, saved.contents.table().to_pylist())) == sorted(
            map(str, consumer.views[kind.name].to_arrow().to_pylist())
        )
    consumer.crash()


def position(checkpoint: SourceCheckpoint) -> Lsn:
    return acknowledged(checkpoint)
