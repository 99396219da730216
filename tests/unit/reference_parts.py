"""A small table, changes of it as the stream has them, and a source that a test fills by hand."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from penstock.contracts import SourceCheckpoint
from penstock.errors import PenstockError
from penstock.model import Lsn, Origin, Position, QualifiedTable
from penstock.postgres.rows import ADDED
from penstock.reference import checkpoint as checkpoints
from penstock.reference.moment import Newest
from penstock.reference.shape import TableShape

TABLE = QualifiedTable("public", "city")
INT8, TEXT = 20, 25
SHAPE = TableShape(TABLE, (("id", INT8, -1), ("name", TEXT, -1), ("notes", TEXT, -1)), ("id",))
ORIGIN = Origin("4711", 1)

Row = tuple[Any, ...]
Change = tuple[str, Row, Sequence[str]]


def rows(*found: Row, schema: pa.Schema = SHAPE.schema) -> pa.RecordBatch:
    """Rows of a snapshot."""
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in found], schema=schema)


def changes(*found: Change, lsn: int = 1, schema: pa.Schema = SHAPE.schema) -> pa.RecordBatch:
    """Changes: what happened, the row, and the columns of it that were not sent."""
    own = rows(*(row for _, row, _ in found), schema=schema)
    added = [
        pa.array([kind for kind, _, _ in found], pa.string()),
        pa.array([lsn] * len(found), pa.int64()),
        pa.array(range(len(found)), pa.int64()),
        pa.nulls(len(found), pa.int64()),
        pa.nulls(len(found), pa.timestamp("us", "UTC")),
        pa.array([list(missing) for _, _, missing in found], pa.list_(pa.string())),
    ]
    return pa.record_batch([*own.columns, *added], schema=pa.schema([*schema, *ADDED]))


def insert(*row: Any) -> Change:
    return "insert", row, ()


def update(*row: Any, missing: Sequence[str] = ()) -> Change:
    return "update_postimage", row, missing


def delete(key: Any) -> Change:
    return "delete", (key, None, None), ("name", "notes")


def move(key: Any, *row: Any, missing: Sequence[str] = ()) -> list[Change]:
    return [("update_preimage", (key, None, None), ("name", "notes")), ("update_postimage", row, missing)]


TRUNCATE: Change = ("truncate", (None, None, None), ("id", "name", "notes"))


def checkpoint(lsn: int, *, slot: str = "dims", shape: TableShape = SHAPE) -> SourceCheckpoint:
    """Everything up to an LSN."""
    return checkpoints.make(slot, ORIGIN, shape, Position(Lsn(lsn), 0), Lsn(lsn))


class Script:
    """A source that gives what it was told to: batches, or errors to raise."""

    table = TABLE
    slot = "dims"
    shape = SHAPE

    def __init__(self, snapshot: Iterable[Row] = (), follows: bool = True) -> None:
        self.follows = follows
        self.snapshot = list(snapshot)
        self.coming: deque[tuple[pa.RecordBatch, bool] | PenstockError] = deque()
        self.lsn, self.whole = 100, 100
        self.behind = 0  # how much of the WAL has not come yet
        self.confirmed: list[int] = []
        self.trouble: PenstockError | None = None
        self.snapshots = 0
        self.closed = False
        self._left: list[Row] | None = None
        self._complete = False

    def will_send(self, *found: Change, whole: bool = True) -> None:
        self.coming.append((changes(*found), whole))

    def poll_snapshot(self) -> pa.RecordBatch | None:
        if self._complete:
            return None
        if self._left is None:
            self._left, self.snapshots = list(self.snapshot), self.snapshots + 1
        if not self._left and self.trouble:
            raise self.trouble
        self._complete = not self._left
        return rows(self._left.pop(0)) if self._left else None

    def is_snapshot_complete(self) -> bool:
        return self._complete

    def poll_changes(self) -> pa.RecordBatch | None:
        if not self._complete or not self.coming:
            return None
        found = self.coming.popleft()
        if isinstance(found, PenstockError):
            raise found
        batch, whole = found
        self.lsn += 1
        self.whole = self.lsn if whole else self.whole
        return batch

    def checkpoint(self) -> SourceCheckpoint:
        place = Position(Lsn(self.lsn if self._complete else 0), 0)
        return checkpoints.make(self.slot, ORIGIN, SHAPE, place, Lsn(self.whole if self._complete else 0))

    def confirm(self, checkpoint: SourceCheckpoint) -> None:
        self.confirmed.append(int(checkpoints.acknowledged(checkpoint)))

    def restore(self, checkpoint: SourceCheckpoint) -> None:
        checkpoints.require(checkpoint, self.slot, self.table)
        self._complete = True
        self.lsn = self.whole = int(checkpoint.position.lsn)

    def newest(self, max_age_s: float = 0.0) -> Newest:
        return Newest(time.time(), Lsn(self.lsn + len(self.coming) + self.behind))

    def again(self) -> None:
        self._complete, self._left = False, None

    def stop(self) -> None:
        pass

    def go_on(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True
