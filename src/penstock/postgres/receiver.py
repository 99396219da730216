"""A thread that keeps a replication stream open and hands over committed transactions.

It never waits for its consumer until `buffer_bytes` of complete transactions are waiting; then it leaves the socket
unread and goes on reporting its status, so that the server does not take it for dead. A transaction that is still
being received does not count: it may grow to the disk, else it would wait for itself. When the connection is lost it
connects again with growing, jittered waits and resumes behind the last transaction it received whole.

Guarantees: transactions come in commit order, each once a run; an error that retrying cannot mend is raised to the
consumer after everything that was received before it. The position that is reported is the watermark's, nothing else.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from penstock import failpoints
from penstock.errors import BugError, PenstockError, RetryableError, SlotActiveError, UnavailableError
from penstock.model import Lsn, Origin, ReplicationConfig
from penstock.postgres import replication, resume, slot
from penstock.postgres.connection import ConnectionSettings, open_sql
from penstock.postgres.replication import Client, Duplex, ReplicationParams
from penstock.postgres.transactions import Assembler, Keepalive, Transaction
from penstock.postgres.watermark import Watermark

log = logging.getLogger(__name__)

# While something was confirmed that the server does not know yet, it is told this often.
_PROGRESS_S = 0.2
_LONGEST_STATUS_S = 10.0


class Receiver:
    """Connect, receive, assemble, report; one thread, one slot, one consumer.

    `prepare` runs at each connect, before the slot is made or read.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        config: ReplicationConfig,
        watermark: Watermark,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._config = config
        self._watermark = watermark
        self._prepare = prepare
        self._assembler = Assembler(config.spill_bytes, config.spill_dir)
        self._ready: deque[Transaction] = deque()
        self._ready_bytes = 0
        self._changed = threading.Condition()
        self._error: PenstockError | None = None
        self._stop = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        self._origin = config.origin
        self._connected = False
        self._received = config.start_lsn  # everything up to here was received whole, in this run or before it
        self._seen = Lsn.ZERO
        self._reported = Lsn.ZERO
        self._status_every_s = _LONGEST_STATUS_S
        self._status_due = 0.0
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
            self._ready_bytes -= size
            if was_full and not self._full:
                self._changed.notify_all()
            return taken

    def close(self) -> None:
        """Report what is confirmed, end the stream and the thread. Any thread, any number of times."""
        with self._changed:
            first = not self._stop.is_set()
            self._stop.set()
            self._changed.notify_all()
            if first:
                os.write(self._wake_write, b"x")
        if self._thread is not threading.current_thread():
            self._thread.join()
        if first:
            os.close(self._wake_read)
            os.close(self._wake_write)
            while self._ready:
                self._ready.popleft().release()

    @property
    def _full(self) -> bool:
        return self._ready_bytes >= self._config.buffer_bytes

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

    def _fail(self, error: PenstockError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _keep_receiving(self) -> None:
        attempt, held_since = 0, time.monotonic()
        while not self._stop.is_set():
            try:
                duplex = self._open()
                attempt, held_since = 0, time.monotonic()
                try:
                    self._receive(duplex)
                finally:
                    duplex.close()
            except SlotActiveError as error:
                # Its holder may be our own walsender, whose end the server notices only after wal_sender_timeout.
                if time.monotonic() - held_since > self._config.slot_wait_s:
                    raise
                log.info("waiting for slot %s, which is in use: %s", self._config.slot, error.message)
                self._stop.wait(replication.backoff_s(attempt, ceiling_s=2.0))
                attempt += 1
            except RetryableError as error:
                if not self._connected:
                    raise  # never been there: more likely a wrong address than passing trouble
                wait_s = replication.backoff_s(attempt)
                log.warning("the stream of slot %s broke off, again in %.1f s: %s", self._config.slot, wait_s, error)
                self._stop.wait(wait_s)
                attempt += 1
                held_since = time.monotonic()
            self._assembler.reset()

    def _open(self) -> Duplex:
        client = replication.connect(self._settings)
        try:
            held = max(self._received, self._watermark.durable)
            self._check_server(client, held)
            self._prepare()
            self._claim_slot(client, held)
            self._status_every_s = _status_interval_s(client)
            params = ReplicationParams(
                self._config.slot, self._config.publication, held, streaming=self._config.streaming
            )
            duplex = replication.start_replication(client, params)
        except BaseException:
            client.close()
            raise
        if self._connected:
            log.info("slot %s is streaming again from %s", self._config.slot, held)
        self._connected, self._reported, self._status_due = True, Lsn.ZERO, 0.0
        return duplex

    def _check_server(self, client: Client, held: Lsn) -> None:
        found = Origin(client.system.system_id, client.system.timeline)
        known = self._origin
        switch = None
        if known and known.timeline is not None and known.system_id == found.system_id:
            switch = replication.timeline_switch(client, known.timeline)
        resume.check_origin(known, found, switch, held)
        resume.check_wal(held, client.system.wal_end)
        self._origin = found

    def _claim_slot(self, client: Client, held: Lsn) -> None:
        config = self._config
        found = slot.inspect(client.connection, config.slot)
        first = not self._connected and not held
        resume.check_slot(config.slot, found, held, may_create=first)
        if found is None:
            try:
                slot.create(
                    client.connection, config.slot, temporary=config.temporary_slot, failover=config.failover,
                    stop=self._stop, on_wait=self._tell_who_blocks,
                )  # fmt: skip
            except PenstockError as error:
                if error.sqlstate != "42710":  # somebody else was first: theirs serves as well
                    raise
            found = slot.inspect(client.connection, config.slot)
            if found is None:
                raise slot.missing(config.slot)
        slot.verify(found, client.system.database)
        self._watermark.reach(found.confirmed_flush_lsn or Lsn.ZERO)

    def _tell_who_blocks(self) -> None:
        with open_sql(self._settings) as connection:
            log.warning("creating slot %s: %s", self._config.slot, slot.describe_waiting(slot.waiting_for(connection)))

    def _receive(self, duplex: Duplex) -> None:
        while not self._stop.is_set():
            if self._full:
                self._report_when_due(duplex)
                with self._changed:
                    self._changed.wait_for(lambda: not self._full or self._stop.is_set(), self._pause_s())
                continue
            frames = duplex.drain()
            if frames:
                self._hand_over(duplex, frames)
            elif duplex.ended:
                raise UnavailableError("the server ended the stream")
            self._report_when_due(duplex)
            duplex.wait(self._pause_s(), self._wake_read)
        self._report(duplex)

    def _hand_over(self, duplex: Duplex, frames: list[memoryview]) -> None:
        complete: list[Transaction] = []
        for event in self._assembler.feed(frames):
            if isinstance(event, Keepalive):
                self._seen = max(self._seen, event.wal_end)
                if self._assembler.between_transactions:
                    self._watermark.reach(event.wal_end)
                if event.reply:
                    self._report(duplex)
            elif event.end_lsn <= self._received:
                event.release()  # received before the connection was lost
            else:
                self._received = self._seen = event.end_lsn
                self._watermark.expect(event.end_lsn, event.rows)
                if event.rows:
                    complete.append(event)
                else:
                    event.release()
        if complete:
            with self._changed:
                self._ready.extend(complete)
                self._ready_bytes += sum(transaction.size for transaction in complete)
                self._changed.notify_all()

    def _pause_s(self) -> float:
        """How long nothing need be sent."""
        progress = self._watermark.durable > self._reported
        until_due = self._status_due - time.monotonic()
        return max(0.0, min(until_due, _PROGRESS_S) if progress or self._watermark.pending else until_due)

    def _report_when_due(self, duplex: Duplex) -> None:
        now = time.monotonic()
        progress = self._watermark.durable > self._reported
        if now >= self._status_due or (progress and now >= self._status_due - self._status_every_s + _PROGRESS_S):
            self._report(duplex)

    def _report(self, duplex: Duplex) -> None:
        durable = self._watermark.durable
        duplex.send_status(durable, max(self._seen, durable))
        self._reported = durable
        self._status_due = time.monotonic() + self._status_every_s


def _status_interval_s(client: Client) -> float:
    """A third of the time after which the server gives a silent client up, and at most 10 s."""
    query = "SELECT setting::int FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'"
    ((timeout_ms,),) = slot.execute(client.connection, query)
    return min(_LONGEST_STATUS_S, timeout_ms / 3000) if timeout_ms else _LONGEST_STATUS_S
