"""`penstock reconcile`: what sinks hold, held against the database; printed, and mended if asked to.

Guarantees: a line a second says how far it is where a person looks; ends with 1 where something differs and was not
mended, and where nothing was compared because sinks are away. Ids are told, values of documents are not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import options
from penstock.cli.check import chosen
from penstock.cli.failure import ACT
from penstock.cli.options import SectionedCommand, as_json, logged, option
from penstock.cli.output import print_json, print_table
from penstock.errors import ConfigError, OperatorError
from penstock.model import visible

if TYPE_CHECKING:
    from penstock.app.reconcile import Course
    from penstock.config.deployment import Deployment

_POLL_S = 0.5


@click.command(cls=SectionedCommand, short_help="Compare the sinks with the database, and repair what differs.")
@click.argument("index", nargs=-1, metavar="[INDEX]...")
@option("--repair", is_flag=True, help="Mend what differs: documents are built anew and written.")
@options.config
@as_json
@logged
def reconcile(index: tuple[str, ...], repair: bool, config: str | None, json: bool) -> int:
    """Compare every document of INDEX (of every index) in every sink with the database.

    A running deployment does the work, and reports only what still differs once it has caught up. Where none runs,
    this command does it, and changes that still wait in the slot count as differences. If the slot is gone or has lost
    changes, --repair makes another one first: the next run goes on from there.
    """
    from penstock.config.file import read_deployment

    deployment = read_deployment(config)
    chosen(deployment, index)
    _require_enabled(deployment, index)
    told = _reconcile(deployment, index, repair, _teller(json))
    if json:
        print_json(told)
    else:
        _show(told)
    if told["error"]:
        raise OperatorError(told["error"])
    nobody_there = bool(told.get("away")) and not told["comparisons"]
    return ACT if nobody_there or any(one["left"] for one in told["comparisons"]) else 0


def _require_enabled(deployment: Deployment, indexes: Sequence[str]) -> None:
    enabled = {one.name for one in deployment.enabled}
    if idle := [name for name in indexes if name not in enabled]:
        raise ConfigError(
            f"index {idle[0]} is disabled in the deployment: nothing keeps it current, so there is nothing to compare",
            hint="Take enabled = false out: the next penstock run seeds it.",
        )


def _reconcile(deployment: Deployment, indexes: Sequence[str], repair: bool, tell: Callable[[Any], None]) -> Any:
    """By the running deployment; by ourselves where none runs."""
    from penstock.app.reconcile import alone
    from penstock.ops.control import NothingRunsError, ask

    folder = Path(deployment.locate(deployment.state))
    try:
        told = ask(folder, "reconcile", action="start", indexes=list(indexes), repair=repair)
    except NothingRunsError:

        def hear(course: Course) -> None:
            tell(course.told())

        return alone(deployment, indexes, repair=repair, tell=hear).told()
    while told["running"]:
        time.sleep(_POLL_S)
        told = ask(folder, "reconcile", action="state")
        tell(told)
    return told


def _teller(quiet: bool) -> Callable[[Mapping[str, Any]], None]:
    """Where a person looks, one line that changes."""
    if quiet or not sys.stderr.isatty():
        return lambda told: None

    def tell(told: Mapping[str, Any]) -> None:
        click.echo(f"\r\x1b[K{visible(told['index'])}: {told['done']} of {told['ranges']} ranges", err=True, nl=False)
        if not told["running"]:
            click.echo("\r\x1b[K", err=True, nl=False)

    return tell


def _show(told: Mapping[str, Any]) -> None:
    rows = [
        [one["index"], one["sink"], str(one["compared"]), *map(str, one["counts"].values()), _outcome(told, one)]
        for one in told["comparisons"]
    ]
    if rows:
        print_table(["index", "sink", "compared", "missing", "extra", "different", ""], rows)
    for line in _keys(told):
        click.echo(line)
    for what, why in told["skipped"].items():
        click.echo(f"{visible(what)} was not compared: {visible(why)}.")


def _outcome(told: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    if not one["differing"]:
        return "the same"
    if not told["repair"]:
        return "differs"
    left = {"rejected": "rejected (see penstock quarantine)", "newer": "newer in the sink than anything that was read"}
    words = [f"{one['repaired']} repaired", *(f"{one[name]} {word}" for name, word in left.items() if one[name])]
    return ", ".join(words)


def _keys(told: Mapping[str, Any]) -> Iterator[str]:
    for one in told["comparisons"]:
        for kind, ids in one["first"].items():
            if ids:
                more = one["counts"][kind] - len(ids)
                listed = ", ".join(map(visible, ids)) + (f" and {more} more" if more else "")
                yield f"{visible(one['index'])} in {visible(one['sink'])}, {kind}: {listed}"
