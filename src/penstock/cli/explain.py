"""`penstock explain`: where one document comes from, and what each sink has of it.

Guarantees: keys, counts and names of fields; values of rows only with --values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from penstock.cli import options
from penstock.cli.check import chosen
from penstock.cli.failure import ACT
from penstock.cli.options import SectionedCommand, as_json, logged, option
from penstock.cli.output import print_json, print_table
from penstock.model import visible


@click.command(cls=SectionedCommand, short_help="Where a document comes from, and what sinks have of it.")
@click.argument("index")
@click.argument("key", nargs=-1, required=True, metavar="KEY...")
@option("--values", is_flag=True, help="Show the document itself, as the database and each sink have it.")
@options.config
@as_json
@logged
def explain(index: str, key: tuple[str, ...], values: bool, config: str | None, json: bool) -> int:
    """Show the rows that the document KEY of INDEX is made of, the tables whose changes touch it, and what sinks hold.

    KEY is the primary key of its root row, one word for each column, or the document's id, in which the parts are
    joined by |. What differs from the database now is named by its fields.
    """
    from penstock.app.explain import explain as find
    from penstock.config.file import read_deployment
    from penstock.document.ids import document_id

    deployment = read_deployment(config)
    chosen(deployment, [index])
    told = find(deployment, index, key[0] if len(key) == 1 else document_id(key), values=values)
    if json:
        print_json(told)
    else:
        _show(told)
    return 0 if told["exists"] or any(one["version"] for one in told["sinks"]) else ACT


def _show(told: Mapping[str, Any]) -> None:
    word = "" if told["exists"] else ", which the database has no document for"
    click.echo(click.style(f"Document {visible(told['id'])} of index {visible(told['index'])}", bold=True) + word)
    click.echo()
    print_table(["rows of", "as", "how many", "keys"], [_row(one) for one in told["rows"]])
    click.echo()
    touching = [[one["table"], one["role"], ", ".join(one["columns"])] for one in told["touched_by"]]
    print_table(["touched by changes of", "as", "traced by"], touching)
    if told["sinks"]:
        click.echo()
        print_table(["sink", "version", "content", "fields that differ"], [_sink(one) for one in told["sinks"]])
    for one in told["quarantine"]:
        click.echo(f"In quarantine since {one['since']}: sink {visible(one['sink'])}: {visible(one['reason'])}")
    for name, document in _documents(told).items():
        click.echo(f"\n{visible(name)}: {visible(document or 'nothing')}")


def _row(one: Mapping[str, Any]) -> list[str]:
    keys = ", ".join("|".join(key) for key in one["keys"])
    return [one["table"], one["role"], str(one["count"]), keys + (", …" if one["count"] > len(one["keys"]) else "")]


def _sink(one: Mapping[str, Any]) -> list[str]:
    return [one["sink"], one["version"] or "", one["state"], ", ".join(one["differs"])]


def _documents(told: Mapping[str, Any]) -> dict[str, str | None]:
    if "document" not in told:
        return {}
    return {"The database": told["document"]} | {
        f"Sink {one['sink']}": one.get("document") for one in told["sinks"] if "document" in one
    }
