"""Random schemas, random rows, random writers: documents built at any moment are those of a naive oracle in the end.

`PENSTOCK_SEED` repeats a run's worlds and histories (the interleaving of their writers is the machine's),
`PENSTOCK_DOCUMENT_SEEDS` says how many there are. `make soak` runs many more.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.fixtures.documents.arena import Arena
from tests.fixtures.documents.drawing import DEPTH, KINDS
from tests.fixtures.documents.mutants import killed
from tests.fixtures.documents.trial import Tally

SEEDS = int(os.environ.get("PENSTOCK_DOCUMENT_SEEDS", "60"))
COVERED = 240  # so many seeds are enough for every relation, depth and operation; mostly 60 are
FEWEST = 3


@pytest.mark.parametrize("number", range(SEEDS))
def test_documents_built_at_any_moment_are_the_oracles(arena: Arena, number: int) -> None:
    """E60–E62, E64–E68, E70: resolved keys are enough and not too many; built in any cuts, with racing seeds."""
    arena.outcome(number)


@pytest.mark.timeout(900)  # where another process has run the histories, it runs them all
def test_every_relation_at_every_depth_saw_every_operation(arena: Arena) -> None:
    """E70: the histories did what they are there for."""
    tally: Tally = Counter()
    for number in range(COVERED):
        tally += arena.outcome(number)
        if not (rare := _rare(tally)):
            break
    assert not rare


def _rare(tally: Tally) -> dict[str, int]:
    """What was done too seldom to count."""
    relations = [(kind, depth) for kind in KINDS for depth in range(1, DEPTH + 1)] + [("root", 0)]
    seen = {
        f"{what} of {kind} at depth {depth}": tally[kind, depth, what]
        for kind, depth in relations
        for what in ("insert", "update", "delete", "move")
    }
    seen["truncate"] = sum(times for (_, _, what), times in tally.items() if what == "truncate")
    return {what: times for what, times in seen.items() if times < FEWEST}


def test_a_builder_that_drops_the_old_key_is_noticed() -> None:
    """E61, E70: the tests above can fail. `make soak` breaks the builder in every other way that is known."""
    assert not (survived := killed("drop_the_old_key")), survived
