"""What is known of a running deployment from outside the batches: the server, the slot, how far behind, since when.

A thread takes a sample now and then, more often while somebody looks. Guarantees: one question to the server for each
sample, over a connection that is given back; memory for a quarter of an hour at least; a server that does not answer is
told as that. How far behind is judged by the WAL that may hold changes: what the stream has read and found nothing in
does not count. Deliberately not: how to ask the server (`app` says), or showing anything.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.engine.report import Report
from penstock.errors import PenstockError
from penstock.model import Lsn

log = logging.getLogger(__name__)

# Between two samples: while somebody looks, and else.
_WATCHED_S, _ALONE_S = 1.0, 5.0
_WATCHED_FOR_S = 15.0
_KEPT = 900
# A stream that had nothing to do for so long has worked off all that it has received.
_IDLE_S = 1.0
# Rates are means over this.
_RATE_S = 5.0


@dataclass(frozen=True, slots=True)
class Slot:
    """The slot, and how far its server has written."""

    written: Lsn
    confirmed: Lsn
    active: bool
    lost: bool
    wal_status: str
    retained_bytes: int
    lag_bytes: int
    safe_bytes: int | None


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. What the server says is None where it did not answer."""

    at: float
    changes: int
    documents: int
    applied: Lsn
    received: Lsn | None
    slot: Slot | None
    lag_bytes: int | None = None
    lag_s: float | None = None
    rates: Mapping[str, float | None] = field(default_factory=dict)


def position(applied: Lsn, received: Lsn | None, idle_s: float) -> Lsn:
    """Up to where nothing waits: with nothing to do for a while, everything that was received is done."""
    return max(applied, received) if received and idle_s >= _IDLE_S else applied


def behind_s(written: Iterable[tuple[float, Lsn]], done: Lsn, now: float) -> float:
    """Since when there is WAL behind `done`, by when (oldest first) the server was seen to have written how far."""
    return next((now - at for at, lsn in written if lsn > done), 0.0)


class Sampler:
    """Takes samples from `start` to `close`. `ask` asks the server, `received` the stream; both may raise."""

    def __init__(
        self, report: Report, ask: Callable[[], Slot], received: Callable[[], Lsn | None], count: Callable[[], int]
    ) -> None:
        self._report = report
        self._ask, self._received, self._count = ask, received, count
        self._samples: deque[Sample] = deque(maxlen=_KEPT)
        self._lock = threading.Lock()
        self._looked = 0.0
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="penstock-sampler", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End. Any number of times."""
        self._closing = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._closing:
            self.take()
            watched = time.monotonic() < self._looked + _WATCHED_FOR_S
            self._wake.wait(_WATCHED_S if watched else _ALONE_S)
            self._wake.clear()

    def take(self) -> None:
        """One sample, now."""
        slot, received = self._asked()
        told, idle_s = self._report, self._report.idle_s
        documents = told.filled + sum(one.written + one.deleted for one in told.indexes.values())
        now = time.time()
        lag_bytes = lag_s = None
        if slot is not None and told.end:
            done = position(told.end, received, idle_s)
            lag_bytes = max(0, slot.written - done)
            with self._lock:
                seen = [(one.at, one.slot.written) for one in self._samples if one.slot]
            lag_s = round(behind_s([*seen, (now, slot.written)], done, now), 3)
        sample = Sample(now, told.changes, documents, told.end, received, slot, lag_bytes, lag_s)
        with self._lock:
            lately = [one for one in self._samples if now - one.at <= _RATE_S]
            self._samples.append(replace(sample, rates=rates([*lately, sample])))

    def _asked(self) -> tuple[Slot | None, Lsn | None]:
        try:
            return self._ask(), self._received()
        except PenstockError as error:
            log.debug("the server does not say how far it is: %s", error)
            return None, None

    def told(self, *, looking: bool = True) -> dict[str, Any]:
        """The run's own report with the last sample, and rates. While somebody looks, samples are taken more often."""
        if looking and time.monotonic() > self._looked + _WATCHED_FOR_S:
            self._wake.set()
        self._looked = time.monotonic() if looking else self._looked
        with self._lock:
            last = self._samples[-1] if self._samples else None
        told = {**self._report.told(), "started": round(self._report.started, 3), "now": round(time.time(), 3)}
        told["quarantined"] = self._count()
        told["memory_blocks"] = sys.getallocatedblocks()
        told["source"] = _source(last, self._report.end) if last else None
        told["rates"] = dict(last.rates) if last else rates([])
        reasons = unready(told)
        return {**told, "ready": not reasons, "unready": reasons}

    def history(self, after: float = 0.0) -> list[dict[str, Any]]:
        """The samples later than this unix time, the oldest first, with the rate of each."""
        with self._lock:
            samples = list(self._samples)
        return [
            {"at": round(one.at, 3), "lag_bytes": one.lag_bytes, "lag_s": one.lag_s, **one.rates}
            for one in samples
            if one.at > after
        ]


def rates(samples: list[Sample]) -> dict[str, float | None]:
    """Changes, documents and bytes of WAL a second, from the first to the last sample.

    None where that is no time; and of what went back, as the WAL's end may when another server takes over.
    """
    names = ("changes_per_s", "documents_per_s", "wal_bytes_per_s")
    if not samples or samples[-1].at <= samples[0].at:
        return dict.fromkeys(names)
    first, last = samples[0], samples[-1]
    seconds = last.at - first.at
    wal = last.slot.written - first.slot.written if last.slot and first.slot else None
    found = (last.changes - first.changes, last.documents - first.documents, wal)
    return {
        name: None if one is None or one < 0 else round(one / seconds, 1)
        for name, one in zip(names, found, strict=True)
    }


def _source(sample: Sample, applied: Lsn) -> dict[str, Any]:
    """What a sample says; the server has written at least what was applied since."""
    slot = sample.slot
    found: dict[str, Any] = {"reachable": slot is not None, "sampled": round(sample.at, 3)}
    found |= {"received": str(sample.received) if sample.received else None}
    found |= {"lag_bytes": sample.lag_bytes, "lag_s": sample.lag_s}
    if slot:
        found |= {
            "written": str(max(slot.written, applied)),
            "confirmed": str(slot.confirmed),
            "wal_status": slot.wal_status,
        }
        names = ("active", "lost", "retained_bytes", "lag_bytes", "safe_bytes")
        found |= {f"slot_{name}": getattr(slot, name) for name in names}
    return found


def _is_current(one: Mapping[str, Any]) -> bool:
    """While an index is built anew, readers see its generation before, which is kept current, too."""
    return one["phase"] == "live" or (one["phase"] == "seeding" and bool(one.get("rebuild")))


def unready(told: Mapping[str, Any]) -> list[str]:
    """Why a search may not find what the tables hold; empty where it does."""
    reasons = [f"index {name} is {one['phase']}" for name, one in told["indexes"].items() if not _is_current(one)]
    reasons += [f"sink {name} is left behind" for name in told.get("away", ())]
    if told["trouble"]:
        reasons.append("the stream failed and is tried again")
    return reasons
