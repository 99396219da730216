"""Random documents, many and with longer histories."""

from __future__ import annotations

import os

import pytest

from tests.fixtures.documents.arena import Arena

SEEDS = int(os.environ.get("PENSTOCK_DOCUMENT_SEEDS", "1000"))
LENGTH = 4.0


@pytest.mark.parametrize("number", range(SEEDS))
def test_documents_of_long_histories_are_the_oracles(arena: Arena, number: int) -> None:
    """E60–E62, E64–E68, E70: as in the run of every day, with more of everything."""
    arena.outcome(number)
