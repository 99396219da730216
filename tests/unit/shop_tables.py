"""The tables of a made-up shop as the catalog would describe them, and schemas over them, without a server."""

from __future__ import annotations

import re

from penstock.document.schema import (
    Aggregate,
    AggregateKind,
    AnyOf,
    Comparison,
    Constant,
    DocumentSchema,
    Field,
    FilterOp,
    Geo,
    Group,
    Join,
    JoinKind,
    LeafType,
    OpenMap,
    Order,
    Raw,
    Scalar,
    SoftDelete,
    Through,
    Transform,
)
from penstock.model import QualifiedTable
from penstock.postgres.catalog import ColumnInfo, ForeignKey, IndexInfo, Persistence, TableInfo, TableKind

# Columns with their types, `!` for NOT NULL; then the key; then foreign keys by the table they point at.
_TABLES: dict[str, tuple[str, tuple[str, ...], dict[str, tuple[str, ...]]]] = {
    "customer": ("id bigint!, email text!, joined timestamp with time zone", ("id",), {}),
    "product": (
        "id uuid!, name character varying(80)!, price numeric(10,2), tags text[], seen timestamp with time zone[],"
        " picture bytea, attributes jsonb, lat real, lon real, spot point, gone boolean!, replaces uuid",
        ("id",),
        {"product": ("replaces",)},
    ),
    "order": (
        "id bigint!, customer_id bigint, placed timestamp without time zone!, state public.state!, total money",
        ("id",),
        {"customer": ("customer_id",)},
    ),
    "line": (
        "order_id bigint!, number integer!, product_id uuid!, quantity integer!",
        ("order_id", "number"),
        {"order": ("order_id",), "product": ("product_id",)},
    ),
    "parcel": ("id bigint!, order_id bigint!, number integer!, weight double precision", ("id",), {}),
    "label": ("id integer!, name text!", ("id",), {}),
    "product_label": ("product_id uuid!, label_id integer!", ("product_id", "label_id"), {"product": ("product_id",)}),
    "stored": ("id bigint!, product_id uuid, warehouse_id integer", ("id",), {}),
    "warehouse": ("id integer!, city text!", ("id",), {}),
}


def table(name: str) -> QualifiedTable:
    """A table of the shop."""
    return QualifiedTable("public", name)


def _info(name: str) -> TableInfo:
    described, key, references = _TABLES[name]
    columns = []
    for position, text in enumerate(_split(described), 1):
        column, _, kind = text.partition(" ")
        columns.append(ColumnInfo(column, 0, -1, kind.rstrip("!"), not kind.endswith("!"), "", position))
    primary = IndexInfo(f"{name}_pkey", key, True, True, True, True, False, False, False, True)
    keys = [ForeignKey("", table(name), own, table(to), _TABLES[to][1]) for to, own in references.items()]
    return TableInfo(
        table(name), 0, TableKind.TABLE, Persistence.PERMANENT, "postgres", True, tuple(columns), key, (primary,),
        tuple(keys),
    )  # fmt: skip


def _split(described: str) -> list[str]:
    return re.split(r",(?![0-9]) *", described)  # a comma within numeric(10,2) parts no columns


TABLES = {table(name): _info(name) for name in _TABLES}


def scalars(**types: LeafType) -> tuple[Field, ...]:
    """Fields by the names of their columns."""
    return tuple(Scalar(name, leaf, name) for name, leaf in types.items())


_LEAF = LeafType
_LABELS = Through(table("product_label"), ("product_id",), ("label_id",))
_STORED = Through(table("stored"), ("product_id",), ("warehouse_id",))
_MANY, _ONE, _BELONGS, _THROUGH = JoinKind.HAS_MANY, JoinKind.HAS_ONE, JoinKind.BELONGS_TO, JoinKind.MANY_TO_MANY

CUSTOMERS = DocumentSchema(
    "customers",
    table("customer"),
    (
        *scalars(id=_LEAF.LONG, email=_LEAF.KEYWORD, joined=_LEAF.TIMESTAMP),
        Join(
            "orders", _MANY, table("order"),
            (
                *scalars(id=_LEAF.LONG, placed=_LEAF.TIMESTAMP, state=_LEAF.ENUM, total=_LEAF.DECIMAL),
                Join(
                    "lines", _MANY, table("line"),
                    (
                        *scalars(number=_LEAF.INTEGER, quantity=_LEAF.INTEGER),
                        Join("product", _BELONGS, table("product"), scalars(name=_LEAF.TEXT), column=("product_id",)),
                        Join("parcels", _MANY, table("parcel"), scalars(weight=_LEAF.DOUBLE),
                             foreign_key=("order_id", "number")),
                    ),
                    foreign_key=("order_id",),
                ),
            ),
            foreign_key=("customer_id",), order_by=(Order("placed", descending=True),), limit=10,
            filters=(Comparison("state", FilterOp.NEQ, ("draft",)),),
        ),
        Aggregate("spent", AggregateKind.SUM, table("order"), column="total", foreign_key=("customer_id",),
                  type=_LEAF.DECIMAL),
        Aggregate("order_count", AggregateKind.COUNT, table("order"), foreign_key=("customer_id",)),
    ),
)  # fmt: skip

PRODUCTS = DocumentSchema(
    "products",
    table("product"),
    (
        Scalar("name", _LEAF.TEXT, "name", transforms=(Transform.TRIM, Transform.LOWERCASE), default="it's unnamed"),
        Group("money", scalars(price=_LEAF.DECIMAL)),
        *scalars(tags=_LEAF.KEYWORD, seen=_LEAF.TIMESTAMP, picture=_LEAF.BINARY),
        OpenMap("attributes", "attributes", _LEAF.KEYWORD),
        Geo("place", lat="lat", lon="lon"),
        Geo("spot", column="spot"),
        Constant("kind", "product"),
        Join("labels", _THROUGH, table("label"), scalars(name=_LEAF.KEYWORD), through=_LABELS,
             order_by=(Order("name"),)),
        Join("warehouses", _THROUGH, table("warehouse"), scalars(city=_LEAF.KEYWORD), through=_STORED, limit=3),
        Aggregate("warehouse_ids", AggregateKind.IDS, table("warehouse"), through=_STORED, type=_LEAF.INTEGER),
        Join("replaced", _BELONGS, table("product"), scalars(name=_LEAF.TEXT), column=("replaces",)),
        Join("last_line", _ONE, table("line"), scalars(quantity=_LEAF.INTEGER), foreign_key=("product_id",),
             order_by=(Order("order_id", descending=True),)),
    ),
    soft_delete=SoftDelete("gone"),
    filters=(
        AnyOf((Raw("price > 0 -- not free"), Comparison("name", FilterOp.ILIKE, ("%free%",)))),
        Comparison("name", FilterOp.IN, ("a", "b'c")),
    ),
)  # fmt: skip

LINES = DocumentSchema(
    "lines",
    table("line"),
    (
        *scalars(quantity=_LEAF.INTEGER),
        Join("order", _BELONGS, table("order"),
             (Join("customer", _BELONGS, table("customer"), scalars(email=_LEAF.KEYWORD), column=("customer_id",)),),
             column=("order_id",)),
        Join("parcels", _MANY, table("parcel"), scalars(weight=_LEAF.DOUBLE), foreign_key=("order_id", "number")),
        Aggregate("heaviest", AggregateKind.MAX, table("parcel"), column="weight",
                  foreign_key=("order_id", "number"), type=_LEAF.DOUBLE),
    ),
)  # fmt: skip

SCHEMAS = {schema.index: schema for schema in (CUSTOMERS, PRODUCTS, LINES)}
