"""A deployment at work on Spark: one query keeps every index current, and seeds run beside it.

Guarantees: a batch counts as done when it is durable in every sink (Spark then logs it, and only then is the slot
acknowledged); a seed goes on where it stood after any crash, and is complete only when each of its chunks is durable;
live goes on for all indexes meanwhile. A stream that failed is started again with growing waits, unless its trouble is
somebody's to mend. An index that the database no longer fits is stopped by name; the others go on. Deliberately not:
what is done with a batch (`engine`), or who the parts are (`app`).
"""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext

from penstock import failpoints
from penstock.contracts import Extent, Key
from penstock.engine import batch, checkpoint, quarantine
from penstock.engine.batch import Parts, Tally
from penstock.engine.marks import Marks
from penstock.engine.policy import Backoff, judge
from penstock.engine.recent import summary
from penstock.engine.report import Course, Report
from penstock.engine.state import State
from penstock.engine.watch import Watches
from penstock.errors import PASSING, ConfigError, PenstockError, RetryableError, UnavailableError
from penstock.model import Lsn
from penstock.spark import direct, failures, spread
from penstock.spark.absence import Absence, Roll
from penstock.spark.seeds import Seeder
from penstock.spark.session import LOG_FILE, cut
from penstock.spark.source import PenstockSource
from penstock.spark.spread import Opener, Shares
from penstock.spark.succession import Heirs, Succession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.spark.spread import Session

log = logging.getLogger(__name__)

# How often the catalog is asked whether the database still fits the schemas.
_LOOK_EVERY_S = 5.0
# A JVM that ends refuses connections before its process is gone, on a busy machine for seconds.
_ENDING_S = 10.0
# How long what is under way may take to its end once stopping was asked for: then it is given up, and comes again.
_DRAIN_S = 10.0


@dataclass(frozen=True)
class Plan:
    """What runs: by `app`, from a deployment.

    `parts` are this process's, with every sink; `opener` gives tasks theirs, with the sinks of these names. `seeds` are
    the sinks (by name) that each index has still to be seeded into. `misfits` asks the database which indexes it no
    longer fits, and why: by its catalog, or, where something failed, by everything that `check` knows. `lacking`
    says why changes of an index are lost even now, if they are. `claim` raises where another process has taken the slot
    over; `abandon` ends what is under way, for good. `without` is the plan for the others; `reopened` the same plan
    with the sinks' indexes opened again. Of `connections`, each task has one.
    """

    options: Mapping[str, str]
    checkpoint: str
    socket: str
    parts: Parts
    opener: Callable[[Sequence[str]], Opener]
    identities: Mapping[str, str]
    on_error: Mapping[str, str]
    seeds: Mapping[str, tuple[str, ...]]
    cuts: Callable[[str], Sequence[Key]]
    confirmed: Callable[[], Lsn]
    misfits: Callable[[bool], Mapping[str, str]]
    lacking: Callable[[str], str]
    claim: Callable[[], None]
    abandon: Callable[[], None]
    without: Callable[[Mapping[str, str]], Plan]
    reopened: Callable[[], Plan]
    roll: Roll
    heirs: Heirs
    connections: Shares

    def shared(self) -> list[str]:
        """The names of the sinks that several processes may write to."""
        return sorted(sink.name for sink in self.parts.every_sink if sink.shared)

    def single(self) -> Parts:
        """The parts for sinks that only this process writes to."""
        own = {index: [sink for sink in sinks if not sink.shared] for index, sinks in self.parts.sinks.items()}
        return replace(self.parts, sinks=own)


