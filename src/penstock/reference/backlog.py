"""Batches that wait for somebody who polls, in memory first, then on disk.

Guarantees: batches come out as they went in, in order; a backlog's file has no name, so that nothing stays behind
however the process ends, and gives its space back when the last batch on it is taken. A full disk is a `DiskError`.
Deliberately not: deciding how much may wait (`capture` does), or being durable: what waits was not acknowledged.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from typing import IO, NamedTuple

import pyarrow as pa

from penstock.errors import DiskError


class _Stored(NamedTuple):
    """A batch on disk."""

    offset: int
    size: int
    schema: pa.Schema


class Backlog:
    """The batches of one table that nobody has polled yet. The caller keeps threads apart."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder
        self._waiting: deque[pa.RecordBatch | _Stored] = deque()
        self._file: IO[bytes] | None = None
        self.memory_bytes = 0
        self.disk_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def append(self, batch: pa.RecordBatch) -> None:
        """Let a batch wait."""
        self._waiting.append(batch)
        self.memory_bytes += batch.nbytes

    def first(self) -> pa.RecordBatch:
        """The oldest batch, which stays."""
        head = self._waiting[0]
        if isinstance(head, _Stored):
            head = self._waiting[0] = self._load(head)
            self.memory_bytes += head.nbytes
        return head

    def popleft(self) -> pa.RecordBatch:
        """The oldest batch."""
        batch = self.first()
        self._waiting.popleft()
        self.memory_bytes -= batch.nbytes
        if not self._waiting:
            self._drop_file()
        return batch

    def spill(self) -> None:
        """Bring everything to disk that is in memory."""
        for at, one in enumerate(self._waiting):
            if not isinstance(one, _Stored):
                self._waiting[at] = self._store(one)
        self.memory_bytes = 0

    def clear(self) -> None:
        """Forget everything."""
        self._waiting.clear()
        self.memory_bytes = 0
        self._drop_file()

    def _store(self, batch: pa.RecordBatch) -> _Stored:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="penstock-", dir=self._folder, buffering=0)  # noqa: SIM115
            offset, view = self.disk_bytes, memoryview(batch.serialize())
            while len(view):
                written = os.pwrite(self._file.fileno(), view, self.disk_bytes)
                self.disk_bytes, view = self.disk_bytes + written, view[written:]
        except OSError as error:
            place = self._folder or tempfile.gettempdir()
            raise DiskError(
                f"the spool folder {place} cannot be written: {error.strerror}",
                hint="Free space there, or name another folder as spill_dir. Nothing was acknowledged.",
            ) from error
        return _Stored(offset, self.disk_bytes - offset, batch.schema)

    def _load(self, stored: _Stored) -> pa.RecordBatch:
        assert self._file is not None
        raw = os.pread(self._file.fileno(), stored.size, stored.offset)
        return pa.ipc.read_record_batch(pa.py_buffer(raw), stored.schema)

    def _drop_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self.disk_bytes = 0
