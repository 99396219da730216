"""Transactions cut into pieces and made into thin changes: nothing lost, nothing moved, whatever the cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.contracts import Ack
from penstock.model import Op, Position, QualifiedTable
from penstock.postgres import pgoutput as pg
from penstock.postgres.changes import Piece, ThinColumns, pieces, thin
from penstock.postgres.transactions import Assembler, Transaction
from penstock.postgres.watermark import Watermark
from tests.unit import wire
from tests.unit.agreement import filled

OPS = {pg.Insert: Op.INSERT, pg.Update: Op.UPDATE, pg.Delete: Op.DELETE}


def everything(relation: pg.Relation) -> range:
    return range(len(relation.columns))


class History:
    """Random transactions over three tables, as frames and as the thin changes that must come of them."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.frames: list[bytes] = []
        self.expected: list[tuple[Any, ...]] = []
        self.sizes: list[int] = []
        self.relations: dict[int, pg.Relation] = {}

    def run(self, transactions: int) -> None:
        for number in range(1, transactions + 1):
            self.transaction(1000 * number, 700 + number)

    def transaction(self, end_lsn: int, xid: int) -> None:
        messages: list[pg.Message] = []
        ordinal = 0
        for _ in range(self.rng.randint(0, 12)):
            if not self.relations or self.rng.random() < 0.2:
                messages.append(self.describe(self.rng.randint(1, 3)))
                continue
            if self.rng.random() < 0.1:
                oids = self.rng.sample(sorted(self.relations), self.rng.randint(1, len(self.relations)))
                messages.append(pg.Truncate(tuple(oids)))
                found = [(self.relations[oid].table, Op.TRUNCATE, None, None) for oid in oids]
            else:
                row = self.row(self.relations[self.rng.choice(sorted(self.relations))])
                messages.append(row)
                self.sizes.append(len(wire.encode(row)))
                found = [(self.relations[row.oid].table, OPS[type(row)], *self.shown(row))]
            for one in found:
                self.expected.append((*one, xid, Position(end_lsn, ordinal)))
                ordinal += 1
        self.frames += wire.transaction(end_lsn, *messages, xid=xid, commit_time=7)

    def describe(self, oid: int) -> pg.Relation:
        identity = self.rng.choice("dif")
        names = self.rng.sample("abcde", self.rng.randint(0, 4))
        columns = [pg.Column(name, 25, -1, identity == "f" or self.rng.random() < 0.5) for name in names]
        relation = pg.Relation(oid, QualifiedTable("public", f"t{oid}"), identity, tuple(columns))
        self.relations[oid] = relation
        return relation

    def row(self, relation: pg.Relation) -> pg.Insert | pg.Update | pg.Delete:
        kind, full = self.rng.randrange(4), relation.identity == "f"
        new, old = ([self.value() for _ in relation.columns] for _ in range(2))
        before = tuple(v if full or c.key else None for v, c in zip(old, relation.columns, strict=True))
        if kind == 0:
            return pg.Insert(relation.oid, tuple(new))
        if kind == 1:
            return pg.Delete(relation.oid, before, full)
        return pg.Update(relation.oid, tuple(new), before if kind == 2 else None, full and kind == 2)

    def value(self) -> pg.Value:
        words: list[pg.Value] = [None, pg.UNCHANGED, b"", b"x", "größe".encode(), b"long" * 15]
        return self.rng.choice(words)

    def shown(self, row: pg.Insert | pg.Update | pg.Delete) -> tuple[Any, Any]:
        """New and old values by name: without what was not sent, unless the old row tells it."""
        relation = self.relations[row.oid]
        full, old, new = getattr(row, "full", False), getattr(row, "old", None), getattr(row, "new", None)
        known = [full or column.key for column in relation.columns]
        if old is not None and new is not None:
            new = filled(relation, new, old, full)
        names = [column.name for column in relation.columns]
        return self.named(new, names, [True] * len(names)), self.named(old, names, known)

    @staticmethod
    def named(row: pg.Tuple | None, names: list[str], sent: list[bool]) -> dict[str, Any] | None:
        if row is None:
            return None
        told = zip(names, row, sent, strict=True)
        return {n: v if v is None else v.decode() for n, v, s in told if s and not isinstance(v, pg.Unchanged)}


def assembled(frames: list[bytes], *cuts: int) -> list[Transaction]:
    """The transactions of frames that are received in several portions."""
    assembler, bounds = Assembler(), [0, *sorted(cuts), len(frames)]
    events = [event for a, b in pairwise(bounds) for event in assembler.feed(frames[a:b])]
    return [event for event in events if isinstance(event, Transaction)]


