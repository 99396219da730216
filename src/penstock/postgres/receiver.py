"""A thread that keeps a replication stream open and hands over committed transactions.

It never waits for its consumer until `buffer_bytes` of complete transactions are waiting; then it leaves the socket
unread and goes on reporting its status, so that the server does not take it for dead. A transaction that is still
being received does not count: it may grow to the disk, else it would wait for itself. When the connection is lost, or
the server stays silent although it was asked for a word, it connects again with growing, jittered waits and resumes
behind the last transaction it received whole.

Guarantees: transactions come in commit order, each once a run; an error that retrying cannot mend is raised to the
consumer after everything that was received before it. The position that is reported is the watermark's, nothing else.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from penstock import failpoints
from penstock.errors import (
    PASSING,
    BugError,
    PenstockError,
    SlotActiveError,
    UnavailableError,
)
from penstock.model import Lsn, Origin, ReplicationConfig
from penstock.postgres import replication, resume, slot
from penstock.postgres.connection import ConnectionSettings, open_sql, translating
from penstock.postgres.replication import Client, Duplex, ReplicationParams
from penstock.postgres.transactions import Assembler, Transaction
from penstock.postgres.watermark import Mark

log = logging.getLogger(__name__)
T = TypeVar("T")

# While something was confirmed that the server does not know yet, it is told this often.
_PROGRESS_S = 0.2
# From Postgres 16 on, a walsender misses a commit that falls into the moment in which it goes to sleep, and sleeps on
# until the next commit, or until it hears from us. So it does: soon after each progress, and every second.
_NUDGE_S = 0.02
_LONGEST_STATUS_S = 1.0
_CLOSE_S = 5.0
# How long a server that shuts down is made to wait for the consumer.
_SHUTDOWN_S = 1.0
# What the objects of a transaction take beside its rows: without it, many small ones would wait for nothing.
_OVERHEAD_BYTES = 1024
# What the server takes unless it is configured otherwise; it stands for "never" too.
_USUAL_SENDER_TIMEOUT_S = 60.0
# A stream that stood this long was no failed attempt.
_STOOD_S = 30.0
# Once a stream has been open, these pass too: a server that restarts is short of connections, or a standby at first.


class Receiver:
    """Connect, receive, assemble, report; one thread, one slot, one consumer.

    `prepare` runs at each connect, before the slot is made or read. `floor` is what the consumer has, where it is sent
    again from the slot's own position on: the server must have it, too. So must it have what is `promised`: how far
    the consumer has written down that it reads.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        config: ReplicationConfig,
        watermark: Mark,
        prepare: Callable[[], None] = lambda: None,
        floor: Lsn = Lsn.ZERO,
        promised: Lsn = Lsn.ZERO,
    ) -> None:
        self._settings = settings
        self._config = config
        self._watermark = watermark
        self._prepare = prepare
        self._floor = floor
        self.promised = promised
        self._assembler = Assembler(config.spill_bytes, config.spill_dir)
        self._ready: deque[Transaction] = deque()
        self._ready_bytes = 0
        self._changed = threading.Condition()
        self._error: PenstockError | None = None
        self._streaming = False
        self._trouble = ""
        self._stop = threading.Event()
        self._wake: tuple[int, ...] = os.pipe()
        self._origin = config.origin
        self._connected = False
        self._received = config.start_lsn  # everything up to here was received whole, in this run or before it
        self._reached = config.start_lsn
        self._needed = Lsn.ZERO  # so far it has to be received, however much is waiting
        self._opened_at = Lsn.ZERO
        self._seen = Lsn.ZERO
        self._reported = self._told = Lsn.ZERO  # as durable, and as received
        self._sender_timeout_s = _USUAL_SENDER_TIMEOUT_S
        self._reported_at = 0.0
        self._nudge_at = math.inf
        self._asked_at = self._asked_since = -math.inf
        self._heard = time.monotonic()  # when the server last sent something
        self._attempts = 0  # to open a stream, since one got anywhere
        self._silences = 0  # streams given up for silence, since one got anywhere
        self._thread = threading.Thread(target=self._run, name=f"penstock-receive-{config.slot}", daemon=True)
        self._thread.start()

    @property
    def received(self) -> Lsn:
        """The end of the newest transaction that was received whole."""
        return self._received

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._stop.is_set()

    def take(self, max_bytes: int, timeout_s: float | None = None) -> list[Transaction] | None:
        """Complete transactions, oldest first, up to about `max_bytes`; empty when the time is over, None when closed.

        Raises what ended the stream once everything before it has been taken.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._error or self._stop.is_set(), timeout_s)
            if self._stop.is_set():
                return None
            if self._error and not self._ready:
                raise self._error
            failpoints.passing("deliver")
            taken: list[Transaction] = []
            size = 0
            while self._ready and (not taken or size + self._ready[0].size <= max_bytes):
                taken.append(self._ready.popleft())
                size += taken[-1].size
            was_full = self._full
            self._ready_bytes -= size + len(taken) * _OVERHEAD_BYTES
            if was_full and not self._full:
                self._changed.notify_all()
            return taken

    def newer(self, than: Lsn, timeout_s: float, upto: Lsn = Lsn.MAX) -> bool:
        """Whether a complete transaction waits that ends behind `than`: waits for one.

        Or until everything up to `upto` has been received. What waits stays until it is released.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._has(than) or self._reached >= upto or self._ended, timeout_s)
            failpoints.passing("deliver")
            if self._error and not self._has(than):
                raise self._error
            return self._has(than)

    def upto(self, reach: Lsn, timeout_s: float) -> None:
        """Wait until everything up to `reach` has been received: it is, however full the buffer is."""
        with self._changed:
            if reach > self._needed:
                self._needed = reach
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._reached >= reach or self._ended, timeout_s)
            failpoints.passing("deliver")
            if self._error and self._reached < reach:
                raise self._error

    def waiting(self, look: Callable[[Iterable[Transaction]], T]) -> T:
        """What `look` finds among the complete transactions, oldest first; it had better not look at all of them."""
        with self._changed:
            return look(self._ready)

    def holds(self, behind: Lsn) -> bool:
        """Whether a complete transaction waits that ends behind this."""
        with self._changed:
            return self._has(behind)

    def _has(self, than: Lsn) -> bool:
        return bool(self._ready) and self._ready[-1].end_lsn > than

    @property
    def _ended(self) -> bool:
        return self._error is not None or self._stop.is_set()

    def release(self, upto: Lsn) -> None:
        """Forget the transactions that end at `upto` or before."""
        with self._changed:
            was_full = self._full
            while self._ready and self._ready[0].end_lsn <= upto:
                done = self._ready.popleft()
                self._ready_bytes -= done.size + _OVERHEAD_BYTES
                done.release()
            if was_full and not self._full:
                self._changed.notify_all()

    @property
    def reached(self) -> Lsn:
        """Every transaction that ends here or before has been received."""
        return self._reached

    @property
    def origin(self) -> Origin | None:
        """The server that is read, once it is known."""
        return self._origin

    def opened(self, timeout_s: float) -> Lsn:
        """Where the slot stood when it was first opened, waiting for that; zero when the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._opened_at or self._ended, timeout_s)
            if self._error and not self._opened_at:
                raise self._error
            return self._opened_at

    @property
    def state(self) -> str:
        """`starting`, `streaming`, `waiting` (for the server or the slot, to try again), or `failed`."""
        if self._error:
            return "failed"
        return "streaming" if self._streaming else "waiting" if self._connected or self._trouble else "starting"

    @property
    def trouble(self) -> str:
        """What last went wrong, in a sentence; empty where nothing did."""
        return self._trouble

    @property
    def silent_s(self) -> float:
        """How long nothing has come from the server."""
        return time.monotonic() - self._heard

    def close(self) -> None:
        """Report what is confirmed, end the stream and the thread. Any thread, any number of times.

        Waits a few seconds at most; a thread that is stuck in an attempt to connect ends by itself when that does.
        """
        with self._changed:
            if not self._stop.is_set():
                self._stop.set()
                self._changed.notify_all()
                os.write(self._wake[1], b"x")
        # In the thread itself, the garbage collector called; the thread tidies up when it ends.
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)
        if not self._thread.is_alive():
            self._tidy_up()

    def _tidy_up(self) -> None:
        with self._changed:
            for end in self._wake:
                os.close(end)
            self._wake = ()
            while self._ready:
                self._ready.popleft().release()

    @property
    def _full(self) -> bool:
        return self._ready_bytes >= self._config.buffer_bytes and self._reached >= self._needed

    def _run(self) -> None:
        try:
            self._keep_receiving()
        except PenstockError as error:
            self._fail(error)
        except Exception as error:
            log.exception("the receiving thread failed")
            bug = BugError(f"the receiving thread failed with {type(error).__name__}")
            bug.__cause__ = error
            self._fail(bug)
        finally:
            self._assembler.reset()
            if self._stop.is_set():
                self._tidy_up()

    def _fail(self, error: PenstockError) -> None:
        with self._changed:
            self._error, self._trouble = error, error.message
            self._changed.notify_all()

    def _keep_receiving(self) -> None:
        held_since = time.monotonic()
        while not self._stop.is_set():
            wait_s = 0.0
            try:
                with translating("opening the stream"):
                    duplex = self._open()
                held_since = time.monotonic()
                try:
                    self._streaming = True
                    self._receive(duplex)
                    duplex.close()
                finally:
                    self._streaming = False
                    duplex.close(0.0)  # in case of trouble, without a word
                    if time.monotonic() - held_since > _STOOD_S:
                        self._attempts = 0
            except SlotActiveError as error:
                if time.monotonic() - held_since > self._patience_s():
                    raise
                self._trouble = error.message
                log.info("waiting for slot %s, which is in use: %s", self._config.slot, error.message)
                wait_s = replication.backoff_s(self._attempts, ceiling_s=2.0)
            except PASSING as error:
                if not self._connected:
                    raise  # never been there: more likely a wrong address than passing trouble
                wait_s = replication.backoff_s(self._attempts)
                self._trouble = error.message
                if not self._stop.is_set():
                    log.warning("slot %s: the stream broke off, again in %.1f s: %s", self._config.slot, wait_s, error)
                held_since = time.monotonic()
            self._assembler.reset()
            self._attempts += 1
            self._stop.wait(wait_s)

    def _patience_s(self) -> float:
        """How long to wait for a slot that is in use. Its holder may be a walsender of our own, whose end the server
        notices only after wal_sender_timeout."""
        return max(self._config.slot_wait_s, 1.5 * self._sender_timeout_s if self._connected else 0.0)

    def _open(self) -> Duplex:
        client = replication.connect(self._settings)
        try:
            held = max(self._received, self._watermark.durable)
            self._check_server(client, max(held, self._floor))
            self._prepare()
            self._claim_slot(client, held)
            self._sender_timeout_s = _sender_timeout_s(client)
            params = ReplicationParams(
                self._config.slot, self._config.publication, held, streaming=self._config.streaming
            )
            duplex = replication.start_replication(client, params)
        except BaseException:
            client.close()
            raise
        if self._connected:
            log.info("slot %s is streaming again from %s", self._config.slot, held)
        self._connected, self._reported, self._told, self._reported_at = True, Lsn.ZERO, Lsn.ZERO, 0.0
        return duplex

    def _check_server(self, client: Client, held: Lsn) -> None:
        slot.require_primary(client.connection, f"streaming from slot {self._config.slot}")
        found = Origin(client.system.system_id, client.system.timeline)
        known = self._origin
        switch = None
        if known and known.timeline is not None and known.system_id == found.system_id:
            switch = replication.timeline_switch(client, known.timeline)
        claimed = max(held, self.promised)
        resume.check_origin(known, found, switch, claimed)
        resume.check_wal(claimed, client.system.wal_end)
        if known and known.timeline != found.timeline:
            with self._changed:
                self._reached = self._seen = held  # what the server before had written beyond that does not come
        self._origin = found

    def _claim_slot(self, client: Client, held: Lsn) -> None:
        config = self._config
        # A temporary slot is always a new one: another of its name is somebody else's.
        found = None if config.temporary_slot else slot.inspect(client.connection, config.slot)
        if found:
            slot.verify(found, client.system.database)
        resume.check_slot(config.slot, found, held, may_create=not self._connected and not held)
        if found is None:
            found = self._create_slot(client)
            slot.verify(found, client.system.database)
        if found.wal_status == "unreserved":
            log.warning("slot %s is about to be lost: it holds more WAL than max_slot_wal_keep_size", config.slot)
        confirmed = found.confirmed_flush_lsn or Lsn.ZERO
        with self._changed:
            self._opened_at = self._opened_at or confirmed
            self._changed.notify_all()
        self._watermark.reach(confirmed)

    def _create_slot(self, client: Client) -> slot.SlotInfo:
        config = self._config
        try:
            slot.create(
                client.connection, config.slot, temporary=config.temporary_slot, failover=config.failover,
                stop=self._stop, on_wait=lambda: tell_who_blocks(self._settings, config.slot),
            )  # fmt: skip
        except PenstockError as error:
            if error.sqlstate != "42710" or config.temporary_slot:  # else somebody was first: theirs serves as well
                raise
        found = slot.inspect(client.connection, config.slot)
        if found is None:
            raise slot.missing(config.slot)
        return found

    def _receive(self, duplex: Duplex) -> None:
        self._heard = time.monotonic()
        while not self._stop.is_set():
            if self._full:
                self._report_when_due(duplex)
                with self._changed:
                    self._changed.wait_for(lambda: not self._full or self._stop.is_set(), self._pause_s())
                self._heard = time.monotonic()  # nobody listened
                continue
            frames = duplex.drain()
            if frames:
                self._heard = time.monotonic()
                self._hand_over(duplex, frames)
            elif duplex.ended:
                raise UnavailableError("the server ended the stream")
            self._check_silence()
            self._report_when_due(duplex)
            duplex.wait(self._pause_s(), self._wake[0])
        self._report(duplex)

    def _check_silence(self) -> None:
        """Give up a connection on which nothing comes, though answers were asked for: it is half open.

        The limit doubles each time, because a server that is busy with something large may be silent for long, and
        would begin again with every connection.
        """
        silent_s = time.monotonic() - self._heard
        if silent_s > 2 * self._sender_timeout_s * 2 ** min(self._silences, 5):
            self._silences += 1
            raise UnavailableError(f"the server has sent nothing for {silent_s:.0f} s, though it was asked to")

    def _hand_over(self, duplex: Duplex, frames: list[memoryview]) -> None:
        complete: list[Transaction] = []
        reached = self._reached
        try:
            for event in self._assembler.feed(frames):
                if isinstance(event, Transaction):
                    self._take_note(event, complete)
                    continue
                self._progress(event.wal_end)
                if self._assembler.between_transactions:
                    self._watermark.reach(event.wal_end)
                    reached = event.wal_end
                if event.reply:
                    self._answer(duplex, event.wal_end)
        finally:  # what was received counts, also where what follows it cannot be understood or answered
            with self._changed:
                self._reached = max(self._reached, reached, self._received)
                self._ready.extend(complete)
                self._ready_bytes += sum(transaction.size + _OVERHEAD_BYTES for transaction in complete)
                self._changed.notify_all()

    def _answer(self, duplex: Duplex, wal_end: Lsn) -> None:
        """Answer at once. Asked for the same again and again, the server shuts down and waits until all is confirmed.

        The consumer has a moment to do so; then the server is let go. It would wait for ever, and the slot stays.
        """
        now = time.monotonic()
        # At other times it asks when it has not heard from us for half of its limit, so never twice within that.
        if self._told < wal_end or now - self._asked_at > self._sender_timeout_s / 4:
            self._asked_since = now
        elif now - self._asked_since > _SHUTDOWN_S:
            raise UnavailableError("the server shuts down, and not all that it sent is confirmed")
        self._asked_at = now
        self._report(duplex)

    def _take_note(self, transaction: Transaction, complete: list[Transaction]) -> None:
        if transaction.end_lsn <= max(self._received, self._floor):
            self._received = max(self._received, transaction.end_lsn)
            transaction.release()  # received before the connection was lost, or by a run before this one
            return
        self._received = transaction.end_lsn
        self._progress(transaction.end_lsn)
        self._watermark.expect(transaction.end_lsn, transaction.rows)
        if transaction.rows:
            complete.append(transaction)
        else:
            transaction.release()

    def _progress(self, lsn: Lsn) -> None:
        if lsn > self._seen:
            self._seen = lsn
            self._attempts = self._silences = 0
            self._nudge_at = time.monotonic() + _NUDGE_S

    def _due(self) -> float:
        """When the server is to hear from us: at least three times in wal_sender_timeout, and once a second."""
        every_s = min(_LONGEST_STATUS_S, self._sender_timeout_s / 3)
        if self._watermark.durable > self._reported:
            every_s = min(every_s, _PROGRESS_S)
        return min(self._reported_at + every_s, self._nudge_at)

    def _pause_s(self) -> float:
        """How long nothing need be sent."""
        until_due_s = max(self._due() - time.monotonic(), 0.0)
        return min(until_due_s, _PROGRESS_S) if self._watermark.pending else until_due_s

    def _report_when_due(self, duplex: Duplex) -> None:
        if time.monotonic() >= self._due():
            self._report(duplex)

    def _report(self, duplex: Duplex) -> None:
        durable, now = self._watermark.durable, time.monotonic()
        silent = now - self._heard > self._sender_timeout_s / 3
        self._told = max(self._seen, durable)
        duplex.send_status(durable, self._told, reply=silent and not self._full)
        self._reported, self._reported_at, self._nudge_at = durable, now, math.inf


def tell_who_blocks(settings: ConnectionSettings, name: str) -> None:
    """Say in the log whose transactions a new slot waits for."""
    try:
        with open_sql(settings) as connection:
            said = slot.describe_waiting(slot.waiting_for(connection))
    except PenstockError as error:  # the slot is waited for all the same
        said = f"the server waits for running transactions; which, cannot be told: {error.message}"
    log.warning("creating slot %s: %s", name, said)


def _sender_timeout_s(client: Client) -> float:
    """After how long the server gives up a client that says nothing."""
    query = "SELECT setting::int FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'"
    ((timeout_ms,),) = slot.execute(client.connection, query)
    return timeout_ms / 1000 if timeout_ms else _USUAL_SENDER_TIMEOUT_S
