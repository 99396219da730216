"""Trees for people: a document's keys with their types, and the tables whose changes touch it.

Guarantees: plain text with aligned columns where stdout is no terminal; no control character of a name reaches the
terminal. Deliberately not: what is in the trees (`document.mapping_tree`, `document.paths`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock.model import visible

if TYPE_CHECKING:
    from penstock.document.mapping_tree import Branch
    from penstock.document.paths import Path


def mapping_lines(tree: Branch) -> Iterator[str]:
    """A document's keys, one a line: key, type in the index, where its value comes from."""
    rows = list(_rows(tree.below, ""))
    widths = [max((len(row[at]) for row in rows), default=0) for at in (0, 1)]
    yield f"{click.style(visible(tree.key), bold=True)}  one document for each row of {visible(tree.origin)}"
    for key, kind, origin in rows:
        yield f"{key:<{widths[0]}}  {click.style(f'{kind:<{widths[1]}}', fg='cyan')}  {origin}".rstrip()


def _rows(branches: Sequence[Branch], indent: str) -> Iterator[tuple[str, str, str]]:
    for at, one in enumerate(branches):
        last = at == len(branches) - 1
        subfields = f" +{', +'.join(one.subfields)}" if one.subfields else ""
        yield f"{indent}{'└─' if last else '├─'} {visible(one.key)}", one.type + subfields, visible(one.origin)
        yield from _rows(one.below, indent + ("   " if last else "│  "))


def mapping_fields(tree: Branch) -> dict[str, Any]:
    """The same for machines."""
    below = [mapping_fields(one) for one in tree.below]
    return {"key": tree.key, "type": tree.type, "from": tree.origin, "subfields": tree.subfields, "fields": below}


def touching_lines(index: str, paths: Iterable[Path]) -> Iterator[str]:
    """Which tables touch an index, and how a changed row of each leads to documents."""
    yield f"{click.style(visible(index), bold=True)}  is touched by changes of"
    found = list(paths)
    width = max((len(str(path.table)) for path in found), default=0)
    for at, path in enumerate(found):
        branch = "└─" if at == len(found) - 1 else "├─"
        yield f"{branch} {visible(str(path.table)):<{width}}  {visible(_way(path))}"


def _way(path: Path) -> str:
    steps = [f"by {', '.join(path.columns)}"]
    steps += [f"{hop.table} where {', '.join(hop.on)} is that" for hop in path.hops]
    return f"as {path.role}: {' → '.join(steps)}"


def touching_fields(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The same for machines."""
    return [
        {
            "table": str(path.table),
            "role": path.role,
            "columns": path.columns,
            "hops": [{"table": str(hop.table), "on": hop.on, "to": hop.to} for hop in path.hops],
        }
        for path in paths
    ]
