"""Whether a server may serve a held position: every answer of the pure check."""

from __future__ import annotations

import pytest

from penstock.errors import PositionError, SlotMissingError
from penstock.model import Lsn, Origin
from penstock.postgres.resume import check_origin, check_slot, check_wal
from penstock.postgres.slot import SlotInfo

HELD = Lsn(1000)


def slot_at(confirmed: int | None) -> SlotInfo:
    lsn = None if confirmed is None else Lsn(confirmed)
    return SlotInfo("s", "pgoutput", "logical", "db", False, None, lsn, lsn, "reserved", None, 0, 0, False, None)


def test_without_an_origin_any_server_will_do() -> None:
    """E29: nothing is known that could not fit."""
    check_origin(None, Origin("1", 7), None, HELD)


@pytest.mark.parametrize("timeline", [None, 3])
def test_another_system_is_refused(timeline: int | None) -> None:
    """E29: whatever its timeline; both identifiers are named."""
    with pytest.raises(PositionError) as caught:
        check_origin(Origin("111", timeline), Origin("222", 3), None, HELD)
    assert "111" in caught.value.message
    assert "222" in caught.value.message
    assert caught.value.hint


def test_the_same_timeline_and_an_unknown_one_are_fine() -> None:
    """E29: a position whose timeline was never noted is judged by the system alone."""
    check_origin(Origin("1", 3), Origin("1", 3), None, HELD)
    check_origin(Origin("1", None), Origin("1", 9), None, HELD)


@pytest.mark.parametrize("switch", [HELD, Lsn(HELD + 1), Lsn.MAX])
def test_a_timeline_that_left_ours_at_or_past_the_position_is_followed(switch: Lsn) -> None:
    """E29: everything that was received is in its history."""
    check_origin(Origin("1", 3), Origin("1", 4), switch, HELD)


@pytest.mark.parametrize(("switch", "said"), [(Lsn(HELD - 1), "left it at 0/3E7"), (None, "was never on it")])
def test_a_timeline_that_left_ours_before_the_position_is_refused(switch: Lsn | None, said: str) -> None:
    """E29: changes were received that its history does not have; or it is an older branch altogether."""
    with pytest.raises(PositionError) as caught:
        check_origin(Origin("1", 3), Origin("1", 4), switch, HELD)
    assert said in caught.value.message
    assert "penstock reconcile" in caught.value.hint


def test_a_missing_slot_is_made_only_where_nothing_is_held() -> None:
    """E26: else it is the end, and says since when changes are missing."""
    check_slot("s", None, Lsn.ZERO, may_create=True)
    for held, said in ((HELD, str(HELD)), (Lsn.ZERO, "it was last read")):
        with pytest.raises(SlotMissingError) as caught:
            check_slot("s", None, held, may_create=False)
        assert said in caught.value.message
        assert "penstock reconcile" in caught.value.hint


@pytest.mark.parametrize("confirmed", [None, 1, HELD])
def test_a_slot_at_or_before_the_position_serves_it(confirmed: int | None) -> None:
    """E29: the server skips what is held already."""
    check_slot("s", slot_at(confirmed), HELD, may_create=False)


def test_a_slot_past_the_position_was_consumed_by_somebody_else() -> None:
    """E29: both positions are named."""
    with pytest.raises(PositionError) as caught:
        check_slot("s", slot_at(HELD + 1), HELD, may_create=False)
    assert str(HELD) in caught.value.message
    assert "somebody else consumed it" in caught.value.message


def test_a_caller_without_a_position_takes_the_slots() -> None:
    """E29: wherever it stands."""
    check_slot("s", slot_at(5000), Lsn.ZERO, may_create=True)


def test_a_position_beyond_the_wal_is_refused() -> None:
    """E29: at its very end it is fine."""
    check_wal(HELD, HELD)
    check_wal(Lsn.ZERO, Lsn(1))
    with pytest.raises(PositionError) as caught:
        check_wal(Lsn(HELD + 1), HELD)
    assert "ahead of the server's WAL" in caught.value.message
