"""A connected reader of a query: the stream, the tables, and files that are on their way to the tasks.

Guarantees: it connects only where the offsets still fit the server and the slot: the slot is there, stands at or
before the start, and belongs to the system that the offsets name. Otherwise it is a clear stop, or, with
`failOnDataLoss` false, a warning, and the query goes on behind what is gone; never on another server, or on one whose
WAL the offsets are ahead of, where what is new would count as read. The slot is not acknowledged before a checkpoint
that we are told of is on disk, power loss or not.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import types as spark
from pyspark.sql.datasource import InputPartition

from penstock.engine import checkpoint
from penstock.errors import (
    ConfigError,
    PenstockError,
    PositionError,
    SlotActiveError,
    SlotLostError,
    SlotMissingError,
    UnavailableError,
)
from penstock.model import Lsn, Origin, ReplicationConfig
from penstock.postgres import changes, publication, resume, slot
from penstock.postgres.capture import WalChangeCapture
from penstock.postgres.changes import Piece
from penstock.postgres.connection import open_sql
from penstock.postgres.replay import Cut, Replay
from penstock.postgres.transactions import Truncated
from penstock.spark import health
from penstock.spark.options import SourceOptions
from penstock.spark.seeding import Chunks, Seed, make_slot
from penstock.spark.tables import ReadPlan, TableWatch

log = logging.getLogger(__name__)

# How long a restarted query bears a silent server while a planned batch is to come again.
_SILENCE_S = 300.0
# How long a slot that somebody else is making is waited for, and how often it is looked at.
_MAKING_S, _LOOK_S = 90.0, 0.2
# What transactions that are still being received may hold in memory; more of them waits on disk.
_SPILL_BYTES = 64 << 20
# How often a checkpoint that we are told of is brought to disk at most: the server hears from us about as often, and no
# batch is to wait for a disk of its own.
_SYNC_S = 1.0
# What one task decodes.
_PIECE_ROWS = 131_072
_PIECE_BYTES = 8 << 20


class Live:
    """One run of a query's reader. `start` is where Spark's log stands; `origin` the server that it belongs to;
    `planned` how far the batch goes that the log says was begun, where there is one."""

    def __init__(
        self, options: SourceOptions, schema: spark.StructType, start: Cut, origin: Origin | None, planned: Cut
    ) -> None:
        self._options = options
        self._settings = options.settings()
        self._floor = start.whole  # the slot may stand here, and not beyond
        self._resumed = origin is not None
        self._lost = Lsn.ZERO  # up to here the offsets stand for nothing any more
        self._logged = self._acknowledged = Cut()
        self._synced_at = 0.0
        if options.temporary_slot and self._resumed:
            raise ConfigError(
                "a temporary slot cannot serve a checkpoint that has offsets: it ended with the last run",
                hint="Use a lasting slot, or a new checkpoint.",
            )
        self._check_loss()
        config = ReplicationConfig(
            options.slot,
            options.publication,
            start_lsn=start.lsn if start.rows is None and self._resumed else Lsn.ZERO,
            origin=origin,  # also where changes are lost: another server's positions mean nothing here
            temporary_slot=options.temporary_slot,
            failover=options.failover,
            buffer_bytes=options.spool_max_bytes,
            spill_bytes=min(options.spool_max_bytes, _SPILL_BYTES),
            spill_dir=options.spool_dir,
        )
        capture = WalChangeCapture(config, self._settings)
        self._require_published(capture)
        capture.with_publication_management(set(options.tables), options.manage_publication).require_coverage()
        self._tables = TableWatch(self._settings, options, schema)
        self._seed: Seed | None = None
        self.opening_chunks: Chunks | None = None
        if options.starting_position == "snapshot" and origin is None:
            self.opening_chunks = self._start_with_snapshot()
        self._files: list[str] = []
        self._unswept = options.batch_folder()
        server = f"{self._settings.describe()} {options.slot}"
        self._prefix = f"penstock-{hashlib.sha256(server.encode()).hexdigest()[:16]}"
        floor, promised = (self._floor, planned.lsn) if self._resumed else (Lsn.ZERO, Lsn.ZERO)
        self.replay = Replay(self._settings, config, self._check_slot, floor, promised)
        self._report = health.Report(options.slot, self._settings.describe(), self.replay, self._newest)

    def _newest(self) -> Lsn:
        with open_sql(self._settings, timeout_s=2.0, statement_timeout_s=2.0) as connection:
            return slot.wal_end(connection)

    def _start_with_snapshot(self) -> Chunks:
        """Hold the snapshot of the slot's start; where the slot is older than this run, a later one: it converges."""
        confirmed = self._made_before()
        if confirmed is None:
            lsn, self._seed = make_slot(self._options, self._settings)
        else:
            lsn, self._seed = confirmed, Seed(self._options, self._settings)
        return self._seed.begin(lsn)

    def _made_before(self) -> Lsn | None:
        """Where a slot that is there stands; somebody who is still making it, a reader that was killed maybe, is waited
        for: until then it stands nowhere."""
        name, deadline, is_told = self._options.slot, time.monotonic() + _MAKING_S, False
        while True:
            with open_sql(self._settings) as connection:
                found = slot.inspect(connection, name)
            if found is None:
                return None
            slot.verify(found, self._settings.database)
            if found.confirmed_flush_lsn:
                return found.confirmed_flush_lsn
            making = f"slot {name} is still being made by pid {found.active_pid}"
            if time.monotonic() > deadline:
                raise SlotActiveError(
                    making,
                    hint="It waits for every transaction that is running. Start again when it is made, or end that "
                    f"process: SELECT pg_terminate_backend({found.active_pid});",
                )
            if not is_told:
                log.warning("%s: waiting for it", making)
                is_told = True
            time.sleep(_LOOK_S)

    def further(self, chunks: Chunks) -> Chunks:
        """How far the next micro-batch reads; after a restart of the whole table again, in a fresh snapshot."""
        if self._seed is None:
            self._seed = Seed(self._options, self._settings, chunks.done)
        return self._seed.further(chunks)

    def chunks(self, start: Chunks, end: Chunks) -> list[InputPartition]:
        """The chunks after `start` up to `end`; none of those that a run before this one planned."""
        return self._seed.partitions(start, end) if self._seed else []

    def end_seed(self) -> None:
        """Every chunk is done: let the snapshot go."""
        if self._seed:
            self._seed.close()
            self._seed = None

    @property
    def origin(self) -> Origin:
        """The server that is read."""
        origin = self.replay.origin
        if origin is None:
            raise UnavailableError("the server is not known yet")
        return origin

    @property
    def plan(self) -> ReadPlan:
        """What the tasks know of the tables."""
        return self._tables.plan

    def _check_loss(self) -> None:
        """Stop where changes are gone for good, unless `failOnDataLoss` says to go on behind them.

        There is nothing behind a position that the server's WAL does not reach: that is a stop either way.
        """
        found = self._look()
        try:
            self._require(found)
        except (SlotMissingError, SlotLostError, PositionError) as error:
            if self._options.fail_on_data_loss:
                raise
            log.warning("changes are lost, and failOnDataLoss is false: %s", error.message)
            self._resumed, self._lost = False, Lsn(self._floor + 1)
            if isinstance(error, SlotLostError):
                with open_sql(self._settings) as connection:
                    slot.drop(connection, self._options.slot)

    def _require_published(self, capture: WalChangeCapture) -> None:
        """A table that a checkpoint was read of, and that is out of the publication, has changes that never come.

        Which of several is new to the query, nobody knows.
        """
        if not self._resumed:
            return
        missing = capture.inspect_coverage(set(self._options.tables)).missing
        if not missing:
            return
        names = ", ".join(map(str, sorted(missing)))
        lost = f"{names}, which the checkpoint has read, is not in publication {self._options.publication} any more"
        if self._options.many:
            log.warning("%s is published from now on; what was written before does not come", names)
        elif self._options.fail_on_data_loss:
            raise PositionError(
                f"{lost}: what was written meanwhile does not come",
                hint=self._remedy(
                    "Start with a new slot, a new checkpoint and a snapshot, or set failOnDataLoss to false to go on "
                    "without it."
                ),
            )
        else:
            log.warning("changes are lost, and failOnDataLoss is false: %s", lost)

    def _check_slot(self) -> None:
        """Before a slot is made or read: the publication is there, and the slot still holds what the offsets need."""
        self._require(self._look())

    def _look(self) -> slot.SlotInfo | None:
        options = self._options
        with open_sql(self._settings) as connection:
            found = slot.inspect(connection, options.slot)
            if found:
                publication.require(connection, options.publication, options.slot, options.tables)
            wal_end = slot.wal_end(connection)
        if self._resumed:
            resume.check_wal(self._floor, wal_end)
        return found

    def _require(self, found: slot.SlotInfo | None) -> None:
        options = self._options
        if not self._resumed:
            return
        if found is None:
            raise SlotMissingError(
                f"slot {options.slot} is gone, but the checkpoint has read up to {self._floor} of it",
                hint=self._remedy(
                    "Changes made since then are lost for this query. Start with a new checkpoint and a snapshot, or "
                    "set failOnDataLoss to false to go on without them."
                ),
            )
        slot.verify(found, self._settings.database)
        confirmed = found.confirmed_flush_lsn or Lsn.ZERO
        if confirmed > self._floor:
            raise PositionError(
                f"slot {options.slot} stands at {confirmed}, past the checkpoint's {self._floor}: somebody else "
                "consumed it" + ("" if options.checkpoint_folder else ", or a power loss took the checkpoint's end"),
                hint=self._remedy(
                    "One slot serves one query. Start with a new slot, a new checkpoint and a snapshot, or set "
                    "failOnDataLoss to false to go on without what is gone."
                ),
            )

    def _remedy(self, of_a_query: str) -> str:
        """What is to be done: a deployment, which tells us of its checkpoint, has a command for it."""
        return resume.REPAIR if self._options.checkpoint_folder else of_a_query

    def acknowledge(self, cut: Cut) -> None:
        """What Spark has logged as done may go: from the slot, from the spool, from the disk."""
        self._drop_files()
        if cut.lsn > self._lost:
            self._floor = max(self._floor, cut.whole)
            self.replay.release(cut)
            self._logged = cut if cut.rows is None else self._logged
            self._raise_slot(_SYNC_S)

    def _raise_slot(self, every_s: float) -> None:
        """To what Spark has logged, once that is on disk: Spark does not see to it, and the server would remember."""
        if self._acknowledged == self._logged:
            return
        if folder := self._options.checkpoint_folder:
            if time.monotonic() - self._synced_at < every_s:
                return  # we are asked again within a second, also when nothing happens
            checkpoint.sync(Path(folder))
            self._synced_at = time.monotonic()
        self.replay.acknowledge(self._logged)
        self._acknowledged = self._logged

    def pieces(self, start: Cut, end: Cut, meanwhile: Callable[[], None]) -> Iterator[Piece]:
        """The changes after `start` up to `end`, cut for the tasks; their tables are known when they are handed out."""
        spans = self.replay.between(start, end, _SILENCE_S, meanwhile)
        self._sweep()
        for piece in changes.cut(spans, _PIECE_ROWS, _PIECE_BYTES):
            rows = piece.rows
            if not isinstance(rows, Truncated):
                self._tables.meet(rows.described())
                yield piece
                continue
            self._tables.meet(rows.together)
            # Keys name the partition; a row that does not is only for what was emptied as a whole.
            yield from [piece] if self._options.mode == "keys" else map(piece.row, self._tables.emptied(rows))

    def keep(self, content: bytes, folder: str) -> str:
        """A file with the content, for the tasks of the batch being planned: who may read the folder may read it."""
        prefix = f"{self._prefix}-"
        with tempfile.NamedTemporaryFile(prefix=prefix, suffix=".batch", dir=folder, delete=False) as file:
            os.fchmod(file.fileno(), 0o600 | (os.stat(folder).st_mode & 0o044))
            file.write(content)
        self._files.append(file.name)
        return file.name

    def _sweep(self) -> None:
        """Once the slot is ours, whatever lies under its name was left by a reader that was killed."""
        folder, self._unswept = self._unswept, None
        if folder:
            for path in Path(folder).glob(f"{self._prefix}-*.batch"):
                path.unlink(missing_ok=True)

    def _drop_files(self) -> None:
        """Remove the files of batches that are done."""
        for path in self._files:
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
        self._files.clear()

    def close(self) -> None:
        """End the stream and remove what is on its way."""
        self.end_seed()
        self._drop_files()
        self._report.close()
        with contextlib.suppress(PenstockError):
            self._raise_slot(0.0)
        self.replay.close()
