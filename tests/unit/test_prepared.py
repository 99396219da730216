"""A deployment that changes while it runs holds on to nothing that is over."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.app.origins import Origins
from penstock.app.prepared import Prepared
from penstock.app.reindex import heirs
from penstock.app.running import _keeping
from penstock.config.file import read_deployment
from penstock.document.spec import SourceSpec
from penstock.engine.lineage import Lineage
from penstock.engine.state import State
from penstock.errors import UnavailableError
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


def test_of_a_generation_that_is_left_nothing_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """E84: neither by a sink, which is told, nor by what tasks get; so a run may reindex as often as it likes."""
    (tmp_path / "penstock.toml").write_text(TOML)
    (tmp_path / "books.yml").write_text(SCHEMA)
    sink, builder = MemorySink("local"), SimpleNamespace(adopt=lambda spec: None)
    held = parts([], sink, indexes=("books", "books#1"))
    origins = Origins({"books": "here/2", "books#1": "here/1"}, hashes={"books#1": {"local": "old"}})
    with closing(State(tmp_path)) as state:
        deployment, lineage = read_deployment(tmp_path), Lineage(state)
        claim = SimpleNamespace(require=lambda: sink.journal.append(("require",)))
        opened: Any = (deployment, None, SourceSpec([]), state, claim, builder, held, origins, lineage, False, {})
        prepared = Prepared(*opened)
        left = prepared.released("books", is_done=True)
        assert sink.journal == [("forget", "books#1")]
        sink.journal.clear()
        monkeypatch.setattr("penstock.app.prepared.open_indexes", lambda *_: dict(left.parts.sinks))
        given_up = prepared.released("books", is_done=False)
        assert sink.journal == [], "a batch may be under way, which still writes to it"
        assert given_up.reopened().reopened().origins.indexes == left.origins.indexes
    assert (left.origins.indexes, left.origins.hashes) == ({"books": "here/2"}, {})
    assert sink.journal == [("require",), ("forget", "books#1"), ("require",)]
    assert left.parts.indexes == ("books",)


def test_a_pause_for_a_sink_lasts_until_the_slot_is_known_to_be_ours() -> None:
    """E33: no sink is opened before: another process may have taken over meanwhile, and its generations count then."""
    told: list[str] = []
    answers = iter([UnavailableError("no answer"), UnavailableError("no answer"), None])

    def require() -> None:
        if error := next(answers):
            raise error

    claim: Any = SimpleNamespace(require=require)
    pause = _keeping(claim, lambda _, why: told.append(why))
    assert pause
    pause(1.0, "sink search does not answer")
    assert told == ["sink search does not answer", "no answer", "no answer"]
    assert next(answers, "asked") == "asked"


def test_a_generation_that_nobody_can_ask_about_is_not_built_to_be_compared() -> None:
    """E84: where every sink is a log of changes, there is nothing to hold against the database."""
    prepared: Any = SimpleNamespace(origins=SimpleNamespace(outgoing={}))  # nothing to build a document with
    pipeline: Any = SimpleNamespace(stopping=threading.Event())
    verify = heirs(prepared, lambda fit: pipeline).verify
    assert verify(pipeline, "books", [MemorySink("log")]) == 0
    pipeline.stopping.set()
    with pytest.raises(UnavailableError, match="is ending"):
        verify(pipeline, "books", [MemorySink("log")])
