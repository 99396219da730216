"""The local sink: an embedded search store, one SQLite file with full-text search.

Guarantees: what was flushed survives the end of the process and of the machine (write-ahead log, synced at each
commit). Readers come and go at any time and see whole commits; while a generation is seeded they see the one before.
Versions decide each write in SQL; a delete leaves a tombstone, kept for a week, and a clear leaves its version. A
document is bytes end to end: SQLite alone looks into it, for its texts. One process writes; any thread of it may.
Deliberately not: several writers, and mappings (`Target.body` is for search engines).
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.contracts import Held, Rejection, Target, Writes
from penstock.errors import BugError, RetryableError
from penstock.model import Lsn, literal
from penstock.sinks import local_text as sql
from penstock.sinks.local_file import WriterLock, open_reader, open_writer, translated

if TYPE_CHECKING:
    from penstock.contracts import ReadableSink, StampedSink

# A week: far longer than a write can be late.
TOMBSTONE_S = 7 * 86400
# How often those are removed whose week is over.
_PURGE_S = 3600
# Writes that wait for a flush are committed from here on: they are held in memory, and in the write-ahead log.
_COMMIT_BYTES = 64 << 20
# What a write takes in memory beside its texts: deletes are nothing else.
_ROW_BYTES = 200
# How many ids are read at once while all are.
_PORTION = 5000
# SQLite's numbers are signed: LSNs are kept in their order, moved down.
_SHIFT = 1 << 63
_NEVER = -_SHIFT


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """What the deployment calls the sink, and its file."""

    name: str
    path: str


class _Generation(NamedTuple):
    number: int
    seeded: int | None
    cleared: int
    texts: tuple[str, ...]
    mark: str
    beside: tuple[str, ...]


class LocalSink:
    """See `penstock.contracts.Sink`."""

    shared = False
    exact = True

    def __init__(self, settings: LocalSettings, *, clock: Callable[[], float] = time.time) -> None:
        self.name = settings.name
        self._path = Path(settings.path)
        self._clock = clock
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._writer_lock: WriterLock | None = None
        self._generations: dict[str, _Generation] = {}
        self._waiting: dict[str, list[Writes | Lsn]] = {}  # of each index, the writes and clears that are not committed
        self._waiting_bytes = 0
        self._purged_at = clock()  # of each index, its opening sees to those from before
        self._stamp = ""
        self._torn: dict[str, str] = {}  # indexes whose writes went with a failed transaction, and their generations

    def open(self, target: Target) -> None:
        """Find the index's newest generation; make one beside it where that is of another schema or source.

        What went with a failed transaction is written again; but to no other generation, which is seeded.
        """
        with self._lock:
            self._connect()
            with self._working() as connection:
                self._commit()
                connection.execute("BEGIN IMMEDIATE")
                number = self._find(connection, target) or self._make(connection, target)
                self._purge(connection, number)
                self._commit()
                self._load(target.index, number, target.beside)
                self._write_again(connection, target.index)

    def shows(self, target: Target) -> bool:
        """Whether the generation that readers see is this one."""
        return self._number(target, "shown AND seeded IS NOT NULL") is not None

    def revive(self, target: Target) -> bool:
        """Let it be the newest, under a number of its own."""
        with self._lock:
            before = self._number(target, "NOT shown")
            if before is None:
                return False
            with self._working() as connection:
                self._begin(connection)
                number = connection.execute(sql.COPY, [before]).lastrowid
                assert number is not None
                connection.execute("DELETE FROM generation WHERE number = ?", [before])
                _run(connection, sql.rename(before, number, has_texts=bool(target.texts)))
                self._commit()
            return True

    def _number(self, target: Target, which: str) -> int | None:
        """The generation of exactly this target that is `which`."""
        with self._lock:
            self._connect()
            with self._working() as connection:
                row = connection.execute(
                    f"SELECT number FROM generation WHERE name = ? AND schema_hash = ? AND source = ? AND {which}",
                    [target.name, target.schema_hash, target.source],
                ).fetchone()
        return None if row is None else int(row[0])

    def generation(self, index: str) -> str:
        """What tells it from those of any other file, too."""
        with self._lock:
            return self._generation(index).mark

    def seeded(self, index: str) -> Lsn | None:
        """The version of `complete`, where the newest generation is complete."""
        with self._lock:
            seeded = self._generation(index).seeded
        return None if seeded is None else Lsn(seeded + _SHIFT)

    def seeding(self, index: str) -> None:
        """Let the full-text index put off its merging; readers see the generation before."""
        self._set_automerge(index, 0)

    def complete(self, index: str, version: Lsn) -> None:
        """Show the generation to readers. The one that they leave for it is kept, the others go."""
        with self._working() as connection:
            self._set_automerge(index, sql.AUTOMERGE)
            number = self._generation(index).number
            self._begin(connection)
            beside = _listed(self._generation(index).beside)
            self._remove_others(connection, number, f"{sql.LEFT_BEFORE} AND source NOT IN ({beside})")
            connection.execute(sql.SHOW, [number])
            connection.execute("UPDATE generation SET seeded = ? WHERE number = ?", [version - _SHIFT, number])
            self._commit()
            self._load(index, number, self._generation(index).beside)

    def write(self, writes: Writes) -> Sequence[Rejection]:
        """Take the writes into the open transaction. What is no JSON is rejected."""
        index, _, bodies = writes.documents
        with self._working() as connection:
            generation = self._generation(index)
            if writes.version - _SHIFT < generation.cleared:
                return []
            rejected = self._apply(connection, generation, writes)
            self._waiting.setdefault(index, []).append(writes)
            self._waiting_bytes += sum(len(body or b"") + _ROW_BYTES for body in bodies)
            if self._waiting_bytes > _COMMIT_BYTES:
                self._commit()
        return [Rejection(index, id, writes.version, _NO_JSON) for id in rejected]

    def _apply(self, connection: sqlite3.Connection, generation: _Generation, writes: Writes) -> list[str]:
        """Into the open transaction; the ids of what is no JSON."""
        self._begin(connection)
        _, ids, bodies = writes.documents
        rejected = self._take_in(connection, list(zip(ids, bodies, strict=True)))
        values = {"version": writes.version - _SHIFT, "now": int(self._clock())}
        _run(connection, sql.apply(generation.number, generation.texts), values)
        return rejected

    def outdone(self) -> int:
        """Not counted."""
        return 0

    def flush(self) -> None:
        """Commit, which syncs the write-ahead log."""
        with self._lock:
            if torn := sorted(self._torn.keys() & self._waiting.keys()):
                raise RetryableError(
                    f"the sink {self.name} lost what was not flushed of {', '.join(torn)}",
                    hint="Its index is opened again, and the writes are sent again.",
                )
            with self._working() as connection:
                self._commit()
                if abs(self._clock() - self._purged_at) >= _PURGE_S:  # a clock may be set back
                    self._purged_at = self._clock()
                    self._begin(connection)
                    for generation in self._generations.values():
                        self._purge(connection, generation.number)
                    self._commit()

    def _purge(self, connection: sqlite3.Connection, number: int) -> None:
        """Forget the deletes of a generation that are a week old."""
        connection.execute(
            f"DELETE FROM {sql.documents(number)} WHERE deleted_s IS NOT NULL AND deleted_s < ?",
            [int(self._clock()) - TOMBSTONE_S],
        )

    def clear(self, index: str, version: Lsn) -> None:
        """Delete what is not above the version, and remember it with the generation."""
        with self._working() as connection:
            self._clear(connection, index, version)
            self._waiting.setdefault(index, []).append(version)

    def _clear(self, connection: sqlite3.Connection, index: str, version: Lsn) -> None:
        number, _, _, paths, _, _ = self._generation(index)
        self._begin(connection)
        values = {"version": version - _SHIFT, "number": number}
        newer = f"SELECT 1 FROM {sql.documents(number)} WHERE version > :version LIMIT 1"
        if connection.execute(newer, values).fetchone():
            _run(connection, sql.clear(number, paths), values)
        else:  # nothing stays: new tables cost less than emptying a full-text index
            _run(connection, [*sql.drop(number), *sql.make(number, paths)])
        connection.execute("UPDATE generation SET cleared = max(cleared, :version) WHERE number = :number", values)
        self._load(index, number, self._generation(index).beside)

    def look(self, index: str, ids: Sequence[str]) -> Mapping[str, Held]:
        """Documents and tombstones, also those that wait for a flush."""
        with self._working() as connection:
            rows = connection.execute(sql.look(self._generation(index).number), [json.dumps(list(ids))]).fetchall()
        return {id: Held(Lsn(version + _SHIFT), body) for id, version, body in rows}

    def scan(self, index: str) -> Iterator[list[str]]:
        """The ids in their order, as they are when it is a portion's turn."""
        last = ""
        while True:
            with self._working() as connection:
                rows = connection.execute(sql.scan(self._generation(index).number), [last, _PORTION]).fetchall()
            if not rows:
                return
            last = rows[-1][0]
            yield [id for (id,) in rows]

    @property
    def alone(self) -> bool:
        """As long as the file is open: its lock is the system's."""
        with self._lock:
            return self._writer_lock is not None

    def stamp(self, index: str) -> str:
        """That of the index's name in the file."""
        with self._working() as connection:
            number = self._generation(index).number
            if not connection.execute(sql.IS_STAMPED).fetchone():
                return ""
            found = connection.execute(sql.STAMPED, [number]).fetchone()
            return str(found[0]) if found else ""

    def restamp(self, stamp: str) -> None:
        """In one commit; what waits for a flush is committed with it."""
        with self._working() as connection:
            self._begin(connection)
            connection.execute(sql.STAMPS)
            rows = [(stamp, one.number) for one in self._generations.values()]
            connection.executemany(f"INSERT OR REPLACE {sql.STAMP}", rows)
            self._commit()
            self._stamp = stamp

    def forget(self, index: str) -> None:
        """What waits for a flush of it is flushed all the same."""
        with self._lock:
            self._generations.pop(index, None)
            self._torn.pop(index, None)

    def holdings(self, name: str) -> Sequence[str]:
        """The generations of the name in the file, if there is one."""
        if not self._path.exists():
            return []
        with closing(open_reader(self._path)) as reader, translated(self._path):
            rows = reader.execute("SELECT number, shown, seeded FROM generation WHERE name = ?", [name]).fetchall()
            counted = [
                (number, reader.execute(sql.count(number)).fetchone()[0], shown, seeded)
                for number, shown, seeded in rows
            ]
        return [
            f"generation {number} in {self._path}, {count} documents{_standing(shown, seeded)}"
            for number, count, shown, seeded in counted
        ]

    def remove(self, name: str) -> None:
        """Drop the tables of the name; a file that holds nothing more goes, too."""
        with self._lock:
            if not self._path.exists():
                return
            self._connect()
            with self._working() as connection:
                self._begin(connection)
                connection.execute(sql.STAMPS)
                connection.execute("DELETE FROM stamp WHERE name = ?", [name])
                removed = connection.execute("DELETE FROM generation WHERE name = ? RETURNING number", [name])
                for (number,) in removed.fetchall():
                    _run(connection, sql.drop(number))
                self._commit()
                is_empty = not connection.execute("SELECT 1 FROM generation LIMIT 1").fetchone()
            if is_empty:
                self.close()
                for ending in ("", "-wal", "-shm", ".lock"):
                    Path(f"{self._path}{ending}").unlink(missing_ok=True)

    def close(self) -> None:
        """Give up the file and the right to write to it."""
        with self._lock:
            self._torn.clear()
            self._waiting.clear()
            self._disconnect()

    def _disconnect(self) -> None:
        self._generations.clear()
        if self._connection is not None:
            self._connection.close()  # an open transaction is rolled back
            self._connection = None
        if self._writer_lock is not None:
            self._writer_lock.release()
            self._writer_lock = None

    def _find(self, connection: sqlite3.Connection, target: Target) -> int | None:
        """The newest generation of the name, if it is of this schema and source; its texts are made to fit.

        Newer ones that are beside it do not count, nor one that we began beside it, and are to leave again. One that
        readers have left missed changes since.
        """
        begun = self._generations.get(target.index)
        left = begun.number if begun and target.source in begun.beside else None
        row = connection.execute(
            f"SELECT number, schema_hash, source, texts, {sql.IS_LEFT} FROM generation WHERE number IS NOT ?"
            f" AND name = ? AND source NOT IN ({_listed(target.beside)}) ORDER BY number DESC LIMIT 1",
            [left, target.name],
        ).fetchone()
        known = (target.schema_hash, target.grown_from) if target.grown_from else (target.schema_hash,)
        if row is None or row[1] not in known or row[2] != target.source or row[4]:
            return None
        number, texts = int(row[0]), json.dumps(target.texts)
        if row[1] != target.schema_hash:  # its documents lack fields
            grow = "UPDATE generation SET schema_hash = ?, seeded = NULL WHERE number = ?"
            connection.execute(grow, [target.schema_hash, number])
        if row[3] != texts:
            _run(connection, [sql.drop_texts(number), *sql.make_texts(number, target.texts)])
            connection.execute("UPDATE generation SET texts = ? WHERE number = ?", [texts, number])
        return number

    def _make(self, connection: sqlite3.Connection, target: Target) -> int:
        """A new generation beside the one that readers see; what was never seen and is not written to goes."""
        number = connection.execute(
            "INSERT INTO generation (name, schema_hash, source, texts, cleared) VALUES (?, ?, ?, ?, ?)",
            [target.name, target.schema_hash, target.source, json.dumps(target.texts), _NEVER],
        ).lastrowid
        assert number is not None
        _run(connection, sql.make(number, target.texts))
        if self._stamp:  # the file may have been removed while we run
            connection.execute(sql.STAMPS)
            connection.execute(f"INSERT OR IGNORE {sql.STAMP}", [self._stamp, number])
        which = f"seeded IS NULL AND NOT shown AND source NOT IN ({_listed(target.beside)})"
        self._remove_others(connection, number, which)
        return number

    @staticmethod
    def _remove_others(connection: sqlite3.Connection, number: int, which: str) -> None:
        """Remove the other generations of the same name that are `which`."""
        found = connection.execute(
            f"DELETE FROM generation WHERE number <> ?1 AND {which}"
            " AND name = (SELECT name FROM generation WHERE number = ?1) RETURNING number",
            [number],
        ).fetchall()
        for (other,) in found:
            _run(connection, sql.drop(other))

    def _load(self, index: str, number: int, beside: tuple[str, ...]) -> None:
        assert self._connection is not None
        statement = "SELECT seeded, cleared, texts, mark FROM generation WHERE number = ?"
        seeded, cleared, texts, mark = self._connection.execute(statement, [number]).fetchone()
        self._generations[index] = _Generation(number, seeded, cleared, tuple(json.loads(texts)), mark, beside)

    def _set_automerge(self, index: str, segments: int) -> None:
        with self._working() as connection:
            generation = self._generation(index)
            if generation.texts:
                self._begin(connection)
                connection.execute(sql.set_automerge(generation.number, segments))

    @staticmethod
    def _take_in(connection: sqlite3.Connection, documents: list[tuple[str, bytes | None]]) -> list[str]:
        """Fill the table of incoming documents; the ids of those that are no JSON."""
        connection.execute(sql.FORGET_INCOMING)
        try:
            connection.executemany(sql.TAKE_IN, documents)
        except sqlite3.IntegrityError:
            bad = [at for at, (_, body) in enumerate(documents) if not _is_json(connection, body)]
            left_out = set(bad)
            connection.execute(sql.FORGET_INCOMING)
            connection.executemany(sql.TAKE_IN, [one for at, one in enumerate(documents) if at not in left_out])
            return [documents[at][0] for at in bad]
        return []

    def _generation(self, index: str) -> _Generation:
        found = self._generations.get(index)
        if found is None and index in self._torn:
            raise RetryableError(f"the sink {self.name} is being opened again", hint="The writes are sent again.")
        if found is None:
            raise BugError(f"the index {index} was not opened in the sink {self.name}")
        return found

    def _connect(self) -> None:
        if self._connection is None:
            self._connection, self._writer_lock = open_writer(self._path)
            self._connection.execute(sql.INCOMING)

    @contextmanager
    def _working(self) -> Iterator[sqlite3.Connection]:
        """The connection, for this thread alone. An error of SQLite ends it: part of a transaction may be gone."""
        with self._lock:
            if self._connection is None:
                raise RetryableError(f"the sink {self.name} is closed", hint="Its indexes have to be opened again.")
            try:
                with translated(self._path):
                    yield self._connection
            except BugError:
                raise
            except BaseException:
                self._torn |= {index: one.mark for index, one in self._generations.items()}
                self._disconnect()
                raise

    @staticmethod
    def _begin(connection: sqlite3.Connection) -> None:
        if not connection.in_transaction:
            connection.execute("BEGIN IMMEDIATE")

    def _commit(self) -> None:
        assert self._connection is not None
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")
        self._waiting = {index: self._waiting[index] for index in self._waiting.keys() & self._torn.keys()}
        self._waiting_bytes = 0

    def _write_again(self, connection: sqlite3.Connection, index: str) -> None:
        """What went with a failed transaction."""
        generation = self._generation(index)
        if self._torn.get(index, generation.mark) != generation.mark:
            self._waiting.pop(index, None)
        elif index in self._torn:
            for one in self._waiting.get(index, ()):
                if isinstance(one, Lsn):
                    self._clear(connection, index, one)
                else:
                    self._apply(connection, generation, one)
        self._torn.pop(index, None)


_NO_JSON = "it is no JSON that SQLite can read (or one nested too deep)"


def _listed(sources: Iterable[str]) -> str:
    return ", ".join(map(literal, sources))


def _standing(shown: int, seeded: int | None) -> str:
    return ", which readers see" if shown else ", not seen by readers" if seeded is not None else ", being seeded"


def _is_json(connection: sqlite3.Connection, body: bytes | None) -> bool:
    return body is None or bool(connection.execute("SELECT json_valid(CAST(? AS TEXT))", [body]).fetchone()[0])


def _run(connection: sqlite3.Connection, statements: Iterable[str], values: Mapping[str, int] | None = None) -> None:
    for statement in statements:
        connection.execute(statement, values or {})


if TYPE_CHECKING:
    _as_sink: type[ReadableSink] = LocalSink
    _as_stamped_sink: type[StampedSink] = LocalSink
