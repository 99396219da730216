"""What the reader of a deployment lets the server forget: what is on disk in a checkpoint that Spark does not sync."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.engine import checkpoint
from penstock.errors import DiskError, PositionError, SlotMissingError
from penstock.model import Lsn, Origin
from penstock.postgres.replay import Cut
from penstock.spark import live as module
from penstock.spark.live import Live
from penstock.spark.options import SourceOptions
from penstock.spark.schema import KEYS
from tests.fixtures.captures import Published
from tests.fixtures.waiting import wait_until


class Logged:
    """A reader, and Spark's log of it, written by hand."""

    def __init__(self, published: Published, folder: Path) -> None:
        self.published, self.folder = published, folder
        options = {"url": published.database.url, "tables": "t", "slot": published.slot, "publication": "pub"}
        options |= {"mode": "keys", "checkpointFolder": str(folder)}
        self.live = Live(SourceOptions.parse(options).for_stream(), KEYS, Cut(), None, Cut())
        self.at, self.batches = Cut(wait_until(lambda: self.live.replay.opening(0.1).lsn, what="the slot")), 0
        self._log()

    def batch(self) -> None:
        """A change more, in a batch that is done."""
        self.published.insert(self.batches)
        self.at = wait_until(self._newer, what="the change") or self.at
        self._log()

    def _newer(self) -> Cut | None:
        found = self.live.replay.latest(self.at, None, None, 0.1)
        return found if found != self.at else None

    def _log(self) -> None:
        for kind in ("offsets", "commits"):
            (self.folder / kind).mkdir(parents=True, exist_ok=True)
            (self.folder / kind / str(self.batches)).touch()
        self.batches += 1


@pytest.fixture
def logged(published18: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Logged]:
    monkeypatch.setattr(module, "_SYNC_S", 0.0)
    found = Logged(published18, tmp_path / "checkpoint")
    yield found
    found.live.close()


def test_the_slot_passes_nothing_that_a_power_loss_would_take_from_the_checkpoint(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E20: the last batches and their folders are on disk before the slot is raised, which is soon, or at the end."""
    journal: list[str] = []
    sync, acknowledge = checkpoint._sync, logged.live.replay.acknowledge

    def synced(path: Path) -> None:
        sync(path)
        journal.append(str(path.relative_to(logged.folder)))

    def acknowledged(cut: Cut) -> None:
        journal.append("acknowledged")
        acknowledge(cut)

    monkeypatch.setattr(checkpoint, "_sync", synced)
    monkeypatch.setattr(logged.live.replay, "acknowledge", acknowledged)
    logged.batch()
    logged.live.acknowledge(logged.at)
    assert sorted(journal[:-1]) == [".", "commits", "commits/1", "offsets", "offsets/0", "offsets/1"]
    assert journal.pop() == "acknowledged"
    monkeypatch.setattr(module, "_SYNC_S", 3600.0)
    journal.clear()
    logged.batch()
    logged.live.acknowledge(logged.at)
    assert (journal, logged.live.replay.acknowledged < logged.at.lsn) == ([], True), "no batch waits for a disk"
    logged.live.close()
    assert journal[-1] == "acknowledged"
    assert logged.published.confirmed() >= logged.at.lsn


@pytest.mark.parametrize(
    ("options", "remedy"), [({}, "a new checkpoint"), ({"checkpointFolder": "/state"}, "penstock reconcile --repair")]
)
def test_who_finds_its_slot_consumed_or_gone_is_told_what_it_can_do(
    published18: Published, options: dict[str, str], remedy: str
) -> None:
    """E26, E29: a deployment has another way on than a query."""
    given = {"url": published18.database.url, "tables": "t", "slot": published18.slot, "mode": "keys", **options}
    parsed = SourceOptions.parse({**given, "publication": "pub"}).for_stream()
    with pytest.raises(SlotMissingError, match="is gone") as gone:
        Live(parsed, KEYS, Cut(Lsn(1)), Origin("1"), Cut())
    published18.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", published18.slot)
    with pytest.raises(PositionError, match="somebody else consumed it") as consumed:
        Live(parsed, KEYS, Cut(Lsn(1)), Origin("1"), Cut())
    assert remedy in gone.value.hint and remedy in consumed.value.hint


def test_a_checkpoint_that_does_not_reach_the_disk_is_a_clear_stop(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E89: nothing is acknowledged then."""

    def fails(handle: int) -> None:
        raise OSError(5, "Input/output error")

    logged.batch()
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(DiskError, match="cannot be brought to disk: Input/output error"):
        logged.live.acknowledge(logged.at)
    assert logged.live.replay.acknowledged == Lsn.ZERO
