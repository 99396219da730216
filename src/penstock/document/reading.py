"""A `*.schema.yml`, read: from its text to a `DocumentSchema`, or to everything that is wrong with it.

Guarantees: all problems of a file are told at once, in its order, each with file:line:column, what was found and what
is accepted; a schema that comes out is whole and needs no further check without a database. Files of flusso's format
are read as they are. Deliberately not: asking a database whether tables and columns exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.document.reading_fields import Above, assemble, place_table
from penstock.document.reading_shapes import BAD, Found
from penstock.document.reading_tree import FileErrors, Node, Problem, Problems, choices
from penstock.document.reading_words import SCHEMA
from penstock.document.reading_yaml import parse_yaml
from penstock.document.schema import DocumentSchema, Field, Group, Place, Scalar, SoftDelete
from penstock.model import QualifiedTable

__all__ = ["FileErrors", "Problem", "read_schema", "schema_of", "text_of"]


def read_schema(source: str | Path, index: str) -> DocumentSchema:
    """The schema in a file (a Path), or in a text; raises `FileErrors` with every problem."""
    problems = Problems()
    if isinstance(source, Path):
        file = str(source)
        text = text_of(source, Place(file, 1, 1), problems)
    else:
        file, text = f"{index}.schema.yml", source
    node = parse_yaml(text, file, problems) if text is not None else None
    schema = schema_of(node, index, problems) if node is not None else None
    problems.raise_any()
    assert schema is not None  # else there was a problem
    return schema


def text_of(path: Path, named_at: Place, problems: Problems) -> str | None:
    """The text of a file; where it has none, the problem is noted at the place that names the file."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        is_folder = isinstance(error, IsADirectoryError)
        reason = "is a folder" if is_folder else (error.strerror or type(error).__name__).lower()
        problems.add(named_at, f"{path} cannot be read: {reason}", "name a file that exists and may be read")
        return None
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        place = Place(str(path), before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1)
        problems.add(place, "a byte that is no UTF-8", "store the file as UTF-8")
        return None


def schema_of(node: Node, index: str, problems: Problems) -> DocumentSchema | None:
    """The schema that a tree holds; None where it is not whole."""
    found = SCHEMA.read(node, "the schema", problems)
    if found is BAD:
        return None
    table = place_table(found, "public", problems)
    # Without a table, what is inside is looked at all the same, as if it were any.
    above = Above(table or QualifiedTable("public", ""), found["primary_key"])
    fields = assemble(found["fields"], above, problems)
    soft_delete = _soft_delete(found["soft_delete"], fields, problems)
    if table is None or not found.complete:
        return None
    return DocumentSchema(
        index, table, fields, found["primary_key"], found["doc_id"], soft_delete, found["filters"],
        found["version"], found.place,
    )  # fmt: skip


def _soft_delete(found: Found | None, fields: tuple[Field, ...], problems: Problems) -> SoftDelete | None:
    if found is None:
        return None
    given = [name for name in ("column", "field") if name in found]
    if len(given) != 1:
        what = "both `column` and `field`" if given else "neither `column` nor `field`"
        problems.add(found.place, f"`soft_delete` has {what}", "accepted: exactly one of them")
        return None
    column = found["column"]
    if given == ["field"] and "field" not in found.bad:
        columns = dict(_columns(fields))
        column = columns.get(found["field"])
        if column is None:
            message = f"`field` is `{found['field']}`, and no field of the row has that key"
            problems.add(found.at("field"), message, choices(found["field"], columns))
    return SoftDelete(column, found["when"], found.place) if column and found.complete else None


def _columns(fields: tuple[Field, ...]) -> Iterator[tuple[str, str]]:
    """The keys of the row's own fields, and the column of each."""
    for one in fields:
        if isinstance(one, Group):
            yield from _columns(one.fields)
        elif isinstance(one, Scalar):
            yield one.key, one.column
