"""What tables hold now, read consistently, as Arrow batches or as changes.

Rows travel by COPY, one message a row and no more work than a cursor's: in text, the output of each type as in the
stream, or in binary where Arrow is wanted and most columns then need no parsing.
Guarantees: values are those that the stream would give for the same row; memory holds one block of rows, never a
table; row-level security that would hide rows is an error, not fewer rows.
Deliberately not: deciding how a table is cut (`snapshot_plan`), or which moment is read (`export`).
"""

from __future__ import annotations

import select as sockets
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import repeat
from typing import Any, Literal

import psycopg
import pyarrow as pa
from psycopg import pq

from penstock.contracts import Ack, Change
from penstock.errors import ConfigError, DecodeError, OperatorError
from penstock.model import Lsn, Op, Position, SnapshotTable
from penstock.postgres import catalog, copybinary, copytext, values, values_binary
from penstock.postgres.catalog import IdentityKind, TableInfo
from penstock.postgres.connection import ConnectionSettings, translating
from penstock.postgres.export import Connection, Ticket, adopt, begin, check_shape, open_reading
from penstock.postgres.ranges import Everything, Range
from penstock.postgres.snapshot_plan import Selection, SnapshotQuery, select
from penstock.postgres.sqlstate import translate
from penstock.postgres.values import Typed

# Large enough that array operations pay, small enough for a cache; a row that is larger still comes whole.
BLOCK_BYTES = 2 << 20
# libpq reads what has arrived into a buffer of 16 KB, a hundred rows, which grows for one large message and stays so:
# then each read of the socket takes all there is, and receiving a row an eighth less.
_WIDEN = b"SELECT pg_catalog.repeat('x', 500000)"

Unrepresentable = Literal["error", "null"]

_NEWEST = """
SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
            ELSE pg_catalog.pg_current_wal_flush_lsn() END::text
"""


def read_part(
    settings: ConnectionSettings,
    selection: Selection,
    part: Range,
    ticket: Ticket | None = None,
    unrepresentable: Unrepresentable = "error",
) -> Iterator[pa.RecordBatch]:
    """The rows of one part over a connection of its own: in the exported snapshot, or without one as they are now."""
    # What has no binary form is turned into text in the query, which costs the server more than COPY's own text does.
    binary = sum(values_binary.is_binary(c.type_oid, c.typmod) for c in selection.columns)
    read = _binary if 2 * binary >= len(selection.columns) else _text
    with closing(_opened(settings, selection, ticket)) as connection:
        for found in read(connection, selection, part):
            yield _batch(selection, found, unrepresentable)


def _opened(settings: ConnectionSettings, selection: Selection, ticket: Ticket | None) -> Connection:
    if ticket:
        return adopt(settings, ticket, selection)
    connection = open_reading(settings)
    try:
        with translating(f"reading {selection.table}"):
            begin(connection, [selection])
            check_shape(connection, selection)
    except BaseException:
        connection.close()
        raise
    return connection


def blocks(connection: Connection, selection: Selection, part: Range) -> Iterator[list[pa.Array[Any]]]:
    """The rows of one part, block by block, each a column of texts (as bytes) for each column."""
    for block, _ in _received(connection, f"COPY ({selection.statement(part)}) TO STDOUT", selection):
        if block:
            yield copytext.columns(block, len(selection.columns))


def _text(connection: Connection, selection: Selection, part: Range) -> Iterator[list[Typed]]:
    for block in blocks(connection, selection, part):
        yield [values.to_arrow(raw, c.type_oid, c.typmod) for raw, c in zip(block, selection.columns, strict=True)]


def _binary(connection: Connection, selection: Selection, part: Range) -> Iterator[list[Typed]]:
    statement = selection.statement(part, lambda c: values_binary.expression(c.name, c.type_oid, c.typmod))
    ended, begun = False, False
    for block, sizes in _received(connection, f"COPY ({statement}) TO STDOUT (FORMAT binary)", selection):
        if block and not begun:  # there is none where the first row is an error
            copybinary.drop_begin(block, sizes)
            begun = True
        ended = copybinary.drop_end(block, sizes)
        if sizes:
            walk = copybinary.Walk(block, sizes, len(selection.columns))
            found = [values_binary.read_column(walk, c.type_oid, c.typmod) for c in selection.columns]
            walk.finish()
            yield found
    if not ended:
        raise DecodeError(f"the rows of {selection.table} do not end as those of a binary COPY")


