"""What tasks do with their share of a batch or a seed, without Spark: plain functions from Arrow to Arrow."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.contracts import Extent, Rejection
from penstock.engine.batch import Parts, Tally
from penstock.engine.state import Chunk
from penstock.model import Lsn
from penstock.spark import spread
from penstock.spark.spread import Filling, Opener
from tests.unit.engine_parts import Journal, MemoryBuilder, MemorySink, changes, parts

_numbers = itertools.count()
NOTHING = Filling("books", Lsn(1), frozenset())


class Frame:
    """As much of a DataFrame as is asked of one whose rows are gathered."""

    def __init__(self, *batches: pa.RecordBatch) -> None:
        self._batches = batches

    def toArrow(self) -> pa.Table:
        return pa.Table.from_batches(self._batches)


def opener(mine: Parts) -> Opener:
    return Opener(lambda: mine, (), f"test {next(_numbers)}")


def resolved(mine: Parts, *batches: pa.RecordBatch) -> list[dict[str, object]]:
    return [row for out in spread._resolve(opener(mine), iter(batches)) for row in out.to_pylist()]


@pytest.fixture(autouse=True)
def nothing_opened() -> Iterator[None]:
    yield
    spread._opened.clear()


def test_a_tasks_changes_are_settled_before_the_first_key() -> None:
    """E71: also where each task has only a part of the transactions."""
    journal: Journal = []
    list(spread._resolve(opener(parts(journal, rows="ab")), iter([changes(*"ab", xids=(3, 4))])))
    assert journal[:2] == [("settle", 3, 4), ("affected", "books")]


def test_every_task_tells_how_many_changes_it_had_and_how_far_they_reach() -> None:
    """Invariant 5: the version of all writes is the greatest of them, also where a task has changes of no interest."""
    mine = parts([], indexes=())
    rows = resolved(mine, changes("a", lsn=70), changes("b", "c", lsn=90))
    assert [(row["index"], row["key"], row["number"], row["lsn"]) for row in rows] == [
        (None, None, 1, 70),
        (None, None, 2, 90),
    ]


def test_keys_come_exactly_and_by_index() -> None:
    rows = resolved(parts([], indexes=("books", "authors")), changes("a", 'b"ü'))
    keys = [(row["index"], tuple(json.loads(str(row["key"])))) for row in rows if row["key"] is not None]
    assert keys == [(index, (key,)) for index in ("books", "authors") for key in ("a", 'b"ü')]


def test_truncates_are_told_without_keys() -> None:
    """E66: the driver acts on them before any task writes."""
    mine = parts([], indexes=("books", "authors"))
    builder = mine.builder
    assert isinstance(builder, MemoryBuilder)
    builder.extents = {"authors": Extent.ROOTS}
    rows = resolved(mine, changes("x", op="truncate", lsn=50))
    assert rows[1:] == [{"index": "authors", "key": None, "number": Extent.ROOTS.value, "lsn": 50}]


def test_a_task_without_changes_opens_nothing() -> None:
    def never() -> Parts:
        raise AssertionError("opened")

    assert list(spread._resolve(Opener(never, (), "never"), iter([changes()]))) == []


def test_keys_are_dealt_out_in_lists_of_one_index_and_bounded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "_CHUNK_KEYS", 2)
    pairs = [("a", "1"), ("b", "2"), ("a", "3"), ("a", "4"), ("b", "5")]
    batches = [
        pa.record_batch([[index for index, _ in some], [json.dumps([key]) for _, key in some]], names=["index", "key"])
        for some in (pairs[:2], pairs[2:])
    ]
    found = list(spread._chunks(iter(batches)))
    assert found == [("a", [("1",), ("3",)]), ("b", [("2",), ("5",)]), ("a", [("4",)])]


def test_a_task_builds_and_writes_its_keys_and_tells_what_came_of_it() -> None:
    journal: Journal = []
    sink = MemorySink("picky", rejects=frozenset({"b"}))
    keys = pa.record_batch([["books"] * 3, [json.dumps([key]) for key in "abc"]], names=["index", "key"])
    watched = {"seeding": frozenset({"books"})}
    said = list(spread._deliver(opener(parts(journal, sink, rows="ab")), Lsn(9), watched, iter([keys])))
    assert journal[-2:] == [("flush", "picky"), ("rest",)]
    found = spread._gathered(Frame(*said))  # type: ignore[arg-type]
    assert found == Tally(
        0, {"books": 2}, {"books": 1}, [("picky", Rejection("books", "b", Lsn(9), "too wild"))], [("books", ("c",))]
    )


def test_what_tasks_tell_is_summed() -> None:
    one, two = Tally(1, {"a": 2}, {"a": 1}, older=4), Tally(2, {"a": 3, "b": 1}, {}, [], [("a", ("1", "ü"))])
    found = spread._gathered(Frame(spread._told(one), spread._told(two)))  # type: ignore[arg-type]
    assert found == Tally(3, {"a": 5, "b": 1}, {"a": 1}, [], [("a", ("1", "ü"))], older=4)


def test_versions_of_rejections_are_positions_again() -> None:
    rejected = [("sink", Rejection("a", "1", Lsn(0x70), "why"))]
    found = spread._gathered(Frame(spread._told(Tally(rejected=rejected))))  # type: ignore[arg-type]
    assert str(found.rejected[0][1].version) == "0/70"


def test_a_task_of_a_seed_writes_its_ranges_with_the_seeds_version() -> None:
    sink = MemorySink()
    shares = [[Chunk(0, None, ("b",)), Chunk(2, ("d",), None)], [Chunk(1, ("b",), ("d",))]]
    numbers = pa.record_batch([[0]], names=["id"])
    filling = Filling("books", Lsn(33), frozenset({("books", "a"), ("books", "c")}))
    said = list(spread._seed(opener(parts([], sink, rows="abcdef")), filling, shares, iter([numbers])))
    tally = spread._gathered(Frame(*said))  # type: ignore[arg-type]
    assert tally.written == {"books": 4}
    assert tally.healed == [(sink.name, "books", "a")], "what is in quarantine, and was taken now"
    assert sorted(one for _, one in sink.held) == ["a", "b", "e", "f"]
    assert {version for version, _ in sink.held.values()} == {Lsn(33)}


def test_a_task_of_a_seed_without_ranges_does_nothing() -> None:
    assert list(spread._seed(Opener(lambda: parts([]), (), "none"), NOTHING, [], iter([]))) == []


def test_a_process_opens_a_deployments_parts_once() -> None:
    """An opener is pickled anew for each task: what it opened is told by its token."""
    opened = []

    def open_parts(number: int) -> Parts:
        opened.append(number)
        return parts([])

    with Opener(open_parts, (1,), "x").parts() as first, Opener(open_parts, (2,), "x").parts() as second:
        assert first is second
    with Opener(open_parts, (3,), "y").parts():
        assert opened == [1, 3]


def test_a_process_keeps_the_parts_that_take_turns_and_closes_those_of_long_ago() -> None:
    """Keys are resolved without a sink, written to all of them, and seeded into some; after a reindex, into others."""
    told: list[str] = []

    class Closed(MemorySink):
        def close(self) -> None:
            told.append(f"close {self.name}")

    def opened(name: str) -> Parts:
        told.append(f"open {name}")
        return parts([], Closed(name))

    def use(*names: str) -> None:
        for name in names:
            with Opener(opened, (name,), name).parts():
                pass

    use("resolve", "deliver", "seed", "resolve", "deliver", "seed")
    assert told == ["open resolve", "open deliver", "open seed"]
    told.clear()
    use("seed 2", "resolve", "deliver 2")
    assert told == ["open seed 2", "open deliver 2", "close deliver"]
