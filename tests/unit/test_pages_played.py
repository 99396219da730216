"""Every how-to page is played by a test, or says why it is not."""

from __future__ import annotations

from pathlib import Path

from tests.fixtures.pages import ELSEWHERE, PLAYED, UNPLAYED

ROOT = Path(__file__).parents[2]


def test_every_page_is_played_or_has_its_reason() -> None:
    listed = [*PLAYED, *ELSEWHERE, *UNPLAYED]
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs/how-to").glob("*.md")), "each once"
    assert all(UNPLAYED.values())


def test_the_test_that_plays_a_page_names_it() -> None:
    assert not [page for page, test in ELSEWHERE.items() if f'"{page}"' not in (ROOT / test).read_text()]
