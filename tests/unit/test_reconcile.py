"""A sink held against the database, over a builder and a sink in memory: what is found, what is not, what is mended."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.app.explain import compared
from penstock.app.reconcile import Course, Job, Looks, work
from penstock.cli.main import run
from penstock.contracts import Documents, Held, Key, ReadableSink, Rejection, Writes
from penstock.document.ids import document_id
from penstock.engine import reconcile
from penstock.engine.batch import Parts, Tally
from penstock.engine.marks import Marks
from penstock.engine.reconcile import Comparison, Ground
from penstock.engine.report import Report
from penstock.engine.state import Seed, State
from penstock.model import Lsn
from tests.fixtures.waiting import wait_until
from tests.unit.engine_parts import MemoryBuilder, MemorySink

INDEX = "books"
EXAMPLES = Path(__file__).parents[2] / "examples"
EVERYTHING: list[reconcile.Range] = [(None, ("m",)), (("m",), None)]


@dataclass
class Builder(MemoryBuilder):
    """Documents of their own for some rows."""

    bodies: dict[str, bytes] = field(default_factory=dict)

    def build(self, index: str, keys: Sequence[Key]) -> Iterator[Documents]:
        for documents in super().build(index, keys):
            bodies = [body and self.bodies.get(id, body) for id, body in zip(*documents[1:], strict=True)]
            yield documents._replace(bodies=bodies)


@dataclass
class Readable(MemorySink):
    """A sink that can be asked; it keeps the higher version."""

    exact: bool = True
    hides_deletes: bool = False

    def write(self, writes: Writes) -> Sequence[Rejection]:
        index, ids, bodies = writes.documents
        kept = [at for at, id in enumerate(ids) if self.held.get((index, id), (Lsn.ZERO,))[0] <= writes.version]
        some = Documents(index, [ids[at] for at in kept], [bodies[at] for at in kept])
        return super().write(Writes(writes.version, some))

    def look(self, index: str, ids: Sequence[str]) -> Mapping[str, Held]:
        held = {id: Held(*self.held[index, id]) for id in ids if (index, id) in self.held}
        return {id: one for id, one in held.items() if one.body is not None or not self.hides_deletes}

    def scan(self, index: str) -> Iterator[list[str]]:
        ids = sorted(id for (name, id), (_, body) in self.held.items() if name == index and body is not None)
        for at in range(0, len(ids), 3):
            yield ids[at : at + 3]


class World:
    """Rows a to z and a sink that has them all, of version 5; the database is at 10."""

    def __init__(self) -> None:
        self.builder = Builder(rows=set("abcdefghijklmnopqrstuvwxyz"))
        self.sink = Readable()
        self.parts = Parts(self.builder, {INDEX: [self.sink, MemorySink("log")]})
        self.rejections: list[Any] = []
        self.healed: list[Any] = []
        self.aside: frozenset[tuple[str, str]] = frozenset()
        self.written: set[str] = set()
        for documents in self.builder.build(INDEX, [(row,) for row in sorted(self.builder.rows)]):
            self.sink.write(Writes(Lsn(5), documents))

    def set(self, id: str, body: bytes | None, version: int = 5) -> None:
        self.sink.held[INDEX, id] = Lsn(version), body

    def live(self, id: str, body: bytes | None, version: int) -> None:
        """Live writes a document."""
        self.written.add(id)
        self.set(id, body, version)

    def watch(self, index: str, ids: Collection[str]) -> Callable[[], Collection[str]]:
        assert index == INDEX
        self.written.clear()
        return lambda: self.written & set(ids)

    def compare(self, *, repair: bool = False, catch_up: Callable[[], None] = lambda: None) -> Comparison:
        def judge(tally: Tally, version: Lsn) -> None:
            self.rejections += tally.rejected
            self.healed += [(*one, version) for one in tally.healed]

        def advanced(done: int) -> None: ...

        ground = Ground(lambda: Lsn(10), self.watch, catch_up, judge, lambda: self.aside, advanced, repair)
        (found,) = reconcile.compare(self.parts, INDEX, EVERYTHING, ground)
        return found


@dataclass
class Idle:
    """A pipeline that keeps nothing."""

    state: State
    plan: Any
    report: Report
    stopping: threading.Event = field(default_factory=threading.Event)

    settled = watch = look_at_marks = staticmethod(lambda *_: None)


@pytest.fixture
def world() -> World:
    return World()


def test_an_index_that_the_file_disables_is_not_said_to_be_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Path(shutil.copytree(EXAMPLES / "shop", tmp_path / "shop"))
    file = shop / "penstock.toml"
    file.write_text(file.read_text().replace('name = "products"', 'name = "products"\nenabled = false'))
    assert run(["reconcile", "products", "--config", str(shop)]) == 2
    assert "index products is disabled in the deployment" in capsys.readouterr().err


def test_a_sink_that_is_right_has_no_difference(world: World) -> None:
    assert isinstance(world.sink, ReadableSink)
    world.builder.journal.clear()
    found = world.compare()
    assert (found.compared, found.differing, found.sink) == (26, 0, "memory")
    assert [entry[0] for entry in world.builder.journal] == ["build"] * len(EVERYTHING), "each document is built once"


def test_what_is_missing_extra_or_different_is_found_and_mended(world: World) -> None:
    """E77, E83: each once, by its id; what is mended carries the settled version, and nothing is left."""
    del world.sink.held[INDEX, "a"]
    world.set("b", None)
    world.set("c", b'{"id":"stale"}')
    world.set("zz", b'{"id":"zz"}')
    world.set(document_id(("",)), b'{"id":""}')
    world.set("a|b", b"no document of ours")
    for repair in (False, True):
        found = world.compare(repair=repair)
        assert found.first["missing"] == ["a", "b"]
        assert found.first["different"] == ["c"]
        assert set(found.first["extra"]) == {"zz", "a|b", document_id(("",))}
        assert (found.differing, found.left) == (6, 0 if repair else 6)
    assert world.sink.held[INDEX, "c"] == (Lsn(10), b'{"id":"c"}')
    assert world.sink.held[INDEX, "zz"] == (Lsn(10), None)
    assert world.compare().differing == 0


def test_what_is_on_its_way_is_no_difference(world: World) -> None:
    """The rows have changed, and live brings each of them while it is looked at again."""
    world.builder.bodies["a"] = b'{"id":"new"}'
    world.builder.rows -= {"b"}
    world.builder.rows |= {"zz"}

    def arrive() -> None:
        world.live("a", b'{"id":"new"}', 9)
        world.live("b", None, 9)
        world.live("zz", b'{"id":"zz"}', 9)

    assert world.compare(catch_up=arrive).differing == 0


def test_a_document_that_is_written_all_the_time_is_no_difference(world: World) -> None:
    """Whenever it is looked at it differs, but live keeps it."""
    turns = iter(range(1000))

    def write() -> None:
        turn = next(turns)
        world.live("a", b'{"id":"%d"}' % turn, 6 + turn)
        world.builder.bodies["a"] = b'{"id":"later %d"}' % turn

    write()
    assert world.compare(catch_up=write).differing == 0
    assert next(turns) > 2, "it was looked at again"


def test_a_row_that_came_and_went_between_two_looks_is_no_difference(world: World) -> None:
    """The sink shows nothing both times, and keeps no version of what is gone; but live wrote it."""
    world.builder.rows |= {"zz"}

    def leave() -> None:
        world.written.add("zz")
        world.builder.rows -= {"zz"}

    assert world.compare(catch_up=leave).differing == 0
    world.builder.rows |= {"zz"}
    assert world.compare().first["missing"] == ["zz"]


def test_values_count_where_the_text_was_written_anew(world: World) -> None:
    world.builder.bodies["a"] = b'{"x":1.50,"y":[1,{"z":"\xc3\xbc"}]}'
    world.set("a", b'{"y": [1, {"z": "\\u00fc"}], "x": 1.5}')
    assert world.compare().differing == 0
    world.builder.bodies["a"] = b'{"x":1.00000000000000000001}'
    world.set("a", b'{"x":1.0}')
    assert world.compare().first["different"] == ["a"]
    world.builder.bodies["a"] = b'{"x":[true,0]}'
    world.set("a", b'{"x":[1,false]}')
    assert world.compare().first["different"] == ["a"]
    assert compared(Held(Lsn(5), b'{"x": [1, false, 2.0]}'), b'{"x":[true,0,2]}')["differs"] == ["x[0]", "x[1]"]


def test_a_version_that_is_newer_than_anything_read_stays_and_is_told(world: World) -> None:
    """E83: no write of ours may pretend to be newer than it is."""
    world.set("a", b"somebody's own", 99)
    found = world.compare(repair=True)
    assert (found.differing, found.repaired, found.newer, found.left) == (1, 0, 1, 1)
    assert world.sink.held[INDEX, "a"][0] == 99
    world.sink.hides_deletes = True
    world.set("a", None, 99)
    found = world.compare(repair=True)
    assert (found.first["missing"], found.newer, found.left) == (["a"], 1, 1)


def test_what_a_sink_rejects_of_a_repair_is_told(world: World) -> None:
    world.sink.rejects = frozenset("a")
    world.set("a", b"{}")
    world.set("b", b"{}")
    found = world.compare(repair=True)
    assert (found.differing, found.repaired, found.rejected, found.left) == (2, 1, 1, 1)
    assert [(sink, one.id) for sink, one in world.rejections] == [("memory", "a")]


def test_what_a_repair_writes_is_in_quarantine_no_more(world: World) -> None:
    """E81: a later success clears it, whoever has it; what the sink rejects again stays."""
    world.aside = frozenset({(INDEX, "a"), (INDEX, "b"), (INDEX, "c")})
    world.sink.rejects = frozenset("a")
    world.set("a", b"{}")
    world.set("b", b"{}")
    assert world.compare(repair=True).repaired == 1
    assert world.healed == [("memory", INDEX, "b", Lsn(10))]


def test_much_that_differs_is_mended_in_portions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: what seems to differ is looked at again before there is too much of it."""
    monkeypatch.setattr(reconcile, "_SUSPECTS", 4)
    monkeypatch.setattr(reconcile, "_LOOK_DOCUMENTS", 5)
    monkeypatch.setattr(world.builder, "chunk_keys", 2)
    world.sink.held.clear()
    for n in range(9):
        world.set(f"extra {n}", b"{}")
    rounds: list[int] = []
    found = world.compare(repair=True, catch_up=lambda: rounds.append(1))
    assert (found.counts["missing"], found.counts["extra"], found.left) == (26, 9, 0)
    assert len(rounds) >= 4
    assert len(found.first["missing"]) == 10
    assert world.compare().differing == 0


