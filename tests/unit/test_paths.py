"""Every role of a table in a document has its path to the root: by the change's own values, then by rows."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.document.binding import bind
from penstock.document.ids import MAX_BYTES, document_id
from penstock.document.paths import Hop, Path, paths
from penstock.document.paths_start import by_table, first_values, truncated_tables, untold
from penstock.document.schema import Aggregate, AggregateKind, DocumentSchema, Group, Join, JoinKind, LeafType, Place
from penstock.document.settle import settle, unfinished
from penstock.document.spec import SourceSpec
from penstock.errors import ConfigError, OperatorError, RetryableError
from penstock.postgres.keys import SCHEMA
from tests.unit.shop_tables import CUSTOMERS, LINES, PRODUCTS, TABLES, table

State = dict[str, str | None] | None


def by_role(schema: DocumentSchema) -> dict[str, Path]:
    return {path.role: path for path in paths(bind(schema, TABLES))}


def test_children_lead_up_by_their_links() -> None:
    """E61: the first link comes from the change, those above from rows."""
    found = by_role(CUSTOMERS)
    order = Hop(table("order"), ("id",), ("customer_id",))
    line = Hop(table("line"), ("order_id", "number"), ("order_id",))
    assert found["root"] == Path(table("customer"), ("id",), ())
    assert found["orders"] == Path(table("order"), ("customer_id",), ())
    assert found["orders.lines"] == Path(table("line"), ("order_id",), (order,))
    assert found["orders.lines.parcels"] == Path(table("parcel"), ("order_id", "number"), (line, order))


def test_a_target_leads_to_all_who_refer_to_it() -> None:
    """E63: and straight on from their own links, without a second look at them."""
    found = by_role(CUSTOMERS)["orders.lines.product"]
    order = Hop(table("order"), ("id",), ("customer_id",))
    assert found == Path(table("product"), ("id",), (Hop(table("line"), ("product_id",), ("order_id",)), order))
    assert by_role(LINES)["order.customer"] == Path(
        table("customer"),
        ("id",),
        (Hop(table("order"), ("customer_id",), ("id",)), Hop(table("line"), ("order_id",), ("order_id", "number"))),
    )


def test_junctions_and_far_rows_lead_to_the_near_side() -> None:
    """E62, E65: for relations and for aggregates; the same junction twice is one path."""
    found = paths(bind(PRODUCTS, TABLES))
    stored = [path for path in found if path.table == table("stored")]
    assert stored == [Path(table("stored"), ("product_id",), ())]
    far = [path for path in found if path.table == table("warehouse")]
    assert far == [Path(table("warehouse"), ("id",), (Hop(table("stored"), ("warehouse_id",), ("product_id",)),))]


def test_a_table_that_is_root_and_target_has_both_paths() -> None:
    """E64: joined to itself."""
    found = [path for path in paths(bind(PRODUCTS, TABLES)) if path.table == table("product")]
    referrers = Hop(table("product"), ("replaces",), ("id",))
    assert found == [Path(table("product"), ("id",), ()), Path(table("product"), ("id",), (referrers,))]


def test_aggregates_lead_up_as_relations_do() -> None:
    """E65: at any depth, and inside a group."""
    count = Aggregate("count", AggregateKind.COUNT, table("line"), foreign_key=("order_id",))
    order = Join("orders", JoinKind.HAS_MANY, table("order"), (Group("g", (count,)),), foreign_key=("customer_id",))
    found = by_role(replace(CUSTOMERS, fields=(order,)))
    up = Hop(table("order"), ("id",), ("customer_id",))
    assert found["orders.count"] == Path(table("line"), ("order_id",), (up,))


def test_an_id_of_other_columns_ends_every_path() -> None:
    """E68: the root's row says its id."""
    info = TABLES[table("customer")]
    mail = replace(info.indexes[0], name="mail", columns=("email",), primary=False)
    tables = {**TABLES, table("customer"): replace(info, indexes=(*info.indexes, mail))}
    found = {path.role: path for path in paths(bind(replace(CUSTOMERS, doc_id=("email",)), tables))}
    last = Hop(table("customer"), ("id",), ("email",))
    assert found["root"] == Path(table("customer"), ("email",), ())
    assert found["orders"].hops == (last,)
    assert found["orders.lines"].hops[-1] == last


