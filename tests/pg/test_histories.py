"""Random histories: the changes, replayed into a dictionary, are the table; thin changes name the same keys.

`PENSTOCK_SEED` repeats a run's histories (the interleaving of their writers is the machine's), `PENSTOCK_HISTORIES`
says how many there are for each major. `make soak` runs many more.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.fixtures.databases import Database
from tests.fixtures.replays import check_history

HISTORIES = int(os.environ.get("PENSTOCK_HISTORIES", "6"))


@pytest.mark.parametrize("number", range(HISTORIES))
def test_the_changes_of_a_history_replayed_are_its_tables(database: Database, number: int, rng: random.Random) -> None:
    """E3, E5, E10, E11: inserts, updates, deletes, moved keys, truncates, savepoints, DDL, three writers at once."""
    check_history(database, rng, 25)
