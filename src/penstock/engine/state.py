"""What a deployment remembers beside Spark's checkpoint: seeds and their chunks, quarantine, which indexes are kept.

One SQLite file in the state folder. Guarantees: durable when a method returns (`synchronous=FULL`), usable from any
thread, one writer; a file of a newer format is refused, nothing of it is changed. Deliberately not: documents, secrets
and positions of the stream, which belong to the sinks and to Spark.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import re
import secrets
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.contracts import Key, Rejection
from penstock.errors import ConfigError, DiskError, OperatorError
from penstock.model import Lsn

FORMAT = 2
_TABLES = """
CREATE TABLE IF NOT EXISTS seed (
    name TEXT PRIMARY KEY, identity TEXT NOT NULL, sinks TEXT NOT NULL, version TEXT NOT NULL,
    documents INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS chunk (
    name TEXT, number INTEGER, first TEXT, last TEXT, done INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (name, number));
CREATE TABLE IF NOT EXISTS sweep (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS gone (name TEXT, key TEXT, PRIMARY KEY (name, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS quarantine (
    name TEXT, sink TEXT, id TEXT, version TEXT NOT NULL, reason TEXT NOT NULL, since TEXT NOT NULL
    DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ')), PRIMARY KEY (name, sink, id));
CREATE INDEX IF NOT EXISTS quarantine_by_id ON quarantine (id);
CREATE INDEX IF NOT EXISTS quarantine_by_age ON quarantine (since, name, id, sink);
CREATE TABLE IF NOT EXISTS kept (name TEXT PRIMARY KEY, identity TEXT NOT NULL, epoch TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS stopped (name TEXT PRIMARY KEY, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS marked (
    name TEXT PRIMARY KEY, reason TEXT NOT NULL, number INTEGER NOT NULL DEFAULT 1, since TEXT NOT NULL
    DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ')));
CREATE TABLE IF NOT EXISTS shape (name TEXT PRIMARY KEY, source TEXT NOT NULL, shape TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS lineage (
    name TEXT, role TEXT, epoch TEXT NOT NULL, identity TEXT NOT NULL, schema TEXT NOT NULL, hashes TEXT NOT NULL,
    PRIMARY KEY (name, role));
CREATE TABLE IF NOT EXISTS detached (sink TEXT PRIMARY KEY, mark TEXT NOT NULL, away INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS streamed (checkpoint TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS unsettled (slot TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS stamped (sink TEXT PRIMARY KEY, stamp TEXT, coming TEXT);
CREATE TABLE IF NOT EXISTS written (name TEXT, sink TEXT, source TEXT, generation TEXT, PRIMARY KEY (name, sink));
"""
MOST_ASIDE = 10_000
"""How many documents in quarantine are known by their ids to each batch, and to its tasks."""
EVERY = "\0"
"""Stands for any id of an index; Postgres has no text with it."""
_WITH_QUARANTINE = "SELECT DISTINCT name FROM quarantine"
# Whether the seed of the index (?1) is still the one with this token (?2).
_MINE = "EXISTS (SELECT 1 FROM seed WHERE name = ?1 AND rowid = ?2)"


@dataclass(frozen=True, slots=True)
class Seed:
    """A seed under way: into which sinks, at which version, and how far it is.

    `identity` tells of which schema and source it is: one of another is no use. `token` tells it from every other seed,
    also from one that was begun again at the same version. With `sweeps`, documents that it does not write are gone.
    """

    index: str
    identity: str
    sinks: tuple[str, ...]
    version: Lsn
    total: int = 0
    done: int = 0
    documents: int = 0
    sweeps: bool = False
    token: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """A document in quarantine: which sink rejected it, at which version, why, and since when (UTC)."""

    index: str
    sink: str
    id: str
    version: Lsn
    reason: str
    since: str

    @property
    def place(self) -> tuple[str, str, str, str]:
        """Where it stands among the others, the oldest first."""
        return self.since, self.index, self.id, self.sink


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range of keys, `after` < key <= `upto`; None is an open end."""

    number: int
    after: Key | None
    upto: Key | None


class State:
    """The file. `close` it. One that is only to be `read` is left as it is, in whatever format, and has to be there."""

    def __init__(self, folder: Path, *, only_read: bool = False) -> None:
        self._lock = threading.Lock()
        self._aside: frozenset[tuple[str, str]] | None = None
        self._seeds: Counter[str] = Counter()
        try:
            with ExitStack() as opened:
                if not only_read:
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._holder = opened.enter_context(open(folder / "lock", "r" if only_read else "a"))
                address = f"{(folder / 'state.sqlite').absolute().as_uri()}?mode={'ro' if only_read else 'rwc'}"
                file = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None)
                self._file = opened.enter_context(closing(file))
                self._check_format(folder)
                if only_read:
                    self._stand_in()
                else:
                    self._prepare()
                opened.pop_all()  # fit for use: held as long as this object
        except (OSError, sqlite3.Error) as error:
            raise _unusable(folder, error) from error

    def _check_format(self, folder: Path) -> None:
        ((found,),) = self._file.execute("PRAGMA user_version")
        if found > FORMAT:
            raise ConfigError(
                f"the state in {folder} is of format {found}; this Penstock reads {FORMAT} and older",
                hint="Use the Penstock that wrote it, or a newer one.",
            )

    def _stand_in(self) -> None:
        """For tables that an older format has not: empty ones, for this object alone."""
        there = {name for (name,) in self._file.execute("SELECT name FROM sqlite_master")}
        for statement in _TABLES.split(";"):
            found = re.search(r"CREATE TABLE IF NOT EXISTS (\w+)", statement)
            if found and found[1] not in there:
                self._file.execute(statement.replace("CREATE TABLE", "CREATE TEMP TABLE"))

    def _prepare(self) -> None:
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute("PRAGMA synchronous = FULL")
        self._file.executescript(_TABLES)
        self._file.execute(f"PRAGMA user_version = {FORMAT}")

    def acquire(self) -> bool:
        """Try to be the one that runs with this state, until `close` or the end of the process."""
        try:
            fcntl.flock(self._holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Any number of times."""
        with self._lock:
            self._file.close()
            self._holder.close()

    def write(self, *statements: tuple[str, Iterable[Sequence[Any]]]) -> None:
        """All of them, or none."""
        with self._lock:
            if any("quarantine" in sql for sql, _ in statements):
                self._aside = None
            try:
                self._file.execute("BEGIN IMMEDIATE")
                for sql, rows in statements:
                    self._file.executemany(sql, rows)
                self._file.execute("COMMIT")
            except sqlite3.Error as error:
                if self._file.in_transaction:
                    self._file.execute("ROLLBACK")
                raise DiskError(f"the state could not be written: {error}", hint="Look after its disk.") from error

    def read(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with self._lock:
            return self._file.execute(sql, values).fetchall()

    def begin_seed(self, seed: Seed, cuts: Sequence[Key] = ()) -> Seed:
        """A new seed of an index in place of any other; `cuts` are the last keys of its chunks but the last.

        It sweeps where one before it was to, and did not come to its end. The seed as it is known from now on.
        """
        chunks = _chunks(seed, cuts)
        # The number of the row is the token.
        token = secrets.randbits(62)
        row = (token, seed.index, seed.identity, json.dumps(seed.sinks), str(seed.version))
        self.write(
            ("DELETE FROM seed WHERE name = ?", [(seed.index,)]),
            ("DELETE FROM chunk WHERE name = ?", [(seed.index,)]),
            ("DELETE FROM gone WHERE name = ?", [(seed.index,)]),
            ("INSERT INTO seed (rowid, name, identity, sinks, version) VALUES (?, ?, ?, ?, ?)", [row]),
            ("INSERT OR IGNORE INTO sweep VALUES (?)", [(seed.index,)] if seed.sweeps else []),
            ("INSERT INTO chunk (name, number, first, last) VALUES (?, ?, ?, ?)", chunks),
        )
        self._seeds[seed.index] += 1
        return replace(seed, token=token, total=len(chunks))

    def seeds_begun(self, index: str) -> int:
        """How many seeds of an index were begun by this object, also those that came to their end."""
        return self._seeds[index]

    def cut_seed(self, seed: Seed, cuts: Sequence[Key]) -> Seed:
        """Divide a seed of which nothing is done; as it is now. Nothing is done where another took its place."""
        chunks = _chunks(seed, cuts)
        self.write(
            (f"DELETE FROM chunk WHERE name = ?1 AND {_MINE}", [(seed.index, seed.token)]),
            (
                f"INSERT INTO chunk (name, number, first, last) SELECT ?1, ?3, ?4, ?5 WHERE {_MINE}",
                [(seed.index, seed.token, *chunk[1:]) for chunk in chunks],
            ),
        )
        return replace(seed, total=len(chunks))

    def seed(self, index: str) -> Seed | None:
        """The seed of an index that is not complete."""
        sql = (
            "SELECT identity, sinks, version, (SELECT count(*) FROM chunk WHERE chunk.name = seed.name),"
            " (SELECT count(*) FROM chunk WHERE chunk.name = seed.name AND done), documents,"
            " name IN (SELECT name FROM sweep), rowid FROM seed WHERE name = ?"
        )
        for identity, sinks, version, total, done, documents, sweeps, token in self.read(sql, index):
            into, at = tuple(json.loads(sinks)), Lsn.parse(version)
            return Seed(index, identity, into, at, total, done, documents, bool(sweeps), token)
        return None

    def chunks_left(self, index: str) -> list[Chunk]:
        """What a seed has still to do, in order."""
        rows = self.read("SELECT number, first, last FROM chunk WHERE name = ? AND NOT done ORDER BY number", index)
        return [Chunk(number, _key(first), _key(last)) for number, first, last in rows]

    def finish_chunks(self, seed: Seed, chunks: Iterable[Chunk], documents: int) -> None:
        """These chunks are durable in every sink of the seed. Nothing is noted where another took its place."""
        self.write(
            (
                f"UPDATE chunk SET done = 1 WHERE name = ?1 AND {_MINE} AND number = ?3",
                [(seed.index, seed.token, one.number) for one in chunks],
            ),
            ("UPDATE seed SET documents = documents + ? WHERE rowid = ?", [(documents, seed.token)]),
        )

    def end_seed(self, seed: Seed) -> bool:
        """The seed is complete; False where another took its place meanwhile, which stays."""
        if (found := self.seed(seed.index)) is None or found.token != seed.token:
            return False
        row, tables = (seed.index, seed.token), ("gone", "chunk", "sweep", "seed")
        self.write(*((f"DELETE FROM {table} WHERE name = ?1 AND {_MINE}", [row]) for table in tables))
        return self.seed(seed.index) is None

    def note_gone(self, index: str, keys: Iterable[Key]) -> None:
        """Keys of documents that live deleted while their index is seeded."""
        self.write(("INSERT OR IGNORE INTO gone VALUES (?, ?)", [(index, json.dumps(key)) for key in keys]))

    def gone(self, index: str, at_once: int = 1000) -> Iterator[list[Key]]:
        """What `note_gone` was told since the seed began, so many at once: there may be millions."""
        sql, last = "SELECT key FROM gone WHERE name = ? AND key > ? ORDER BY key LIMIT ?", ""
        while rows := self.read(sql, index, last, at_once):
            last = rows[-1][0]
            yield [tuple(json.loads(key)) for (key,) in rows]

    def quarantine(self, rejected: Iterable[tuple[str, Rejection]]) -> None:
        """Remember what sinks (by name) rejected."""
        rows = [(one.index, sink, one.id, str(one.version), one.reason) for sink, one in rejected]
        # It is there since it was first rejected; the version and the reason are those of the last time.
        self.write(
            (
                "INSERT INTO quarantine (name, sink, id, version, reason) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (name, sink, id) DO UPDATE SET version = excluded.version, reason = excluded.reason",
                rows,
            )
        )

    def quarantined(
        self, index: str = "", ids: Iterable[str] = (), *, after: Sequence[str] = ("",) * 4, limit: int = -1
    ) -> list[Entry]:
        """What is in quarantine, the oldest first: everything, or that of an index, or of some ids of it.

        With `limit` so many of them, those behind the place `after`.
        """
        wanted = list(ids)
        among = "AND id IN (SELECT value FROM json_each(?))" if wanted else ""
        rows = self.read(
            f"SELECT name, sink, id, version, reason, since FROM quarantine WHERE ? IN ('', name) {among}"
            " AND (since, name, id, sink) > (?, ?, ?, ?) ORDER BY since, name, id, sink LIMIT ?",
            index, *([json.dumps(wanted)] if wanted else []), *after, limit,
        )  # fmt: skip
        return [Entry(name, sink, id, Lsn.parse(version), *words) for name, sink, id, version, *words in rows]

    def count_quarantined(self, index: str = "") -> int:
        """How many documents are in quarantine, once for each sink that rejected one; cheap at any number."""
        ((count,),) = self.read("SELECT count(*) FROM quarantine WHERE ? IN ('', name)", index)
        return int(count)

    def aside(self) -> frozenset[tuple[str, str]]:
        """Index and id of everything in quarantine; read once, for it is asked for with each batch.

        Of much, the indexes alone: any of their ids (`EVERY`) may be there, and has to be looked for.
        """
        with self._lock:
            if self._aside is None:
                rows = self._file.execute("SELECT DISTINCT name, id FROM quarantine LIMIT ?", [MOST_ASIDE + 1])
                found = frozenset(rows.fetchall())
                if len(found) > MOST_ASIDE:
                    found = frozenset((name, EVERY) for (name,) in self._file.execute(_WITH_QUARANTINE))
                self._aside = found
            return self._aside

    def release(self, entries: Iterable[Entry]) -> None:
        """Take them out of quarantine; one that was rejected again since stays."""
        rows = [(one.index, one.sink, one.id, str(one.version)) for one in entries]
        self.write(("DELETE FROM quarantine WHERE name = ? AND sink = ? AND id = ? AND version = ?", rows))

    def note_streamed(self, checkpoint: str) -> None:
        """Positions of the stream are noted down in this checkpoint, by its own id."""
        if self.streamed() != checkpoint:
            self.write(("DELETE FROM streamed", [()]), ("INSERT INTO streamed VALUES (?)", [(checkpoint,)]))

    def streamed(self) -> str | None:
        """What `note_streamed` was told last."""
        found = self.read("SELECT checkpoint FROM streamed")
        return str(found[0][0]) if found else None

    def forget_streamed(self) -> None:
        """The stream begins anew."""
        self.write(("DELETE FROM streamed", [()]))

    def note_unsettled(self, slot: str) -> None:
        """This slot is about to be made: what was committed just before may be seen later than its start."""
        self.write(("INSERT OR IGNORE INTO unsettled VALUES (?)", [(slot,)]))

    def note_settled(self, slot: str) -> None:
        """Whatever was committed before its start can be seen now."""
        self.write(("DELETE FROM unsettled WHERE slot = ?", [(slot,)]))

    def is_unsettled(self, slot: str) -> bool:
        """Whether the first was noted, and the second was not."""
        return bool(self.read("SELECT 1 FROM unsettled WHERE slot = ?", slot))

    def stop_index(self, index: str, reason: str) -> None:
        """Live keeps an index no longer; when it does again, a new epoch begins."""
        self.write(
            *(
                (f"DELETE FROM {table} WHERE name = ?", [(index,)])
                for table in ("kept", "gone", "chunk", "sweep", "seed")
            ),
            ("INSERT OR REPLACE INTO stopped VALUES (?, ?)", [(index, reason)]),
        )

    def stopped(self) -> dict[str, str]:
        """The indexes that were stopped and are not kept since, with the reason."""
        return dict(self.read("SELECT name, reason FROM stopped"))


def _chunks(seed: Seed, cuts: Sequence[Key]) -> list[tuple[str, int, str | None, str | None]]:
    edges = [None, *map(json.dumps, cuts), None]
    return [(seed.index, number, first, last) for number, (first, last) in enumerate(itertools.pairwise(edges))]


def _key(text: str | None) -> Key | None:
    return None if text is None else tuple(json.loads(text))


def _unusable(folder: Path, error: OSError | sqlite3.Error) -> OperatorError:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return OperatorError(
            f"{folder / 'state.sqlite'} is no SQLite file, or a damaged one ({name})",
            hint="Move it away: the next run then seeds every index anew, and has forgotten what was in quarantine.",
        )
    return DiskError(
        f"the state folder {folder} cannot be used: {_reason(error)}",
        hint="Make it writable, or name another one: state in penstock.toml.",
    )


def _reason(error: OSError | sqlite3.Error) -> str:
    return (error.strerror or type(error).__name__).lower() if isinstance(error, OSError) else str(error)