def test_thin_columns_are_those_that_paths_start_with() -> None:
    spec = SourceSpec([bind(schema, TABLES) for schema in (CUSTOMERS, PRODUCTS)])
    thin = spec.thin_columns()
    assert thin.keys() == spec.all_tables
    assert thin[table("line")] == ("order_id", "product_id")
    assert thin[table("parcel")] == ("order_id", "number")
    with pytest.raises(ConfigError, match="two indexes are named customers"):
        SourceSpec([CUSTOMERS, CUSTOMERS])
    with pytest.raises(ConfigError, match="there is no index x"):
        spec.schema("x")


def test_binding_says_everything_that_does_not_fit_at_once() -> None:
    gone = Join("gone", JoinKind.HAS_MANY, table("gone"), (), foreign_key=("a",), place=Place("c.yml", 7, 3))
    short = Join("short", JoinKind.HAS_MANY, table("parcel"), (), foreign_key=("order_id",), place=Place("c.yml", 9, 3))
    schema = replace(LINES, fields=(gone, short), doc_id=("quantity",))
    with pytest.raises(ConfigError) as raised:
        bind(schema, TABLES)
    assert str(raised.value).splitlines()[0] == (
        "index lines does not fit the database: c.yml:7:3: there is no table public.gone;"
        " c.yml:7:3: field gone: (a) cannot refer to the key (order_id, number): the number of columns differs;"
        " c.yml:9:3: field short: (order_id) cannot refer to the key (order_id, number): the number of columns differs;"
        " doc_id (quantity) is not unique: no index over NOT NULL columns says so"
    )


def test_binding_asks_for_a_key_only_where_one_is_needed() -> None:
    tables = {**TABLES, table("parcel"): replace(TABLES[table("parcel")], primary_key=(), indexes=())}
    bind(replace(LINES, fields=(LINES.fields[-1],)), tables)
    ids = Aggregate("ids", AggregateKind.IDS, table("parcel"), foreign_key=("order_id", "number"), type=LeafType.LONG)
    with pytest.raises(ConfigError, match=r"table public.parcel has no primary key"):
        bind(replace(LINES, fields=(ids,)), tables)


def batch(*changes: tuple[str, str, State, State]) -> pa.RecordBatch:
    """Changes as the capture gives them: table, operation, new and old state."""
    columns = list(zip(*changes, strict=True))
    maps = [[None if one is None else list(one.items()) for one in states] for states in columns[2:]]
    numbers = [[1] * len(changes)] * 3
    arrays = [
        pa.array(values, field.type) for values, field in zip([*columns[:2], *maps, *numbers], SCHEMA, strict=True)
    ]
    return pa.record_batch(arrays, schema=SCHEMA)


def test_paths_start_with_old_and_new_values() -> None:
    """E61: a move names both parents, a delete the old one; a null names none; nothing is collapsed."""
    changes = batch(
        ("public.order", "insert", {"id": "1", "customer_id": "7"}, None),
        ("public.order", "update", {"id": "1", "customer_id": "8"}, {"id": "1", "customer_id": "7"}),
        ("public.order", "update", {"id": "1", "customer_id": None}, {"id": "1", "customer_id": "8"}),
        ("public.line", "delete", None, {"order_id": "3", "number": "1"}),
        ("public.order", "update", {"id": "2", "customer_id": "9"}, None),
        ("public.order", "delete", None, {"id": "2", "customer_id": "10"}),
        ("public.order", "truncate", None, None),
    )
    tables = by_table(changes)
    assert set(tables) == {"public.order", "public.line"}
    assert set(first_values(tables["public.order"], ("customer_id",))) == {("7",), ("8",), ("9",), ("10",)}
    assert list(first_values(tables["public.line"], ("order_id", "number"))) == [("3", "1")]
    assert truncated_tables(changes) == {"public.order"}


