"""`penstock status`: how far a running deployment is, asked from another terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from penstock.cli import options
from penstock.cli.options import SectionedCommand, as_json, logged
from penstock.cli.output import print_json, print_table, size_of
from penstock.errors import PenstockError


@click.command(cls=SectionedCommand, short_help="How far a running deployment is.")
@options.config
@as_json
@logged
def status(config: str | None, json: bool) -> None:
    """Ask the `penstock run` of this deployment how far it is: phases, counts, position, trouble, its page."""
    from penstock.config.file import read_deployment
    from penstock.ops.control import ask

    deployment = read_deployment(config)
    state = Path(deployment.locate(deployment.state))
    told = ask(state, "status")
    if json:
        print_json(told)
        return
    rows = [[name, *_cells(one)] for name, one in told["indexes"].items()]
    print_table(["index", "phase", "seeded", "chunks", "time to go", "written", "deleted"], rows)
    outdone = f", {told['outdone']} writes met something newer" if told.get("outdone") else ""
    click.echo(
        f"{told['changes']} changes in {told['batches']} batches, at {told['position']}, running for"
        f" {told['running_s']:.0f} s, {told['restarts']} restarts, {told['quarantined']} in quarantine"
        f"{outdone}."
    )
    for name, one in told["indexes"].items():
        if one["reason"]:
            click.echo(f"Index {name} is stopped: {one['reason']}")
        if one["rebuild"]:
            click.echo(f"Index {name}: a new generation is {one['rebuild']}; readers see the one before.")
    for name, reason in told["marked"].items():
        click.echo(f"Index {name} has to be reconciled: {reason}. Run penstock reconcile --repair {name}.")
    if told["trouble"]:
        click.echo(f"Trouble: {told['trouble']}")
    for sink, reason in told["away"].items():
        click.echo(f"Sink {sink} is left behind: {reason}. It is seeded anew when it answers again.")
    for line in _measured(told):
        click.echo(line)
    if told["public"]:
        click.echo(f"Health and metrics: http://{told['public']}")
    if told["page"]:
        _tell_page(state, told["page"])


def _tell_page(state: Path, page: str) -> None:
    from penstock.app.watching import page_link

    try:
        click.echo(f"The page: {page_link(state, page)} (this link lets one browser in, once)")
    except PenstockError as error:
        click.echo(f"The page: {page} (no link into it: {error.message})")


def _measured(told: dict[str, Any]) -> list[str]:
    latency, source = told["latency"], told["source"] or {}
    lines = []
    if latency["p50_s"] is not None:
        lines.append(f"From commit to searchable: {latency['p50_s']:.3f} s (median), {latency['p99_s']:.3f} s (99 %).")
    if source.get("lag_bytes") is not None:
        lag, retained = size_of(source["lag_bytes"]), size_of(source["slot_retained_bytes"])
        lines.append(f"Behind: {lag}, {source['lag_s']:.0f} s; the slot holds {retained} of WAL.")
    return lines


def _cells(one: dict[str, Any]) -> list[str]:
    left = "" if one["eta_s"] is None else f"{one['eta_s']:.0f} s"
    chunks = f"{one['chunks_done']}/{one['chunks']}" if one["chunks"] else ""
    return [one["phase"], str(one["seeded"]), chunks, left, str(one["written"]), str(one["deleted"])]
