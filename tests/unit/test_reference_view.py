"""A view: what it shows, what it saves, what it does when something fails. Its source is a script."""

from __future__ import annotations

import itertools
import json
import os
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.contracts import ReferenceTableSource, SourceCheckpoint
from penstock.errors import (
    CapacityError,
    ConfigError,
    DiskError,
    OperatorError,
    PenstockError,
    PositionError,
    RetryableError,
)
from penstock.model import Lsn, Position, QualifiedTable
from penstock.reference import checkpoint as checkpoints
from penstock.reference import store as store_module
from penstock.reference.keeping import keep_current, kept_current
from penstock.reference.store import read_saved
from penstock.reference.view import ReferenceView
from tests.fixtures.waiting import wait_until
from tests.unit.reference_parts import Script, checkpoint, delete, insert, update

ROME, OSLO, BERN = (1, "Rome", "a"), (2, "Oslo", "b"), (3, "Bern", "c")


def held(view: ReferenceView) -> set[tuple[Any, ...]]:
    return {tuple(row.values()) for row in view.to_arrow().to_pylist()}


def test_a_view_follows_its_source_and_shows_whole_transactions_only() -> None:
    """E91: a transaction that came in part is not shown before it is whole."""
    source = Script([ROME, OSLO])
    assert isinstance(source, ReferenceTableSource)
    with ReferenceView(source) as view:
        assert view.update() == 2
        assert held(view) == {ROME, OSLO}
        source.will_send(delete(1), whole=False)
        assert view.update() == 0
        assert held(view) == {ROME, OSLO}
        source.will_send(insert(*BERN))
        before = view.version
        assert view.update() == 2
        assert held(view) == {OSLO, BERN}
        assert view.version == before + 1
        source.will_send(update(2, "OSLO", "b"), whole=False)
        assert view.update() == 0
        source.whole = source.lsn
        assert view.update() == 1, "that it was whole became known later"
        source.will_send(update(2, "Oslo", "b"))
        view.update()
        assert view.lookup(3) == {"id": 3, "name": "Bern", "notes": "c"}
        assert (view.lookup(1), view.key, len(view)) == (None, ("id",), 2)
        assert source.confirmed == [100, 102, 103, 104], "without a folder what is applied is confirmed, and no sooner"
    assert source.closed


def test_saved_contents_are_restored_with_their_position(tmp_path: Path) -> None:
    """E93: contents are saved with the position, so a restored table is full, without a new snapshot."""
    source = Script([ROME, OSLO])
    with ReferenceView(source, path=tmp_path, save_every_s=0) as view:
        view.update()
        source.will_send(update(1, "Roma", None, missing=["notes"]))
        source.will_send(delete(2))
        view.update()
        source.will_send(insert(*BERN))
    again = Script([("never", "read", "again")])
    with ReferenceView(again, path=tmp_path) as view:
        view.update()
        assert (held(view), again.snapshots, again.lsn) == ({(1, "Roma", "a")}, 0, 102)
        assert view.status().position == Position(Lsn(102), 0)
    assert source.confirmed[-1] == 102


def test_a_log_that_ends_anywhere_gives_a_state_that_was_saved(tmp_path: Path) -> None:
    """E93: cut off at any byte, or with a byte that was not written so, contents and position are of one commit."""
    source = Script([ROME])
    view = ReferenceView(source, path=tmp_path / "v", save_every_s=0)
    saved = {}
    for number in range(4):
        if number:
            source.will_send(update(1, f"Rome {number}", None, missing=["notes"]))
        view.update()
        saved[100 + number] = held(view)
    view.close()
    log = next((tmp_path / "v").glob("log-*"))
    content, seen = log.read_bytes(), set()
    cuts = [content[:end] for end in [*range(0, len(content), 17), len(content)]]
    spoiled = [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in range(0, len(content), 61)]
    for damaged in cuts + spoiled:
        log.write_bytes(damaged)
        found = read_saved(tmp_path / "v")
        position = int(found.checkpoint.position.lsn)
        assert {tuple(row.values()) for row in found.contents.table().to_pylist()} == saved[position]
        seen.add(position)
    assert seen == saved.keys()
    log.write_bytes(content[:-5])
    with ReferenceView(Script(), path=tmp_path / "v", save_every_s=0) as view:
        view.update()
        assert held(view) == saved[102]
        view._source.will_send(insert(*OSLO))  # type: ignore[attr-defined]
        view.update()
    assert {row["id"] for row in read_saved(tmp_path / "v").contents.table().to_pylist()} == {1, 2}


