"""The stdout sink: one JSON object for each operation, for people who look and for programs that read a pipe.

Guarantees: an operation is one line (unless `pretty`); a document's bytes are embedded as they are, so that digits and
texts stay exact; lines of several threads do not mix, and `seq` counts them. It has no memory: it prints every write,
whatever its version, and is seeded at each start. Whoever closes the pipe ends it: the BrokenPipeError is passed on.
Deliberately not: logs, which go to stderr.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, BinaryIO

from penstock.contracts import Rejection, Target, Writes
from penstock.model import Lsn

if TYPE_CHECKING:
    from penstock.contracts import Sink

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_BREAKS = bytes.maketrans(b"\r\n", b"  ")


@dataclass(frozen=True, slots=True)
class StdoutSettings:
    """What the deployment calls the sink, and whether its objects are indented."""

    name: str
    pretty: bool = False


class StdoutSink:
    """See `penstock.contracts.Sink`."""

    shared = False

    def __init__(
        self,
        settings: StdoutSettings,
        *,
        stream: BinaryIO | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.name = settings.name
        self._pretty = settings.pretty
        self._stream = stream
        self._clock = clock
        self._lock = threading.Lock()
        self._seq = 0
        self._start = secrets.token_hex(8)
        self._names: dict[str, str] = {}

    def open(self, target: Target) -> None:
        """Learn what readers call the index."""
        self._names[target.index] = target.name

    def shows(self, target: Target) -> bool:
        """No: nobody knows what became of its lines."""
        return False

    def revive(self, target: Target) -> bool:
        """No: there is nothing to take up."""
        return False

    def generation(self, index: str) -> str:
        """Each start is one."""
        return self._start

    def seeded(self, index: str) -> Lsn | None:
        """Never: nobody knows what became of the lines of an earlier start."""
        return None

    def seeding(self, index: str) -> None:
        """Nothing to do."""

    def complete(self, index: str, version: Lsn) -> None:
        """Nothing to do: lines were read as they came."""

    def write(self, writes: Writes) -> Sequence[Rejection]:
        """Print an object for each document and each tombstone."""
        index, ids, bodies = writes.documents
        with self._lock:
            stamp = self._stamp(writes.version, index)
            objects = [
                self._object(stamp, "delete" if body is None else "upsert", id, body)
                for id, body in zip(ids, bodies, strict=True)
            ]
            self._out.write(b"".join(objects))
        return []

    def outdone(self) -> int:
        """Not counted."""
        return 0

    def flush(self) -> None:
        """Hand everything to whoever reads."""
        with self._lock:
            self._out.flush()

    def clear(self, index: str, version: Lsn) -> None:
        """Print that everything up to the version is gone."""
        with self._lock:
            self._out.write(self._object(self._stamp(version, index), "clear", None, None))

    def forget(self, index: str) -> None:
        """Its lines are told by the index's own name, if there are any more."""
        self._names.pop(index, None)

    def holdings(self, name: str) -> Sequence[str]:
        """Nothing: what was printed is its reader's."""
        return []

    def remove(self, name: str) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to give back: stdout is the process's."""

    @property
    def _out(self) -> BinaryIO:
        return self._stream or sys.stdout.buffer

    def _stamp(self, version: Lsn, index: str) -> tuple[bytes, bytes]:
        """What the objects of one call have in common, before and after their numbers."""
        ts = self._clock().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        before = {"sink": self.name, "version": str(version), "ts": ts}
        return _json(before)[:-1], _json({"index": self._names.get(index, index)})[1:-1]

    def _object(self, stamp: tuple[bytes, bytes], op: str, id: str | None, body: bytes | None) -> bytes:
        self._seq += 1
        before, index = stamp
        line = b'%s,"seq":%d,%s,"op":"%s","id":%s' % (before, self._seq, index, op.encode(), _json(id))
        if body is not None:
            # A value of type json keeps its line breaks; none can be inside a string.
            document = body.translate(_BREAKS)
            line += b',"document":%s,"meta":{"fields":%d,"bytes":%d}' % (document, count_fields(body), len(body))
        return b"".join(indented(line + b"}")) + b"\n" if self._pretty else line + b"}\n"


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def count_fields(document: bytes) -> int:
    """How many fields the document itself has, those of objects within it not counted."""
    depth = count = 0
    for token in _TOKEN.findall(document):
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
        elif token == b":" and depth == 1:
            count += 1
    return count


def indented(document: bytes) -> Iterator[bytes]:
    """The same JSON with line breaks; numbers and strings keep every character."""
    depth = 0
    before = b""
    for token in _TOKEN.findall(document):
        if token in (b"}", b"]"):
            depth -= 1
            if before not in (b"{", b"["):
                yield b"\n" + b"  " * depth
        elif before in (b"{", b"[", b","):
            yield b"\n" + b"  " * depth
        yield token
        if token == b":":
            yield b" "
        elif token in (b"{", b"["):
            depth += 1
        before = token


if TYPE_CHECKING:
    _as_sink: type[Sink] = StdoutSink
