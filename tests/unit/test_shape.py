"""The size of things: small files, small functions, names that say what they hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
EMPTY_NAMES = {"utils", "helpers", "common", "base", "core", "manager", "misc"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[str, Function]]:
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, Function):
                yield f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}", node


def test_no_file_is_over_600_lines() -> None:
    sizes = {str(path.relative_to(SOURCE)): path.read_text().count("\n") for path in SOURCE.rglob("*.py")}
    assert sizes, "the sources are found"
    assert not {name: size for name, size in sizes.items() if size > 600}


def test_no_function_is_over_60_lines() -> None:
    sizes = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in functions()}
    assert not {name: size for name, size in sizes.items() if size > 60}


def test_no_function_takes_more_than_six_parameters() -> None:
    counts = {name: _parameters(node.args) for name, node in functions()}
    assert not {name: count for name, count in counts.items() if count > 6}


def _parameters(arguments: ast.arguments) -> int:
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return len([argument for argument in named if argument.arg not in ("self", "cls")])


def test_a_module_is_named_after_what_it_holds() -> None:
    parts = {part for path in SOURCE.rglob("*.py") for part in path.relative_to(SOURCE).with_suffix("").parts}
    assert not parts & EMPTY_NAMES
