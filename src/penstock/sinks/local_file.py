"""The local sink's file: opened by its one writer or by any number of readers, and what its errors mean.

Guarantees: the file says what it is and of which format; a newer format, another program's file and a damaged one are
refused with the next step. One process writes at a time: the lock is the operating system's and ends with the process.
No error holds a document's value. Deliberately not: what is in the tables.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from penstock.errors import ConfigError, DiskError, OperatorError, PenstockError, RetryableError
from penstock.sinks.local_text import CATALOG, OLDEST

APPLICATION = 0x504E5354
"""What SQLite's header says whose file it is: PNST."""
FORMAT = 1

_BUSY_S = 30.0
# Pages that wait in the write-ahead log before they are carried over (64 MB): each carrying over syncs the file.
_CHECKPOINT_PAGES = 16384
_SETTINGS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",  # where fsync does not reach the disk (macOS)
    "PRAGMA secure_delete = OFF",
    "PRAGMA cache_size = -65536",
    "PRAGMA temp_store = MEMORY",
    f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}",
    "PRAGMA journal_size_limit = 67108864",
)


class WriterLock:
    """The right to write to a file, held until `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] | None = None
        file = open(f"{path}.lock", "a+", encoding="ascii")  # noqa: SIM115 - held as long as this object
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(20).strip()
            file.close()
            raise RetryableError(
                f"another process{f' ({holder})' if holder.isdigit() else ''} writes to {path}",
                hint="One process at a time does. Stop it, or give this sink a path of its own.",
            ) from None
        except OSError:
            file.close()
            raise
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file

    def release(self) -> None:
        """Let another process write. Any number of times."""
        if self._file is not None:
            self._file.close()
            self._file = None


def open_writer(path: Path) -> tuple[sqlite3.Connection, WriterLock]:
    """A connection that writes, durable at each commit, and the lock that makes it the only one."""
    _require_sqlite()
    with translated(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = WriterLock(path)
    try:
        with translated(path):
            # Documents are as private as the tables they come from.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            return _prepare(path), lock
    except BaseException:
        lock.release()
        raise


def _prepare(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        _check(connection, path)
        for setting in _SETTINGS:
            connection.execute(setting)
        if not connection.execute("PRAGMA user_version").fetchone()[0]:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(CATALOG)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
            connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write. Its texts come as bytes: documents are handed on as they are."""
    _require_sqlite()
    if not path.exists():
        raise OperatorError(f"there is no {path} yet", hint="`penstock run` makes it.")
    with translated(path):
        address = f"{path.absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(address, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        connection.text_factory = bytes
        try:
            _check(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def _require_sqlite() -> None:
    if sqlite3.sqlite_version_info < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigError(
            f"this Python brings SQLite {sqlite3.sqlite_version}; the local sink needs {oldest} or newer",
            hint="Use a Python with a newer SQLite, or a sink of another type.",
        )


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Whose file it is, and of which format; a new file is nobody's, and empty."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != APPLICATION and (application or version or tables):
        raise OperatorError(f"{path} is another program's SQLite file", hint="Give the sink a path of its own.")
    if version > FORMAT:
        raise OperatorError(
            f"{path} was written by a newer Penstock: its format is {version}, and this one reads up to {FORMAT}",
            hint="Use that version of Penstock, or give the sink another path.",
        )


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the file system into ours; its own words are left out, they may quote a value."""
    try:
        yield
    except sqlite3.Error as error:
        raise _meaning(error, path) from None
    except OSError as error:
        raise DiskError(
            f"{path} cannot be used: {error.strerror}", hint="Check the path, its owner and the disk."
        ) from None


def _meaning(error: sqlite3.Error, path: Path) -> PenstockError:
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return RetryableError(f"{path} is held by another program ({name})", hint="Close what has it open.")
    if name == "SQLITE_FULL":
        return DiskError(f"{path} cannot grow: the disk is full", hint="Make room; what was not flushed is sent again.")
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_PERM", "SQLITE_AUTH")):
        return DiskError(f"{path} cannot be read or written ({name})", hint="Check the path, its owner and the disk.")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return OperatorError(
            f"{path} is no SQLite file, or a damaged one ({name})", hint="Move it away: the sink is then seeded anew."
        )
    if "fts5" in str(error):
        return ConfigError(
            "this Python's SQLite has no full-text search (FTS5)",
            hint="Use a Python whose SQLite has it, or a sink of another type.",
        )
    return OperatorError(f"{path}: SQLite failed ({name})", hint="Run `penstock run` again; if it stays, report it.")
