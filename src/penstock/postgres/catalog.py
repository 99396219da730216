"""What the database says about its tables: columns, keys, indexes, foreign keys, replica identity, partitions.

`read_tables` answers with a handful of statements however many tables are asked for. Guarantees: all of them see one
snapshot; names and types are spelled the same whatever the session's search_path (types outside pg_catalog carry
their schema); no table is locked and nothing is written. Deliberately not: judging what it read (`identity` and
`coverage` do), and reading rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from penstock.errors import ConfigError
from penstock.model import QualifiedTable
from penstock.postgres import catalog_sql
from penstock.postgres.sqlstate import translating

SqlConnection = psycopg.Connection[Any]
Row = tuple[Any, ...]


class TableKind(StrEnum):
    """What sort of relation a name stands for, in the words a message uses."""

    TABLE = "table"
    PARTITIONED = "partitioned table"
    VIEW = "view"
    MATERIALIZED_VIEW = "materialized view"
    FOREIGN = "foreign table"


class Persistence(StrEnum):
    """Whether the WAL carries a table's rows: only a permanent table's."""

    PERMANENT = "permanent"
    UNLOGGED = "unlogged"
    TEMPORARY = "temporary"


class IdentityKind(StrEnum):
    """What ALTER TABLE … REPLICA IDENTITY was last told."""

    DEFAULT = "default"
    FULL = "full"
    INDEX = "index"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """One column. `generated` is empty, `stored` or `virtual`; `position` is the catalog's attribute number."""

    name: str
    type_oid: int
    typmod: int
    type_name: str
    nullable: bool
    generated: str
    position: int


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """One index. `columns` are its key columns; an expression among them is left out and sets `expression`."""

    name: str
    columns: tuple[str, ...]
    unique: bool
    primary: bool
    valid: bool
    immediate: bool
    partial: bool
    expression: bool
    identity: bool
    all_not_null: bool

    @property
    def identifies(self) -> bool:
        """Whether the server takes it as a replica identity: unique at once, over whole NOT NULL columns."""
        whole = self.unique and self.valid and self.immediate and not self.partial and not self.expression
        return whole and self.all_not_null


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """`table (columns)` points at `references (referenced_columns)`."""

    name: str
    table: QualifiedTable
    columns: tuple[str, ...]
    references: QualifiedTable
    referenced_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Identity:
    """A table's replica identity: what was asked for, and the columns of an old row that the server sends now."""

    kind: IdentityKind
    columns: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether a published table with it takes UPDATE and DELETE."""
        return self.kind is IdentityKind.FULL or bool(self.columns)


@dataclass(frozen=True, slots=True)
class TableInfo:
    """One relation.

    `ancestors` are the partitioned tables above it, nearest first; `partitions` the leaves below it; `inheritors` the
    tables below it by plain inheritance. `row_estimate` is the planner's, for a partitioned table the sum over its
    leaves, and None where a part was never counted. `publishable` is the server's own word.
    """

    table: QualifiedTable
    oid: int
    kind: TableKind
    persistence: Persistence
    owner: str
    publishable: bool
    columns: tuple[ColumnInfo, ...] = ()
    primary_key: tuple[str, ...] = ()
    indexes: tuple[IndexInfo, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    referenced_by: tuple[ForeignKey, ...] = ()
    identity: Identity = Identity(IdentityKind.DEFAULT)
    ancestors: tuple[QualifiedTable, ...] = ()
    partitions: tuple[QualifiedTable, ...] = ()
    inheritors: tuple[QualifiedTable, ...] = ()
    row_estimate: int | None = None
    row_security: bool = False
    force_row_security: bool = False

    @property
    def partition_of(self) -> QualifiedTable | None:
        """The partitioned table right above it."""
        return self.ancestors[0] if self.ancestors else None

    @property
    def root(self) -> QualifiedTable:
        """The topmost table it is a partition of, or itself."""
        return self.ancestors[-1] if self.ancestors else self.table

    def ordered(self, names: Iterable[str]) -> tuple[str, ...]:
        """The named columns, each once, in the table's order."""
        wanted = set(names)
        return tuple(column.name for column in self.columns if column.name in wanted)


