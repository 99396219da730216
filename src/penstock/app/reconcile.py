"""`penstock reconcile`: every index held against the database, beside a running deployment or without one.

A running deployment does it in a thread of its own, and tells how far it is to whoever asks; where none runs, the
command does it itself, and no run can begin meanwhile. Guarantees: with a running deployment, a difference counts only
after live had caught up; what cannot be compared is told with the reason. One at a time.
"""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.app.asked import texts
from penstock.app.looking import looked_at
from penstock.app.marking import lacking
from penstock.app.origins import is_outgoing
from penstock.app.rejoin import committed, require_slot
from penstock.config.connection import connection_settings
from penstock.contracts import Key, ReadableSink
from penstock.document.cutting import cuts
from penstock.engine import quarantine
from penstock.engine.marks import Marks
from penstock.engine.reconcile import Comparison, Ground, compare
from penstock.engine.state import State
from penstock.errors import ConfigError, OperatorError, PenstockError, RetryableError, UnavailableError
from penstock.model import Lsn
from penstock.postgres import slot
from penstock.postgres.connection import open_sql

if TYPE_CHECKING:
    from penstock.app.prepared import Prepared
    from penstock.config.deployment import Deployment
    from penstock.engine.batch import Parts
    from penstock.spark.pipeline import Pipeline

log = logging.getLogger(__name__)

# A commit that did not wait for the disk is there within this time.
_FLUSHED_S = 1.0
_PATIENCE_S = 600.0
_POLL_S = 0.1
_UNSEEDED = "it has to be seeded: penstock run does that"


@dataclass(slots=True)
class Course:
    """How far a reconcile is, and what it found so far."""

    repair: bool
    index: str = ""
    ranges: int = 0
    done: int = 0
    running: bool = True
    comparisons: list[Comparison] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """What was not compared (an index, or an index in a sink), and why."""
    away: list[str] = field(default_factory=list)
    """The sinks that were left behind, of which nothing is compared."""
    error: str = ""

    def told(self) -> dict[str, Any]:
        """Everything as JSON has it."""
        found = [{**asdict(one), "differing": one.differing, "left": one.left} for one in self.comparisons]
        plain = ("repair", "index", "ranges", "done", "running", "skipped", "away", "error")
        return {**{name: getattr(self, name) for name in plain}, "comparisons": found}


@dataclass(frozen=True, slots=True)
class Looks:
    """What is asked on the way: where an index's ranges are cut, why changes of it are lost even now, who is away."""

    state: State
    cuts: Callable[[str], Sequence[Key]]
    lacking: Callable[[str], str]
    away: Mapping[str, str] = field(default_factory=dict)


def work(course: Course, looks: Looks, parts: Parts, indexes: Sequence[str], ground: Ground) -> None:
    """Compare one index after the other; a mark goes with the differences, wherever they may be."""
    marks = Marks(looks.state)
    course.away = sorted(looks.away)
    for index in indexes:
        sinks = _comparable(course, looks, parts, index)
        if not sinks:
            continue
        before, making = marks.marked().get(index), _making(looks.state, index, sinks)
        edges: list[Key | None] = [None, *looks.cuts(index), None]
        course.index, course.ranges, course.done = index, len(edges) - 1, 0
        found = compare(replace(parts, sinks={index: sinks}), index, itertools.pairwise(edges), ground)
        if looks.state.seed(index) or making != _making(looks.state, index, sinks):
            course.skipped[index] = "a seed of it began meanwhile"
            continue
        course.comparisons += found
        if course.repair and before and not any(one.left for one in found):
            if reason := looks.lacking(index) or _unmended(parts, index):
                log.warning("index %s stays marked: %s", index, reason)
                continue
            marks.clear(index, before)
            log.info("index %s is reconciled", index)


def _unmended(parts: Parts, index: str) -> str:
    """Of an index: the sinks that a repair cannot reach, and what can. What is still to be seeded misses nothing."""
    full = [sink for sink in parts.sinks[index] if sink.seeded(index) is not None]
    found = [sink.name for sink in full if not (isinstance(sink, ReadableSink) and sink.exact)]
    return f"sink {' and '.join(found)} cannot be compared; penstock reindex {index} repairs it" if found else ""


