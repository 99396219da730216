"""The transactions that were open when the slot was made: their end is waited for once, before anything is settled.

What was committed just before the slot's start does not come by the stream, and others may see it only later (when a
synchronous standby has answered, say). Guarantees: one list for all who wait, taken once, so that transactions that
begin later make nobody wait longer; that it is still to be done is remembered from before the slot is made until it
was, also by the next process. Deliberately not: telling which of them are worth waiting for, for nobody can.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import TYPE_CHECKING

from penstock.errors import RetryableError, UnavailableError
from penstock.postgres import slot
from penstock.postgres.connection import open_sql

if TYPE_CHECKING:
    from penstock.contracts import DocumentBuilder
    from penstock.engine.state import State
    from penstock.postgres.connection import ConnectionSettings


class Beginning:
    """The beginning of one slot. Any thread may call any method."""

    def __init__(self, settings: ConnectionSettings, name: str, state: State, builder: DocumentBuilder) -> None:
        self._settings, self._slot, self._state, self._builder = settings, name, state, builder
        self._lock = threading.Lock()
        self._open: Collection[int] | None = None

    def settle(self) -> None:
        """Return when all of them have ended; the slot is there. A RetryableError where that takes too long."""
        with self._lock:
            if not self._state.is_unsettled(self._slot):
                return
            if self._open is None:
                with open_sql(self._settings) as connection:
                    self._open = slot.running(connection)
            try:
                self._builder.settle(self._open)
            except UnavailableError:
                raise
            except RetryableError as error:
                raise RetryableError(
                    f"transactions that were open when slot {self._slot} was made have not ended",
                    hint="Nothing is seeded before: penstock doctor tells which are old. A commit may also wait for a "
                    "synchronous standby: see wait_event = 'SyncRep' in pg_stat_activity.",
                ) from error
            self._state.note_settled(self._slot)
