"""`penstock reindex`: have a running deployment build an index anew, and watch it do so.

Guarantees: whoever stops watching stops nothing: the deployment goes on, also after a restart. The exit code is 0 when
readers have changed over.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import options
from penstock.cli.options import SectionedCommand, as_json, logged, option
from penstock.cli.output import print_json
from penstock.errors import OperatorError

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_S = 0.5


@click.command(cls=SectionedCommand, short_help="Build an index anew beside the one that readers see.")
@click.argument("index")
@option("--rollback", is_flag=True, help="Go back to the generation before the last reindex, brought up to date first.")
@option("--no-wait", is_flag=True, help="Ask for it, and do not wait until it is done.")
@options.config
@as_json
@logged
def reindex(index: str, rollback: bool, no_wait: bool, config: str | None, json: bool) -> None:
    """Have the running deployment build INDEX anew, beside the generation that readers see.

    Both are kept current meanwhile. When the new one is complete, and holds what the database holds, readers see it
    from one moment to the next. The old one is kept until the next reindex; --rollback goes back to it.
    """
    from penstock.config.file import read_deployment
    from penstock.ops.control import ask

    deployment = read_deployment(config)
    state = Path(deployment.locate(deployment.state))
    ask(state, "reindex", index=index, rollback=rollback)
    if no_wait:
        told = ask(state, "status")["indexes"][index]
    else:
        with _progress(index, quiet=json) as tell:
            told = _await(state, index, tell)
    if json:
        print_json({"index": index, "rollback": rollback, "done": not no_wait, "documents": told["seeded"]})
    elif no_wait:
        click.echo(f"Index {index} is being built anew: penstock status shows how far it is.")
    else:
        click.echo(f"Readers of {index} see the {'former' if rollback else 'new'} generation.")


def _await(state: Path, index: str, tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    from penstock.ops.control import ask

    while True:
        told: dict[str, Any] = ask(state, "status")["indexes"][index]
        if told["rebuild_error"] or told["phase"] == "stopped":
            raise OperatorError(f"index {index} was not built anew: {told['rebuild_error'] or told['reason']}")
        if not told["rebuild"]:
            return told
        tell(told)
        time.sleep(_POLL_S)


@contextmanager
def _progress(index: str, *, quiet: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Say how far it is, where a person looks."""
    if quiet or not sys.stderr.isatty():
        yield lambda told: None
        return
    from rich.console import Console
    from rich.markup import escape

    name = escape(index)
    with Console(stderr=True).status(f"{name} …") as status:
        yield lambda told: status.update(f"{name}: {escape(_how_far(told))} …")


def _how_far(told: dict[str, Any]) -> str:
    if told["phase"] != "seeding" or told["rebuild"] == "being verified":
        return str(told["rebuild"])
    return f"{told['seeded']} documents, {told['chunks_done']} of {told['chunks']} ranges"
