"""`penstock init`: look at a database, and write a deployment that fits it.

Guarantees: the database is only read; a file that exists is left alone unless --force says otherwise, and then none is
written; no password gets into a file. What is written was checked before, as by `penstock check`, and the outcome is
told.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.check import progress
from penstock.cli.options import SectionedCommand, as_json, connected, option, table_list
from penstock.cli.output import print_json, print_table
from penstock.config.proposal import SINKS
from penstock.errors import ConfigError
from penstock.model import QualifiedTable, visible

if TYPE_CHECKING:
    from penstock.app.proposal import Draft
    from penstock.document.proposal import Proposal
    from penstock.postgres.settings import ConnectionSettings


@click.command(cls=SectionedCommand, short_help="Write a deployment for a database.")
@option(
    "--table", multiple=True, callback=table_list, metavar="NAME",
    help="Make an index of this table; repeat it. Without it: of each table that others refer to or that stands alone.",
)  # fmt: skip
@option("--out", only="init", default=".", show_default=True, metavar="FOLDER", help="Where to write; made if need be.")
@option(
    "--sink", only="init", type=click.Choice(list(SINKS)), default="local", show_default=True,
    help="Where documents go.",
)  # fmt: skip
@option("--force", is_flag=True, help="Write over files that exist.")
@as_json
@connected
def init(
    settings: ConnectionSettings, table: list[QualifiedTable], out: str, sink: str, force: bool, json: bool
) -> None:
    """Read a database's tables and foreign keys, and write penstock.toml and a schema file for each index.

    The database is only read. Nothing is written where a file is in the way. The connection is written as the variable
    DATABASE_URL, which is read here as well, never as a URL.
    """
    from penstock.app.proposal import draft
    from penstock.config.file import NAMES

    _refuse_to_overwrite(Path(out), NAMES[:1], force)
    with progress(json) as tell:
        found = draft(settings, table, sink, tell)
    _write(Path(out), found.files, force)
    if json:
        print_json(_fields(found, out))
        return
    _show_indexes(found)
    for line in _lines(found, out):
        click.echo(line)
    for line in _next_steps(settings, out):
        click.echo(line)


def _write(folder: Path, files: Mapping[str, str], force: bool) -> None:
    """All of them, or none where one is in the way."""
    _refuse_to_overwrite(folder, files, force)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise ConfigError(f"{folder} cannot be written to: {reason}", hint="Name another folder with --out.") from None


def _refuse_to_overwrite(folder: Path, names: Iterable[str], force: bool) -> None:
    if not force and (there := [name for name in names if os.path.lexists(folder / name)]):
        raise ConfigError(
            f"{folder / there[0]} exists already; nothing was written",
            hint="Name another folder with --out, or write over what is there with --force.",
        )


def _show_indexes(found: Draft) -> None:
    rows = [
        [one.schema.index, str(one.schema.table), ", ".join(_joined(one)) or "–", found.file_of(one)]
        for one in found.proposals
    ]
    print_table(["index", "a document for each row of", "with", "schema"], rows)


def _joined(proposal: Proposal) -> list[str]:
    from penstock.document.schema import Join

    return [one.key for one in proposal.schema.fields if isinstance(one, Join)]


def _lines(found: Draft, out: str) -> Iterator[str]:
    sections = {"No index of their own (--table NAME makes one):": found.parts, "Left out:": found.left_out}
    for title, tables in sections.items():
        if tables:
            yield ""
            yield title
        width = max((len(visible(str(table))) for table in tables), default=0)
        for table, reason in sorted(tables.items()):
            yield f"  {visible(str(table)):<{width}}  {visible(reason)}"
    yield ""
    schemas = len(found.proposals)
    yield f"Written to {visible(out)}: penstock.toml and {schemas} schema {'file' if schemas == 1 else 'files'}."
    yield _verdict(found)


def _verdict(found: Draft) -> str:
    from penstock.cli.check import summary

    told = summary(found.report.diagnostics)
    if found.report.worst == "error":
        return f"Checked: {told} penstock check tells more, and penstock check --sql prints what to run."
    return f"Checked: {told}"


def _next_steps(settings: ConnectionSettings, out: str) -> Iterator[str]:
    import shlex

    from penstock.config.proposal import VARIABLE, url_without_password

    where = "" if Path(out).resolve() == Path.cwd() else f" --config {shlex.quote(out)}"
    yield ""
    yield "Next:"
    if not os.environ.get(VARIABLE):
        yield f"  export {VARIABLE}={shlex.quote(url_without_password(settings))}"
    yield f"  penstock check{where}"
    yield f"  penstock run{where}"


def _fields(found: Draft, out: str) -> dict[str, Any]:
    counts = {severity: sum(one.severity == severity for one in found.report.diagnostics) for severity in _SEVERITIES}
    return {
        "folder": out,
        "files": list(found.files),
        "indexes": [
            {
                "name": one.schema.index,
                "table": str(one.schema.table),
                "schema": found.file_of(one),
                "joins": _joined(one),
            }
            for one in found.proposals
        ],
        "parts": {str(table): reason for table, reason in sorted(found.parts.items())},
        "left_out": {str(table): reason for table, reason in sorted(found.left_out.items())},
        "check": counts,
    }


_SEVERITIES = ("error", "warning", "note")
