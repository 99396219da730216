"""Sending writes to one generation: cut into requests, repeated where that helps, sorted out where it does not.

Guarantees: requests of one call go one after the other, so its order is kept; of an id that comes twice, the last
counts; only the items that were turned away are sent again, and not for ever; a request that is too large is halved,
down to a single document, which is then rejected. Any thread may write. Deliberately not: sending a call's requests
side by side; who wants two in flight calls from two threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.contracts import Documents, Rejection, Writes
from penstock.errors import OperatorError, PrivilegeError
from penstock.model import Lsn
from penstock.sinks.opensearch_bulk import (
    ANSWER,
    Item,
    Verdict,
    actions,
    cut,
    describe,
    fit_as_ids,
    fits_as_id,
    judge,
    read,
    took_all,
    went_astray,
)
from penstock.sinks.opensearch_http import Answer, Http, OpenSearchSettings, Patience, blocked

# Past this, what is left of a call is not sent again: its documents are built anew (`DELETES_KEPT` says why).
_LATEST_S = 900.0


class Way(NamedTuple):
    """Where the writes of an index go: the writers' alias, the version below which they lose, the mapped fields.

    `is_clearing`: a clear is about to give the alias another name.
    """

    alias: str
    floor: Lsn
    is_clearing: bool
    properties: Mapping[str, Any]


class Parcel(NamedTuple):
    """What is still to be sent: ids, and their lines beside them."""

    ids: list[str]
    lines: list[bytes]

    def only(self, which: Sequence[int]) -> Parcel:
        return Parcel([self.ids[at] for at in which], [self.lines[at] for at in which])

    def part(self, begin: int, end: int) -> Parcel:
        return Parcel(self.ids[begin:end], self.lines[begin:end])


class Writer:
    """One call of `write`: its rejections, and how many of its writes met something newer."""

    def __init__(self, http: Http, settings: OpenSearchSettings, find_way: Callable[[], Way], writes: Writes) -> None:
        self._http, self._settings, self._find_way = http, settings, find_way
        self._index, self._version = writes.documents.index, writes.version
        self._parcel = self._pack(writes.documents)
        self._until = time.monotonic() + _LATEST_S
        self.rejections: list[Rejection] = []
        self.older = 0

    def send(self, way: Way) -> None:
        """Send everything; on return each write was taken, lost to something newer, or is among the rejections."""
        parcel = self._without_unfit(self._parcel)
        for begin, end in cut(parcel.lines, self._settings.batch_size, self._settings.max_bytes):
            way = self._send_part(parcel.part(begin, end), way)

    def _pack(self, documents: Documents) -> Parcel:
        ids, bodies = documents.ids, documents.bodies
        if len(set(ids)) < len(ids):  # a first try of one must not overtake the other's second
            last = dict(zip(ids, bodies, strict=True))
            ids, bodies = list(last), list(last.values())
        return Parcel(ids, actions(self._version, ids, bodies))

    def _without_unfit(self, parcel: Parcel) -> Parcel:
        if fit_as_ids(parcel.ids):
            return parcel
        fit = [at for at, id_ in enumerate(parcel.ids) if fits_as_id(id_)]
        for id_ in parcel.ids:
            if not fits_as_id(id_):
                self._reject(id_, "an id has 1 to 512 bytes")
        return parcel.only(fit)

    def _send_part(self, parcel: Parcel, way: Way) -> Way:
        """Send until nothing is left to send; returns the way that was found last."""
        patience = self._http.patience()
        while parcel.ids:
            if self._version < way.floor:
                self.older += len(parcel.ids)
                break
            if time.monotonic() > self._until:
                raise self._http.down(f"writes to {self._index} were not taken within {_LATEST_S:.0f} s")
            answer = self._http.attempt("POST", self._path(way), b"".join(parcel.lines), patience)
            if answer is None:
                continue
            if answer.status == 413:
                return self._halve(parcel, way)
            if answer.status == 404:
                way = self._turned_back(Verdict.ASTRAY, way, patience)
                continue
            if answer.status == 200 and went_astray(answer.body, way.alias):
                self._http.attempt("DELETE", f"/{way.alias}", b"", patience)
                way = self._turned_back(Verdict.ASTRAY, way, patience)
                continue
            if answer.status == 200 and took_all(answer.body, len(parcel.ids)):
                break
            parcel, way = self._sort(parcel, self._items(answer, len(parcel.ids)), way, patience)
        return way

    def _path(self, way: Way) -> str:
        pipeline = f"&pipeline={self._settings.pipeline}" if self._settings.pipeline else ""
        return f"/{way.alias}/_bulk?require_alias=true&{ANSWER}{pipeline}"

    def _items(self, answer: Answer, count: int) -> list[Item]:
        if answer.status >= 300:
            raise OperatorError(
                f"sink {self._settings.name}: a bulk request was answered {answer.status} {answer.kind}".rstrip(),
                hint="Check that nothing between Penstock and the server changes requests.",
            )
        return read(answer.body, count)

    def _halve(self, parcel: Parcel, way: Way) -> Way:
        middle = len(parcel.ids) // 2
        if not middle:
            self._reject(parcel.ids[0], "larger than the server takes (http.max_content_length)")
            return way
        way = self._send_part(parcel.part(0, middle), way)
        return self._send_part(parcel.part(middle, len(parcel.ids)), way)

    def _sort(self, parcel: Parcel, items: list[Item], way: Way, patience: Patience) -> tuple[Parcel, Way]:
        """What of the parcel has to be sent again, and where to; waits where that needs time."""
        again: list[int] = []
        last: Verdict | None = None
        for at, item in enumerate(items):
            verdict = judge(item)
            if verdict is Verdict.TAKEN:
                continue
            if verdict is Verdict.OLDER:
                self.older += 1
            elif verdict is Verdict.REJECTED:
                self._reject(parcel.ids[at], describe(item, way.properties))
            elif verdict is Verdict.REFUSED:
                raise self._refused(item)
            else:
                again.append(at)
                last, kind = verdict, item.kind
        if last is None:
            return Parcel([], []), way
        if len(again) < len(items):
            patience.renew()
        if last is Verdict.AGAIN:
            patience.wait(self._http.down(f"{self._http.place} turned writes away ({kind})"))
        else:
            way = self._turned_back(last, way, patience)
        return parcel.only(again), way

    def _turned_back(self, verdict: Verdict, way: Way, patience: Patience) -> Way:
        """The alias has another name now, or the index is blocked: by a clear, which passes, or by somebody."""
        now, index = self._find_way(), way.alias.rpartition(".")[0]
        if now.alias != way.alias:
            return now
        if verdict is Verdict.BLOCKED and not now.is_clearing:
            raise blocked(self._settings.name, f"the index {index}")
        patience.wait(self._http.down(f"the index {index} does not take writes for now"))
        return now

    def _refused(self, item: Item) -> OperatorError:
        sink = f"sink {self._settings.name}"
        if item.status in (401, 403):
            return PrivilegeError(
                f"{sink}: writing to {self._index} was refused ({item.kind})",
                hint="Grant the role the right to write to the indexes of this prefix.",
            )
        return OperatorError(f"{sink}: the server has lost the ingest pipeline", hint="Create it there again.")

    def _reject(self, id_: str, reason: str) -> None:
        self.rejections.append(Rejection(self._index, id_, self._version, reason))
