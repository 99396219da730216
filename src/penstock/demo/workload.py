"""A thread that keeps the sample shop busy.

Guarantees: it runs at least the opening, so that every kind of change happens however short the run; `counts` is
what was committed, by the server's own row counts; its last transaction is a marker, so that a reader knows when it
has seen everything. When it ends, for whatever reason, it says so by `on_end`. Deliberately not: a benchmark.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from penstock.demo.shop import SCHEMA, Shop, Transaction
from penstock.errors import BugError, PenstockError
from penstock.model import Op, QualifiedTable
from penstock.postgres.connection import ConnectionSettings, open_sql, translating

END_MARK = "the end"


class Workload:
    """Writes about `rate` transactions a second, from `start` to `stop`."""

    def __init__(self, settings: ConnectionSettings, rate: float, seed: int, on_end: Callable[[], None]) -> None:
        self.counts: Counter[tuple[QualifiedTable, Op]] = Counter()
        self.error: PenstockError | None = None
        self._settings = settings
        self._pause_s = 1 / rate
        self._shop = Shop(random.Random(seed))
        self._on_end = on_end
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-demo-workload", daemon=True)

    def prepare(self) -> None:
        """Make the tables and the publication."""
        with open_sql(self._settings) as connection, translating("making the demo's tables"):
            connection.execute(SCHEMA)

    def start(self) -> None:
        """Start writing."""
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end after the transaction it is in. Any number of times; `join` waits for it."""
        self._stop.set()

    def join(self) -> None:
        """Wait until it has ended; nothing is written afterwards."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            with open_sql(self._settings) as connection, translating("writing to the demo's tables"):
                for number in range(1, 1 << 62):
                    self._execute(connection, self._shop.plan())
                    if number >= Shop.OPENING and self._stop.wait(self._pause_s):
                        break
                self._execute(connection, self._shop.mark_end(END_MARK))
        except PenstockError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - raised again where the demo ends, not lost with the thread
            self.error = BugError(f"the workload failed with {type(error).__name__}")
            self.error.__cause__ = error
        finally:
            self._on_end()

    def _execute(self, connection: Any, transaction: Transaction) -> None:
        counts: Counter[tuple[QualifiedTable, Op]] = Counter()
        with connection.transaction(force_rollback=transaction.rolled_back):
            for statement in transaction.statements:
                rows = connection.execute(statement.sql, statement.parameters or None).rowcount
                counts[statement.table, statement.op] += 1 if statement.op is Op.TRUNCATE else rows
        if not transaction.rolled_back:
            self.counts += counts
