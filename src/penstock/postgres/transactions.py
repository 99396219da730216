"""Replication frames in, committed transactions out.

`Assembler.feed` takes CopyData frames as they were received and gives, in the order of the stream, each committed
`Transaction` and each `Keepalive`. Guarantees: a transaction comes out whole, in commit order, after its commit and
never before; every row stands with the description its table had at that time; what a rolled-back transaction or
savepoint wrote never comes out; frames that make no sense (a commit without a begin, a row of an unknown relation)
are a `DecodeError`. Memory: open transactions hold at most `spill_bytes` together, the rest waits in a spool on disk.

Row messages are not looked at one by one here: runs of them are cut from the received bytes as blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from penstock import failpoints
from penstock.errors import DecodeError
from penstock.model import Lsn
from penstock.postgres import pgoutput as pg
from penstock.postgres.columns import PADDING, Block
from penstock.postgres.spool import Segment, Spool

# A CopyData frame: 'w', start LSN, end LSN, clock, then the pgoutput message; or 'k', WAL end, clock, reply flag.
XLOG_HEADER: Final = 25
_XLOG, _KEEPALIVE = b"wk"
_KEEPALIVE_SIZE = 18
_TAG_AND_XID = 5
_IS_ROW = np.zeros(256, np.bool_)
_IS_ROW[list(pg.ROWS)] = True
# Begin and commit, of which a busy server sends as many as rows, are read here in one step each; the rest by pgoutput.
_BEGIN, _COMMIT = struct.Struct(">QqI"), struct.Struct(">BQQq")


@dataclass(frozen=True, slots=True)
class Keepalive:
    """The server has sent everything up to `wal_end`; `reply` asks for an answer at once."""

    wal_end: Lsn
    reply: bool


@dataclass(frozen=True, slots=True)
class Truncated:
    """Tables that one TRUNCATE emptied; each counts as one row. Of a run cut from them, `whole` is all of them."""

    relations: tuple[pg.Relation, ...]
    xid: int | None = None
    whole: tuple[pg.Relation, ...] = ()

    def __len__(self) -> int:
        return len(self.relations)

    @property
    def together(self) -> tuple[pg.Relation, ...]:
        """Everything that the TRUNCATE emptied."""
        return self.whole or self.relations

    def run(self, first: int, end: int) -> Truncated:
        """The tables `first` … `end - 1`."""
        return Truncated(self.relations[first:end], self.xid, self.together)


class Rows(NamedTuple):
    """The messages `first` … `end - 1` of a block, which other transactions may share."""

    block: Block
    first: int
    end: int


Part = Rows | Segment | Truncated


_NONE: frozenset[int] = frozenset()  # one for all: an empty one of its own would be a fifth of a small transaction


class Transaction(NamedTuple):
    """A committed transaction. `rows` counts its changes, `size` the bytes they came in."""

    xid: int
    end_lsn: Lsn
    commit_time: int
    rows: int
    size: int
    parts: Sequence[Part] = ()
    aborted: frozenset[int] = _NONE
    spool: Spool | None = None
    surviving: Sequence[int] = ()  # rows of each part, known where savepoints were rolled back

    def pieces(self, first: int = 0, end: int | None = None) -> Iterator[Rows | Truncated]:
        """Its rows `first` … `end - 1` in order, a bounded piece at a time, without those of rolled-back savepoints."""
        end = self.rows if end is None else end
        at = 0
        for number, part in enumerate(self.parts):
            if at >= end:
                return
            count = self.surviving[number] if self.surviving else _count(part)
            if count and at + count > first:
                yield from _window(self._surviving(part), first - at, end - at)
            at += count

    def _surviving(self, part: Part) -> Rows | Truncated:
        if isinstance(part, Truncated):
            return part
        block = part.load() if isinstance(part, Segment) else part.block
        rows = Rows(block, 0, len(block)) if isinstance(part, Segment) else part
        if not block.streamed or not self.aborted:
            return rows
        own = block.rows(rows.first, rows.end)
        own = own.kept(~np.isin(own.xids(), list(self.aborted)))
        return Rows(own, 0, len(own))

    def release(self) -> None:
        """Give its disk space back; its rows are gone afterwards."""
        if self.spool:
            self.spool.close()


def _count(part: Part) -> int:
    if isinstance(part, Segment):
        return part.rows
    return len(part) if isinstance(part, Truncated) else part.end - part.first


def _window(part: Rows | Truncated, first: int, end: int) -> Iterator[Rows | Truncated]:
    """The rows `first` … `end - 1` of a part, as far as it has them."""
    first = max(first, 0)
    if isinstance(part, Truncated):
        yield part.run(first, end)
    else:
        yield Rows(part.block, part.first + first, min(part.first + end, part.end))


class _Open:
    """A transaction that is still being received."""

    __slots__ = (
        "aborted",
        "by_xid",
        "counts",
        "described",
        "memory",
        "parts",
        "relations",
        "rows",
        "size",
        "spool",
        "xid",
    )

    def __init__(self, xid: int, relations: dict[int, pg.Relation]) -> None:
        self.xid = xid
        self.relations = relations
        self.parts: list[Part] = []
        self.memory = self.size = self.rows = 0
        self.by_xid: dict[int, int] | None = None  # changes of each (sub)transaction, where messages tell
        self.counts: list[dict[int, int]] = []  # the same of each part
        self.aborted: set[int] | None = None
        self.described: set[int] = set()  # relations that the server takes as known once it has committed
        self.spool: Spool | None = None

    def add(self, part: Rows | Truncated, size: int) -> None:
        self.parts.append(part)
        self.memory += size
        self.size += size
        count = _count(part)
        self.rows += count
        if isinstance(part, Truncated):
            if part.xid is not None:
                self._note({part.xid: count})
        elif part.block.streamed:
            xids, counts = np.unique(part.block.rows(part.first, part.end).xids(), return_counts=True)
            self._note(dict(zip(xids.tolist(), counts.tolist(), strict=True)))

    def _note(self, counts: dict[int, int]) -> None:
        self.counts.append(counts)
        self.by_xid = self.by_xid or {}
        for xid, number in counts.items():
            self.by_xid[xid] = self.by_xid.get(xid, 0) + number

    def abort(self, xid: int) -> None:
        self.aborted = self.aborted or set()
        if xid not in self.aborted:
            self.aborted.add(xid)
            self.rows -= (self.by_xid or {}).get(xid, 0)
        # The server forgets what it described in these pieces: the savepoint's locks are gone, and another
        # transaction may alter those tables before this one commits.
        self.described.clear()

    def detach(self, received: bytes) -> None:
        """Hold only the own rows of what was received together, where most of it was others'."""
        last = len(self.parts)
        while last and isinstance(part := self.parts[last - 1], Rows) and part.block.data is received:
            last -= 1
        fresh = [part.block.rows(part.first, part.end) for part in self.parts[last:] if isinstance(part, Rows)]
        if sum(int(block.lengths.sum()) for block in fresh) * 2 < len(received):
            own = [Block.of(list(block.messages()), block.relations, block.streamed) for block in fresh]
            self.parts[last:] = [Rows(block, 0, len(block)) for block in own]

    def spill(self, folder: str | None) -> None:
        failpoints.passing("spill")
        spool = self.spool = self.spool or Spool(folder)
        self.parts = [
            spool.append(part.block.rows(part.first, part.end)) if isinstance(part, Rows) else part
            for part in self.parts
        ]
        self.memory = 0

    def discard(self) -> None:
        if self.spool:
            self.spool.close()

    def close(self, end_lsn: int, commit_time: int) -> Transaction:
        aborted = frozenset(self.aborted) if self.aborted else _NONE
        parts = self.parts if self.rows else ()
        lsn = int.__new__(Lsn, end_lsn)  # 64 bits by their form
        left = [sum(n for xid, n in counts.items() if xid not in aborted) for counts in self.counts] if aborted else ()
        return Transaction(self.xid, lsn, commit_time, self.rows, self.size, parts, aborted, self.spool, left)


