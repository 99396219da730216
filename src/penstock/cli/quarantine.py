"""`penstock quarantine`: documents that a sink rejected, and what to do about them.

Guarantees: an entry tells key, sink, version and reason, and nothing else of the document; dropping is asked for first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import options
from penstock.cli.check import chosen
from penstock.cli.failure import ACT
from penstock.cli.options import SectionedCommand, as_json, confirm, logged, show_help, yes
from penstock.cli.output import print_json, print_table
from penstock.errors import ConfigError
from penstock.model import visible

if TYPE_CHECKING:
    from penstock.engine.state import Entry

_which = click.argument("ids", nargs=-1, metavar="[ID]...")


@click.group(invoke_without_command=True)
@click.pass_context
def quarantine(context: click.Context) -> None:
    """Documents that a sink rejected: see them, send them again, forget them."""
    show_help(context)


@quarantine.command("list", cls=SectionedCommand, short_help="Every document in quarantine.")
@click.argument("index", required=False)
@options.config
@as_json
@logged
def list_(index: str | None, config: str | None, json: bool) -> None:
    """Show the documents in quarantine, of all indexes or of INDEX: where, since when and why."""
    found = _look(config, index, ())
    if json:
        print_json([asdict(one) for one in found])
        return
    if not found:
        click.echo("Nothing is in quarantine.")
        return
    rows = [[one.index, one.id, one.sink, str(one.version), one.since, one.reason] for one in found]
    print_table(["index", "id", "sink", "version", "since", "reason"], rows)


@quarantine.command(cls=SectionedCommand, short_help="One document in quarantine.")
@click.argument("index")
@click.argument("id")
@options.config
@as_json
@logged
def show(index: str, id: str, config: str | None, json: bool) -> int:
    """Show why the document ID of INDEX is in quarantine, for each sink that rejected it."""
    found = _look(config, index, [id])
    if json:
        print_json([asdict(one) for one in found])
    for one in found if not json else ():
        click.echo(f"Sink {visible(one.sink)} rejects document {visible(one.id)} of index {visible(one.index)}:")
        click.echo(f"  {visible(one.reason)}")
        click.echo(f"  since {one.since}, last at version {one.version}")
    if not found:
        click.echo(f"Document {visible(id)} of index {visible(index)} is not in quarantine.", err=True)
        return ACT
    return 0


@quarantine.command(cls=SectionedCommand, short_help="Build and send documents again.")
@click.argument("index", required=False)
@_which
@options.config
@as_json
@logged
def replay(index: str | None, ids: tuple[str, ...], config: str | None, json: bool) -> int:
    """Build documents in quarantine as they are now, and send them to the sinks that rejected them.

    All of them, those of INDEX, or those of INDEX with these IDs. What is taken leaves quarantine. Needs a running
    deployment.
    """
    from penstock.app import quarantine as parts

    folder = _folder(config, index)
    told = {"taken": 0, "rejected": 0}
    skipped: dict[str, str] = {}
    for name, some in _portions(list(parts.look(folder, index or "", ids)), parts.AT_ONCE):
        try:
            outcomes = {} if name in skipped else parts.replay(folder, name, some)
        except ConfigError as error:
            if index:
                raise
            skipped[name], outcomes = error.message, {}
        for outcome in told:
            told[outcome] += outcomes.get(outcome, 0)
        skipped |= {
            f"{name} in {sink}": f"{name} in {sink}: {why}" for sink, why in outcomes.get("skipped", {}).items()
        }
    if json:
        print_json({**told, "skipped": skipped})
    else:
        click.echo(f"{told['taken']} taken, {told['rejected']} rejected again.")
        for reason in skipped.values():
            click.echo(f"Left out: {visible(reason)}.", err=True)
    return ACT if told["rejected"] or skipped else 0


@quarantine.command(cls=SectionedCommand, short_help="Forget documents in quarantine.")
@click.argument("index", required=False)
@_which
@yes
@options.config
@as_json
@logged
def drop(index: str | None, ids: tuple[str, ...], yes: bool, config: str | None, json: bool) -> None:
    """Forget documents in quarantine: all of them, those of INDEX, or those of INDEX with these IDs.

    The sinks keep what they had of them until the next change of the row; penstock reconcile finds the difference.
    """
    from penstock.app import quarantine as parts

    folder = _folder(config, index)
    count = sum(1 for _ in parts.look(folder, index or "", ids))
    if count:
        confirm(f"Forget {count} {'entry' if count == 1 else 'entries'} of the quarantine?", yes=yes, as_json=json)
        count = parts.drop(folder, index or "", ids)
    if json:
        print_json({"dropped": count})
    else:
        click.echo(f"{count} forgotten.")


def _folder(config: str | None, index: str | None) -> Path:
    """The deployment's state folder; the index has to be one of its, or one of the quarantine's."""
    from penstock.app import quarantine as parts
    from penstock.config.file import read_deployment
    from penstock.ops.control import NothingRunsError

    deployment = read_deployment(config)
    folder = Path(deployment.locate(deployment.state))
    if index and deployment.index(index) is None:
        with suppress(NothingRunsError):
            if any(True for _ in parts.look(folder, index)):
                return folder
    chosen(deployment, [index] if index else [])
    return folder


def _look(config: str | None, index: str | None, ids: Sequence[str]) -> list[Entry]:
    from penstock.app import quarantine as parts

    return list(parts.look(_folder(config, index), index or "", ids))


def _portions(entries: Sequence[Entry], size: int) -> Iterator[tuple[str, list[Any]]]:
    """The ids of each index, so many at a time."""
    for index in dict.fromkeys(one.index for one in entries):
        ids = list(dict.fromkeys(one.id for one in entries if one.index == index))
        for at in range(0, len(ids), size):
            yield index, ids[at : at + size]
