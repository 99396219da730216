"""`penstock demo`: see changes within seconds, without a server of one's own.

Guarantees: it ends by itself after --seconds, or in good order at Ctrl-C, and then proves that no change was lost;
nothing is left. Exit code 1 says that what was seen is not what the tables hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.ending import Ending
from penstock.cli.failure import ACT
from penstock.cli.options import SectionedCommand, as_json, logged, option
from penstock.cli.output import print_json, print_table
from penstock.errors import PenstockError
from penstock.model import Op

if TYPE_CHECKING:
    from penstock.demo.run import Outcome


@click.command(cls=SectionedCommand, short_help="Changes of an embedded Postgres, live.")
@option(
    "--seconds", type=click.FloatRange(min=0), also_envvar="DEMO_SECONDS", metavar="N",
    help="End after N seconds (also DEMO_SECONDS). Without it: at Ctrl-C.",
)  # fmt: skip
@option(
    "--rate", type=click.FloatRange(min=1), default=100.0, show_default=True, metavar="N",
    help="Transactions a second, about.",
)  # fmt: skip
@option("--seed", type=int, default=0, show_default=True, help="The same seed plans the same transactions.")
@as_json
@logged
def demo(seconds: float | None, rate: float, seed: int, json: bool) -> int:
    """Start an embedded Postgres with a small busy shop, and show its changes live.

    At the end the changes, replayed, are compared with the tables. Needs the demo extra: pip install "penstock[demo]".
    """
    from rich.console import Console

    from penstock.demo.run import Request, run

    with Ending() as ending:
        request = Request(seconds, rate, seed, quiet=json, stop=ending.requested)
        try:
            outcome = run(request, Console())
        except PenstockError:
            if not ending.requested.is_set():
                raise
            return ending.exit_code  # Ctrl-C reached the programs that make the server, too
    print_json(_fields(outcome)) if json else _tell(outcome)
    return ACT if outcome.faults else 0


def _fields(outcome: Outcome) -> dict[str, Any]:
    counts = outcome.tally.counts
    return {
        "equal": not outcome.faults,
        "faults": outcome.faults,
        "changes": {str(op): count for op, count in outcome.tally.by_op().items()},
        "tables": {
            str(table): {"rows": rows, **{str(op): count for (one, op), count in counts.items() if one == table}}
            for table, rows in outcome.rows.items()
        },
        "latency_ms_p50": outcome.tally.latency_ms_p50(),
    }


def _tell(outcome: Outcome) -> None:
    counts, totals = outcome.tally.counts, outcome.tally.by_op()
    rows = [[str(table), *(str(counts[table, op]) for op in Op)] for table in outcome.rows]
    print_table(["table", *(f"{op}s" for op in Op)], [*rows, ["all", *map(str, totals.values())]])
    for fault in outcome.faults:
        click.echo(f"{click.style('Different:', fg='red')} {fault}")
    if not outcome.faults:
        held = ", ".join(f"{count} {table.name}" for table, count in outcome.rows.items())
        click.echo(f"{click.style('Equal:', fg='green')} the changes, replayed, are the tables, row by row ({held}).")
