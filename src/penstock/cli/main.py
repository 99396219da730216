"""`penstock`: the command line.

Guarantees: every command ends with one of the exit codes of `failure`, and never with a traceback. Commands load what
they need when they run, so that --help and shell completion answer at once.
"""

from __future__ import annotations

import itertools
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence

import click

from penstock import __version__
from penstock.cli.check import check
from penstock.cli.coverage import coverage
from penstock.cli.demo import demo
from penstock.cli.doctor import doctor
from penstock.cli.explain import explain
from penstock.cli.failure import EXIT_CODES, INTERRUPTED, tell
from penstock.cli.follow import follow
from penstock.cli.init import init
from penstock.cli.lock import build, lock
from penstock.cli.lookup import lookup
from penstock.cli.options import show_help
from penstock.cli.quarantine import quarantine
from penstock.cli.reconcile import reconcile
from penstock.cli.reindex import reindex
from penstock.cli.run import run as run_command
from penstock.cli.sample import sample
from penstock.cli.schema import schema
from penstock.cli.search import search
from penstock.cli.slots import slots
from penstock.cli.status import status
from penstock.cli.tail import tail
from penstock.cli.teardown import teardown


def _epilog() -> str:
    variables = (
        "Every flag can be given as a variable: --ssl-mode as PENSTOCK_SSL_MODE, tail --limit as PENSTOCK_TAIL_LIMIT"
        " (search has another --limit). The connection may also come from DATABASE_URL, PG* variables and a"
        " service file, as for psql."
    )
    wrap = textwrap.TextWrapper(width=78, initial_indent="  ", subsequent_indent=" " * 7)
    codes = [wrap.fill(f"{code:<3}  {meaning}") for code, meaning in EXIT_CODES.items()]
    return "\n".join([variables, "", "\b", "Exit codes:", *codes])


GROUPS: Mapping[str, tuple[click.Command, ...]] = {
    "Set up": (init, check, lock, build, schema, doctor),
    "Run": (run_command, status, reindex, reconcile, quarantine, teardown),
    "Look": (search, sample, explain),
    "Tables and slots": (tail, follow, lookup, coverage, slots),
    "Try": (demo,),
}
"""Every command, by what somebody wants who looks for it; each is added by standing here."""


class _Grouped(click.Group):
    """A group whose help shows its commands by what they are for, in the order of a deployment's life."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.commands))
        with formatter.section("Commands"):
            for heading, commands in GROUPS.items():
                with formatter.section(heading):
                    rows = [(str(one.name).ljust(width), one.get_short_help_str(limit=100)) for one in commands]
                    formatter.write_dl(rows)


@click.group(
    cls=_Grouped,
    epilog=_epilog(),
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="penstock %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Postgres row changes on Spark: documents that stay current, copies of tables, and the slots behind them."""
    show_help(context)


for command in itertools.chain.from_iterable(GROUPS.values()):
    cli.add_command(command)


def main() -> None:
    """Run the command line and end the process."""
    if "_PENSTOCK_COMPLETE" in os.environ:
        cli.main(prog_name="penstock")
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _give_up_stdout()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and give its exit code; whatever goes wrong is told on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal of another encoding is no reason to stop
    try:
        with cli.make_context("penstock", list(arguments), color=_color()) as context:
            return int(cli.invoke(context) or 0)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return 0
    except Exception as error:  # noqa: BLE001 - the last handler: no command ends with a traceback
        with click.Context(cli, color=_color()):
            return tell(error, as_json=_wants_json(arguments))


def _color() -> bool | None:
    """No colour where NO_COLOR asks for none; else wherever a terminal shows it."""
    return False if os.environ.get("NO_COLOR") else None


def _wants_json(arguments: Sequence[str]) -> bool:
    """Read from the raw words, because what failed may be the reading of them."""
    before = list(arguments)[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in before or os.environ.get("PENSTOCK_JSON", "").lower() in ("1", "true", "t", "yes", "y", "on")


def _give_up_stdout() -> None:
    """Nobody reads our output any more: let the flush at the interpreter's end go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
