"""`penstock coverage`: does the publication carry the tables, and what to run where it does not.

Guarantees: without --fix nothing is changed; with it, only what the role may do and what can make the server reject
nobody's write. Exit code 1 says that something is missing or in the way after the command, whatever it did.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import options
from penstock.cli.failure import ACT
from penstock.cli.options import SectionedCommand, as_json, connected, option, table_names
from penstock.cli.output import print_json
from penstock.model import CoverageReport, QualifiedTable, visible

if TYPE_CHECKING:
    from penstock.postgres.settings import ConnectionSettings


@click.command(cls=SectionedCommand, short_help="Does the publication carry the tables?")
@click.argument("tables", nargs=-1, callback=table_names, metavar="[TABLE]...")
@options.publication
@option("--fix", is_flag=True, help="Publish what is missing, where this role may.")
@as_json
@connected
def coverage(settings: ConnectionSettings, tables: set[QualifiedTable], publication: str, fix: bool, json: bool) -> int:
    """Show whether the publication carries each TABLE whole, and the SQL to run where it does not.

    A table is written as in SQL: orders, sales.orders, "Sales"."Orders". Without tables, everything that the
    publication carries is looked at. The exit code is 1 where something is missing or in the way.
    """
    from penstock.postgres import publication as publications
    from penstock.postgres.connection import open_sql

    with open_sql(settings) as connection:
        required = tables or _carried(connection, publication)
        before = report = publications.inspect(connection, publication, required)
        if fix and not before.complete:
            publications.ensure(connection, publication, required, manage=True)
            report = publications.inspect(connection, publication, required)
    added = before.missing - report.missing
    if json:
        print_json(_fields(report, added))
    else:
        for line in _lines(report, added):
            click.echo(line)
    return 0 if report.complete else ACT


def _carried(connection: Any, name: str) -> set[QualifiedTable]:
    from penstock.postgres import publication as publications

    publications.require(connection, name)
    found = publications.read_publication(connection, name)
    return set(found.published) if found else set()


def _fields(report: CoverageReport, added: Iterable[QualifiedTable]) -> dict[str, Any]:
    return {
        "publication": report.publication,
        "complete": report.complete,
        "present": _names(report.present),
        "missing": _names(report.missing),
        "added": _names(added),
        "manageable": report.manageable,
        "blockers": [
            {"table": str(one.table) if one.table else None, "reason": one.reason, "sql": one.sql}
            for one in report.blockers
        ],
        "sql": report.sql,
        "notes": report.notes,
    }


def _names(tables: Iterable[QualifiedTable]) -> list[str]:
    return [str(table) for table in sorted(tables)]


def _lines(report: CoverageReport, added: frozenset[QualifiedTable]) -> Iterable[str]:
    """The report for people: one line a table, then what is in the way, then what to run."""
    everything = len(report.present) + len(report.missing)
    yield f"Publication {visible(report.publication)} carries {len(report.present)} of {everything} tables."
    blocked = {blocker.table for blocker in report.blockers}
    for table in sorted(report.present | report.missing):
        state = "missing" if table in report.missing else "added" if table in added else "present"
        colour = "red" if state == "missing" else "yellow" if table in blocked else "green"
        yield f"  {click.style(f'{state:8}', fg=colour)} {visible(str(table))}"
    for blocker in report.blockers:
        about = f"{visible(str(blocker.table))}: " if blocker.table else ""
        yield f"  {click.style('in the way', fg='red')}  {about}{visible(blocker.reason)}"
    for note in report.notes:
        yield f"  note: {visible(note)}"
    if report.sql:
        who = "penstock coverage --fix can do this" if report.manageable and not report.blockers else "To fix it"
        yield f"{who}; in SQL:" if who != "To fix it" else f"{who}, run:"
        yield from (f"  {visible(line)}" for statement in report.sql for line in statement.splitlines())
