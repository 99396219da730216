"""What one table is given of a slot's stream, and how far it has been given it.

Rows are decoded by table, so that what is wrong with one stops no other. Guarantees: a change is handed out once, in
commit order, and only if it stands behind the table's place; a failure is raised after everything before it. A position
covers what was taken, not what waits; where nothing waits it moves with what was read of the WAL, and the slot may pass
a transaction only when all of it was taken. No I/O but the backlog's file, no clock. The caller keeps threads apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import OperatorError, PenstockError
from penstock.model import Lsn, Position
from penstock.postgres.changes import Origins, Piece
from penstock.postgres.columns import Block, Mask
from penstock.postgres.emptied import spared
from penstock.postgres.pgoutput import Relation
from penstock.postgres.rows import ADDED, RowShape, TableBatch, Unrepresentable, row_batches
from penstock.postgres.transactions import Truncated
from penstock.reference.backlog import Backlog
from penstock.reference.seen import Seen
from penstock.reference.shape import Known, check_relation

_NOWHERE = Position(Lsn.ZERO, 0)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of a piece."""

    rows: Block | Truncated
    origin: Origins

    def origins(self) -> Origins:
        return self.origin


class Delivery:
    """The changes of one table on their way to whoever polls."""

    def __init__(self, known: Known, unrepresentable: Unrepresentable, folder: str | None = None) -> None:
        self.known = known
        self.error: PenstockError | None = None
        self.backlog = Backlog(folder)
        self._layout = RowShape(unrepresentable=unrepresentable)
        self._start = Lsn.ZERO  # everything up to here was delivered as a snapshot, or before a restart
        self._tip = _NOWHERE  # the last change that was put into the backlog
        self._taken = _NOWHERE  # the last change that was taken out of it
        self._whole = Lsn.ZERO  # up to here every transaction was taken as a whole
        self.seen: Seen | None = None  # what a snapshot delivered of what follows
        self.late = False  # nothing is kept behind what waits: there was no room
        self.timeline: int | None = None  # the server's history that its position belongs to

    def place(self, position: Position, whole: Lsn, seen: Seen | None = None) -> None:
        """Stand at a position: what is up to there, in transactions up to `whole`, or `seen`, is not handed out."""
        self.error, self.seen, self.late = None, seen, False
        self.backlog.clear()
        self._start = self._whole = whole
        self._taken = self._tip = position

    def pass_over(self, seen: Seen) -> bool:
        """Drop what a snapshot has seen; False where what follows was not kept: something was wrong, or no room."""
        is_whole = self.error is None and not self.late
        kept = [self.backlog.popleft() for _ in range(len(self.backlog))] if is_whole else None
        self.place(Position(self._start, 0), self._start, seen)
        for batch in kept or ():
            told = seen.covers(batch["_commit_lsn"].to_numpy(), batch["_xid"].to_numpy())
            rest = batch.filter(pa.array(~told))
            if len(rest):
                self.backlog.append(rest)
                self._tip = _position(rest, -1)
        return kept is not None

    def rewind(self, read: Lsn) -> None:
        """Forget what waits: the stream, which was read up to `read`, begins again somewhere before."""
        _, whole = self.reached(read)
        self.backlog.clear()
        self.error, self.late = None, False
        self._start = self._whole = max(self._start, whole)
        self._tip = self._taken

    def offer(self, piece: Piece) -> None:
        """See a piece of the stream, and keep what belongs to the table."""
        if self.error is not None or self.late:
            return
        try:
            batch = self._decoded(piece)
        except PenstockError as error:
            self.error = error
            return
        if batch is not None and len(batch):
            self._tip = _position(batch, -1)
            self.backlog.append(batch)

    def take(self) -> pa.RecordBatch | None:
        """The next changes; None where none wait. Raises what stands in the way of any further ones."""
        if not self.backlog:
            if self.error is not None:
                raise self.error
            return None
        batch = self.backlog.popleft()
        lsns = batch["_commit_lsn"].to_numpy()
        self._taken = last = _position(batch, -1)
        before = lsns[lsns < last.lsn]
        if len(before):
            self._whole = max(self._whole, Lsn(int(before[-1])))
        if self.backlog and _position(self.backlog.first(), 0).lsn > last.lsn:
            self._whole = last.lsn
        return batch

    @property
    def whole(self) -> Lsn:
        """Every transaction up to here was taken, or need not be."""
        return max(self._whole, self._start)

    @property
    def position(self) -> Position:
        """The last change that was taken."""
        return self._taken

    def reached(self, read: Lsn) -> tuple[Position, Lsn]:
        """How far the table is, and what the slot may pass, where the stream was read up to `read`."""
        if not self.backlog and self.error is None and not self.late:
            whole = max(read, self.whole)
            # Kept, so that trouble which comes later does not take back what was said.
            self._taken, self._whole = max(self._taken, Position(whole, 0)), whole
        return self._taken, self._whole

    def _decoded(self, piece: Piece) -> pa.RecordBatch | None:
        origins = piece.origins()
        new = self._is_new(origins)
        if not new.any():
            return None
        if isinstance(piece.rows, Truncated):
            return self._truncated(piece.rows, origins, new)
        oids = piece.rows.oids()
        ours = self._streamed(piece.rows, oids[new])
        keep = new & np.isin(oids, ours)
        if not keep.any():
            return None
        part = _Part(piece.rows.kept(keep), Origins(*(column[keep] for column in origins)))
        found = row_batches(part, self._layout, dict.fromkeys(self._tables(), self.known.shape.key))
        return self._in_order(found)

    def _tables(self) -> list[Any]:
        return list(self.known.streamed.values())

    def _is_new(self, origins: Origins) -> Mask:
        lsn, row = self._tip
        behind = (origins.lsns > lsn) | ((origins.lsns == lsn) & (origins.ordinals > row))
        new: Mask = behind & (origins.lsns > self._start)
        return new if self.seen is None else new & ~self.seen.covers(origins.lsns, origins.xids)

    def _streamed(self, block: Block, oids: Any) -> list[int]:
        """Which of the block's relations are the table's; each is looked at as the stream describes it."""
        found = [block.relations[oid] for oid in np.unique(oids).tolist() if oid in block.relations]
        ours = [relation for relation in found if self._is_ours(relation)]
        for relation in ours:
            check_relation(self.known, relation)
        return [relation.oid for relation in ours]

    def _is_ours(self, relation: Relation) -> bool:
        return relation.oid in self.known.streamed or relation.table in self._tables()

    def meets(self, piece: Piece) -> list[Relation]:
        """The relations of a piece that are not known as the table's: partitions of it, perhaps, made since."""
        if not self.known.partitioned or self.error is not None:
            return []
        described = piece.rows.relations if isinstance(piece.rows, Truncated) else piece.rows.described()
        return [relation for relation in described if not self._is_ours(relation)]

    def adopt(self, known: Known) -> None:
        """Know the table's partitions as they are now; its columns stay those that were read."""
        self.known = replace(self.known, streamed=known.streamed, footing=known.footing)

    def fail(self, error: PenstockError) -> None:
        """Hand out nothing behind what waits: the stream does not tell all of it."""
        self.error = self.error or error

    def _truncated(self, truncated: Truncated, origins: Origins, new: Mask) -> pa.RecordBatch | None:
        pairs = zip(truncated.relations, new.tolist(), strict=True)
        emptied = [at for at, (relation, is_new) in enumerate(pairs) if is_new and self._is_ours(relation)]
        if not emptied:
            return None
        table = self.known.shape.table
        leaves = {oid: leaf for oid, leaf in self.known.streamed.items() if leaf != table}
        if self.known.partitioned and (left := spared(truncated.together, table, leaves)):
            raise OperatorError(
                f"a partition of {table} was truncated, and {left[0]} was not: which rows it held cannot be told",
                hint="Take a new snapshot: refresh() of the view, or again() of the source.",
            )
        for at in emptied:
            check_relation(self.known, truncated.relations[at], empties=True)
        part = _Part(
            Truncated(tuple(truncated.relations[at] for at in emptied[-1:]), truncated.xid),
            Origins(*(column[emptied[-1:]] for column in origins)),
        )
        (found,) = row_batches(part, self._layout, {})
        return self._in_order([found])

    def _in_order(self, found: list[TableBatch]) -> pa.RecordBatch:
        """The rows of all partitions, in the order of the stream, with the columns that are delivered."""
        names = [*self.known.shape.names, *ADDED.names]
        batches = [one.rows.select(names) for one in found]
        if len(batches) == 1:
            return batches[0]
        by_place = [("_commit_lsn", "ascending"), ("_seq", "ascending")]
        (ordered,) = pa.Table.from_batches(batches).sort_by(by_place).combine_chunks().to_batches()
        return ordered


def _position(batch: pa.RecordBatch, at: int) -> Position:
    return Position(Lsn(batch["_commit_lsn"][at].as_py()), batch["_seq"][at].as_py())
