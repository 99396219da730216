"""Whether a table's replica identity serves a change stream, and the statements that would give it one that does.

Two questions. Does the server take UPDATE and DELETE on the table once it is published (`flaw`)? Do the old values it
sends name every column that a reader follows (`traceable`)? Guarantees: a pure answer from what the catalog said; a
statement given here never makes the server reject a write that it takes today. Deliberately not: running anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

from penstock.model import Blocker, QualifiedTable, quote
from penstock.postgres.catalog import Identity, IdentityKind, IndexInfo, TableInfo, TableKind

# Postgres cuts identifiers at 63 bytes.
_NAME_BYTES = 63


def flaw(info: TableInfo) -> str:
    """Why the server would reject UPDATE and DELETE on it once published; empty where it would not."""
    if info.identity.usable:
        return ""
    if info.identity.kind is IdentityKind.NOTHING:
        return "its replica identity is NOTHING"
    if info.identity.kind is IdentityKind.INDEX:
        return "the index that was its replica identity is gone or not valid"
    if info.primary_key:
        return "its primary key is deferrable or not valid, so it is no replica identity"
    return "it has no primary key and no other replica identity"


def lacking(info: TableInfo, needed: Collection[str]) -> str:
    """What an old row does not name, and what follows from that; empty where it names every needed column."""
    names = info.ordered(set(needed) - set(info.identity.columns))
    if not names:
        return ""
    listed = ", ".join(map(quote, names))
    return f"its replica identity lacks {listed}: a delete or a move of a row cannot be traced to its old parent"


def traceable(info: TableInfo, needed: Collection[str]) -> Blocker | None:
    """None where an old row names every needed column; otherwise what is lacking, with the SQL that fixes it."""
    reason = lacking(info, needed)
    return Blocker(info.table, reason, "\n".join(remedy(info, needed).statements)) if reason else None


@dataclass(frozen=True, slots=True)
class Remedy:
    """Statements that change a table's identity, and what it will be; no statements where nothing helps."""

    identity: Identity
    statements: tuple[str, ...]


def remedy(info: TableInfo, needed: Collection[str] = (), *, full_allowed: bool = True) -> Remedy:
    """How to give it a usable identity with the needed columns.

    The primary key where it is enough, else an index that is there, else a new one over NOT NULL columns, else FULL.
    """
    wanted = set(needed)
    for index in info.indexes:
        if index.primary and index.identifies and wanted.issubset(index.columns):
            return _set(info, Identity(IdentityKind.DEFAULT, index.columns), "DEFAULT")
    for index in _identifying(info):
        if wanted.issubset(index.columns):
            return _set(info, Identity(IdentityKind.INDEX, index.columns), f"USING INDEX {quote(index.name)}")
    if columns := _index_columns(info, wanted):
        name = _index_name(info)
        # A partitioned table takes no CONCURRENTLY; the indexes of its leaves are made first, and then only attached.
        how = "" if info.kind is TableKind.PARTITIONED else " CONCURRENTLY"
        create = f"CREATE UNIQUE INDEX{how} {quote(name)} ON {info.table.sql} ({', '.join(map(quote, columns))});"
        return _set(info, Identity(IdentityKind.INDEX, columns), f"USING INDEX {quote(name)}", create)
    if not full_allowed:
        return Remedy(info.identity, ())
    return _set(info, Identity(IdentityKind.FULL, tuple(c.name for c in info.columns if not c.generated)), "FULL")


def _set(info: TableInfo, identity: Identity, words: str, *before: str) -> Remedy:
    return Remedy(identity, (*before, f"ALTER TABLE {info.table.sql} REPLICA IDENTITY {words};"))


def _identifying(info: TableInfo) -> list[IndexInfo]:
    """Indexes that the server takes as an identity, the narrowest first."""
    return sorted((index for index in info.indexes if index.identifies), key=lambda index: len(index.columns))


def _index_columns(info: TableInfo, wanted: set[str]) -> tuple[str, ...]:
    """Columns for a new unique index that can reject no write: a key that is unique already, and the wanted ones.

    Those must be NOT NULL, and part of a key, so that their values are known to fit into an index. A deferrable key is
    no base: its values may repeat until the commit.
    """
    base = next(iter(_identifying(info)), None)
    keys = {name for index in info.indexes if index.unique for name in index.columns}
    keys.update(name for key in info.foreign_keys for name in key.columns)
    fit = {column.name for column in info.columns if not column.nullable and not column.generated} & keys
    if base is None or not wanted <= fit | set(base.columns):
        return ()
    return (*base.columns, *(name for name in info.ordered(wanted) if name not in base.columns))


def _index_name(info: TableInfo) -> str:
    taken = {index.name for index in info.indexes}
    number = 1
    while (name := _cut(info.table, f"_identity{number if number > 1 else ''}")) in taken:
        number += 1
    return name


def _cut(table: QualifiedTable, ending: str) -> str:
    whole = table.name.encode()
    if len(whole) + len(ending) <= _NAME_BYTES:
        return table.name + ending
    # Long names that differ only in their last letters must stay different.
    ending = f"_{hashlib.sha256(whole).hexdigest()[:8]}{ending}"
    return whole[: _NAME_BYTES - len(ending)].decode(errors="ignore") + ending
