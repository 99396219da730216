"""One slot that many reference tables are read from.

A thread receives; whoever polls a table also sorts what was received to the other tables, where it waits in memory up
to `buffer_bytes` together and then on disk. Past `spool_bytes` on disk nothing more is kept for the table that has most
waiting: the others go on, and what it misses waits in the slot, which is read again from there once it is polled.

Guarantees: the slot is acknowledged at the least of what its tables have saved, and no further; a table that was made
here and not placed yet holds it where it is. A closed table keeps its place until `forget`. A table that joins later
reads a snapshot of its own and is handed what that has not seen. A table whose changes are not all in the stream any
more (it left the publication, was made anew, was written anew) is stopped by name, at the latest a minute after that;
so is one whose place the slot has passed. A slot that is gone takes the places of all tables along. Deliberately not:
retrying what an operator has to mend, and remembering which tables belong to a slot from one process to the next: make
all of them, and restore those that have a checkpoint, before the first poll.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from penstock.errors import (
    PASSING,
    ConfigError,
    OperatorError,
    PenstockError,
    PositionError,
    SlotLostError,
    SlotMissingError,
)
from penstock.model import Lsn, Origin, Position, QualifiedTable, ReplicationConfig
from penstock.postgres import changes, publication, slot
from penstock.postgres.capture import WalChangeCapture
from penstock.postgres.connection import ConnectionSettings, open_sql, resolve
from penstock.postgres.pgoutput import Relation
from penstock.postgres.receiver import Receiver
from penstock.postgres.rows import Unrepresentable
from penstock.postgres.transactions import Transaction
from penstock.postgres.watermark import Held
from penstock.reference.delivery import Delivery
from penstock.reference.footing import AGAIN, Footing, read_footings, unsteady
from penstock.reference.moment import Newest, newest, stopped
from penstock.reference.seen import Seen
from penstock.reference.shape import Known, learn, parts_of
from penstock.reference.source import PostgresReferenceTableSource

log = logging.getLogger(__name__)

# What one step takes from the receiver, and what is decoded at once.
_STEP_BYTES = 8 << 20
_PIECE_ROWS = 16_384
_PIECE_BYTES = 4 << 20
# A partition may be made at any time; the catalog is not asked for the same stranger more often than this.
_ASK_AGAIN_S = 30.0
_OPEN_POLL_S = 0.5
# How often the catalog is looked at for what the stream does not tell.
_LOOK_S = 60.0


class ReferenceCapture:
    """The slot. Holds no connection until a table is polled; `close` it."""

    def __init__(
        self,
        config: ReplicationConfig,
        connection_url: str | ConnectionSettings,
        *,
        manage_publication: bool = True,
        spool_bytes: int = 1 << 30,
    ) -> None:
        if config.temporary_slot or config.start_lsn:
            raise ConfigError(
                "reference tables are read from a lasting slot, from where their checkpoints stand",
                hint="Leave temporary_slot and start_lsn out.",
            )
        self.config = config
        self.settings = resolve(connection_url) if isinstance(connection_url, str) else connection_url
        self._manage = manage_publication
        self._spool_bytes = spool_bytes
        self._lock = threading.RLock()
        self._tables: dict[QualifiedTable, PostgresReferenceTableSource] = {}
        self._places: dict[QualifiedTable, Lsn | None] = {}  # what each has saved; None: not known yet
        self._deliveries: dict[QualifiedTable, Delivery] = {}
        self._strangers: dict[tuple[QualifiedTable, int], float] = {}
        self._receiver: Receiver | None = None
        self._held = Held()
        self._origin: Origin | None = None
        self._read = Lsn.ZERO  # everything up to here was sorted to the tables; zero: there is no stream
        self._is_open = False  # the stream: the server was found to have what is held
        self._opened_at = Lsn.ZERO  # where the slot stood then
        self._look_at = time.monotonic() + _LOOK_S  # when the catalog is to be looked at
        self._newest: Newest | None = None
        self.stopping = threading.Event()
        self._closed = False

    def __repr__(self) -> str:
        return f"ReferenceCapture(slot={self.config.slot!r}, {self.settings.describe()}, {len(self._tables)} tables)"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def table(
        self, table: str | QualifiedTable, *, key: Sequence[str] = (), unrepresentable: Unrepresentable = "error"
    ) -> PostgresReferenceTableSource:
        """A table of this slot; its key unless told otherwise is the primary key. Connects when it is polled."""
        name = QualifiedTable.parse(table) if isinstance(table, str) else table
        with self._lock:
            self._require_open()
            if name in self._tables and not self._tables[name].closed:
                raise ConfigError(f"table {name} is read from slot {self.config.slot} already", hint="Close it first.")
            source = PostgresReferenceTableSource(self, name, tuple(key), unrepresentable)
            self._tables[name] = source
            self._places.setdefault(name, None)
            return source

    def forget(self, table: str | QualifiedTable) -> None:
        """Close a table for good: the slot no longer waits for it, and its checkpoints are worth nothing."""
        name = QualifiedTable.parse(table) if isinstance(table, str) else table
        with self._lock:
            source = self._tables.pop(name, None)
            self._places.pop(name, None)
        if source:
            source.close()
        self._acknowledge()

    def wait(self, timeout_s: float) -> bool:
        """Wait until something has been received that was not sorted yet, or the time is over; whether it has."""
        with self._lock:
            receiver, read = self._receiver, self._read
        if receiver is None:
            return False
        return bool(receiver.newer(read, timeout_s))

    def lag(self) -> int | None:
        """Bytes of WAL that are not confirmed yet; None until the slot exists."""
        with open_sql(self.settings) as connection:
            return slot.lag(connection, self.config.slot)

    @property
    def acknowledged(self) -> Lsn:
        """Every table has saved this much: the slot stands here, or will within a moment."""
        return self._held.durable

    @property
    def origin(self) -> Origin | None:
        """The server that is read, once it is known."""
        with self._lock:
            return (self._receiver.origin if self._receiver else None) or self._origin

    def newest(self, max_age_s: float = 0.0) -> Newest:
        """How far the server's WAL is, or was at most so long ago."""
        found = self._newest
        if found is None or time.time() - found.at > max_age_s:
            self._newest = found = newest(self.settings)
        return found

    def stop(self) -> None:
        """End every wait for the slot, or for transactions that a snapshot waits for; whoever waits gets an error.

        From any thread. What was delivered can be confirmed all the same, until `close`.
        """
        self.stopping.set()

    def close(self) -> None:
        """Close every table, report what was confirmed, give the connection back. Any number of times."""
        with self._lock:
            self._closed = True
            tables, receiver, self._receiver = list(self._tables.values()), self._receiver, None
        for source in tables:
            source.close()
        if receiver:
            receiver.close()

    # What the tables ask of their slot.

    def learn(self, table: QualifiedTable, key: tuple[str, ...]) -> Known:
        """What the catalog says of a table, which is then proved to be published."""
        known = self._learned(table, key)
        capture = WalChangeCapture(self.config, self.settings)
        if capture.inspect_coverage({table}).complete:
            return known
        capture.with_publication_management({table}, self._manage).require_coverage()
        return self._learned(table, key)

    def learn_again(self, table: QualifiedTable, key: tuple[str, ...], was: Footing | None) -> Known:
        """The same of a table that goes on from where it was: it has to be published still."""
        with open_sql(self.settings) as connection:
            known = learn(connection, table, key, self.config.publication)
            found = {table: known.footing} if known.footing else {}
            error = unsteady(connection, self.config.publication, table, was, found)
        if error:
            raise error
        return known

    def _learned(self, table: QualifiedTable, key: tuple[str, ...]) -> Known:
        with open_sql(self.settings) as connection:
            return learn(connection, table, key, self.config.publication)

    def join(
        self, table: QualifiedTable, delivery: Delivery, require: Callable[[], None], ending: Callable[[], bool]
    ) -> None:
        """Keep what is sorted from now on for a table; `require` and `ending` as for `open`."""
        while self._deliveries.get(table) is not delivery:
            self.open(require, ending)
            with self._lock:
                require()
                if self._read:  # else another thread has hung up meanwhile
                    delivery.place(Position(self._read, 0), self._read)
                    delivery.timeline = self._origin.timeline if self._origin else None
                    self._deliveries[table] = delivery
                    if place := self._places.get(table):  # what it saves from now on may stand before that
                        self._places[table] = min(place, self._read)

    def leave(self, table: QualifiedTable, delivery: Delivery | None) -> None:
        """Keep nothing more for a table; its place in the slot stays."""
        with self._lock:
            if delivery:
                delivery.backlog.clear()
                if self._deliveries.get(table) is delivery:  # else another one has come since
                    del self._deliveries[table]

    def pass_over(self, table: QualifiedTable, delivery: Delivery, seen: Seen) -> None:
        """A table has taken its snapshot: what that does not show is to come, from the slot if need be."""
        with self._lock:
            if self._deliveries.get(table) is not delivery:  # it was closed meanwhile, or the slot is gone
                raise delivery.error or stopped(f"taking a snapshot of {table}")
            if self._places.get(table) is None:
                self._places[table] = delivery.whole
            if not delivery.pass_over(seen):
                self._hang_up(besides=table)

    def saved(self, table: QualifiedTable, lsn: Lsn) -> None:
        """A table has saved everything up to here."""
        with self._lock:
            if table in self._places:
                self._places[table] = max(self._places[table] or Lsn.ZERO, lsn)
        self._acknowledge()

    def resume(self, table: QualifiedTable, delivery: Delivery, lsn: Lsn, origin: Origin) -> None:
        """A table goes on from a checkpoint; where the stream is past that, it begins again."""
        with self._lock:
            self._require_open()
            known = self.origin
            if known and known.system_id != origin.system_id:
                raise PositionError(
                    f"the checkpoint belongs to the server with system identifier {origin.system_id}; this one is "
                    f"{known.system_id}",
                    hint="Connect to the right server, or start without a checkpoint: a new snapshot is taken.",
                )
            if lsn < (passed := max(self._held.durable, self._opened_at)):
                raise PositionError(
                    f"slot {self.config.slot} has passed {passed}; the checkpoint stands at {lsn}",
                    hint="Restore all tables of a slot before the first poll. A new snapshot puts this one right.",
                )
            self._origin = known or origin
            self.leave(table, self._deliveries.get(table))
            self._places[table] = lsn
            self._deliveries[table] = delivery
            delivery.timeline = origin.timeline
            is_elsewhere = known is not None and origin.timeline != known.timeline
            if self._receiver and (is_elsewhere or lsn < self._read or delivery.position.lsn > self._read):
                self._hang_up(besides=table)  # the server is asked whether it has that, too
        self._acknowledge()

    def locked(self) -> threading.RLock:
        """The lock under which deliveries are looked at."""
        return self._lock

    @property
    def read(self) -> Lsn:
        """Everything up to here was sorted to the tables."""
        return self._read

    def open(self, require: Callable[[], None], ending: Callable[[], bool]) -> None:
        """See that the stream is there; `require` raises once whoever asks for it is closed.

        Nothing is waited for any longer once it is `ending`.
        """
        opened = Lsn.ZERO
        while not opened:
            require()
            with self._lock:
                self._require_open()
                # Where the first of them goes on; with none that does, wherever the slot stands, or a new one.
                start = min((one.whole for one in self._deliveries.values() if one.error is None), default=Lsn.ZERO)
                receiver = self._receiver or self._start(start)
            opened = self._opened(receiver)
            with self._lock:
                if receiver is not self._receiver:
                    opened = Lsn.ZERO  # another thread has hung up meanwhile
                elif opened:
                    self._read, self._opened_at = max(self._read, opened), opened
                    self._origin, self._is_open = receiver.origin or self._origin, True
            if not opened and ending():
                require()
                raise stopped(f"waiting for slot {self.config.slot}")

    def _opened(self, receiver: Receiver) -> Lsn:
        try:
            return receiver.opened(_OPEN_POLL_S)
        except PenstockError as error:
            confirmed = Lsn(error.confirmed if isinstance(error, PositionError) else 0)
            with self._lock:
                passed = [one for one in self._deliveries.values() if one.error is None and one.whole < confirmed]
                if receiver is self._receiver:
                    self._give_up(error)
                    if passed:
                        self._leave_behind(confirmed)
                        return Lsn.ZERO  # the others go on
            raise

    def _leave_behind(self, confirmed: Lsn) -> None:
        """Stop the tables that the slot has passed: no place of theirs is worth anything, and none moves it back."""
        for table, delivery in self._deliveries.items():
            if delivery.whole < confirmed:
                self._places[table] = confirmed
                delivery.fail(
                    PositionError(
                        f"slot {self.config.slot} stands at {confirmed}, past {delivery.whole}, up to which {table} "
                        "was saved: somebody else consumed it, or what was saved is an older copy",
                        hint=f"One slot serves one consumer. {AGAIN}",
                    )
                )
        self._held.put(confirmed)

    def _give_up(self, error: PenstockError) -> None:
        """End the stream. Without its slot no place is worth anything: each table has to start over."""
        self._hang_up()
        if isinstance(error, SlotMissingError | SlotLostError):
            for delivery in self._deliveries.values():
                delivery.fail(error)
            self._deliveries = {}
            self._places = {table: None for table in self._places if not self._tables[table].closed}
            self._opened_at = Lsn.ZERO

    def sort(self, wanted: Delivery, require: Callable[[], None], ending: Callable[[], bool]) -> None:
        """Sort what was received to the tables, until there is something for the wanted one, or nothing is left."""
        if not wanted.backlog and wanted.error is None:
            if wanted.late:
                self._hang_up_for(wanted)
            self.open(require, ending)
            self._look_when_due()
        with self._lock:
            while self._receiver and not wanted.backlog and wanted.error is None and not wanted.late:
                self._make_room()
                reached, taken = self._receiver.reached, self._take(self._receiver)
                if not taken:
                    self._read = max(self._read, reached)
                    return
                try:
                    for piece in changes.pieces(taken, _PIECE_ROWS, _PIECE_BYTES):
                        self._hand_out(piece)
                    self._read = max(self._read, taken[-1].end_lsn)
                except BaseException:
                    self._hang_up()  # some tables have it and some have not: it is to come again
                    raise
                finally:
                    for transaction in taken:
                        transaction.release()

    def _take(self, receiver: Receiver) -> list[Transaction]:
        try:
            return receiver.take(_STEP_BYTES, 0) or []
        except PenstockError as error:
            self._give_up(error)  # everything before it was taken; the next poll connects anew
            raise

    def _hand_out(self, piece: changes.Piece) -> None:
        for table, delivery in self._deliveries.items():
            if unknown := self._unknown(table, delivery.meets(piece)):
                self._look_for_partitions(table, delivery)
                self._strangers.update(dict.fromkeys(unknown, time.monotonic()))  # not before: it may have failed
            delivery.offer(piece)
        waiting = [delivery.backlog for delivery in self._deliveries.values()]
        if sum(backlog.memory_bytes for backlog in waiting) > self.config.buffer_bytes:
            max(waiting, key=lambda backlog: backlog.memory_bytes).spill()

    def _unknown(self, table: QualifiedTable, strangers: Sequence[Relation]) -> list[tuple[QualifiedTable, int]]:
        """Those of which the catalog was not asked a moment ago whether they are partitions of the table."""
        since, keys = time.monotonic() - _ASK_AGAIN_S, [(table, stranger.oid) for stranger in strangers]
        return [key for key in keys if self._strangers.get(key, float("-inf")) <= since]

    def _look_for_partitions(self, table: QualifiedTable, delivery: Delivery) -> None:
        try:
            delivery.adopt(self.learn_again(table, delivery.known.shape.key, delivery.known.footing))
        except PASSING:
            raise  # the stream begins again, and asks again
        except (ConfigError, OperatorError) as error:
            delivery.fail(error)

    def _look_when_due(self) -> None:
        """See in the catalog what the stream does not tell; without a word where the server cannot be asked now."""
        with self._lock:
            if time.monotonic() < self._look_at:
                return
            self._look_at = time.monotonic() + _LOOK_S
            placed = {table: (one, one.known.footing) for table, one in self._deliveries.items()}
        try:
            with open_sql(self.settings) as connection:
                found = read_footings(connection, self.config.publication, placed)
                errors = {
                    table: unsteady(connection, self.config.publication, table, was, found)
                    for table, (_, was) in placed.items()
                }
                parts = {table: parts_of(connection, table) for table in found if placed[table][0].known.partitioned}
        except PASSING:
            return
        with self._lock:
            for table, (delivery, was) in placed.items():
                if delivery.known.footing is not was:
                    continue  # somebody else has looked
                if error := errors[table]:
                    delivery.fail(error)
                else:
                    streamed = {**parts.get(table, {}), **delivery.known.streamed}
                    delivery.known = replace(delivery.known, footing=found[table], streamed=streamed)

    def _make_room(self) -> None:
        """Where too much waits on disk, keep nothing more for the table that has most of it there."""
        if sum(one.backlog.disk_bytes for one in self._deliveries.values()) <= self._spool_bytes:
            return
        stored = {table: one.backlog.disk_bytes for table, one in self._deliveries.items() if not one.late}
        table = max(stored, key=lambda name: stored[name], default=None)
        if table and stored[table]:
            self._deliveries[table].late = True
            log.warning(
                "%d bytes of changes of %s wait on disk, because it is not polled, or not often enough: what follows "
                "waits in slot %s, which holds WAL until that table is polled, or forgotten. A larger spool_bytes lets "
                "more wait here.",
                stored[table], table, self.config.slot,
            )  # fmt: skip

    def _hang_up_for(self, wanted: Delivery) -> None:
        with self._lock:
            if wanted.late and not wanted.backlog:  # it has taken all that was kept: the rest is read once more
                self._hang_up()

    def _start(self, lsn: Lsn) -> Receiver:
        origin = self._oldest() if lsn else None
        config = replace(self.config, start_lsn=lsn, origin=origin)
        promised = [one.position.lsn for one in self._deliveries.values() if origin and one.timeline == origin.timeline]
        if not lsn:
            self._held = Held()  # nobody holds a place any more, so that the slot may be a new one
        self._read = lsn
        self._is_open = False
        self._receiver = Receiver(
            self.settings, config, self._held, self._prepare, promised=max(promised, default=Lsn.ZERO)
        )
        return self._receiver

    def _oldest(self) -> Origin | None:
        """The server, as whoever was saved on its oldest timeline knows it: what was saved later is newer than that."""
        known = [one.timeline for one in self._deliveries.values() if one.error is None and one.timeline is not None]
        return replace(self._origin, timeline=min(known)) if self._origin and known else self._origin

    def origin_of(self, delivery: Delivery) -> Origin | None:
        """The server that a table's position belongs to."""
        with self._lock:
            known = self.origin
            is_read = self._is_open and self._receiver is not None
            return known if known is None or is_read else replace(known, timeline=delivery.timeline or known.timeline)

    def _prepare(self) -> None:
        with open_sql(self.settings) as connection:
            publication.require(connection, self.config.publication, self.config.slot, list(self._tables))
        if self._opened_at:  # again; who joins the first time has just looked
            self._look_at = 0.0

    def _hang_up(self, besides: QualifiedTable | None = None) -> None:
        """End the stream, which begins again at the next poll; the other tables drop what they have seen of it."""
        receiver, self._receiver = self._receiver, None
        if receiver:
            self._origin = receiver.origin or self._origin
            receiver.close()
        for table, delivery in self._deliveries.items():
            if table != besides:
                delivery.rewind(self._read)
                if receiver and self._is_open and self._origin:  # which had all of them
                    delivery.timeline = self._origin.timeline
        self._read = Lsn.ZERO  # what was dropped counts for nobody as delivered

    def _acknowledge(self) -> None:
        with self._lock:
            places = list(self._places.values())
            if places and None not in places:
                self._held.put(min(place for place in places if place is not None))

    def _require_open(self) -> None:
        if self._closed:
            raise ConfigError(f"the capture of slot {self.config.slot} is closed", hint="Make a new one.")
