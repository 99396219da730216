"""Whether rows find each other: keys that tell rows apart, links of the same types, and indexes under both.

Guarantees: pure; each missing index comes with the statement that makes it. A missing index is a warning: every
document is right without it, and every change costs a scan. Deliberately not: replica identity and publication, which
need the whole deployment (`check_live`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.document import types
from penstock.document.check import Diagnostic, Facts, Severity
from penstock.document.check_uses import Scope, flat, scopes
from penstock.document.schema import Aggregate, AggregateKind, Columns, DocumentSchema, Join, JoinKind, Place
from penstock.model import QualifiedTable, quote
from penstock.postgres.catalog import IndexInfo, TableInfo, TableKind


@dataclass(frozen=True, slots=True)
class _End:
    """One end of a link: columns of a table, and what rows are looked up there for."""

    table: QualifiedTable
    columns: Columns
    purpose: str


def check_links(schema: DocumentSchema, facts: Facts) -> Iterator[Diagnostic]:
    """Keys, links and the indexes that both need."""
    yield from _doc_id(schema, facts)
    for scope in scopes(schema, facts):
        yield from _key(schema, scope, facts)
        for one in flat(scope.fields):
            if isinstance(one, Join | Aggregate):
                yield from _link(schema.index, scope, one, facts)


def _key(schema: DocumentSchema, scope: Scope, facts: Facts) -> Iterator[Diagnostic]:
    info = facts.tables.get(scope.table)
    if info is None or _unknown(scope.table, scope.key, facts):
        return
    what = f"the key of {scope.join.key!r}" if scope.join else "the primary key"
    if not scope.key:
        yield Diagnostic(
            Severity.ERROR, "key-missing", f"{scope.table} has no primary key, and the schema names none",
            schema.index, scope.place, "Name the columns that tell its rows apart: primary_key.",
        )  # fmt: skip
        return
    if not _is_unique(info, scope.key):
        message = f"{what}: ({_listed(scope.key)}) of {scope.table} is not known to be unique"
        yield Diagnostic(
            Severity.ERROR if _must_be_unique(scope) else Severity.WARNING, "key-not-unique", message, schema.index,
            scope.place, "Name the columns of a unique index.", _create(info, scope.key, unique=True),
        )  # fmt: skip
    nullable = [column.name for column in info.columns if column.nullable and column.name in scope.key]
    if nullable and not scope.join:
        message = f"{what}: {_listed(tuple(nullable))} of {scope.table} may be null: such a row has no document"
        sql = "\n".join(f"ALTER TABLE {scope.table.sql} ALTER COLUMN {quote(n)} SET NOT NULL;" for n in nullable)
        yield Diagnostic(Severity.WARNING, "key-nullable", message, schema.index, scope.place, "", sql)


def _doc_id(schema: DocumentSchema, facts: Facts) -> Iterator[Diagnostic]:
    info = facts.tables.get(schema.table)
    if info is None or not schema.doc_id or _unknown(schema.table, schema.doc_id, facts):
        return
    if not any(index.identifies and set(index.columns) <= set(schema.doc_id) for index in info.indexes):
        message = f"doc_id: no unique index over NOT NULL columns among ({_listed(schema.doc_id)}) of {schema.table}"
        yield Diagnostic(
            Severity.ERROR, "key-not-unique", message, schema.index, schema.place,
            "Two rows with one id would overwrite each other. Name columns that tell rows apart.",
            _create(info, schema.doc_id, unique=True),
        )  # fmt: skip


def _must_be_unique(scope: Scope) -> bool:
    """The root's key names a document, and a key that others point at must lead to one row."""
    return scope.join is None or scope.join.kind is JoinKind.BELONGS_TO or scope.join.through is not None


def _link(index: str, scope: Scope, one: Join | Aggregate, facts: Facts) -> Iterator[Diagnostic]:
    for here, there in _pairs(scope, one, facts):
        if _unknown(here.table, here.columns, facts) or _unknown(there.table, there.columns, facts):
            continue
        yield from _agreement(index, one, here, there, facts)
        place = one.through.place if one.through and one.through.table == here.table else one.place
        for end in (here, there):
            yield from _index(index, one, end, place, facts)


