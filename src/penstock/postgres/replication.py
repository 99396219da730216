"""Logical replication, step by step: connect, slot, start, receive, report.

The low-level module under the capture, for those who want a stream of pgoutput events and nothing more. A `Client`
is an open replication connection and holds no connection string; a `Duplex` is one that is streaming. Guarantees:
reading never blocks longer than it was told to; the flush position that is sent never goes backwards; errors are
recognised by SQLSTATE. Deliberately not here: reconnecting, transactions, acknowledgement (`capture`).
"""

from __future__ import annotations

import random
import select
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeVar

import psycopg
from psycopg import pq

from penstock import failpoints
from penstock.errors import PenstockError, SlotActiveError, UnavailableError
from penstock.model import Lsn, literal, quote
from penstock.postgres import pgoutput, slot
from penstock.postgres.connection import ConnectionSettings, open_pgconn, resolve, translate
from penstock.postgres.transactions import XLOG_HEADER

POSTGRES_EPOCH_MICROS: Final = 946_684_800_000_000
"""2000-01-01 00:00 UTC in microseconds since 1970: where Postgres' clock starts."""

_INFINITIES = (-(1 << 63), (1 << 63) - 1)
_STATUS = struct.Struct(">cQQQqc")
_T = TypeVar("_T")

# One drain stops here, so that what it read is assembled and delivered before more is read.
_DRAIN_BYTES = 1 << 20
# Each row message is a send of its own on the server. Below this many bytes at once the socket counts as dry, and a
# short nap lets messages gather: bigger reads, fewer wake-ups on both sides, twice the rate on small rows.
_DRY_BYTES = 12 << 10
_NAP_S = 0.001


def postgres_clock_now() -> int:
    """Now, on Postgres' clock: microseconds since 2000-01-01 UTC."""
    return time.time_ns() // 1000 - POSTGRES_EPOCH_MICROS


def postgres_clock_to_unix_ms(micros: int) -> int | None:
    """Postgres' clock → milliseconds since 1970, rounded down; None for its two infinities."""
    return None if micros in _INFINITIES else (micros + POSTGRES_EPOCH_MICROS) // 1000


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """Which server this is: identifier and timeline, how far its WAL is flushed, the database of the connection."""

    system_id: str
    timeline: int
    wal_end: Lsn
    database: str


@dataclass(frozen=True, slots=True)
class ReplicationParams:
    """What START_REPLICATION asks for. `start_lsn` zero: from the slot's own position."""

    slot: str
    publication: str
    start_lsn: Lsn = Lsn.ZERO
    protocol: int = 2
    streaming: bool = False
    binary: bool = False
    messages: bool = False


@dataclass(frozen=True, slots=True)
class ReplicationEvent:
    """One message of the stream with where it stood in the WAL and the server's clock when it was sent."""

    wal_start: Lsn
    wal_end: Lsn
    clock: int
    message: pgoutput.Message