def link_columns(info: TableInfo, among: Collection[QualifiedTable] | None = None) -> tuple[str, ...]:
    """The columns that tie its rows to other tables: its foreign keys, and a non-primary key that others refer to.

    With `among`, only the foreign keys between it and those tables count.
    """
    linked: set[str] = set()
    for key in info.foreign_keys:
        if among is None or key.references in among:
            linked.update(key.columns)
    for key in info.referenced_by:
        if (among is None or key.table in among) and set(key.referenced_columns) != set(info.primary_key):
            linked.update(key.referenced_columns)
    return info.ordered(linked)


def identity_columns(info: TableInfo) -> tuple[str, ...]:
    """The columns that tell its rows apart in the stream.

    Under FULL the server sends every column; the primary key, where there is one, is then enough.
    """
    if info.identity.kind is IdentityKind.FULL and info.primary_key:
        return info.primary_key
    return info.identity.columns


def thin_columns(info: TableInfo, among: Collection[QualifiedTable] | None = None) -> tuple[str, ...]:
    """What a thin change of it carries: primary key, identity and link columns, in the table's order."""
    return info.ordered({*info.primary_key, *identity_columns(info), *link_columns(info, among)})


def require_heirs(info: TableInfo, asked: Collection[QualifiedTable], hint: str) -> None:
    """Refuse a table of which others inherit that are not asked for, too. `{tables}` in the hint is all of them.

    A query of the table reads their rows; the stream has them under their own names.
    """
    if heirs := [str(heir) for heir in info.inheritors if heir not in asked]:
        raise ConfigError(
            f"rows of {info.table} are also in tables that inherit from it ({', '.join(heirs)}), whose changes are "
            "not its own",
            hint=hint.format(tables=", ".join([str(info.table), *heirs])),
        )


def read_tables(
    conn: SqlConnection, tables: Collection[QualifiedTable] | None = None
) -> dict[QualifiedTable, TableInfo]:
    """The named relations as they are now; all of the users' own without names. One that is not there is left out."""
    if tables is not None and not tables:
        return {}
    with translating("reading the catalog"), one_snapshot(conn):
        found = _read_relations(conn, tables)
        parts = _read_parts(conn, [row[0] for row in found])
    infos = (_assemble(row, parts) for row in found)
    return {info.table: info for info in infos}


@contextmanager
def one_snapshot(conn: SqlConnection) -> Iterator[None]:
    """Let every statement inside see one state of the database, spelled without a search_path; write nothing.

    Inside a transaction of the caller's own it keeps to that transaction's isolation. Either way it ends in a
    rollback, which also takes back the search_path.
    """
    alone = conn.info.transaction_status is TransactionStatus.IDLE
    with conn.transaction(force_rollback=True):
        if alone:
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        conn.execute("SET LOCAL search_path = ''")
        yield


def _read_relations(conn: SqlConnection, tables: Collection[QualifiedTable] | None) -> list[Row]:
    if tables is None:
        return conn.execute(catalog_sql.ALL_RELATIONS).fetchall()
    wanted = sorted(tables)
    return conn.execute(catalog_sql.NAMED_RELATIONS, [[t.schema for t in wanted], [t.name for t in wanted]]).fetchall()


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the tables are made of, each by the table's oid."""

    columns: Mapping[int, list[Row]]
    indexes: Mapping[int, list[Row]]
    outgoing: Mapping[int, list[ForeignKey]]
    incoming: Mapping[int, list[ForeignKey]]
    above: Mapping[int, list[Row]]
    below: Mapping[int, list[Row]]


def _read_parts(conn: SqlConnection, oids: list[int]) -> _Parts:
    keys = conn.execute(catalog_sql.FOREIGN_KEYS, [oids, oids]).fetchall()
    return _Parts(
        columns=_by_first(conn.execute(catalog_sql.COLUMNS, [oids])),
        indexes=_by_first(conn.execute(catalog_sql.INDEXES, [oids])),
        outgoing=_outgoing(keys),
        incoming=_incoming(keys),
        above=_by_first(conn.execute(catalog_sql.ABOVE, [oids])),
        below=_by_first(conn.execute(catalog_sql.BELOW, [oids])),
    )


