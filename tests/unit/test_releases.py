"""What an older release has left behind is read by this one: every format that is kept, from every release."""

from __future__ import annotations

import importlib
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow.dataset
import pytest
from deltalake import DeltaTable

import penstock
from penstock.config.file import read_deployment
from penstock.config.lock import read_lock
from penstock.engine.lineage import Lineage, Role
from penstock.engine.marks import Marks
from penstock.engine.state import State
from penstock.errors import ConfigError
from penstock.model import Lsn
from penstock.postgres.replay import Cut
from penstock.reference.store import read_saved
from penstock.sinks.local_search import LocalReader
from penstock.sinks.opensearch_generation import found
from penstock.spark.offsets import to_chunks, to_cut
from tests.fixtures.release_files import BODIES, EXAMPLE, FOLDER, ORIGIN, SLOT, TARGET, sinks

RELEASES = sorted(path.name for path in FOLDER.iterdir())
# Where the number of each format stands, and what it was when the newest release was made.
FORMATS = {
    "penstock.engine.state:FORMAT": 2,
    "penstock.sinks.local_file:FORMAT": 1,
    "penstock.sinks.opensearch_generation:FORMAT": 1,
    "penstock.sinks.delta_memory:FORMAT": 1,
    "penstock.sinks.delta_sync:_FORMAT": 1,
    "penstock.sinks.parquet_folder:FORMAT": 1,
    "penstock.spark.offsets:_FORMAT": 1,
    "penstock.reference.store:FORMAT": 1,
    "penstock.reference.checkpoint:FORMAT": 1,
    "penstock.config.lock:FORMAT": 1,
}


@pytest.fixture(params=RELEASES)
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What a release left behind, to be worked on."""
    return shutil.copytree(FOLDER / request.param, tmp_path / request.param)


def test_this_release_is_among_them() -> None:
    assert ".".join(penstock.__version__.split(".")[:2]) in RELEASES


def test_no_format_changes_unnoticed() -> None:
    """A new number needs files of the release that wrote the one before, and code that reads them."""
    named = {name: name.split(":") for name in FORMATS}
    assert {name: getattr(importlib.import_module(at), what) for name, (at, what) in named.items()} == FORMATS


def test_the_state_is_read(left: Path) -> None:
    """E89: a seed goes on, and what was put aside, left behind, marked or stopped still is."""
    with closing(State(left / "state")) as state:
        seed = state.seed("books")
        assert seed
        assert (seed.sinks, seed.version, seed.total, seed.done, seed.documents) == (("local", "search"), 7, 3, 1, 100)
        assert [chunk.after for chunk in state.chunks_left("books")] == [("100",), ("200",)]
        assert list(state.gone("books")) == [[("42",)]]
        assert [(one.sink, one.id, one.version) for one in state.quarantined()] == [("search", "7", 6)]
        assert state.stopped() == {"authors": "a column is gone"}
        assert "books" in Marks(state).marked()
        lineage = Lineage(state)
        assert lineage.away() == ("search",)
        assert (lineage.made(Role.CURRENT)["books"].identity, lineage.made(Role.OUTGOING)["books"].identity) == (
            "two",
            "one",
        )


def test_sinks_go_on_with_their_generations(left: Path) -> None:
    """E85: what was seeded by the older release is not seeded again; its tombstones count."""
    for name, sink in sinks(left).items():
        with closing(sink):
            sink.open(TARGET)
            assert sink.seeded("books") == 7, name
            assert sink.holdings("shop_books")
    live = {id: body for id, body in BODIES.items() if body}
    with LocalReader(str(left / "local.db")) as reader:
        assert dict(reader.documents("shop_books")) == live
        assert [hit.id for hit in reader.search("shop_books", "second")] == ["2"]
    table = DeltaTable(str(left / "delta" / "shop_books")).to_pyarrow_table().to_pylist()
    assert {row["id"]: row["body"].encode() for row in table if not row["deleted"]} == live
    rows = pyarrow.dataset.dataset(left / "parquet" / "shop_books", partitioning="hive").to_table().to_pylist()
    assert sorted(row["op"] for row in rows) == ["complete", "delete", "upsert", "upsert"]


def test_the_memory_of_a_search_index_is_read(left: Path) -> None:
    body = json.loads((left / "opensearch.json").read_text())
    aliases = body["aliases"]
    (one,) = found(
        "shop_books",
        {
            "shop_books-01234567-1": {
                **body,
                "aliases": aliases,
                "settings": {"index": {"uuid": "u", **body["settings"]}},
            }
        },
    )
    assert one.fits(TARGET)
    assert one.alias in aliases


def test_offsets_of_a_checkpoint_are_read(left: Path) -> None:
    whole, part, chunk = json.loads((left / "offsets.json").read_text())
    at = Lsn.parse("16/B374D848")
    assert to_cut(whole, SLOT) == (Cut(at), ORIGIN)
    assert to_cut(part, SLOT) == (Cut(at, 7), ORIGIN)
    chunks = to_chunks(chunk)
    assert chunks
    total = 10 if chunk["format"] == 1 else 9
    assert (chunks.lsn, chunks.done, chunks.total) == (at, 3, total), "the step behind the last chunk is to come"


def test_a_saved_view_is_read(left: Path) -> None:
    """E93: with its position."""
    saved = read_saved(left / "view")
    assert saved.contents.table().to_pylist() == [{"id": 1, "name": "Roma", "notes": "a"}]
    assert saved.checkpoint.slot == "dims"


def test_a_lock_file_is_read(left: Path) -> None:
    deployment = read_lock(left / "penstock.lock")
    assert [index.name for index in deployment.indexes] == [index.name for index in read_deployment(EXAMPLE).indexes]


def test_a_state_of_a_newer_release_is_refused(left: Path) -> None:
    """E89: nothing of it is changed."""
    file = left / "state" / "state.sqlite"
    with closing(sqlite3.connect(file)) as state:
        state.execute("PRAGMA user_version = 99")
    before = file.read_bytes()
    with pytest.raises(ConfigError, match="format 99"):
        State(left / "state")
    assert file.read_bytes() == before
