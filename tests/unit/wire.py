"""pgoutput messages and replication frames written from the protocol's description, for tests of what reads them.

Shares with the decoder the values it gives and nothing of how it reads. `plain_messages` and `streamed_messages` are
Hypothesis strategies over those values; `Chance` makes many rows from few drawn bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from hypothesis import strategies as st

from penstock.model import Lsn, QualifiedTable
from penstock.postgres import pgoutput as pg


def text(word: str) -> bytes:
    """A string, ended by a zero byte."""
    return word.encode() + b"\0"


def row(values: pg.Tuple) -> bytes:
    """TupleData."""
    return struct.pack("!H", len(values)) + b"".join(map(_value, values))


def _value(value: pg.Value) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, pg.Unchanged):
        return b"u"
    return (b"b" if isinstance(value, pg.Binary) else b"t") + struct.pack("!i", len(value)) + value


def encode(message: pg.Message) -> bytes:
    """A message's bytes; one that has an xid is written as inside a streamed piece."""
    match message:
        case pg.Begin(final_lsn, commit_time, xid):
            return b"B" + struct.pack("!QqI", final_lsn, commit_time, xid)
        case pg.Commit(flags, commit_lsn, end_lsn, commit_time):
            return b"C" + struct.pack("!BQQq", flags, commit_lsn, end_lsn, commit_time)
        case pg.Origin(commit_lsn, name):
            return b"O" + struct.pack("!Q", commit_lsn) + text(name)
        case pg.StreamStart(xid, first):
            return b"S" + struct.pack("!IB", xid, first)
        case pg.StreamStop():
            return b"E"
        case pg.StreamCommit(xid, flags, commit_lsn, end_lsn, commit_time):
            return b"c" + struct.pack("!IBQQq", xid, flags, commit_lsn, end_lsn, commit_time)
        case pg.StreamAbort(xid, subxid):
            return b"A" + struct.pack("!II", xid, subxid)
    tag, body = _transactional(message)
    return tag + (b"" if message.xid is None else struct.pack("!I", message.xid)) + body


def _transactional(message: pg.Message) -> tuple[bytes, bytes]:
    match message:
        case pg.Relation(oid, table, identity, columns):
            schema = "" if table.schema == "pg_catalog" else table.schema
            head = struct.pack("!I", oid) + text(schema) + text(table.name) + identity.encode()
            return b"R", head + struct.pack("!H", len(columns)) + b"".join(map(_column, columns))
        case pg.Type(oid, schema, name):
            return b"Y", struct.pack("!I", oid) + text("" if schema == "pg_catalog" else schema) + text(name)
        case pg.LogicalMessage(transactional, lsn, prefix, content):
            head = struct.pack("!BQ", transactional, lsn) + text(prefix)
            return b"M", head + struct.pack("!I", len(content)) + content
        case pg.Insert(oid, new):
            return b"I", struct.pack("!I", oid) + b"N" + row(new)
        case pg.Update(oid, new, old, full):
            before = b"" if old is None else (b"O" if full else b"K") + row(old)
            return b"U", struct.pack("!I", oid) + before + b"N" + row(new)
        case pg.Delete(oid, old, full):
            return b"D", struct.pack("!I", oid) + (b"O" if full else b"K") + row(old)
        case pg.Truncate(oids, cascade, restart_identity):
            return b"T", struct.pack(f"!IB{len(oids)}I", len(oids), cascade | restart_identity << 1, *oids)
    raise TypeError(message)


def _column(column: pg.Column) -> bytes:
    return bytes([column.key]) + text(column.name) + struct.pack("!Ii", column.type_oid, column.typmod)


def frame(message: pg.Message | bytes, at: int = 0) -> bytes:
    """A CopyData frame of WAL data."""
    body = message if isinstance(message, bytes) else encode(message)
    return b"w" + struct.pack("!QQq", at, at, 0) + body


def frames(*messages: pg.Message) -> list[bytes]:
    """Frames of several messages."""
    return [frame(message) for message in messages]


def keepalive(wal_end: int, reply: bool = False) -> bytes:
    """A keepalive frame."""
    return b"k" + struct.pack("!Qq?", wal_end, 0, reply)


def transaction(end_lsn: int, *messages: pg.Message, xid: int = 754, commit_time: int = 0) -> list[bytes]:
    """The frames of a transaction that is sent after its commit."""
    lsn = Lsn(end_lsn - 8)
    return frames(pg.Begin(lsn, commit_time, xid), *messages, pg.Commit(0, lsn, Lsn(end_lsn), commit_time))


def piece(xid: int, *messages: pg.Message, first: bool = False) -> list[bytes]:
    """The frames of a piece of a transaction that is still running."""
    return frames(pg.StreamStart(xid, first), *messages, pg.StreamStop())


