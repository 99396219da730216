"""A small batch without a Spark job: the driver asks the reader beside it for the range that was planned last.

The reader keeps the keys of the range it has just handed out as partitions (`Desk`); the driver fetches them over a
unix socket (`fetch`) and works on them itself, while Spark still owns triggers, offsets, checkpoint and commit.
Guarantees: what is fetched is exactly what the batch's frame holds, with its end; a range that is too large, or any
trouble with the socket, is answered with None, and the caller takes the frame. The socket lies in a folder that only
its user may enter. Deliberately not: anything across machines.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.model import Lsn
from penstock.postgres.replication import POSTGRES_EPOCH_MICROS

log = logging.getLogger(__name__)

# What is handed over at once: some megabytes. Up to there the driver, with some documents in flight, keeps a sink as
# busy as tasks would, and Spark's jobs are what costs.
MAX_ROWS = 200_000
_PATIENCE_S = 30.0
# Commit times are told one by one up to here; more of them share as many moments.
_MOMENTS = 256

Commits = tuple[tuple[float, int], ...]
"""Unix times, and how many transactions were committed then."""


class Fetched(NamedTuple):
    """A batch's changes by their keys (None: there are none), its end, and when its transactions were committed.

    `upto` is the end as Spark knows it, by which a batch is told from others.
    """

    end: Lsn
    changes: pa.RecordBatch | None
    commits: Commits = ()
    upto: Mapping[str, Any] = {}


class Desk:
    """The reader's side: hands out the range that was planned last, as often as asked."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._answer = b""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if os.path.exists(path):
            os.unlink(path)  # of a run before
        self._listener.bind(path)
        self._inode = os.stat(path).st_ino
        self._listener.listen(4)
        threading.Thread(target=self._serve, name="penstock-desk", daemon=True).start()

    def offer(
        self,
        end: Lsn,
        batches: Sequence[pa.RecordBatch] | None,
        times: Collection[int] = (),
        upto: Mapping[str, Any] | None = None,
    ) -> None:
        """This is the range now; None is one that is too large, or for Spark's tasks anyhow.

        `times` are its commits, by the server's clock; `upto` is its end as Spark knows it.
        """
        body = b""
        if batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batches[0].schema) as stream:
                for batch in batches:
                    stream.write_batch(batch)
            body = sink.getvalue().to_pybytes()
        head = {"end": str(end), "whole": batches is not None, "bytes": len(body), "commits": moments(times)}
        head["upto"] = dict(upto or {})
        with self._lock:
            self._answer = json.dumps(head).encode() + b"\n" + body

    def _serve(self) -> None:
        while True:
            try:
                asking, _ = self._listener.accept()
            except OSError:
                return  # closed
            with self._lock:
                answer = self._answer
            with asking:
                try:
                    asking.settimeout(_PATIENCE_S)
                    asking.sendall(answer)
                except OSError as error:
                    log.debug("nobody took the range: %s", error)

    def close(self) -> None:
        """Any number of times."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # a close alone leaves the thread waiting for callers
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._path).st_ino == self._inode:  # else it is the next reader's
                os.unlink(self._path)


def moments(times: Collection[int]) -> list[tuple[float, int]]:
    """Commit times (the server's microseconds) as unix times with counts, few enough to be told."""
    unix = (np.fromiter(times, np.float64, len(times)) + POSTGRES_EPOCH_MICROS) / 1e6
    if len(unix) <= _MOMENTS:
        return [(round(one, 6), 1) for one in unix.tolist()]
    counts, edges = np.histogram(unix, _MOMENTS)
    middles = (edges[:-1] + edges[1:]) / 2
    return [(round(at, 6), count) for at, count in zip(middles.tolist(), counts.tolist(), strict=True) if count]


def fetch(path: str) -> Fetched | None:
    """The driver's side: the range that was planned last, or None where the frame has to be taken."""
    if (answer := _asked(path)) is None or not answer[0]["whole"]:
        return None
    said, body = answer
    batches = pa.ipc.open_stream(body).read_all().combine_chunks().to_batches() if body else []
    return Fetched(Lsn.parse(said["end"]), batches[0] if batches else None, _commits(said), said["upto"])


def commits(path: str, upto: Mapping[str, Any] | None = None) -> Commits:
    """When the transactions of the range up to there were committed, also of one that is not handed over.

    Empty where nobody says, or the range is another one.
    """
    answer = _asked(path) if path else None
    return _commits(answer[0]) if answer and upto in (None, answer[0]["upto"]) else ()


def _commits(said: dict[str, Any]) -> Commits:
    return tuple((at, count) for at, count in said["commits"])


def _asked(path: str) -> tuple[dict[str, Any], bytes] | None:
    """What the desk says, head and body; None where that is not a whole answer."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(_PATIENCE_S)
            asking.connect(path)
            answer = b"".join(iter(lambda: asking.recv(1 << 20), b""))
    except OSError as error:
        log.debug("the reader's socket does not answer: %s", error)
        return None
    head, newline, body = answer.partition(b"\n")
    if not newline:
        return None
    said: dict[str, Any] = json.loads(head)
    return (said, body) if said["bytes"] == len(body) else None
