"""Whether filters are conditions that the server takes, and conditions over their own row only.

Changes of a row are seen; the passing of time, and changes of a table that only a condition looks at, are not. So a
condition that reads either is pointed out: documents would be right when they are built, and then silently grow old.
Guarantees: asks the server, by its own parser; reads no row, leaves nothing behind. Deliberately not: whether columns
exist and fit (`check_columns`).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.document.check import Diagnostic, Facts, Severity
from penstock.document.check_uses import comparisons, filtered, raws
from penstock.document.schema import Comparison, DocumentSchema, FilterOp, Literal, Raw
from penstock.model import QualifiedTable, quote
from penstock.postgres import conditions
from penstock.postgres.catalog import SqlConnection

_UNSEEN = "a change there is not seen, and documents that it concerns stay as they are"


def check_filters(conn: SqlConnection, schema: DocumentSchema, facts: Facts) -> Iterator[Diagnostic]:
    """Ask the server about every filter of a schema whose table is there."""
    for table, filters in filtered(schema, facts):
        if table not in facts.tables:
            continue
        for raw in raws(filters):
            yield from _raw(conn, schema.index, table, raw)
        for one in comparisons(filters):
            yield from _values(conn, schema.index, table, one, facts)


def _raw(conn: SqlConnection, index: str, table: QualifiedTable, raw: Raw) -> Iterator[Diagnostic]:
    found = conditions.examine(conn, table, raw.sql)
    if found.flaw:
        yield Diagnostic(
            Severity.ERROR, "filter-invalid", f"a raw filter is no condition over {table}: {found.flaw}", index,
            raw.place, "Write an SQL condition over the columns of this table; functions of yours need their schema.",
        )  # fmt: skip
    if not found.known:
        message = (
            "whether a raw filter reads other tables or the clock could not be asked: no temporary view may be made"
        )
        yield Diagnostic(Severity.NOTE, "filter-unknown", message, index, raw.place, "Check as a role with TEMPORARY.")
    if found.relations:
        message = f"a raw filter of {table} reads {', '.join(found.relations)}: {_UNSEEN}"
        hint = "Join the table and filter its rows, or keep a column of this table current by a trigger."
        yield Diagnostic(Severity.WARNING, "filter-reads-table", message, index, raw.place, hint)
    if found.reads_clock:
        message = f"a raw filter of {table} reads the clock: time passes without a change of a row, which nobody sees"
        hint = "Store the state in a column, or filter by time when you search."
        yield Diagnostic(Severity.WARNING, "filter-reads-clock", message, index, raw.place, hint)
    if found.functions:
        message = f"a raw filter of {table} calls {', '.join(found.functions)}, which may answer otherwise tomorrow"
        hint = "If it depends on its arguments alone, declare it IMMUTABLE."
        yield Diagnostic(Severity.WARNING, "filter-volatile", message, index, raw.place, hint)


def _values(
    conn: SqlConnection, index: str, table: QualifiedTable, one: Comparison, facts: Facts
) -> Iterator[Diagnostic]:
    column, found = facts.column(table, one.column), facts.type(table, one.column)
    if column is None or found is None or one.op in (FilterOp.LIKE, FilterOp.ILIKE):
        return
    for value in one.values:
        if value is not None and not conditions.fits(conn, column.type_name, _text(value)):
            message = (
                f"a filter: {_text(value)!r} is no {column.type_name}, as column {quote(one.column)} of {table} is"
            )
            yield Diagnostic(Severity.ERROR, "filter-value", message, index, one.place, "Write a value of that type.")


def _text(value: Literal) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