class _Feed:
    """Frames received together, taken apart: where the rows are, and which frames stand between them."""

    def __init__(self, frames: Sequence[memoryview | bytes]) -> None:
        lengths = np.fromiter(map(len, frames), np.int64, len(frames))
        if not lengths.all():
            raise DecodeError("an empty frame")
        ends = np.cumsum(lengths)
        starts = ends - lengths
        self.data = b"".join([*frames, PADDING])
        raw = np.frombuffer(self.data, np.uint8)
        # A frame too short to have a tag is looked at by itself, like every frame that is no row.
        is_row = (raw[starts] == _XLOG) & (lengths > XLOG_HEADER)
        is_row &= _IS_ROW[raw[np.minimum(starts + XLOG_HEADER, ends[-1])]]
        rows, others = np.flatnonzero(is_row), np.flatnonzero(~is_row)
        self.row_starts = starts[rows] + XLOG_HEADER
        self.row_lengths = lengths[rows] - XLOG_HEADER
        self.row_ends = np.concatenate([[0], np.cumsum(lengths[rows])])
        # Each of the others: its bytes' range, and how many rows stand before it.
        before = np.cumsum(is_row)[others]
        self.others = list(zip(starts[others].tolist(), ends[others].tolist(), before.tolist(), strict=True))
        self._block: Block | None = None

    def rows(self, first: int, end: int, relations: Mapping[int, pg.Relation], streamed: bool) -> tuple[Rows, int]:
        """A run of rows and the bytes it came in. Runs with the same descriptions share a block."""
        block = self._block
        if block is None or block.relations is not relations or block.streamed != streamed:
            block = self._block = Block(self.data, self.row_starts, self.row_lengths, relations, streamed)
        return Rows(block, first, end), int(self.row_ends[end] - self.row_ends[first])


