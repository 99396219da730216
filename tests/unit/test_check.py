"""What does not need a server about `check`: which types fit, in which order findings come, how they are shown."""

from __future__ import annotations

import ast
import json
import re
from decimal import Decimal
from pathlib import Path

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cli.check import fields, lines
from penstock.document import types
from penstock.document.check import Diagnostic, Facts, Report, Severity, in_order
from penstock.document.check_columns import check_columns
from penstock.document.check_links import check_links
from penstock.document.check_uses import uses
from penstock.document.reading import read_schema
from penstock.document.schema import AggregateKind, LeafType, Place
from penstock.model import QualifiedTable
from penstock.postgres.catalog import ColumnInfo, IndexInfo, Persistence, TableInfo, TableKind
from penstock.postgres.type_catalog import TypeInfo
from penstock.sinks.stdout import indented

ROOT = Path(__file__).parents[2]


def a_type(short: str, schema: str = "pg_catalog", **more: bool) -> TypeInfo:
    return TypeInfo(short, schema, short, **more)


def test_every_leaf_takes_some_type_and_no_type_is_taken_by_strangers() -> None:
    assert types.ACCEPTED.keys() == set(LeafType) - {LeafType.CUSTOM}
    by_type = {name: types.leaves_for(a_type(name)) for names in types.ACCEPTED.values() for name in names}
    assert by_type["int2"] == ["short", "integer", "long"]
    assert by_type["int8"] == ["long"]
    assert by_type["float4"] == ["float", "double"]
    assert by_type["text"] == ["text", "identifier", "keyword", "enum"]
    assert types.leaves_for(a_type("inet")) == []


def test_names_count_only_where_they_are_the_servers_own() -> None:
    assert not types.accepts(LeafType.TEXT, a_type("text", "mine"))
    assert types.accepts(LeafType.TEXT, a_type("citext", "extensions"))
    assert types.accepts(LeafType.ENUM, a_type("mood", "mine", is_enum=True))
    assert not types.accepts(LeafType.KEYWORD, a_type("mood", "mine", is_enum=True))


@pytest.mark.parametrize("listed", ["numeric", "NUMERIC", "pg_catalog.numeric"])
def test_a_custom_leaf_takes_what_it_lists(listed: str) -> None:
    assert types.accepts(LeafType.CUSTOM, a_type("numeric"), [listed])
    assert not types.accepts(LeafType.CUSTOM, a_type("int4"), [listed])


def test_which_columns_can_be_compared() -> None:
    assert types.comparable(a_type("int4"), a_type("int8"))
    assert types.comparable(a_type("varchar"), a_type("text"))
    assert types.comparable(a_type("mood", "mine"), a_type("mood", "mine"))
    assert not types.comparable(a_type("mood", "mine"), a_type("mood", "yours"))
    assert not types.comparable(a_type("uuid"), a_type("text"))
    assert not types.comparable(a_type("int4"), a_type("int4", is_array=True))


@pytest.mark.parametrize(
    ("kind", "column", "leaf", "fits"),
    [
        ("sum", "int4", "long", True), ("sum", "numeric", "decimal", True), ("sum", "numeric", "long", False),
        ("sum", "text", "long", False), ("avg", "int4", None, True), ("avg", "date", None, False),
        ("min", "date", "date", True), ("max", "date", "timestamp", False), ("max", "int4", "double", True),
        ("max", "text", "keyword", True), ("min", "bool", "boolean", False), ("min", "uuid", "uuid", False),
        ("max", "timestamptz", "timestamp", True), ("sum", "money", "decimal", True), ("avg", "money", None, False),
    ],
)  # fmt: skip
def test_which_columns_can_be_aggregated(kind: str, column: str, leaf: str | None, fits: bool) -> None:
    wanted = LeafType(leaf) if leaf else None
    assert types.aggregates(AggregateKind(kind), a_type(column), wanted) is fits


def test_findings_come_once_by_index_and_place_the_grave_ones_first() -> None:
    note = Diagnostic(Severity.NOTE, "n", "n", "b", Place("f", 1, 1))
    error = Diagnostic(Severity.ERROR, "e", "e", "b", Place("f", 1, 1))
    later = Diagnostic(Severity.ERROR, "l", "l", "b", Place("f", 10, 1))
    first = Diagnostic(Severity.NOTE, "a", "a", "a", Place("f", 99, 1))
    assert in_order([later, note, first, error, note]) == (first, error, note, later)


def test_the_worst_severity_decides() -> None:
    note, warning = Diagnostic(Severity.NOTE, "n", "n"), Diagnostic(Severity.WARNING, "w", "w")
    assert Report().worst is None
    assert Report((note,)).worst is Severity.NOTE
    assert Report((note, warning)).worst is Severity.WARNING


