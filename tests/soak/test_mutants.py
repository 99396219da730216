"""Each builder that is wrong on purpose is noticed by a short selection of the suite."""

from __future__ import annotations

import pytest

from tests.fixtures.documents.mutants import MUTANTS, killed


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_wrong_builder_is_noticed(name: str) -> None:
    """E60, E61, E62, E65, E66, E67, E70, E71: the tests that claim them can fail."""
    assert not (survived := killed(name)), survived
