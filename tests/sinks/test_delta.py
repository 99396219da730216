"""The delta sink: the contract of every sink, and what is particular to tables that others read."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from penstock.app.parts import open_sink
from penstock.app.running import for_tasks
from penstock.config.deployment import DeltaSink as DeltaConfig
from penstock.config.deployment import Deployment, Source
from penstock.config.secrets import Secret
from penstock.contracts import Documents, ReadableSink, Sink, Writes
from penstock.errors import DiskError, OperatorError, RetryableError
from penstock.model import Lsn
from penstock.sinks import delta, delta_sync
from penstock.sinks.delta import TOMBSTONE_S, DeltaSettings, DeltaSink
from penstock.sinks.delta_memory import PROPERTY
from penstock.sinks.delta_table import Merge, find, make
from tests.sinks.contract import INDEX, Rig, SinkContract, document, put, target


def make_sink(place: str) -> Sink:
    return DeltaSink(DeltaSettings("lake", place))


def rows(place: str, name: str = INDEX) -> list[dict[str, Any]]:
    """What somebody else reads who knows the path."""
    return list(DeltaTable(f"{place}/{name}").to_pyarrow_table().to_pylist())


def read(place: str, name: str) -> Mapping[str, bytes]:
    """The documents: rows that are not tombstones, of which there is one for each id."""
    if not DeltaTable.is_deltatable(f"{place}/{name}"):
        return {}
    found = rows(place, name)
    assert len({row["id"] for row in found}) == len(found), "a row an id"
    return {row["id"]: row["body"].encode() for row in found if not row["deleted"]}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    place = str(tmp_path / "lake")
    return Rig(make_sink, place, lambda name: read(place, name), bad=b'{"n": "\xff"}')


class TestDelta(SinkContract):
    """E72, E81–E83, E85: what every keyed sink promises."""


def commits(place: str) -> list[dict[str, Any]]:
    """What the readers' table went through, the newest first."""
    return list(DeltaTable(f"{place}/{INDEX}").history())


@pytest.mark.parametrize("count", [10, 100])
def test_many_documents_of_one_file_are_looked_at(rig: Rig, count: int) -> None:
    """E83: all of them, some, and none; whatever the log says of the file's least and greatest id."""
    ids = [str(number) for number in range(1, count + 1)]
    with rig.sink() as sink:
        put(sink, 5, dict.fromkeys(ids, 1))
        sink.flush()
        sink.complete(INDEX, Lsn(5))
        assert isinstance(sink, ReadableSink)
        for some in (ids, ids[:3], ids[-2:], ["0", *ids[:2], "zz"], ["elsewhere"], []):
            assert sink.look(INDEX, some).keys() == set(some) & set(ids)


def test_many_deletes_are_merged_before_they_are_flushed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """E12: they are small, and still are held until they are merged."""
    monkeypatch.setattr(delta, "_MERGE_BYTES", 100_000)
    with rig.sink() as sink:
        sink.complete(INDEX, Lsn(1))
        put(sink, 2, dict.fromkeys(map(str, range(1000))))
        assert len(rows(rig.place)) == 1000


class Killed(BaseException):
    """Where the process would end."""


