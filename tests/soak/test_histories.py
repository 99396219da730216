"""Random histories, many and long."""

from __future__ import annotations

import os
import random

import pytest

from tests.fixtures.databases import Database
from tests.fixtures.replays import check_history

HISTORIES = int(os.environ.get("PENSTOCK_HISTORIES", "200"))


@pytest.mark.parametrize("number", range(HISTORIES))
def test_the_changes_of_a_long_history_replayed_are_its_tables(
    database: Database, number: int, rng: random.Random
) -> None:
    """E3, E5, E10, E11: as in the run of every day, with more writers and more of everything."""
    check_history(database, rng, 100, writers=5)
