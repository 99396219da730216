"""Generations and sinks that come and go, with a pipeline of the test's own: what is told, and in which order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from penstock.engine.batch import Parts
from penstock.engine.report import IndexReport, Report
from penstock.engine.retention import SinkDownError
from penstock.engine.state import Seed
from penstock.errors import ConfigError, OperatorError, UnavailableError
from penstock.model import Lsn
from penstock.spark.absence import Absence, Roll
from penstock.spark.succession import Heirs, Succession
from tests.fixtures.waiting import wait_until
from tests.unit.engine_parts import MemorySink

SEED = Seed("books", "one", ("local",), Lsn(7))


@dataclass(frozen=True)
class Plan:
    parts: Any
    heirs: Any = None
    roll: Any = None
    seeds: dict[str, tuple[str, ...]] = field(default_factory=dict)


class NoSeeds:
    seed = staticmethod(lambda index: None)


class Pipeline:
    """As much of one as is asked for here; `journal` has what was done."""

    def __init__(self) -> None:
        self.journal: list[str] = []
        self.stopping = threading.Event()
        self.state = NoSeeds()
        self.report = Report({"books": IndexReport()})
        self.plan = Plan(Parts(None, {"books": []}))  # type: ignore[arg-type]

    def wake(self) -> None: ...

    def change(self, plan: Callable[[], Plan]) -> None:
        self.plan = plan()

    join = change

    @contextmanager
    def between_batches(self) -> Iterator[None]:
        self.journal.append("no batch")
        yield
        self.journal.append("batches")

    @property
    def rebuild(self) -> str:
        return self.report.told()["indexes"]["books"]["rebuild"]  # type: ignore[no-any-return]


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    made = Pipeline()

    def rebuilt(index: str, rollback: bool) -> Plan:
        if rollback:
            raise ConfigError("there is none to go back to")
        return replace(made.plan, heirs=replace(made.plan.heirs, outgoing={"books": "books#1"}))

    def released(index: str, is_done: bool) -> Plan:
        made.journal.append("left" if is_done else "given up")
        return replace(made.plan, heirs=replace(made.plan.heirs, outgoing={}))

    def verify(*_: Any) -> int:
        made.journal.append("verified")
        return 0

    made.plan = replace(made.plan, heirs=Heirs({}, rebuilt, released, verify))  # type: ignore[arg-type]
    yield made
    made.stopping.set()


def show(pipeline: Pipeline, shown: bool = True) -> Callable[[], bool]:
    def act() -> bool:
        pipeline.journal.append("shown")
        return shown

    return act


def test_readers_change_over_when_it_is_verified_and_between_two_batches(pipeline: Pipeline) -> None:
    """E84: once; a seed that is no reindex is shown without being verified."""
    succession = Succession(pipeline)  # type: ignore[arg-type]
    assert succession.complete(SEED, [], show(pipeline))
    assert pipeline.journal == ["no batch", "shown", "batches"]
    succession.request("books", rollback=False)
    assert pipeline.rebuild == "asked for"
    with pytest.raises(OperatorError, match="already"):
        succession.request("books", rollback=False)
    succession.settle("books")
    assert pipeline.rebuild == "asked for", "it has not begun"
    succession.begin()
    assert pipeline.rebuild == "under way"
    pipeline.journal.clear()
    assert not succession.complete(SEED, [], show(pipeline, shown=False)), "another seed took its place"
    assert pipeline.rebuild
    pipeline.journal.clear()
    assert succession.complete(SEED, [], show(pipeline))
    assert pipeline.journal == ["verified", "no batch", "shown", "left", "batches"]
    assert pipeline.rebuild == ""


def test_a_generation_that_cannot_be_kept_does_not_hold_up_its_successor(pipeline: Pipeline) -> None:
    """E84: it is let go by its own name or its index'; the reindex is told to its end."""
    succession = Succession(pipeline)  # type: ignore[arg-type]
    succession.request("books", rollback=False)
    succession.begin()
    assert not succession.give_up("authors")
    assert succession.give_up("books#1")
    assert not succession.give_up("books")
    assert pipeline.rebuild == "under way"
    assert succession.complete(SEED, [], show(pipeline))
    assert (pipeline.journal[-4:], pipeline.rebuild) == (["verified", "no batch", "shown", "batches"], "")


