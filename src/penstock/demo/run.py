"""The demo from beginning to end: a server, a workload, its changes live, and the proof that none was lost.

Guarantees: when it returns or raises, nothing is left: no server, no folder, no thread. The verdict rests on three
comparisons: the tables with their mirror, the counts seen with the counts written, and no operation unseen.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rich.console import Console

from penstock import app
from penstock.demo import shop
from penstock.demo.mirror import Mirror
from penstock.demo.server import Server, find_binaries
from penstock.demo.show import View, choose_view
from penstock.demo.tally import Tally
from penstock.demo.workload import END_MARK, Workload
from penstock.model import Op, QualifiedTable, ReplicationConfig
from penstock.postgres import slot
from penstock.postgres.capture import ChangeBatch, Stream, WalChangeCapture
from penstock.postgres.connection import ConnectionSettings, open_sql, resolve

_LAG_EVERY_S = 1.0
# What was written before the end must arrive within this; the server is on this machine.
_DRAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was seen, and what is wrong with it (empty: nothing)."""

    tally: Tally
    rows: dict[QualifiedTable, int]
    faults: tuple[str, ...] = ()


@dataclass(slots=True)
class Request:
    """How long (None: until `stop`), how fast, and who is told."""

    seconds: float | None = None
    rate: float = 100.0
    seed: int = 0
    quiet: bool = False
    stop: threading.Event = field(default_factory=threading.Event)


def run(request: Request, console: Console) -> Outcome:
    """Run the demo."""
    with Server(find_binaries()) as server:
        settings = resolve(server.url(), env={})  # the caller's PG* variables are not meant for it
        config = ReplicationConfig(slot="penstock_demo", publication=shop.PUBLICATION)
        capture = app.build_capture(settings, config)
        with choose_view(console, request.quiet) as view:
            return _Performance(request, settings, capture, view).perform()


class _Performance:
    """One run over one server."""

    def __init__(self, request: Request, settings: ConnectionSettings, capture: WalChangeCapture, view: View) -> None:
        self._request = request
        self._settings = settings
        self._capture = capture
        self._view = view
        self._mirror = Mirror(shop.KEYS)
        self._tally = Tally(dict(shop.KEYS))
        self._workload = Workload(settings, request.rate, request.seed, self._on_workload_end)
        self._stream: Stream[ChangeBatch] | None = None
        self._patience = threading.Timer(_DRAIN_S, self._give_up)

    def perform(self) -> Outcome:
        """Write, read, compare."""
        self._workload.prepare()
        with open_sql(self._settings) as connection:  # after the publication, before the first change
            slot.create(connection, self._capture.config.slot)
        timer = threading.Timer(self._request.seconds or 0, self._workload.stop)
        with closing(self._capture.batches()) as self._stream:
            self._workload.start()
            if self._request.seconds is not None:
                timer.start()
            try:
                complete = self._read(self._stream)
            finally:
                self._workload.stop()
                timer.cancel()
                self._workload.join()
                self._patience.cancel()
        if self._workload.error:
            raise self._workload.error
        return self._judge(complete)

    def _on_workload_end(self) -> None:
        if self._workload.error:
            self._give_up()
        else:
            self._patience.start()

    def _give_up(self) -> None:
        if self._stream:
            self._stream.close()

    def _read(self, stream: Stream[ChangeBatch]) -> bool:
        """Take every change up to the end mark; False where the stream ended before it."""
        lag_due = 0.0
        for batch in stream:
            now = datetime.now(UTC)
            self._tally.add(batch, now)
            self._mirror.apply(batch)
            batch.confirm()
            if now.timestamp() >= lag_due:
                self._tally.lag_bytes, lag_due = self._capture.lag(), now.timestamp() + _LAG_EVERY_S
            self._view.show(self._tally, now)
            if self._request.stop.is_set():
                self._workload.stop()
            if _holds_end_mark(batch):
                return True
        return False

    def _judge(self, complete: bool) -> Outcome:
        seen, written = self._tally.counts, self._workload.counts
        faults = [] if complete else ["the last transaction did not arrive"]
        faults += [f"changes that do not fit the row before: {self._mirror.strays}"] if self._mirror.strays else []
        faults += [f"{table}: {what}" for table, what in self._mirror.differences(self._settings).items()]
        faults += _count_faults(seen, written)
        faults += [f"no {op} was seen" for op, count in self._tally.by_op().items() if not count]
        rows = {table: len(found) for table, found in self._mirror.tables.items()}
        return Outcome(self._tally, rows, tuple(faults))


def _count_faults(seen: Counter[tuple[QualifiedTable, Op]], written: Counter[tuple[QualifiedTable, Op]]) -> list[str]:
    both = seen.keys() | written.keys()
    return [
        f"{table}: {written[table, op]} {op}s were written, {seen[table, op]} were seen"
        for table, op in sorted(both)
        if seen[table, op] != written[table, op]
    ]


def _holds_end_mark(batch: ChangeBatch) -> bool:
    return any(
        part.table == shop.STAGING and part.rows.column("payload")[-1].as_py() == END_MARK for part in batch.tables
    )
