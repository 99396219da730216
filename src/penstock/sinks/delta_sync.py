"""Commits of a Delta table brought to disk, on a path of this machine: delta-rs writes files and does not sync them.

Guarantees: when `synced` ends without an error, each file that the commits since name, the log's own files and the
folders are on disk; and so is what came before: a file in the table's folder says from which commit on that is not
known, until it is, also when the process is killed in between. A sync that fails is not tried again, for the next one
may well succeed without having written anything: from then on the table is refused. Elsewhere (a URL) an object is
durable when the storage has answered, and nothing is done here.
Deliberately not: an order between a commit and its data. A machine that loses power in the moment between may keep a
commit whose data is lost; that commit was not acknowledged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from penstock.errors import DiskError, OperatorError

_LOG = "_delta_log"
# Readers, and whoever cleans up, leave alone what begins so.
_MARK = "_unsynced"
_FORMAT = 1
_LOST = " lost"


@contextmanager
def synced(uri: str, version: int, gone: Callable[[], Exception] | None = None) -> Iterator[None]:
    """Sync what is committed meanwhile; `version` is that of the last commit before, -1 where there was none.

    Raises `gone()` where that commit's file is not there any more: the table was deleted under us.
    """
    if "://" in uri:
        yield
        return
    log = os.path.join(uri, _LOG)
    if gone is not None and not os.path.exists(_entry(log, version)):
        raise gone()
    at = _since(uri, version) + 1
    yield
    try:
        _sync_from(uri, log, at)
    except OSError:
        with open(os.path.join(uri, _MARK), "a", encoding="ascii") as file:
            file.write(_LOST)
        raise
    os.unlink(os.path.join(uri, _MARK))


def _since(uri: str, version: int) -> int:
    """The last commit that is known to be on disk; noted down before another one is made."""
    with open(os.path.join(uri, _MARK), "a+", encoding="ascii") as file:
        file.seek(0)
        found = file.read()
        if not found:
            file.write(f"{_FORMAT} {version}")
    if not found:
        return version
    form, since, *lost = found.split()
    if int(form) > _FORMAT:
        raise OperatorError(
            f"{uri} was written by a newer Penstock: its {_MARK} is of format {form}, this one reads up to {_FORMAT}",
            hint="Use that version of Penstock, or give the sink another path.",
        )
    if lost:
        raise DiskError(
            f"{uri}: a commit of this table did not reach the disk",
            hint="Look after the disk, then move the table away: it is seeded anew.",
        )
    return min(int(since), version)


def _sync_from(uri: str, log: str, at: int) -> None:
    first = at
    while os.path.exists(entry := _entry(log, at)):
        for path in _named_in(entry):
            _sync(os.path.join(uri, path))
        _sync(entry)
        _sync(entry.removesuffix("json") + "checkpoint.parquet")
        at += 1
    if at > first:
        for place in (os.path.join(log, "_last_checkpoint"), log, os.path.join(uri, "_change_data"), uri):
            _sync(place)


def _entry(log: str, version: int) -> str:
    return os.path.join(log, f"{version:020}.json")


def _named_in(entry: str) -> Iterator[str]:
    """The files that a commit adds."""
    with open(entry, encoding="utf-8") as lines:
        for line in lines:
            action = json.loads(line)
            for kind in ("add", "cdc"):
                if kind in action:
                    yield unquote(action[kind]["path"])


def _sync(path: str) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # not every commit has a checkpoint, and a later one may have removed a file
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
