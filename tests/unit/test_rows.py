"""Whole rows as Arrow: what happened to each row, in an order that can be replayed, and what is missing by name."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError, OperatorError
from penstock.model import QualifiedTable
from penstock.postgres import pgoutput as pg
from penstock.postgres import values
from penstock.postgres.changes import pieces
from penstock.postgres.replication import POSTGRES_EPOCH_MICROS
from penstock.postgres.rows import ADDED, CHANGE_TYPES, RowShape, row_batches, schema_of
from penstock.postgres.transactions import Assembler, Transaction
from tests.unit import wire
from tests.unit.agreement import filled

T = QualifiedTable("public", "t")
Row = dict[str, Any]


def rows_of(
    *messages: pg.Message, shape: RowShape | None = None, keys: dict[QualifiedTable, tuple[str, ...]] | None = None
) -> list[Row]:
    """The rows that come of one transaction, by their positions; the columns that are added only where they tell."""
    frames = wire.transaction(100, *messages, xid=754, commit_time=1)
    transactions = [event for event in Assembler().feed(frames) if isinstance(event, Transaction)]
    found: list[Row] = []
    for piece in pieces(transactions, 1000, 1 << 20):
        for batch in row_batches(piece, shape or RowShape(), keys or {}):
            batch.rows.validate(full=True)
            assert batch.rows.schema.names[-len(ADDED) :] == ADDED.names
            found += batch.rows.to_pylist()
    return found


def told(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Each row's change, ordinal, own values and missing columns."""
    own = [[name for name in row if name not in ADDED.names] for row in rows]
    return [
        (row["_change_type"], row["_seq"], *(row[name] for name in names), row["_missing"])
        for row, names in zip(rows, own, strict=True)
    ]


R, FULL = wire.relation(1), wire.relation(1, identity="f")


def test_every_change_says_what_it_was_and_where() -> None:
    """E1, E10: the added columns."""
    rows = rows_of(
        R, pg.Insert(1, (b"1", b"a")), pg.Update(1, (b"1", None)), pg.Delete(1, (b"1", None)), pg.Truncate((1,))
    )
    assert told(rows) == [
        ("insert", 0, "1", "a", []),
        ("update_postimage", 1, "1", None, []),
        ("delete", 2, "1", None, ["note"]),
        ("truncate", 3, None, None, ["id", "note"]),
    ]
    assert {(row["_commit_lsn"], row["_xid"]) for row in rows} == {(100, 754)}
    micros = pa.array([row["_commit_timestamp"] for row in rows]).cast(pa.int64()).to_pylist()
    assert micros == [POSTGRES_EPOCH_MICROS + 1] * 4


def test_a_changed_identity_comes_as_a_preimage_and_a_postimage() -> None:
    """E3: with the same ordinal, in that order, whatever is asked for; an unchanged value is missing, not null."""
    update = pg.Update(1, (b"2", pg.UNCHANGED), (b"1", None))
    expected = [("update_preimage", 0, "1", None, ["note"]), ("update_postimage", 0, "2", None, ["note"])]
    assert told(rows_of(R, update)) == expected
    assert told(rows_of(R, update, shape=RowShape(preimage=True))) == expected


@pytest.mark.parametrize("keys", [{T: ("id",)}, {}, {T: ("gone",)}], ids=["known key", "no key", "renamed key"])
def test_under_full_a_preimage_comes_where_the_key_changed_or_all_are_wanted(
    keys: dict[QualifiedTable, tuple[str, ...]],
) -> None:
    """E42: where the key is not known, any changed column may be it."""
    same = pg.Update(1, (b"1", b"a"), (b"1", b"a"), True)
    other = pg.Update(1, (b"1", b"b"), (b"1", b"a"), True)
    moved = pg.Update(1, (b"2", pg.UNCHANGED), (b"1", b"a"), True)
    found = rows_of(FULL, same, other, moved, keys=keys)
    by_key = [["update_postimage"], ["update_postimage"], ["update_preimage", "update_postimage"]]
    by_any = [["update_postimage"], ["update_preimage", "update_postimage"], ["update_preimage", "update_postimage"]]
    assert _by_seq(found) == (by_key if keys.get(T) == ("id",) else by_any)
    assert told(found)[-1] == ("update_postimage", 2, "2", "a", [])
    every = rows_of(FULL, same, other, moved, keys=keys, shape=RowShape(preimage=True))
    assert _by_seq(every) == [["update_preimage", "update_postimage"]] * 3


def _by_seq(rows: list[Row]) -> list[list[str]]:
    return [
        [row["_change_type"] for row in rows if row["_seq"] == seq] for seq in sorted({row["_seq"] for row in rows})
    ]


def test_null_and_empty_are_told_apart_in_a_key() -> None:
    """E96: a key that becomes null, or empty, has changed."""
    rows: list[pg.Message] = [
        pg.Update(1, (None, b"a"), (b"", b"a"), True),
        pg.Update(1, (b"", b"a"), (None, b"a"), True),
        pg.Update(1, (None, b"a"), (None, b"a"), True),
    ]
    assert [len(found) for found in _by_seq(rows_of(FULL, *rows, keys={T: ("id",)}))] == [2, 2, 1]


def typed(*columns: tuple[str, int, int]) -> pg.Relation:
    return pg.Relation(1, T, "f", tuple(pg.Column(name, oid, modifier, True) for name, oid, modifier in columns))