class TestDisk:
    """E21, E89: nothing counts before it is on disk."""

    @pytest.fixture
    def filled(self, rig: Rig) -> Rig:
        """With a document that is on disk."""
        with rig.sink() as sink:
            put(sink, 3, {"x": 1})
            sink.flush()
            sink.complete(INDEX, Lsn(3))
        return rig

    def test_a_sync_that_failed_is_never_taken_for_done(self, filled: Rig) -> None:
        """E89: the next one may succeed and have written nothing; what is moved away is seeded anew."""
        with filled.sink() as sink:
            put(sink, 5, {"x": 5})
            with mock.patch("os.fsync", side_effect=OSError(errno.EIO, "")), pytest.raises(DiskError, match="cannot"):
                sink.flush()
            with pytest.raises(DiskError, match="did not reach the disk"):
                sink.flush()
        with pytest.raises(DiskError, match="did not reach the disk") as refused, filled.sink():
            pass
        assert "seeded anew" in refused.value.hint
        shutil.rmtree(f"{filled.place}/{INDEX}")
        with filled.sink() as sink:
            assert sink.seeded(INDEX) is None
            put(sink, 6, {"x": 6})
            sink.flush()
            sink.complete(INDEX, Lsn(6))
        assert filled.content() == {"x": 6}

    @pytest.mark.parametrize("step", ["os.fsync", "penstock.sinks.delta_table.DocumentTable.counted"])
    def test_what_was_committed_and_not_synced_is_synced_before_it_counts(
        self, filled: Rig, step: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """E21: the process is killed between the two, or before both; the batch that comes again makes no commit."""
        with filled.sink() as sink:
            put(sink, 5, {"x": 5})
            with mock.patch(step, side_effect=Killed), pytest.raises(Killed):
                sink.flush()
        is_committed = filled.content() == {"x": 5}
        assert is_committed is (step == "os.fsync")
        synced: list[str] = []
        monkeypatch.setattr(delta_sync, "_sync", synced.append)
        with filled.sink() as sink:
            table = DeltaTable(f"{filled.place}/{INDEX}")
            last = f"{table.version():020}.json"
            assert any(path.endswith(f"{INDEX}/_delta_log/{last}") for path in synced) is is_committed
            assert ({str(Path(path)) for path in table.file_uris()} <= set(synced)) is is_committed
            put(sink, 5, {"x": 5})
            sink.flush()
        assert filled.content() == {"x": 5}
        assert not [*Path(filled.place).rglob("_unsynced")]

    def test_a_note_of_a_newer_format_is_refused(self, filled: Rig) -> None:
        Path(filled.place, INDEX, "_unsynced").write_text("2 7")
        with pytest.raises(OperatorError, match="newer Penstock: its _unsynced is of format 2"), filled.sink():
            pass


def test_a_folder_of_this_machine_is_the_same_as_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """E33: its second writer is refused, and its commits are synced."""
    place = tmp_path / "a lake"
    synced: list[str] = []
    monkeypatch.setattr(delta_sync, "_sync", synced.append)
    url = Rig(make_sink, place.as_uri(), lambda name: read(str(place), name), bad=b"")
    with url.sink() as sink, pytest.raises(RetryableError, match="another process"):
        put(sink, 3, {"x": 1})
        sink.complete(INDEX, Lsn(3))
        assert (url.content(), {path.startswith(str(place)) for path in synced}) == ({"x": 1}, {True})
        make_sink(str(place)).open(target())


class TestCommits:
    """E83: exactly once, and all at once."""

    def test_a_batch_that_comes_again_is_no_commit_and_the_change_feed_tells_it_once(self, rig: Rig) -> None:
        """E83: also regrouped and overtaken."""
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(1))
            put(sink, 5, {"x": 1, "y": 1})
            sink.flush()
            put(sink, 7, {"y": None})
            sink.flush()
            before = DeltaTable(f"{rig.place}/{INDEX}").version()
            for version, documents in (5, {"x": 1}), (5, {"y": 1}), (7, {"y": None}):
                put(sink, version, documents)
                sink.flush()
        with rig.sink() as sink:
            put(sink, 5, {"y": 1, "x": 1})
            sink.flush()
        table = DeltaTable(f"{rig.place}/{INDEX}")
        assert table.version() == before
        feed = table.load_cdf(starting_version=1).read_all()
        columns = (feed[name].to_pylist() for name in ("id", "_change_type", "version"))
        told = sorted(zip(*columns, strict=True))
        assert told == [
            ("x", "insert", 5), ("y", "insert", 5), ("y", "update_postimage", 7), ("y", "update_preimage", 5),
        ]  # fmt: skip

    def test_a_flush_is_one_commit_that_names_deployment_index_and_generation(self, rig: Rig) -> None:
        """E83: the number beside the name is the highest version merged; what others count is not looked at."""
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(1))
            table = DeltaTable(f"{rig.place}/{INDEX}")
            theirs = CommitProperties(app_transactions=[Transaction("theirs", 99)])
            write_deltalake(table, table.scan(), mode="append", commit_properties=theirs)
            before = DeltaTable(f"{rig.place}/{INDEX}").version()
            put(sink, 9, {"x": 1})
            put(sink, 5, {"y": 1})
            sink.flush()
        table = DeltaTable(f"{rig.place}/{INDEX}")
        assert table.version() == before + 1
        memory = json.loads(DeltaTable(f"{rig.place}/_penstock/{INDEX}").metadata().configuration[PROPERTY])
        assert memory["format"] == 1
        assert table.transaction_version(f"penstock/system/slot/{INDEX}/{memory['token']}") == 9

    def test_a_generation_appears_and_changes_in_one_commit(self, rig: Rig) -> None:
        """E84: a reader of any version of the table sees a whole generation."""
        with rig.sink() as sink:
            put(sink, 3, {"x": 1, "y": 1})
            sink.flush()
            assert not DeltaTable.is_deltatable(f"{rig.place}/{INDEX}")
            sink.complete(INDEX, Lsn(3))
        with rig.sink(schema_hash="b") as sink:
            put(sink, 5, {"x": 2})
            sink.complete(INDEX, Lsn(5))
        table = DeltaTable(f"{rig.place}/{INDEX}")
        assert table.version() == 1
        for version, ids in (0, ["x", "y"]), (1, ["x"]):
            table.load_as_version(version)
            assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == ids

    def test_two_writers_that_saw_the_same_table_do_not_both_insert(self, rig: Rig) -> None:
        """E83: as two machines on one object store would; the second merges on top of the first."""
        made = make(f"{rig.place}/{INDEX}", {})
        late = find(f"{rig.place}/{INDEX}", {})
        assert late
        made.merge({"x": (Lsn(6), document(6)), "y": (Lsn(4), document(4))}, "a")
        late.merge({"x": (Lsn(5), document(5)), "y": (Lsn(5), None)}, "b")
        assert {row["id"]: (row["version"], row["deleted"]) for row in rows(rig.place)} == {
            "x": (6, False),
            "y": (5, True),
        }

    def test_a_large_merge_is_the_other_engines_and_its_number_is_told_where_it_is_new(self, rig: Rig) -> None:
        """E83: by what it may have to write anew; Delta on Spark would skip a commit whose number is not new."""
        asked: list[tuple[int, Merge]] = []

        class Engine:
            def takes(self, uri: str, rewritten_bytes: int) -> bool:
                assert uri == f"{rig.place}/{INDEX}"
                return rewritten_bytes > 500

            def merge(self, uri: str, rows: Any, merge: Merge) -> None:
                asked.append((rows.num_rows, merge))

        table = make(f"{rig.place}/{INDEX}", {})
        for version, ids in (5, 2), (8, 2), (8, 1), (7, 2):
            table.merge({str(n): (Lsn(version), document(n)) for n in range(ids)}, "a", Engine())
        merged = [(count, one.application, one.number) for count, one in asked]
        assert merged == [(2, "a", 8), (1, "a", None), (2, "a", None)], "the first found an empty table"
        assert asked[0][1].rows_a_file and asked[0][1].rows_a_file >= 1000
        assert {row["version"] for row in rows(rig.place)} == {5}

    def test_a_machines_own_maintenance_does_not_disturb(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        """Small files are joined by the sink, and whoever does it beside the sink is no trouble."""
        monkeypatch.setattr(delta, "_COMPACT_EVERY", 4)
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(1))
            for version in range(2, 12):
                put(sink, version, {str(version): version})
                sink.flush()
            assert len(DeltaTable(f"{rig.place}/{INDEX}").file_uris()) < 6
            assert DeltaTable(f"{rig.place}/{INDEX}").optimize.compact()["numFilesRemoved"]
            put(sink, 12, {"2": None, "12": 12})
            sink.flush()
        assert rig.content() == {str(n): n for n in range(3, 13)}


