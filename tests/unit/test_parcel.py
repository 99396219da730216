"""Changes that travel to another process as bytes, and changes by their keys."""

from __future__ import annotations

import pytest

from penstock.errors import BugError
from penstock.model import QualifiedTable
from penstock.postgres import pgoutput as pg
from penstock.postgres.changes import Piece, ThinColumns, pieces
from penstock.postgres.keys import SCHEMA, key_batch
from penstock.postgres.parcel import pack, unpack
from penstock.postgres.rows import RowShape, row_batches
from penstock.postgres.transactions import Assembler, Transaction
from tests.unit import wire

ORDERS = wire.relation(1, ("id", "customer", "note"), name="orders")
ITEMS = pg.Relation(
    2, QualifiedTable("public", "items"), "d", (pg.Column("order_id", 23, -1, True), pg.Column("line", 23, -1, True))
)
TABLES = {ORDERS.table: ("id", "customer"), ITEMS.table: ("order_id", "line")}


def assembled(*frames: bytes) -> list[Piece]:
    transactions = [event for event in Assembler().feed(frames) if isinstance(event, Transaction)]
    return list(pieces(transactions, 1000, 1 << 20))


def history() -> list[Piece]:
    return assembled(
        *wire.transaction(
            100, ORDERS, ITEMS,
            pg.Insert(1, (b"1", b"ada", b"x")), pg.Insert(2, (b"1", b"1")),
            pg.Update(1, (b"2", b"ada", pg.UNCHANGED), (b"1", None, None)), xid=7, commit_time=5,
        ),
        *wire.transaction(
            200, pg.Delete(2, (b"1", b"1")), pg.Truncate((1, 2)), pg.Insert(1, (b"3", None, None)), xid=8
        ),
    )  # fmt: skip


def test_a_parcel_decodes_to_what_was_packed() -> None:
    """E3, E10: rows, truncates, positions, unchanged values."""
    shape = RowShape()
    found = history()
    assert len(found) == 3
    for piece in found:
        parcel = unpack(pack(piece))
        again = row_batches(parcel, shape, {})
        expected = row_batches(piece, shape, {})
        assert [(batch.relation, batch.rows) for batch in again] == [(batch.relation, batch.rows) for batch in expected]


def test_a_parcel_of_a_transaction_sent_in_pieces_decodes_too() -> None:
    """E10: messages inside a streamed piece carry an xid."""
    in_piece = pg.Relation(ORDERS.oid, ORDERS.table, ORDERS.identity, ORDERS.columns, xid=9)
    frames = [*wire.piece(9, in_piece, pg.Insert(1, (b"1", b"a", b"b"), 9), first=True), wire.stream_commit(300, 9)]
    (piece,) = assembled(*frames)
    (batch,) = row_batches(unpack(pack(piece)), RowShape(), {})
    assert batch.rows["id"].to_pylist() == ["1"]


def test_a_parcel_of_another_format_is_refused() -> None:
    data = pack(history()[0]).replace(b'"format": 1', b'"format": 2')
    with pytest.raises(BugError, match="format 2"):
        unpack(data)


def test_keys_name_old_and_new_rows_of_all_tables_in_order() -> None:
    """E10: one row for each change; no old tuple is null, an unchanged value is left out."""
    batches = [key_batch(piece, ThinColumns(TABLES)) for piece in history()]
    assert all(batch.schema == SCHEMA for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["table"], row["op"], row["new"], row["old"], row["xid"], row["_seq"]) for row in rows] == [
        ("public.orders", "insert", [("id", "1"), ("customer", "ada")], None, 7, 0),
        ("public.items", "insert", [("order_id", "1"), ("line", "1")], None, 7, 1),
        ("public.orders", "update", [("id", "2"), ("customer", "ada")], [("id", "1")], 7, 2),
        ("public.items", "delete", None, [("order_id", "1"), ("line", "1")], 8, 0),
        ("public.orders", "truncate", None, None, 8, 1),
        ("public.items", "truncate", None, None, 8, 2),
        ("public.orders", "insert", [("id", "3"), ("customer", None)], None, 8, 3),
    ]
    assert {row["_commit_lsn"] for row in rows} == {100, 200}
