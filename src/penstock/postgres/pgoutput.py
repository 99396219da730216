"""The pgoutput decoder: one message's bytes in, one plain value out.

Covers every message of protocol 1 and 2 with text and binary tuples. Guarantees: pure (no I/O, no clock, no state)
and total: any input gives either a message or a `DecodeError` that names the offset and the tag; a length or a count
is checked against what is left of the message before anything is allocated or skipped; a message is consumed to its
last byte or refused. Values stay the server's bytes: giving them types is `values`' work. Whole blocks of row
messages go through `columns`, which is faster and agrees with this module, its reference.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.errors import DecodeError
from penstock.model import Lsn, QualifiedTable


class Unchanged(Enum):
    """The value of a TOASTed column that an update did not touch: the server does not send it. Not NULL."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED


class Binary(bytes):
    """A value in the type's binary form (`binary 'true'`); plain `bytes` are its text form."""


Value = bytes | None | Unchanged
Tuple = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction that has committed starts; `final_lsn` is where its commit record stands."""

    final_lsn: Lsn
    commit_time: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """It ends; `end_lsn` is the first byte after its commit record. Times are microseconds since 2000-01-01 UTC."""

    flags: int
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction was replicated from elsewhere."""

    commit_lsn: Lsn
    name: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a relation. `key` means part of the identity; under FULL every column is flagged."""

    name: str
    type_oid: int
    typmod: int
    key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """The shape of a table from here on. `identity`: `d`efault, `n`othing, `f`ull, `i`ndex."""

    oid: int
    table: QualifiedTable
    identity: str
    columns: tuple[Column, ...]
    xid: int | None = None

    @property
    def names(self) -> list[str]:
        """The names of its columns."""
        return [column.name for column in self.columns]


@dataclass(frozen=True, slots=True)
class Type:
    """The name of a type that is not built in."""

    oid: int
    schema: str
    name: str
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """What `pg_logical_emit_message` wrote."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Insert:
    """A row that is there now."""

    oid: int
    new: Tuple
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row. `old` is None, the old identity (`full` false) or the whole old row (`full` true)."""

    oid: int
    new: Tuple
    old: Tuple | None = None
    full: bool = False
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """A row that is gone: its identity, or the whole of it (`full`)."""

    oid: int
    old: Tuple
    full: bool = False
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables emptied by one statement."""

    oids: tuple[int, ...]
    cascade: bool = False
    restart_identity: bool = False
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class StreamStart:
    """What follows, up to `StreamStop`, belongs to a transaction that is still running."""

    xid: int
    first: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    """The end of such a piece."""


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """A transaction that was sent in pieces has committed."""

    xid: int
    flags: int
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time: int


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """A transaction that was sent in pieces, or (where the two differ) a subtransaction of it, rolled back."""

    xid: int
    subxid: int


Message = (
    Begin | Commit | Origin | Relation | Type | LogicalMessage | Insert | Update | Delete | Truncate
    | StreamStart | StreamStop | StreamCommit | StreamAbort
)  # fmt: skip

# The message tags, and those whose messages carry an xid inside a streamed piece.
BEGIN, COMMIT, ORIGIN, RELATION, TYPE, MESSAGE = b"BCORYM"
INSERT, UPDATE, DELETE, TRUNCATE = b"IUDT"
STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT = b"SEcA"
ROWS = frozenset((INSERT, UPDATE, DELETE))

_U16, _U32, _I32, _U64, _I64 = (struct.Struct(f) for f in (">H", ">I", ">i", ">Q", ">q"))


class _Cursor:
    """A place in a message; every step checks that the message reaches that far."""

    __slots__ = ("at", "data", "tag")

    def __init__(self, data: bytes, tag: str) -> None:
        self.data = data
        self.tag = tag
        self.at = 1

    def fail(self, what: str, offset: int | None = None) -> DecodeError:
        return DecodeError(what, offset=self.at if offset is None else offset, tag=self.tag)

    def take(self, size: int, what: str) -> bytes:
        start, end = self.at, self.at + size
        if end > len(self.data):
            raise self.fail(f"{what} needs {size} bytes and {len(self.data) - start} are left")
        self.at = end
        return self.data[start:end]

    def _number(self, form: struct.Struct, what: str) -> int:
        number: int = form.unpack(self.take(form.size, what))[0]
        return number

    def u8(self, what: str) -> int:
        return self.take(1, what)[0]

    def u16(self, what: str) -> int:
        return self._number(_U16, what)

    def u32(self, what: str) -> int:
        return self._number(_U32, what)

    def i32(self, what: str) -> int:
        return self._number(_I32, what)

    def i64(self, what: str) -> int:
        return self._number(_I64, what)

    def lsn(self, what: str) -> Lsn:
        return Lsn(self._number(_U64, what))

    def text(self, what: str) -> str:
        start, end = self.at, self.data.find(b"\0", self.at)
        if end < 0:
            raise self.fail(f"{what} has no end")
        self.at = end + 1
        try:
            return self.data[start:end].decode()
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8", start + error.start) from None

    def tuple(self) -> Tuple:
        return tuple(self._value() for _ in range(self._columns()))

    def _columns(self) -> int:
        count = self.u16("a column count")
        if count > len(self.data) - self.at:  # every column takes a byte at least
            raise self.fail(f"a tuple of {count} columns and {len(self.data) - self.at} bytes are left", self.at - 2)
        return count

    def _value(self) -> Value:
        kind = self.take(1, "a column's kind")
        if kind == b"t":
            return self._bytes()
        if kind == b"n":
            return None
        if kind == b"u":
            return UNCHANGED
        if kind == b"b":
            return Binary(self._bytes())
        raise self.fail(f"a column of unknown kind {kind!r}", self.at - 1)

    def _bytes(self) -> bytes:
        size = self.i32("a value's length")
        if size < 0:
            raise self.fail(f"a value of {size} bytes", self.at - 4)
        return self.take(size, "a value")


