"""What a task makes of its run of changes, also where a table had another shape when its rows were written."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.variant_utils import VariantUtils

from penstock.errors import ConfigError, OperatorError
from penstock.model import QualifiedTable
from penstock.postgres import pgoutput as pg
from penstock.postgres import values
from penstock.postgres.changes import pieces
from penstock.postgres.parcel import pack
from penstock.postgres.transactions import Assembler, Transaction
from penstock.spark.decoding import decode
from penstock.spark.options import SourceOptions
from penstock.spark.schema import KEYS, MANY, changes_type
from penstock.spark.tables import ReadPlan
from tests.unit import wire

T, LEAF, OTHER = (QualifiedTable("public", name) for name in ("t", "t_2024", "other"))
BOTH = {"table": "t", "slot": "s"}
Columns = tuple[tuple[str, int], ...]
ID = ("id", values.INT4)


def relation(*columns: tuple[str, int], table: QualifiedTable = T, oid: int = 1, identity: str = "d") -> pg.Relation:
    found = (pg.Column(name, kind, -1, identity == "f" or not at) for at, (name, kind) in enumerate(columns))
    return pg.Relation(oid, table, identity, tuple(found))


def packed(*messages: pg.Message) -> list[bytes]:
    events = Assembler().feed(wire.transaction(100, *messages, xid=7, commit_time=5))
    return [pack(piece) for piece in pieces([e for e in events if isinstance(e, Transaction)], 1000, 1 << 20)]


def plan(*columns: tuple[str, int]) -> ReadPlan:
    names = {T: T, LEAF: T}
    keys = {T: ("id",), LEAF: ("id",)}
    return ReadPlan(names, keys, keys, {T: {name: (oid, -1) for name, oid in columns}})


def read(now: Columns, *messages: pg.Message, **options: str) -> list[dict[str, Any]]:
    """What a task gives for a transaction, the table having the columns `now`."""
    given = SourceOptions.parse({**({"slot": "s"} if "tables" in options else BOTH), **options})
    columns = [pg.Column(name, oid, -1, False) for name, oid in now]
    schema = KEYS if given.mode == "keys" else MANY if given.many else changes_type(columns, given.json_columns)
    found: list[dict[str, Any]] = []
    for data in packed(*messages):
        for batch in decode(plan(*now), data, given, schema):
            batch.validate(full=True)
            assert batch.schema.equals(to_arrow_schema(schema, timezone="UTC"))
            found += batch.to_pylist()
    return found


def told(row: dict[str, Any]) -> tuple[Any, ...]:
    """A row's own values, then the columns it lacks."""
    return *(value for name, value in row.items() if not name.startswith("_")), row["_missing"]


def test_rows_of_the_same_shape_come_as_they_are() -> None:
    """E10: with their positions."""
    now = (ID, ("v", values.TEXT))
    rows = read(now, relation(*now), pg.Insert(1, (b"1", b"a")), pg.Delete(1, (b"1", None)), pg.Truncate((1,)))
    assert [(row["id"], row["v"], row["_change_type"], row["_commit_lsn"], row["_seq"]) for row in rows] == [
        (1, "a", "insert", 100, 0), (1, None, "delete", 100, 1), (None, None, "truncate", 100, 2)
    ]  # fmt: skip
    assert [row["_missing"] for row in rows] == [[], ["v"], ["id", "v"]]


def test_rows_of_an_older_shape_are_fitted_by_name() -> None:
    """E5: added, dropped, in another order."""
    was = relation(("gone", values.TEXT), ID)
    rows = read((ID, ("fresh", values.TEXT)), was, pg.Insert(1, (b"x", b"1")))
    assert [told(row) for row in rows] == [(1, None, ["fresh"])]


@pytest.mark.parametrize(
    ("was", "text", "now", "value"),
    [
        (values.INT4, b"7", values.INT8, 7),
        (values.INT4, b"7", values.TEXT, "7"),
        (values.INT2, b"7", values.FLOAT8, 7.0),
        (values.BOOL, b"t", values.TEXT, "t"),
        (values.NUMERIC, b"7.50", values.TEXT, "7.50"),
        (values.INT4, b"7", values.NUMERIC, "7"),
        (114, b'{"a": 1}', values.TEXT, '{"a": 1}'),
    ],
)
def test_an_old_text_that_is_one_of_the_new_type_is_read_as_such(was: int, text: bytes, now: int, value: Any) -> None:
    """E5, E104: a retyped column is adopted at restart."""
    rows = read((ID, ("v", now)), relation(ID, ("v", was)), pg.Insert(1, (b"1", text)))
    assert [told(row) for row in rows] == [(1, value, [])]


