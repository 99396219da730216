"""The docs hold together and leave nothing out: links, anchors, commands and files in them, and a place for everything.

What is generated (command line, the two files) and metrics are compared with the code in their own tests; Python names
in test_docs_python.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import ReplicationConfig, TlsConfig, errors
from penstock.cli.main import cli
from penstock.config.file import read_deployment
from penstock.document.reading import read_schema
from penstock.ops import http_private
from penstock.ops.http_public import PATHS
from penstock.spark import settings
from penstock.spark.options import OPTIONS
from tests.unit.command_lines import lines, problem

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "examples/README.md"])
LINK = re.compile(r"(?:\]\(|\bsrc(?:set)?=\")(?!https?:|mailto:|#)([^)#\s\"]+)")
ANCHORED = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)#([^)\s]+)\)")


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
    pages = [*(ROOT / "docs").rglob("*.*"), *(ROOT / "examples").rglob("*.md")]
    unreached = {str(page.relative_to(ROOT)) for page in pages} - {
        str(page.relative_to(ROOT)) for page in seen if page.is_relative_to(ROOT)
    }
    assert not unreached


def test_the_pages_say_what_the_layers_are() -> None:
    """The line of layers is that of the contract that is checked."""
    (contract,) = (
        one
        for one in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
        if one["type"] == "layers"
    )
    for page in ("CONTRIBUTING.md", "docs/explanation/architecture.md"):
        assert f"\n    {' > '.join(contract['layers'])}\n" in (ROOT / page).read_text(), page


def test_every_package_has_its_line_for_who_contributes() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    packages = [one.parent for one in (ROOT / "src").glob("*/*/__init__.py")]
    tiers = [one for one in (ROOT / "tests").iterdir() if any(one.glob("test_*.py"))]
    assert len(packages) >= 10 and len(tiers) >= 6
    assert not [one.name for one in packages if f"| `src/penstock/{one.name}/` |" not in text]
    assert not [one.name for one in tiers if f"`tests/{one.name}`" not in text]


def test_every_answer_that_http_refuses_with_is_in_the_reference() -> None:
    source = "".join(file.read_text() for file in (ROOT / "src/penstock/ops").glob("http*.py"))
    statuses = set(re.findall(r"\b(?:refused\(|status = |else |503 if |\}, )([45]\d\d)\b", source))
    page = (ROOT / "docs/reference/http.md").read_text()
    assert {"401", "403", "413", "500"} <= statuses
    assert not {one for one in statuses if f"| {one} |" not in page}


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
    documented = set(re.findall(r"^\| \**(\w+Errors?)\b", page, re.MULTILINE))
    source = "\n".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    classes = re.findall(r"^class (\w+)\((\w+)", source, re.MULTILINE)
    known = {"PenstockError"}
    while more := {name for name, above in classes if above in known} - known:
        known |= more
    assert documented == known - {"PenstockError"}
    assert len(known) > len([name for name in vars(errors) if name.endswith("Error")]), "also those defined elsewhere"


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


def anchors(page: Path) -> set[str]:
    """What the headings of a page can be reached by, as they are made where the pages are read."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {f"{slug}-{n}" if n else slug for slug, most in found.items() for n in range(most + 1)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_anchors_lead_to_headings_that_exist(page: Path) -> None:
    for where, anchor in ANCHORED.findall(page.read_text()):
        target = (page.parent / where).resolve() if where else page
        assert target.suffix != ".md" or anchor in anchors(target), f"{where}#{anchor}"


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs/README.md"
    pages = {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - {index}
    assert pages <= targets(index), "docs/README.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_begins_with_its_title_and_has_one(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert text.startswith("# ")
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_can_be_typed_as_they_stand(page: Path) -> None:
    """Those that a person is told to run; the reference of commands shows their forms."""
    told = lines(page.read_text()) if page.name != "cli.md" else ()
    assert not [found for found in map(problem, told) if found]


def test_every_command_has_a_place_beside_the_reference() -> None:
    text = "\n".join(page.read_text() for page in PAGES if page.name not in ("cli.md", "CHANGELOG.md"))
    assert not [name for name in cli.commands if f"penstock {name}" not in text and name != "build"]  # lock, by flusso


def blocks(language: str) -> Iterator[tuple[Path, str]]:
    """Every block of a language, and its page."""
    for page in PAGES:
        for found in re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            yield page, found


def test_every_schema_file_that_is_shown_is_read() -> None:
    shown = [text for _, text in blocks("yaml") if text.startswith("version:")]
    assert len(shown) >= 3
    for text in shown:
        read_schema(text, "shown")


SOURCE = '[source]\ntype = "postgres"\nconnection_url = { env = "DATABASE_URL" }'
INDENTED = re.compile(r"^    \[(?:source|server|sinks\.\w+)\]\n(?:    .*\n|\n(?=    ))*", re.MULTILINE)


def parts_of_deployments() -> Iterator[tuple[Path, str]]:
    """TOML of every page: in a block of its language, or indented, beginning with a table of a deployment."""
    yield from blocks("toml")
    for page in PAGES:
        yield from ((page, textwrap.dedent(found)) for found in INDENTED.findall(page.read_text()))


def test_every_deployment_file_that_is_shown_is_read(tmp_path: Path) -> None:
    """By Penstock's own reader: what a part lacks is put beside it, and every key of it has to be one."""
    shown = list(parts_of_deployments())
    assert len(shown) >= 12
    (tmp_path / "x.schema.yml").write_text("version: 1\ntable: x\nfields: [{keyword: name}]\n")
    for page, text in shown:
        there = tomllib.loads(text)
        parts = [text] if "source" in there else [text, SOURCE]
        if "connection_url" not in there.get("source", {"connection_url": ""}):
            parts = [text.replace("[source]", SOURCE)]
        if "index" not in there:
            parts += ['[[index]]\nname = "x"\nschema = "x.schema.yml"']
        for index in there.get("index", ()):
            shutil.copy(tmp_path / "x.schema.yml", tmp_path / index["schema"])
        (tmp_path / "penstock.toml").write_text("\n".join(parts))
        assert read_deployment(tmp_path), page.name


def test_every_public_path_is_in_the_reference() -> None:
    page = (ROOT / "docs/reference/http.md").read_text()
    assert not [path for path in PATHS if f"| `{path}` |" not in page]


def test_every_private_path_is_in_the_reference_with_its_method_and_no_other_is() -> None:
    page = (ROOT / "docs/reference/http.md").read_text()
    found = set(re.findall(r"^\| `(/\w+)[^`]*` \| (GET|POST) \|", page, re.MULTILINE))
    there = {(f"/{name}", "GET") for name in http_private.READ}
    there |= {(f"/{name}", "POST") for name in http_private.ACT}
    assert found == there | {(http_private.LINK, "POST"), (http_private.SESSION, "POST")}


def test_what_a_post_does_by_more_or_fewer_words_is_in_the_reference() -> None:
    """`rollback` goes back to the former generation; a drop of nothing in particular drops everything."""
    page = (ROOT / "docs/reference/http.md").read_text()
    (reindex,) = re.findall(r"^\| `/reindex` .*$", page, re.MULTILINE)
    (drop,) = re.findall(r"^\| `/quarantine` \| POST .*drop.*$", page, re.MULTILINE)
    assert '"rollback": true' in reindex
    assert "without `index`, everything" in drop


# A figure of a benchmark is named with its unit, or with what it is a ratio of.
FIGURE = re.compile(
    r'"((?:[a-z0-9]+_)+(?:s|mb|ratio|p50|p99|10x|defaults|1000|full|document|false|rounds|1e\d|jdbc|copy|keys)'
    r'|books|rows|checksum|flat)"'
)
BENCHES = {
    "capture": ["capture"],
    "spark": ["spark_stream", "spark_snapshot"],
    "documents": ["documents"],
    "engine": ["engine"],
    "reference": ["reference"],
    "operations": ["operations"],
}


def test_every_figure_of_every_benchmark_has_its_row() -> None:
    """By its key in the last line that the program prints; what was not measured says so."""
    page = (ROOT / "docs/explanation/benchmarks.md").read_text()
    sections = {
        found[0]: section for section in page.split("\n## ") if (found := re.findall(r"make bench-(\w+)`", section))
    }
    targets = re.findall(r"^bench-(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert BENCHES.keys() == set(targets) == sections.keys()
    for target, programs in BENCHES.items():
        source = "".join((ROOT / "bench" / f"{program}.py").read_text() for program in programs)
        keys = set(FIGURE.findall(source)) | {f"docs_per_s_{10**n}" for n in range(5) if target == "documents"}
        assert len(keys) >= 6
        assert not {key for key in keys if f"{key}`" not in sections[target]}, target
