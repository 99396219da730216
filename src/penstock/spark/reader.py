"""The streaming side of the Spark source: ranges of changes planned on the driver, decoded in the tasks.

Spark keeps one process for a query's reader and calls it again and again. A thread of ours receives meanwhile; what it
has received stays until Spark's own log proves that it is durable: `latestOffset(start)` is only called with a start
whose batch has been committed, so that is where the slot is acknowledged. `partitions` may be the first call after a
restart and may come twice; the same two offsets give the same rows. The first batch of a query is empty: it writes
down where the slot stood, so that from then on nothing of it can be lost unnoticed.

Guarantees: the slot never passes an offset that Spark has not logged as done; a start behind the slot's position means
that somebody else consumed it, and is a clear stop. Deliberately not: retrying a failed query, which is the caller's.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from penstock import failpoints
from penstock.errors import OperatorError
from penstock.model import Lsn
from penstock.postgres import slot
from penstock.postgres.changes import Piece
from penstock.postgres.connection import open_sql
from penstock.postgres.parcel import pack
from penstock.postgres.replay import Cut, Replay
from penstock.spark.decoding import decode, keys
from penstock.spark.direct import MAX_ROWS, Desk
from penstock.spark.live import Live
from penstock.spark.offsets import INITIAL, to_chunk_offset, to_chunks, to_cut, to_offset
from penstock.spark.options import SourceOptions
from penstock.spark.seeding import ChunkPartition, read_chunk
from penstock.spark.workers import spare_the_collector

# Long enough that an idle query does not spin, short enough that a reader whose Spark was killed ends soon.
_POLL_S = 0.5
# What travels inside a partition; larger runs go as files where every node is said to read them.
_INLINE_BYTES = 1 << 20


@dataclass(frozen=True)
class ChangePartition(InputPartition):
    """A run of changes: its bytes, or the file that holds them."""

    data: bytes = b""
    path: str = ""

    def __repr__(self) -> str:
        return f"ChangePartition({len(self.data)} bytes{self.path and ' in a file'})"

    def load(self) -> bytes:
        """The bytes."""
        if not self.path:
            return self.data
        try:
            with open(self.path, "rb") as file:
                return file.read()
        except OSError as error:
            raise OperatorError(
                f"a task cannot read its batch from {self.path}: {error.strerror}",
                hint="Let spoolDir be a folder that every worker reaches and may read, or leave spoolShared out.",
            ) from error


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's reader. Cheap to make and to pickle: it connects when Spark first asks for changes."""

    def __init__(self, options: SourceOptions, schema: spark.StructType) -> None:
        self._options = options
        self._schema = schema
        self._live: Live | None = None
        self._desk: Desk | None = None
        self._target: Lsn | None = None
        self._parent = os.getppid()
        self._stopping = False
        self._is_own_process = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_live": None, "_desk": None}

    def initialOffset(self) -> dict[str, Any]:
        """Where the slot stands: always the same words, since Spark asks again after a restart."""
        return dict(INITIAL)

    def getDefaultReadLimit(self) -> ReadLimit:
        """No limit of Spark's: the reader applies `maxRowsPerTrigger` and `maxBytesPerTrigger` itself, both at once."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Note how far the WAL reaches now; the query ends there."""
        with open_sql(self._options.settings()) as connection:
            self._target = slot.wal_end(connection)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Acknowledge `start`, which Spark has logged as done, and say how far there are changes now."""
        live = self._connected(start)
        cut, _ = to_cut(start, self._options.slot)
        chunks = to_chunks(start)
        if chunks and not chunks.complete:
            return to_chunk_offset(live.further(chunks), live.origin, self._options.slot)
        if chunks:
            live.end_seed()
        failpoints.passing("acknowledge")
        live.acknowledge(cut)
        failpoints.passing("acknowledge")
        found = live.replay.promise(self._latest(live.replay, cut) if cut.lsn else self._opening(live.replay))
        if not cut.lsn and found.lsn and live.opening_chunks:
            return to_chunk_offset(live.opening_chunks, live.origin, self._options.slot)
        return start if found == cut else to_offset(found, live.origin, self._options.slot)

    def _opening(self, replay: Replay) -> Cut:
        found = replay.opening(_POLL_S)
        while self._target is not None and not found.lsn:  # an answer is final there
            self._end_if_orphaned()
            found = replay.opening(_POLL_S)
        return found

    def _latest(self, replay: Replay, cut: Cut) -> Cut:
        limits = self._options.max_rows, self._options.max_bytes
        if self._target is None:
            return replay.latest(cut, *limits, _POLL_S)
        while cut.whole < self._target:
            is_all_here = replay.reached >= self._target  # before looking: what comes meanwhile is looked at
            found = replay.latest(cut, *limits, _POLL_S, upto=self._target)
            if found != cut:
                return found
            if is_all_here:
                return replay.resting(cut)
            self._end_if_orphaned()
        return cut

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """How far the reader has received."""
        if self._live is None or not self._live.replay.reached:
            return None
        return to_offset(Cut(self._live.replay.reached), self._live.origin, self._options.slot)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The changes after `start` up to `end`, cut for the tasks."""
        # The first batch of all has no rows; its end is the first offset that tells anything.
        live = self._connected(end if start == INITIAL else start, end)
        (first, _), (last, _) = to_cut(start, self._options.slot), to_cut(end, self._options.slot)
        done, upto = to_chunks(start), to_chunks(end)
        if done and upto:
            return live.chunks(done, upto)
        pieces = live.pieces(first, last, self._end_if_orphaned)
        if self._options.direct_socket:
            pieces = self._offered(live, (last, end), pieces)
        return [self._partition(live, pack(piece)) for piece in pieces]

    def _offered(self, live: Live, end: tuple[Cut, dict[str, Any]], pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The pieces, and at their end the whole range on the desk, where it is small and wanted there."""
        if self._desk is None:
            self._desk = Desk(self._options.direct_socket)
        batches: list[pa.RecordBatch] | None = [] if self._options.direct_changes else None
        rows = 0
        times: dict[int, int] = {}
        for piece in pieces:
            rows += piece.count
            times.update((span.transaction.xid, span.transaction.commit_time) for span in piece.spans)
            batches = None if batches is None or rows > MAX_ROWS else batches
            if batches is not None:
                batches.append(keys(live.plan, piece))
            yield piece
        self._desk.offer(end[0].lsn, batches, times.values(), end[1])

    def _partition(self, live: Live, data: bytes) -> ChangePartition:
        content = pickle.dumps((live.plan, data))
        if len(content) > _INLINE_BYTES and (folder := self._options.batch_folder()):
            return ChangePartition(path=live.keep(content, folder))
        return ChangePartition(content)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode one partition, in a task."""
        spare_the_collector()
        if isinstance(partition, ChunkPartition):
            return read_chunk(partition, self._options)
        assert isinstance(partition, ChangePartition)
        plan, data = pickle.loads(partition.load())
        return decode(plan, data, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: `latestOffset` acknowledges, sooner and also when idle."""

    def stop(self) -> None:
        """End the stream; and the process where Spark has already let go of it, and would only show how it ended."""
        self._stopping = True
        if self._desk:
            self._desk.close()
            self._desk = None
        if self._live:
            self._live.close()
            self._live = None
        if self._is_own_process and isinstance(sys.exc_info()[1], SystemExit | EOFError):
            os._exit(0)

    def _connected(self, start: dict[str, Any], end: dict[str, Any] | None = None) -> Live:
        if self._live is None:
            self._end_on_sigterm()
            cut, origin = to_cut(start, self._options.slot)
            planned, _ = to_cut(end or start, self._options.slot)
            self._live = Live(self._options, self._schema, cut, origin, planned)
        return self._live

    def _end_on_sigterm(self) -> None:
        """Spark ends the process with SIGTERM and calls nothing; as an exception it lets `stop` run, to its end."""

        def leave(number: int, frame: object) -> None:
            if not self._stopping:
                self._stopping = True  # Spark sends it twice, and the second must not end what the first began
                raise SystemExit(128 + number)

        try:
            signal.signal(signal.SIGTERM, leave)
            atexit.register(self.stop)  # where the signal came just before `stop` was entered
            self._is_own_process = True
        except ValueError:
            pass  # not the main thread: a test, or a host that handles signals itself

    def _end_if_orphaned(self) -> None:
        """Spark was killed: nobody reads the answer, and the slot is to be free for the next run."""
        if os.getppid() != self._parent:
            raise SystemExit(1)
