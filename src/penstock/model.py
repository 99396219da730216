"""The plain values every layer speaks of: LSNs, tables, positions, operations, settings, reports.

Guarantees: immutable, comparable, picklable; no I/O, no clock, no import from any other layer but errors.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, NamedTuple

from penstock.errors import ConfigError

# Postgres folds no letter beyond ASCII (in an encoding of several bytes a letter, as UTF-8 is).
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_HALF = re.compile(r"[0-9A-Fa-f]{1,8}")


class Lsn(int):
    """A position in the WAL: 64 bits, ordered as a number, written as `16/B374D848`."""

    __slots__ = ()

    ZERO: ClassVar[Lsn]
    MAX: ClassVar[Lsn]

    def __new__(cls, value: int = 0) -> Lsn:
        if not 0 <= value < 1 << 64:
            raise ConfigError(f"an LSN has 64 bits; {value} does not fit")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """Read Postgres' own spelling: two hexadecimal halves of one to eight digits, joined by a slash."""
        high, slash, low = text.partition("/")
        if not slash or not _HALF.fullmatch(high) or not _HALF.fullmatch(low):
            raise ConfigError(f"{text!r} is not an LSN", hint="Write it as Postgres does, for example 16/B374D848.")
        return cls(int(high, 16) << 32 | int(low, 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({str(self)!r})"


Lsn.ZERO = Lsn(0)
Lsn.MAX = Lsn((1 << 64) - 1)


class Position(NamedTuple):
    """Where a change stands: its transaction's commit end LSN, and its ordinal within that transaction.

    The ordinal counts row changes that were committed (a truncate counts once for each table), from 0, whatever
    options the stream was read with.
    """

    lsn: Lsn
    row: int


class QualifiedTable(NamedTuple):
    """A table by schema and name, as the catalog spells them (no quotes, case kept)."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> QualifiedTable:
        """Read `name` or `schema.name` as SQL does: unquoted parts fold to lower case, quoted ones keep theirs."""
        found = re.fullmatch(r'(?:("(?:[^"]|"")+"|[^".\s]+)\.)?("(?:[^"]|"")+"|[^".\s]+)', text.strip())
        if not found:
            raise ConfigError(f"{text!r} is not a table name", hint='Write name, schema.name or "Quoted"."Name".')
        schema, name = found.groups()
        return cls(_fold(schema) if schema else "public", _fold(name))

    @property
    def sql(self) -> str:
        """Both parts quoted, fit for a statement."""
        return f"{quote(self.schema)}.{quote(self.name)}"

    def __str__(self) -> str:
        return f"{_show(self.schema)}.{_show(self.name)}"


def _fold(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.translate(_LOWER)


def _show(part: str) -> str:
    return part if re.fullmatch(r"[a-z_][a-z0-9_$]*", part) else quote(part)


def quote(identifier: str) -> str:
    """An identifier, quoted for SQL."""
    return '"' + identifier.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string, quoted for SQL (with standard_conforming_strings, which every connection of ours sets)."""
    return "'" + text.replace("'", "''") + "'"


def visible(text: str) -> str:
    """The text on one line for people to read, with every character that does not print written as an escape."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class Op(StrEnum):
    """What happened to a row."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"


class SslMode(StrEnum):
    """How much TLS a connection asks for; the words are libpq's."""

    DISABLE = "disable"
    PREFER = "prefer"
    REQUIRE = "require"
    VERIFY_CA = "verify-ca"
    VERIFY_FULL = "verify-full"


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """TLS for every connection of a deployment. Paths name PEM files; the key's file must be private."""

    mode: SslMode = SslMode.PREFER
    root_cert: str | None = None
    cert: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """The server that a position belongs to: its system identifier and, where known, its timeline."""

    system_id: str
    timeline: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """What a capture reads and how much it may hold.

    `start_lsn` zero resumes from the slot's own confirmed position; any other value says that the caller holds a
    position of its own, which the server must still be able to serve. `origin` names the server that the position
    belongs to. `columns` names, for a table, the columns that a thin change carries; where a table is not
    listed, its identity and foreign-key columns are taken from the catalog. `streaming` lets the server send large
    transactions before they commit; it is off because servers were seen to describe a table to such a transaction as
    it was before somebody else's ALTER TABLE, and to leave out the new column's values.
    """

    slot: str
    publication: str
    start_lsn: Lsn = Lsn.ZERO
    origin: Origin | None = None
    temporary_slot: bool = False
    failover: bool = False
    streaming: bool = False
    columns: Mapping[QualifiedTable, Sequence[str]] = field(default_factory=dict)
    buffer_bytes: int = 64 << 20
    spill_bytes: int = 64 << 20
    spill_dir: str | None = None
    slot_wait_s: float = 90.0


@dataclass(frozen=True, slots=True)
class SnapshotTable:
    """A table to be read as it stands, and the columns of it that are wanted (empty: its identity and links)."""

    table: QualifiedTable
    columns: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Blocker:
    """Why a table cannot be published as it is, and the statement that would mend it (empty where none would)."""

    table: QualifiedTable | None
    reason: str
    sql: str = ""


@dataclass(frozen=True, slots=True)
class CoverageReport:
    """Which of the required tables a publication carries.

    `present` and `missing` part the required tables. `manageable` says that this role may make up for what is
    missing. `blockers` are findings that keep a table out, or part of its changes. `sql` is what an owner would run,
    in order. `notes` are worth knowing and stop nothing.
    """

    publication: str
    present: frozenset[QualifiedTable] = frozenset()
    missing: frozenset[QualifiedTable] = frozenset()
    manageable: bool = True
    blockers: tuple[Blocker, ...] = ()
    sql: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Every required table is published in full and nothing stands in the way."""
        return not self.missing and not self.blockers
