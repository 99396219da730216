"""Which generations a deployment has made, and which of its sinks missed changes: a page of its own in the state.

An index has a current generation, which live keeps. While that is still to be seeded there may be an outgoing one, of
another epoch, which readers see and live keeps as well; the one before the last swap is remembered as the former.
Guarantees: durable when a method returns, all of it or nothing. An epoch lasts as long as live keeps an index without a
gap: one that was left out for a run, or is of another schema, begins a new one. A sink that was detached is told from
itself before by a mark, so that what it held then is never taken for current; a sink that returns is marked present
before anything is written to it, so that a crash in between leads to a seed, never to a gap. So it is with a sink that
the file did not name for a run. Deliberately not: what is in a generation; its sink knows that.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from penstock.engine.state import State

Statement = tuple[str, Sequence[tuple[str, ...]]]
Written = Mapping[tuple[str, str], tuple[str, str]]
"""By index and sink: the source as the sink was told it, and the generation that is written to."""


class Role(StrEnum):
    """What a generation is to its index."""

    CURRENT = "current"
    OUTGOING = "outgoing"
    FORMER = "former"
    REFUSED = "refused"
    """The one that was rolled back from: its schema is not taken up again by itself."""


@dataclass(frozen=True, slots=True)
class Made:
    """A generation as every sink has it: `identity` tells schema and source, `schema` is the file's, as JSON.

    `hashes` are what each sink (by name) knows it by.
    """

    epoch: str
    identity: str
    schema: str
    hashes: Mapping[str, str]

    def is_like(self, other: Made) -> bool:
        """Whether it is what the other one is, but for the epoch, in every sink that has both."""
        common = self.hashes.keys() & other.hashes.keys()
        return self.identity == other.identity and all(self.hashes[one] == other.hashes[one] for one in common)


class Lineage:
    """A page of the state's file. Any thread may call any method."""

    def __init__(self, state: State) -> None:
        self._state = state

    def made(self, role: Role) -> dict[str, Made]:
        """The generations of that role, by index."""
        rows = self._state.read("SELECT name, epoch, identity, schema, hashes FROM lineage WHERE role = ?", role)
        return {
            name: Made(epoch, identity, schema, json.loads(hashes)) for name, epoch, identity, schema, hashes in rows
        }

    def keep(
        self, meant: Mapping[str, Made], *, anew: bool = False, growing: Collection[str] = ()
    ) -> tuple[dict[str, str], dict[str, Made]]:
        """Say which indexes live keeps from now on; the epoch of each, and what of them is outgoing.

        The epochs of what is meant do not count. With `anew` every index begins a new epoch, for there is a new slot.
        Those that are `growing` go on in theirs, although their schema is another one. A sink that the last run did not
        have gets a mark: what it holds from a time before that missed changes.
        """
        kept = {} if anew else {name: (found, epoch) for name, found, epoch in self._state.read("SELECT * FROM kept")}
        current = {
            name: one for name, one in self.made(Role.CURRENT).items() if kept.get(name, ("", ""))[1] == one.epoch
        }
        now, leaving = {}, {}
        for name, one in meant.items():
            found, epoch = kept.get(name, ("", ""))
            same = found == one.identity and (name not in current or one.is_like(current[name]))
            same = same or (name in growing and name in current)
            now[name] = replace(one, epoch=epoch if same else secrets.token_hex(6))
            before = self.made(Role.OUTGOING).get(name) or (None if same else current.get(name))
            if name in kept and before and before.epoch != now[name].epoch:
                leaving[name] = before
        had = {sink for _, sink in self.written()} or {sink for one in current.values() for sink in one.hashes}
        arrived = {sink for one in meant.values() for sink in one.hashes if had and sink not in had}
        self._state.write(
            _mark(arrived),
            ("DELETE FROM kept WHERE ?", [(1,)]),
            ("INSERT INTO kept VALUES (?, ?, ?)", [(name, one.identity, one.epoch) for name, one in now.items()]),
            ("DELETE FROM stopped WHERE name = ?", [(name,) for name in now]),
            ("DELETE FROM lineage WHERE role IN (?, ?)", [(Role.CURRENT, Role.OUTGOING)]),
            _put(Role.CURRENT, now),
            _put(Role.OUTGOING, leaving),
        )
        return {name: one.epoch for name, one in now.items()}, leaving

    def succeed(self, index: str, meant: Made, *, rollback: bool = False) -> None:
        """The index begins a generation; the one that was current is outgoing, unless there was one.

        A rollback goes on in the epoch of the former one, and refuses the schema that it leaves. What the former one
        holds missed deletes: its seed sweeps, whatever becomes of the outgoing one meanwhile.
        """
        epoch = meant.epoch if rollback else secrets.token_hex(6)
        one = replace(meant, epoch=epoch)
        differs = self.made(Role.CURRENT)[index].identity != meant.identity
        is_refused = rollback and differs
        refusing = _as(Role.REFUSED, Role.CURRENT, index) if is_refused else _forget(Role.REFUSED, index)
        self._state.write(
            refusing,
            ("INSERT OR IGNORE " + _COPY, [(Role.OUTGOING, index, Role.CURRENT)]),
            _put(Role.CURRENT, {index: one}),
            ("UPDATE kept SET identity = ?, epoch = ? WHERE name = ?", [(one.identity, epoch, index)]),
            ("INSERT OR IGNORE INTO sweep VALUES (?)", [(index,)] if rollback else []),
        )

    def retire(self, index: str) -> None:
        """Readers have left the outgoing generation, or will leave it as it stands: it is the former one now."""
        self._state.write(_as(Role.FORMER, Role.OUTGOING, index), _forget(Role.OUTGOING, index))

    def forget(self, role: Role, index: str) -> None:
        """There is none of that role any more."""
        self._state.write(_forget(role, index))

    def detach(self, sinks: Iterable[str]) -> None:
        """These miss changes from now on; each has another mark when it returns."""
        rows = [(sink, secrets.token_hex(6)) for sink in sinks]
        self._state.write(("INSERT OR REPLACE INTO detached (sink, mark, away) VALUES (?, ?, 1)", rows))

    def mistrust(self, sinks: Iterable[str]) -> None:
        """What these held so far, wherever it is, is not taken for current again."""
        self._state.write(_mark(sinks))

    def written(self) -> dict[tuple[str, str], tuple[str, str]]:
        """What was last noted of the generations that are written to."""
        rows = self._state.read("SELECT name, sink, source, generation FROM written")
        return {(name, sink): (source, generation) for name, sink, source, generation in rows}

    def note_written(self, written: Written) -> None:
        """These are written to from now on, and no others."""
        if written != self.written():
            rows = [(*where, *what) for where, what in written.items()]
            self._state.write(
                ("DELETE FROM written WHERE ?", [(1,)]), ("INSERT INTO written VALUES (?, ?, ?, ?)", rows)
            )

    def stamps(self) -> dict[str, frozenset[str]]:
        """For each sink that was ever stamped by name, what its stamp may be: the last, or the one that was coming."""
        rows = self._state.read("SELECT sink, stamp, coming FROM stamped WHERE stamp IS NOT NULL")
        return {sink: frozenset({stamp, coming} - {None}) for sink, stamp, coming in rows}

    def coming_stamp(self, sink: str) -> str:
        """The stamp that the sink is to be given now; the same again where it may have it already, in part."""
        sql = "INSERT INTO stamped (sink, coming) VALUES (?, ?) ON CONFLICT (sink) DO UPDATE"
        self._state.write((f"{sql} SET coming = coalesce(coming, excluded.coming)", [(sink, secrets.token_hex(8))]))
        ((coming,),) = self._state.read("SELECT coming FROM stamped WHERE sink = ?", sink)
        return str(coming)

    def note_stamped(self, sink: str) -> None:
        """It has the stamp that was coming, and no other one counts any more."""
        self._state.write(("UPDATE stamped SET stamp = coming, coming = NULL WHERE sink = ?", [(sink,)]))

    def attach(self, sink: str) -> None:
        """It is written to from now on, and has to be seeded."""
        self._state.write(("UPDATE detached SET away = 0 WHERE sink = ?", [(sink,)]))

    def away(self) -> tuple[str, ...]:
        """The sinks that are detached."""
        return tuple(sink for (sink,) in self._state.read("SELECT sink FROM detached WHERE away ORDER BY sink"))

    def marks(self) -> dict[str, str]:
        """For each sink that was ever detached, what tells its generations from those before."""
        return dict(self._state.read("SELECT sink, mark FROM detached"))


_COPY = (
    "INTO lineage (name, role, epoch, identity, schema, hashes)"
    " SELECT name, ?1, epoch, identity, schema, hashes FROM lineage WHERE name = ?2 AND role = ?3"
)


def _mark(sinks: Iterable[str]) -> Statement:
    """One that is away stays so."""
    sql = "INSERT INTO detached (sink, mark, away) VALUES (?, ?, 0)"
    rows = [(sink, secrets.token_hex(6)) for sink in sinks]
    return f"{sql} ON CONFLICT (sink) DO UPDATE SET mark = excluded.mark", rows


def _as(role: Role, before: Role, index: str) -> Statement:
    return "INSERT OR REPLACE " + _COPY, [(role, index, before)]


def _forget(role: Role, index: str) -> Statement:
    return "DELETE FROM lineage WHERE role = ? AND name = ?", [(role, index)]


def _put(role: Role, made: Mapping[str, Made]) -> Statement:
    rows = [
        (name, role, one.epoch, one.identity, one.schema, json.dumps(dict(one.hashes))) for name, one in made.items()
    ]
    columns = "(name, role, epoch, identity, schema, hashes)"
    return f"INSERT OR REPLACE INTO lineage {columns} VALUES (?, ?, ?, ?, ?, ?)", rows
