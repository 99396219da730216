"""The oracle of documents, held against documents written by hand: it judges the builder, so it is judged itself."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pytest

from penstock.contracts import Documents
from penstock.document.schema import (
    Aggregate,
    AggregateKind,
    AnyOf,
    Comparison,
    DocumentSchema,
    FilterOp,
    Join,
    JoinKind,
    LeafType,
    Order,
    Raw,
    Scalar,
    SoftDelete,
    Through,
)
from penstock.model import QualifiedTable
from tests.fixtures.documents.oracle import Near, Oracle, differs
from tests.fixtures.documents.reach import Reach
from tests.fixtures.documents.shelf import Shelf

BOOK, AUTHOR, REVIEW, TAG, TAGGED = (
    QualifiedTable("s", name) for name in ("book", "author", "review", "tag", "tagged")
)
NAME = Scalar("name", LeafType.TEXT, "name")
THROUGH = Through(TAGGED, ("book",), ("tag",))

STATE: dict[QualifiedTable, list[dict[str, Any]]] = {
    BOOK: [
        {"id": 1, "name": "One", "author": 7, "gone": False},
        {"id": 2, "name": "Two", "author": None, "gone": None},
        {"id": 3, "name": "Three", "author": 7, "gone": True},
    ],
    AUTHOR: [{"id": 7, "name": "Ada"}],
    REVIEW: [
        {"id": 10, "book": 1, "stars": 5, "name": "good"},
        {"id": 11, "book": 1, "stars": None, "name": "none"},
        {"id": 12, "book": 1, "stars": 2, "name": "bad"},
        {"id": 13, "book": 9, "stars": 1, "name": "of no book"},
    ],
    TAG: [{"id": "a", "name": "A"}, {"id": "b", "name": "B"}],
    TAGGED: [{"id": n, "book": 1, "tag": tag} for n, tag in enumerate(["b", "a", "a", "z", None])],
}
SCHEMA = DocumentSchema(
    "books",
    BOOK,
    (
        NAME,
        Join("author", JoinKind.BELONGS_TO, AUTHOR, (NAME,), column=("author",), primary_key=("id",)),
        Join(
            "reviews", JoinKind.HAS_MANY, REVIEW, (NAME,), foreign_key=("book",), primary_key=("id",),
            order_by=(Order("stars", descending=True),), limit=2,
        ),
        Join("worst", JoinKind.HAS_ONE, REVIEW, (NAME,), foreign_key=("book",), primary_key=("id",),
             filters=(Comparison("stars", FilterOp.LT, (5,)),)),
        Join("tags", JoinKind.MANY_TO_MANY, TAG, (NAME,), through=THROUGH, primary_key=("id",)),
        Aggregate("mean", AggregateKind.AVG, REVIEW, "stars", foreign_key=("book",), primary_key=("id",)),
        Aggregate("tag_ids", AggregateKind.IDS, TAG, through=THROUGH, primary_key=("id",), type=LeafType.KEYWORD),
    ),
    ("id",),
    soft_delete=SoftDelete("gone"),
)  # fmt: skip


def test_documents_are_those_written_by_hand() -> None:
    found = Oracle(STATE, {}).documents(SCHEMA)
    assert found == {
        ("1",): {
            "name": "One",
            "author": {"name": "Ada"},
            "reviews": [{"name": "good"}, {"name": "bad"}],
            "worst": {"name": "bad"},
            "tags": [{"name": "A"}, {"name": "B"}],
            "mean": Near(3.5),
            "tag_ids": ["a", "b"],
        },
        ("2",): {"name": "Two", "author": None, "reviews": [], "worst": None, "tags": [], "mean": None, "tag_ids": []},
    }


def test_nulls_come_last_either_way_and_the_key_decides() -> None:
    reviews = SCHEMA.fields[2]
    assert isinstance(reviews, Join)
    for descending, names in ((False, ["bad", "good", "none"]), (True, ["good", "bad", "none"])):
        join = Join("r", JoinKind.HAS_MANY, REVIEW, (NAME,), foreign_key=("book",), primary_key=("id",),
                    order_by=(Order("stars", descending),))  # fmt: skip
        found = Oracle(STATE, {}).join(join, STATE[BOOK][0], ("id",))
        assert [one["name"] for one in found] == names


@pytest.mark.parametrize(
    ("filter_", "passing"),
    [
        (Comparison("n", FilterOp.NEQ, (1,)), [2]),
        (Comparison("n", FilterOp.NOT_IN, (2, 3)), [1]),
        (Comparison("n", FilterOp.BETWEEN, (0, 1)), [1]),
        (Comparison("n", FilterOp.IS_NULL), [None]),
        (AnyOf((Comparison("n", FilterOp.IS_NULL), Comparison("n", FilterOp.GT, (1,)))), [2, None]),
        (Raw("n > 1 OR n IS NULL"), [2, None]),
    ],
)
def test_a_null_passes_only_what_asks_for_it(filter_: Any, passing: list[Any]) -> None:
    oracle = Oracle({}, {"n > 1 OR n IS NULL": ("n", lambda n: n is None or n > 1)})
    assert [n for n in (1, 2, None) if oracle.holds(filter_, {"n": n})] == passing


@pytest.mark.parametrize(
    ("expected", "built"),
    [
        (True, 1), (1, True), (1, Decimal("1.0")), (Decimal("1.50"), Decimal("1.5")), (None, 0), ("1", 1),
        ([1], [1, 1]), ({"a": 1, "b": 2}, {"a": 1}), (Near(0.5), Decimal("0.51")), (Near(0.5), None),
        (datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), "2026-01-02T00:00:00"),
        (datetime.datetime(2026, 1, 2), "2026-01-02 00:00:00"),
    ],
)  # fmt: skip
def test_values_that_only_look_alike_differ(expected: Any, built: Any) -> None:
    assert differs(expected, built)


def test_a_touched_row_reaches_the_roots_that_its_links_name() -> None:
    now = {
        BOOK: [{"id": "1", "author": "7"}, {"id": "2", "author": None}],
        AUTHOR: [{"id": "7"}],
        REVIEW: [{"id": "10", "book": "2"}],
        TAG: [{"id": "a"}],
        TAGGED: [{"id": "0", "book": "1", "tag": "a"}],
    }

    def reached(table: QualifiedTable, **row: str) -> set[tuple[str, ...]]:
        return Reach(SCHEMA, now, {table: [row]}).keys

    assert reached(AUTHOR, id="7") == {("1",)}
    assert reached(REVIEW, id="10", book="1") == {("1",)}, "as it was before it moved"
    assert reached(REVIEW, id="10", book="2") == {("2",)}, "as it is"
    assert reached(REVIEW, id="10", book="5") == {("5",)}, "of a book that is not there"
    assert reached(TAG, id="a") == {("1",)}
    assert reached(TAGGED, id="0", book="2", tag="a") == {("2",)}
    assert reached(AUTHOR, id="8") == set()


def test_a_shelf_keeps_the_higher_version_and_its_tombstones() -> None:
    shelf = Shelf(0)
    shelf.write(5, Documents("i", ["a", "b"], [b"5", None]))
    shelf.write(4, Documents("i", ["a", "b"], [b"4", b"4"]))
    assert shelf.documents("i") == {"a": b"5"}
    shelf.write(5, Documents("i", ["a"], [b"again"]))
    assert shelf.documents("i") == {"a": b"again"}
    shelf.clear("i", 6)
    shelf.write(5, Documents("i", ["a"], [b"late"]))
    assert shelf.documents("i") == {}