def test_a_finding_is_shown_with_its_place_its_hint_and_its_sql() -> None:
    one = Diagnostic(Severity.ERROR, "c", "what\x1b[2J", "books", Place("b.yml", 3, 5), "how", "DO 1;\nDO 2;")
    shown = list(lines(Report((one, Diagnostic(Severity.NOTE, "n", "also")))))
    assert list(map(click.unstyle, shown)) == [
        "books",
        "  error    b.yml:3:5: what\\x1b[2J",
        "           how",
        "           DO 1;",
        "           DO 2;",
        "",
        "the source",
        "  note     also",
        "",
        "1 error, 1 note.",
    ]
    assert fields(one)["line"] == 3 and fields(Diagnostic(Severity.NOTE, "n", "n"))["file"] is None


SCHEMA = """\
version: 1
table: book
fields:
  - {text: title}
  - {has_many: reviews, table: review, foreign_key: book_id, fields: [{short: stars}]}
"""


def table(name: str, columns: dict[str, int], *indexes: IndexInfo) -> TableInfo:
    infos = tuple(ColumnInfo(one, oid, -1, "t", False, "", at) for at, (one, oid) in enumerate(columns.items()))
    where = QualifiedTable("public", name)
    return TableInfo(
        where, 1, TableKind.TABLE, Persistence.PERMANENT, "me", True, infos, ("id",), (index("pk", "id"), *indexes)
    )


def index(name: str, *columns: str, **more: bool) -> IndexInfo:
    flags = {"unique": True, "primary": name == "pk", "valid": True, "immediate": True, "partial": False}
    return IndexInfo(name, columns, **{**flags, "expression": False, "identity": False, "all_not_null": True, **more})


def facts(*indexes: IndexInfo) -> Facts:
    book = table("book", {"id": 23, "title": 25})
    review = table("review", {"id": 23, "book_id": 23, "stars": 21}, *indexes)
    known = {23: a_type("int4"), 25: a_type("text"), 21: a_type("int2")}
    return Facts({one.table: one for one in (book, review)}, known)


@pytest.mark.parametrize(
    ("found", "serves"),
    [
        (index("i", "book_id"), True), (index("i", "book_id", "stars"), True), (index("i", "stars", "book_id"), False),
        (index("i", "book_id", valid=False), False), (index("i", "book_id", partial=True), False),
        (index("i", "book_id", expression=True), False),
    ],
)  # fmt: skip
def test_an_index_serves_a_link_where_its_columns_come_first(found: IndexInfo, serves: bool) -> None:
    schema = read_schema(SCHEMA, "books")
    assert [one.code for one in check_links(schema, facts(found))] == ([] if serves else ["index-missing"])


def test_a_schema_that_fits_has_no_findings() -> None:
    schema = read_schema(SCHEMA, "books")
    assert list(check_columns(schema, facts())) == []
    assert {(str(one.table), one.column) for one in uses(schema, facts())} == {
        ("public.book", "id"), ("public.book", "title"),
        ("public.review", "id"), ("public.review", "book_id"), ("public.review", "stars"),
    }  # fmt: skip


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.decimals(allow_nan=False, allow_infinity=False).map(str),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=50)
@given(values)
def test_pretty_json_is_the_same_json(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, separators=(",", ":"))):
        assert json.loads(b"".join(indented(text.encode())), parse_float=Decimal) == json.loads(
            text, parse_float=Decimal
        )


def test_pretty_json_keeps_every_digit() -> None:
    text = '{"a":1.50000000000000000001,"b":[],"c":{},"d":[1,{"e":"x:,{"}],"f":1e400}'
    assert b"".join(indented(text.encode())).decode() == (
        '{\n  "a": 1.50000000000000000001,\n  "b": [],\n  "c": {},\n  "d": [\n    1,\n    {\n      "e": "x:,{"\n    }\n'
        '  ],\n  "f": 1e400\n}'
    )


def raised_codes() -> set[str]:
    """The codes in the sources: the second argument of a Diagnostic, the first of the server's own kind."""
    found: set[str] = set()
    for path in (ROOT / "src/penstock/document").glob("check*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("Diagnostic", "_server")
            ):
                code = node.args[0 if node.func.id == "_server" else 1]
                found |= {code.value} if isinstance(code, ast.Constant) else set()
    return {str(code) for code in found}


def test_every_code_is_in_the_how_to_and_no_other() -> None:
    page = (ROOT / "docs/how-to/check-a-schema.md").read_text()
    assert set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)) == raised_codes()