def decode(payload: bytes, *, streamed: bool = False, relations: Mapping[int, Relation] | None = None) -> Message:
    """Decode one message.

    `streamed` says that it stands inside a piece of a running transaction, where messages carry an xid. With
    `relations`, a row must belong to one of them and have as many columns.
    """
    if not payload:
        raise DecodeError("an empty message")
    tag = chr(payload[0])
    cursor = _Cursor(payload, tag)
    read = _READERS.get(tag)
    if read is None:
        raise DecodeError("a message of unknown kind", offset=0, tag=tag if tag.isprintable() else repr(tag))
    xid = cursor.u32("an xid") if streamed and tag in "RYMIUDT" else None
    message = read(cursor, xid)
    if cursor.at != len(payload):
        raise cursor.fail(f"{len(payload) - cursor.at} bytes after the end of the message")
    if relations is not None:
        _check_shape(cursor, message, relations)
    return message


def _check_shape(cursor: _Cursor, message: Message, relations: Mapping[int, Relation]) -> None:
    oids = (message.oid,) if isinstance(message, Insert | Update | Delete) else getattr(message, "oids", ())
    at = 5 if message.__class__ is not Truncate and getattr(message, "xid", None) is not None else 1
    for oid in oids:
        if oid not in relations:
            raise cursor.fail(f"a row of relation {oid}, which was never described", at)
        for row in (getattr(message, "new", None), getattr(message, "old", None)):
            if row is not None and len(row) != len(relations[oid].columns):
                expected = len(relations[oid].columns)
                raise cursor.fail(f"a row of {len(row)} columns for a relation of {expected}", at + 4)


def _begin(c: _Cursor, xid: int | None) -> Message:
    return Begin(c.lsn("a final LSN"), c.i64("a commit time"), c.u32("an xid"))


def _commit(c: _Cursor, xid: int | None) -> Message:
    return Commit(c.u8("flags"), c.lsn("a commit LSN"), c.lsn("an end LSN"), c.i64("a commit time"))


def _origin(c: _Cursor, xid: int | None) -> Message:
    return Origin(c.lsn("an origin LSN"), c.text("an origin name"))


def _relation(c: _Cursor, xid: int | None) -> Message:
    oid, schema, name = c.u32("a relation id"), c.text("a schema name"), c.text("a relation name")
    identity = chr(c.u8("a replica identity"))
    if identity not in "dnfi":
        raise c.fail(f"an unknown replica identity {identity!r}", c.at - 1)
    columns = tuple(_column(c) for _ in range(c._columns()))
    # The server writes an empty schema for pg_catalog.
    return Relation(oid, QualifiedTable(schema or "pg_catalog", name), identity, columns, xid)


def _column(c: _Cursor) -> Column:
    key = bool(c.u8("a column's flags") & 1)
    return Column(c.text("a column name"), c.u32("a type id"), c.i32("a type modifier"), key)


def _type(c: _Cursor, xid: int | None) -> Message:
    return Type(c.u32("a type id"), c.text("a schema name") or "pg_catalog", c.text("a type name"), xid)


def _message(c: _Cursor, xid: int | None) -> Message:
    flags, lsn, prefix = c.u8("flags"), c.lsn("an LSN"), c.text("a prefix")
    size = c.u32("a content length")
    return LogicalMessage(bool(flags & 1), lsn, prefix, c.take(size, "a content"), xid)


def _insert(c: _Cursor, xid: int | None) -> Message:
    oid = c.u32("a relation id")
    _expect(c, b"N")
    return Insert(oid, c.tuple(), xid)


def _update(c: _Cursor, xid: int | None) -> Message:
    oid = c.u32("a relation id")
    kind, old = _expect(c, b"KON"), None
    if kind != b"N":
        old = c.tuple()
        _expect(c, b"N")
    return Update(oid, c.tuple(), old, kind == b"O", xid)


def _delete(c: _Cursor, xid: int | None) -> Message:
    oid = c.u32("a relation id")
    kind = _expect(c, b"KO")
    return Delete(oid, c.tuple(), kind == b"O", xid)


def _expect(c: _Cursor, kinds: bytes) -> bytes:
    kind = c.take(1, "a tuple's kind")
    if kind not in kinds:
        raise c.fail(f"a tuple of kind {kind!r}, one of {kinds.decode()} was expected", c.at - 1)
    return kind


def _truncate(c: _Cursor, xid: int | None) -> Message:
    count, flags = c.u32("a relation count"), c.u8("flags")
    ids = c.take(4 * count, "a list of relation ids")
    return Truncate(struct.unpack(f">{count}I", ids), bool(flags & 1), bool(flags & 2), xid)


def _stream_start(c: _Cursor, xid: int | None) -> Message:
    return StreamStart(c.u32("an xid"), bool(c.u8("a first-piece flag")))


def _stream_commit(c: _Cursor, xid: int | None) -> Message:
    return StreamCommit(
        c.u32("an xid"), c.u8("flags"), c.lsn("a commit LSN"), c.lsn("an end LSN"), c.i64("a commit time")
    )


_READERS: Mapping[str, Callable[[_Cursor, int | None], Message]] = {
    "B": _begin, "C": _commit, "O": _origin, "R": _relation, "Y": _type, "M": _message,
    "I": _insert, "U": _update, "D": _delete, "T": _truncate,
    "S": _stream_start, "E": lambda c, xid: StreamStop(), "c": _stream_commit,
    "A": lambda c, xid: StreamAbort(c.u32("an xid"), c.u32("a subtransaction's xid")),
}  # fmt: skip