@dataclass
class Pipeline:
    """A plan at work. `run` returns when `stop` was called and everything under way is durable."""

    spark: Session
    plan: Plan
    state: State
    report: Report
    stopping: threading.Event = field(default_factory=threading.Event)
    is_torn: bool = False
    """Whether what there is to seed is not known: a sink could not be opened again."""
    _idle: threading.Lock = field(default_factory=threading.Lock)
    _shed: threading.Event = field(default_factory=threading.Event)
    _pausing: threading.Event = field(default_factory=threading.Event)
    _failure: BaseException | None = None
    _seed_error: BaseException | None = None
    _begun: threading.Event = field(default_factory=threading.Event)
    _opening: threading.RLock = field(default_factory=threading.RLock)
    _backoff: Backoff = field(default_factory=Backoff)
    _given_up: set[str] = field(default_factory=set)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._seeder = Seeder(self)
        self._watches = Watches(self._idle)
        self._absence = Absence(self)
        self.succession = Succession(self)

    def stop(self) -> None:
        """End after the batch under way, but within seconds. Any thread, any number of times."""
        self.stopping.set()
        self.wake()

    def wake(self) -> None:
        """There may be something to seed."""
        self._seeder.wanted.set()

    def run(self) -> None:
        """Keep every index current until `stop`; raises what somebody has to mend."""
        try:
            self._run()
        except Exception as error:
            to_mend = isinstance(error, PenstockError) and not isinstance(error, RetryableError)
            if to_mend or not _has_jvm_ended(_ENDING_S):
                raise
            log.debug("lost Spark", exc_info=error)
            raise UnavailableError(
                "the JVM of Spark has ended", hint="Start penstock run again: it goes on where it stood."
            ) from None

    def _run(self) -> None:
        seeder = threading.Thread(target=self._seed, name="penstock-seed", daemon=True)
        threading.Thread(target=self._hurry, name="penstock-hurry", daemon=True).start()
        self._absence.await_returns()
        try:
            while not self.stopping.is_set():
                if query := self._start():
                    if seeder.ident is None:
                        seeder.start()
                    self._watch(query)
                if self._failure is not None:
                    self._bear(self._failure)
        finally:
            self.stop()
            if seeder.ident is not None:
                seeder.join(timeout=2 * _DRAIN_S)
            self._ended.set()
        if self._seed_error is not None:
            raise self._seed_error

    def _seed(self) -> None:
        """Seed from the moment that the stream's start is written down.

        Before that, somebody else may read from the slot unnoticed: what is built then would miss what they took.
        """
        if checkpoint.planned(Path(self.plan.checkpoint)):
            self._begun.set()
        try:
            self._seeder.run(self._begun)
        except BaseException as error:  # noqa: BLE001 - told to the thread that waits
            if not self.stopping.is_set():
                self._seed_error = error
                self.stop()

    def _start(self) -> StreamingQuery | None:
        """The query, or None with the failure noted."""
        self._failure = None
        self._shed.clear()
        self._pausing.clear()
        try:
            with failures.telling():
                # By name, Spark would look through every package for sources first, in a process of its own.
                self.spark.dataSource.register(PenstockSource)
                stream = self.spark.readStream.format("penstock").options(**self.plan.options).load()
                writing = stream.writeStream.foreachBatch(self._on_batch).queryName("penstock")
                # We read it, too: it is of this machine, whatever file system is the default of a cluster.
                return writing.option("checkpointLocation", f"file://{self.plan.checkpoint}").start()
        except RetryableError as error:
            self._failure = error
            return None

    def _watch(self, query: StreamingQuery) -> None:
        """Wait until the query ends, or end it between two batches."""
        look = time.monotonic() + _LOOK_EVERY_S
        while not self.stopping.wait(0.2) and not self._shed.is_set():
            self._keep_claim()
            if not query.isActive:
                self._failure = self._failure or failures.told(query.exception())
                return
            if time.monotonic() > look:
                self._look_at_schemas()
                self._absence.look()
                cut(Path(self.plan.checkpoint).with_name(LOG_FILE))
                look = time.monotonic() + _LOOK_EVERY_S
        self._pausing.set()
        with self._idle:
            pass  # the batch under way is done; the next one is not begun
        query.stop()
        self._failure = None

    def _hurry(self) -> None:
        """When stopping was asked for, end what a sink or the database holds up; the next run does it again."""
        self.stopping.wait()
        if not self._ended.wait(_DRAIN_S):
            log.warning("what is under way does not end: it is given up, and done again by the next run")
            self.plan.abandon()
            with suppress(Exception):  # Spark may have ended, too
                self.spark.sparkContext.cancelAllJobs()

    def _keep_claim(self) -> None:
        try:
            self.plan.claim()
        except PASSING as error:
            log.debug("the claim to the slot could not be renewed: %s", error)

    def _look_at_schemas(self) -> None:
        """Stop what the database no longer fits, before anything fails because of it."""
        try:
            self.stop_indexes(self.plan.misfits(False))
            self.look_at_marks()
        except PASSING as error:
            log.debug("the catalog could not be read: %s", error)

    def look_at_marks(self) -> None:
        """Tell which indexes have to be reconciled."""
        self.report.marked = {index: mark.reason for index, mark in Marks(self.state).marked().items()}

    def stop_indexes(self, misfits: Mapping[str, str]) -> bool:
        """Go on without them; False where there is nothing to stop (any more), an error where none would be left."""
        with self._opening:
            has_given_up = self.succession.give_up(*misfits)
            misfits = {index: reason for index, reason in misfits.items() if index in self.plan.parts.indexes}
            for index, reason in misfits.items():
                self.state.stop_index(index, reason)
                self.report.stopped(index, reason)
                log.error("index %s is stopped: %s. Mend that and start again: it will be seeded anew.", index, reason)
            if misfits.keys() >= set(self.plan.parts.indexes):
                index, reason = next(iter(misfits.items()))
                raise ConfigError(
                    f"index {index} does not fit the database any more: {reason}",
                    hint="Change the schema, or the table back, and start again: penstock check tells what is wrong.",
                )
            if misfits:
                self.change(lambda: self.plan.without(misfits))
            if misfits or has_given_up:
                self._shed.set()
            return bool(misfits) or has_given_up

    def change(self, plan: Callable[[], Plan]) -> None:
        """Go on by another plan, which loses nothing that the batch under way may count on."""
        with self._opening:
            self.plan = plan()
        self.wake()

    def join(self, plan: Callable[[], Plan]) -> None:
        """Go on by a plan with more to write to, between two batches.

        All that was delivered so far is settled then, so a seed that begins now sees it; what comes later, live writes.
        """
        with self._idle:
            self.change(plan)

    @contextmanager
    def between_batches(self) -> Iterator[None]:
        """No batch is under way, and none begins; the plan stays as it is, but for what is done here."""
        with self._idle, self._opening:
            yield

    def _bear(self, failure: BaseException) -> None:
        """Wait before the next try, or give up; an index that is the cause is stopped, and the others go on."""
        try:
            to_mend = isinstance(failure, PenstockError) and not self._is_passing(failure)
            if to_mend and (self.stop_indexes(self.plan.misfits(True)) or self._shed.is_set()):
                return  # the thread that seeds may have been the first to stop what this query failed by
            if isinstance(failure, RetryableError) and not _has_jvm_ended() and self._absence.consider(failure):
                self.report.failed(str(failure))
                return
        except PASSING as error:
            failure = error
        if not self._is_passing(failure) or _has_jvm_ended():
            raise failure
        self.report.failed(str(failure))
        wait_s = self._backoff.next_s()
        log.warning("the stream failed and starts again in %.1f s: %s", wait_s, failure)
        if not self.stopping.wait(wait_s):
            self.reopen()

    def _is_passing(self, failure: BaseException) -> bool:
        """Whether it may be over by itself: also a server without a free connection, which had one before."""
        return isinstance(failure, RetryableError) or (isinstance(failure, PASSING) and bool(self.report.end))

    def reopen(self) -> None:
        """Open the sinks' indexes again, between two batches: one that was lost is made anew, and has to be seeded.

        Where that fails, some were perhaps, and nobody knows which: it is tried again.
        """
        with self.between_batches():
            self.is_torn = True
            try:
                self.plan = self.plan.reopened()
                self.is_torn = False
            except PASSING as error:
                log.debug("a sink could not be opened: %s", error)

    def _on_batch(self, frame: DataFrame, number: int) -> None:
        with self._idle:
            if self.stopping.is_set() or self._pausing.is_set():
                raise UnavailableError("penstock is stopping")  # not begun: the batch comes again
            try:
                self.state.note_streamed(checkpoint.identity(Path(self.plan.checkpoint)))
                with failures.telling(), self.report.applying():
                    self._apply(frame, number)
            except BaseException as error:
                self._failure = error
                self._watches.note(self._watches.watched())  # there is no telling what was written
                raise
            self._backoff.succeeded()
            self._absence.recovered()
            self._begun.set()
            failpoints.passing("checkpoint")

    def _fetched(self, number: int) -> direct.Fetched | None:
        """The batch by the direct path; None where the frame has to be taken: also where it is another range."""
        found = direct.fetch(self.plan.socket) if self.plan.socket else None
        planned = checkpoint.end(Path(self.plan.checkpoint), number) if found else None
        if found and planned is not None and found.upto != planned:
            log.debug("batch %d ends at %s, and the reader offered what ends at %s", number, planned, found.upto)
            return None
        return found

    def _apply(self, frame: DataFrame, number: int) -> None:
        began = time.monotonic()
        fetched = self._fetched(number)
        seeding = frozenset(index for index in self.plan.parts.indexes if self.state.seed(index))
        aside, looked_for = self.state.aside(), self._watches.watched()
        watched: dict[str, Any] = {"seeding": seeding, "aside": aside | looked_for if looked_for else aside}
        if fetched is not None and fetched.changes is None:
            tally, end = Tally(), fetched.end
        elif fetched is not None:
            end = fetched.end
            tally = batch.apply(replace(self.plan.parts, **watched), fetched.changes, end, self._truncated)
        else:
            tally, end = self._spread(frame, watched)
        self.judge(tally, end)
        self._give_up_outgoing()
        self._watches.note((index, id) for _, index, id in tally.healed)
        for index in seeding & {index for index, _ in tally.gone}:
            self.state.note_gone(index, [key for one, key in tally.gone if one == index])
        seconds = time.monotonic() - began
        commits = fetched.commits if fetched else self._commits(number)
        changed = summary(fetched.changes) if fetched and fetched.changes else ()
        self.report.batch(tally, end, fetched is not None, Course(seconds, commits, changed))

    def _commits(self, number: int) -> direct.Commits:
        return direct.commits(self.plan.socket, checkpoint.end(Path(self.plan.checkpoint), number))

    def _give_up_outgoing(self) -> None:
        """Leave the outgoing generations that the batch, now at its end, could not keep."""
        self.succession.give_up(*self._given_up)
        self._given_up.clear()

    def _spread(self, frame: DataFrame, watched: Mapping[str, Any]) -> tuple[Tally, Lsn]:
        """The batch, by Spark's tasks, which have this process's connections meanwhile."""
        self.plan.parts.builder.rest()
        began = time.monotonic()
        found = spread.resolve(frame, self.plan.opener(()), self.plan.connections.live)
        resolving_s = time.monotonic() - began
        try:
            for index, extent in found.extents.items():
                self._truncated(index, extent, found.version)
            tally = Tally()
            if shared := self.plan.shared():
                self.plan.parts.claim()
                tally = spread.deliver(found, self.plan.opener(shared), found.version, watched)
            single = self.plan.single()
            if single.every_sink:
                own = batch.delivered(replace(single, **watched), spread.keys_of(found), found.version)
                tally = tally.beside(own) if shared else own
            tally.changes = found.changes
            tally.spend("resolve", resolving_s)
            return tally, found.version
        finally:
            found.release()

    def watch(self, index: str, ids: Collection[str]) -> Callable[[], Collection[str]]:
        """Note from now on which of these documents live writes; what is returned tells them, as long as it is held."""
        return self._watches.begin(index, ids)

    def settled(self) -> Lsn:
        """An LSN that was settled before anything that is built from now on: the version of what is built by itself."""
        return max(self.report.end, self.plan.confirmed())

    @contextmanager
    def boundary(self) -> Iterator[Lsn]:
        """The same, between two batches: of whatever live wrote so far, before all was settled maybe, none is newer.

        A seed that begins here knows of all that live deletes from now on.
        """
        confirmed = self.plan.confirmed()
        with self.between_batches():
            yield max(self.report.end, confirmed)

    def judge(self, tally: Tally, version: Lsn) -> None:
        """Put what was rejected aside, or raise, as the policy says; what was taken at `version` is there no more."""
        judge(tally.rejected, self.plan.on_error, self.state)
        quarantine.heal(self.state, tally.healed, version)

    def _truncated(self, index: str, extent: Extent, version: Lsn) -> None:
        """Clear what is gone, and note down, durably, that what is left has to be built again."""
        self.plan.parts.claim()
        sinks = self.plan.parts.sinks[index]
        names = [sink.name for sink in sinks]
        if extent is Extent.ROOTS:
            for sink in sinks:
                sink.clear(index, version)
            batch.flush(sinks)  # of what this process deletes, tasks know nothing
            quarantine.outlive(self.state, index, names, version)
        elif index in self.plan.heirs.outgoing.values():
            self._given_up.add(index)  # when the batch is done, which still builds for it
        else:
            # Which roots are gone is not known before the others are built: readers see both until then.
            self._seeder.begin(index, names, version, sweeps=extent is Extent.SOME_ROOTS)


def _has_jvm_ended(patience_s: float = 0.0) -> bool:
    process = getattr(SparkContext._gateway, "proc", None)  # none where Spark started this process, or runs elsewhere
    try:
        return process is not None and process.wait(patience_s) is not None
    except subprocess.TimeoutExpired:
        return False