def stream_commit(end_lsn: int, xid: int, commit_time: int = 0) -> bytes:
    """The frame that commits a transaction sent in pieces."""
    return frame(pg.StreamCommit(xid, 0, Lsn(end_lsn - 8), Lsn(end_lsn), commit_time))


def relation(
    oid: int = 1, columns: Iterable[str] = ("id", "note"), identity: str = "d", name: str = "t"
) -> pg.Relation:
    """A relation of text columns whose first is its key (under FULL, all are flagged)."""
    described = [pg.Column(column, 25, -1, identity == "f" or at == 0) for at, column in enumerate(columns)]
    return pg.Relation(oid, QualifiedTable("public", name), identity, tuple(described))


class Chance:
    """Choices taken from drawn bytes: as many as wanted for the price of one draw, and smaller bytes are simpler.

    When the bytes are used up, every choice is the first one.
    """

    def __init__(self, drawn: bytes) -> None:
        self._drawn = drawn
        self._at = 0

    def below(self, limit: int) -> int:
        """A number from 0 on."""
        self._at += 1
        return self._drawn[self._at - 1] % limit if self._at <= len(self._drawn) else 0

    def relation(self, oid: int, max_columns: int = 5) -> pg.Relation:
        """A relation of any identity and some columns, or none."""
        identity = "dnfi"[self.below(4)]
        columns = [
            pg.Column(f"ć{at}", 16 + self.below(200), self.below(200) - 1, identity == "f" or self.below(2) == 1)
            for at in range(self.below(max_columns + 1))
        ]
        return pg.Relation(oid, QualifiedTable("public", f"t{oid}"), identity, tuple(columns))

    def value(self) -> pg.Value:
        """Null, unchanged, text or binary; also long, which is gathered differently from short."""
        kind = self.below(8)
        if kind < 2:
            return (None, pg.UNCHANGED)[kind]
        value = bytes([self.below(256)]) * (self.below(5) if kind < 6 else 40 + self.below(20))
        return pg.Binary(value) if kind in (5, 7) else value

    def row(self, relation: pg.Relation, xid: int | None = None) -> pg.Insert | pg.Update | pg.Delete:
        """A row message of the relation, with each kind of old tuple."""
        kind = self.below(6)
        one, other = (tuple(self.value() for _ in relation.columns) for _ in range(2))
        return (
            pg.Insert(relation.oid, one, xid),
            pg.Update(relation.oid, one, None, False, xid),
            pg.Update(relation.oid, one, other, False, xid),
            pg.Update(relation.oid, one, other, True, xid),
            pg.Delete(relation.oid, one, False, xid),
            pg.Delete(relation.oid, one, True, xid),
        )[kind]


def chances(size: int) -> st.SearchStrategy[Chance]:
    """A source of up to `size` choices that are not the first."""
    return st.binary(min_size=size // 4, max_size=size).map(Chance)


xids = st.integers(0, 2**32 - 1)
lsns = st.integers(0, 2**64 - 1).map(Lsn)
clocks = st.integers(-(2**63), 2**63 - 1)
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
raw = st.binary(max_size=60)


def _messages(xid: st.SearchStrategy[int | None]) -> st.SearchStrategy[pg.Message]:
    columns = st.builds(pg.Column, words, xids, st.integers(-(2**31), 2**31 - 1), st.booleans())
    tables = st.builds(QualifiedTable, words.filter(bool), words)
    relation = st.builds(
        pg.Relation, xids, tables, st.sampled_from("dnfi"), st.lists(columns, max_size=4).map(tuple), xid
    )
    return st.one_of(
        st.builds(pg.Begin, lsns, clocks, xids),
        st.builds(pg.Commit, st.integers(0, 255), lsns, lsns, clocks),
        st.builds(pg.Origin, lsns, words),
        relation,
        st.builds(pg.Type, xids, words.filter(bool), words, xid),
        st.builds(pg.LogicalMessage, st.booleans(), lsns, words, raw, xid),
        st.builds(lambda chance, oid, x: chance.row(chance.relation(oid), x), chances(60), xids, xid),
        st.builds(pg.Truncate, st.lists(xids, max_size=4).map(tuple), st.booleans(), st.booleans(), xid),
        st.builds(pg.StreamStart, xids, st.booleans()),
        st.just(pg.StreamStop()),
        st.builds(pg.StreamCommit, xids, st.integers(0, 255), lsns, lsns, clocks),
        st.builds(pg.StreamAbort, xids, xids),
    )


plain_messages = _messages(st.none())
streamed_messages = _messages(xids)
