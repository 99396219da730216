"""`penstock demo`: three indexes that follow a busy shop, without a server of one's own.

Guarantees: it ends by itself after --seconds, or in good order at Ctrl-C, and then compares every document with SQL
written by hand; nothing is left. Exit code 1 says that an index is not what the tables say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.ending import Ending
from penstock.cli.failure import ACT
from penstock.cli.options import Number, SectionedCommand, as_json, logged, option
from penstock.cli.output import print_json, print_table
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.demo.run import Outcome


@click.command(cls=SectionedCommand, short_help="Search indexes that follow an embedded Postgres, live.")
@option(
    "--seconds", type=Number(min=0), also_envvar="DEMO_SECONDS", metavar="N",
    help="End after N seconds of changes (also DEMO_SECONDS). Without it: at Ctrl-C.",
)  # fmt: skip
@option(
    "--rate", type=Number(min=1), default=100.0, show_default=True, metavar="N",
    help="Transactions a second, about.",
)  # fmt: skip
@option("--seed", type=int, default=0, show_default=True, help="The same seed plans the same transactions.")
@as_json
@logged
def demo(seconds: float | None, rate: float, seed: int, json: bool) -> int:
    """Start an embedded Postgres with a busy shop, and keep three search indexes of it current.

    It is `penstock run` on Spark, with a deployment that comes with Penstock. At the end every document is compared
    with SQL that was written by hand. Its page opens in a browser where there is a display; a link into it is printed.
    Needs the demo extra: pip install "penstock[demo]".
    """
    from rich.console import Console

    from penstock.demo.run import Request, run

    with Ending() as ending:
        console = Console()
        request = Request(seconds, rate, seed, json, console.is_terminal and not json, ending.requested)
        try:
            outcome = run(request, console)
        except PenstockError:
            if not ending.requested.is_set():
                raise
            return ending.exit_code  # Ctrl-C reached the programs that make the server, too
    if outcome.is_early:
        click.echo("Ended before anything was written; nothing is left.", err=True)
        return ending.exit_code
    print_json(_fields(outcome)) if json else _tell(outcome)
    return ACT if outcome.faults else 0


def _fields(outcome: Outcome) -> dict[str, Any]:
    from penstock.demo.workload import by_deed

    figures = outcome.figures
    return {
        "equal": not outcome.faults,
        "faults": outcome.faults,
        "operations": {str(deed): count for deed, count in by_deed(figures.deeds).items()},
        "indexes": {
            index: {"documents": count, **{name: figures.indexes[index][name] for name in _COLUMNS}}
            for index, count in outcome.documents.items()
        },
        "changes": figures.changes,
        "latency_ms_p50": figures.latency_ms_p50,
    }


_COLUMNS = ("seeded", "written", "deleted")


def _tell(outcome: Outcome) -> None:
    from penstock.demo.trade import TABLES, Deed
    from penstock.demo.workload import by_deed

    figures = outcome.figures
    rows = [[name, *(str(figures.deeds[name, deed]) for deed in Deed)] for name in TABLES]
    totals = ["all", *map(str, by_deed(figures.deeds).values())]
    print_table(["rows of", *(f"{deed}s" for deed in Deed)], [*rows, totals])
    click.echo()
    indexes = [
        [index, str(count), *(str(figures.indexes[index][name]) for name in _COLUMNS)]
        for index, count in outcome.documents.items()
    ]
    print_table(["index", "documents", *_COLUMNS], indexes)
    if figures.latency_ms_p50 is not None:
        click.echo(f"\nFrom commit to searchable: {figures.latency_ms_p50:.0f} ms (median).")
    for fault in outcome.faults:
        click.echo(f"{click.style('Different:', fg='red')} {fault}")
    if not outcome.faults:
        told = f"all {sum(outcome.documents.values())} documents are what SQL written by hand gives"
        click.echo(f"{click.style('Equal:', fg='green')} {told}.")
