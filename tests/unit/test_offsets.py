"""Offsets: the same text for the same place, and a clear refusal of one that does not belong here."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, PositionError
from penstock.model import Lsn, Origin
from penstock.postgres.replay import Cut
from penstock.spark.offsets import INITIAL, to_cut, to_offset

ORIGIN = Origin("7708724295404377525", 3)
CUTS = st.builds(Cut, st.integers(1, 2**64 - 1).map(Lsn), st.none() | st.integers(1, 10**9))


@given(CUTS)
def test_an_offset_is_the_same_text_for_the_same_place_and_comes_back(cut: Cut) -> None:
    """E101: Spark compares the texts, and gives back what it has read from its log."""
    text = json.dumps(to_offset(cut, ORIGIN, "s"))
    assert text == json.dumps(json.loads(text))
    assert to_cut(json.loads(text), "s") == (cut, ORIGIN)


def test_the_initial_offset_belongs_to_no_server() -> None:
    assert to_cut(INITIAL, "s") == (Cut(), None)


def test_another_slots_offset_is_refused() -> None:
    """E29."""
    with pytest.raises(PositionError, match="belongs to slot other, but the query reads slot s"):
        to_cut(to_offset(Cut(Lsn(5)), ORIGIN, "other"), "s")


@pytest.mark.parametrize("offset", [{"format": 3}, {"lsn": "0/1", "rows": -1}, {"format": "1"}, {"lsn": 5}])
def test_an_offset_of_a_newer_format_or_of_another_source_is_refused(offset: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="use the checkpoint that belongs to this query"):
        to_cut(offset, "s")
