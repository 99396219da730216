"""`penstock search`: full-text search in a local sink.

Guarantees: reads the sink's file and nothing else, beside a running `penstock run` or without one; with --json a
document's digits and texts are exactly those of the sink. Deliberately not: searching in a search engine, which has an
interface of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from penstock.cli import options
from penstock.cli.check import chosen
from penstock.cli.options import SectionedCommand, as_json, logged, option
from penstock.errors import ConfigError
from penstock.model import visible

if TYPE_CHECKING:
    from penstock.config.deployment import Deployment
    from penstock.sinks.local_search import Hit


@click.command(cls=SectionedCommand, short_help="Search in a local sink.")
@click.argument("index", metavar="INDEX")
@click.argument("query", nargs=-1, required=True, metavar="QUERY")
@option(
    "--limit",
    only="search",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="At most this many documents.",
)
@option(
    "--sink", only="search", metavar="NAME",
    help="Which sink, where there are several of type local. Without it: the first.",
)  # fmt: skip
@options.config
@as_json
@logged
def search(index: str, query: tuple[str, ...], limit: int, sink: str | None, config: str | None, json: bool) -> None:
    """Show the documents of INDEX that match QUERY best: their ids, and the text in which the words were found.

    All words must occur; case and accents do not matter. `"a phrase"` finds the words in that order, `lov*` words that
    begin so, `title:ada` the word in one field, `ada OR grace` either word, `ada -grace` the first without the second.
    Quote QUERY for the shell: penstock search users 'ada "analytical engine"'
    """
    from penstock.config.file import read_deployment
    from penstock.sinks.local_search import LocalReader

    deployment = read_deployment(config)
    chosen(deployment, [index])
    with LocalReader(_path(deployment, sink)) as reader:
        hits = reader.search(deployment.prefix + index, " ".join(query), limit)
    if json:
        click.echo(f"[{','.join(map(_as_json, hits))}]")
        return
    for line in _lines(hits):
        click.echo(line)
    if not hits:
        click.echo(f"No document of {index} fits.", err=True)


def _path(deployment: Deployment, name: str | None) -> str:
    from penstock import app
    from penstock.config.deployment import LocalSink

    found = {sink.name: sink for sink in deployment.sinks if isinstance(sink, LocalSink)}
    if not found:
        raise ConfigError(
            "the deployment has no sink of type local", hint='Add one: [sinks.search] with type = "local".'
        )
    if name is not None and name not in found:
        raise ConfigError(f"there is no sink {name!r} of type local", hint=f"There are: {', '.join(found)}.")
    return app.local_path(deployment, found[name] if name else next(iter(found.values())))


def _lines(hits: list[Hit]) -> Iterator[str]:
    width = max((len(visible(hit.id)) for hit in hits), default=0)
    for hit in hits:
        yield f"{visible(hit.id).ljust(width)}  {_shown(hit.excerpt)}"


def _shown(excerpt: str) -> str:
    """The excerpt on one line, with the words that were found in bold where the terminal can."""
    from penstock.sinks.local_search import MARKS

    parts = re.split("|".join(MARKS), " ".join(excerpt.split()))
    # A mark opens or closes: every second part was found.
    return "".join(click.style(visible(part), bold=True) if at % 2 else visible(part) for at, part in enumerate(parts))


def _as_json(hit: Hit) -> str:
    from penstock.sinks.local_search import MARKS

    plain = re.sub("|".join(MARKS), "", hit.excerpt)
    fields = json.dumps({"id": hit.id, "score": round(hit.score, 6), "excerpt": plain})
    return f'{fields[:-1]}, "document": {_ascii(hit.document.decode(errors="replace"))}}}'


def _ascii(document: str) -> str:
    """The same JSON in ASCII and on one line: other letters are inside strings only, line breaks outside only."""
    escaped = re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], document)
    return escaped.replace("\r", " ").replace("\n", " ")
