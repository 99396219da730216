"""What tables hold now, read once and consistently.

Guarantees: all tables of one call are read in one REPEATABLE READ transaction, so they show one moment; values are
those that the stream would give for the same row; memory holds one batch of rows, never a table. Row-level security
that would hide rows is an error, not fewer rows. Deliberately not: parallel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pyarrow as pa

from penstock.contracts import Ack, Change
from penstock.errors import ConfigError
from penstock.model import Lsn, Op, Position, QualifiedTable, SnapshotTable, quote
from penstock.postgres import catalog, values
from penstock.postgres.catalog import ColumnInfo
from penstock.postgres.connection import ConnectionSettings, open_sql, translating

_FETCH_ROWS = 10_000


class _NoSink:
    """Acknowledgements of a snapshot move nothing: one that crashed is run again."""

    def confirm(self, position: Position) -> None:
        """Nothing to note."""


def read_snapshot(settings: ConnectionSettings, tables: Sequence[SnapshotTable]) -> Iterator[Change]:
    """Every row of the tables as an insert, its position counted at the LSN read before the first."""
    with open_sql(settings) as connection, translating("reading a snapshot"):
        connection.execute("SET row_security = off")
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        at = Lsn.parse(_one(connection, "SELECT pg_catalog.pg_current_wal_flush_lsn()::text"))
        known = catalog.read_tables(connection, [wanted.table for wanted in tables])
        row = 0
        for wanted in tables:
            info = known.get(wanted.table)
            if info is None:
                raise ConfigError(f"table {wanted.table} does not exist", hint="Check its schema and spelling.")
            names = tuple(wanted.columns) or catalog.thin_columns(info)
            columns = [column for name in names for column in info.columns if column.name == name]
            if len(columns) != len(names):
                absent = set(names) - {column.name for column in columns}
                raise ConfigError(f"table {wanted.table} has no column {min(absent)}")
            for new in _rows(connection, wanted.table, columns):
                position = Position(at, row)
                yield Change(wanted.table, Op.INSERT, new, None, None, position, Ack(_NoSink(), position))
                row += 1


def _one(connection: psycopg.Connection[Any], query: str) -> Any:
    return connection.execute(query.encode()).fetchone()[0]  # type: ignore[index]  # a query of one row


def _rows(
    connection: psycopg.Connection[Any], table: QualifiedTable, columns: Sequence[ColumnInfo]
) -> Iterator[dict[str, Any]]:
    listed = ", ".join(quote(column.name) for column in columns)
    connection.execute(f"DECLARE penstock_rows NO SCROLL CURSOR FOR SELECT {listed} FROM {table.sql}".encode())
    names = [column.name for column in columns]
    while True:
        # Text format: the bytes are the type's output, as in the stream.
        result = connection.pgconn.exec_(f"FETCH {_FETCH_ROWS} FROM penstock_rows".encode())
        count = result.ntuples
        raw = [pa.array([result.get_value(i, j) for i in range(count)], pa.binary()) for j in range(len(columns))]
        lists = [values.to_pylist(r, c.type_oid, c.typmod) for r, c in zip(raw, columns, strict=True)]
        yield from (dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True))
        if count < _FETCH_ROWS:
            break
    connection.execute("CLOSE penstock_rows")
