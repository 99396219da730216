"""One slot and its tables: who asks, who waits, and how far the slot goes. Its stream is a list."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import CapacityError, PenstockError, PositionError, UnavailableError
from penstock.model import Lsn, QualifiedTable
from penstock.postgres.pgoutput import Relation
from penstock.reference.checkpoint import acknowledged
from tests.unit.reference_parts import TABLE
from tests.unit.reference_slots import Slot, slot
from tests.unit.test_reference_delivery import CITY, COLUMNS, transaction

__all__ = ["slot"]  # the fixture


@pytest.mark.parametrize("trouble", [UnavailableError("the server is gone"), CapacityError("no connection is free")])
def test_a_new_partition_is_asked_for_until_there_is_an_answer(slot: Slot, trouble: PenstockError) -> None:
    """E95: its rows are dropped as a stranger's only once the catalog has said that it is one."""
    low, top, other = (QualifiedTable("public", name) for name in ("low", "top", "other"))
    relations = {oid: Relation(oid, name, "d", COLUMNS) for oid, name in ((7, low), (8, top), (9, other))}

    def told(lsn: int, *pairs: tuple[int, int]) -> Any:
        return lambda: transaction(lsn, *pairs, relations=relations)

    slot.stream = [told(20, (7, 1)), told(30, (8, 101), (8, 102)), told(40, (9, 5)), told(50, (9, 6), (7, 2))]
    slot.oids[TABLE], slot.reached = CITY, Lsn(60)
    slot.answers = [{7: low}, trouble, {7: low, 8: top}]
    with slot.capture() as capture:
        source = slot.table(capture, "city", 10)
        found = list[int]()
        with pytest.raises(type(trouble)):
            source.poll_changes()
        slot.answers.append({7: low, 8: top})
        while (batch := source.poll_changes()) is not None:
            found += batch["id"].to_pylist()
        assert (found, int(source.checkpoint().position.lsn)) == ([1, 101, 102, 2], 60)
        assert slot.asked == 3, "restored, in trouble, answered: also for the table that is none of its partitions"


@pytest.mark.parametrize("when", ["while it waits", "afterwards"])
def test_a_table_that_starts_over_behind_its_place_holds_the_slot_at_what_it_saves(slot: Slot, when: str) -> None:
    """E92: its new snapshot may stand before what it had saved, where the stream still reads for others."""
    b = slot.known(QualifiedTable("public", "b")).shape.table
    relations = {slot.oids[b]: Relation(slot.oids[b], b, "d", COLUMNS)}
    slot.stream = [lambda: transaction(60, (slot.oids[b], 1), relations=relations)]
    slot.confirmed = slot.reached = Lsn(40)
    capture = slot.capture()
    behind, ahead = slot.table(capture, "a", 40), slot.table(capture, "b", 100)

    def catch_up() -> None:
        slot.reached = Lsn(100)
        behind.poll_changes(), behind.poll_changes()
        behind.confirm(behind.checkpoint())

    slot.reached = Lsn(45)
    behind.poll_changes(), behind.poll_changes()
    ahead.again()
    slot.meanwhile = catch_up if when == "while it waits" else lambda: None
    assert ahead.poll_snapshot() is None
    ahead.confirm(saved := ahead.checkpoint())
    catch_up()
    assert capture.acknowledged == acknowledged(saved) == 45
    capture.close()
    with slot.capture() as again:
        sources = [again.table("a"), again.table("b")]
        for source, place in zip(sources, (slot.checkpoint("a", 100), saved), strict=True):
            source.restore(place)
        assert [None if (batch := source.poll_changes()) is None else len(batch) for source in sources] == [None, 1]


@pytest.mark.parametrize("first", ["ahead", "behind", "ahead, anew"])
def test_a_table_that_the_slot_has_passed_stops_by_name_and_no_other(slot: Slot, first: str) -> None:
    """E29: its files are older than those of the others, say; a new snapshot puts it right, and moves no slot back."""
    slot.confirmed = slot.reached = Lsn(100)
    with slot.capture() as capture:
        behind, ahead = slot.table(capture, "b", 40), slot.table(capture, "a", 100)
        for source in (behind, ahead, behind) if first == "behind" else (ahead, behind, ahead):
            if source is behind:
                with pytest.raises(PositionError, match=r"past 0/28, up to which public.b was saved") as caught:
                    behind.poll_changes()
                assert "again() of the source" in caught.value.hint
            elif "anew" in first:
                ahead.again()
                assert ahead.poll_snapshot() is None
            else:
                assert ahead.poll_changes() is None
        slot.reached = Lsn(120)
        ahead.poll_changes(), ahead.poll_changes()
        ahead.confirm(ahead.checkpoint())
        assert capture.acknowledged == 100, "the slot waits for it, where it stands"
        behind.again()
        assert behind.poll_snapshot() is None
        behind.confirm(behind.checkpoint())
        assert capture.acknowledged == 120
