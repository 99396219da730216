"""`penstock slots`: see, make, move and drop replication slots.

Guarantees: what cannot be taken back (advance, drop) is asked for first; a slot that is being made can be given up, and
is then not there; whoever keeps the server from making it is named after three seconds. Deliberately not: temporary
slots, which would vanish with the command's own connection.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import options
from penstock.cli.ending import Ending
from penstock.cli.options import (
    SectionedCommand,
    as_json,
    confirm,
    connected,
    lsn,
    new_slot_name,
    notify,
    option,
    show_help,
    yes,
)
from penstock.cli.output import print_json, print_table, size_of
from penstock.errors import PenstockError
from penstock.model import Lsn

if TYPE_CHECKING:
    from penstock.postgres.settings import ConnectionSettings
    from penstock.postgres.slot import SlotInfo


@click.group(invoke_without_command=True)
@click.pass_context
def slots(context: click.Context) -> None:
    """See, make, move and drop replication slots."""
    show_help(context)


@slots.command("list", cls=SectionedCommand, short_help="Every slot, and the WAL it holds back.")
@as_json
@connected
def list_(settings: ConnectionSettings, json: bool) -> None:
    """Show every slot of the server, and how much WAL it holds back.

    A slot that the named database cannot be read through (of another database or plugin, physical, lost) is marked.
    """
    from penstock.postgres import slot
    from penstock.postgres.connection import open_sql

    with open_sql(settings) as connection:
        found = slot.show(connection)
    if json:
        print_json([_fields(one, settings.database) for one in found])
        return
    if not found:
        click.echo("The server has no replication slots.")
        return
    rows = [
        [
            one.name,
            one.database or "",
            one.plugin or one.kind,
            f"pid {one.active_pid}" if one.active else "no",
            one.wal_status or "",
            str(one.confirmed_flush_lsn or ""),
            size_of(one.lag_bytes),
            size_of(one.retained_bytes),
            _foreign(one, settings.database),
        ]
        for one in found
    ]
    head = ["slot", "database", "plugin", "active", "wal status", "confirmed", "lag", "retained", "note"]
    print_table(head, rows, dim=[bool(row[-1]) for row in rows])


def _foreign(slot: SlotInfo, database: str) -> str:
    """Why the slot is not one to read this database through; empty where it is."""
    if slot.kind != "logical":
        return "physical"
    if slot.plugin != "pgoutput":
        return "another plugin"
    if slot.database != database:
        return "another database"
    return "lost" if slot.lost else ""


def _fields(slot: SlotInfo, database: str) -> dict[str, Any]:
    return {**dataclasses.asdict(slot), "active": slot.active, "lost": slot.lost, "note": _foreign(slot, database)}


@slots.command(cls=SectionedCommand, short_help="Make a slot.")
@click.argument("name", callback=new_slot_name)
@option("--failover", is_flag=True, help="Keep it on standbys too, so that it survives a failover (Postgres 17).")
@options.publication_if_any
@as_json
@connected
def create(settings: ConnectionSettings, name: str, failover: bool, publication: str | None, json: bool) -> int:
    """Make the slot NAME. From then on the server keeps WAL for it: read it, or drop it.

    A publication must be there before the slot that it is read from: with --publication, one that does not exist is
    refused. The server waits for every transaction that is running; after three seconds those in the way are shown.
    Ctrl-C gives up, and leaves no slot.
    """
    from penstock.postgres import slot
    from penstock.postgres.connection import open_sql

    def show_who_blocks() -> None:
        with open_sql(settings) as second:
            notify(slot.describe_waiting(slot.waiting_for(second)), as_json=json)

    with Ending() as ending, open_sql(settings) as connection:
        _look_for_publication(connection, publication, json)
        try:
            at = slot.create(connection, name, failover=failover, stop=ending.requested, on_wait=show_who_blocks)
        except PenstockError:
            if not ending.requested.is_set():
                raise
            notify(f"Given up: slot {name} was not made.", as_json=json)
            return ending.exit_code
    if json:
        print_json({"slot": name, "database": settings.database, "consistent_point": at, "failover": failover})
    else:
        click.echo(f"Slot {name} holds every change of database {settings.database} committed after {at}.")
    return 0


def _look_for_publication(connection: Any, name: str | None, json: bool) -> None:
    from penstock.postgres import publication

    if name:
        publication.require(connection, name)
    elif not publication.names(connection):
        notify(
            "Warning: the database has no publication. What is written before there is one cannot be read from the"
            " slot: make the publication first, then the slot.",
            as_json=json,
        )


@slots.command(cls=SectionedCommand, short_help="Move a slot forward: changes are skipped.")
@click.argument("name")
@click.argument("lsn", callback=lsn)
@yes
@as_json
@connected
def advance(settings: ConnectionSettings, name: str, lsn: Lsn, yes: bool, json: bool) -> None:
    """Move the slot NAME forward to LSN (as in 16/B374D848): changes before it are skipped for good."""
    from penstock.postgres import slot
    from penstock.postgres.connection import open_sql

    with open_sql(settings) as connection:
        found = slot.inspect(connection, name)
        if found is None:
            raise slot.missing(name)
        slot.verify(found, settings.database)
        stands = found.confirmed_flush_lsn
        confirm(f"Slot {name} stands at {stands}. Skip every change in it up to {lsn}?", yes=yes, as_json=json)
        stands = slot.advance(connection, name, lsn)
    if json:
        print_json({"slot": name, "confirmed_flush_lsn": stands})
    else:
        reached = "" if stands >= lsn else f" (the WAL ends before {lsn})"
        click.echo(f"Slot {name} stands at {stands}{reached}.")


@slots.command(cls=SectionedCommand, short_help="Drop a slot.")
@click.argument("name")
@yes
@as_json
@connected
def drop(settings: ConnectionSettings, name: str, yes: bool, json: bool) -> None:
    """Drop the slot NAME: the changes in it are gone for its reader. A slot that is not there counts as dropped."""
    from penstock.postgres import slot
    from penstock.postgres.connection import open_sql

    with open_sql(settings) as connection:
        confirm(f"Drop slot {name} and the changes that wait in it?", yes=yes, as_json=json)
        dropped = slot.drop(connection, name)
    if json:
        print_json({"slot": name, "dropped": dropped})
    else:
        click.echo(f"Slot {name} is dropped." if dropped else f"There is no slot {name}.")


@slots.command(cls=SectionedCommand, short_help="How far a slot is behind.")
@click.argument("name")
@as_json
@connected
def lag(settings: ConnectionSettings, name: str, json: bool) -> None:
    """Show how far the slot NAME is behind: WAL that its reader has not confirmed, and WAL kept for it."""
    from penstock.postgres import slot
    from penstock.postgres.connection import open_sql

    with open_sql(settings) as connection:
        found = slot.inspect(connection, name)
    if found is None:
        raise slot.missing(name)
    if json:
        print_json({"slot": name, "lag_bytes": found.lag_bytes, "retained_bytes": found.retained_bytes})
    else:
        behind, kept = size_of(found.lag_bytes), size_of(found.retained_bytes)
        click.echo(f"{name}: {behind} not confirmed (stands at {found.confirmed_flush_lsn}), {kept} of WAL kept")