def test_a_value_its_column_cannot_hold_is_an_error_or_a_named_null() -> None:
    """E104: one such value never blocks the stream without a way on; the error names the column, not the value."""
    relation = typed(("id", values.INT4, -1), ("day", values.DATE, -1), ("price", values.NUMERIC, (5 << 16 | 2) + 4))
    rows = [pg.Insert(1, (b"1", b"infinity", b"NaN")), pg.Insert(1, (b"2", b"2024-02-29", b"1.50"))]
    with pytest.raises(OperatorError, match=r"column day of public\.t") as refused:
        rows_of(relation, *rows)
    assert "infinity'" not in str(refused.value)
    assert "unrepresentable" in refused.value.hint
    found = rows_of(relation, *rows, shape=RowShape(unrepresentable="null"))
    assert [row["_missing"] for row in found] == [["day", "price"], []]
    assert found[0]["day"] is None
    assert str(found[1]["price"]) == "1.50"


def test_a_column_named_as_one_that_is_added_is_refused_by_name() -> None:
    """E6."""
    with pytest.raises(ConfigError, match=r"column _seq") as refused:
        rows_of(wire.relation(1, ["id", "_seq"]), pg.Insert(1, (b"1", b"2")))
    assert 'ALTER TABLE "public"."t" RENAME COLUMN' in refused.value.hint


def test_the_schema_is_the_tables_own_and_what_is_added() -> None:
    """E4, E53: known before any row."""
    relation = typed(("id", values.INT8, -1), ("größe", values.NUMERIC, -1), ("day", values.DATE, -1))
    own = pa.schema([("id", pa.int64()), ("größe", pa.string()), ("day", pa.date32())])
    assert schema_of(relation) == pa.schema([*own, *ADDED])


def test_rows_of_a_table_without_columns_are_rows() -> None:
    """E1."""
    found = rows_of(wire.relation(1, []), pg.Insert(1, ()), pg.Insert(1, ()))
    assert told(found) == [("insert", 0, []), ("insert", 1, [])]


@settings(max_examples=70)
@given(st.integers(0, 2**32), st.booleans())
def test_rows_say_what_the_messages_say(seed: int, preimage: bool) -> None:
    """E1, E3: against each message decoded by itself, for every identity and two tables."""
    rng = Random(seed)
    relations = {oid: _relation(oid, rng) for oid in (1, 2)}
    messages: list[pg.Message] = [*relations.values()]
    messages += [_row(relations[rng.choice([1, 2])], rng) for _ in range(rng.randint(0, 10))]
    found = rows_of(*messages, shape=RowShape(preimage))
    expected = [
        line
        for seq, row in enumerate(messages[2:])
        for line in _lines(relations[row.oid], row, seq, preimage)  # type: ignore[union-attr]
    ]
    assert sorted(told(found), key=_place) == sorted(expected, key=_place)


def _place(line: tuple[Any, ...]) -> tuple[int, int]:
    return line[1], CHANGE_TYPES.index(line[0])


def _relation(oid: int, rng: Random) -> pg.Relation:
    identity = rng.choice("dif")
    columns = [pg.Column(f"c{at}", 25, -1, identity == "f" or rng.random() < 0.5) for at in range(rng.randint(0, 4))]
    return pg.Relation(oid, QualifiedTable("public", f"t{oid}"), identity, tuple(columns))


def _row(relation: pg.Relation, rng: Random) -> pg.Message:
    words: list[pg.Value] = [None, pg.UNCHANGED, b"", b"a", b"long" * 15]
    new, old = (tuple(rng.choice(words) for _ in relation.columns) for _ in range(2))
    full = relation.identity == "f"
    old = tuple(v if full or c.key else None for v, c in zip(old, relation.columns, strict=True))
    kinds = [
        pg.Insert(relation.oid, new),
        pg.Update(relation.oid, new),
        pg.Update(relation.oid, new, old, full),
        pg.Delete(relation.oid, old, full),
    ]
    return rng.choice(kinds)


def _lines(relation: pg.Relation, row: Any, seq: int, preimage: bool) -> list[tuple[Any, ...]]:
    full = relation.identity == "f"
    known = [full or column.key for column in relation.columns]
    new, old = getattr(row, "new", None), getattr(row, "old", None)
    if new is not None and old is not None:
        new = filled(relation, new, old, full)
    if isinstance(row, pg.Insert):
        return [_line("insert", seq, relation, new)]
    if isinstance(row, pg.Delete):
        return [_line("delete", seq, relation, old, known)]
    after = _line("update_postimage", seq, relation, new)
    plain = [[None if v is pg.UNCHANGED else v for v in found or ()] for found in (new, old)]
    if old is None or (full and not preimage and plain[0] == plain[1]):
        return [after]
    return [_line("update_preimage", seq, relation, old, known), after]


def _line(
    change: str, seq: int, relation: pg.Relation, row: pg.Tuple, known: list[bool] | None = None
) -> tuple[Any, ...]:
    told_of = known or [True] * len(row)
    shown = [v.decode() if isinstance(v, bytes) and k else None for v, k in zip(row, told_of, strict=True)]
    names = [column.name for column in relation.columns]
    missing = [n for n, v, k in zip(names, row, told_of, strict=True) if not k or v is pg.UNCHANGED]
    return (change, seq, *shown, missing)
