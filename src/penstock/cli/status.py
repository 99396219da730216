"""`penstock status`: how far a running deployment is, asked from another terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from penstock.cli import options
from penstock.cli.options import SectionedCommand, logged, option
from penstock.cli.output import print_json, print_table


@click.command(cls=SectionedCommand, short_help="How far a running deployment is.")
@options.config
@option("--json", is_flag=True, help="Print one JSON object.")
@logged
def status(config: str | None, json: bool) -> None:
    """Ask the `penstock run` of this deployment how far it is: phases, counts, position, trouble."""
    from penstock.config.file import read_deployment
    from penstock.ops.control import ask

    deployment = read_deployment(config)
    told = ask(Path(deployment.locate(deployment.state)), "status")
    if json:
        print_json(told)
        return
    rows = [[name, *_cells(one)] for name, one in told["indexes"].items()]
    print_table(["index", "phase", "seeded", "chunks", "time to go", "written", "deleted"], rows)
    click.echo(
        f"{told['changes']} changes in {told['batches']} batches, at {told['position']}, running for"
        f" {told['running_s']:.0f} s, {told['restarts']} restarts, {told['quarantined']} in quarantine."
    )
    for name, one in told["indexes"].items():
        if one["reason"]:
            click.echo(f"Index {name} is stopped: {one['reason']}")
    if told["trouble"]:
        click.echo(f"Trouble: {told['trouble']}")


def _cells(one: dict[str, Any]) -> list[str]:
    left = "" if one["eta_s"] is None else f"{one['eta_s']:.0f} s"
    chunks = f"{one['chunks_done']}/{one['chunks']}" if one["chunks"] else ""
    return [one["phase"], str(one["seeded"]), chunks, left, str(one["written"]), str(one["deleted"])]