def _making(state: State, index: str, sinks: Sequence[ReadableSink]) -> tuple[int, list[str]]:
    """What is another once an index was built anew, or began to be, even where that is over by now."""
    return state.seeds_begun(index), [sink.generation(index) for sink in sinks]


def _comparable(course: Course, looks: Looks, parts: Parts, index: str) -> list[ReadableSink]:
    """The sinks of an index that can be compared; the others are told."""
    if index not in parts.sinks or looks.state.seed(index):
        course.skipped[index] = "it is being seeded" if index in parts.sinks else "it is stopped: see penstock status"
        return []
    for name, why in looks.away.items():
        course.skipped[f"{index} in {name}"] = f"it was left behind ({why}), and is seeded when it answers again"
    found: list[ReadableSink] = []
    for sink in parts.sinks[index]:
        if not isinstance(sink, ReadableSink):
            course.skipped[f"{index} in {sink.name}"] = "a log of changes cannot be compared"
        elif not sink.exact:
            course.skipped[f"{index} in {sink.name}"] = "an ingest pipeline changes its documents"
        elif sink.seeded(index) is None:
            course.skipped[f"{index} in {sink.name}"] = _UNSEEDED
        else:
            found.append(sink)
    return found


class Job:
    """The reconcile of a running deployment: at most one at a time, the last one stays to be told of."""

    def __init__(self, prepared: Prepared, pipeline: Pipeline) -> None:
        # The plan may change meanwhile: what depends on indexes is asked of the one that runs.
        self._prepared, self._pipeline = prepared, pipeline
        self._lock = threading.Lock()
        self._course: Course | None = None

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The control socket's `reconcile`: `action` is start (with `indexes` and `repair`) or state."""
        with self._lock:
            if asked.get("action") == "start":
                indexes = texts(asked, "indexes") or _every(self._pipeline.plan.parts)
                self._start(indexes, bool(asked.get("repair")))
            if self._course is None:
                raise ConfigError("no reconcile was started", hint="Start one: penstock reconcile.")
            return self._course.told()

    def _start(self, indexes: Sequence[str], repair: bool) -> None:
        if self._course and self._course.running:
            raise OperatorError("a reconcile is under way", hint="Wait for its end.")
        self._course = course = Course(repair)
        threading.Thread(target=self._run, args=(course, indexes), name="penstock-reconcile", daemon=True).start()

    def _run(self, course: Course, indexes: Sequence[str]) -> None:
        pipeline = self._pipeline

        def advanced(done: int) -> None:
            course.done += done
            _require_going(pipeline)

        def behind() -> None:
            catch_up(self._prepared, pipeline)

        ground = Ground(
            version=pipeline.settled,
            watch=pipeline.watch,
            catch_up=behind,
            judge=functools.partial(quarantine.note, pipeline.state),
            aside=pipeline.state.aside,
            advanced=advanced,
            repair=course.repair,
        )
        try:
            looks = Looks(
                pipeline.state,
                lambda one: pipeline.plan.cuts(one),
                lambda one: pipeline.plan.lacking(one),
                dict(pipeline.report.away),
            )
            work(course, looks, pipeline.plan.parts, indexes, ground)
        except PenstockError as error:
            course.error = str(error)
        except BaseException as error:
            course.error = f"it failed with an error that was not foreseen ({type(error).__name__})"
            log.debug("the reconcile failed", exc_info=error)
        finally:
            pipeline.look_at_marks()
            course.running = False


def _every(parts: Parts) -> list[str]:
    """The indexes that are kept; generations that readers are about to leave are none."""
    return [index for index in parts.indexes if not is_outgoing(index)]


def _require_going(pipeline: Pipeline) -> None:
    if pipeline.stopping.is_set():
        raise UnavailableError("penstock run is ending", hint="Reconcile again when it runs.")