def test_one_that_a_run_before_began_goes_on_or_is_over(pipeline: Pipeline) -> None:
    """E84: a crash came before readers changed over, or right after."""
    pipeline.plan = pipeline.plan.heirs.rebuild("books", False)
    succession = Succession(pipeline)  # type: ignore[arg-type]
    assert pipeline.rebuild == "under way"
    pipeline.plan = replace(pipeline.plan, seeds={"books": ("local",)})
    succession.settle("books")
    assert pipeline.rebuild == "under way"
    pipeline.plan = replace(pipeline.plan, seeds={"books": ()})
    succession.settle("books")
    assert (pipeline.journal, pipeline.rebuild) == (["no batch", "left", "batches"], "")


def test_what_cannot_be_begun_is_told(pipeline: Pipeline) -> None:
    succession = Succession(pipeline)  # type: ignore[arg-type]
    succession.request("books", rollback=True)
    succession.begin()
    told = pipeline.report.told()["indexes"]["books"]
    assert (told["rebuild"], told["rebuild_error"]) == ("", "there is none to go back to")
    succession.request("books", rollback=False)
    with pytest.raises(ConfigError, match="There are: books"):
        succession.request("nonsense", rollback=False)
    pipeline.report.stopped("authors", "why")
    with pytest.raises(OperatorError, match="stopped"):
        succession.request("authors", rollback=False)


MIB = 1 << 20


@dataclass
class Server:
    """What the slot holds back, which sinks do not answer, and which are away."""

    retained: int | None = None
    silent: dict[str, str] = field(default_factory=dict)
    down: bool = True

    def roll(self, pipeline: Pipeline, away: tuple[str, ...] = (), **on_down: str) -> Roll:
        def leave(names: Any) -> Any:
            return replace(pipeline.plan, roll=self.roll(pipeline, tuple(names), **on_down))

        def open_(name: str) -> MemorySink:
            if self.down:
                raise UnavailableError("still down")
            return MemorySink(name, [])

        def join(sink: Any) -> Any:
            pipeline.journal.append(f"{sink.name} joins")
            return replace(pipeline.plan, roll=self.roll(pipeline, (), **on_down))

        def retained() -> int | None:
            if self.retained is None:
                raise UnavailableError("the server is down, too")
            return self.retained

        return Roll(10 * MIB, on_down, away, retained, lambda: self.silent, leave, open_, join)  # type: ignore[arg-type]


def failure(sink: str = "") -> UnavailableError:
    error = UnavailableError("no answer")
    error.sink = sink
    return error


def test_a_sink_is_left_behind_past_the_limit_only_and_joins_when_it_answers(pipeline: Pipeline) -> None:
    """E73: told by the failure itself, or found by asking; whoever answers stays."""
    server = Server()
    pipeline.plan = replace(pipeline.plan, roll=server.roll(pipeline, search="detach", local="hold"))
    now_s = [0.0]
    absence = Absence(pipeline, clock=lambda: now_s[-1])  # type: ignore[arg-type]
    assert not absence.consider(failure("search")), "nobody knows how much is held back"
    server.retained = 10 * MIB
    assert not absence.consider(failure("search"))
    server.retained += 1
    now_s.append(59.0)
    assert not absence.consider(failure("search")), "it may be about to answer"
    absence.recovered()
    now_s.append(61.0)
    assert not absence.consider(failure("search")), "it did, and fails since now"
    now_s.append(130.0)
    assert not absence.consider(failure("local"))
    assert not absence.consider(failure()), "it answers when it is asked"
    server.silent = {"search": "no answer"}
    assert not absence.consider(failure()), "it did not fail before now"
    now_s.append(190.0)
    assert absence.consider(failure())
    assert (pipeline.plan.roll.away, pipeline.report.away) == (("search",), {"search": "no answer"})
    server.down = False
    wait_until(lambda: not pipeline.report.away, what="the sink to join")
    assert pipeline.journal == ["search joins"]


def test_a_sink_whose_setting_is_to_stop_ends_the_run(pipeline: Pipeline) -> None:
    """E73: with what to do."""
    server = Server(retained=11 * MIB)
    pipeline.plan = replace(pipeline.plan, roll=server.roll(pipeline, search="stop"))
    now_s = [0.0]
    absence = Absence(pipeline, clock=lambda: now_s[-1])  # type: ignore[arg-type]
    assert not absence.consider(failure("search"))
    now_s.append(60.0)
    with pytest.raises(SinkDownError, match="sink search is down"):
        absence.consider(failure("search"))
