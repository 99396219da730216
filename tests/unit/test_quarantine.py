"""When a document leaves quarantine, and what a replay does, over a builder and sinks in memory."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.app.quarantine import answer
from penstock.cli.main import run
from penstock.contracts import Documents, Rejection, Writes
from penstock.document.ids import document_id
from penstock.engine import batch, quarantine
from penstock.engine.report import Report
from penstock.engine.state import EVERY, State
from penstock.errors import ConfigError
from penstock.model import Lsn
from tests.unit.engine_parts import Journal, MemorySink, changes, parts

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    with closing(State(tmp_path)) as found:
        yield found


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """A deployment with this state."""
    file = Path(shutil.copytree(EXAMPLES / "shop", tmp_path / "shop")) / "penstock.toml"
    file.write_text(f'state = ".."\n{file.read_text()}')
    return str(file)


def put(state: State, *ids: str, sink: str = "memory", version: int = 10, index: str = "books") -> None:
    state.quarantine([(sink, Rejection(index, id, Lsn(version), "too wild")) for id in ids])


def left(state: State) -> list[tuple[str, str]]:
    return sorted((one.sink, one.id) for one in state.quarantined())


def test_a_batch_tells_what_of_the_quarantine_was_taken() -> None:
    """E81: by sink, and only what the sink did not reject again; a delete that is taken counts."""
    taking, wild = MemorySink("taking"), MemorySink("wild", rejects=frozenset("a"))
    mine = batch.replace(
        parts([], taking, wild, rows="abc"), aside=frozenset({("books", "a"), ("books", "x"), ("other", "b")})
    )
    tally = batch.apply(mine, changes(*"abx"), Lsn(50), lambda *_: None)
    assert sorted(tally.healed) == [("taking", "books", "a"), ("taking", "books", "x"), ("wild", "books", "x")]
    assert [(sink, one.id) for sink, one in tally.rejected] == [("wild", "a")]


def test_what_is_taken_leaves_unless_something_newer_was_rejected(state: State) -> None:
    """E81, E83: a replay that was overtaken by a live rejection does not hide it."""
    put(state, "a", "b", "c")
    put(state, "b", version=60)
    put(state, "a", sink="second")
    quarantine.heal(state, [("memory", "books", "a"), ("memory", "books", "b")], Lsn(50))
    assert left(state) == [("memory", "b"), ("memory", "c"), ("second", "a")]


def test_a_rejection_between_look_and_release_stays(state: State) -> None:
    put(state, "a")
    found = state.quarantined()
    put(state, "a", version=60)
    state.release(found)
    assert left(state) == [("memory", "a")]
    assert state.quarantined()[0].since == found[0].since


def test_a_complete_seed_outlives_what_was_rejected_before_it(state: State) -> None:
    """E81: of its index and its sinks; what it rejected itself, or live since, stays."""
    put(state, "old", version=10)
    put(state, "old elsewhere", sink="another", version=10)
    put(state, "old", version=10, index="other")
    put(state, "of the seed", version=20)
    put(state, "live since", version=30)
    quarantine.outlive(state, "books", ["memory"], Lsn(20))
    assert left(state) == [
        ("another", "old elsewhere"), ("memory", "live since"), ("memory", "of the seed"), ("memory", "old"),
    ]  # fmt: skip
    assert [one.index for one in state.quarantined() if one.id == "old"] == ["other"]


def test_a_replay_builds_anew_for_the_sinks_that_rejected_and_no_others(state: State) -> None:
    """E81: what is taken leaves, what is rejected again stays with the new reason, what is gone is deleted."""
    journal: Journal = []
    first, second = MemorySink("first", rejects=frozenset("b")), MemorySink("second")
    mine = parts(journal, first, second, rows="ab")
    put(state, "a", "b", "gone", sink="first")
    put(state, "b", sink="second")
    lost = document_id(("",))
    put(state, lost, sink="first")
    tally = quarantine.replay(mine, state.quarantined("books"), Lsn(70), state)
    assert first.held == {
        ("books", "a"): (Lsn(70), b'{"id":"a"}'), ("books", "gone"): (Lsn(70), None), ("books", lost): (Lsn(70), None),
    }  # fmt: skip
    assert second.held == {("books", "b"): (Lsn(70), b'{"id":"b"}')}
    assert len(tally.healed) == 4
    (entry,) = state.quarantined()
    assert (entry.sink, entry.id, entry.version) == ("first", "b", Lsn(70))
    assert journal[-1] == ("flush", "second")


def test_a_list_comes_in_portions_the_oldest_first(state: State) -> None:
    """However many there are, one answer has so many and says how many there are in all."""
    put(state, *"cab")
    put(state, "a", sink="another")
    put(state, "z", index="other")
    pipeline: Any = SimpleNamespace(state=state)
    met, after = [], ""
    while after is not None:
        told = answer(pipeline, {"action": "list", "limit": "2", "after": after})
        assert len(told["entries"]) <= 2
        assert told["total"] == 5
        met += [(one["index"], one["sink"], one["id"]) for one in told["entries"]]
        after = told["next"]
    assert met == [(one.index, one.sink, one.id) for one in state.quarantined()]
    assert len(set(met)) == 5
    assert answer(pipeline, {"action": "list", "index": "other"})["total"] == 1
    assert {one.sink for one in state.quarantined("books", ["a", "nothing"])} == {"another", "memory"}


HOSTILE: list[Any] = [5, None, 1.5, True, [], ["x"], [["b"]], {"a": 1}, "nan", "inf", "-1e999", "x" * 5000, '["a"]']


def test_whatever_is_asked_of_the_quarantine_is_answered_or_refused_in_a_sentence(state: State) -> None:
    put(state, "a")
    pipeline: Any = SimpleNamespace(state=state, plan=SimpleNamespace(parts=parts([], MemorySink("memory"), rows="a")))
    for action, name, value in product(
        ["list", "replay", "forget", *HOSTILE], ["index", "ids", "limit", "after"], HOSTILE
    ):
        try:
            assert answer(pipeline, {"action": action, name: value}).keys() <= {"entries", "total", "next", "taken"}
        except ConfigError as error:
            assert error.hint
    assert left(state) == [("memory", "a")]


def test_the_ids_in_quarantine_are_told_as_they_change(state: State) -> None:
    assert state.aside() == frozenset()
    put(state, "a", "b")
    assert state.aside() == {("books", "a"), ("books", "b")}
    state.release(state.quarantined("books", ["a"]))
    assert state.aside() == {("books", "b")}
    held = state.aside()
    state.stop_index("other", "of no matter")
    assert state.aside() is held, "read again only where it may be another"


def test_a_large_quarantine_costs_a_batch_no_more_than_a_small_one(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E81: batches know it by its indexes then; what was taken is looked for among what is there."""
    monkeypatch.setattr("penstock.engine.state.MOST_ASIDE", 2)
    put(state, "a", "b", version=5)
    assert state.aside() == {("books", "a"), ("books", "b")}
    put(state, "c", version=9)
    assert state.aside() == {("books", EVERY)}
    tally = batch.Tally()
    writes = Writes(Lsn(7), Documents("books", ["a", "c", "new"], [b"{}", b"{}", None]))
    batch.write(replace(parts([], MemorySink("memory")), aside=state.aside()), writes, tally, time.monotonic())
    quarantine.heal(state, tally.healed, Lsn(7))
    assert [one.id for one in state.quarantined()] == ["b", "c"], "c was rejected at a newer version"
    assert state.aside() == {("books", "b"), ("books", "c")}