def test_a_slice_of_a_batch_starts_paths_as_the_batch_does() -> None:
    changes = batch(*(("public.order", "insert", {"customer_id": str(n), "id": "0"}, None) for n in range(9)))
    assert list(first_values(changes.slice(3, 2), ("customer_id",))) == [("3",), ("4",)]


def test_a_value_kept_out_of_line_is_that_of_the_old_state() -> None:
    changes = batch(("t", "update", {"a": "1"}, {"a": "0", "b": "2"}))
    assert set(first_values(changes, ("a", "b"))) == {("0", "2"), ("1", "2")}


def test_a_change_without_a_link_column_is_refused() -> None:
    """E42: in a column list that misses it, say; a delete names what its identity holds."""
    with pytest.raises(OperatorError, match=r'changes of table public.line come without the column "b"'):
        first_values(batch(("public.line", "insert", {"a": "1"}, None)), ("b",))
    deleted = batch(("public.line", "insert", {"a": "1", "b": "2"}, None), ("public.line", "delete", None, {"a": "1"}))
    assert list(first_values(deleted, ("b",))) == [("2",)]
    assert untold(deleted, ("a", "b")) == ("b",)
    assert untold(deleted.slice(0, 1), ("a", "b")) == ()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a|b", "c"), ("a", "b|c")),
        (("a\\", "b"), ("a", "\\b")),
        (("a\\|b", "c"), ("a|b", "c")),
        (("", "a"), ("a", "")),
    ],
)
def test_ids_of_different_keys_differ(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    """E68: whatever the parts hold."""
    assert document_id(one) != document_id(other)


def test_an_id_is_its_key_where_that_fits() -> None:
    """E68: a single part is its own id; what is too long, empty or looks like a digest becomes one."""
    assert document_id(("a|b\\c é",)) == "a|b\\c é"
    long = ["é" * 257, "é" * 256 + "x", "", document_id(("",))]
    ids = [document_id((key,)) for key in long]
    assert len(set(ids)) == len(ids)
    assert all(len(one.encode()) <= MAX_BYTES and one not in long[:3] for one in ids)
    assert document_id(("é" * 256,)) == "é" * 256


@pytest.mark.parametrize(
    ("snapshot", "left"),
    [
        ("10:20:", set()),
        ("10:12:", {12, 15}),
        ("10:20:12,15", {12, 15}),
        ("4294967306:4294967316:4294967308", {12}),  # a snapshot counts on, the stream starts again from 0
    ],
)
def test_a_transaction_is_settled_when_no_snapshot_misses_it(snapshot: str, left: set[int]) -> None:
    """E71: by its number, also after that has wrapped around."""
    assert unfinished({9, 12, 15}, snapshot) == left


def test_a_transaction_from_before_the_wrap_is_settled_after_it() -> None:
    """E71"""
    assert unfinished({4294967290}, "4294967300:4294967306:") == set()
    assert unfinished({4294967290}, "4294967288:4294967292:4294967290") == {4294967290}


def test_settling_looks_again_until_all_are_finished_or_time_is_up() -> None:
    """E71"""
    seen = iter(["5:9:7,8", "5:9:8", "9:9:"])
    settle({7, 8}, lambda: next(seen), 10)
    assert next(seen, None) is None
    with pytest.raises(RetryableError, match=r"1 streamed transactions are not visible after 0.01 s"):
        settle({7, 8}, lambda: "5:9:8", 0.01)
    settle((), lambda: pytest.fail("nothing to look for"), 0)
