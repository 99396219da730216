"""The tables of a query: what its tasks need to know of them, kept true while the stream goes on.

Rows stream under the name that the table which holds them had when they were written: the one that was asked for, or a
partition of it, which may be younger than the query, or gone by now. A table is told by its oid, then by its name.
Guarantees: no row of a table that was asked for is taken for somebody else's, also one of a partition that was made,
attached, renamed, detached or dropped while the query ran: what is known as a partition stays one up to a restart, also
where it is detached and written to afterwards. A table that was renamed or dropped, or whose columns are not those
that the query was planned with, is a clear stop before any of its rows is handed on. A restart adopts the new shape. A
table that others inherit from is refused unless they are asked for, too. Not known: whether a table that was no
partition when the query started had been one; a warning where it is not published any more. Not told, since the stream
does not: rows that come and go with a partition.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import types as spark

from penstock.errors import ConfigError, OperatorError
from penstock.model import QualifiedTable
from penstock.postgres import catalog
from penstock.postgres.catalog import IdentityKind, TableInfo, TableKind
from penstock.postgres.connection import ConnectionSettings, open_sql, translating
from penstock.postgres.emptied import spared
from penstock.postgres.observation import carried
from penstock.postgres.pgoutput import Relation
from penstock.postgres.publication_catalog import read_publication
from penstock.postgres.transactions import Truncated
from penstock.spark.options import SourceOptions
from penstock.spark.schema import ADDED_NAMES, TypedColumn, table_type

log = logging.getLogger(__name__)

Tables = Mapping[QualifiedTable, TableInfo]

_ADOPT = "Restart the query: it adopts the table's new columns."
_RENAME = "Restart the query with the name that the table has now, or rename it back."
_LEAVE_OUT = "Restart the query without the table."
_NAME = """
SELECT n.nspname::text, c.relname::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s
"""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What tasks know of the tables.

    `names`: the names that rows stream under → the tables that were asked for. `types`: for a table that was asked
    for, the type and its modifier of each column. `partitioned`: which of the names are partitioned tables.
    """

    names: Mapping[QualifiedTable, QualifiedTable]
    primary_keys: Mapping[QualifiedTable, Sequence[str]]
    thin: Mapping[QualifiedTable, Sequence[str]]
    types: Mapping[QualifiedTable, Mapping[str, tuple[int, int]]]
    partitioned: Collection[QualifiedTable] = ()


