"""The docs hold together: each link leads somewhere, each page can be found, README names the two commands."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from penstock import ReplicationConfig, TlsConfig, errors
from penstock.spark import settings
from penstock.spark.options import OPTIONS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")


def targets(page: Path) -> set[Path]:
    """The files that a page links to or shows."""
    return {(page.parent / found).resolve() for found in LINK.findall(page.read_text())}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_that_exist(page: Path) -> None:
    assert not {str(target) for target in targets(page) if not target.exists()}


def test_each_page_is_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    ahead = [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        seen.add(page)
        if page.suffix == ".md" and page.exists():
            ahead += targets(page) - seen
    unreached = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.*")} - {
        str(page.relative_to(ROOT)) for page in seen if page.is_relative_to(ROOT)
    }
    assert not unreached


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text


def test_every_python_example_is_valid_python() -> None:
    for page in PAGES:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            compile(block, str(page), "exec")


def test_every_error_is_in_the_reference() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text()
    documented = set(re.findall(r"^\| \**(\w+Error)\b", page, re.MULTILINE))
    defined = {name for name in vars(errors) if name.endswith("Error")} - {"PenstockError"}
    assert documented == defined


@pytest.mark.parametrize("settings", [ReplicationConfig, TlsConfig])
def test_every_setting_is_in_the_reference(settings: type) -> None:
    page = (ROOT / "docs/reference/capture.md").read_text()
    assert not [field.name for field in dataclasses.fields(settings) if f"| `{field.name}` |" not in page]


def test_every_option_of_the_spark_source_is_in_the_reference_with_its_default() -> None:
    page = (ROOT / "docs/reference/spark.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE))
    assert not {option.name for option in OPTIONS} - rows.keys()
    for option in OPTIONS:
        default = rows[option.name].split(" | ")[0].strip("` ")
        assert default == option.default, option.name
        assert not [word for word in option.words if f"`{word}`" not in rows[option.name]], option.name


def test_every_setting_of_the_session_is_in_the_reference() -> None:
    page = (ROOT / "docs/reference/spark.md").read_text()
    assert not [one.name for one in settings.TABLE if f"| `{one.name}` |" not in page]
