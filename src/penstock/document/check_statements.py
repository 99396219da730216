"""Whether the server takes every statement by which the documents of an index are found and built.

This is the last word on a schema that all other checks let pass. Guarantees: statements are prepared, not run; no row
is read. Deliberately not: their speed; a missing index is `check_links`' finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.document.build_plan import IndexPlan, plan_index
from penstock.document.check import Diagnostic, Facts, Severity
from penstock.document.schema import DocumentSchema
from penstock.document.sql_catalog import SqlCatalog
from penstock.errors import ConfigError
from penstock.postgres import conditions
from penstock.postgres.catalog import SqlConnection
from penstock.postgres.domains import base_types


def check_statements(conn: SqlConnection, bound: Sequence[DocumentSchema], facts: Facts) -> Iterator[Diagnostic]:
    """Let the server prepare the statements of these schemas."""
    if not bound:
        return
    catalog = SqlCatalog(facts.tables, base_types(conn))
    for schema in bound:
        try:
            plan = plan_index(schema, catalog)
        except ConfigError as error:
            yield Diagnostic(Severity.ERROR, "statement", error.message, schema.index, schema.place, error.hint)
            continue
        for what, statement in _statements(plan):
            if flaw := conditions.flaw(conn, statement):
                message = f"the server refuses the statement that {what}: {flaw}"
                yield Diagnostic(Severity.ERROR, "statement", message, schema.index, schema.place)
                break


def _statements(plan: IndexPlan) -> Iterator[tuple[str, str]]:
    yield "builds its documents", plan.by_keys
    for statement in plan.by_range.values():
        yield "builds a range of its documents", statement
    for resolution in plan.resolutions:
        if resolution.sql:
            yield f"finds the documents of a changed {resolution.path.table}", resolution.sql