class TableWatch:
    """Reads the catalog at the start, and again when the stream brings something that is not known.

    What was known once stays known: rows of what is gone may still be on their way.
    """

    def __init__(self, settings: ConnectionSettings, options: SourceOptions, schema: spark.StructType) -> None:
        self._settings = settings
        self._options = options
        own = [field for field in schema if field.name not in ADDED_NAMES]
        one_shape = options.mode == "rows" and not options.many
        self._expected = spark.StructType(own) if one_shape else None
        self._met: set[Relation] = set()
        self._strangers: dict[int, Relation] = {}  # by oid, as they were last described
        self._found: dict[QualifiedTable, TableInfo] = {}  # by each name that rows stream under
        self._names: dict[QualifiedTable, QualifiedTable] = {}  # as in the plan
        self._oids: dict[int, QualifiedTable] = {}  # what a table was called when it was last seen
        self._read()
        if options.mode == "rows" and self._as_one:
            log.warning(
                "publication %s speaks of %s as one table (publish_via_partition_root): a TRUNCATE of one of its "
                "partitions does not come", options.publication, ", ".join(map(str, sorted(self._as_one))),
            )  # fmt: skip

    def meet(self, relations: Iterable[Relation]) -> None:
        """See the tables that a batch's rows belong to, as the stream describes them."""
        described = list(relations)
        if any(self._is_news(relation) for relation in self._fresh(described)):
            self._read_again()
        for relation in self._fresh(described):
            if self._is_ours(relation):
                self._require_shape(relation)
            elif self._partitioned:
                self._pass_over(relation)
                self._strangers[relation.oid] = relation
                continue
            self._met.add(relation)

    def _fresh(self, relations: Sequence[Relation]) -> list[Relation]:
        """Those that were not looked at. A table that is attached is described anew, if in the same words."""
        seen = self._strangers
        return [one for one in relations if one not in self._met and seen.get(one.oid) is not one]

    def emptied(self, truncated: Truncated) -> list[int]:
        """Which of the relations stand for a table all of whose rows went: of several partitions the last one.

        A table some of whose partitions were spared is a stop; where changes may be lost, it is left out.
        """
        found: dict[QualifiedTable, list[Relation]] = {}
        for relation in truncated.together:
            if table := self._names.get(relation.table):
                found.setdefault(table, []).append(relation)
        if any(self._spared(table, relations) for table, relations in found.items()):
            self._read_again()  # a partition that was detached since does not count
        for table, relations in [*found.items()]:
            if left := self._spared(table, relations):
                self._stop_or_warn(f"partition {relations[0].table} of {table} was truncated", left[0])
                del found[table]
        last = {relations[-1].oid for relations in found.values()}
        return [at for at, relation in enumerate(truncated.relations) if relation.oid in last]

    def _spared(self, table: QualifiedTable, relations: Sequence[Relation]) -> list[QualifiedTable]:
        return spared(relations, table, self._partitions[table])

    def _stop_or_warn(self, what: str, left: QualifiedTable) -> None:
        if not self._options.fail_on_data_loss:
            log.warning("%s, and %s was not: left out, because failOnDataLoss is false", what, left)
            return
        raise OperatorError(
            f"{what}, and {left} was not: which rows went cannot be told",
            hint="Begin again with a new slot, a new checkpoint and a snapshot. Or remove those rows from where they "
            "were written to, and set failOnDataLoss to false until the query is behind it: the TRUNCATE is left out. "
            f"(If {left} is younger than the TRUNCATE, all rows went.)",
        )

    def _is_news(self, relation: Relation) -> bool:
        if relation.oid in self._oids:
            return relation.table not in self._names
        return self._partitioned

    def _is_ours(self, relation: Relation) -> bool:
        """Whether the rows are of a table that was asked for; from now on they are known by this name, too."""
        table, name = relation.table, self._oids.get(relation.oid)
        if name is None and table in self._options.tables:  # dropped and made again
            self._oids[relation.oid] = table
        elif name is None and table in self._names:
            raise _altered(self._names[table], f"{table} is the name of another table now")
        elif name is not None and table not in self._names:  # the name that it had when they were written
            self._names[table], self._found[table] = self._names[name], self._found[name]
            self.plan = _plan(self._names, self._found, self._options)
        return table in self._names

    def _pass_over(self, relation: Relation) -> None:
        if relation.table not in self._published:
            log.warning(
                "rows of table %s are left out: it is not in the publication any more. If it was a partition of a "
                "table that is asked for when they were written, they are lost to this query", relation.table,
            )  # fmt: skip

    def _read_again(self) -> None:
        """Whatever the reason: rows are decoded by what is found, which has to be what the query was planned with."""
        self._read()
        if self._expected is None:
            return
        for table, columns in self._sent.items():
            if _shape(columns, self._options) != _fields(self._expected):
                raise _altered(table, "its columns are not those that the query started with")

    def _read(self) -> None:
        options = self._options
        with open_sql(self._settings) as connection:
            published = read_publication(connection, options.publication)
            asked = catalog.read_tables(connection, options.tables)
            self._require_all(connection, asked)
            leaves = [leaf for info in asked.values() for leaf in info.partitions]
            found = asked | catalog.read_tables(connection, leaves)
        names = {leaf: table for table, info in asked.items() for leaf in (table, *info.partitions) if leaf in found}
        if options.mode == "rows":
            _require_heirs(asked)
        if options.preimage:
            _require_whole_rows([found[table] for table in names])
        self._names |= names
        self._found |= {table: found[table] for table in names}
        self._oids |= {found[table].oid: table for table in names}
        ours = self._oids.keys() & self._strangers.keys()  # attached since, and not yet described anew
        self._strangers = {oid: one for oid, one in self._strangers.items() if oid not in ours}
        self.plan = _plan(self._names, self._found, options)
        self._partitions = {
            table: {found[leaf].oid: leaf for leaf in info.partitions if names.get(leaf) == table}
            for table, info in asked.items()
        }
        self._sent = {table: carried(info, published) for table, info in asked.items()}
        self._published = published.published if published else {}
        partitioned = {table for table, info in asked.items() if info.kind is TableKind.PARTITIONED}
        self._partitioned = bool(partitioned)
        self._as_one = partitioned & self._published.keys()

    def _require_all(self, connection: catalog.SqlConnection, asked: Tables) -> None:
        """Every table that was asked for is there, and none that was read has another name now."""
        for table in self._options.tables:
            before, now = self._found.get(table), asked.get(table)
            if now and (before is None or before.oid == now.oid):
                continue
            with translating("reading the catalog"):
                named = connection.execute(_NAME, [before.oid]).fetchone() if before else None
            if named:
                raise _altered(table, f"it is {QualifiedTable(*named)} now", _RENAME)
            if now is None:
                raise _altered(table, "it was dropped", _LEAVE_OUT)

    def _require_shape(self, relation: Relation) -> None:
        """Rows of another shape are old ones only if the query's columns are those that the table has now."""
        if self._expected is not None and _shape(relation.columns, self._options) != _fields(self._expected):
            self._read_again()


def _plan(names: Mapping[QualifiedTable, QualifiedTable], found: Tables, options: SourceOptions) -> ReadPlan:
    return ReadPlan(
        names=names,
        primary_keys={table: found[table].primary_key for table in names if found[table].primary_key},
        thin={
            table: options.key_columns.get(asked) or catalog.thin_columns(found[table])
            for table, asked in names.items()
        },
        types={asked: {c.name: (c.type_oid, c.typmod) for c in found[asked].columns} for asked in set(names.values())},
        partitioned=frozenset(table for table in names if found[table].kind is TableKind.PARTITIONED),
    )


def _require_heirs(asked: Tables) -> None:
    for info in asked.values():
        catalog.require_heirs(info, asked.keys(), 'Name each of them: .option("tables", "{tables}").')


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


def _altered(table: QualifiedTable, what: str, way_on: str = _ADOPT) -> OperatorError:
    return OperatorError(
        f"table {table} was altered while the query ran: {what}",
        hint=f"{way_on} Nothing was acknowledged beyond the last batch.",
    )
