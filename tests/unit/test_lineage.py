"""What is remembered of generations: epochs, what is outgoing, what was rolled back; and of sinks that were away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.engine.lineage import Lineage, Made, Role
from penstock.engine.state import State

HASHES = {"local": "1", "search": "1"}


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    found = State(tmp_path)
    yield found
    found.close()


@pytest.fixture
def lineage(state: State) -> Lineage:
    return Lineage(state)


def made(identity: str = "one", **hashes: str) -> Made:
    return Made("", identity, f"schema {identity}", hashes or HASHES)


def keep(lineage: Lineage, **meant: Made) -> dict[str, str]:
    return lineage.keep(meant)[0]


def test_an_epoch_lasts_while_an_index_is_kept_without_a_gap(lineage: Lineage) -> None:
    """E85: also where a sink comes or goes; one that was left out for a run missed changes."""
    first = keep(lineage, books=made(), authors=made())
    assert first["books"] != first["authors"]
    assert keep(lineage, books=made(), authors=made(local="1", delta="7")) == first
    assert keep(lineage, books=made()) == {"books": first["books"]}
    again = keep(lineage, books=made(), authors=made())
    assert (again["books"] == first["books"], again["authors"] == first["authors"]) == (True, False)
    assert not lineage.made(Role.OUTGOING)


@pytest.mark.parametrize("changed", [made("two"), made(local="1", search="2")], ids=["schema", "settings of a sink"])
def test_a_changed_index_begins_an_epoch_and_the_one_before_is_outgoing(lineage: Lineage, changed: Made) -> None:
    """E84: over restarts and further changes, until it is retired; the one that readers see is the one that stays."""
    first = keep(lineage, books=made())
    epochs, outgoing = lineage.keep({"books": changed})
    assert epochs["books"] != first["books"]
    assert (outgoing["books"].epoch, outgoing["books"].schema) == (first["books"], "schema one")
    assert lineage.keep({"books": changed}) == (epochs, outgoing)
    third, still = lineage.keep({"books": made("three")})
    assert (third["books"] in (first["books"], epochs["books"]), still) == (False, outgoing)
    lineage.retire("books")
    assert lineage.keep({"books": made("three")}) == (third, {})
    assert lineage.made(Role.FORMER) == outgoing


def test_an_outgoing_generation_that_missed_changes_is_not_kept(lineage: Lineage, state: State) -> None:
    """E85: the index was left out, or stopped, or there is a new slot."""
    for gap in (lambda: keep(lineage), lambda: state.stop_index("books", "why")):
        keep(lineage, books=made())
        assert lineage.keep({"books": made("two")})[1]
        gap()
        assert lineage.keep({"books": made("two")})[1] == {}
        assert lineage.keep({"books": made("two")})[1] == {}
    lineage.keep({"books": made("three")})
    epochs, outgoing = lineage.keep({"books": made("three")}, anew=True)
    assert outgoing == {}
    assert keep(lineage, books=made("three")) == epochs


def test_stopped_indexes_are_forgotten_when_they_are_kept_again(lineage: Lineage, state: State) -> None:
    """E76: with a new epoch, since live has missed changes of them."""
    first = keep(lineage, books=made(), authors=made())
    state.stop_index("books", "a column is gone")
    assert keep(lineage, authors=made()) == {"authors": first["authors"]}
    assert state.stopped()
    assert keep(lineage, books=made(), authors=made())["books"] != first["books"]
    assert not state.stopped()


def test_a_reindex_and_a_rollback_are_there_after_a_restart(lineage: Lineage) -> None:
    """E84: a rollback goes on in the former epoch, and refuses the schema that it leaves."""
    first = keep(lineage, books=made())["books"]
    lineage.succeed("books", lineage.made(Role.CURRENT)["books"])
    second = lineage.made(Role.CURRENT)["books"].epoch
    assert (second != first, lineage.made(Role.OUTGOING)["books"].epoch) == (True, first)
    assert lineage.keep({"books": made()})[0] == {"books": second}
    lineage.retire("books")
    third = keep(lineage, books=made("two"))["books"]
    lineage.retire("books")
    lineage.succeed("books", lineage.made(Role.FORMER)["books"], rollback=True)
    assert lineage.made(Role.CURRENT)["books"].epoch == second
    assert (lineage.made(Role.OUTGOING)["books"].epoch, lineage.made(Role.REFUSED)["books"].epoch) == (third, third)
    assert lineage.keep({"books": made()})[0] == {"books": second}
    lineage.retire("books")
    lineage.succeed("books", lineage.made(Role.REFUSED)["books"])
    assert not lineage.made(Role.REFUSED)
    assert lineage.made(Role.CURRENT)["books"].identity == "two"


def test_a_rollback_to_the_same_schema_refuses_nothing(lineage: Lineage) -> None:
    keep(lineage, books=made())
    lineage.succeed("books", lineage.made(Role.CURRENT)["books"])
    lineage.retire("books")
    lineage.succeed("books", lineage.made(Role.FORMER)["books"], rollback=True)
    assert not lineage.made(Role.REFUSED)


def test_an_index_that_only_grows_goes_on_in_its_epoch(lineage: Lineage) -> None:
    """E84: in place, so there is nothing that readers would leave."""
    first = keep(lineage, books=made())
    assert lineage.keep({"books": made("two")}, growing=["books", "unknown"]) == (first, {})
    assert lineage.made(Role.CURRENT)["books"].identity == "two"
    assert keep(lineage, books=made("two")) == first
