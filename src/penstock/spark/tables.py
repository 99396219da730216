"""The tables of a query: what its tasks need to know of them, kept true while the stream goes on.

Rows stream under the name of the table that holds them: the one that was asked for, or a partition of it, which may be
younger than the query. Guarantees: no row of a table that was asked for is taken for somebody else's, also one of a
partition that was attached meanwhile; a table that was renamed, or whose columns are not those that the query was
planned with, is a clear stop before any of its rows is handed on. A restart adopts the new shape. A table that others
inherit from is refused unless they are asked for, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import types as spark

from penstock.errors import ConfigError, OperatorError
from penstock.model import QualifiedTable
from penstock.postgres import catalog
from penstock.postgres.catalog import IdentityKind, TableInfo, TableKind
from penstock.postgres.connection import ConnectionSettings, open_sql
from penstock.postgres.pgoutput import Relation
from penstock.spark.options import SourceOptions
from penstock.spark.schema import ADDED_NAMES, TypedColumn, table_type

Tables = Mapping[QualifiedTable, TableInfo]


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What tasks know of the tables.

    `names`: the names that rows stream under → the tables that were asked for. `types`: for a table that was asked
    for, the type and its modifier of each column.
    """

    names: Mapping[QualifiedTable, QualifiedTable]
    primary_keys: Mapping[QualifiedTable, Sequence[str]]
    thin: Mapping[QualifiedTable, Sequence[str]]
    types: Mapping[QualifiedTable, Mapping[str, tuple[int, int]]]


class TableWatch:
    """Reads the catalog at the start, and again when the stream brings something that is not known."""

    def __init__(self, settings: ConnectionSettings, options: SourceOptions, schema: spark.StructType) -> None:
        self._settings = settings
        self._options = options
        own = [field for field in schema if field.name not in ADDED_NAMES]
        one_shape = options.mode == "rows" and not options.many
        self._expected = spark.StructType(own) if one_shape else None
        self._met: set[Relation] = set()
        self._read()

    def meet(self, relations: Iterable[Relation]) -> None:
        """See the tables that a batch's rows belong to, as the stream describes them."""
        fresh = [relation for relation in relations if relation not in self._met]
        if fresh and self._partitioned and any(relation.table not in self.plan.names for relation in fresh):
            self._read()
        for relation in fresh:
            if relation.table in self.plan.names:
                self._require_shape(relation)
            elif relation.oid in self._oids:
                raise _altered(self._oids[relation.oid], f"it is {relation.table} now")
            elif self._partitioned:
                continue  # somebody else's; but it may be attached later
            self._met.add(relation)

    def _read(self) -> None:
        options = self._options
        with open_sql(self._settings) as connection:
            asked = catalog.read_tables(connection, options.tables)
            leaves = [leaf for info in asked.values() for leaf in info.partitions]
            found = asked | catalog.read_tables(connection, leaves)
        names = {leaf: table for table, info in asked.items() for leaf in (table, *info.partitions) if leaf in found}
        if options.mode == "rows":
            _require_heirs(asked)
        if options.preimage:
            _require_whole_rows([found[table] for table in names])
        self.plan = _plan(names, found, options)
        self._asked = asked
        self._oids = {found[table].oid: table for table in names}
        self._partitioned = any(info.kind is TableKind.PARTITIONED for info in asked.values())

    def _require_shape(self, relation: Relation) -> None:
        """Rows of another shape are old ones only if the query's columns are those that the table has now."""
        if self._expected is None or _shape(relation.columns, self._options) == _fields(self._expected):
            return
        self._read()
        table = self.plan.names.get(relation.table)
        if table is None or _shape(self._asked[table].columns, self._options) != _fields(self._expected):
            raise _altered(relation.table, "its columns are not those that the query started with")


def _plan(names: Mapping[QualifiedTable, QualifiedTable], found: Tables, options: SourceOptions) -> ReadPlan:
    return ReadPlan(
        names=names,
        primary_keys={table: found[table].primary_key for table in names if found[table].primary_key},
        thin={
            table: options.key_columns.get(asked) or catalog.thin_columns(found[table])
            for table, asked in names.items()
        },
        types={asked: {c.name: (c.type_oid, c.typmod) for c in found[asked].columns} for asked in set(names.values())},
    )


def _require_heirs(asked: Tables) -> None:
    """A query of a table reads the rows of those that inherit from it; the stream has them under their own names."""
    for table, info in asked.items():
        if heirs := [str(heir) for heir in info.inheritors if heir not in asked]:
            raise ConfigError(
                f"rows of {table} are also in tables that inherit from it ({', '.join(heirs)}), whose changes are "
                "not its own",
                hint=f'Name each of them: .option("tables", "{", ".join([str(table), *heirs])}").',
            )


def _require_whole_rows(tables: Iterable[TableInfo]) -> None:
    for info in tables:
        if info.identity.kind is not IdentityKind.FULL and info.kind is not TableKind.PARTITIONED:
            raise ConfigError(
                f"preimage needs the whole old row, and the replica identity of {info.table} does not keep it",
                hint=f"ALTER TABLE {info.table.sql} REPLICA IDENTITY FULL;",
            )


def _shape(columns: Iterable[TypedColumn], options: SourceOptions) -> set[tuple[str, str]]:
    return _fields(table_type(columns, options.json_columns))


def _fields(struct: spark.StructType) -> set[tuple[str, str]]:
    # A partition may hold its columns in another order than its parent.
    return {(field.name, field.dataType.simpleString()) for field in struct}


def _altered(table: QualifiedTable, what: str) -> OperatorError:
    return OperatorError(
        f"table {table} was altered while the query ran: {what}",
        hint="Restart the query: it adopts the table's new columns. Nothing was acknowledged beyond the last batch.",
    )