@pytest.mark.parametrize("meanwhile", ["nothing", "a seed", "a generation"])
def test_what_was_built_anew_during_a_comparison_is_not_compared(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """E83: also where it was over before the comparison was; a healthy system reports no difference."""
    sink = world.sink
    with closing(State(tmp_path)) as state:

        def compare(*_: object) -> list[Comparison]:
            if meanwhile == "a seed":
                assert state.end_seed(state.begin_seed(Seed(INDEX, "", ("memory",), Lsn(2)), []))
            elif meanwhile == "a generation":
                monkeypatch.setattr(sink, "generation", lambda index: "second")
            return [Comparison(INDEX, "memory")]

        monkeypatch.setattr("penstock.app.reconcile.compare", compare)
        monkeypatch.setattr(sink, "seeded", lambda index: Lsn(1))
        course = Course(repair=False)
        looks = Looks(state, lambda index: [], lambda index: "")
        work(course, looks, replace(world.parts, sinks={INDEX: [sink]}), [INDEX], None)  # type: ignore[arg-type]
    assert course.skipped == ({} if meanwhile == "nothing" else {INDEX: "a seed of it began meanwhile"})
    assert len(course.comparisons) == (meanwhile == "nothing")


@pytest.mark.parametrize(
    ("besides", "stays"),
    [([], False), ([Readable("piped", exact=False)], True), ([MemorySink("lines")], False)],
    ids=["everything compared", "one cannot be", "one is seeded at each start"],
)
def test_a_mark_goes_when_every_sink_is_mended(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, besides: list[MemorySink], stays: bool
) -> None:
    """E77: a sink that cannot be compared keeps what it lacks, and the index its mark."""
    monkeypatch.setattr("penstock.app.reconcile.compare", lambda *_: [Comparison(INDEX, "memory")])
    sinks = [world.sink, *besides]
    for sink in sinks:
        monkeypatch.setattr(sink, "seeded", lambda index, sink=sink: None if sink.name == "lines" else Lsn(1))
    with closing(State(tmp_path)) as state:
        Marks(state).mark({INDEX: "a partition came"})
        parts = replace(world.parts, sinks={INDEX: sinks})
        work(Course(repair=True), Looks(state, lambda index: [], lambda index: ""), parts, [INDEX], None)  # type: ignore[arg-type]
        assert bool(Marks(state).marked()) == stays


def test_a_running_deployment_tells_which_sinks_are_away(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """E73: what was left behind is not said to be the same, least of all where nothing else is there."""
    with closing(State(tmp_path / "state")) as state:
        plan = SimpleNamespace(parts=replace(world.parts, sinks={INDEX: []}), cuts=lambda index: [], lacking=str)
        job = Job(None, Idle(state, plan, Report(away={"search": "it does not answer"})))  # type: ignore[arg-type]
        job.answer({"action": "start"})
        wait_until(lambda: not job.answer({})["running"], 10, "its end")
        told = job.answer({})
    why = "it was left behind (it does not answer), and is seeded when it answers again"
    assert (told["error"], told["skipped"], told["away"]) == ("", {f"{INDEX} in search": why}, ["search"])
    monkeypatch.setattr("penstock.cli.reconcile._reconcile", lambda *_: told)
    assert run(["reconcile", "--config", str(EXAMPLES / "shop")]) == 1
    assert capsys.readouterr().out == f"{INDEX} in search was not compared: {why}.\n"
    told["comparisons"] = [{**asdict(Comparison(INDEX, "local")), "differing": 0, "left": 0}]
    assert run(["reconcile", "--config", str(EXAMPLES / "shop")]) == 0
