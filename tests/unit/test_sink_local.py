"""The local sink keeps the contract of all sinks, and its file what it promises beyond."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.contracts import Documents, Sink, Target, Writes
from penstock.errors import BugError, DiskError, OperatorError, RetryableError
from penstock.model import Lsn
from penstock.sinks import local_file
from penstock.sinks.local import TOMBSTONE_S, LocalSettings, LocalSink
from penstock.sinks.local_search import LocalReader
from tests.sinks.contract import INDEX, Rig, SinkContract, document, put, target


def make(place: str) -> LocalSink:
    return LocalSink(LocalSettings("local", place))


def rig_in(folder: Path) -> Rig:
    path = str(folder / "documents.db")

    def read(name: str) -> Mapping[str, bytes]:
        with LocalReader(path) as reader:
            return dict(reader.documents(name)) if name in reader.names() else {}

    return Rig(make, path, read, bad=b'{"n": 1, "title": ')


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return rig_in(tmp_path)


class TestLocalSink(SinkContract):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> Rig:
        return rig_in(tmp_path)


def ask(rig: Rig, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Look into the file by other means than ours."""
    with closing(sqlite3.connect(rig.place, isolation_level=None)) as connection:
        return connection.execute(statement, values).fetchall()


def test_it_is_a_sink_for_one_writer(rig: Rig) -> None:
    sink = make(rig.place)
    assert isinstance(sink, Sink)
    assert (sink.name, sink.shared) == ("local", False)


def test_a_document_is_kept_byte_for_byte(rig: Rig) -> None:
    body = '{ "n" : 1.10,\n "title": "Zoë \\u00e9 \\n", "big": 12345678901234567890.123456789 }'.encode()
    with rig.sink() as sink:
        sink.complete(INDEX, Lsn(1))
        sink.write(Writes(Lsn(2), Documents(INDEX, ["x"], [body])))
        sink.flush()
    with LocalReader(rig.place) as reader:
        assert reader.document(INDEX, "x") == body
        assert reader.document(INDEX, "y") is None
        assert reader.count(INDEX) == 1


def test_a_document_too_deep_for_sqlite_is_rejected_by_name(rig: Rig) -> None:
    """E82: what is nested ten thousand times is JSON, and is still refused."""
    deep = b'{"n": ' + b"[" * 10_000 + b"]" * 10_000 + b"}"
    with rig.sink() as sink:
        (rejected,) = sink.write(Writes(Lsn(2), Documents(INDEX, ["x", "deep"], [document(1), deep])))
        assert rejected.id == "deep"


def test_versions_of_64_bits_keep_their_order(rig: Rig) -> None:
    with rig.sink() as sink:
        sink.complete(INDEX, Lsn.MAX)
        assert sink.seeded(INDEX) == Lsn.MAX
        put(sink, 1 << 63, {"x": 1, "y": 1})
        put(sink, (1 << 63) - 1, {"x": 2})
        put(sink, Lsn.MAX, {"y": 2})
        sink.clear(INDEX, Lsn.ZERO)
        sink.flush()
        assert rig.content() == {"x": 1, "y": 2}


def test_what_is_not_flushed_is_not_shown(rig: Rig) -> None:
    with rig.sink() as sink:
        sink.complete(INDEX, Lsn(1))
        put(sink, 2, {"x": 1})
        assert rig.content() == {}
        sink.flush()
        assert rig.content() == {"x": 1}


