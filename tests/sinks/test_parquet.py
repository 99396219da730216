"""The parquet sink: read as its page says, its log keeps the contract of every sink; and its files are whole."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyarrow import fs

from penstock.contracts import Documents, Sink, Writes
from penstock.errors import BugError, ConfigError, DiskError, OperatorError, UnavailableError
from penstock.model import Lsn
from penstock.sinks import parquet
from penstock.sinks.parquet import ParquetSettings, ParquetSink
from penstock.sinks.parquet_folder import Folder
from tests.sinks.contract import INDEX, ROOT, Rig, SinkContract, document, put, target

PAGE = (ROOT / "docs/how-to/parquet-sink.md").read_text()
(QUERY,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)


def make(place: str) -> Sink:
    return ParquetSink(ParquetSettings("log", place))


def rows(place: str, name: str = INDEX) -> list[dict[str, Any]]:
    """The log as any reader of Parquet sees it, in its own order."""
    if not list(Path(place, name).glob("*/*.parquet")):
        return []
    found: list[dict[str, Any]] = ds.dataset(f"{place}/{name}", partitioning="hive").to_table().to_pylist()
    return sorted(found, key=lambda row: int(row["seq"]))


def read(place: str, name: str) -> Mapping[str, bytes]:
    """The documents by the query of the sink's page."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"CREATE TABLE {name} (id, version, op, body, seq, generation)")
        values = [[row[c] for c in ("id", "version", "op", "body", "seq", "generation")] for row in rows(place, name)]
        connection.executemany(f"INSERT INTO {name} VALUES (?, ?, ?, ?, ?, ?)", values)
        found = connection.execute(QUERY.replace("books", name)).fetchall()
    return {id: body.encode() for id, body in found}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    place = str(tmp_path / "log")
    return Rig(make, place, lambda name: read(place, name), bad=b'{"n": "\xff"}')


class TestParquet(SinkContract):
    """E72, E81–E83, E85: the log is not keyed, but whoever reads it by key finds what every sink promises."""


def test_it_is_a_log_of_operations_in_the_order_they_came(rig: Rig) -> None:
    """Also late ones and repeats, with the document byte for byte."""
    body = '{ "n" : 1.10,\n "title": "Zoë \\u00e9", "big": 12345678901234567890.123456789 }'
    with rig.sink() as sink:
        sink.write(Writes(Lsn(5), Documents(INDEX, ["x", "y"], [body.encode(), None])))
        sink.clear(INDEX, Lsn(6))
        sink.flush()
        put(sink, 4, {"x": 1})
        sink.complete(INDEX, Lsn(6))
    common = {"index": INDEX, "generation": 1}
    assert rows(rig.place) == [
        common | {"seq": 1, "id": "x", "version": 5, "op": "upsert", "body": body},
        common | {"seq": 2, "id": "y", "version": 5, "op": "delete", "body": None},
        common | {"seq": 3, "id": None, "version": 6, "op": "clear", "body": None},
        common | {"seq": 4, "id": "x", "version": 4, "op": "upsert", "body": document(1).decode()},
        common | {"seq": 5, "id": None, "version": 6, "op": "complete", "body": None},
    ]
    names = sorted(path.name for path in Path(rig.place, INDEX).rglob("*.parquet"))
    assert names == [f"{3:020}.parquet", f"{5:020}.parquet"]


def test_rows_are_numbered_on_after_a_restart_and_in_a_new_generation(rig: Rig) -> None:
    for schema_hash in "a", "a", "b":
        with rig.sink(schema_hash=schema_hash) as sink:
            put(sink, 5, {"x": 1, "y": 1})
            sink.flush()
    assert [(row["seq"], row["generation"]) for row in rows(rig.place)] == [(n, 1 + (n > 4)) for n in range(1, 7)]


def test_a_file_is_seen_whole_or_not_at_all(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """E21: a crash while it is written, or before it has its name, leaves nothing for readers to see."""
    with rig.sink() as sink:
        sink.complete(INDEX, Lsn(1))
        put(sink, 2, {"x": 1})
        moves: list[str] = []

        def crash(files: Any, place: str, name: str) -> None:
            moves.append(place)
            raise OSError(28, "stopped")

        monkeypatch.setattr(Folder, "_move", crash)
        with pytest.raises(DiskError, match="No space"):
            sink.flush()
        monkeypatch.undo()
        assert Path(moves[0]).exists()
        Path(moves[0]).write_bytes(Path(moves[0]).read_bytes()[:100])
        assert rig.content() == {}
        sink.flush()
        assert rig.content() == {"x": 1}
    Path(moves[0]).write_bytes(b"half")
    with rig.sink():
        assert not Path(moves[0]).exists()
        assert rig.content() == {"x": 1}


def test_much_is_written_before_it_is_flushed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded, whatever a batch holds."""
    monkeypatch.setattr(parquet, "_FILE_BYTES", 1000)
    with rig.sink() as sink:
        put(sink, 2, {str(n): n for n in range(100)})
        assert len(rows(rig.place)) == 100


def test_many_deletes_are_written_before_they_are_flushed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """E12: they are small, and still are held until they are written."""
    monkeypatch.setattr(parquet, "_FILE_BYTES", 100_000)
    with rig.sink() as sink:
        put(sink, 2, dict.fromkeys(map(str, range(1000))))
        assert len(rows(rig.place)) == 1000


def test_a_log_deleted_by_hand_has_to_be_seeded(rig: Rig) -> None:
    """E85: all of it, or the files alone; what is left counts up."""
    for round_, gone in enumerate(["", "/generation=1", "/generation=2"]):
        with rig.sink() as sink:
            assert sink.seeded(INDEX) is None
            put(sink, 3, {"x": round_})
            sink.complete(INDEX, Lsn(3))
            assert rig.content() == {"x": round_}
        with rig.sink() as sink:
            assert sink.seeded(INDEX) == 3
        shutil.rmtree(f"{rig.place}/{INDEX}{gone}")
    with rig.sink() as sink:
        assert sink.seeded(INDEX) is None


def test_what_cannot_be_used_is_refused_in_a_sentence(rig: Rig, tmp_path: Path) -> None:
    """E89: a newer format, a file in place of the folder, a URL of nothing."""
    with rig.sink():
        memory = Path(rig.place, INDEX, "_penstock.json")
        memory.write_text(json.dumps({**json.loads(memory.read_text()), "format": 2}))
    with pytest.raises(OperatorError, match="newer Penstock"), rig.sink():
        pass
    (tmp_path / "file").touch()
    with pytest.raises(DiskError):
        make(str(tmp_path / "file")).open(target())
    with pytest.raises(ConfigError, match="leads nowhere"):
        make("nowhere://x/y")
    with pytest.raises(BugError, match="not opened"):
        make(rig.place).seeded(INDEX)


def test_where_objects_appear_whole_they_are_written_under_their_names(tmp_path: Path) -> None:
    """On an object store there is nothing to rename; what its client says is passing trouble."""
    folder = Folder(fs.LocalFileSystem(), str(tmp_path))
    with folder._whole("a") as place:
        assert place != f"{tmp_path}/a"
        Path(place).touch()
    stand_in = Folder.__new__(Folder)
    stand_in._files, stand_in.path = type("Files", (), {"type_name": "s3"})(), "bucket/log"
    with stand_in._whole("a") as place:
        assert place == "bucket/log/a"
    with pytest.raises(UnavailableError, match="storage"), parquet.translated("bucket/log"):
        raise OSError("no such bucket")
