"""The list of guarantees and the tests agree: a due line has a test, and a test names only lines that exist.

A test claims a line by naming it (E12, or a range E1–E3) in the docstring of its function or class; what stands in a
module's docstring claims nothing.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import penstock

ROOT = Path(__file__).parents[2]
GUARANTEES = ROOT / "docs/explanation/guarantees.md"
LINE = re.compile(r"^- \*\*(E\d{1,3})\*\* \((?:since (\d+\.\d+)|planned)\) \S", re.MULTILINE)
NAME = re.compile(r"\bE(\d{1,3})\b(?:\s*[-–]\s*E(\d{1,3})\b)?")


@functools.cache
def lines() -> dict[str, str | None]:
    """Each line of the list, and the version since which it holds (None: planned)."""
    return {found[1]: found[2] for found in LINE.finditer(GUARANTEES.read_text())}


def named(text: str) -> set[str]:
    """The lines that a docstring names; a range names each line in it that exists."""
    found: set[str] = set()
    for first, last in NAME.findall(text):
        found |= {f"E{first}"} | {f"E{last}" for _ in last[:1]}
        found |= {f"E{n}" for n in range(int(first), int(last or first))} & set(lines())
    return found


def claims_in(tree: ast.Module | ast.ClassDef) -> Iterator[tuple[str, str]]:
    """(test, line) for every line that a test function or class names in its docstring."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name.lower()[:4] == "test":
            for line in named(ast.get_docstring(node) or ""):
                yield node.name, line
        if isinstance(node, ast.ClassDef):
            yield from claims_in(node)


@functools.cache
def claims() -> dict[str, set[str]]:
    """The tests that name each line."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for test, line in claims_in(ast.parse(path.read_text(), str(path))):
            found.setdefault(line, set()).add(f"{path.relative_to(ROOT)}::{test}")
    return found


def number(line: str) -> int:
    return int(line[1:])


def test_every_due_line_has_a_test() -> None:
    current = tuple(map(int, penstock.__version__.split(".")[:2]))
    due = {line for line, since in lines().items() if since and tuple(map(int, since.split("."))) <= current}
    missing = sorted(due - claims().keys(), key=number)
    assert not missing, f"no test names {', '.join(missing)} in its docstring"


def test_no_test_names_a_line_that_does_not_exist() -> None:
    unknown = {line: tests for line, tests in claims().items() if line not in lines()}
    assert not unknown, f"not in {GUARANTEES.name}: {unknown}"


def test_the_list_is_whole_and_well_formed() -> None:
    text = GUARANTEES.read_text()
    items = re.findall(r"^- .*", text, re.MULTILINE)
    malformed = [item for item in items if not LINE.match(item)]
    assert not malformed, "each line reads: - **E1** (since 0.1) … or - **E1** (planned) …"
    assert len(items) == len(lines()), "a number is given once"


def test_claims_are_read_from_docstrings_of_tests_only() -> None:
    sample = ast.parse(
        '"""E1"""\n'
        'def test_a():\n    """E2, E40–E42: words."""\n'
        'def build():\n    """E3"""\n'
        'class TestB:\n    """E4"""\n    def test_c(self):\n        """E999 and SQLSTATE E5000, 1E6"""\n'
    )
    assert set(claims_in(sample)) == {
        ("test_a", "E2"), ("test_a", "E40"), ("test_a", "E41"), ("test_a", "E42"), ("TestB", "E4"), ("test_c", "E999"),
    }  # fmt: skip
