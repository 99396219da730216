"""A deployment that changes while it runs holds on to nothing that is over."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock.app.origins import Origins
from penstock.app.prepared import Prepared
from penstock.config.file import read_deployment
from penstock.document.spec import SourceSpec
from penstock.engine.lineage import Lineage
from penstock.engine.state import State
from tests.unit.engine_parts import MemorySink, parts

TOML = """
[source]
type = "postgres"
connection_url = "postgresql://localhost/here"
[sinks.local]
type = "stdout"
[[index]]
name = "books"
schema = "books.yml"
"""
SCHEMA = "version: 1\ntable: book\nfields: [{text: title}]\n"


def test_of_a_generation_that_readers_have_left_nothing_is_held(tmp_path: Path) -> None:
    """E84: neither by a sink, which is told, nor by what tasks get; so a run may reindex as often as it likes."""
    (tmp_path / "penstock.toml").write_text(TOML)
    (tmp_path / "books.yml").write_text(SCHEMA)
    sink, builder = MemorySink("local"), SimpleNamespace(adopt=lambda spec: None)
    held = parts([], sink, indexes=("books", "books#1"))
    origins = Origins({"books": "here/2", "books#1": "here/1"}, hashes={"books#1": {"local": "old"}})
    with closing(State(tmp_path)) as state:
        deployment, lineage = read_deployment(tmp_path), Lineage(state)
        opened: Any = (deployment, None, SourceSpec([]), state, None, builder, held, origins, lineage, False, {})
        prepared = Prepared(*opened)
        left = prepared.released("books", is_done=True)
    assert (left.origins.indexes, left.origins.hashes) == ({"books": "here/2"}, {})
    assert sink.journal == [("forget", "books#1")]
    assert left.parts.indexes == ("books",)
