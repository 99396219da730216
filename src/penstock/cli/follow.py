"""`penstock follow`: keep copies of tables current, in the foreground.

Guarantees: what is shown as saved is on disk, and a restart goes on from there; the first signal ends it in good order,
whatever is waited for, with everything saved; the slot stays, since it belongs to what was saved, and the end says so.
Deliberately not: dropping the slot.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import click

from penstock.cli import options
from penstock.cli.ending import Ending
from penstock.cli.options import SectionedCommand, as_json, connected, option, table_names
from penstock.cli.output import print_json, size_of
from penstock.errors import PASSING, ConfigError
from penstock.model import Lsn, QualifiedTable, ReplicationConfig, visible

if TYPE_CHECKING:
    from penstock.postgres.rows import Unrepresentable
    from penstock.postgres.settings import ConnectionSettings
    from penstock.reference import ReferenceCapture, ReferenceView

# A table is told of again when it has changed, and now and then when it has not.
_TELL_S, _TELL_AGAIN_S = 1.0, 30.0

folder = option(
    "--path", default=".penstock/reference", show_default=True, metavar="FOLDER",
    help="Where copies are kept, each in a folder of its own.",
)  # fmt: skip


class FollowOptions(TypedDict):
    """What a user may say about a copy."""

    slot: str
    publication: str
    path: str
    key: tuple[str, ...]
    unrepresentable: Unrepresentable
    refresh: str
    every: float
    fresh: bool
    once: bool
    json: bool


@click.command(cls=SectionedCommand, short_help="Keep copies of tables current.")
@click.argument("tables", nargs=-1, required=True, callback=table_names, metavar="TABLE...")
@option(
    "--slot", only="follow", default="penstock_reference", show_default=True, metavar="NAME",
    help="The slot; made if need be.",
)  # fmt: skip
@options.publication
@folder
@option(
    "--key", multiple=True, metavar="[TABLE=]COLUMNS",
    help="Columns that identify a row, separated by commas; name the table if there are several. Default: primary key.",
)  # fmt: skip
@option(
    "--unrepresentable", type=click.Choice(["error", "null"]), default="error", show_default=True,
    help="A value that its type cannot hold, an infinity, say: stop, or have it as null.",
)  # fmt: skip
@option(
    "--refresh", type=click.Choice(["changes", "snapshot", "periodic"]), default="changes", show_default=True,
    help="Follow changes; or read the table once, or periodically, without a slot or publication.",
)  # fmt: skip
@option(
    "--every", type=options.Number(min=0), default=60.0, show_default=True, metavar="SECONDS",
    help="How often to read the table with --refresh periodic.",
)  # fmt: skip
@option("--fresh", is_flag=True, help="Begin with a new snapshot, whatever was saved.")
@option("--once", is_flag=True, help="End when the copies hold what was committed before the start.")
@as_json
@connected
def follow(settings: ConnectionSettings, tables: set[QualifiedTable], **said: Unpack[FollowOptions]) -> int:
    """Keep a copy of each TABLE current, and show its size, its position and how far behind it is.

    The first time the table is read as a whole; from then on its changes are applied as they are committed. The copy is
    saved with its position every few seconds and at the end: the next start goes on from there. One process at a time
    reads a slot, so name all tables of a slot together. penstock lookup shows rows of a copy.
    """
    from penstock.reference.keeping import keep_current

    with Ending() as ending, ExitStack() as opened:
        stop = threading.Event()
        capture, views = _open(settings, sorted(tables), said, opened)

        def end() -> None:
            stop.set()
            for view in views:
                view.stop()
            if capture:
                capture.stop()

        ending.when_requested(end)
        teller = _Teller(capture, views, said["json"], said["once"], stop)
        keep_current(views, stop, after_each=teller.tell)
        was_there = capture is not None and capture.origin is not None
    if capture and not said["json"]:
        stays = f"Slot {said['slot']} holds WAL for the saved copies until the next run."
        nothing = "The server was not reached, and nothing was made there."
        click.echo(f"Stopped. {stays if was_there else nothing}", err=True)
    return ending.exit_code


def _open(
    settings: ConnectionSettings, tables: list[QualifiedTable], said: FollowOptions, opened: ExitStack
) -> tuple[ReferenceCapture | None, list[ReferenceView]]:
    from penstock import app
    from penstock.reference import ReferenceView

    keys = _keys(tables, said["key"])
    # One reading is what --once asks for, however young the copy is.
    refresh = "snapshot" if said["once"] and said["refresh"] == "periodic" else said["refresh"]
    config = ReplicationConfig(slot=said["slot"], publication=said["publication"])
    capture = app.reference_capture(settings, config) if said["refresh"] == "changes" else None
    if capture:
        opened.callback(capture.close)
    views = []
    for table in tables:
        source = app.reference_source(capture, settings, table, keys.get(table, ()), said["unrepresentable"])
        path = view_folder(said["path"], table)
        view = ReferenceView(source, path=path, refresh=refresh, every_s=said["every"], fresh=said["fresh"])
        views.append(view)
        opened.callback(view.close)
    return capture, views


def _keys(tables: list[QualifiedTable], said: tuple[str, ...]) -> dict[QualifiedTable, tuple[str, ...]]:
    """The key of each table that one was named for."""
    found = {}
    for text in said:
        name, named, columns = text.rpartition("=")
        table = QualifiedTable.parse(name) if named else tables[0]
        if table not in tables or (len(tables) > 1 and not named):
            raise ConfigError(f"--key {text} is of none of the tables", hint="Name its table: --key TABLE=COLUMNS.")
        found[table] = tuple(column.strip() for column in columns.split(",") if column.strip())
    return found


def view_folder(path: str, table: QualifiedTable) -> Path:
    """The folder of a table's copy: named after it, with what is no name of a file escaped."""
    from urllib.parse import quote

    return Path(path, quote(f"{table.schema}.{table.name}", safe=""))