@pytest.mark.parametrize(
    ("was", "text", "now"),
    [
        (values.TEXT, b"true", values.BOOL),
        (values.TEXT, b"7", values.INT4),
        (values.INT8, b"8589934592", values.INT4),
        (values.TEXT, b"x", 3802),
        (3802, b"true", values.BOOL),
        (values.TIMESTAMP, b"2024-01-01 00:00:00", values.TIMESTAMPTZ),
    ],
)
def test_an_old_text_that_is_none_of_the_new_type_is_never_bent(was: int, text: bytes, now: int) -> None:
    """E104: an error that names the way on, or null by name."""
    messages = relation(ID, ("v", was)), pg.Insert(1, (b"1", text))
    with pytest.raises(OperatorError, match=r"column v of public\.t had another type") as caught:
        read((ID, ("v", now)), *messages)
    assert text.decode() not in str(caught.value)
    assert [told(row) for row in read((ID, ("v", now)), *messages, unrepresentable="null")] == [(1, None, ["v"])]


def test_rows_of_a_partition_come_under_the_table_that_was_asked_for() -> None:
    """E7: in each mode; its columns may stand in another order. What nobody asked for is left out."""
    now = (ID, ("v", values.TEXT))
    leaf = pg.Relation(2, LEAF, "d", (pg.Column("v", values.TEXT, -1, False), pg.Column("id", values.INT4, -1, True)))
    messages = (
        leaf, relation(*now, table=OTHER, oid=3),
        pg.Insert(3, (b"9", b"z")), pg.Insert(2, (b"a", b"1")), pg.Update(2, (b"b", b"2"), (None, b"1")),
    )  # fmt: skip
    assert [told(row) for row in read(now, *messages)] == [(1, "a", []), (1, None, ["v"]), (2, "b", [])]
    keys = read(now, *messages, mode="keys")
    assert [(row["table"], row["op"], row["new"], row["old"]) for row in keys] == [
        ("public.t", "insert", [("id", "1")], None),
        ("public.t", "update", [("id", "2")], [("id", "1")]),
    ]
    many = read(now, *messages, tables="t")
    assert [(row["_table"], row["_change_type"], row["_seq"]) for row in many] == [
        ("public.t", "insert", 1), ("public.t", "update_postimage", 2)
    ]  # fmt: skip


def variant(value: dict[str, bytes] | None) -> Any:
    return None if value is None else VariantUtils.to_python(value["value"], value["metadata"])


def test_any_table_comes_as_before_and_after() -> None:
    """E3, E104: what was not sent is left out of the object and named; JSON has no word for an infinity."""
    now = (
        ID, ("v", values.TEXT), ("f", values.FLOAT8), ("y", values.BYTEA), ("j", 3802), ("d", values.DATE),
        ("n", values.NUMERIC), ("b", values.BOOL),
    )  # fmt: skip
    whole = (b"1", b"x", b"NaN", b"\\x00ff", b'{"k": [1, null]}', b"2024-02-29", b"1.50", b"t")
    rows = read(
        (), relation(*now), pg.Insert(1, whole),
        pg.Update(1, (b"2", pg.UNCHANGED, b"Infinity", None, b"null", None, None, b"f"), (b"1", *[None] * 7)),
        pg.Delete(1, (b"2", *[None] * 7)), pg.Truncate((1,)), tables="t",
    )  # fmt: skip
    assert [row["_change_type"] for row in rows] == ["insert", "update_postimage", "delete", "truncate"]
    assert [variant(row["before"]) for row in rows] == [None, {"id": 1}, {"id": 2}, None]
    first = {
        "id": 1,
        "v": "x",
        "f": "nan",
        "y": "AP8=",
        "j": {"k": [1, None]},
        "d": "2024-02-29",
        "n": "1.50",
        "b": True,
    }
    second = {"id": 2, "f": "inf", "y": None, "j": None, "d": None, "n": None, "b": False}
    assert [variant(row["after"]) for row in rows] == [first, second, None, None]
    assert [row["_missing"] for row in rows[:2]] == [[], ["v"]]