def test_a_document_is_kept_byte_for_byte_and_a_tombstone_says_so(rig: Rig) -> None:
    body = '{ "n" : 1.10,\n "title": "Zoë \\u00e9 \\n", "big": 12345678901234567890.123456789 }'
    with rig.sink() as sink:
        sink.complete(INDEX, Lsn(1))
        sink.write(Writes(Lsn(2), Documents(INDEX, ["o'brien", "gone"], [body.encode(), None])))
        sink.flush()
        assert sorted(rows(rig.place), key=lambda row: str(row["id"])) == [
            {"id": "gone", "version": 2, "deleted": True, "body": None},
            {"id": "o'brien", "version": 2, "deleted": False, "body": body},
        ]


def test_tombstones_are_removed_after_a_week_and_not_before(rig: Rig) -> None:
    """E72: one that is younger than the mark of a week ago stays."""
    now = [1_000_000.0]

    def at(days: float) -> DeltaSink:
        now[0] = 1_000_000 + days * 86400
        sink = DeltaSink(DeltaSettings("lake", rig.place), clock=lambda: now[0])
        sink.open(target())
        return sink

    def ids() -> list[str]:
        return sorted(row["id"] for row in rows(rig.place))

    sink = at(0)
    sink.complete(INDEX, Lsn(1))
    put(sink, 3, {"old": None, "alive": 1})
    sink.flush()
    sink.close()
    assert TOMBSTONE_S == 7 * 86400
    for days, left in (6, ["alive", "old"]), (8, ["alive", "old"]), (14, ["alive", "old"]), (16, ["alive"]):
        sink = at(days)
        assert ids() == left, days
        sink.close()


