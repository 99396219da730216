"""A deployment's schemas held against a real database: every check, one report, and the script that mends it.

Guarantees: reads catalogs and tries in transactions that are rolled back; changes nothing and reads no row. One
connection for SQL, one for a moment to try replication. A schema that does not fit does not keep the others from being
checked. Deliberately not: printing (`cli`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.document.binding import bind
from penstock.document.check import Diagnostic, Facts, Report, Severity, in_order
from penstock.document.check_columns import check_columns
from penstock.document.check_filters import check_filters
from penstock.document.check_links import check_links
from penstock.document.check_source import (
    Readers,
    SourceRules,
    check_access,
    check_coverage,
    check_identity,
    check_server,
)
from penstock.document.check_statements import check_statements
from penstock.document.schema import DocumentSchema
from penstock.document.spec import SourceSpec
from penstock.errors import ConfigError
from penstock.model import CoverageReport, QualifiedTable
from penstock.postgres import publication
from penstock.postgres.access import ServerState, read_server
from penstock.postgres.catalog import SqlConnection, TableInfo, TableKind, read_tables
from penstock.postgres.connection import open_sql
from penstock.postgres.settings import ConnectionSettings
from penstock.postgres.type_catalog import read_types

# Catalog questions take milliseconds; a lock that somebody holds must not keep a check waiting for long.
_STATEMENT_TIMEOUT_S, _LOCK_TIMEOUT_S = 60.0, 5.0


@dataclass(frozen=True, slots=True)
class LiveReport(Report):
    """What was found, and what it was found on. `bound` are the schemas that fit, with their keys filled in."""

    state: ServerState | None = None
    coverage: CoverageReport | None = None
    bound: tuple[DocumentSchema, ...] = ()


def check_live(
    settings: ConnectionSettings,
    schemas: Sequence[DocumentSchema],
    rules: SourceRules | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> LiveReport:
    """Check every schema against the database; `progress` hears what is being looked at."""
    with open_sql(settings, statement_timeout_s=_STATEMENT_TIMEOUT_S, lock_timeout_s=_LOCK_TIMEOUT_S) as conn:
        return _Check(conn, settings, rules or SourceRules(), progress).run(schemas)


class _Check:
    """One run over one connection."""

    def __init__(
        self, conn: SqlConnection, settings: ConnectionSettings, rules: SourceRules, progress: Callable[[str], None]
    ) -> None:
        self._conn = conn
        self._settings = settings
        self._rules = rules
        self._progress = progress

    def run(self, schemas: Sequence[DocumentSchema]) -> LiveReport:
        self._progress("the server")
        state = read_server(self._conn)
        found = list(check_server(self._conn, self._settings, state, self._rules))
        self._progress("the catalog")
        facts = _read_facts(self._conn, schemas)
        for schema in schemas:
            self._progress(f"index {schema.index}")
            found += check_columns(schema, facts)
            found += check_links(schema, facts)
            found += check_filters(self._conn, schema, facts)
        bound = tuple(_bound(schemas, facts, found))
        self._progress("statements")
        found += check_statements(self._conn, _sound(bound, found), facts)
        self._progress("rights")
        found += check_access(self._conn, schemas, facts, state.role)
        self._progress("the publication")
        required = _published(schemas, facts)
        report = publication.inspect(self._conn, self._rules.publication, required)
        traced = publication.inspect(self._conn, self._rules.publication, required, _needed(bound, facts))
        readers = _readers(schemas, facts)
        found += check_coverage(report, readers, self._rules)
        found += check_identity(report, traced, readers, self._rules)
        return LiveReport(in_order(found), state, traced, bound)


def _read_facts(conn: SqlConnection, schemas: Sequence[DocumentSchema]) -> Facts:
    """The tables that the schemas name, their partitions, and the types of their columns."""
    named = {table for schema in schemas for table in schema.tables}
    tables: dict[QualifiedTable, TableInfo] = read_tables(conn, named)
    leaves = {leaf for info in tables.values() for leaf in info.partitions} - tables.keys()
    types = read_types(conn, [column.type_oid for info in tables.values() for column in info.columns])
    others = tuple(read_tables(conn).keys() - named) if named - tables.keys() else ()
    return Facts(tables | (read_tables(conn, leaves) if leaves else {}), types, others)


def _bound(schemas: Sequence[DocumentSchema], facts: Facts, found: list[Diagnostic]) -> Iterator[DocumentSchema]:
    """The schemas that can be bound; why one cannot is a finding already, or becomes one."""
    for schema in schemas:
        try:
            yield bind(schema, facts.tables)
        except ConfigError as error:
            if schema in _sound([schema], found):
                found.append(
                    Diagnostic(Severity.ERROR, "binding", error.message, schema.index, schema.place, error.hint)
                )


def _sound(schemas: Sequence[DocumentSchema], found: Sequence[Diagnostic]) -> list[DocumentSchema]:
    """The schemas of indexes without an error so far."""
    wrong = {one.index for one in found if one.severity is Severity.ERROR}
    return [schema for schema in schemas if schema.index not in wrong]


def _needed(bound: Sequence[DocumentSchema], facts: Facts) -> Mapping[QualifiedTable, Sequence[str]]:
    """The columns by which changes are traced, as far as they exist."""
    traced = SourceSpec(bound).thin_columns()
    return {table: [one for one in columns if facts.column(table, one)] for table, columns in traced.items()}


def _published(schemas: Sequence[DocumentSchema], facts: Facts) -> set[QualifiedTable]:
    """The tables that have to be published; what is no table, or is not there, is a finding already."""
    named = (table for schema in schemas for table in schema.tables)
    kinds = (TableKind.TABLE, TableKind.PARTITIONED)
    return {table for table in named if table in facts.tables and facts.tables[table].kind in kinds}


def _readers(schemas: Sequence[DocumentSchema], facts: Facts) -> Readers:
    """For each table, the index that reads it or the table it is a part of; none where several do."""
    readers: dict[QualifiedTable, list[str]] = {}
    for schema in schemas:
        for table in schema.tables:
            readers.setdefault(table, []).append(schema.index)
    alone = {table: names[0] for table, names in readers.items() if len(names) == 1}
    leaves = {info.table: alone[info.root] for info in facts.tables.values() if info.root in alone}
    return leaves | alone


def stricter(report: LiveReport) -> LiveReport:
    """The same report with every warning an error."""
    raised = (
        replace(one, severity=Severity.ERROR) if one.severity is Severity.WARNING else one for one in report.diagnostics
    )
    return replace(report, diagnostics=in_order(raised))


def mending(found: Sequence[Diagnostic], code: str) -> list[str]:
    """The statements that mend all findings of one kind, each once."""
    return list(dict.fromkeys(one.sql for one in found if one.code == code and one.sql))