def test_what_nobody_keeps_any_more_leaves(state: State) -> None:
    """E81: an index or a sink that the file does not name is built and sent by nobody: nothing could clear it."""
    put(state, "a", "b")
    put(state, "a", sink="taken out")
    put(state, "a", index="taken out")
    put(state, "a", index="books#1f6c02aa")
    assert len(state.aside()) == 4
    quarantine.forsake(state, ["books", "books#1f6c02aa"], ["memory", "another"])
    assert [(one.index, one.sink, one.id) for one in state.quarantined()] == [
        ("books", "memory", "a"), ("books", "memory", "b"), ("books#1f6c02aa", "memory", "a"),
    ]  # fmt: skip
    assert len(state.aside()) == 3


def test_a_replay_tells_what_it_leaves_out(
    state: State, shop: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """E81: a sink that is away can be sent nothing, and "0 taken" alone would look as if nothing were there."""
    put(state, "a", sink="away", index="products")
    put(state, "a", sink="gone", index="products")
    mine = replace(parts([], rows="a"), sinks={"products": [MemorySink("memory")]})
    pipeline: Any = SimpleNamespace(
        state=state, plan=SimpleNamespace(parts=mine), report=Report(away={"away": "it does not answer"})
    )
    why = {"away": "it was left behind, and is seeded when it answers again", "gone": "it does not keep the index now"}
    told = answer(pipeline, {"action": "replay", "index": "products"})
    assert told == {"taken": 0, "rejected": 0, "skipped": why}
    monkeypatch.setattr("penstock.app.quarantine.ask", lambda *_, patience_s=0.0, **asked: answer(pipeline, asked))
    assert run(["quarantine", "replay", "--config", shop]) == 1
    shown = capsys.readouterr()
    assert shown.out == "0 taken, 0 rejected again.\n"
    assert shown.err.splitlines() == [f"Left out: products in {sink}: {said}." for sink, said in why.items()]


def test_an_index_that_is_in_quarantine_alone_can_be_dropped(state: State, shop: str) -> None:
    """E81: it was taken out of the file, and no run has begun since."""
    put(state, "a", index="taken out")
    arguments = ["quarantine", "drop", "taken out", "--yes", "--config", shop]
    assert run(arguments) == 0
    assert not state.quarantined()
    assert run(arguments) == 2, "there is no such index, in the file or in quarantine"
