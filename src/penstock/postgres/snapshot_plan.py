"""What a snapshot reads of a table, and into which parts it is cut.

A table is cut by its blocks unless a key is asked for: the server then reads each block once, in order, and needs no
index; parts are even by size, whatever the keys are. By key, the cuts come from a sample of the table's own rows, so
that skewed, text, uuid and composite keys fall into fair parts too. What has no blocks (a view, a foreign table) is
one part unless a key is given.

Guarantees: names and conditions are checked by the server before anything is read, and what is wrong is one sentence;
the parts together hold every row once. Nothing is written. Deliberately not: reading rows (`snapshot`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from psycopg import pq

from penstock.errors import ConfigError, PenstockError
from penstock.model import QualifiedTable, quote
from penstock.postgres import catalog, values
from penstock.postgres.catalog import ColumnInfo, SqlConnection, TableInfo, TableKind
from penstock.postgres.ranges import Everything, KeyColumn, Range, block_ranges, key_prefix, key_ranges
from penstock.postgres.sqlstate import read_error, translate, translating

# A part is worth a connection of its own from about this size on, and a server gives us this many unasked.
_PART_BYTES = 32 << 20
_MOST_PARTS = 4
# A sample of this many blocks cuts fairly (16 MB are read for it); smaller tables are looked at whole.
_SAMPLED_BLOCKS = 2000

# LOCK TABLE takes these kinds only.
_LOCKABLE = (TableKind.TABLE, TableKind.PARTITIONED, TableKind.VIEW)

# Every table that a read of this one goes through: its blocks, and whether the server finds rows in them by ctid.
_TREE = """
WITH RECURSIVE tree (oid) AS (
    SELECT %s::pg_catalog.oid
    UNION SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid AND NOT i.inhdetachpending
)
SELECT c.relkind = 'p', coalesce(a.amhandler = 'pg_catalog.heap_tableam_handler'::pg_catalog.regproc, FALSE),
       CASE WHEN a.oid IS NULL THEN 0
            ELSE pg_catalog.pg_relation_size(c.oid) / pg_catalog.current_setting('block_size')::bigint END,
       pg_catalog.current_setting('block_size')::bigint
FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid LEFT JOIN pg_catalog.pg_am a ON a.oid = c.relam
"""


@dataclass(frozen=True, slots=True)
class SnapshotQuery:
    """What is wanted of a table: columns (none: all), the user's own condition, and conditions made by us."""

    table: QualifiedTable
    columns: tuple[str, ...] = ()
    where: str = ""
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Selection:
    """The same, checked: columns with their types, and SQL that the server has understood."""

    table: QualifiedTable
    columns: tuple[ColumnInfo, ...]
    conditions: tuple[str, ...] = ()
    lockable: bool = True

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of its rows."""
        return pa.schema([pa.field(c.name, values.arrow_type(c.type_oid, c.typmod)) for c in self.columns])

    def statement(self, part: Range, form: Callable[[ColumnInfo], str] = lambda column: quote(column.name)) -> str:
        """A query for the rows of one part, with columns in a form."""
        listed = ", ".join(map(form, self.columns))
        return f"SELECT {listed} FROM {self.table.sql} WHERE {' AND '.join([part.condition(), *self.conditions])}"


def select(connection: SqlConnection, query: SnapshotQuery) -> Selection:
    """Check what is asked for against the database."""
    info = _described(connection, query.table)
    chosen = _columns(info, query.columns) if query.columns else info.columns
    if not chosen:
        raise ConfigError(f"table {query.table} has no columns")
    where = [f"({query.where}\n)"] if query.where.strip() else []  # the line feed ends a comment
    if where:
        _check_condition(connection, query)
    return Selection(query.table, chosen, (*query.conditions, *where), info.kind in _LOCKABLE)


def plan(
    connection: SqlConnection, selection: Selection, parts: int | None = None, key: Sequence[str] = ()
) -> list[Range]:
    """Cut a table into `parts` (none given: by its size), by the columns of `key` or else by its blocks."""
    info = _described(connection, selection.table)
    with translating(f"looking at the size of {selection.table}"):
        tree = connection.execute(_TREE, [info.oid]).fetchall()
    sizes = [blocks for _, _, blocks, _ in tree]
    wanted = parts or min(_MOST_PARTS, max(1, sum(sizes) * tree[0][3] // _PART_BYTES if tree else 1))
    if key:
        columns = key_prefix([KeyColumn(c.name, c.type_name, c.nullable) for c in _columns(info, key)])
        return key_ranges(columns, _cuts(connection, selection, columns, _sampling(info, sum(sizes)), wanted))
    if all(is_parent or has_blocks for is_parent, has_blocks, _, _ in tree):
        return block_ranges(sizes, wanted)
    return [Everything()]


def _described(connection: SqlConnection, table: QualifiedTable) -> TableInfo:
    info = catalog.read_tables(connection, [table]).get(table)
    if info is None:
        raise ConfigError(f"table {table} does not exist in the database", hint="Check its schema and spelling.")
    return info


def _columns(info: TableInfo, names: Iterable[str]) -> tuple[ColumnInfo, ...]:
    found = {column.name: column for column in info.columns}
    for name in names:
        if name not in found:
            close = difflib.get_close_matches(name, found, 1)
            raise ConfigError(
                f"{info.kind.value} {info.table} has no column {name!r}",
                hint=f"Did you mean {close[0]!r}?" if close else f"It has: {', '.join(found)}.",
            )
    return tuple(found[name] for name in dict.fromkeys(names))


def _check_condition(connection: SqlConnection, query: SnapshotQuery) -> None:
    """Have the server parse the condition, without running it.

    As one statement of the extended protocol a `;` ends nothing, and between two kinds of brackets, since what closes
    the ones does not close the others: it cannot reach what stands around it.
    """
    table = query.table.sql
    settings = (f"SELECT FROM {table} WHERE (", "\n)"), ("SELECT ARRAY[", f"\n] FROM {table}")
    for before, after in settings:
        opening = f"EXPLAIN {before}"
        result = connection.pgconn.exec_params(f"{opening}{query.where}{after}".encode(), [])
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise _unfit(result, query, len(opening))


def _unfit(result: pq.abc.PGresult, query: SnapshotQuery, before: int) -> PenstockError:
    said = read_error(result)
    state = said.sqlstate or ""
    if state[:2] not in ("42", "22", "0A", "21") or state == "42501":
        return translate(result, f"reading {query.table}")
    at = int(result.error_field(pq.DiagnosticField.STATEMENT_POSITION) or 0) - before
    where = f" at character {at}" if 0 < at <= len(query.where) else " at its end" if at > 0 else ""
    return ConfigError(
        f"the condition in where is not understood{where}: {said.sentence}",
        hint=f"It is what would stand behind WHERE in a query on {query.table}, for example: id > 100.",
        sqlstate=state,
    )


def _sampling(info: TableInfo, blocks: int) -> str:
    if info.kind in (TableKind.VIEW, TableKind.FOREIGN) or blocks <= _SAMPLED_BLOCKS:
        return ""
    return f" TABLESAMPLE SYSTEM ({100 * _SAMPLED_BLOCKS / blocks:.6f})"


def _cuts(
    connection: SqlConnection, selection: Selection, columns: Sequence[KeyColumn], sampling: str, parts: int
) -> list[tuple[str, ...]]:
    """The keys that part a sample of the rows into equal numbers."""
    listed = ", ".join(f"{quote(column.name)} AS k{at}" for at, column in enumerate(columns))
    names = ", ".join(f"k{at}" for at in range(len(columns)))
    rows = " AND ".join([f"{quote(columns[0].name)} IS NOT NULL", *selection.conditions])
    statement = (
        f"SELECT {names} FROM (SELECT {names}, row_number() OVER (ORDER BY {names}) - 1 AS at, count(*) OVER () AS n"
        f" FROM (SELECT {listed} FROM {selection.table.sql}{sampling} WHERE {rows}) AS sample) AS ranked"
        f" WHERE at > 0 AND at * {parts} / n <> (at - 1) * {parts} / n ORDER BY at"
    )
    result = connection.pgconn.exec_params(statement.encode(), [])  # in text: the bounds are written as literals
    if result.status != pq.ExecStatus.TUPLES_OK:
        if (read_error(result).sqlstate or "") == "42883":
            raise ConfigError(
                f"{selection.table} cannot be cut by {' and '.join(c.name for c in columns)}: the type has no order",
                hint="Name another partition column, or none: the table is then cut by its blocks.",
            )
        raise translate(result, f"sampling the keys of {selection.table}")
    return [
        tuple((result.get_value(row, at) or b"").decode() for at in range(len(columns)))
        for row in range(result.ntuples)
    ]