def test_a_commit_reaches_the_disk_before_it_is_reported(rig: Rig) -> None:
    """E21: the write-ahead log is synced at every commit."""
    with rig.sink() as sink:
        assert isinstance(sink, LocalSink)
        assert sink._connection
        assert sink._connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert sink._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_large_seeds_do_not_wait_for_a_flush_in_one_transaction(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sinks.local._COMMIT_BYTES", 100)
    with rig.sink() as sink:
        sink.complete(INDEX, Lsn(1))
        put(sink, 2, {str(n): n for n in range(10)})
        assert len(rig.content()) == 10


def test_many_deletes_do_not_wait_for_a_flush_either(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """E12: they are small, and still are held until they are committed."""
    monkeypatch.setattr("penstock.sinks.local._COMMIT_BYTES", 100_000)
    with rig.sink() as sink:
        put(sink, 2, dict.fromkeys(map(str, range(1000))))
        assert ask(rig, "SELECT count(*) FROM documents_1") == [(1000,)]


def test_readers_keep_their_moment_while_everything_changes(rig: Rig) -> None:
    """E84: a reader in the middle of its documents is not disturbed by a clear or by a new generation."""
    with rig.sink() as sink:
        sink.complete(INDEX, Lsn(1))
        put(sink, 2, {str(n): n for n in range(500)})
        sink.flush()
        with LocalReader(rig.place) as reader:
            reading = reader.documents(INDEX)
            next(reading)
            sink.clear(INDEX, Lsn(3))
            sink.flush()
            sink.open(target(schema_hash="b"))
            sink.complete(INDEX, Lsn(4))
            assert len(list(reading)) == 499
            assert reader.count(INDEX) == 0


def test_old_generations_leave_nothing_in_the_file(rig: Rig) -> None:
    for schema_hash in "abcb":
        with rig.sink(schema_hash=schema_hash) as sink:
            put(sink, 2, {"x": 1})
            sink.flush()
            if schema_hash == "a":
                sink.complete(INDEX, Lsn(2))
    # Those that were never complete went when the next was made; a is shown, the last b is written to.
    assert [shown for (shown,) in ask(rig, "SELECT shown FROM generation ORDER BY number")] == [1, 0]
    documents = ask(rig, "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'documents%'")
    assert len(documents) == 2


def test_tombstones_are_kept_for_a_week(rig: Rig) -> None:
    """E72: far longer than a write can be late; then they go, when the sink is opened."""
    now = 1_000_000.0
    sink = LocalSink(LocalSettings("local", rig.place), clock=lambda: now)
    for later, left in (0, 1), (TOMBSTONE_S - 1, 1), (TOMBSTONE_S + 1, 0):
        now = 1_000_000.0 + later
        sink.open(target())
        if not later:
            put(sink, 5, {"x": None, "y": 1})
            sink.flush()
        sink.close()
        assert ask(rig, "SELECT count(*) FROM documents_1 WHERE body IS NULL") == [(left,)]
    assert ask(rig, "SELECT id FROM documents_1") == [("y",)]


def test_tombstones_go_while_the_sink_stays_open_too(rig: Rig) -> None:
    """E72: of every index, at a flush; a run may go on for months."""
    now = 1_000_000.0
    sink = LocalSink(LocalSettings("local", rig.place), clock=lambda: now)
    with closing(sink):
        for at, index in enumerate((INDEX, "other")):
            sink.open(target(index))
            put(sink, 5, {"x": None, "y": at}, index)
        sink.flush()
        for later, left in (TOMBSTONE_S - 1, 1), (TOMBSTONE_S + 1, 1), (TOMBSTONE_S + 3600, 0):  # once an hour
            now = 1_000_000.0 + later
            sink.flush()
            for number in (1, 2):
                assert ask(rig, f"SELECT count(*) FROM documents_{number} WHERE body IS NULL") == [(left,)]
                assert ask(rig, f"SELECT id FROM documents_{number} WHERE body IS NOT NULL") == [("y",)]


def test_the_second_writer_is_told_who_the_first_is(rig: Rig) -> None:
    told = rf"another process \({os.getpid()}\) writes to .*documents.db"
    with rig.sink(), pytest.raises(RetryableError, match=told):
        make(rig.place).open(target())
    with rig.sink():
        pass


def test_a_newer_format_is_refused(rig: Rig) -> None:
    with rig.sink():
        pass
    ask(rig, "PRAGMA user_version = 2")
    with pytest.raises(OperatorError, match="newer Penstock: its format is 2, and this one reads up to 1"):
        make(rig.place).open(target())
    with pytest.raises(OperatorError, match="newer Penstock"):
        LocalReader(rig.place)


def test_another_programs_file_is_left_alone(rig: Rig) -> None:
    ask(rig, "CREATE TABLE theirs (x)")
    with pytest.raises(OperatorError, match="another program's SQLite file"):
        make(rig.place).open(target())
    assert ask(rig, "SELECT name FROM sqlite_master") == [("theirs",)]
    Path(rig.place).write_text("no database at all, but longer than a header would be" * 10)
    with pytest.raises(OperatorError, match="no SQLite file, or a damaged one"):
        make(rig.place).open(target())


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    """E89: a folder where a file should be; a file where a folder should be."""
    (tmp_path / "folder.db").mkdir()
    (tmp_path / "file").touch()
    for path in tmp_path / "folder.db", tmp_path / "file" / "x.db":
        with pytest.raises(DiskError, match="cannot be") as refused:
            make(str(path)).open(target())
        assert refused.value.hint


def test_the_file_is_its_owners_alone(rig: Rig) -> None:
    with rig.sink():
        assert os.stat(rig.place).st_mode & 0o777 == 0o600


def test_a_full_disk_is_an_error_and_what_it_took_is_not_reported_as_durable(rig: Rig) -> None:
    """E89: every index whose writes went with the transaction is opened again, and written again, before a flush."""
    with rig.sink() as sink:
        assert isinstance(sink, LocalSink)
        sink.open(target("users"))
        sink.complete(INDEX, Lsn(1))
        put(sink, 2, {"x": 1}, "users")
        fill(sink)
        with pytest.raises(DiskError, match="the disk is full"):
            put(sink, 2, {str(n): n for n in range(5000)})
        for _ in "before and after a part of it is open":
            with pytest.raises(RetryableError, match="lost what was not flushed of users"):
                sink.flush()
            with pytest.raises(RetryableError):
                put(sink, 2, {"y": 2}, "users")
            sink.open(target())
        sink.open(target("users"))
        put(sink, 2, {"x": 1})
        sink.flush()
        assert (rig.content(), rig.content("users")) == ({"x": 1}, {})
        sink.complete("users", Lsn(2))
        assert rig.content("users") == {"x": 1}


def fill(sink: LocalSink) -> None:
    """From now on there is no room."""
    assert sink._connection
    pages = sink._connection.execute("PRAGMA page_count").fetchone()[0]
    sink._connection.execute(f"PRAGMA max_page_count = {pages + 4}")


def test_what_one_writer_had_not_flushed_outlives_the_trouble_of_another(rig: Rig) -> None:
    """E80, E86: a seed fails, and opens the sink again, while live is between its writes and its flush."""
    with rig.sink() as sink:
        assert isinstance(sink, LocalSink)
        sink.open(target("users"))
        for index in INDEX, "users":
            put(sink, 3, {"x": 1, "y": 1}, index)
            sink.complete(index, Lsn(3))
        put(sink, 5, {"x": 5})
        sink.clear(INDEX, Lsn(4))
        put(sink, 6, {"z": 6, "x": None})
        fill(sink)
        with pytest.raises(DiskError):
            put(sink, 5, {str(n): n for n in range(5000)}, "users")
        for index in INDEX, "users":
            sink.open(target(index))
        sink.flush()
        assert (rig.content(), rig.content("users")) == ({"z": 6}, {"x": 1, "y": 1})


def test_what_was_not_flushed_is_not_written_to_a_generation_that_is_seeded_anew(rig: Rig) -> None:
    """E85: the file is removed between the failed write and the opening."""
    with rig.sink() as sink:
        assert isinstance(sink, LocalSink)
        sink.complete(INDEX, Lsn(3))
        put(sink, 5, {"x": 5})
        fill(sink)
        with pytest.raises(DiskError):
            put(sink, 5, {str(n): n for n in range(5000)})
        for ending in ("", "-wal", "-shm"):
            Path(f"{rig.place}{ending}").unlink(missing_ok=True)
        sink.open(target())
        assert sink.seeded(INDEX) is None
        sink.flush()
        sink.complete(INDEX, Lsn(4))
        assert rig.content() == {}


def test_a_generation_that_could_not_be_begun_everywhere_is_left_again(rig: Rig) -> None:
    """E84: the one before it missed nothing, so it goes on; and it is what is kept beside the next try."""
    new, old = target(source="new", beside=("old",)), target(source="old")
    with rig.sink(source="old") as sink:
        put(sink, 2, {"x": 1})
        sink.complete(INDEX, Lsn(2))
        before = sink.generation(INDEX)
        for _ in range(2):
            sink.open(new)
            assert sink.seeded(INDEX) is None
            sink.open(old)
            assert (sink.generation(INDEX), sink.seeded(INDEX)) == (before, Lsn(2))
        put(sink, 3, {"x": 2})
        sink.flush()
        sink.open(new)
        sink.open(old._replace(index="outgoing", beside=("new",)))
        assert sink.generation("outgoing") == before
    assert rig.content() == {"x": 2}


def test_an_index_that_is_forgotten_holds_no_flush_up(rig: Rig) -> None:
    """E89: nobody opens it again, and nobody waits for what was lost of it."""
    with rig.sink() as sink:
        assert isinstance(sink, LocalSink)
        sink.open(target("users"))
        put(sink, 2, {"x": 1}, "users")
        assert sink._connection
        sink._connection.execute("PRAGMA max_page_count = 1")
        with pytest.raises(DiskError):
            put(sink, 2, {str(n): n for n in range(5000)})
        sink.open(target())
        with pytest.raises(RetryableError, match="users"):
            sink.flush()
        sink.forget("users")
        sink.flush()


def test_an_index_that_was_not_opened_is_our_mistake(rig: Rig) -> None:
    with rig.sink() as sink:
        put(sink, 2, {"x": 1})
        with pytest.raises(BugError, match="users was not opened"):
            put(sink, 2, {"x": 1}, "users")
        sink.flush()
        sink.complete(INDEX, Lsn(2))
        assert rig.content() == {"x": 1}
        sink.close()
        sink.close()
        with pytest.raises(RetryableError, match="is closed"):
            put(sink, 2, {"x": 1})


def test_sqlite_without_what_it_takes_is_a_sentence(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_file, "OLDEST", (99, 0, 0))
    with pytest.raises(Exception, match=r"the local sink needs 99\.0\.0 or newer"):
        make(rig.place).open(target())


def test_nothing_of_a_document_is_logged_or_told(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "xyzzy-4711"
    with rig.sink() as sink:
        bodies: list[bytes | None] = [json.dumps({"title": secret}).encode(), b'{"title": "' + secret.encode()]
        rejected = sink.write(Writes(Lsn(2), Documents(INDEX, ["a", "b"], bodies)))
        sink.flush()
        assert secret not in caplog.text + repr(rejected) + repr(sink)


def test_other_texts_are_indexed_from_the_documents_that_are_there(rig: Rig) -> None:
    with rig.sink() as sink:
        sink.write(Writes(Lsn(2), Documents(INDEX, ["x"], [b'{"title": "ada", "note": "engine"}'])))
        sink.flush()
        sink.complete(INDEX, Lsn(2))
        with LocalReader(rig.place) as reader:
            assert not reader.search(INDEX, "engine")
        sink.open(Target(INDEX, INDEX, "a", "system/slot", {}, ("note",)))
        assert sink.seeded(INDEX) == 2
        with LocalReader(rig.place) as reader:
            assert [hit.id for hit in reader.search(INDEX, "engine")] == ["x"]
            assert not reader.search(INDEX, "ada")
