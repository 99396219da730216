"""`PostgresReferenceTableSource`: one reference table, its snapshot, then its changes.

Guarantees: those of `contracts.ReferenceTableSource`. Rows and changes have the types of the stream; changes carry its
added columns, `_missing` among them: a value that is named there was not sent because it did not change.
Deliberately not: the stream itself, which is the slot's (`capture`), nor holding what was delivered (`view`).
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.contracts import SourceCheckpoint
from penstock.errors import ConfigError, PenstockError, PositionError
from penstock.model import Lsn, Position, QualifiedTable
from penstock.postgres.rows import Unrepresentable
from penstock.reference import checkpoint as checkpoints
from penstock.reference.delivery import Delivery
from penstock.reference.moment import Moment, Newest, stopped
from penstock.reference.shape import Known, TableShape

if TYPE_CHECKING:
    from penstock.reference.capture import ReferenceCapture

_NOWHERE = Position(Lsn.ZERO, 0)


class PostgresReferenceTableSource:
    """A table of a `ReferenceCapture`, which makes it."""

    follows = True
    """Whether there are changes behind the snapshot."""

    def __init__(
        self,
        capture: ReferenceCapture,
        table: QualifiedTable,
        key: tuple[str, ...] = (),
        unrepresentable: Unrepresentable = "error",
    ) -> None:
        self.table = table
        self.closed = False
        self._capture = capture
        self._key = key
        self._unrepresentable: Unrepresentable = unrepresentable
        self._delivery: Delivery | None = None
        self._moment: Moment | None = None
        self._complete = False
        self._broken: PenstockError | None = None
        self._stopping = threading.Event()

    def __repr__(self) -> str:
        return f"PostgresReferenceTableSource({self.table}, slot={self._capture.config.slot!r})"

    @property
    def slot(self) -> str:
        """The slot that it is read from."""
        return self._capture.config.slot

    @property
    def shape(self) -> TableShape:
        """Its columns and its key; asks the catalog where nothing was read yet."""
        return self._opened().known.shape

    def poll_snapshot(self) -> pa.RecordBatch | None:
        """The next rows of the table, all of one moment; None when there are no more."""
        self.require_open()
        if self._complete:
            return None
        if self._broken:
            raise self._broken
        try:
            batch = (self._moment or self._begin()).next()
            self.require_open()  # it may have been closed meanwhile
        except PenstockError as error:
            if self._moment is not None:  # rows of it were delivered, perhaps
                self._broken = error
            self._end_moment()
            raise
        if batch is None:
            self._complete = True
            self._end_moment()
        return batch

    def is_snapshot_complete(self) -> bool:
        """Whether there are only changes to come."""
        return self._complete

    def poll_changes(self) -> pa.RecordBatch | None:
        """The next changes; None: nothing now, or the snapshot is not complete."""
        self.require_open()
        if not self._complete:
            return None
        delivery = self._opened()
        self._capture.sort(delivery, self.require_open, self._is_ending)
        with self._capture.locked():
            return delivery.take()

    def checkpoint(self) -> SourceCheckpoint:
        """How far it has delivered."""
        self.require_open()
        shape = self._delivery.known.shape if self._delivery else TableShape(self.table, (), self._key)
        with self._capture.locked():
            position, whole = _NOWHERE, Lsn.ZERO
            if self._complete and self._delivery:
                position, whole = self._delivery.reached(self._capture.read)
            footing = self._delivery.known.footing if self._delivery else None
            seen = self._delivery.seen if self._complete and self._delivery else None
            origin = self._capture.origin_of(self._delivery) if self._delivery else self._capture.origin
            made = checkpoints.make(self.slot, origin, shape, position, whole, footing)
            return checkpoints.having_seen(made, seen)

    def confirm(self, checkpoint: SourceCheckpoint) -> None:
        """The checkpoint is saved."""
        self.require_open()
        checkpoints.require(checkpoint, self.slot, self.table)
        if not checkpoints.is_complete(checkpoint):
            return
        delivered = self.checkpoint().position
        if checkpoint.position > delivered:
            raise PositionError(
                f"the checkpoint stands at {checkpoint.position.lsn}, but {self.table} was delivered up to "
                f"{delivered.lsn}",
                hint="Confirm what checkpoint() of this source gave.",
            )
        self._capture.saved(self.table, checkpoints.acknowledged(checkpoint))

    def restore(self, checkpoint: SourceCheckpoint) -> None:
        """Go on behind the checkpoint; one that was taken before the snapshot was complete starts anew."""
        self.require_open()
        checkpoints.require(checkpoint, self.slot, self.table)
        if not checkpoints.is_complete(checkpoint):
            self.again()
            return
        shape = checkpoints.shape(checkpoint)
        known = self._capture.learn_again(self.table, self._key or shape.key, checkpoints.footing(checkpoint))
        shape.check({name: (oid, typmod) for name, oid, typmod in known.shape.columns})
        if shape.key != known.shape.key:
            raise ConfigError(
                f"the key of {self.table} is {', '.join(known.shape.key)} now, and was {', '.join(shape.key)}",
                hint="Start without a checkpoint: a new snapshot is taken.",
            )
        delivery = self._deliver(replace(known, shape=shape))
        whole = checkpoints.acknowledged(checkpoint)
        delivery.place(checkpoint.position, whole, checkpoints.seen(checkpoint))
        self._capture.resume(self.table, delivery, whole, checkpoints.origin(checkpoint))
        self._end_moment()
        self._delivery, self._complete, self._broken = delivery, True, None
        if self.closed:  # meanwhile, by another thread
            self.close()
            self.require_open()

    def newest(self, max_age_s: float = 0.0) -> Newest:
        """How far the server's WAL is, or was at most so long ago."""
        return self._capture.newest(max_age_s)

    def again(self) -> None:
        """Start over with a new snapshot at the next poll. What was confirmed keeps its place in the slot."""
        self.require_open()
        self._end_moment()
        self._capture.leave(self.table, self._delivery)
        self._delivery, self._complete, self._broken = None, False, None

    def stop(self) -> None:
        """End what is waited for, the slot or running transactions, with an error, from any thread, until `go_on`."""
        self._stopping.set()

    def go_on(self) -> None:
        """Wait again where need be."""
        self._stopping.clear()

    def close(self) -> None:
        """Give connections and buffers back; what was confirmed keeps its place in the slot."""
        self.closed = True
        self._stopping.set()
        self._end_moment()
        self._capture.leave(self.table, self._delivery)

    def _begin(self) -> Moment:
        delivery = self._opened()
        try:
            self._capture.join(self.table, delivery, self.require_open, self._is_ending)
            moment = Moment(self._capture.settings, delivery.known.selection, self._unrepresentable, self._wait)
            try:
                self._capture.pass_over(self.table, delivery, moment.seen)
                self.require_open()
            except BaseException:
                moment.close()
                raise
        except PenstockError:
            self.again()  # the catalog is asked anew, too
            raise
        self._moment = moment
        return moment

    def _wait(self, pause_s: float) -> None:
        self._stopping.wait(pause_s)
        self.require_open()
        if self._is_ending():
            raise stopped(f"taking a snapshot of {self.table}")

    def _is_ending(self) -> bool:
        return self._stopping.is_set() or self._capture.stopping.is_set()

    def _opened(self) -> Delivery:
        if self._delivery is None:
            self._delivery = self._deliver(self._capture.learn(self.table, self._key))
        return self._delivery

    def _deliver(self, known: Known) -> Delivery:
        return Delivery(known, self._unrepresentable, self._capture.config.spill_dir)

    def _end_moment(self) -> None:
        moment, self._moment = self._moment, None
        if moment:
            moment.close()

    def require_open(self) -> None:
        """Refuse any use after `close`."""
        if self.closed:
            raise ConfigError(f"the source of {self.table} is closed", hint="Make a new one: capture.table(…).")