def test_a_table_deleted_by_hand_is_another_generation_and_has_to_be_seeded(rig: Rig) -> None:
    """E85: while it is written to, that is told, and no half of a table comes of it."""
    with rig.sink() as sink:
        put(sink, 3, {"x": 1})
        sink.complete(INDEX, Lsn(3))
        before = sink.generation(INDEX)
        shutil.rmtree(f"{rig.place}/{INDEX}")
        put(sink, 5, {"y": 1})
        with pytest.raises(RetryableError, match="is gone"):
            sink.flush()
        sink.open(target())
        assert sink.seeded(INDEX) is None
        assert sink.generation(INDEX) != before
        put(sink, 6, {"y": 2})
        sink.complete(INDEX, Lsn(6))
        assert rig.content() == {"y": 2}
    with rig.sink() as sink:
        assert sink.seeded(INDEX) == 6


def test_an_index_that_is_forgotten_holds_no_flush_up(rig: Rig) -> None:
    """E85: nobody opens it again, and nobody waits for what went with its table."""
    with rig.sink() as sink:
        sink.open(target("users"))
        sink.complete("users", Lsn(3))
        shutil.rmtree(f"{rig.place}/users")
        put(sink, 5, {"y": 1}, "users")
        with pytest.raises(RetryableError, match="is gone"):
            sink.flush()
        sink.forget("users")
        put(sink, 6, {"y": 2})
        sink.flush()
        sink.complete(INDEX, Lsn(6))
        assert rig.content() == {"y": 2}


def test_a_crash_between_showing_and_remembering_is_mended_by_the_next_complete(rig: Rig) -> None:
    """E84, E85: readers see the whole; it is not taken for seeded, and goes on in their table."""
    with rig.sink() as sink:
        put(sink, 3, {"x": 1})
        sink.flush()
        shutil.copytree(f"{rig.place}/_penstock/{INDEX}", f"{rig.place}/before")
        sink.complete(INDEX, Lsn(3))
    shutil.rmtree(f"{rig.place}/_penstock/{INDEX}")
    os.rename(f"{rig.place}/before", f"{rig.place}/_penstock/{INDEX}")
    shutil.copytree(f"{rig.place}/_penstock/{INDEX}", f"{rig.place}/half")
    with rig.sink() as sink:
        assert sink.seeded(INDEX) is None
        put(sink, 5, {"y": 2})
        sink.flush()
        assert rig.content() == {"x": 1, "y": 2}
        before = sink.generation(INDEX)
        shutil.copytree(f"{rig.place}/{INDEX}", f"{rig.place}/kept")
    shutil.rmtree(f"{rig.place}/{INDEX}")
    with rig.sink() as sink:
        assert sink.generation(INDEX) != before
    # The same without the second misfortune.
    shutil.rmtree(f"{rig.place}/_penstock/{INDEX}")
    os.rename(f"{rig.place}/half", f"{rig.place}/_penstock/{INDEX}")
    os.rename(f"{rig.place}/kept", f"{rig.place}/{INDEX}")
    with rig.sink() as sink:
        sink.complete(INDEX, Lsn(3))
        assert sink.seeded(INDEX) == 3
        assert rig.content() == {"x": 1, "y": 2}