def _pairs(scope: Scope, one: Join | Aggregate, facts: Facts) -> Iterator[tuple[_End, _End]]:
    """Each link of a field: the columns that point, and the columns they point at."""
    ours = _End(scope.table, scope.key, "")
    theirs = _End(one.table, facts.key(one.table, one.primary_key), "reading it")
    if one.through:
        yield _End(one.through.table, one.through.left_key, "reading it"), ours
        yield (
            _End(one.through.table, one.through.right_key, f"finding the rows that show a changed {one.table}"),
            theirs,
        )
    elif isinstance(one, Join) and one.kind is JoinKind.BELONGS_TO:
        yield _End(scope.table, one.column, f"finding the rows that show a changed {one.table}"), theirs
    else:
        yield _End(one.table, one.foreign_key, "reading it"), ours


def _agreement(index: str, one: Join | Aggregate, here: _End, there: _End, facts: Facts) -> Iterator[Diagnostic]:
    if there.columns and len(here.columns) != len(there.columns):
        message = (
            f"the link of {one.key!r}: ({_listed(here.columns)}) of {here.table} has another number of columns than the"
            f" key ({_listed(there.columns)}) of {there.table}"
        )
        yield Diagnostic(
            Severity.ERROR, "link-columns", message, index, one.place, "Name as many columns as the key has."
        )
        return
    for left, right in zip(here.columns, there.columns, strict=False):
        one_type, other = facts.type(here.table, left), facts.type(there.table, right)
        if one_type and other and not types.comparable(one_type, other):
            message = (
                f"the link of {one.key!r}: {quote(left)} of {here.table} is {one_type}, and {quote(right)} of"
                f" {there.table} is {other}: they cannot be compared"
            )
            yield Diagnostic(Severity.ERROR, "link-types", message, index, one.place, "Name columns of the same type.")
    if isinstance(one, Aggregate) and one.kind is AggregateKind.IDS:
        theirs = facts.key(one.table, one.primary_key)
        if len(theirs) > 1:
            message = (
                f"field {one.key!r}: the key ({_listed(theirs)}) of {one.table} has several columns; ids lists one"
            )
            yield Diagnostic(Severity.ERROR, "ids-key", message, index, one.place, "Name one column: primary_key.")


def _index(index: str, one: Join | Aggregate, end: _End, place: Place, facts: Facts) -> Iterator[Diagnostic]:
    info = facts.tables.get(end.table)
    if not end.purpose or not end.columns or info is None or any(_serves(i, end.columns) for i in info.indexes):
        return
    message = f"no index over ({_listed(end.columns)}) of {end.table}: {end.purpose} for {one.key!r} scans the table"
    yield Diagnostic(
        Severity.WARNING, "index-missing", message, index, place, "Make an index.", _create(info, end.columns)
    )


def _serves(index: IndexInfo, columns: Columns) -> bool:
    """Whether it finds rows by these columns: they come first in it, in any order."""
    whole = index.valid and not index.partial and not index.expression
    return whole and set(index.columns[: len(columns)]) == set(columns)


def _is_unique(info: TableInfo, columns: Columns) -> bool:
    whole = (i for i in info.indexes if i.unique and i.valid and not i.partial and not i.expression)
    return any(set(index.columns) <= set(columns) for index in whole)


def _create(info: TableInfo, columns: Columns, *, unique: bool = False) -> str:
    """A partitioned table takes no CONCURRENTLY."""
    how = "" if info.kind is TableKind.PARTITIONED else " CONCURRENTLY"
    return f"CREATE {'UNIQUE ' if unique else ''}INDEX{how} ON {info.table.sql} ({', '.join(map(quote, columns))});"


def _unknown(table: QualifiedTable, columns: Columns, facts: Facts) -> bool:
    """What is missing was reported already."""
    return table not in facts.tables or any(facts.column(table, name) is None for name in columns)


def _listed(columns: Columns) -> str:
    return ", ".join(map(quote, columns))
