"""Row messages on disk: what does not fit into memory waits here as Arrow segments.

Guarantees: a spool's file has no name (it is unlinked as soon as it is open), so nothing stays behind however the
process ends; it holds one Arrow IPC message a segment; a full disk or a read-only folder is a `DiskError`.
Deliberately not: durable. What is here was not acknowledged, and the server sends it again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import DiskError
from penstock.postgres.columns import PADDING, Block
from penstock.postgres.pgoutput import Relation

_SCHEMA = pa.schema([("message", pa.large_binary())])


@dataclass(frozen=True, slots=True)
class Segment:
    """Where a spooled block stands in its file."""

    spool: Spool
    offset: int
    size: int
    rows: int
    relations: Mapping[int, Relation]
    streamed: bool

    def load(self) -> Block:
        """The block, from disk."""
        return self.spool.load(self)


class Spool:
    """One append-only file of segments. Used by one writer; segments may be loaded from any thread."""

    def __init__(self, folder: str | None = None) -> None:
        try:
            self._file: Any = tempfile.TemporaryFile(prefix="penstock-", dir=folder, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise _disk_error(error, folder) from error
        self._folder = folder
        self._end = 0

    def append(self, block: Block) -> Segment:
        """Write a block; it may be forgotten afterwards."""
        offsets = np.concatenate([[0], np.cumsum(block.lengths)])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(block.packed())]
        messages = pa.Array.from_buffers(pa.large_binary(), len(block), buffers)
        message = pa.record_batch([messages], schema=_SCHEMA).serialize()
        try:
            written, view = 0, memoryview(message)
            while written < len(view):
                written += self._file.write(view[written:])
        except OSError as error:
            raise _disk_error(error, self._folder) from error
        segment = Segment(self, self._end, len(view), len(block), block.relations, block.streamed)
        self._end += len(view)
        return segment

    def load(self, segment: Segment) -> Block:
        """Read a block back."""
        raw = os.pread(self._file.fileno(), segment.size, segment.offset)
        messages = pa.ipc.read_record_batch(pa.py_buffer(raw), _SCHEMA).column(0)
        _, offsets, data = messages.buffers()
        ends = np.frombuffer(offsets, np.int64)[: len(messages) + 1]
        padded = data.to_pybytes()[: int(ends[-1])] + PADDING
        return Block(padded, ends[:-1], np.diff(ends), segment.relations, segment.streamed)

    def close(self) -> None:
        """Give the disk space back."""
        self._file.close()


def _disk_error(error: OSError, folder: str | None) -> DiskError:
    place = folder or tempfile.gettempdir()
    return DiskError(
        f"the spool folder {place} cannot be written: {error.strerror}",
        hint="Free space there, or name another folder: by the variable TMPDIR, for a Spark stream of your own by"
        " spoolDir, in Python by spill_dir. Nothing was acknowledged.",
    )