class _Teller:
    """Tells of each view when it has changed; ends the whole where only the present was asked for."""

    def __init__(
        self,
        capture: ReferenceCapture | None,
        views: list[ReferenceView],
        as_json: bool,
        once: bool,
        stop: threading.Event,
    ) -> None:
        self._capture = capture
        self._json = as_json
        self._once = once
        self._until: Lsn | None = None  # how far the server was when it was first asked
        self._stop = stop
        self._left = {view.table for view in views}
        self._told: dict[QualifiedTable, tuple[int, float]] = {}

    def tell(self, view: ReferenceView) -> None:
        """Look at a view that was just updated."""
        if self._once and self._is_there(view):
            self._left -= {view.table}
            if not self._left:
                self._stop.set()
        version, told_at = self._told.get(view.table, (-1, float("-inf")))
        since_s = time.monotonic() - told_at
        ending = self._stop.is_set() and version != view.version
        if ending or since_s > (_TELL_S if version != view.version else _TELL_AGAIN_S):
            self._told[view.table] = view.version, time.monotonic()
            self._print(view)

    def _is_there(self, view: ReferenceView) -> bool:
        position = view.status().position
        if self._capture is None:
            return position is not None
        self._until = self._until or self._capture.newest().lsn
        return position is not None and position.lsn >= self._until

    def _print(self, view: ReferenceView) -> None:
        status = view.status()
        try:
            lag = self._capture.lag() if self._capture else None
        except PASSING:
            lag = None  # whoever needs the server tells of it
        place = status.position.lsn if status.position else None
        told: dict[str, Any] = {
            "table": str(status.table), "rows": status.rows, "position": place, "lag_bytes": lag, "age_s": status.age_s,
        }  # fmt: skip
        if self._json:
            print_json(told)
        else:
            behind = "" if lag is None else f", {size_of(lag)} not confirmed"
            click.echo(
                f"{visible(str(status.table))}: {status.rows} rows, at {place}{behind}, {status.age_s:.1f} s old"
            )
        sys.stdout.flush()
