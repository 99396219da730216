"""`penstock check`: do the schemas fit the database; offline, how each document is mapped; and the SQL that fixes it.

Guarantees: changes nothing on the server. The exit code is 0 where no error was found (warnings and notes do not count
unless --strict), 1 where one was, 2 where a file cannot be read as it stands. Deliberately not: mending; --sql prints
what an administrator would run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import options
from penstock.cli.failure import ACT
from penstock.cli.options import SectionedCommand, as_json, logged, option
from penstock.cli.output import print_json
from penstock.cli.trees import mapping_fields, mapping_lines, touching_fields, touching_lines
from penstock.errors import ConfigError
from penstock.model import visible

if TYPE_CHECKING:
    from penstock.config.deployment import Deployment
    from penstock.document.check import Diagnostic, Report
    from penstock.document.check_live import LiveReport
    from penstock.document.schema import DocumentSchema

COLOURS = {"error": "red", "warning": "yellow", "note": "blue"}


@click.command(cls=SectionedCommand, short_help="Do the schemas fit the database?")
@click.argument("indexes", nargs=-1, metavar="[INDEX]...")
@options.config
@option("--offline", is_flag=True, help="Do not connect: read the files, and show how each document is mapped.")
@option("--sql", is_flag=True, help="Print one script for an administrator: role, grants, identities, publication.")
@option("--role", metavar="NAME", help="The role that the script is for. Without it: the one that connects.")
@option("--strict", is_flag=True, help="Let a warning count as an error.")
@as_json
@logged
def check(indexes: tuple[str, ...], offline: bool, sql: bool, json: bool, **more: Any) -> int:
    """Check the schemas of a deployment, each INDEX or all that are enabled, against its database.

    Columns, types, nulls, keys, links, indexes, filters, rights, row security, replica identities and the publication
    are looked at, and nothing is changed. The exit code is 1 where an error was found; warnings and notes do not count.
    With --sql it is 0 where the script could be written; as JSON that is `sql`, and `left` are the errors that no
    statement fixes.
    """
    from penstock.config.file import read_deployment

    if not sql and options.was_typed("role"):
        raise ConfigError("--role is whom the script of --sql is for", hint="Add --sql, or leave it out.")
    if sql and offline:
        raise ConfigError("--sql needs the database, and --offline forbids to ask it", hint="Leave one of them out.")
    deployment = read_deployment(more["config"])
    schemas = chosen(deployment, indexes)
    if offline:
        _show_offline(deployment, schemas, json)
        return 0
    report = _ask(deployment, schemas, quiet=json or sql)
    if sql:
        _show_script(report, schemas, more["role"], json)
        return 0
    _show(deployment, schemas, _strictly(report) if more["strict"] else report, json)
    return ACT if report.worst == "error" or (more["strict"] and report.worst == "warning") else 0


def chosen(deployment: Deployment, names: Sequence[str]) -> list[DocumentSchema]:
    """The schemas of the named indexes, or of all that are enabled."""
    known = {index.name: index.schema for index in deployment.indexes}
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"there is no index {unknown[0]!r}", hint=f"There are: {', '.join(known)}.")
    return [known[name] for name in names] or [index.schema for index in deployment.enabled]


def _ask(deployment: Deployment, schemas: Sequence[DocumentSchema], *, quiet: bool) -> LiveReport:
    from penstock import app
    from penstock.config.connection import connection_settings
    from penstock.document.check_live import check_live

    with progress(quiet) as tell:
        return check_live(connection_settings(deployment), schemas, app.source_rules(deployment.source), tell)


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Say on a terminal what is being looked at."""
    if quiet or not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("Checking …") as status:
        yield lambda step: status.update(f"Checking {escape(visible(step))} …")


def _strictly(report: LiveReport) -> LiveReport:
    from penstock.document.check_live import stricter

    return stricter(report)


