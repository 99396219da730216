"""What commands print: tables for people, JSON for machines, values in a form that fits both.

Guarantees: JSON is always valid (no NaN, bytes and dates as text) and ASCII; text for people holds no control
character, so that a name or a value cannot steer the terminal; a table is aligned plain text where stdout is not a
terminal, with nothing cut off. Deliberately not: what is in the tables.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from penstock.model import Lsn, visible


def print_json(value: object) -> None:
    """One JSON object (or array) on a line of its own."""
    click.echo(to_json(value))


def to_json(value: object) -> str:
    """Any value that a change, a slot or a report may hold, as JSON."""
    return json.dumps(_plain(value))


def _plain(value: object) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Lsn):
        return str(value)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _float_text(value)
    if isinstance(value, bytes | memoryview):
        return "\\x" + bytes(value).hex()
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, Sequence | frozenset | set):
        return [_plain(one) for one in value]
    return text_of(value)


def _float_text(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def text_of(value: object) -> str:
    """A value as people read it: dates as ISO writes them, everything else as Python does."""
    if isinstance(value, bytes | memoryview):
        return "\\x" + bytes(value).hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def size_of(count: int | None) -> str:
    """Bytes for people: `1.4 MiB`."""
    if count is None:
        return "–"
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], dim: Sequence[bool] = ()) -> None:
    """A table; where `dim` says so, a row is shown as less important."""
    shown = [[visible(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(head, shown, dim)
        return
    widths = [max(map(len, column)) for column in zip(head, *shown, strict=True)]
    for row in [head, *shown]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_rich(head: Sequence[str], rows: Sequence[Sequence[str]], dim: Sequence[bool]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*head, box=SIMPLE_HEAD, pad_edge=False)
    for at, row in enumerate(rows):
        # Text, not str: a name may look like rich's markup.
        table.add_row(*map(Text, row), style="dim" if at < len(dim) and dim[at] else None)
    Console().print(table)