@settings(max_examples=70)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 7, 1000]), st.sampled_from([1, 60, 300, 1 << 20]))
def test_thin_changes_are_the_same_however_they_are_cut(seed: int, max_rows: int, max_bytes: int) -> None:
    """E5, E10, E15: in order, each at its position, with the shape of its time; within the limits."""
    history = History(Random(seed))
    history.run(5)
    watermark = Watermark()
    found = []
    cuts = [history.rng.randrange(len(history.frames)) for _ in range(history.rng.randint(0, 4))]
    for piece in pieces(assembled(history.frames, *cuts), max_rows, max_bytes):
        changes = list(thin(piece, everything, watermark))
        assert len(changes) == piece.count <= max_rows
        found += [tuple(change[:6]) for change in changes]
        origins = zip(*(numbers.tolist() for numbers in piece.origins()), strict=True)
        assert list(origins) == [(*change.position, change.xid, 7) for change in changes]
        assert [change.ack for change in changes] == [Ack(watermark, change.position) for change in changes]
        sizes = [len(message) for message in getattr(piece.rows, "messages", list)()]
        assert len(sizes) <= 1 or sum(sizes) <= max_bytes
    assert found == history.expected


def frames_of(relation: pg.Relation, *rows: pg.Message) -> Iterator[Piece]:
    return pieces(assembled([*wire.frames(relation), *wire.transaction(100, *rows)]), 1000, 1 << 20)


def changes_of(relation: pg.Relation, *rows: pg.Message) -> list[tuple[Op, Any, Any]]:
    found = [change for piece in frames_of(relation, *rows) for change in thin(piece, everything, Watermark())]
    return [(change.op, change.new, change.old) for change in found]


def test_rows_of_a_table_without_columns_are_changes_too() -> None:
    """E1: nothing to say of them but that they came, alone and among others."""
    empty = wire.relation(1, [])
    rows = [pg.Insert(1, ()), pg.Update(1, (), (), True), pg.Delete(1, ())]
    assert changes_of(empty, *rows) == [(Op.INSERT, {}, None), (Op.UPDATE, {}, {}), (Op.DELETE, None, {})]
    other = wire.relation(2)
    mixed = changes_of(empty, other, pg.Insert(1, ()), pg.Insert(2, (b"1", None)), pg.Insert(1, ()))
    assert [new for _, new, _ in mixed] == [{}, {"id": "1", "note": None}, {}]


def test_an_unchanged_value_is_left_out_of_a_thin_change() -> None:
    """E3: where null would be null."""
    rows = [
        pg.Update(1, (b"1", pg.UNCHANGED)),
        pg.Update(1, (b"1", None)),
        pg.Update(1, (b"2", pg.UNCHANGED), (b"1", None)),
    ]
    found = changes_of(wire.relation(1), *rows)
    assert [new for _, new, _ in found] == [{"id": "1"}, {"id": "1", "note": None}, {"id": "2"}]
    assert [old for _, _, old in found] == [None, None, {"id": "1"}]


def test_many_small_transactions_are_decoded_together_and_a_large_one_in_several() -> None:
    """E15: a piece holds what fits, never more."""
    small = [frame for at in range(1, 11) for frame in wire.transaction(100 * at, pg.Insert(1, (b"1", None)))]
    large = wire.transaction(2000, *[pg.Insert(1, (b"%d" % at, None)) for at in range(25)])
    cut = list(pieces(assembled([*wire.frames(wire.relation(1)), *small, *large]), 20, 1 << 20))
    assert [piece.count for piece in cut] == [10, 20, 5]
    assert [len(piece.spans) for piece in cut] == [10, 1, 1]
    assert cut[2].origins().ordinals.tolist() == list(range(20, 25))


def columns(*names: str) -> dict[QualifiedTable, tuple[str, ...]]:
    return {QualifiedTable("public", "t"): names}


@pytest.mark.parametrize(
    ("identity", "known", "expected"),
    [
        ("d", (), ["id"]),
        ("d", ("id", "parent"), ["id", "parent"]),
        ("i", ("parent",), ["id", "parent"]),
        ("f", ("parent",), ["parent"]),
        ("f", (), ["id", "note", "parent"]),
        ("f", ("id", "renamed"), ["id", "note", "parent"]),
        ("d", ("id", "renamed"), ["id"]),
        ("n", (), ["id", "note", "parent"]),
    ],
)  # fmt: skip
def test_a_thin_change_has_identity_and_links_and_never_less(
    identity: str, known: tuple[str, ...], expected: list[str]
) -> None:
    """E42: under FULL every column is flagged, which says nothing; then the catalog's word counts, else all come."""
    relation = wire.relation(1, ["id", "note", "parent"], identity)
    if identity == "n":
        relation = pg.Relation(
            1, relation.table, "n", tuple(pg.Column(c.name, 25, -1, False) for c in relation.columns)
        )
    chosen = ThinColumns(columns(*known) if known else {})(relation)
    assert [relation.columns[at].name for at in chosen] == expected


def test_a_thin_change_of_a_table_made_since_has_every_column() -> None:
    """E64: a partition under its own name, whose links are those of a table that the catalog was asked about."""
    relation = wire.relation(1, ["id", "note", "parent"], "d")
    assert ThinColumns({QualifiedTable("public", "elsewhere"): ("id",)})(relation) == (0, 1, 2)