def test_readers_see_the_generation_they_leave_current_and_never_half_of_the_next(rig: Rig) -> None:
    """E84, E85: through restarts and a crash in the moment of the change; one that nobody kept is not taken up."""
    old = target("old", name=INDEX, source="system/1", beside=("system/2",))
    after: dict[str, Any] = {"source": "system/2", "beside": ("system/1",)}
    with rig.sink(source="system/1") as sink:
        put(sink, 3, {"x": 1, "y": 1})
        sink.complete(INDEX, Lsn(3))
    for version in (5, 6):
        with rig.sink(**after) as sink:
            assert sink.shows(old)
            sink.open(old)
            for index in (INDEX, "old"):
                put(sink, version, {"x": version}, index)
            sink.flush()
            assert rig.content() == {"x": version, "y": 1}
    shutil.copytree(f"{rig.place}/_penstock/{INDEX}", f"{rig.place}/before")
    with rig.sink(**after) as sink:
        put(sink, 6, {"y": 6})
        sink.complete(INDEX, Lsn(6))
        assert rig.content() == {"x": 6, "y": 6}
        assert not sink.shows(old)
    shutil.rmtree(f"{rig.place}/_penstock/{INDEX}")
    os.rename(f"{rig.place}/before", f"{rig.place}/_penstock/{INDEX}")
    with rig.sink(**after) as sink:
        assert not sink.shows(old), "it was shown; that was not remembered"
        assert sink.seeded(INDEX) is None
        sink.complete(INDEX, Lsn(6))
    left = target("old", name=INDEX, source="system/2")
    with rig.sink(source="system/3", beside=("system/2",)) as sink:
        assert sink.shows(left)
    with rig.sink(source="system/3"):  # keeps nothing beside it
        pass
    with rig.sink(source="system/3", beside=("system/2",)) as sink:
        assert not sink.shows(left), "it has missed changes"
    with rig.sink(source="system/4", beside=("system/2",)) as sink:
        assert not sink.shows(left)
        assert rig.content() == {"x": 6, "y": 6}


def test_what_is_not_ours_or_cannot_be_used_is_refused_in_a_sentence(rig: Rig, tmp_path: Path) -> None:
    """E89: somebody's table, a newer format, a file in place of the folder."""
    with rig.sink():
        pass
    config = DeltaTable(f"{rig.place}/_penstock/{INDEX}")
    memory = json.loads(config.metadata().configuration[PROPERTY])
    newer = {PROPERTY: json.dumps({**memory, "format": 2})}
    config.alter.set_table_properties(newer, raise_if_not_exists=False)
    with pytest.raises(OperatorError, match="newer Penstock"), rig.sink():
        pass
    shutil.copytree(f"{rig.place}/_penstock/{INDEX}", tmp_path / "other" / INDEX)
    theirs = DeltaTable(str(tmp_path / "other" / INDEX))
    theirs.alter.add_columns(theirs.schema().fields[0].__class__("more", "string"))
    sink = make_sink(str(tmp_path / "other"))
    with pytest.raises(OperatorError, match="somebody else") as refused:
        sink.open(target())
    assert "path" in refused.value.hint
    sink.close()
    (tmp_path / "file").touch()
    with pytest.raises(DiskError):
        make_sink(str(tmp_path / "file")).open(target())


def test_secrets_of_the_storage_show_nowhere_and_are_looked_up_where_the_table_is() -> None:
    """E103: a key that stands in the file reaches a task by the environment alone."""
    label = "sinks.lake.storage_options"
    options = {
        "aws_secret_access_key": Secret(f"{label}.aws_secret_access_key", literal="hidden"),
        "aws_region": Secret(f"{label}.aws_region", literal="here"),
    }
    deployment = Deployment(Source(), (DeltaConfig("lake", "lake", options),), (), folder="/deployed")
    with mock.patch.dict(os.environ):
        sent = pickle.dumps(for_tasks(deployment))
        assert b"hidden" not in sent
        carried = pickle.loads(sent)
        sink = open_sink(carried.sinks[0], replace(carried, folder="/deployed"))
    assert isinstance(sink, DeltaSink)
    assert "hidden" not in repr(sink) + repr(DeltaSettings("lake", "lake", {"aws_secret_access_key": "hidden"}))
    assert sink._storage == {"aws_secret_access_key": "hidden", "aws_region": "here"}
    assert sink._path == "/deployed/lake"