def catch_up(prepared: Prepared, pipeline: Pipeline) -> None:
    """Return when everything that is committed now is durable in the sinks.

    Live has passed the place where the WAL ends now; or its reader has got everything up to there, and no change that
    is not done was among it. Where the reader does not tell: live passes that place within a minute, changes or not.
    """
    with open_sql(prepared.settings) as connection:

        def ask(what: str) -> Lsn:
            return Lsn.parse(slot.execute(connection, f"SELECT pg_catalog.{what}()::text")[0][0])

        wanted, flushed = ask("pg_current_wal_insert_lsn"), Lsn.MAX
        began = time.monotonic()
        while pipeline.report.end < wanted and _done(prepared) < flushed:
            _require_going(pipeline)
            waited_s = time.monotonic() - began
            if waited_s > _PATIENCE_S:
                raise UnavailableError(f"live did not get to {wanted} in {waited_s:.0f} s", hint="See penstock status.")
            if flushed == Lsn.MAX and waited_s > _FLUSHED_S:
                flushed = ask("pg_current_wal_flush_lsn")
            time.sleep(_POLL_S)


def _done(prepared: Prepared) -> Lsn:
    """Up to where the stream's reader has no change that is not done; zero where it does not tell."""
    found = prepared.reader()
    return Lsn.parse(found.done) if found else Lsn.ZERO


def alone(deployment: Deployment, indexes: Sequence[str], *, repair: bool, tell: Callable[[Course], None]) -> Course:
    """Reconcile while nothing runs; with no usable slot and `repair`, one is made first. `tell` hears how far it is.

    Without `repair` nothing is changed or made, wherever.
    """
    prepared = _prepared(deployment, repair=repair)
    course = Course(repair)

    def advanced(done: int) -> None:
        course.done += done
        tell(course)

    try:
        if repair:
            prepared.beginning.settle()
        version = _settled(prepared)
        ground = Ground(
            version=lambda: version,
            watch=lambda index, ids: tuple,
            catch_up=lambda: None,
            judge=functools.partial(quarantine.note, prepared.state),
            aside=prepared.state.aside,
            advanced=advanced,
            repair=repair,
        )
        looks = Looks(
            prepared.state,
            lambda one: cuts(prepared.settings, prepared.schemas.schema(one)),
            functools.partial(lacking, prepared),
            _left_behind(prepared),
        )
        work(course, looks, prepared.parts, indexes or _every(prepared.parts), ground)
        course.skipped = _unshown(prepared, course) | course.skipped
    finally:
        prepared.close()
    course.running = False
    return course


def _prepared(deployment: Deployment, *, repair: bool) -> Prepared:
    """The deployment, where nothing runs and the slot can be read from."""
    from penstock.app.running import prepare

    folder = Path(deployment.locate(deployment.state))
    if not (folder / "state.sqlite").exists():
        raise ConfigError(f"nothing was ever seeded with the state in {folder}", hint="Start penstock run first.")
    if not repair:
        return looked_at(deployment)
    with closing(State(folder)) as state:
        if not state.acquire():
            raise RetryableError(f"a penstock is starting or ending with the state in {folder}", hint="Try again.")
        require_slot(deployment, connection_settings(deployment), state, repair=True)
    return prepare(deployment)


def _left_behind(prepared: Prepared) -> dict[str, str]:
    known = {config.name for config in prepared.deployment.sinks}
    return {name: "by an earlier run" for name in prepared.lineage.away() if name in known}


def _unshown(prepared: Prepared, course: Course) -> dict[str, str]:
    """The sinks that hold an index that was compared, but not as it was looked for."""
    compared = {one.index for one in course.comparisons}
    lacking = ((index, sinks) for index, sinks in prepared.parts.sinks.items() if index in compared)
    return {
        f"{index} in {config.name}": _UNSEEDED
        for index, sinks in lacking
        for config in prepared.deployment.sinks
        if config.name not in {sink.name for sink in sinks}
    }


def _settled(prepared: Prepared) -> Lsn:
    """Where the slot stands, or how far it was read and done."""
    name, state = prepared.deployment.source.slot, prepared.deployment.locate(prepared.deployment.state)
    with open_sql(prepared.settings) as connection:
        found = slot.inspect(connection, name)
    if found is None or found.confirmed_flush_lsn is None:
        raise slot.missing(name)
    return max(found.confirmed_flush_lsn, committed(Path(state)))
