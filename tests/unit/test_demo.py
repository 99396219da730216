"""The demo's plans and its comparison, without a server."""

from __future__ import annotations

import io
import random
import shlex
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from penstock.demo.deployment import Deployment
from penstock.demo.figures import Figures
from penstock.demo.show import choose_view, to_try
from penstock.demo.trade import Deed, Shop
from penstock.demo.verdict import _fields, differences
from penstock.errors import ConfigError, OperatorError, PenstockError, UnavailableError
from penstock.model import Lsn


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


@pytest.mark.parametrize("error", [UnavailableError("it is busy"), OperatorError("gone"), ConfigError("open to all")])
def test_a_run_that_does_not_answer_in_time_does_not_end_the_demo(
    error: PenstockError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again in a moment."""

    def refuse(*_: object) -> str:
        raise error

    with Deployment("postgresql://nobody@nowhere.invalid/") as deployment:
        monkeypatch.setattr("penstock.demo.deployment.ask", lambda *_: {"page": "http://127.0.0.1:1/"})
        monkeypatch.setattr("penstock.demo.deployment.page_link", refuse)
        assert deployment.page_link() == ""
        monkeypatch.setattr("penstock.demo.deployment.ask", refuse)
        assert deployment.status() is None
        assert deployment.page_link() == ""


@pytest.mark.parametrize("program", ["/opt/my tools/penstock", "/opt/plain/penstock"])
def test_what_there_is_to_try_can_be_pasted_wherever_it_lies(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [program])
    for line in to_try(Path("/tmp/a folder")):
        first, *_, flag, folder = shlex.split(line)
        assert (first, flag, folder) == (program, "--config", "/tmp/a folder")


def test_the_link_is_shown_once_and_another_one_when_it_was_used() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=100)
    one = {"phase": "live", "seeded": 1, "written": 0, "deleted": 0}
    with choose_view(console, Path("/here"), quiet=False) as view:
        for link in ("http://a/#1", "http://a/#1", "http://a/#2"):
            view.show(Figures({"users": one}, page=link))
    said = [line for line in console.file.getvalue().splitlines() if "http" in line]  # type: ignore[attr-defined]
    assert said == [
        "Watch it in a browser (the link works once): http://a/#1",
        "That link was used; another one: http://a/#2",
    ]


def shown(terminal: bool, quiet: bool = False, phase: str = "live") -> str:
    """What a view shows of some figures."""
    one = {"phase": phase, "seeded": 1234, "written": 56, "deleted": 7}
    figures = Figures(
        {"users": one}, Lsn(1), 99, 12.3, 4567, 89.6, "the server is away", Counter({("orders", Deed.MOVE): 4321})
    )
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with choose_view(console, Path("/here"), quiet) as view:
        view.say("It begins.")
        view.show(figures)
    written = console.file.getvalue()  # type: ignore[attr-defined]
    return str(written)


def test_a_terminal_shows_indexes_deeds_rates_trouble_and_what_to_try() -> None:
    text = shown(terminal=True)
    for part in ("It begins.", "1,234", "4,321", "12 changes/s", "90 ms", "4,567 bytes", "the server is away"):
        assert part in text
    assert "penstock search products 'oak lamp' --config /here" in text


def test_elsewhere_a_line_holds_the_same_and_quiet_is_quiet() -> None:
    first, *tries, line = shown(terminal=False).splitlines()
    assert first == "It begins."
    assert "  penstock status --config /here" in tries
    index, rates, trouble = line.split("; ")
    assert index == "users live: 1234 seeded, 56 written, 7 deleted"
    assert rates == "12 changes/s, commit to searchable 90 ms (median), lag 4,567 bytes"
    assert trouble == "trouble: the server is away"
    assert "search" not in shown(terminal=False, phase="seeding").replace("searchable", "")
    assert shown(terminal=False, quiet=True) == shown(terminal=True, quiet=True) == ""