class Client:
    """An open replication connection."""

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self.connection: slot.Connection = psycopg.Connection(pgconn)
        self.connection.autocommit = True
        self.system = _identify(self.connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back. Any number of times."""
        self.connection.close()


def connect(connection_url: str | ConnectionSettings, *, timeout_s: float | None = None) -> Client:
    """Open a replication connection and prove that it serves (IDENTIFY_SYSTEM)."""
    settings = resolve(connection_url) if isinstance(connection_url, str) else connection_url
    pgconn = open_pgconn(settings, replication=True, timeout_s=timeout_s)
    try:
        return Client(pgconn)
    except BaseException:
        pgconn.finish()
        raise


def _identify(connection: slot.Connection) -> SystemIdentity:
    try:
        ((system_id, timeline, wal_end, database),) = slot.execute(connection, "IDENTIFY_SYSTEM")
    except psycopg.Error as error:
        raise translate(error, "identifying the server") from None
    return SystemIdentity(system_id, timeline, Lsn.parse(wal_end), database)


def timeline_switch(client: Client, timeline: int) -> Lsn | None:
    """Where the server's history left `timeline`; None where it has never been on it, or still is."""
    if timeline >= client.system.timeline:
        return None
    try:
        rows = slot.execute(client.connection, f"TIMELINE_HISTORY {client.system.timeline}")
    except psycopg.Error as error:
        raise translate(error, "reading the timeline history") from None
    content = rows[0][1]
    text = bytes(content).decode() if isinstance(content, bytes | memoryview) else str(content)
    entries = (line.split("\t") for line in text.splitlines() if line and not line.startswith("#"))
    return next((Lsn.parse(entry[1]) for entry in entries if entry[0].strip() == str(timeline)), None)


def ensure_slot(client: Client, name: str, *, temporary: bool = False, failover: bool = False) -> slot.SlotInfo:
    """Create the slot unless it is there; a temporary one lives as long as `client`. A lost race counts as success."""
    found = None if temporary else slot.inspect(client.connection, name)
    if found is None:
        try:
            slot.create(client.connection, name, temporary=temporary, failover=failover)
        except PenstockError as error:
            if error.sqlstate != "42710" or temporary:
                raise
        found = slot.inspect(client.connection, name)
    if found is None:
        raise slot.missing(name)
    slot.verify(found, client.system.database)
    return found


def advance_slot(client: Client, name: str, to: Lsn) -> Lsn:
    """Move a slot forward; where it stands then. See `slot.advance`."""
    return slot.advance(client.connection, name, to)


def drop_slot(client: Client, name: str) -> bool:
    """Drop a slot; absent is success (False), in use an error."""
    return slot.drop(client.connection, name)


class Duplex:
    """A streaming connection: frames come, status goes."""

    def __init__(self, client: Client, streaming: bool) -> None:
        self._client = client
        self._pgconn = client.connection.pgconn
        self._pgconn.nonblocking = 1
        self._tls = bool(self._pgconn.ssl_in_use)
        self._poll = select.poll()  # not select(): it fails in a process with more than 1,024 files open
        self._poll.register(self._pgconn.socket, select.POLLIN)
        self._dry = True
        self._full = False  # the last drain stopped at its limit: more may be at hand that the socket does not show
        self._flushed = Lsn.ZERO
        self.streaming = streaming
        self.ended = False
        self.received = Lsn.ZERO
        self.pending: deque[bytes] = deque()
        self.in_piece = False

    def drain(self, limit: int = _DRAIN_BYTES) -> list[memoryview]:
        """Every frame that has arrived, without waiting, up to about `limit` bytes. An error ends the stream."""
        if self.ended:
            self._raise_failure()
            return []
        frames: list[memoryview] = []
        append, get, size = frames.append, self._pgconn.get_copy_data, 0
        failpoints.passing("receive")
        try:
            while size < limit:
                count, frame = get(1)
                if count > 0:
                    append(frame)
                    size += count
                    continue
                if count == 0:
                    self._pgconn.consume_input()
                    count, frame = get(1)
                if count <= 0:
                    self.ended = count < 0
                    break
                append(frame)
                size += count
        except psycopg.Error:
            if not frames:  # what came before is handed on; the next drain meets the error again
                raise UnavailableError("the server ended the replication connection") from None
        self._dry = size < _DRY_BYTES
        self._full = size >= limit
        if self.ended and not frames:
            self._raise_failure()
        return frames

    def wait(self, timeout_s: float, wake: int | None = None) -> None:
        """Wait until there is something to read, `wake` becomes readable, or the time is over."""
        if self._full or self.ended:
            return
        if self._tls:  # every message is a TLS record: bytes say nothing, only an empty socket does
            self._dry = not self._poll.poll(0)
        if self._dry:
            time.sleep(min(_NAP_S, timeout_s))
        if wake is not None:
            self._poll.register(wake, select.POLLIN)
        self._poll.poll(max(timeout_s, 0) * 1000)

    def send(self, data: bytes) -> None:
        """Send a message to the server."""
        try:
            self._pgconn.put_copy_data(data)
            self._pgconn.flush()
        except psycopg.Error:
            raise UnavailableError("the server ended the replication connection") from None

    def send_status(self, flushed: Lsn, received: Lsn | None = None, reply: bool = False) -> None:
        """Report what is durable (never less than was reported before) and what was received."""
        failpoints.passing("feedback")
        self._flushed = max(self._flushed, flushed)
        received = max(received or self.received, self._flushed)
        clock = postgres_clock_now()
        self.send(_STATUS.pack(b"r", received, self._flushed, self._flushed, clock, b"\1" if reply else b"\0"))

    def close(self, timeout_s: float = 2.0) -> None:
        """End the stream in good order where the server answers in time, and the connection in any case."""
        try:
            if not self.ended:
                self._pgconn.put_copy_end()
                self._await_end(time.monotonic() + timeout_s)
        except (psycopg.Error, PenstockError):
            pass  # the connection is gone already
        finally:
            self._client.close()

    def _await_end(self, deadline: float) -> None:
        while not self.ended and time.monotonic() < deadline:
            self._pgconn.flush()
            if not self.drain():
                self._poll.poll(50)

    def _raise_failure(self) -> None:
        result = self._pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            raise translate(result, "streaming changes")


def start_replication(client: Client, params: ReplicationParams) -> Duplex:
    """Start streaming from the slot. The client then belongs to the `Duplex`."""
    streaming = params.streaming and params.protocol >= 2
    options = {
        "proto_version": str(params.protocol),
        "publication_names": quote(params.publication),
        **({"streaming": "on"} if streaming else {}),
        **({"binary": "true"} if params.binary else {}),
        **({"messages": "true"} if params.messages else {}),
    }
    words = ", ".join(f"{quote(name)} {literal(value)}" for name, value in options.items())
    command = f"START_REPLICATION SLOT {quote(params.slot)} LOGICAL {params.start_lsn} ({words})"
    result = client.connection.pgconn.exec_(command.encode())
    if result.status != pq.ExecStatus.COPY_BOTH:
        sqlstate = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        if sqlstate == "42704":
            raise slot.missing(params.slot)
        if sqlstate == "55000":
            raise slot.explain_55000(client.connection, f"streaming from slot {params.slot}", params.slot)
        raise translate(result, f"streaming from slot {params.slot}")
    return Duplex(client, streaming)


def recv(duplex: Duplex, timeout_s: float | None = None) -> ReplicationEvent | None:
    """The next event, transaction boundaries included; None when the stream was stopped or the time is over.

    Keepalives are answered and absorbed.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        while duplex.pending:
            event = _event(duplex, duplex.pending.popleft())
            if event:
                return event
        duplex.pending.extend(map(bytes, duplex.drain()))
        if duplex.pending:
            continue
        left_s = 1.0 if deadline is None else deadline - time.monotonic()
        if duplex.ended or left_s <= 0:
            return None
        duplex.wait(min(left_s, 1.0))


def _event(duplex: Duplex, frame: bytes) -> ReplicationEvent | None:
    if frame[:1] == b"k":
        duplex.received = max(duplex.received, Lsn(int.from_bytes(frame[1:9], "big")))
        if frame[17]:
            send_status_update(duplex, Lsn.ZERO)
        return None
    wal_start, wal_end, clock = struct.unpack_from(">QQq", frame, 1)
    message = pgoutput.decode(frame[XLOG_HEADER:], streamed=duplex.in_piece)
    if isinstance(message, pgoutput.StreamStart | pgoutput.StreamStop):
        duplex.in_piece = isinstance(message, pgoutput.StreamStart)
    duplex.received = max(duplex.received, Lsn(wal_start))
    return ReplicationEvent(Lsn(wal_start), Lsn(wal_end), clock, message)


def send_status_update(duplex: Duplex, flushed: Lsn, *, reply: bool = False) -> None:
    """Tell the server that everything up to `flushed` is durable here."""
    duplex.send_status(flushed, reply=reply)


def is_slot_active_error(error: BaseException) -> bool:
    """Whether the slot is held by another process: SQLSTATE 55006."""
    return getattr(error, "sqlstate", None) == "55006"


def retry_on_slot_active(max_retries: int, op: Callable[[], _T], *, stop: threading.Event | None = None) -> _T:
    """Call `op`, again while the slot is held by another process: growing, jittered waits; 0 fails at once.

    Other errors, and the last one, are raised as they are. `stop` cuts the waiting short.
    """
    for attempt in range(max_retries + 1):
        try:
            return op()
        except (SlotActiveError, psycopg.Error) as error:
            if not is_slot_active_error(error) or attempt == max_retries:
                raise
            if (stop or threading.Event()).wait(backoff_s(attempt, ceiling_s=5.0)):
                raise
    raise AssertionError("unreachable")


def backoff_s(attempt: int, *, floor_s: float = 0.05, ceiling_s: float = 30.0) -> float:
    """How long to wait before the next attempt: doubling from `floor_s` to `ceiling_s`, with jitter of a half."""
    return min(ceiling_s, floor_s * 2.0 ** min(attempt, 32)) * random.uniform(0.5, 1.0)
