"""The demo from beginning to end: a server, a busy shop, its indexes live, and the proof that they are right.

Guarantees: when it returns or raises, nothing is left: no server, no process, no folder, no thread. The verdict rests
on every document, compared with SQL that was written by hand, and on no kind of change having been left out.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from penstock.demo.browser import show_page
from penstock.demo.deployment import Deployment
from penstock.demo.figures import Figures, Watch
from penstock.demo.probe import Probe
from penstock.demo.sample import INDEXES
from penstock.demo.server import Server, find_binaries
from penstock.demo.show import View, choose_view
from penstock.demo.verdict import compare
from penstock.demo.workload import Workload, by_deed
from penstock.model import Lsn
from penstock.postgres.connection import ConnectionSettings, open_sql, resolve, translating

_LOOK_S = 0.25
_BEAT_S = 0.5
# What was written before the end must be in the indexes within this; everything is on this machine.
_DRAIN_S = 120.0
# Spark starts within seconds, on a busy machine within a minute or two.
_START_S = 300.0
_HAS_SLOT = "SELECT count(*) FROM pg_catalog.pg_replication_slots WHERE confirmed_flush_lsn IS NOT NULL"
_WRITTEN = "SELECT pg_catalog.pg_current_wal_flush_lsn()::text"
# A change that changes nothing: with its commit everything before it is known to have arrived.
_BEAT = "UPDATE tags SET label = label WHERE id = 1"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The last figures, how many documents there have to be, and what is wrong (empty: nothing)."""

    figures: Figures
    documents: dict[str, int] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    is_early: bool = False
    """It was ended before anything was written: there is nothing to compare."""


@dataclass(slots=True)
class Request:
    """How long (None: until `stop`), how fast, who is told, and whether a browser may be opened."""

    seconds: float | None = None
    rate: float = 100.0
    seed: int = 0
    quiet: bool = False
    open_page: bool = False
    stop: threading.Event = field(default_factory=threading.Event)


def run(request: Request, console: Console) -> Outcome:
    """Run the demo."""
    with Server(find_binaries()) as server, Deployment(server.url()) as deployment:
        settings = resolve(server.url(), env={})  # the caller's PG* variables are not meant for it
        with choose_view(console, deployment.folder, request.quiet) as view:
            return _Performance(request, settings, deployment, view).perform()


class _Performance:
    """One run over one server."""

    def __init__(self, request: Request, settings: ConnectionSettings, deployment: Deployment, view: View) -> None:
        self._request = request
        self._settings = settings
        self._deployment = deployment
        self._view = view
        self._workload = Workload(settings, request.rate, request.seed)
        self._probe = Probe(settings, str(deployment.store))
        self._watch = Watch(deployment, self._workload, self._probe)

    def perform(self) -> Outcome:
        """Fill, write, wait, compare."""
        self._view.say("Filling the sample shop of an embedded Postgres.")
        self._workload.prepare()
        self._view.say("Starting penstock run on Spark.")
        self._deployment.start()
        with open_sql(self._settings) as connection, translating("watching the demo's server"):
            try:
                if not self._started(connection):
                    return Outcome(Figures(), is_early=True)
                self._view.say("A busy shop, and three indexes that follow it. Ctrl-C ends it, with a comparison.")
                self._workload.start()
                self._probe.start()
                self._follow(connection)
                self._close_shop()
                figures, faults = self._drained(connection)
            finally:
                self._close_shop()
                self._probe.join()
        return self._judge(figures, faults)

    def _started(self, connection: Any) -> bool:
        """Wait until the pipeline has its slot, so that what is written from now on is a change; False: ended."""
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and not self._request.stop.wait(_LOOK_S):
            self._raise_failures()
            if connection.execute(_HAS_SLOT).fetchall() != [(0,)]:
                return True
        return False

    def _follow(self, connection: Any) -> None:
        """Show how it goes until its time is over (from when the indexes are live), somebody ends it, or it fails."""
        limit = math.inf if self._request.seconds is None else self._request.seconds
        deadline, live = time.monotonic() + _START_S + limit, False
        while time.monotonic() < deadline:
            self._raise_failures()
            figures = self._watch.look(connection)
            self._view.show(figures)
            if not live and figures.is_live and figures.position:
                deadline, live = time.monotonic() + limit, True
                show_page(self._deployment.page_link, self._request.open_page)
            if self._request.stop.wait(_LOOK_S):
                return

    def _close_shop(self) -> None:
        """Nothing is written afterwards."""
        self._probe.stop()
        self._workload.stop()
        self._workload.join()

    def _raise_failures(self) -> None:
        self._deployment.require_running()
        if self._workload.failure:
            raise self._workload.failure

    def _drained(self, connection: Any) -> tuple[Figures, list[str]]:
        """Wait until everything written is in the indexes; the last figures, and whether that took too long."""
        self._view.say("The shop is closed. Waiting for the indexes.")
        ((written,),) = connection.execute(_WRITTEN).fetchall()
        deadline = time.monotonic() + _DRAIN_S
        while True:
            connection.execute(_BEAT)
            time.sleep(_BEAT_S)
            self._raise_failures()
            figures = self._watch.look(connection)
            self._view.show(figures)
            if figures.position >= Lsn.parse(written) and figures.is_live and self._deployment.is_seeded():
                return figures, []
            if time.monotonic() > deadline:
                return figures, [f"after {_DRAIN_S:.0f} s not every change is in the indexes"]

    def _judge(self, figures: Figures, faults: list[str]) -> Outcome:
        self._view.say("Comparing every document with SQL written by hand.")
        code = self._deployment.stop()
        if code:
            faults.append(f"penstock run ended with exit code {code}: {self._deployment.last_words()}")
        documents, different = compare(self._settings, str(self._deployment.store))
        faults += different
        faults += [f"no {deed} happened" for deed, count in by_deed(figures.deeds).items() if not count]
        for index in INDEXES:
            faults += [
                f"{index}: nothing was {what}" for what in ("written", "deleted") if not _count(figures, index, what)
            ]
        return Outcome(figures, documents, tuple(faults))


def _count(figures: Figures, index: str, what: str) -> int:
    return int(figures.indexes.get(index, {}).get(what, 0))
