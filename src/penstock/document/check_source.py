"""Whether the server lets these documents be kept: rights, row security, publication, replica identity, slots.

Guarantees: changes nothing. The right to publish is found by trying in a transaction that is rolled back; the right to
replicate by opening a replication connection. Deliberately not: the schemas themselves (`check_columns`,
`check_links`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.document.check import Diagnostic, Facts, Severity
from penstock.document.check_uses import uses
from penstock.document.schema import NOWHERE, DocumentSchema, Place
from penstock.errors import PenstockError, RetryableError
from penstock.model import Blocker, CoverageReport, QualifiedTable, quote
from penstock.postgres import slot
from penstock.postgres.access import Access, ServerState, read_access, try_replication
from penstock.postgres.catalog import SqlConnection
from penstock.postgres.settings import ConnectionSettings

Readers = Mapping[QualifiedTable, str]
"""The index that reads a table, or one it is a part of."""


@dataclass(frozen=True, slots=True)
class SourceRules:
    """What a deployment says about its source; the words are those of the file."""

    slot: str = "penstock"
    publication: str = "penstock"
    manage_publication: bool = True
    manage_replica_identity: bool = False
    untraceable_is_fatal: bool = True
    place: Place = NOWHERE


def check_access(conn: SqlConnection, schemas: Sequence[DocumentSchema], facts: Facts, role: str) -> list[Diagnostic]:
    """What this role may not read, or reads in part only."""
    wanted: dict[QualifiedTable, set[str]] = {}
    where: dict[QualifiedTable, tuple[str, Place]] = {}
    for schema in schemas:
        for use in uses(schema, facts):
            wanted.setdefault(use.table, set()).add(use.column)
            where.setdefault(use.table, (schema.index, use.place))
    found = read_access(conn, wanted)
    return [one for table in sorted(found) for one in _access(table, found[table], role, where[table])]


def _access(table: QualifiedTable, access: Access, role: str, where: tuple[str, Place]) -> Iterator[Diagnostic]:
    index, place = where
    if not access.schema_usable:
        message = f"role {quote(role)} may not use schema {quote(table.schema)}"
        sql = f"GRANT USAGE ON SCHEMA {quote(table.schema)} TO {quote(role)};"
        yield Diagnostic(Severity.ERROR, "no-usage", message, index, place, "", sql)
    if access.unreadable:
        listed = ", ".join(map(quote, access.unreadable))
        message = f"role {quote(role)} may not read {listed} of {table}"
        sql = f"GRANT SELECT ON {table.sql} TO {quote(role)};"
        yield Diagnostic(Severity.ERROR, "no-select", message, index, place, "", sql)
    if access.row_security:
        message = f"row-level security of {table} applies to role {quote(role)}: building its documents will be refused"
        sql = f"ALTER ROLE {quote(role)} BYPASSRLS;"
        hint = "Rows that a policy hides would be taken for deleted. Use a role that sees all of them."
        yield Diagnostic(Severity.ERROR, "row-security", message, index, place, hint, sql)


def check_coverage(report: CoverageReport, readers: Readers, rules: SourceRules) -> Iterator[Diagnostic]:
    """What the publication lacks of the tables, whoever reads them."""
    for blocker in report.blockers:
        yield Diagnostic(
            Severity.ERROR, "publication", _said(blocker), _reader(blocker, readers), rules.place, "", blocker.sql
        )
    if report.missing:
        listed = ", ".join(map(str, sorted(report.missing)))
        message = f"publication {quote(report.publication)} does not carry {listed}"
        ours = rules.manage_publication and report.manageable
        hint = "penstock run adds them." if ours else "Let an owner of the tables add them."
        severity = Severity.NOTE if ours else Severity.ERROR
        yield Diagnostic(severity, "not-published", message, "", rules.place, hint, _addition(report))
    for note in report.notes:
        yield Diagnostic(Severity.NOTE, "publication", note, "", rules.place)


def _addition(report: CoverageReport) -> str:
    """What of the report's SQL is not for a blocker: the statements that add the tables."""
    others = {line for blocker in report.blockers for line in blocker.sql.splitlines()}
    return "\n".join(sql for sql in report.sql if not others.issuperset(sql.splitlines()))


def check_identity(
    report: CoverageReport, traced: CoverageReport, readers: Readers, rules: SourceRules
) -> Iterator[Diagnostic]:
    """What keeps changes from being traced to their documents: found only where the traced columns are asked for."""
    if rules.manage_replica_identity:
        severity, hint = Severity.NOTE, "penstock run sets it (manage_replica_identity)."
    elif rules.untraceable_is_fatal:
        severity, hint = Severity.ERROR, "Run the SQL, or set manage_replica_identity = true."
    else:
        severity, hint = Severity.WARNING, 'Documents will go wrong there (untraceable = "warn").'
    for blocker in traced.blockers:
        if blocker not in report.blockers:
            index = _reader(blocker, readers)
            yield Diagnostic(severity, "untraceable", _said(blocker), index, rules.place, hint, blocker.sql)


def _said(blocker: Blocker) -> str:
    return f"{blocker.table}: {blocker.reason}" if blocker.table else blocker.reason


def _reader(blocker: Blocker, readers: Readers) -> str:
    return readers.get(blocker.table, "") if blocker.table else ""


def check_server(
    conn: SqlConnection, settings: ConnectionSettings, state: ServerState, rules: SourceRules
) -> Iterator[Diagnostic]:
    """Whether a stream can be read: WAL level, the slot or room for one, a free walsender, the right to replicate."""
    if state.in_recovery:
        yield _server(
            "standby", "the server is a standby; changes are read from the primary", "Connect to the primary."
        )
    if state.wal_level != "logical":
        hint = "Then restart the server. Managed services have a setting of their own for this, such as"
        hint += " rds.logical_replication or cloudsql.logical_decoding."
        message = f"the server has wal_level = {state.wal_level}; logical is needed"
        yield _server("wal-level", message, hint, "ALTER SYSTEM SET wal_level = 'logical';")
    yield from _slot(conn, state, rules)
    try:
        try_replication(settings)
    except RetryableError:
        raise
    except PenstockError as error:
        yield _server("replication", error.message, error.hint)


def _slot(conn: SqlConnection, state: ServerState, rules: SourceRules) -> Iterator[Diagnostic]:
    found = slot.inspect(conn, rules.slot)
    if found is not None:
        try:
            slot.verify(found, state.database)
        except PenstockError as error:
            yield _server("slot", error.message, error.hint)
    elif state.slots >= state.max_slots:
        message = (
            f"all {state.max_slots} replication slots are in use, and slot {quote(rules.slot)} is still to be made"
        )
        hint = "Drop one that nobody reads (penstock slots list), or raise the number and restart the server."
        yield _server("no-slot", message, hint, f"ALTER SYSTEM SET max_replication_slots = {state.max_slots + 4};")


def _server(code: str, message: str, hint: str, sql: str = "") -> Diagnostic:
    return Diagnostic(Severity.ERROR, code, message, hint=hint, sql=sql)
