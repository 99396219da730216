"""`penstock lookup`: a row of a copy that `penstock follow` keeps.

Guarantees: reads the copy's folder and nothing else, beside a running `penstock follow` or without one; a key is taken
as the type of its column. Deliberately not: asking the database.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.failure import ACT
from penstock.cli.follow import folder, view_folder
from penstock.cli.options import SectionedCommand, as_json, logged
from penstock.cli.output import print_json, text_of
from penstock.errors import ConfigError
from penstock.model import QualifiedTable, visible

if TYPE_CHECKING:
    from collections.abc import Mapping


def _table(context: click.Context, parameter: click.Parameter, value: str) -> QualifiedTable:
    try:
        return QualifiedTable.parse(value)
    except ConfigError as error:
        raise click.BadParameter(f"{error.message}. {error.hint}") from None


@click.command(cls=SectionedCommand, short_help="Show a row of a copy.")
@click.argument("table", callback=_table, metavar="TABLE")
@click.argument("key", nargs=-1, required=True, metavar="KEY...")
@folder
@as_json
@logged
def lookup(table: QualifiedTable, key: tuple[str, ...], path: str, json: bool) -> int:
    r"""Show the row of TABLE with this KEY from the copy that penstock follow keeps, and how old that copy is.

    A key of several columns is given as several words, in the order of its columns; \N stands for NULL. Each is read as
    the type of its column, written as Postgres does.
    """
    from penstock.reference.keys import parse_key, to_key
    from penstock.reference.store import read_saved

    saved = read_saved(view_folder(path, table))
    contents = saved.contents
    values = parse_key(key, contents.schema, contents.key)
    row = contents.get(to_key(values, contents.schema, contents.key))
    age_s = max(time.time() - saved.saved_at, 0.0)
    if json:
        print_json({"table": str(table), "row": row, "position": saved.checkpoint.position.lsn, "age_s": age_s})
    else:
        _show(row)
        found = "" if row else f"{table} has no such row. "
        click.echo(f"{found}The copy is {age_s:.1f} s old, at {saved.checkpoint.position.lsn}.", err=True)
    return 0 if row else ACT


def _show(row: Mapping[str, Any] | None) -> None:
    width = max((len(visible(name)) for name in row or ()), default=0)
    for name, value in (row or {}).items():
        shown = "NULL" if value is None else visible(text_of(value))
        click.echo(f"{visible(name).ljust(width)}  {shown}")
