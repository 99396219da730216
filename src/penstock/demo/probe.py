"""How long a change takes from its commit until a reader of the index sees it, measured from outside.

A few times a second one row is updated, and its document is looked at until it has the new value. Guarantees: the
clock starts when the commit has returned and stops when the document was read; nothing is measured while the index
cannot be read. It writes to one row that the workload leaves alone.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections import deque
from typing import Any

from penstock.demo.trade import OWNER
from penstock.errors import PenstockError
from penstock.postgres.connection import ConnectionSettings, open_sql
from penstock.sinks.local_search import LocalReader

_EVERY_S = 0.25
_LOOK_S = 0.001
_GIVE_UP_S = 30.0
_SAMPLES = 120  # of the last half minute: the first ones pay for a pipeline that is still warming up
_VISIT = f"UPDATE users SET visits = visits + 1 WHERE id = {OWNER} RETURNING visits"


class Probe:
    """A thread, from `start` to `stop`."""

    def __init__(self, settings: ConnectionSettings, path: str) -> None:
        self._settings = settings
        self._path = path
        self._latencies_ms: deque[float] = deque(maxlen=_SAMPLES)
        self._stop = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="penstock-demo-probe", daemon=True)

    def start(self) -> None:
        """Start measuring."""
        self._thread.start()

    def stop(self) -> None:
        """Nothing is written afterwards; a measurement under way goes on. Any number of times."""
        with self._writing:
            self._stop.set()

    def join(self) -> None:
        """Wait for the measurement under way, if there is one."""
        if self._thread.ident is not None:
            self._thread.join()

    def latency_ms_p50(self) -> float | None:
        """The median of the last measurements."""
        found = list(self._latencies_ms)
        return statistics.median(found) if found else None

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            try:
                with LocalReader(self._path) as reader, open_sql(self._settings) as connection:
                    reader.count("users")  # refused while the index is seeded for the first time
                    self._measure(reader, connection)
            except PenstockError:  # the index is not there yet, or the server is gone: whoever runs the demo tells
                continue

    def _measure(self, reader: LocalReader, connection: Any) -> None:
        while not self._stop.wait(_EVERY_S):
            with self._writing:
                if self._stop.is_set():
                    return
                ((visits,),) = connection.execute(_VISIT).fetchall()
            committed = time.perf_counter()
            while time.perf_counter() < committed + _GIVE_UP_S:
                body = reader.document("users", str(OWNER))
                if body and json.loads(body)["visits"] >= visits:
                    self._latencies_ms.append((time.perf_counter() - committed) * 1000)
                    break
                time.sleep(_LOOK_S)