def _by_first(rows: Iterable[Row]) -> Mapping[int, list[Row]]:
    grouped: dict[int, list[Row]] = defaultdict(list)
    for first, *rest in rows:
        grouped[first].append(tuple(rest))
    return grouped


def _outgoing(rows: Iterable[Row]) -> Mapping[int, list[ForeignKey]]:
    """Foreign keys by the table that holds them.

    A key to a partitioned table has a row more for each of its partitions; those repeat the table that holds it.
    """
    grouped: dict[int, list[ForeignKey]] = defaultdict(list)
    for holder, _, parent_holder, _, key in _foreign_keys(rows):
        if parent_holder != holder:
            grouped[holder].append(key)
    return grouped


def _incoming(rows: Iterable[Row]) -> Mapping[int, list[ForeignKey]]:
    """Foreign keys by the table they point at; those that the holder's partitions repeat are left out."""
    grouped: dict[int, list[ForeignKey]] = defaultdict(list)
    for _, target, _, parent_target, key in _foreign_keys(rows):
        if parent_target != target:
            grouped[target].append(key)
    return grouped


def _foreign_keys(rows: Iterable[Row]) -> Iterator[tuple[int, int, int | None, int | None, ForeignKey]]:
    for holder, target, parent_holder, parent_target, *fields in rows:
        name, schema, table, columns, to_schema, to_table, referenced = fields
        references = QualifiedTable(to_schema, to_table)
        key = ForeignKey(name, QualifiedTable(schema, table), tuple(columns), references, tuple(referenced))
        yield holder, target, parent_holder, parent_target, key


def _assemble(row: Row, parts: _Parts) -> TableInfo:
    oid, schema, name, kind, persistence, owner, publishable, identity, row_count, security, force = row
    columns = tuple(ColumnInfo(*fields) for fields in parts.columns[oid])
    indexes = tuple(_index(columns, fields) for fields in parts.indexes[oid])
    below = [(QualifiedTable(s, n), is_leaf, count) for s, n, is_leaf, count in parts.below[oid]]
    partitioned = kind == TableKind.PARTITIONED
    return TableInfo(
        table=QualifiedTable(schema, name),
        oid=oid,
        kind=TableKind(kind),
        persistence=Persistence(persistence),
        owner=owner,
        publishable=publishable,
        columns=columns,
        primary_key=next((index.columns for index in indexes if index.primary), ()),
        indexes=indexes,
        foreign_keys=tuple(parts.outgoing[oid]),
        referenced_by=tuple(parts.incoming[oid]),
        identity=_identity(IdentityKind(identity), columns, indexes),
        ancestors=tuple(QualifiedTable(s, n) for s, n in parts.above[oid]),
        partitions=tuple(table for table, is_leaf, _ in below if is_leaf and partitioned),
        inheritors=tuple(table for table, _, _ in below if not partitioned),
        row_estimate=_estimate([count for _, is_leaf, count in below if is_leaf] if partitioned else [row_count]),
        row_security=security,
        force_row_security=force,
    )


def _index(columns: tuple[ColumnInfo, ...], row: Row) -> IndexInfo:
    name, keys, *flags = row
    nullable = {column.name for column in columns if column.nullable}
    unique, primary, valid, immediate, partial, expression, identity = flags
    return IndexInfo(
        name=name,
        columns=tuple(keys),
        unique=unique,
        primary=primary,
        valid=valid,
        immediate=immediate,
        partial=partial,
        expression=expression,
        identity=identity,
        all_not_null=nullable.isdisjoint(keys),
    )


def _identity(kind: IdentityKind, columns: tuple[ColumnInfo, ...], indexes: tuple[IndexInfo, ...]) -> Identity:
    """What the server really sends: an identity index may be gone, a primary key missing or deferrable."""
    if kind is IdentityKind.FULL:
        return Identity(kind, tuple(column.name for column in columns if not column.generated))
    if kind is IdentityKind.NOTHING:
        return Identity(kind)
    usable = (i for i in indexes if i.identifies and (i.primary if kind is IdentityKind.DEFAULT else i.identity))
    return Identity(kind, next((index.columns for index in usable), ()))


def _estimate(counts: list[float]) -> int | None:
    return None if any(count < 0 for count in counts) else round(sum(counts))
