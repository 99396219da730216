"""`penstock sample`: one real document, as the database gives it now.

Guarantees: built exactly as for an index, read-only; digits and texts are shown as they are (with --raw byte for byte).
Deliberately not: searching; the document is named by its key, or is the first that comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from penstock.cli import options
from penstock.cli.check import chosen
from penstock.cli.failure import ACT
from penstock.cli.options import SectionedCommand, as_json, logged, option
from penstock.errors import ConfigError, OperatorError, PenstockError

if TYPE_CHECKING:
    from penstock.config.deployment import Deployment
    from penstock.contracts import Documents, Key
    from penstock.document.build import PgDocumentBuilder
    from penstock.document.schema import DocumentSchema

_FIRST_ROWS = 100
# The class of SQLSTATE for a text that its type does not take.
_DATA_EXCEPTION = "22"


@click.command(cls=SectionedCommand, short_help="Build one document from the database and print it.")
@click.argument("index", metavar="INDEX")
@click.argument("key", nargs=-1, metavar="[KEY]...")
@options.config
@option("--raw", is_flag=True, help="The document's bytes as they go to an index, and nothing else.")
@as_json
@logged
def sample(index: str, key: tuple[str, ...], config: str | None, raw: bool, json: bool) -> int:
    """Build one document of INDEX and print it, as JSON in any case.

    KEY is the primary key of its root row, one word for each column, as Postgres prints it, or the document's id.
    Without it: any document.
    The exit code is 1 where there is no such document.
    """
    from penstock.config.file import read_deployment
    from penstock.sinks.stdout import indented

    deployment = read_deployment(config)
    (schema,) = chosen(deployment, [index])
    body = _build(deployment, schema, key)
    if body is None:
        found_out = f"{index} has no document" + (f" with the key {', '.join(key)}" if key else "")
        if json:
            raise OperatorError(found_out)
        click.echo(f"{found_out}.", err=True)
        return ACT
    if raw:
        click.echo(body, nl=False)
    else:
        click.echo(b"".join(indented(body)))
    return 0


def _build(deployment: Deployment, schema: DocumentSchema, key: tuple[str, ...]) -> bytes | None:
    from penstock.config.connection import connection_settings
    from penstock.document.build import PgDocumentBuilder
    from penstock.document.sampling import first_keys
    from penstock.document.spec import SourceSpec

    settings = connection_settings(deployment)
    with PgDocumentBuilder(SourceSpec([schema]), settings, max_connections=2) as builder:
        bound = builder.spec.schema(schema.index)
        key = _whole(bound, key)
        keys = [key] if key else first_keys(settings, bound, _FIRST_ROWS)
        try:
            found = _first(builder.build(bound.index, keys))
        except PenstockError as error:
            if not key or not (error.sqlstate or "").startswith(_DATA_EXCEPTION):
                raise
            raise _no_key(builder, bound) from None
        # Filters left all of those out: then every row is asked for.
        return found if found is not None or key else _first(builder.build_range(bound.index, None, None))


def _whole(schema: DocumentSchema, key: tuple[str, ...]) -> Key:
    """The key by its parts, of which an id holds all."""
    from penstock.document.ids import key_of
    from penstock.document.paths import root_key

    columns = root_key(schema)
    if len(key) == 1 and (found := key_of(key[0], len(columns))):
        return found
    if key and len(key) != len(columns):
        raise ConfigError(
            f"the key of {schema.index} has {len(columns)} parts ({', '.join(columns)}), and {len(key)} were given",
            hint=f"Write: penstock sample {schema.index} {' '.join(name.upper() for name in columns)}",
        )
    return key


def _no_key(builder: PgDocumentBuilder, schema: DocumentSchema) -> ConfigError:
    from penstock.document.paths import root_key

    named = [(name, builder.column(schema.table, name)) for name in root_key(schema)]
    kinds = ", ".join(f"{name} {column.name}" if column else name for name, column in named)
    return ConfigError(f"that is no key of {schema.index}", hint=f"Its key is ({kinds}), as Postgres prints it.")


def _first(found: Iterator[Documents]) -> bytes | None:
    return next((body for documents in found for body in documents.bodies if body is not None), None)
