"""`penstock tail`: changes as they are committed.

Guarantees: a change is printed before it is confirmed, and confirmed only where --confirm asks for it; without a slot
name, a temporary slot is used and nothing stays on the server; Ctrl-C, SIGTERM and a closed pipe end it in good
order. Deliberately not: making a lasting slot, or a publication.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from penstock.cli import options
from penstock.cli.ending import Ending
from penstock.cli.lines import json_line, text_line
from penstock.cli.options import SectionedCommand, as_json, connected, notify, option, table_names
from penstock.errors import SlotMissingError
from penstock.model import QualifiedTable, ReplicationConfig

if TYPE_CHECKING:
    from penstock.postgres.capture import ChangeRun, WalChangeCapture
    from penstock.postgres.settings import ConnectionSettings


class TailOptions(TypedDict):
    """What a user may say about a tail."""

    slot: str | None
    publication: str
    confirm: bool
    rows: bool
    limit: int | None
    wait: float
    json: bool


@click.command(cls=SectionedCommand, short_help="Changes as they are committed.")
@click.argument("tables", nargs=-1, callback=table_names, metavar="[TABLE]...")
@option(
    "--slot", only="tail", metavar="NAME",
    help="Read this slot. Without it: a temporary one, from now on, gone at the end.",
)  # fmt: skip
@options.publication
@option("--confirm", is_flag=True, help="Confirm what was printed, so the slot advances; else it keeps everything.")
@option("--rows", is_flag=True, help="Show every column. Without it: those that identify a row, and foreign keys.")
@option("--limit", only="tail", type=click.IntRange(min=1), metavar="N", help="End after N changes.")
@option(
    "--wait", type=options.Number(min=0), default=10.0, show_default=True, metavar="SECONDS",
    help="How long to wait for a slot that somebody else reads.",
)  # fmt: skip
@as_json
@connected
def tail(settings: ConnectionSettings, tables: set[QualifiedTable], **said: Unpack[TailOptions]) -> int:
    """Print changes as they are committed: one line each, or with --json one object each.

    With tables, only theirs, and each must be published whole. The publication must be there; penstock coverage
    shows how to make it. With --slot and --confirm, changes of tables that are not shown are confirmed as well.
    """
    from penstock import app

    config = ReplicationConfig(
        slot=said["slot"] or app.temporary_slot_name("tail"),
        publication=said["publication"],
        temporary_slot=said["slot"] is None,
        slot_wait_s=said["wait"],
    )
    if said["slot"]:
        _look_at_slot(settings, said["slot"])
    if said["slot"] and not said["confirm"]:
        text = f"Slot {said['slot']} is not moved: what is shown stays in it (--confirm would move it)."
        notify(text, as_json=said["json"])
    # A temporary slot is nobody else's; unconfirmed, it would hold WAL back for as long as somebody watches.
    said["confirm"] |= config.temporary_slot
    capture = app.build_capture(settings, config)
    if tables:
        capture = capture.with_publication_management(tables, manage=False)
    try:
        return _print_changes(capture, _with_partitions(settings, tables), said)
    except SlotMissingError as error:
        if not config.temporary_slot:
            raise
        raise SlotMissingError(
            "the connection broke off, and the temporary slot went with it: changes since then were not seen",
            hint="Start again; or make a slot that stays (penstock slots create NAME) and read it with --slot NAME.",
            sqlstate=error.sqlstate,
        ) from None


def _look_at_slot(settings: ConnectionSettings, name: str) -> None:
    """A capture would make the slot where there is none; whoever only wants to look does not expect that."""
    from penstock.postgres import slot
    from penstock.postgres.connection import open_sql

    with open_sql(settings) as connection:
        found = slot.inspect(connection, name)
    if found is None:
        raise slot.missing(name)
    slot.verify(found, settings.database)


def _with_partitions(settings: ConnectionSettings, tables: set[QualifiedTable]) -> frozenset[QualifiedTable]:
    """The tables, and the names under which the rows of partitioned ones may come."""
    from penstock.postgres import catalog
    from penstock.postgres.connection import open_sql

    if not tables:
        return frozenset()
    with open_sql(settings) as connection:
        found = catalog.read_tables(connection, tables)
    return frozenset(tables).union(*(info.partitions for info in found.values()))


def _print_changes(capture: WalChangeCapture, tables: frozenset[QualifiedTable], said: TailOptions) -> int:
    left = said["limit"]
    with Ending() as ending, closing(capture.runs(whole=said["rows"])) as stream:
        ending.when_requested(stream.close)
        for run in stream:
            left = _print_run(run, tables, left, said)
            if left == 0 or ending.requested.is_set():
                break
        return ending.exit_code


def _print_run(run: ChangeRun, tables: frozenset[QualifiedTable], left: int | None, said: TailOptions) -> int | None:
    """Print what is asked for, all of it at once, then confirm it; how many changes are left to print."""
    line = json_line if said["json"] else text_line
    lines: list[str] = []
    passed = 0
    for change, committed_at in zip(run.changes, run.committed_at, strict=True):
        if left is not None and len(lines) == left:
            break
        passed += 1
        if not tables or change.table in tables:
            lines.append(line(change, committed_at))
    if lines:
        click.echo("\n".join(lines))  # and flush: a reader of a pipe sees a change when it happens
    if said["confirm"]:
        for change in run.changes[:passed]:
            change.ack.confirm()
    return None if left is None else left - len(lines)
