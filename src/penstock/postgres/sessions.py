"""Sessions that only read, shared by the threads of a process: a bounded number of them, and rows as raw text.

Guarantees: a session hides no row (under row-level security the server raises instead), resolves no name by anybody's
search_path, and writes values as text in one way; statements run one by one, each in a snapshot of its own; rows come
in portions, so that a result is never held whole; no more sessions are open than allowed, and none in the middle of a
statement is used again; a statement that somebody cancelled is passing trouble. Deliberately not: retrying, and turning
text into values.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

import psycopg
from psycopg import pq

from penstock.errors import PenstockError, RetryableError, UnavailableError
from penstock.postgres.connection import ConnectionSettings, open_pgconn
from penstock.postgres.sqlstate import translate, translating

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

CANCELLED = "57014"
"""The SQLSTATE of a statement that a time limit or somebody ended."""
Cells = tuple[bytes | None, ...]
"""A row: each value as Postgres prints it, in UTF-8."""

_SETTINGS: Mapping[str, str] = {
    "row_security": "off",
    "search_path": "pg_catalog",
    "default_transaction_read_only": "on",
    "lock_timeout": "60s",  # an ALTER TABLE that waits, or is long, is told as such and tried again
    # A bound of our own, far above what a chunk takes. A shorter one of the role's, meant for people or for other
    # programs, would end a large build each time that it is tried.
    "statement_timeout": "1h",
    # Compiling a statement takes longer than it saves on JSON that is put together from short texts.
    "jit": "off",
}
_IN_USE = "A slow sink holds them for as long as it takes documents. If it is none of that, raise max_connections."
# Portions of rows that libpq hands over at a time: large enough that the calls do not count.
_PORTION_ROWS = 256
_ROWS = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.SINGLE_TUPLE, pq.ExecStatus.TUPLES_CHUNK)


class Plan(StrEnum):
    """How the server plans a statement: once for any values, or each time for those at hand."""

    ONCE = "force_generic_plan"
    EACH_TIME = "auto"


class Session:
    """One connection that only reads. One thread at a time."""

    def __init__(self, pgconn: PGconn) -> None:
        self._pgconn = pgconn
        self._plan = Plan.EACH_TIME
        self._prepared: dict[str, bytes] = {}

    @property
    def usable(self) -> bool:
        """Whether a statement can be sent: the server is still there, and nothing of an earlier statement is left."""
        pgconn = self._pgconn
        if pgconn.status != pq.ConnStatus.OK or pgconn.transaction_status != pq.TransactionStatus.IDLE:
            return False
        # Nothing is due between statements: a server that has something to say says farewell.
        return not select.select([pgconn.socket], [], [], 0)[0]

    def close(self) -> None:
        """Give the connection back."""
        self._pgconn.finish()

    def hang_up(self) -> None:
        """Have whoever waits for an answer meet a lost connection. From any thread."""
        with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._pgconn.socket)) as line:
            line.shutdown(socket.SHUT_RDWR)

    def rows(
        self, sql: str, values: Sequence[str | None] = (), *, plan: Plan = Plan.EACH_TIME
    ) -> Iterator[list[Cells]]:
        """The rows of a statement whose parameters are `$1` …, as text, in portions."""
        parameters = [None if value is None else value.encode() for value in values]
        with translating("reading"):
            self._switch(plan)
            if plan is Plan.ONCE:
                self._pgconn.send_query_prepared(self._name(sql), parameters)
            else:
                self._pgconn.send_query_params(sql.encode(), parameters)
            _ask_for_portions(self._pgconn)
            while (result := self._next()) is not None:
                if result.status not in _ROWS:
                    self._drain()
                    raise _failure(result)
                if result.ntuples:
                    yield _cells(result)

    def _switch(self, plan: Plan) -> None:
        if plan is not self._plan:
            self._pgconn.send_query(f"SET plan_cache_mode = {plan}".encode())
            self._finish()
            self._plan = plan

    def _name(self, sql: str) -> bytes:
        """The name under which the server knows the statement; it is told now where it does not."""
        if sql not in self._prepared:
            name = f"p{len(self._prepared)}".encode()
            self._pgconn.send_prepare(name, sql.encode())
            self._finish()
            self._prepared[sql] = name
        return self._prepared[sql]

    def _finish(self) -> None:
        while (result := self._next()) is not None:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                self._drain()
                raise _failure(result)

    def _drain(self) -> None:
        while self._next() is not None:
            pass

    def _next(self) -> PGresult | None:
        """The next result; waits without holding up other threads."""
        pgconn = self._pgconn
        while pgconn.flush():
            select.select([pgconn.socket], [pgconn.socket], [])
            pgconn.consume_input()
        while pgconn.is_busy():
            poll = select.poll()
            poll.register(pgconn.socket, select.POLLIN)
            poll.poll()
            pgconn.consume_input()
        return pgconn.get_result()


def _failure(result: PGresult) -> PenstockError:
    """What a result says; reading what somebody cancelled can be done again."""
    error = translate(result, "reading")
    if error.sqlstate != CANCELLED:
        return error
    return RetryableError(
        f"reading failed: a statement timeout or an administrator cancelled it (SQLSTATE {CANCELLED})",
        hint="It is tried again. If that does not help, look for what slows the server down.",
        sqlstate=CANCELLED,
    )


def _ask_for_portions(pgconn: PGconn) -> None:
    if pq.version() >= 170000:
        pgconn.set_chunked_rows_mode(_PORTION_ROWS)
    else:
        pgconn.set_single_row_mode()


def _cells(result: PGresult) -> list[Cells]:
    value, columns = result.get_value, range(result.nfields)
    return [tuple([value(row, column) for column in columns]) for row in range(result.ntuples)]


class Sessions:
    """Sessions to one database, opened as they are needed, at most `limit` of them."""

    def __init__(self, settings: ConnectionSettings, limit: int, *, wait_s: float = 60.0) -> None:
        self._settings = settings
        self._limit = limit
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._idle: list[Session] = []
        self._lent: set[Session] = set()
        self._open = 0
        self._closed = False

    @contextmanager
    def borrow(self) -> Iterator[Session]:
        """A session for this thread, given back at the end of the block; one that is not fit for use is closed."""
        session = self._take()
        with self._changed:
            self._lent.add(session)
            if self._closed:
                session.hang_up()
        try:
            yield session
        finally:
            self._give_back(session)

    def close(self) -> None:
        """Close those that are idle; the others follow when they are given back. No more are lent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.rest()

    def abandon(self) -> None:
        """Close them all, also those in the middle of a statement: whoever uses one gets a RetryableError."""
        self.close()
        with self._changed:
            for session in self._lent:
                session.hang_up()

    def rest(self) -> None:
        """Close those that are idle."""
        with self._changed:
            for session in self._idle:
                session.close()
            self._open -= len(self._idle)
            self._idle.clear()
            self._changed.notify_all()

    def _take(self) -> Session:
        deadline = time.monotonic() + self._wait_s
        with self._changed:
            while True:
                if self._closed:
                    raise UnavailableError("the connections to the database are closed")
                while self._idle:
                    session = self._idle.pop()
                    if session.usable:
                        return session
                    session.close()
                    self._open -= 1
                if self._open < self._limit:
                    self._open += 1
                    break
                if not self._changed.wait(deadline - time.monotonic()):
                    raise RetryableError(f"all {self._limit} connections are in use", hint=_IN_USE)
        try:
            return Session(open_pgconn(self._settings, options=_SETTINGS))
        except BaseException:
            with self._changed:
                self._open -= 1
                self._changed.notify()
            raise

    def _give_back(self, session: Session) -> None:
        with self._changed:
            self._lent.discard(session)
            if not self._closed and session.usable:
                self._idle.append(session)
            else:
                session.close()
                self._open -= 1
            self._changed.notify()
