"""The demo's plans and its comparison, without a server."""

from __future__ import annotations

import random

import pytest

from penstock.demo.trade import Deed, Shop
from penstock.demo.verdict import _fields, differences


def stocked(seed: int) -> tuple[Shop, list[object]]:
    shop = Shop(random.Random(seed))
    return shop, list(shop.stocked())


def test_the_same_seed_stocks_and_plans_the_same() -> None:
    (first, rows), (second, again), (other, _) = stocked(5), stocked(5), stocked(6)
    assert rows == again
    assert [first.plan() for _ in range(500)] == [second.plan() for _ in range(500)]
    assert [first.plan() for _ in range(50)] != [other.plan() for _ in range(50)]


def test_the_opening_holds_every_kind_of_change() -> None:
    shop, _ = stocked(5)
    opening = [shop.plan() for _ in range(Shop.OPENING)]
    kept = [statement for one in opening if not one.rolled_back for statement in one.statements]
    assert {statement.deed for statement in kept} == set(Deed)
    assert {statement.table for statement in kept if statement.deed is Deed.MOVE} == {"items", "orders", "reviews"}
    assert any(one.rolled_back for one in opening)
    assert shop._gone, "a product is gone and stays so"
    assert opening[-1].statements[0].deed is Deed.TRUNCATE, "the last of them"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 9.50, "b": [1, {"c": 2, "d": null}]}', '{"b":[1,{"d":null,"c":2}],"a":9.5}'),
        ('{"a": 1e2}', '{"a": 1.0e2}'),
    ],
)
def test_documents_are_equal_whatever_their_spelling(one: str, other: str) -> None:
    assert list(differences({"1": _fields(one)}, {"1": _fields(other)})) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": true}', '{"a": 1}'),
        ('{"a": "1"}', '{"a": 1}'),
        ('{"a": "9.5"}', '{"a": 9.5}'),
        ('{"a": null}', "{}"),
        ('{"a": [1, 2]}', '{"a": [2, 1]}'),
        ('{"a": 0.1}', '{"a": 0.10000000000000001}'),
    ],
)
def test_documents_differ_by_type_order_presence_and_digits(one: str, other: str) -> None:
    assert list(differences({"1": _fields(one)}, {"1": _fields(other)})) == ["documents that differ: 1 (1) in a"]


def test_of_many_differences_some_are_named() -> None:
    many = {str(n): {"a": "1"} for n in range(5)}
    assert list(differences(many, {})) == ["documents that are missing: 5 (0, 1, 2, …)"]
    assert list(differences({}, many)) == ["documents that should not be there: 5 (0, 1, 2, …)"]
    (told,) = differences(many, {id: {"a": "2", "b": "1"} for id in many})
    assert told == "documents that differ: 5 (0, 1, 2, …) in a, b"
