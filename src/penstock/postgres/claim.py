"""The right to work with a slot: at most one process of a deployment has it, wherever its state is.

The server's own bookmark keeps two readers apart, but only from the moment a stream is open, and a run does much before
that which another one would not survive: it opens generations, and those of others miss changes from then on. So a run
holds an advisory lock of the slot's name, on a connection of its own, from before it touches anything until it ends.

Guarantees: the lock goes with the process, however it ends; with its machine within a minute. A claim is given only
while nobody streams from the slot. One that was lost with its connection is taken again (`renew`), or it is told that
somebody else has it. A process that was paused for long still has a connection that looks well: so the server is asked
again and again, and nobody who asks first (`require`) works on the word of a while ago. Deliberately not: waiting for
another process to end, which is the caller's.
"""

from __future__ import annotations

import hashlib
import math
import select
import threading
import time

import psycopg
from psycopg import pq

from penstock.errors import OperatorError, RetryableError
from penstock.postgres import slot
from penstock.postgres.connection import ConnectionSettings, open_sql, translating

# A machine that vanished is noticed by the server after half a minute of silence and three unanswered probes; a server
# that ends idle sessions leaves this one.
_SESSION = (
    "SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3;"
    " SET idle_session_timeout = 0"
)
_HOLDER = """SELECT l.pid FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_database AS d ON d.oid = l.database
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND d.datname = pg_catalog.current_database()
  AND (l.classid::bigint << 32 | l.objid::bigint) = %s"""
_WHO = """SELECT pg_catalog.concat_ws(', ', 'process ' || %s::int, nullif(application_name, ''), 'user ' || usename,
       coalesce('at ' || pg_catalog.host(client_addr), 'on the server itself'))
FROM pg_catalog.pg_stat_activity WHERE pid = %s::int"""
# Between two tries to take it again, and for each of them: whoever keeps it has more to do.
_AGAIN_S, _CONNECT_S = 1.0, 10.0
# How often the server is asked, how old its last answer may be for `require`, and from when on none is awaited: by then
# the server has given the lock away.
_ASK_S, _SURE_S, _LOST_S = 3.0, 10.0, 60.0
# Goes on while the machine sleeps, where there is such a clock.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_NOBODY = -1  # it ended between two questions


class Claim:
    """The right to one slot. Any thread may call any method; `close` it."""

    def __init__(self, settings: ConnectionSettings, name: str) -> None:
        self._settings, self._name = settings, name
        self._key = int.from_bytes(hashlib.sha256(f"penstock {name}".encode()).digest()[:8], signed=True)
        self._lock = threading.RLock()
        self._connection: slot.Connection | None = None
        self._pid = 0
        self._again_at = 0.0
        self._asked_at: float | None = None
        self._seen_at = -math.inf  # when it was ours, as the server said

    def take(self) -> str:
        """Try to get it; who has it instead, or nothing: it is ours."""
        with self._lock:
            self.close()
            return self._try(alone=True)[1]

    def renew(self) -> None:
        """See that it is still ours, and take it again where the connection was lost; an error where another has it.

        A server that cannot be reached is a RetryableError. Cheap, so that it can be called several times a second.
        """
        if self._lock.acquire(blocking=False):  # else another thread is at it
            try:
                self._renew()
            finally:
                self._lock.release()

    def require(self) -> None:
        """Return where it is certain that it is ours: the server said so seconds ago, or says so now.

        A RetryableError where that cannot be had, an error for somebody to mend where another has it.
        """
        with self._lock:
            self._renew()
            wanted, deadline = _now() - _SURE_S, time.monotonic() + _CONNECT_S
            while self._connection is None or self._seen_at < wanted:
                left_s = deadline - time.monotonic()
                if self._connection is None or left_s <= 0:
                    raise RetryableError(f"the server does not say that slot {self._name} is still ours")
                self._ask()
                self._listen(left_s)

    def _renew(self) -> None:
        if self._connection is not None:
            self._listen()
            if _now() - max(self._seen_at, self._asked_at or self._seen_at) > _ASK_S:
                self._ask()
        if self._connection is not None:
            return
        if time.monotonic() < self._again_at:
            return
        self._again_at = time.monotonic() + _AGAIN_S
        before = self._pid
        pid, who = self._try(alone=False)
        if pid in (_NOBODY, before):
            raise RetryableError(f"slot {self._name}: the server has not noticed yet that a connection is gone")
        if pid:
            raise OperatorError(
                f"another penstock has taken over slot {self._name} while the server could not be reached: {who}",
                hint="One of them is enough. Started again, this one waits until that one ends.",
            )

    def _try(self, *, alone: bool) -> tuple[int, str]:
        """Try on a new connection, which is kept where it got it; else which process has it, and words for that.

        With `alone`, who streams from the slot has it, too.
        """
        began = _now()
        connection: slot.Connection | None = open_sql(self._settings, timeout_s=_CONNECT_S)
        assert connection is not None
        try:
            with translating(f"claiming slot {self._name}"):
                slot.execute(connection, _SESSION)
                # Streams are looked at first, too: whoever streams, and has lost its claim, finds it free then.
                pid = (alone and self._streaming(connection)) or self._locking(connection)
                pid = pid or (alone and self._streaming(connection)) or 0
                if pid:
                    return pid, _said(connection, pid)
            self._connection, self._pid, connection = connection, connection.info.backend_pid, None
            self._seen_at, self._asked_at = began, None
            return 0, ""
        finally:
            if connection is not None:
                connection.close()

    def _locking(self, connection: slot.Connection) -> int:
        """Which process has the lock; 0: this connection has it now."""
        ((got,),) = slot.execute(connection, "SELECT pg_catalog.pg_try_advisory_lock(%s)", self._key)
        if got:
            return 0
        found = slot.execute(connection, _HOLDER, self._key)
        return int(found[0][0]) if found else _NOBODY

    def _streaming(self, connection: slot.Connection) -> int:
        found = slot.inspect(connection, self._name)
        return (found.active_pid or 0) if found else 0

    def _ask(self) -> None:
        """Ask whether the server is still there, without waiting; with the connection the lock would have gone."""
        if self._connection is None:
            return
        if self._asked_at is None:
            asked_at = _now()
            try:
                self._connection.pgconn.send_query(b"SELECT 1")
            except psycopg.Error:
                self.close()
                return
            self._asked_at = asked_at
        elif _now() - self._asked_at > _LOST_S:
            self.close()

    def _listen(self, patience_s: float = 0.0) -> None:
        """Take what the server has sent: an answer, a setting that was changed, or a farewell and then the end."""
        if self._connection is None:
            return
        pgconn = self._connection.pgconn
        try:
            poll = select.poll()
            poll.register(pgconn.socket, select.POLLIN)
            while pgconn.status == pq.ConnStatus.OK and poll.poll(patience_s * 1000):
                pgconn.consume_input()
                patience_s = 0.0
            while self._asked_at is not None and not pgconn.is_busy():
                if pgconn.get_result() is None:
                    self._seen_at, self._asked_at = self._asked_at, None
        except (psycopg.Error, OSError):
            self.close()
            return
        if pgconn.status != pq.ConnStatus.OK:
            self.close()

    def close(self) -> None:
        """Give it back. Any number of times."""
        with self._lock:
            self._asked_at = None
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def _said(connection: slot.Connection, pid: int) -> str:
    found = slot.execute(connection, _WHO, pid, pid)
    return str(found[0][0]) if found else "a process that is about to end"


def _now() -> float:
    return time.clock_gettime(_CLOCK)
