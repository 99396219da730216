"""`ReferenceView`: a reference table as it stands, kept in this process and, where a folder is named, on disk.

`update` brings the view up to date as its refresh mode says:

    changes   (default) one snapshot, then every change of it, for ever
    snapshot  one snapshot at each start
    periodic  a new snapshot every `every_s` seconds
    manual    a new snapshot when `refresh` is called

Guarantees: readers see whole transactions, and a new snapshot all at once, with the rows dropped that are no more. What
fails leaves the contents as they were; `status` says what failed and how old they are. With a folder, contents and
position are saved together at most every `save_every_s` seconds, and a restart goes on from there without a snapshot;
only what is saved is confirmed. Without one, what is applied is confirmed: a restart takes a new snapshot anyway. Any
thread reads; one at a time updates. Deliberately not: a thread of its own (`keeping` has one).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import pyarrow as pa

from penstock import failpoints
from penstock.contracts import ReferenceTableSource, SourceCheckpoint
from penstock.errors import ConfigError, PenstockError
from penstock.model import Lsn, Position, QualifiedTable
from penstock.reference import checkpoint as checkpoints
from penstock.reference.contents import Contents
from penstock.reference.keys import to_key
from penstock.reference.moment import Newest, stopped
from penstock.reference.shape import TableShape
from penstock.reference.store import Store

log = logging.getLogger(__name__)

# One update takes no longer than about this while changes keep coming.
_STEP_S = 1.0
# How often somebody who waits for the newest changes looks for them.
_LOOK_S = 0.005
# How often the server is asked how far it is, which is what the age is told by.
_ASK_S = 5.0
# What did not change is saved again this often, for the age's sake.
_NOTE_S = 30.0


class Refresh(StrEnum):
    """How a view is brought up to date."""

    CHANGES = "changes"
    SNAPSHOT = "snapshot"
    PERIODIC = "periodic"
    MANUAL = "manual"


class ViewSource(ReferenceTableSource, Protocol):
    """A source that tells its columns, and that can start over."""

    table: QualifiedTable
    follows: bool

    @property
    def slot(self) -> str: ...
    @property
    def shape(self) -> TableShape: ...
    def newest(self, max_age_s: float = 0.0) -> Newest: ...
    def again(self) -> None: ...
    def stop(self) -> None: ...
    def go_on(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """How a view stands.

    `age_s`: how long ago it was known to be what the table was; None: never. The server is asked every five seconds
    how far it is; the view is as old as the last answer that it has reached.
    """

    table: QualifiedTable
    rows: int
    version: int
    position: Position | None
    age_s: float | None
    error: PenstockError | None


class ReferenceView:
    """The view of one source, which it owns; `close` it."""

    def __init__(
        self,
        source: ViewSource,
        *,
        path: str | Path | None = None,
        refresh: Refresh | str = Refresh.CHANGES,
        every_s: float = 60.0,
        save_every_s: float = 5.0,
        fresh: bool = False,
    ) -> None:
        self.mode = _mode(refresh, source)
        self._source = source
        self._path = path
        self._every_s = every_s
        self._save_every_s = save_every_s
        self._store: Store | None = None
        self._updating = threading.Lock()
        self._reading = threading.RLock()
        self._contents: Contents | None = None
        self._checkpoint: SourceCheckpoint | None = None
        self._saved: SourceCheckpoint | None = None
        self._saved_at = self._snapshot_at = self._noted_at = float("-inf")
        self._current_at: float | None = None
        self._ahead: Newest | None = None  # how far the server was: the contents are of then once they are there
        self._ask_at = 0.0
        self._fresh = fresh  # begin with a new snapshot, whatever was saved
        self._version = 0
        self._arrow: tuple[int, pa.Table] | None = None
        self._error: PenstockError | None = None
        self._pending: list[pa.RecordBatch] = []  # the beginning of a transaction that is not whole yet
        self._loaded = self._placed = self._closed = False
        self._on_close: list[Callable[[], None]] = []
        self._stopping = threading.Event()
        self._is_stopped = False  # for good
        self._ending = threading.Lock()

    def __repr__(self) -> str:
        return f"ReferenceView({self.table}, {self.mode.value}, {len(self)} rows)"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._contents) if self._contents is not None else 0

    @property
    def table(self) -> QualifiedTable:
        """The table that it shows."""
        return self._source.table

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def version(self) -> int:
        """Grows with each change of the contents."""
        return self._version

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of its rows."""
        return self._held().schema

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which rows are looked up."""
        return self._held().key

    def lookup(self, *key: Any) -> dict[str, Any] | None:
        """The row of a key, by the values of the key's columns; None where there is none."""
        with self._reading:
            contents = self._held()
            return contents.get(to_key(key, contents.schema, contents.key))

    def to_arrow(self) -> pa.Table:
        """Every row, of one version, in no particular order."""
        with self._reading:
            if self._arrow is None or self._arrow[0] != self._version:
                self._arrow = self._version, self._held().table()
            return self._arrow[1]

    def status(self) -> ViewStatus:
        """How it stands, for people and for decisions."""
        with self._reading:
            position = self._checkpoint.position if self._checkpoint else None
            age_s = None if self._current_at is None else max(time.time() - self._current_at, 0.0)
            return ViewStatus(self.table, len(self), self._version, position, age_s, self._error)

    def update(self) -> int:
        """Bring it up to date as its mode says; how many rows were read, or changes applied."""
        return self._updated(is_due=False)

    def refresh(self) -> int:
        """Take a new snapshot now, whatever the mode, and put it in place of what is there; how many rows it has."""
        return self._updated(is_due=True)

    def catch_up(self, timeout_s: float = 10.0) -> bool:
        """Have it hold everything that was committed before the call; False where that takes too long.

        Or where somebody else updates it for so long: that is waited for, too. A commit that did not wait
        for its WAL (synchronous_commit = off) counts once that is flushed, a moment later. In a mode that reads no
        changes it is `update`.
        """
        deadline = time.monotonic() + timeout_s
        newest = self._source.newest() if self.mode is Refresh.CHANGES else Newest(0.0, Lsn.ZERO)
        while True:
            left_s = min(max(deadline - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
            if not self._updating.acquire(timeout=left_s):
                return False  # somebody else updates it
            try:
                self._update(is_due=False)
            finally:
                self._updating.release()
            if self._has_reached(newest):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_S)

    def stop(self) -> None:
        """End a snapshot that is under way, and what it waits for, with an error. From any thread, for good."""
        with self._ending:
            self._is_stopped = True
            self._end_waits()

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """The same, for the time of the block."""
        with self._ending:
            self._end_waits()
        try:
            yield
        finally:
            with self._ending:
                if not self._is_stopped:
                    self._stopping.clear()
                    self._source.go_on()

    def _end_waits(self) -> None:
        self._stopping.set()
        self._source.stop()

    def on_close(self, call: Callable[[], None]) -> None:
        """Have `call` called when the view is closed."""
        self._on_close.append(call)

    def save(self) -> None:
        """Save what is applied, and confirm it; without a folder, only confirm."""
        with self._updating:
            self._save()

    def close(self) -> None:
        """Save what is applied, and give everything back. Any number of times; a snapshot under way is given up."""
        self.stop()
        with self._updating:
            if self._closed:
                return
            self._closed = True
            for call in self._on_close:
                call()
            try:
                self._save()
            finally:
                self._source.close()
                if self._store:
                    self._store.close()

    def _updated(self, is_due: bool) -> int:
        with self._updating:
            return self._update(is_due)

    def _update(self, is_due: bool) -> int:
        if self._closed:
            raise ConfigError(f"the view of {self.table} is closed", hint="Make a new one.")
        try:
            count = self._step(is_due)
        except PenstockError as error:
            with self._reading:
                self._error = error
            raise
        self._error = None
        return count

    def _step(self, is_due: bool) -> int:
        is_new = is_due or self._fresh
        self._load(is_needed=not is_new)
        if is_new or self._is_snapshot_due():
            self._source.again()
        else:
            self._go_on()
            if self._source.is_snapshot_complete() or self.mode is Refresh.MANUAL:
                count = self._follow() if self.mode is Refresh.CHANGES else 0
                self._save_when_due()
                return count
        count = self._take_snapshot()
        self._save()
        return count

    def _load(self, is_needed: bool) -> None:
        """Have what was saved, once; where a new snapshot is to replace it, it need not be readable."""
        if self._loaded or self._path is None:
            return
        self._store, saved = self._store or Store(self._path), None
        try:
            saved = self._store.load()
        except PenstockError as error:
            if is_needed:
                raise
            log.warning("a new snapshot replaces what was saved of %s: %s", self.table, error.message)
        if saved:
            if saved.checkpoint.table != self.table:
                raise ConfigError(
                    f"{self._path} holds the view of {saved.checkpoint.table}, not of {self.table}",
                    hint="Give each view a folder of its own.",
                )
            with self._reading:
                self._contents, self._version = saved.contents, self._version + 1
                self._checkpoint, self._current_at = saved.checkpoint, saved.saved_at
            self._saved = saved.checkpoint
            self._saved_at = self._snapshot_at = self._noted_at = saved.saved_at
        self._loaded = True

    def _go_on(self) -> None:
        """Have the source go on from what was saved, once."""
        if not self._placed and self._saved and self.mode is not Refresh.SNAPSHOT:
            self._source.restore(self._saved)
        self._placed = True

    def _is_snapshot_due(self) -> bool:
        if self.mode is not Refresh.PERIODIC or not self._source.is_snapshot_complete():
            return False
        return time.time() - self._snapshot_at >= self._every_s

    def _take_snapshot(self) -> int:
        began_at = time.time()
        try:
            staged = Contents(self._source.shape.schema, self._source.shape.key)
            while (batch := self._source.poll_snapshot()) is not None:
                staged.add(batch)
                if self._stopping.is_set():
                    raise stopped(f"reading {self.table}")
            staged.seal()
        except PenstockError:
            self._source.again()  # what broke off is of no use
            raise
        with self._reading:
            self._contents, self._version = staged, self._version + 1
            self._checkpoint = self._source.checkpoint()
            self._current_at = self._snapshot_at = began_at
        self._saved, self._placed, self._pending, self._fresh = None, True, [], False
        if self._store:
            self._store.outdate()
        return len(staged)

    def _follow(self) -> int:
        """Apply what has come, whole transactions at a time."""
        count, until = 0, time.monotonic() + _STEP_S
        while True:
            batch = self._source.poll_changes()
            if batch is not None:
                self._pending.append(batch)
            reached = self._source.checkpoint()
            if checkpoints.acknowledged(reached) == reached.position.lsn:
                count += self._apply(reached)
                if time.monotonic() > until:
                    break
            if batch is None:
                break
        self._tell_age()
        return count

    def _tell_age(self) -> None:
        """Know how old the contents are, as often as the server is asked; where it does not answer, they grow older."""
        if self._ahead is None and time.monotonic() >= self._ask_at:
            try:
                self._ahead = self._source.newest(_ASK_S)
            except PenstockError:
                self._ask_at = time.monotonic() + _ASK_S
        if self._ahead and self._has_reached(self._ahead):
            self._ahead = None

    def _has_reached(self, newest: Newest) -> bool:
        """Whether the contents hold what was committed by then; the age follows."""
        with self._reading:
            reached = self._checkpoint is not None and self._checkpoint.position.lsn >= newest.lsn
            if reached:
                self._current_at = max(newest.at, self._current_at or 0.0)
            return reached

    def _apply(self, reached: SourceCheckpoint) -> int:
        contents = self._held()
        with self._reading:
            contents.apply(*self._pending)
            self._version += bool(self._pending)
            self._checkpoint = reached
        applied, self._pending = self._pending, []
        if self._store and applied:
            self._store.append(applied)
        return sum(map(len, applied))

    def _save_when_due(self) -> None:
        if self._store is None or time.time() - self._saved_at >= self._save_every_s:
            self._save()

    def _save(self) -> None:
        checkpoint, current_at = self._checkpoint, self._current_at or time.time()
        if checkpoint is None or (checkpoint == self._saved and current_at - self._noted_at < _NOTE_S):
            return
        if self._store:
            self._store.commit(self._held(), checkpoint, current_at)
            failpoints.passing("saved")
        self._saved, self._saved_at, self._noted_at = checkpoint, time.time(), current_at
        if self._source.is_snapshot_complete():  # else a new snapshot is under way, and nothing to confirm
            self._source.confirm(checkpoint)

    def _held(self) -> Contents:
        if self._contents is None:
            what = "call refresh()" if self.mode is Refresh.MANUAL else "call update()"
            raise ConfigError(f"the view of {self.table} has no contents yet", hint=f"To have some, {what}.")
        return self._contents


def _mode(refresh: Refresh | str, source: ViewSource) -> Refresh:
    try:
        mode = Refresh(refresh)
    except ValueError:
        raise ConfigError(
            f"{refresh!r} is no refresh mode", hint=f"There are: {', '.join(one.value for one in Refresh)}."
        ) from None
    if source.follows != (mode is Refresh.CHANGES):
        wanted = "a table of a ReferenceCapture" if mode is Refresh.CHANGES else "a PostgresSnapshotSource"
        raise ConfigError(
            f"refresh mode {mode.value} reads {'changes' if mode is Refresh.CHANGES else 'no changes'}",
            hint=f"Give the view {wanted}" + ("." if mode is Refresh.CHANGES else ", which holds no slot."),
        )
    return mode
