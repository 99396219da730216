"""Writes docs/reference/files.md from the tables of keys: `python -m penstock.config.reference`.

Guarantees: every key of both files is in it, with what is accepted, its default and its meaning, in a fixed order, so
that a test can tell whether the page is stale.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from penstock.config import words as deployment_words
from penstock.document import reading_words as schema_words
from penstock.document.reading_shapes import Key, Table

PAGE = Path("docs/reference/files.md")

_HEAD = """\
# Reference: the two files

Written from the code by `make docs`. Both formats are those of flusso 0.15, read as they are; **+** marks what Penstock
adds. `penstock schema config` and `penstock schema index` print JSON Schemas for editors.

All problems of all files are told at once, one a line: `file:line:column: what was found; what is accepted`. An unknown
key is a problem, and the nearest known one is named.

## Names

Table and column names are as in SQL: unquoted ones fold to lower case, those in double quotes keep theirs
(`column: '"Order Id"'`), and a table may be written with its schema (`sales.orders`). A joined table without a schema
is in that of the table above it; a junction, in that of the joined table. Keys of the document keep their case. Where
a key has several columns, a list stands for the column, in the same order on both ends of a link.

In YAML, `true`, `false`, `null` and numbers are what they look like; everything else is a text, `yes`, `no` and dates
too. Aliases work; merge keys (`<<`), tags and several documents in a file do not.

## Secrets

A secret is a text, or `{ env = "NAME" }`. It is looked up in the process that connects, in this order: the variable
that the file names (not set is an error) > the variable reserved for it > the text in the file. Reserved are
`DATABASE_URL` for the source and, for a sink of type `opensearch` or `elasticsearch`, `<SINK>_<TYPE>_URL`,
`…_USERNAME`, `…_PASSWORD` and `…_API_KEY`, the sink's name and type in upper case, with `_` for `-`:
`SEARCH_OPENSEARCH_PASSWORD`, and for a sink named `my-search`, `MY_SEARCH_OPENSEARCH_PASSWORD`.

A secret shows in no log, error or plan. One that is a text in the file stays in the process that read it: where other
processes need it, or a lock file is made, name a variable. A URL is secret where a password is in it. See
[how to keep secrets out of files](../how-to/secrets-and-locks.md).

## Paths

Relative paths start in the folder of `penstock.toml` (or of the lock file that was made from it).
"""

_DEPLOYMENT = """\

## penstock.toml

One a deployment. A file named `flusso.toml` is read as well.
"""

_SCHEMA = """\

## *.schema.yml

One for each kind of document. A field is a mapping with exactly one type, whose value is the key of the document, and
the keys beside it that this type allows.
"""

_TITLES = {
    "the file": "Top level",
    "`connection_url`": "[source.connection_url]: the parts of a URL",
    "a secret": "A secret by its variable",
    "the schema": "Top level of a schema",
    "`soft_delete`": "soft_delete",
    "a filter in SQL": "A filter in SQL",
    "a filter": "A filter that compares",
    "a filter of several": "A filter of several",
    "an order": "An item of order_by",
    "`through`": "through",
}


def main() -> None:
    """Write the page below the current folder, or to the file that is named."""
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    page.write_text(render())


def render() -> str:
    """The whole page."""
    sinks, fields = deployment_words.SINKS, schema_words.FIELDS
    deployment = [table for table in deployment_words.TABLES if table not in sinks.values()]
    schema = [table for table in schema_words.TABLES if table not in fields.values()]
    parts = [_HEAD, _DEPLOYMENT, *map(_section, deployment), *_groups(sinks, "[sinks.NAME] of type ", described=True)]
    return "\n".join([*parts, _SCHEMA, *map(_section, schema), *_groups(fields)])


def _section(table: Table) -> str:
    return f"### {_TITLES.get(table.title, table.title)}\n\n{_rows(table.keys)}"


def _groups(tables: Mapping[Any, Table], title: str = "", *, described: bool = False) -> Iterable[str]:
    """One section for all types that allow the same keys; the first key is the type itself."""
    groups: dict[str, list[str]] = {}
    for type_, table in tables.items():
        groups.setdefault(_rows(table.keys[1:]), []).append(str(type_))
    for rows, types in groups.items():
        words = [f"`{one}`: {_meaning(tables[one].keys[0])}" for one in types] if described else []
        yield "\n".join(
            [f"### {title}{', '.join(f'`{one}`' for one in types)}\n", *(f"{one}\n" for one in words), rows]
        )


def _rows(keys: Iterable[Key]) -> str:
    lines = ["| key | accepted | default | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{key.name}` | {_cell(_accepted(key))} | {default_of(key)} | {_cell(_meaning(key))} |" for key in keys
    ]
    return "\n".join(lines) + "\n"


def _accepted(key: Key) -> str:
    return (
        f"see {_TITLES.get(key.shape.title, key.shape.title)}" if isinstance(key.shape, Table) else key.shape.accepted
    )


def _meaning(key: Key) -> str:
    return f"**+** {key.meaning}" if key.added else key.meaning


def default_of(key: Key) -> str:
    """A key's default as the page shows it."""
    if key.required:
        return "required"
    if key.shown:
        return key.shown
    if isinstance(key.default, bool):
        return f"`{str(key.default).lower()}`"
    return f"`{key.default}`" if key.default not in (None, "", (), {}) else "none"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
