"""One slot and its tables: who asks, who waits, and how far the slot goes. Its stream is a list."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import CapacityError, PenstockError, PositionError, UnavailableError
from penstock.model import Lsn, QualifiedTable, ReplicationConfig
from penstock.postgres import receiver as receiver_module
from penstock.postgres.pgoutput import Relation
from penstock.postgres.receiver import Receiver
from penstock.reference.checkpoint import acknowledged
from tests.unit.reference_parts import ORIGIN, TABLE
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


@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize(
    ("places", "asked"),
    [
        ({"a": (40, 1), "b": (100, 1)}, (40, 100, 1)),  # b may hold rows that the new server never had
        ({"a": (40, 1), "b": (100, 2)}, (40, 40, 1)),  # b has followed the new one already
        ({"a": (40, 2), "b": (100, 1)}, (40, 100, 1)),
    ],
)
def test_the_server_must_have_what_any_table_holds(
    slot: Slot, places: dict[str, tuple[int, int]], asked: tuple[int, int, int], first: str
) -> None:
    """E29: after a failover also of a table that is ahead of the others, on the timeline that it was saved on."""
    slot.timeline = 2
    with slot.capture() as capture:
        names = sorted(places, reverse=first == "b")
        sources = [capture.table(name) for name in names]
        for source, (lsn, timeline) in zip(sources, map(places.__getitem__, names), strict=True):
            source.restore(slot.checkpoint(source.table.name, lsn, replace(ORIGIN, timeline=timeline)))
        sources[0].poll_changes()
        assert slot.starts == [asked]
        slot.reached = Lsn(200)
        for source in sources * 2:
            source.poll_changes()
        capture._hang_up()
        sources[0].poll_changes()
        assert slot.starts[1:] == [(200, 200, 2)], "what was found to be there is of the timeline that is read"


@pytest.mark.parametrize(("place", "timeline"), [(100, 1), (100, 2), (150, 2)])
def test_a_table_that_is_restored_beside_an_open_stream_is_asked_for(slot: Slot, place: int, timeline: int) -> None:
    """E29: the stream begins again, so that the server is asked whether it has what that table holds."""
    slot.timeline, slot.confirmed, slot.reached = 2, Lsn(100), Lsn(100)
    with slot.capture() as capture:
        first = slot.table(capture, "a", 100, 2)
        first.poll_changes()
        slot.table(capture, "b", place, timeline)
        first.poll_changes()
        begun_again = [(100, place, timeline)] if (place, timeline) != (100, 2) else []
        assert slot.starts == [(100, 100, 2), *begun_again]


@pytest.mark.parametrize(
    ("timeline", "wal_end", "said"), [(2, 200, "left it at 0/5A"), (1, 90, "ahead of the server's WAL")]
)
def test_what_is_promised_is_held_against_the_server_and_counts_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch, timeline: int, wal_end: int, said: str
) -> None:
    """E29: a switch point, or an end of the WAL, between where the stream goes on and what somebody has already."""
    monkeypatch.setattr(receiver_module.slot, "require_primary", lambda *_: None)
    monkeypatch.setattr(receiver_module.replication, "timeline_switch", lambda *_: Lsn(90))
    system = SimpleNamespace(system_id=ORIGIN.system_id, timeline=timeline, wal_end=Lsn(wal_end))
    client: Any = SimpleNamespace(connection=None, system=system)
    receiver = Receiver.__new__(Receiver)
    receiver._config, receiver._changed = ReplicationConfig("dims", "dims"), threading.Condition()
    for promised in 90, 100:
        receiver._origin, receiver.promised, receiver._reached = ORIGIN, Lsn(promised), Lsn(40)
        if promised > 90:
            with pytest.raises(PositionError, match=said):
                receiver._check_server(client, Lsn(40))
        else:
            receiver._check_server(client, Lsn(40))
        assert receiver._reached == 40, "it was not received"