class Assembler:
    """The state between frames: known relations, the open transaction, running transactions sent in pieces."""

    def __init__(self, spill_bytes: int = 64 << 20, spill_dir: str | None = None) -> None:
        self._spill_bytes = spill_bytes
        self._spill_dir = spill_dir
        self._relations: dict[int, pg.Relation] = {}
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
        feed = _Feed(frames)
        data, done = feed.data, 0
        for start, end, before in feed.others:
            if before > done:
                self._rows(feed, done, before)
                done = before
            size = end - start
            tag = data[start + XLOG_HEADER] if size > XLOG_HEADER and data[start] == _XLOG else 0
            opened = self._open
            if tag == pg.COMMIT and opened and size == XLOG_HEADER + 1 + _COMMIT.size:
                _, _, end_lsn, commit_time = _COMMIT.unpack_from(data, start + XLOG_HEADER + 1)
                self._open = None
                yield opened.close(end_lsn, commit_time)
            elif tag == pg.BEGIN and self.between_transactions and size == XLOG_HEADER + 1 + _BEGIN.size:
                _, _, xid = _BEGIN.unpack_from(data, start + XLOG_HEADER + 1)
                self._open = _Open(xid, self._relations)
            else:
                event = self._single(data[start:end])
                if event:
                    yield event
        if len(feed.row_starts) > done:
            self._rows(feed, done, len(feed.row_starts))
        for left in (self._open, *self._running.values()):
            if left:
                left.detach(data)
        self._limit_memory()

    def _rows(self, feed: _Feed, first: int, end: int) -> None:
        into = self._piece or self._open
        if into is None:
            at = int(feed.row_starts[first])
            raise DecodeError("a row outside of a transaction", offset=0, tag=chr(feed.data[at]))
        if into is self._piece and int(feed.row_lengths[first:end].min()) < _TAG_AND_XID:
            raise DecodeError("a row in a piece ends before its xid", offset=1)
        into.add(*feed.rows(first, end, into.relations, into is self._piece))

    def _single(self, frame: bytes) -> Transaction | Keepalive | None:
        kind = frame[0]
        if kind == _KEEPALIVE and len(frame) == _KEEPALIVE_SIZE:
            return Keepalive(Lsn(int.from_bytes(frame[1:9], "big")), bool(frame[17]))
        if kind != _XLOG or len(frame) <= XLOG_HEADER:
            raise DecodeError("a frame that is neither WAL data nor a keepalive", offset=0, tag=ascii(chr(kind)))
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
            self._adopt({oid: opened.relations[oid] for oid in opened.described})
        return opened.close(message.end_lsn, message.commit_time)

    def _adopt(self, described: Mapping[int, pg.Relation]) -> None:
        if any(self._relations.get(oid) != relation for oid, relation in described.items()):
            self._relations = {**self._relations, **described}

    def _abort(self, message: pg.StreamAbort) -> None:
        if message.subxid != message.xid:
            if message.xid in self._running:
                self._running[message.xid].abort(message.subxid)
            return
        gone = self._running.pop(message.xid, None)
        if gone:
            gone.discard()

    def _describe(self, relation: pg.Relation) -> None:
        # A new mapping for a changed description only: blocks that share one can be decoded together.
        into = self._piece or self._open
        if self._piece:
            self._piece.described.add(relation.oid)
        known = into.relations if into else self._relations
        if known.get(relation.oid) == relation:
            known[relation.oid] = relation  # told in the same words, and yet anew: something of the table was altered
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
        into.add(Truncated(tuple(into.relations[oid] for oid in message.oids), message.xid), 0)

    def _limit_memory(self) -> None:
        held = [t for t in [self._open, *self._running.values()] if t and t.memory]
        while held and sum(t.memory for t in held) > self._spill_bytes:
            largest = max(held, key=lambda t: t.memory)
            largest.spill(self._spill_dir)
            held.remove(largest)
