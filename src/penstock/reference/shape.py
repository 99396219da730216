"""What is known of a reference table: its columns, its key, and the names under which its changes come.

Guarantees: a table whose rows cannot be told apart, or whose changes would not say which row they are of, is refused
before anything is read. A column that is gone or has another type, a table that was renamed or made anew, is found
when the stream describes it, before a row of it is decoded; so is a replica identity that no longer names the key. A
column that was added waits for the next snapshot; one that the publication leaves out is not read. Deliberately not:
what happens to rows without a word of the stream (`footing` notices).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import ConfigError, OperatorError
from penstock.model import QualifiedTable
from penstock.postgres import catalog, publication
from penstock.postgres.catalog import ColumnInfo, IdentityKind, IndexInfo, SqlConnection, TableInfo, TableKind
from penstock.postgres.observation import PublicationInfo, carried
from penstock.postgres.pgoutput import Relation
from penstock.postgres.snapshot_plan import Selection, SnapshotQuery, select
from penstock.postgres.values import arrow_type
from penstock.reference.footing import AGAIN, Footing, read_footings

NamedColumn = tuple[str, int, int]
"""A column's name, the OID of its type, and the type's modifier."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """The columns that are delivered, and those of them by which rows are told apart."""

    table: QualifiedTable
    columns: tuple[NamedColumn, ...]
    key: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The names of its columns."""
        return [name for name, _, _ in self.columns]

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of its rows."""
        return pa.schema([pa.field(name, arrow_type(oid, typmod)) for name, oid, typmod in self.columns])

    def check(self, columns: Mapping[str, tuple[int, int]]) -> None:
        """Refuse columns that are not (any more) those that are delivered; others beside them are no harm."""
        for name, oid, typmod in self.columns:
            found = columns.get(name)
            if found is None or found[0] != oid or arrow_type(*found) != arrow_type(oid, typmod):
                what = "is gone" if found is None else "has another type"
                raise OperatorError(f"table {self.table} was altered: its column {name} {what}", hint=AGAIN)


@dataclass(frozen=True, slots=True)
class Known:
    """A table as the catalog shows it now: its shape, how it is read, what streams for it, by OID, and its footing.

    Without a publication it has none.
    """

    shape: TableShape
    selection: Selection
    streamed: Mapping[int, QualifiedTable]
    partitioned: bool
    footing: Footing | None = None


def learn(connection: SqlConnection, table: QualifiedTable, key: Sequence[str], through: str | None = None) -> Known:
    """Read what is to be known of a table, whose changes come `through` a publication where they are wanted, too."""
    # First: what changes from here on is noticed by a comparison with it.
    footing = read_footings(connection, through, [table]).get(table) if through else None
    following = through is not None
    info = _described(connection, table, following)
    names = _carried(publication.read_publication(connection, through), info) if through else info.columns
    selection = select(connection, SnapshotQuery(table, tuple(column.name for column in names)))
    columns = tuple((column.name, column.type_oid, column.typmod) for column in selection.columns)
    shape = TableShape(table, columns, choose_key(info, tuple(key), following))
    streamed = {info.oid: table, **_leaves(connection, info)}
    return Known(shape, selection, streamed, info.kind is TableKind.PARTITIONED, footing)


def parts_of(connection: SqlConnection, table: QualifiedTable) -> dict[int, QualifiedTable]:
    """The partitions of a table as they are now, by OID; none where it is gone."""
    info = catalog.read_tables(connection, [table]).get(table)
    return _leaves(connection, info) if info else {}


def _leaves(connection: SqlConnection, info: TableInfo) -> dict[int, QualifiedTable]:
    return {leaf.oid: leaf.table for leaf in catalog.read_tables(connection, info.partitions).values()}


def _described(connection: SqlConnection, table: QualifiedTable, following: bool) -> TableInfo:
    info = catalog.read_tables(connection, [table]).get(table)
    if info is None:
        raise ConfigError(f"table {table} does not exist in the database", hint="Check its schema and spelling.")
    if following and info.kind not in (TableKind.TABLE, TableKind.PARTITIONED):
        raise ConfigError(
            f"{table} is a {info.kind.value}, which has no changes of its own",
            hint="Name a table, or read it again and again: refresh = periodic.",
        )
    if following:
        catalog.require_heirs(
            info, (), "Follow a table that has no heirs, or read it again and again: refresh = periodic."
        )
    return info


_BY_PARTITION = "ALTER PUBLICATION … SET (publish_via_partition_root = false); or name another publication."


def _as_one(table: QualifiedTable) -> str:
    return f"the publication speaks of {table} as one table, and so says nothing when a partition is truncated"


def _carried(published: PublicationInfo | None, info: TableInfo) -> tuple[ColumnInfo, ...]:
    """Those of its columns that the publication carries."""
    if published and published.via_root and info.kind is TableKind.PARTITIONED:
        raise ConfigError(_as_one(info.table), hint=_BY_PARTITION)
    return carried(info, published)


def choose_key(info: TableInfo, asked: tuple[str, ...], following: bool) -> tuple[str, ...]:
    """The columns by which rows are told apart: those asked for, else what a delete names, else the primary key."""
    by_index = info.identity.columns if info.identity.kind is IdentityKind.INDEX else ()
    key = asked or (by_index if following else ()) or info.primary_key or by_index
    if not key:
        raise ConfigError(
            f"table {info.table} has no primary key: a change of one of its rows could not be told from another's",
            hint=f"ALTER TABLE {info.table.sql} ADD PRIMARY KEY (…); or name the columns of a unique index as key.",
        )
    unknown = set(key) - {column.name for column in info.columns}
    if unknown:
        raise ConfigError(
            f"table {info.table} has no column {sorted(unknown)[0]!r} that could be part of its key",
            hint=f"It has: {', '.join(column.name for column in info.columns)}.",
        )
    unique = [index for index in info.indexes if _is_unique(index) and set(index.columns) == set(key)]
    if following and unique and not any(index.immediate for index in unique):
        raise ConfigError(
            f"the unique index over {', '.join(key)} of table {info.table} is deferrable: several rows may have the "
            "same key while a transaction changes them",
            hint="Make the constraint NOT DEFERRABLE, name the columns of another unique index as key, or read the "
            "table again and again: refresh = periodic.",
        )
    if not unique and info.kind in (TableKind.TABLE, TableKind.PARTITIONED):
        raise ConfigError(
            f"table {info.table} has no unique index over {', '.join(key)}: several rows may have the same key",
            hint=f"CREATE UNIQUE INDEX ON {info.table.sql} (…); or leave key out.",
        )
    if following and not set(key) <= set(info.identity.columns):
        raise ConfigError(
            f"the replica identity of {info.table} does not hold {', '.join(key)}: a deleted row would not be known",
            hint=f"ALTER TABLE {info.table.sql} REPLICA IDENTITY FULL; or make that index its identity.",
        )
    return key


def _is_unique(index: IndexInfo) -> bool:
    return index.unique and index.valid and not index.partial and not index.expression


def check_relation(known: Known, relation: Relation, *, empties: bool = False) -> None:
    """Refuse a table that is not, or not any more, the one that was read.

    What `empties` it names no row, and the table above partitions beside them.
    """
    name = known.streamed.get(relation.oid)
    if name is None:
        raise OperatorError(f"table {relation.table} was dropped and made anew while it was followed", hint=AGAIN)
    if name != relation.table:
        raise OperatorError(
            f"table {name} was renamed while it was followed: it is {relation.table} now",
            hint="Name it back, or follow it under its new name.",
        )
    if known.partitioned and name == known.shape.table and not empties:
        raise OperatorError(_as_one(name), hint=f"{_BY_PARTITION} {AGAIN}")
    known.shape.check({column.name: (column.type_oid, column.typmod) for column in relation.columns})
    named = {column.name for column in relation.columns if column.key}
    if not empties and relation.identity != "f" and not named.issuperset(known.shape.key):
        raise OperatorError(
            f"the replica identity of {relation.table} no longer holds {', '.join(known.shape.key)}: a deleted row "
            "would not be known",
            hint=f"ALTER TABLE {relation.table.sql} REPLICA IDENTITY FULL; or set it back. {AGAIN}",
        )