def _show_offline(deployment: Deployment, schemas: Sequence[DocumentSchema], json: bool) -> None:
    if json:
        print_json({"worst": None, "diagnostics": [], "indexes": [_index_fields(deployment, one) for one in schemas]})
        return
    for schema in schemas:
        for line in mapping_lines(_tree(deployment, schema)):
            click.echo(line)
        click.echo()
    click.echo(f"The files are in order: {len(schemas)} {_plural('index', len(schemas))}.")


def _tree(deployment: Deployment, schema: DocumentSchema) -> Any:
    from penstock import app
    from penstock.document.mapping_tree import mapping_tree

    return mapping_tree(schema, app.index_settings(deployment))


def _index_fields(deployment: Deployment, schema: DocumentSchema) -> dict[str, Any]:
    from penstock import app
    from penstock.document.mapping import index_body
    from penstock.document.mapping_change import fingerprint

    settings = app.index_settings(deployment)
    return {
        "index": schema.index,
        "table": str(schema.table),
        "fingerprint": fingerprint(schema, settings),
        "mapping": mapping_fields(_tree(deployment, schema))["fields"],
        "body": index_body(schema, settings),
    }


def _show_script(report: LiveReport, schemas: Sequence[DocumentSchema], role: str | None, json: bool) -> None:
    from penstock.document.check_script import render, script

    assert report.state is not None
    database = report.state.database
    text = render(script(report, schemas, role or report.state.role, database), database)
    left = [one for one in report.diagnostics if one.severity == "error" and not one.sql]
    if json:
        print_json({"sql": text, "left": list(map(fields, left))})
        return
    click.echo(text, nl=False)
    if left:
        click.echo(f"{len(left)} {_plural('error', len(left))} no statement fixes: see penstock check.", err=True)


def _show(deployment: Deployment, schemas: Sequence[DocumentSchema], report: LiveReport, json: bool) -> None:
    from penstock.document.paths import paths

    touching = {schema.index: paths(schema) for schema in report.bound}
    if json:
        indexes = [
            {**_index_fields(deployment, one), "touched_by": touching_fields(touching.get(one.index, ()))}
            for one in schemas
        ]
        print_json({"worst": report.worst, "diagnostics": list(map(fields, report.diagnostics)), "indexes": indexes})
        return
    for index, found in touching.items():
        for line in touching_lines(index, found):
            click.echo(line)
        click.echo()
    for line in lines(report):
        click.echo(line)


def fields(one: Diagnostic) -> dict[str, Any]:
    """A finding for machines."""
    place = {"file": one.place.file or None, "line": one.place.line or None, "column": one.place.column or None}
    words = {"severity": one.severity, "code": one.code, "index": one.index or None}
    return {**words, **place, "message": one.message, "hint": one.hint, "sql": one.sql}


def lines(report: Report) -> Iterator[str]:
    """The findings for people, by index, and how many there are."""
    indexes = dict.fromkeys(one.index for one in report.diagnostics)
    for index in indexes:
        yield click.style(visible(index) or "the source", bold=True)
        for one in report.diagnostics:
            if one.index == index:
                yield from _lines(one)
        yield ""
    yield summary(report.diagnostics)


def _lines(one: Diagnostic) -> Iterator[str]:
    where = f"{visible(str(one.place))}: " if one.place.file else ""
    yield f"  {click.style(f'{one.severity:7}', fg=COLOURS[one.severity])}  {where}{visible(one.message)}"
    if one.hint:
        yield f"           {visible(one.hint)}"
    yield from (click.style(f"           {visible(line)}", dim=True) for line in one.sql.splitlines())


def summary(found: Iterable[Diagnostic]) -> str:
    """How many findings there are, by severity."""
    counts: dict[str, int] = {}
    for one in found:
        counts[one.severity] = counts.get(one.severity, 0) + 1
    said = [f"{counts[word]} {_plural(word, counts[word])}" for word in COLOURS if word in counts]
    return f"{', '.join(said)}." if said else "Everything fits."


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}es" if word.endswith("x") else f"{word}s"
