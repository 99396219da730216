"""Who reads in which snapshot: when one is opened, shared, ended, and refused.

A run is one execution of a query; its tasks come in any order, at any time, more than once, and all of them must see
one moment. The first opens a snapshot; it ends when every part of the table has been read, or when nobody has read for
a while. Guarantee: two tasks of one scan never see different moments; a task that comes after its run's snapshot has
ended is refused. Only a further scan of the same run, none of whose tasks has read before, gets a snapshot of its own.
Plain decisions over plain values: no I/O, and the time is handed in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

# After the last part was read: tasks that fail behind the read, and are run again at once, still find the snapshot.
GRACE_S = 5.0
# Without a reader: tasks may wait this long for a free core, and what a query left unread (a LIMIT) holds this long.
IDLE_S = 120.0
# How many tasks of past runs are remembered.
_REMEMBERED = 200_000


@dataclass(frozen=True, slots=True)
class Visit:
    """One task's coming: which part of how many it reads, which task of which stage it is, and if it was run before."""

    part: int
    parts: int
    stage: int
    task: int
    again: bool = False


@dataclass(slots=True, eq=False)
class Run:
    """One run: its snapshot's number, who came for it, who is reading, and what has been read by each stage."""

    key: Hashable
    parts: int
    number: int = 0
    seen: dict[tuple[int, int], int] = field(default_factory=dict)
    read: dict[int, set[int]] = field(default_factory=dict)
    readers: int = 0
    quiet_since: float = 0.0
    ended: str = ""

    @property
    def complete(self) -> bool:
        """Whether every part has been read."""
        return len(set().union(*self.read.values())) >= self.parts


@dataclass(frozen=True, slots=True)
class Seat:
    """An admitted visitor's place. `first`: it is to open the run's snapshot, which the others join."""

    run: Run
    visit: Visit
    first: bool


class Attendance:
    """The runs of one or many queries."""

    def __init__(self, grace_s: float = GRACE_S, idle_s: float = IDLE_S) -> None:
        self._grace_s = grace_s
        self._idle_s = idle_s
        self._runs: OrderedDict[Hashable, Run] = OrderedDict()

    def admit(self, key: Hashable, visit: Visit) -> Seat | str:
        """A seat, to be left again, or the reason why there is none."""
        run = self._runs.get(key)
        first = run is None or bool(run.ended)
        if run is None:
            run = self._runs[key] = Run(key, visit.parts)
        elif run.ended:
            if reason := _refusal(run, visit):
                return reason
            run.number, run.read, run.ended = run.number + 1, {}, ""
        elif run.seen.get((visit.stage, visit.task), run.number) != run.number:
            return "its task had read in an earlier one"
        self._runs.move_to_end(key)
        run.seen[visit.stage, visit.task] = run.number
        run.read.setdefault(visit.stage, set())
        run.readers += 1
        return Seat(run, visit, first)

    def leave(self, seat: Seat, done: bool, now: float) -> None:
        """Note that a visitor has gone, and whether it had read its part to the end."""
        seat.run.readers -= 1
        seat.run.quiet_since = now
        if done and seat.run.seen.get((seat.visit.stage, seat.visit.task)) == seat.run.number:
            seat.run.read.setdefault(seat.visit.stage, set()).add(seat.visit.part)

    def end(self, run: Run, reason: str) -> None:
        """Note that a run's snapshot is no more."""
        run.ended = reason
        self._forget()

    def withdraw(self, run: Run) -> None:
        """Take back a run whose snapshot could not be opened: the next visitor tries again."""
        if self._runs.get(run.key) is run:
            del self._runs[run.key]

    def due(self, now: float) -> list[tuple[Run, str]]:
        """The runs whose snapshot is to end, and why."""
        quiet = [(run, now - run.quiet_since) for run in self._runs.values() if not run.ended and not run.readers]
        done = [(run, "every part had been read") for run, for_s in quiet if run.complete and for_s >= self._grace_s]
        idle = f"no task had read in it for {self._idle_s:g} s"
        return done + [(run, idle) for run, for_s in quiet if not run.complete and for_s >= self._idle_s]

    def _forget(self) -> None:
        """Keep memory bounded: of runs long past, nobody comes any more."""
        total = sum(len(run.seen) for run in self._runs.values())
        for key in [key for key, run in self._runs.items() if run.ended]:
            if total <= _REMEMBERED:
                return
            total -= len(self._runs.pop(key).seen)


def _refusal(run: Run, visit: Visit) -> str:
    """Why a visitor of a run whose snapshot has ended cannot be given a new one; empty where it can."""
    if not run.complete or visit.again or (visit.stage, visit.task) in run.seen:
        return run.ended
    begun = run.read.get(visit.stage)
    return run.ended if begun is not None and len(begun) < run.parts else ""