def _received(connection: Connection, statement: str, selection: Selection) -> Iterator[tuple[bytearray, list[int]]]:
    """The answer to a COPY, block by block, each with the sizes of its messages, one a row."""
    pgconn, what = connection.pgconn, f"reading {selection.table}"
    pgconn.exec_params(_WIDEN, [])
    # The extended protocol takes one statement: a condition cannot bring another one with it.
    result = pgconn.exec_params(statement.encode(), [])
    if result.status != pq.ExecStatus.COPY_OUT:
        raise translate(result, what)
    ended = False
    while not ended:
        with translating(what):
            block, sizes, ended = _receive(pgconn)
        yield block, sizes
    while (last := pgconn.get_result()) is not None:
        if last.status == pq.ExecStatus.FATAL_ERROR:
            raise translate(last, what)


def _receive(pgconn: pq.abc.PGconn) -> tuple[bytearray, list[int], bool]:
    """Messages of about a block, waiting for them, and whether they are the last."""
    wait = sockets.poll()
    wait.register(pgconn.socket, sockets.POLLIN)
    block, sizes = bytearray(), list[int]()
    get, note, without_waiting = pgconn.get_copy_data, sizes.append, repeat(1)
    while len(block) < BLOCK_BYTES:
        for count, message in map(get, without_waiting):  # what the driver has received, which is little
            if count <= 0:
                break
            block += message  # at once: the driver's buffer is then used again while it is in the cache
            note(count)
        if count < 0:
            return block, sizes, True
        wait.poll()
        pgconn.consume_input()
    return block, sizes, False


def _batch(selection: Selection, found: Sequence[Typed], unrepresentable: Unrepresentable) -> pa.RecordBatch:
    for column, one in zip(selection.columns, found, strict=True):
        if one.unrepresentable is not None and unrepresentable == "error":
            raise OperatorError(
                f"column {column.name} of {selection.table} holds a value that {one.values.type} cannot (an "
                "infinity, NaN, or a year outside 1 to 9999)",
                hint="Set unrepresentable to null: such values become null.",
            )
    return pa.record_batch([one.values for one in found], schema=selection.schema)


class _NoSink:
    """Acknowledgements of a snapshot move nothing: one that crashed is run again."""

    def confirm(self, position: Position) -> None:
        """Nothing to note."""


def read_snapshot(settings: ConnectionSettings, tables: Sequence[SnapshotTable]) -> Iterator[Change]:
    """Every row of the tables, all of one moment, as an insert; its position counts rows at about that moment's LSN."""
    with closing(open_reading(settings)) as connection:
        with translating("reading a snapshot"):
            known = catalog.read_tables(connection, [wanted.table for wanted in tables])
            selections = [_selected(connection, wanted, known.get(wanted.table)) for wanted in tables]
            ((lsn,),) = connection.execute(_NEWEST).fetchall()
            begin(connection, selections)
        at, row = Lsn.parse(lsn), 0
        for selection in selections:
            for new in _rows(connection, selection):
                position = Position(at, row)
                yield Change(selection.table, Op.INSERT, new, None, None, position, Ack(_NoSink(), position))
                row += 1


def _selected(connection: psycopg.Connection[Any], wanted: SnapshotTable, info: TableInfo | None) -> Selection:
    names = tuple(wanted.columns)
    if info is not None:
        require_identity(info)
        names = names or catalog.thin_columns(info)
    return select(connection, SnapshotQuery(wanted.table, names))


def require_identity(info: TableInfo) -> None:
    """Refuse a table whose rows cannot be told apart: what follows the snapshot could not be laid over it."""
    if not info.primary_key and not (info.identity.kind is IdentityKind.INDEX and info.identity.columns):
        raise ConfigError(
            f"table {info.table} has no primary key: a change of one of its rows could not be told from another's",
            hint=f"ALTER TABLE {info.table.sql} ADD PRIMARY KEY (…); or leave the table out.",
        )


def _rows(connection: Connection, selection: Selection) -> Iterator[dict[str, Any]]:
    names = [column.name for column in selection.columns]
    for block in blocks(connection, selection, Everything()):
        lists = [values.to_pylist(r, c.type_oid, c.typmod) for r, c in zip(block, selection.columns, strict=True)]
        yield from (dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True))