def test_a_log_that_outgrows_its_base_becomes_a_new_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_LEAST_LOG_BYTES", 2_000)
    source = Script([ROME])
    with ReferenceView(source, path=tmp_path, save_every_s=0) as view:
        for number in range(60):
            source.will_send(update(1, f"Rome {number}", "x"))
            view.update()
        generation = json.loads((tmp_path / "view.json").read_text())["generation"]
        assert generation > 2
        assert {path.name for path in tmp_path.iterdir()} == {
            "view.json", "lock", f"base-{generation}.arrow", f"log-{generation}",
        }  # fmt: skip
        assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir() if path.name != "lock")
        found = read_saved(tmp_path)
        assert found.contents.get(1) == {"id": 1, "name": "Rome 59", "notes": "x"}


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """E93: a newer format, garbage, a damaged base, another table's folder, a second writer."""
    with ReferenceView(Script([ROME]), path=tmp_path) as view:
        view.update()
        with pytest.raises(RetryableError, match="another process writes"):
            ReferenceView(Script(), path=tmp_path).update()
    head = tmp_path / "view.json"
    good = json.loads(head.read_text())

    def refused(said: str, kind: type[PenstockError], **changed: Any) -> None:
        head.write_text(json.dumps({**good, **changed}))
        with pytest.raises(kind, match=said), ReferenceView(Script(), path=tmp_path) as view:
            view.update()

    refused("is of format 2; this Penstock reads 1", ConfigError, format=2)
    refused("is damaged", OperatorError, format="x")
    refused("is damaged", OperatorError, base_crc=0)
    refused("no checkpoint", ConfigError, checkpoint="garbage")
    other = checkpoint(5)._replace(table=QualifiedTable("public", "other"))
    refused("holds the view of public.other", ConfigError, checkpoint=checkpoints.encode(other))
    head.write_bytes(b"\0")
    with pytest.raises(OperatorError, match="is damaged"):
        read_saved(tmp_path)
    with pytest.raises(OperatorError, match="no saved view"):
        read_saved(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda c: "garbage", ConfigError),
        (lambda c: None, ConfigError),
        (lambda c: c._replace(format=2), ConfigError),
        (lambda c: c._replace(metadata={}), ConfigError),
        (lambda c: c._replace(position=(1, 2)), ConfigError),
        (lambda c: c._replace(metadata={**c.metadata, "acknowledge": "FF/FF"}), ConfigError),
        (lambda c: c._replace(slot="other"), PositionError),
        (lambda c: c._replace(table=QualifiedTable("public", "other")), PositionError),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    change: Callable[[SourceCheckpoint], Any], kind: type[PenstockError]
) -> None:
    """E93: garbage, a newer format, another slot, another table."""
    good = checkpoint(5)
    checkpoints.require(good, "dims", good.table)
    assert checkpoints.decode(checkpoints.encode(good)) == good
    with pytest.raises(kind):
        checkpoints.require(change(good), "dims", good.table)


@pytest.mark.parametrize("text", ["", "{}", "[1]", b"\xff", '{"format": 1}', "null"])
def test_what_is_no_checkpoint_is_not_read_as_one(text: str | bytes) -> None:
    """E93: garbage."""
    with pytest.raises(ConfigError, match="no checkpoint"):
        checkpoints.decode(text)


