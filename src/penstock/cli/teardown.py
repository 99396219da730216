"""`penstock teardown`: show all that a deployment has left behind, ask, and remove it.

Guarantees: what would go is shown before it is asked for; without a yes nothing is changed; a second time finds nothing
and is content.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import options
from penstock.cli.options import SectionedCommand, as_json, confirm, logged, yes
from penstock.cli.output import print_json, size_of
from penstock.model import visible

if TYPE_CHECKING:
    from penstock.app.teardown import Inventory


@click.command(cls=SectionedCommand, short_help="Remove slot, publication, indexes and state.")
@options.config
@yes
@as_json
@logged
def teardown(config: str | None, yes: bool, json: bool) -> None:
    """Show the slot, the publication, the indexes in every sink and the state of a deployment; then remove them.

    It asks first, and refuses while a run is active, wherever. A slot of another database stays, and so does a
    publication that the deployment does not manage, or that others may read; replica identities stay, too: what they
    were before is not known.
    """
    from penstock.app.teardown import taking_down
    from penstock.config.file import read_deployment

    with taking_down(read_deployment(config)) as (found, remove):
        if not json:
            for line in _lines(found):
                click.echo(line)
        if not found.is_empty:
            confirm("Remove all of this for good?", yes=yes, as_json=json)
            remove()
    if json:
        print_json({**_fields(found), "removed": not found.is_empty})
    elif not found.is_empty:
        click.echo("All of it is removed.")


def _lines(found: Inventory) -> Iterator[str]:
    if found.is_empty:
        yield "There is nothing to take down."
    if found.slot:
        yield f"slot         {found.slot.name}, which holds {size_of(found.slot.retained_bytes)} of WAL"
    if found.publication:
        yield f"publication  {visible(found.publication)}"
    for held in found.indexes:
        for what in held.what:
            yield f"index        {visible(held.name)} in sink {held.sink}: {visible(what)}"
    if found.state:
        yield f"state        {visible(str(found.state))}"
    for one in found.stays:
        how = f" To drop it: {visible(one.sql)}" if one.sql else ""
        yield f"{one.what.capitalize()} {visible(one.name)} stays: {visible(one.why)}.{how}"


def _fields(found: Inventory) -> dict[str, Any]:
    return {
        "slot": found.slot.name if found.slot else None,
        "publication": found.publication,
        "indexes": [{"sink": one.sink, "name": one.name, "holds": one.what} for one in found.indexes],
        "state": str(found.state) if found.state else None,
        "stays": {
            **dict.fromkeys(("slot", "publication")),
            **{one.what: one.name for one in found.stays},
            "why": {one.what: one.why for one in found.stays},
            "sql": [one.sql for one in found.stays if one.sql],
        },
    }
