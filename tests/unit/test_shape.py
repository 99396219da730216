"""The size of things: small files, small functions, names that say what they hold."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
EMPTY_NAMES = {"utils", "helpers", "common", "base", "core", "manager", "misc"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def functions() -> dict[str, tuple[int, int]]:
    """By its place, how many lines and parameters each function has."""
    return {
        f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}": (
            (node.end_lineno or 0) - node.lineno + 1,
            _parameters(node.args),
        )
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(), str(path)))
        if isinstance(node, Function)
    }


def test_no_file_is_over_600_lines() -> None:
    sizes = {str(path.relative_to(SOURCE)): path.read_text().count("\n") for path in SOURCE.rglob("*.py")}
    assert sizes, "the sources are found"
    assert not {name: size for name, size in sizes.items() if size > 600}


def test_no_function_is_over_60_lines() -> None:
    assert not {name: lines for name, (lines, _) in functions().items() if lines > 60}


def test_no_function_takes_more_than_six_parameters() -> None:
    assert not {name: count for name, (_, count) in functions().items() if count > 6}


def _parameters(arguments: ast.arguments) -> int:
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return len([argument for argument in named if argument.arg not in ("self", "cls")])


def test_a_module_is_named_after_what_it_holds() -> None:
    parts = {part for path in SOURCE.rglob("*.py") for part in path.relative_to(SOURCE).with_suffix("").parts}
    assert not parts & EMPTY_NAMES