def test_what_fails_leaves_the_contents_and_says_how_old_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Script([ROME])
    with ReferenceView(source, path=tmp_path, save_every_s=0) as view:
        view.update()
        lost = OperatorError("the slot is lost")
        source.will_send(update(1, "Roma", "a"))
        source.coming.append(lost)
        with pytest.raises(OperatorError):
            view.update()
        assert held(view) == {(1, "Roma", "a")}
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 60)
        status = view.status()
        assert status.error is lost
        assert status.age_s is not None and status.age_s >= 59
        source.snapshot = [OSLO]
        view.refresh()
        assert (held(view), view.status().error) == ({OSLO}, None)
        source.snapshot, source.trouble = [BERN], RetryableError("gone for a moment")
        with pytest.raises(RetryableError):
            view.refresh()
        assert held(view) == {OSLO}, "half a snapshot is not shown"
        source.trouble = None
        view.update()
        assert held(view) == {BERN}


def test_a_view_behind_a_backlog_is_as_old_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """E93: after a restart, that nothing has come yet does not make it young; what it has reached does."""
    now = [1_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    with ReferenceView(Script([ROME]), path=tmp_path) as view:
        view.update()
    now[0] += 100
    source = Script()
    source.behind = 3
    with ReferenceView(source, path=tmp_path) as view:
        view.update()
        assert view.status().age_s == 100
        source.will_send(insert(*OSLO))
        view.update()
        assert view.status().age_s == 100, "not all of it has come"
        source.lsn = source.whole = source.lsn + 2
        now[0] += 1
        view.update()
        assert view.status().age_s == 1, "as old as the look at the server that it has reached"
        source.behind = 0
        assert view.catch_up()
        assert view.status().age_s == 0


@pytest.mark.parametrize("timeout_s", [0, 0.05])
def test_catching_up_waits_for_no_other_update_longer_than_it_may(timeout_s: float) -> None:
    """A refresh() of a large table by another thread, say; what it does not come to do is told."""
    source, reads, goes_on = Script([ROME]), threading.Event(), threading.Event()
    with ReferenceView(source) as view, ThreadPoolExecutor() as pool:
        view.update()
        assert view.catch_up(0)
        poll = source.poll_changes
        source.poll_changes = lambda: (reads.set(), goes_on.wait(60), poll())[2]  # type: ignore[method-assign]
        try:
            coming = pool.submit(view.update)
            assert reads.wait(20)
            assert pool.submit(view.catch_up, timeout_s).result(20) is False
        finally:
            goes_on.set()
        coming.result(20)
        assert view.catch_up()


def test_a_table_at_rest_is_saved_now_and_then_for_its_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    with ReferenceView(Script([ROME]), path=tmp_path) as view:
        for _ in range(100):
            view.update()
            assert now[0] - read_saved(tmp_path).saved_at <= 35
            now[0] += 1


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    with ReferenceView(Script([ROME]), path=tmp_path) as view:
        view.update()
    for name, said in ("log-1", "log-1 is gone"), ("base-1.arrow", f"a file of {tmp_path} is gone"):
        (tmp_path / name).unlink()
        with pytest.raises(DiskError, match=said):
            read_saved(tmp_path)
        with ReferenceView(Script([ROME]), path=tmp_path) as view, pytest.raises(DiskError, match=said):
            view.update()


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    with ReferenceView(Script([ROME]), path=tmp_path) as view:
        view.update()
    for name in "base-0.arrow", "log-0", "base-2.arrow":
        (tmp_path / name).write_bytes(b"left")
    with ReferenceView(Script(), path=tmp_path) as view:
        view.update()
        assert held(view) == {ROME}
    assert {path.name for path in tmp_path.iterdir()} == {"view.json", "lock", "base-1.arrow", "log-1"}


def test_a_fresh_view_begins_with_a_snapshot_whatever_was_saved(tmp_path: Path) -> None:
    with ReferenceView(Script([ROME]), path=tmp_path) as view:
        view.update()
    source = Script([OSLO])
    source.trouble = RetryableError("gone for a moment")
    with ReferenceView(source, path=tmp_path, fresh=True) as view:
        with pytest.raises(RetryableError):
            view.update()
        assert held(view) == {ROME}
        source.trouble = None
        view.update(), view.update()
        assert (held(view), source.snapshots) == ({OSLO}, 2)
        view.stop()
        with pytest.raises(RetryableError, match=r"reading public.city was given up"):
            view.refresh()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize("is_fresh", [True, False])
@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: _cut(folder / "base-1.arrow"),
        lambda folder: (folder / "base-1.arrow").unlink(),
        lambda folder: (folder / "log-1").unlink(),
        lambda folder: (folder / "view.json").write_bytes(b"\0"),
        lambda folder: (folder / "view.json").write_text('{"format": 2, "generation": 1, "checkpoint": "newer"}'),
        lambda folder: (folder / "view.json").write_text('{"format": 1, "checkpoint": "garbage"}'),
    ],
)
def test_a_fresh_view_is_the_way_out_of_a_folder_that_cannot_be_read(
    damage: Callable[[Path], Any], is_fresh: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ReferenceView(Script([ROME]), path=tmp_path) as view:
        view.update()
    damage(tmp_path)
    with ReferenceView(Script(), path=tmp_path) as view, pytest.raises(PenstockError) as refused:
        view.update()
    with ReferenceView(Script([OSLO]), path=tmp_path, fresh=is_fresh) as view:
        view.update() if is_fresh else view.refresh()
        assert held(view) == {OSLO}
    assert refused.value.message in caplog.text
    found = read_saved(tmp_path)
    assert {tuple(row.values()) for row in found.contents.table().to_pylist()} == {OSLO}
    assert len(list(tmp_path.glob("*-*"))) == 2


def test_a_full_disk_is_told_and_what_it_lost_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Script([ROME])
    with ReferenceView(source, path=tmp_path, save_every_s=0) as view:
        view.update()

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        source.will_send(insert(*OSLO))
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(DiskError, match="No space left"):
                view.update()
        assert source.confirmed == [100]
        view.update()
        assert source.confirmed == [100, 101]
        assert len(read_saved(tmp_path).contents) == 2


def test_a_generation_that_was_not_named_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """E92: what is confirmed stands in the files that a restart reads."""
    source = Script([ROME])
    with ReferenceView(source, path=tmp_path, save_every_s=0) as view:
        view.update()

        def full(*_: object) -> None:
            raise DiskError("no space left")

        source.will_send(insert(*OSLO))
        with monkeypatch.context() as patch:
            patch.setattr(store_module, "_LEAST_LOG_BYTES", -1)
            patch.setattr(store_module, "_write_durably", full)
            view._store._base_bytes = -1  # type: ignore[union-attr]
            with pytest.raises(DiskError):
                view.update()
        source.will_send(insert(*BERN))
        view.update()
        assert source.confirmed[-1] == 102
        assert read_saved(tmp_path).checkpoint.position.lsn == 102
        assert len(read_saved(tmp_path).contents) == 3


def failing_fsync(of_folders: bool) -> Callable[[int], None]:
    """As a disk fails: once, and the next fsync says that all is well."""
    original, left = os.fsync, [1]

    def fsync(number: int) -> None:
        if left[0] and stat.S_ISDIR(os.fstat(number).st_mode) == of_folders:
            left[0] = 0
            raise OSError(5, "Input/output error")
        original(number)

    return fsync


def test_bytes_that_may_not_have_reached_the_disk_are_counted_on_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E93: a failed fsync leaves the log as it was for whoever reads it, and the next save is a new generation."""
    source = Script([ROME])
    with ReferenceView(source, path=tmp_path, save_every_s=0) as view:
        view.update()
        source.will_send(insert(*OSLO))
        monkeypatch.setattr(os, "fsync", failing_fsync(of_folders=False))
        with pytest.raises(DiskError, match="Input/output error"):
            view.update()
        assert read_saved(tmp_path).checkpoint.position.lsn == 100
        source.will_send(insert(*BERN))
        view.update()
        assert source.confirmed == [100, 102]
        assert json.loads((tmp_path / "view.json").read_text())["generation"] == 2
        assert len(read_saved(tmp_path).contents) == 3


def test_folders_that_were_made_are_on_the_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """E93: what a save returned from is of no use in a folder that a crash takes away."""
    synced, original = set[int](), os.fsync

    def fsync(number: int) -> None:
        original(number)
        synced.add(os.fstat(number).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    with ReferenceView(Script([ROME]), path=tmp_path / "views" / "city") as view:
        view.update()
    assert {path.stat().st_ino for path in (tmp_path, tmp_path / "views", tmp_path / "views" / "city")} <= synced


def test_a_generation_that_may_be_named_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """E93: where the folder could not be synchronised nobody knows which one a crash would leave: both stay whole."""
    source = Script([ROME])
    with ReferenceView(source, path=tmp_path, save_every_s=0) as view:
        view.update()
        source.snapshot = [ROME, OSLO]
        for of_folders in True, False:
            monkeypatch.setattr(os, "fsync", failing_fsync(of_folders))
            with pytest.raises(DiskError, match="Input/output error"):
                view.refresh() if of_folders else view.save()
            assert {"base-1.arrow", "base-2.arrow"} <= {path.name for path in tmp_path.iterdir()}
            assert len(read_saved(tmp_path).contents) == 2
            source.will_send(update(*BERN))
            monkeypatch.undo()
            view._follow()
        view.save()
        assert len(read_saved(tmp_path).contents) == 3
        assert {path.name for path in tmp_path.iterdir()} == {"view.json", "lock", "base-3.arrow", "log-3"}


def test_what_is_loaded_is_on_the_disk_before_the_slot_may_pass_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E92: whoever was killed may have written what it did not come to synchronise."""
    with ReferenceView(Script([ROME]), path=tmp_path) as view:
        view.update()
    for of_folders in True, False:
        source = Script()
        with ReferenceView(source, path=tmp_path) as view:
            monkeypatch.setattr(os, "fsync", failing_fsync(of_folders))
            with pytest.raises(DiskError, match="Input/output error"):
                view.update()
            assert not source.is_snapshot_complete(), "nothing was restored"
            view.update()
            assert held(view) == {ROME}


def test_a_server_without_a_free_connection_is_borne_by_a_view_that_worked() -> None:
    source, stop = Script([ROME], follows=False), threading.Event()
    source.trouble = CapacityError("no connection is free")
    with ReferenceView(source, refresh="periodic", every_s=0) as view:
        with pytest.raises(CapacityError):
            keep_current([view], stop)
        source.trouble = None
        view.update()
        source.trouble = CapacityError("no connection is free")
        with kept_current(view, pause_s=0.01):
            wait_until(lambda: view.status().error, what="the trouble")
            source.snapshot, source.trouble = [ROME, OSLO], None
            wait_until(lambda: len(view) == 2, what="the next snapshot")


def test_refresh_modes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """snapshot reads once at each start, periodic again and again, manual when told to; vanished rows are dropped."""
    now = [1_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    source = Script([ROME, OSLO], follows=False)
    with ReferenceView(source, refresh="periodic", every_s=10, path=tmp_path) as view:
        view.update()
        source.snapshot = [OSLO, BERN]
        now[0] += 9
        view.update()
        assert held(view) == {ROME, OSLO}
        now[0] += 1
        view.update()
        assert held(view) == {OSLO, BERN}
    manual = Script([ROME], follows=False)
    with ReferenceView(manual, refresh="manual", path=tmp_path) as view:
        assert view.update() == 0
        assert held(view) == {OSLO, BERN}, "what was saved"
        view.refresh()
        assert (held(view), manual.snapshots) == ({ROME}, 1)
    once = Script([BERN], follows=False)
    with ReferenceView(once, refresh="snapshot", path=tmp_path) as view:
        view.update()
        once.snapshot = []
        now[0] += 1e6
        view.update()
        assert (held(view), once.snapshots) == ({BERN}, 1)


def test_a_mode_needs_the_source_that_can_serve_it() -> None:
    with pytest.raises(ConfigError, match="'hourly' is no refresh mode"):
        ReferenceView(Script(), refresh="hourly")
    with pytest.raises(ConfigError, match="refresh mode periodic reads no changes"):
        ReferenceView(Script(), refresh="periodic")
    with pytest.raises(ConfigError, match="refresh mode changes reads changes"):
        ReferenceView(Script(follows=False))
    with pytest.raises(ConfigError, match="has no contents yet"):
        ReferenceView(Script()).lookup(1)
    view = ReferenceView(Script())
    view.close()
    view.close()
    with pytest.raises(ConfigError, match="is closed"):
        view.update()


def test_trouble_is_told_when_it_begins_now_and_then_and_when_it_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever starts before the server does sees what is waited for, and no line for each try."""
    caplog.set_level("INFO", "penstock")
    monkeypatch.setattr("penstock.postgres.replication.backoff_s", lambda failures: 0.0)
    seconds = itertools.count()
    monkeypatch.setattr("penstock.reference.keeping.time", SimpleNamespace(monotonic=lambda: next(seconds)))
    source, stop = Script([ROME]), threading.Event()
    source.coming += [RetryableError("nobody listens", hint="Start it.")] * 40 + [RetryableError("it starts")]
    with ReferenceView(source) as view:
        keep_current([view], stop, after_each=lambda view: None if source.coming else stop.set())
    told = [record.getMessage() for record in caplog.records if record.name == "penstock.reference.keeping"]
    assert told == [
        "no update: nobody listens. Trying again until it works. Start it.",
        "no update for 30 s, 31 tries: nobody listens",
        "no update: it starts. Trying again until it works. ",
        "updating again, after 41 s and 41 tries",
    ]


def test_trouble_of_one_view_keeps_no_other_from_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody polls may be what the first one has trouble with."""
    monkeypatch.setattr("penstock.postgres.replication.backoff_s", lambda failures: 0.0)
    first, second, stop = Script([ROME]), Script([OSLO]), threading.Event()
    first.coming += [RetryableError("no room")] * 3
    second.will_send(insert(*BERN))
    with ReferenceView(first) as one, ReferenceView(second) as other:
        keep_current(
            [one, other], stop, after_each=lambda view: stop.set() if view is other and len(other) == 2 else None
        )
        assert first.coming, "the other was first"


def test_a_thread_keeps_a_view_current_and_bears_passing_trouble() -> None:
    source = Script([ROME])
    with ReferenceView(source) as view, kept_current(view, pause_s=0.001):
        wait_until(lambda: len(view) == 1, what="the snapshot")
        source.coming.append(RetryableError("gone for a moment"))
        source.will_send(insert(*OSLO))
        wait_until(lambda: len(view) == 2, what="the change behind the trouble")
        assert threading.active_count() > 1


def test_a_thread_goes_on_with_a_view_that_was_put_right(caplog: pytest.LogCaptureFixture) -> None:
    """What somebody has to mend is told once; after their refresh() the view follows its changes again."""
    source = Script([ROME])
    with ReferenceView(source) as view, kept_current(view, pause_s=0.001):
        wait_until(lambda: len(view) == 1, what="the snapshot")
        source.coming.append(OperatorError("its column is gone"))
        wait_until(lambda: view.status().error, what="the trouble")
        view.refresh()
        source.will_send(insert(*OSLO))
        wait_until(lambda: len(view) == 2, what="the change behind the trouble")
        view.close()
        wait_until(lambda: "is closed" in caplog.text, what="the end of a thread whose view was closed")
    assert caplog.text.count("its column is gone") == 1
