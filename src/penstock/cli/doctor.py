"""`penstock doctor`: everything that can be wrong around a deployment, each with its fix.

Guarantees: changes nothing. The exit code is 0 where no error was found, 1 where one was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from penstock.cli import options
from penstock.cli.check import progress
from penstock.cli.failure import ACT
from penstock.cli.options import SectionedCommand, as_json, logged
from penstock.cli.output import print_json
from penstock.model import visible

if TYPE_CHECKING:
    from penstock.app.diagnosis import Finding

_COLOURS = {"good": "green", "note": "blue", "warning": "yellow", "error": "red"}


@click.command(cls=SectionedCommand, short_help="What is wrong, and how to fix it.")
@options.config
@as_json
@logged
def doctor(config: str | None, json: bool) -> int:
    """Look at all that a deployment needs, from the server's settings to this machine's disk and clock.

    Nothing is changed. Each finding comes with what fixes it. The exit code is 1 where an error was found; warnings and
    notes do not count.
    """
    from penstock.app.doctor import examine
    from penstock.config.file import read_deployment

    deployment = read_deployment(config)
    with progress(json) as tell:
        found = list(examine(deployment, tell))
    errors = sum(one.verdict == "error" for one in found)
    if json:
        print_json({"errors": errors, "findings": [dataclasses.asdict(one) for one in found]})
    else:
        for line in _lines(found):
            click.echo(line)
    return ACT if errors else 0


def _lines(found: list[Finding]) -> Iterator[str]:
    width = max(len(one.about) for one in found)
    for one in found:
        word = click.style(f"{one.verdict:7}", fg=_COLOURS[one.verdict])
        yield f"{word}  {one.about:<{width}}  {visible(one.message)}"
        indent = " " * (11 + width)
        if one.fix:
            yield f"{indent}{visible(one.fix)}"
        yield from (click.style(f"{indent}{visible(line)}", dim=True) for line in one.sql.splitlines())
    counts = {word: sum(one.verdict == word for one in found) for word in ("error", "warning")}
    said = [f"{count} {word}{'s' * (count > 1)}" for word, count in counts.items() if count]
    yield f"\n{', '.join(said) or 'Nothing is wrong'}."
