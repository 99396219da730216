"""Replication frames in, committed transactions out.

`Assembler.feed` takes CopyData frames as they were received and gives, in the order of the stream, each committed
`Transaction` and each `Keepalive`. Guarantees: a transaction comes out whole, in commit order, after its commit and
never before; every row stands with the description its table had at that time; what a rolled-back transaction or
savepoint wrote never comes out; frames that make no sense (a commit without a begin, a row of an unknown relation)
are a `DecodeError`. Memory: open transactions hold at most `spill_bytes` together, the rest waits in a spool on disk.

Row messages are not looked at one by one here: runs of them are cut from the received bytes as blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from penstock import failpoints
from penstock.errors import DecodeError
from penstock.model import Lsn
from penstock.postgres import pgoutput as pg
from penstock.postgres.columns import Block
from penstock.postgres.spool import Segment, Spool

# A CopyData frame: 'w', start LSN, end LSN, clock, then the pgoutput message; or 'k', WAL end, clock, reply flag.
XLOG_HEADER: Final = 25
_XLOG, _KEEPALIVE = b"wk"
_KEEPALIVE_SIZE = 18
_IS_ROW = np.zeros(256, np.bool_)
_IS_ROW[list(pg.ROWS)] = True


@dataclass(frozen=True, slots=True)
class Keepalive:
    """The server has sent everything up to `wal_end`; `reply` asks for an answer at once."""

    wal_end: Lsn
    reply: bool


@dataclass(frozen=True, slots=True)
class Truncated:
    """Tables that one TRUNCATE emptied; each counts as one row."""

    relations: tuple[pg.Relation, ...]
    xid: int | None = None


Part = Block | Segment | Truncated


@dataclass(frozen=True, slots=True)
class Transaction:
    """A committed transaction. `rows` counts its changes, `size` their bytes in memory and on disk."""

    xid: int
    end_lsn: Lsn
    commit_time: int
    rows: int
    size: int
    parts: tuple[Part, ...] = ()
    aborted: frozenset[int] = frozenset()
    spool: Spool | None = None

    def blocks(self) -> Iterator[Block | Truncated]:
        """Its rows in order, a bounded piece at a time, without those of rolled-back savepoints."""
        for part in self.parts:
            piece = part.load() if isinstance(part, Segment) else part
            if isinstance(piece, Block) and piece.streamed and self.aborted:
                piece = piece.kept(~np.isin(piece.xids(), list(self.aborted)))
            elif isinstance(piece, Truncated) and piece.xid in self.aborted:
                continue
            yield piece

    def release(self) -> None:
        """Give its disk space back; its rows are gone afterwards."""
        if self.spool:
            self.spool.close()


@dataclass(slots=True)
class _Open:
    """A transaction that is still being received."""

    xid: int
    relations: Mapping[int, pg.Relation]
    parts: list[Part] = field(default_factory=list)
    memory: int = 0
    size: int = 0
    rows: dict[int, int] = field(default_factory=dict)  # by (sub)transaction
    aborted: set[int] = field(default_factory=set)
    spool: Spool | None = None

    def add(self, part: Block | Truncated) -> None:
        self.parts.append(part)
        if isinstance(part, Truncated):
            xid = part.xid or self.xid
            self.rows[xid] = self.rows.get(xid, 0) + len(part.relations)
            return
        self.memory += len(part.data)
        self.size += len(part.data)
        if not part.streamed:
            self.rows[self.xid] = self.rows.get(self.xid, 0) + len(part.lengths)
            return
        xids, counts = np.unique(part.xids(), return_counts=True)
        for xid, count in zip(xids.tolist(), counts.tolist(), strict=True):
            self.rows[xid] = self.rows.get(xid, 0) + count

    def spill(self, folder: str | None) -> None:
        failpoints.passing("spill")
        self.spool = self.spool or Spool(folder)
        self.parts = [self.spool.append(part) if isinstance(part, Block) else part for part in self.parts]
        self.memory = 0

    def discard(self) -> None:
        if self.spool:
            self.spool.close()

    def close(self, end_lsn: Lsn, commit_time: int) -> Transaction:
        rows = sum(count for xid, count in self.rows.items() if xid not in self.aborted)
        parts = tuple(self.parts) if rows else ()
        return Transaction(
            self.xid, end_lsn, commit_time, rows, self.size, parts, frozenset(self.aborted), self.spool
        )  # fmt: skip


class Assembler:
    """The state between frames: known relations, the open transaction, running transactions sent in pieces."""

    def __init__(self, spill_bytes: int = 64 << 20, spill_dir: str | None = None) -> None:
        self._spill_bytes = spill_bytes
        self._spill_dir = spill_dir
        self._relations: Mapping[int, pg.Relation] = {}
        self._open: _Open | None = None
        self._running: dict[int, _Open] = {}
        self._piece: _Open | None = None

    @property
    def between_transactions(self) -> bool:
        """Whether nothing has been received of a transaction whose commit is still to come."""
        return self._open is None and self._piece is None

    def reset(self) -> None:
        """Forget everything: the connection is gone, the server starts over."""
        for transaction in [self._open, *self._running.values()]:
            if transaction:
                transaction.discard()
        self.__init__(self._spill_bytes, self._spill_dir)  # type: ignore[misc]

    def feed(self, frames: Sequence[memoryview | bytes]) -> Iterator[Transaction | Keepalive]:
        """Take frames in the order they were received."""
        if not frames:
            return
        failpoints.passing("assemble")
        data = b"".join(frames)
        lengths = np.fromiter(map(len, frames), np.int64, len(frames))
        ends = np.cumsum(lengths)
        raw = np.frombuffer(data, np.uint8)
        starts = ends - lengths
        # A frame too short to have a tag is looked at by itself, like every frame that is no row.
        is_row = (raw[starts] == _XLOG) & (lengths > XLOG_HEADER)
        is_row &= _IS_ROW[raw[np.minimum(starts + XLOG_HEADER, len(raw) - 1)]]
        done = 0
        for other in [*np.flatnonzero(~is_row).tolist(), len(frames)]:
            if other > done:
                start, end = int(starts[done]), int(ends[other - 1])
                self._rows(data[start:end], lengths[done:other])
            if other < len(frames):
                event = self._single(data[int(starts[other]) : int(ends[other])])
                if event:
                    yield event
            done = other + 1
        self._limit_memory()

    def _rows(self, data: bytes, lengths: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        into = self._piece or self._open
        if into is None:
            raise DecodeError("a row outside of a transaction", offset=0, tag=chr(data[XLOG_HEADER]))
        into.add(Block(data, lengths, into.relations, into is self._piece, XLOG_HEADER))

    def _single(self, frame: bytes) -> Transaction | Keepalive | None:
        kind = frame[0] if frame else 0
        if kind == _KEEPALIVE and len(frame) == _KEEPALIVE_SIZE:
            return Keepalive(Lsn(int.from_bytes(frame[1:9], "big")), bool(frame[17]))
        if kind != _XLOG or len(frame) <= XLOG_HEADER:
            raise DecodeError("a frame that is neither WAL data nor a keepalive", offset=0, tag=chr(kind))
        message = pg.decode(frame[XLOG_HEADER:], streamed=self._piece is not None)
        match message:
            case pg.Begin() | pg.StreamStart():
                self._start(message)
            case pg.Commit() | pg.StreamCommit():
                return self._commit(message)
            case pg.Relation():
                self._describe(replace(message, xid=None))
            case pg.Truncate():
                self._truncate(message)
            case pg.StreamStop():
                self._stop()
            case pg.StreamAbort():
                self._abort(message)
            case _:
                pass  # origins, type names and logical messages change nothing here
        return None

    def _start(self, message: pg.Begin | pg.StreamStart) -> None:
        tag = "B" if isinstance(message, pg.Begin) else "S"
        if not self.between_transactions:
            raise DecodeError("a transaction starts inside another", tag=tag)
        if isinstance(message, pg.Begin):
            self._open = _Open(message.xid, self._relations)
            return
        if message.xid not in self._running:
            if not message.first:
                raise DecodeError("a piece of a transaction whose first piece never came", tag=tag)
            # The server describes to each such transaction every relation anew.
            self._running[message.xid] = _Open(message.xid, {})
        self._piece = self._running[message.xid]

    def _stop(self) -> None:
        if self._piece is None:
            raise DecodeError("a piece ends that never started", tag="E")
        self._piece = None

    def _commit(self, message: pg.Commit | pg.StreamCommit) -> Transaction:
        if isinstance(message, pg.Commit):
            opened, self._open = self._open, None
        else:
            opened = self._running.pop(message.xid, None) if self.between_transactions else None
        if opened is None or self._piece is not None:
            raise DecodeError("a commit without a begin", tag="C" if isinstance(message, pg.Commit) else "c")
        if isinstance(message, pg.StreamCommit):
            # From here on the server takes what it described in the pieces as known.
            self._adopt(opened.relations)
        return opened.close(message.end_lsn, message.commit_time)

    def _adopt(self, described: Mapping[int, pg.Relation]) -> None:
        if any(self._relations.get(oid) != relation for oid, relation in described.items()):
            self._relations = {**self._relations, **described}

    def _abort(self, message: pg.StreamAbort) -> None:
        if message.subxid != message.xid:
            if message.xid in self._running:
                self._running[message.xid].aborted.add(message.subxid)
            return
        gone = self._running.pop(message.xid, None)
        if gone:
            gone.discard()

    def _describe(self, relation: pg.Relation) -> None:
        # A new mapping for a changed description only: blocks that share one can be decoded together.
        into = self._piece or self._open
        known = into.relations if into else self._relations
        if known.get(relation.oid) == relation:
            return
        described = {**known, relation.oid: relation}
        if into:
            into.relations = described
        if self._piece is None:
            self._relations = described

    def _truncate(self, message: pg.Truncate) -> None:
        into = self._piece or self._open
        if into is None:
            raise DecodeError("a truncate outside of a transaction", tag="T")
        unknown = [oid for oid in message.oids if oid not in into.relations]
        if unknown:
            raise DecodeError(f"a truncate of relation {unknown[0]}, which was never described", tag="T")
        into.add(Truncated(tuple(into.relations[oid] for oid in message.oids), message.xid))

    def _limit_memory(self) -> None:
        held = [t for t in [self._open, *self._running.values()] if t and t.memory]
        while held and sum(t.memory for t in held) > self._spill_bytes:
            largest = max(held, key=lambda t: t.memory)
            largest.spill(self._spill_dir)
            held.remove(largest)
