"""One slot and its tables: who asks, who waits, and how far the slot goes. Its stream is a list."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import CapacityError, PenstockError, UnavailableError
from penstock.model import Lsn, QualifiedTable
from penstock.postgres.pgoutput import Relation
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
