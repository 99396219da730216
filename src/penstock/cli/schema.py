"""`penstock schema`: the JSON Schemas of the two files, for editors that complete and check while one types.

Guarantees: what is printed comes from the tables that the files are read by, so that an editor and Penstock agree.
"""

from __future__ import annotations

import json as json_

import click

from penstock.cli.options import SectionedCommand, logged, show_help


@click.group(invoke_without_command=True, short_help="JSON Schemas of the two files, for editors.")
@click.pass_context
def schema(context: click.Context) -> None:
    """JSON Schemas of the two files, for editors."""
    show_help(context)


@schema.command(cls=SectionedCommand, short_help="JSON Schema of penstock.toml.")
@logged
def config() -> None:
    """Print the JSON Schema of penstock.toml."""
    from penstock.config.words import json_schema

    click.echo(json_.dumps(json_schema(), indent=2))


@schema.command(cls=SectionedCommand, short_help="JSON Schema of *.schema.yml files.")
@logged
def index() -> None:
    """Print the JSON Schema of a document's schema file (*.schema.yml)."""
    from penstock.document.reading_words import json_schema

    click.echo(json_.dumps(json_schema(), indent=2))
