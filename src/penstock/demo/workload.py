"""A thread that keeps the sample shop busy.

Guarantees: it runs at least the opening, so that every kind of change happens however short the run; `counts` is what
was committed, by the server's own row counts; after `join` nothing is written any more, and `failure` is what ended it
early. Deliberately not: a benchmark.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

from penstock.demo.sample import read
from penstock.demo.trade import Deed, Shop, Transaction
from penstock.errors import BugError, PenstockError
from penstock.postgres.connection import ConnectionSettings, open_sql, translating

Counts = Counter[tuple[str, Deed]]


class Workload:
    """Writes about `rate` transactions a second, from `start` to `stop`."""

    def __init__(self, settings: ConnectionSettings, rate: float, seed: int) -> None:
        self.counts: Counts = Counter()
        self.failure: PenstockError | None = None
        self._settings = settings
        self._pause_s = 1 / rate
        self._shop = Shop(random.Random(seed))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-demo-workload", daemon=True)

    def prepare(self) -> None:
        """Make the tables and their first rows."""
        with open_sql(self._settings) as connection, translating("making the demo's tables"):
            connection.execute(read("tables.sql").encode())
            with connection.transaction(), connection.cursor() as cursor:
                for query, rows in self._shop.stocked():
                    cursor.executemany(query.encode(), rows)
            connection.execute("ANALYZE")

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
                    if self._stop.wait(self._pause_s) and number >= Shop.OPENING:
                        break
        except PenstockError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001 - raised again where the demo ends, not lost with the thread
            self.failure = BugError(f"the workload failed with {type(error).__name__}")
            self.failure.__cause__ = error

    def _execute(self, connection: Any, transaction: Transaction) -> None:
        counts: Counts = Counter()
        with connection.transaction(force_rollback=transaction.rolled_back):
            for statement in transaction.statements:
                rows = connection.execute(statement.sql, statement.parameters or None).rowcount
                counts[statement.table, statement.deed] += 1 if statement.deed is Deed.TRUNCATE else rows
        if not transaction.rolled_back:
            self.counts = self.counts + counts  # a new one: whoever looks at the other sees no half of it


def by_deed(counts: Counts) -> dict[Deed, int]:
    """Totals, none left out."""
    return {deed: sum(count for (_, one), count in counts.items() if one is deed) for deed in Deed}