def test_json_of_any_table_comes_as_its_exact_text_where_that_is_asked_for() -> None:
    """E4: with what VARIANT has no room for, beside NULL and a JSON null."""
    now = (ID, ("j", 3802), ("k", 114))
    exact = b'{"a": 1e999,  "b": "x"}'
    messages = relation(*now), pg.Insert(1, (b"1", b"1e999", exact)), pg.Insert(1, (b"2", b"null", None))
    rows = read((), *messages, tables="t", jsonColumns="string")
    assert [(variant(row["after"]), row["_missing"]) for row in rows] == [
        ({"id": 1, "j": "1e999", "k": exact.decode()}, []), ({"id": 2, "j": "null", "k": None}, [])
    ]  # fmt: skip


def test_one_bad_value_does_not_cost_the_others_of_its_row() -> None:
    """E104: in a stream of several tables."""
    now = (ID, ("j", 3802), ("k", 114))
    messages = relation(*now), pg.Insert(1, (b"1", b"1e999", b'"ok"')), pg.Insert(1, (b"2", b"2", b"3"))
    with pytest.raises(OperatorError, match=r"column j of public\.t") as caught:
        read((), *messages, tables="t")
    assert "1e999" not in str(caught.value)
    rows = read((), *messages, tables="t", unrepresentable="null")
    assert [(variant(row["after"]), row["_missing"]) for row in rows] == [
        ({"id": 1, "k": "ok"}, ["j"]), ({"id": 2, "j": 2, "k": 3}, [])
    ]  # fmt: skip


def test_a_row_beyond_the_size_of_a_variant_is_told_whole() -> None:
    """E104."""
    now = (ID, ("v", values.TEXT))
    messages = relation(*now), pg.Insert(1, (b"1", b"x" * (17 << 20)))
    with pytest.raises(OperatorError, match="larger than 16 MB"):
        read((), *messages, tables="t")
    (row,) = read((), *messages, tables="t", unrepresentable="null")
    assert variant(row["after"]) == {} and row["_missing"] == ["id", "v"]
    assert pa.types.is_struct(pa.array([row["after"]]).type)


def test_rows_of_several_tables_come_by_their_places() -> None:
    """E10: a row that moves to another partition is deleted before it is inserted."""
    now = (ID, ("v", values.TEXT))
    low, high = relation(*now, oid=2), relation(*now, table=LEAF, oid=1)
    messages = (
        low, high, pg.Insert(2, (b"1", b"a")), pg.Delete(1, (b"2", None)), pg.Insert(2, (b"2", b"b")),
        pg.Update(1, (b"4", b"c"), (b"3", None)), pg.Insert(2, (b"5", b"d")),
    )  # fmt: skip
    kinds = ["insert", "delete", "insert", "update_preimage", "update_postimage", "insert"]
    rows = read(now, *messages)
    assert [row["_change_type"] for row in rows] == kinds
    assert [row["id"] for row in rows] == [1, 2, 2, 3, 4, 5]
    many = read(now, *messages, tables="t")
    assert [row["_change_type"] for row in many] == [kind for kind in kinds if kind != "update_preimage"]


def test_a_column_that_is_named_like_an_added_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="has a column _seq"):
        changes_type([pg.Column("_seq", values.INT4, -1, False)], "variant")


@pytest.mark.parametrize("many", [False, True])
def test_nothing_of_a_table_that_was_not_asked_for_is_looked_at(many: bool) -> None:
    """E8, E104: a publication may carry others, with values and names that none of ours could have."""
    other = relation(("_seq", values.DATE), table=OTHER, oid=2)
    options = {"tables": "public.t"} if many else {}
    messages = pg.Insert(2, (b"infinity",)), pg.Insert(1, (b"1",)), pg.Truncate((2, 1))
    rows = read((ID,), other, relation(ID), *messages, **options)
    assert [row["_change_type"] for row in rows] == ["insert", "truncate"]
