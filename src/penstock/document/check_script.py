"""One script for an administrator: the role and its rights, identities and publication, indexes that are missing.

Guarantees: it can be run as a whole, statement by statement, and again; what it says about identities and publication
is exact for the database as it was looked at. Deliberately not: a password, which is set by hand, and running it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.document.check_live import LiveReport, mending
from penstock.document.schema import DocumentSchema
from penstock.model import literal, quote


@dataclass(frozen=True, slots=True)
class Section:
    """Statements that belong together, under a sentence that says what they do."""

    title: str
    statements: tuple[str, ...]


def script(report: LiveReport, schemas: Sequence[DocumentSchema], role: str, database: str) -> list[Section]:
    """What is to be run, in order, for `role` to keep these documents."""
    return [section for section in _sections(report, schemas, role, database) if section.statements]


def render(sections: Sequence[Section], database: str) -> str:
    """The script as text, for psql."""
    head = f"-- Run in database {quote(database)} as a role that may, for example: psql -v ON_ERROR_STOP=1 -f FILE\n"
    parts = [f"-- {section.title}\n" + "".join(f"{one}\n" for one in section.statements) for section in sections]
    return "\n".join([head, *parts])


def _sections(report: LiveReport, schemas: Sequence[DocumentSchema], role: str, database: str) -> Iterator[Section]:
    yield Section("The WAL carries row changes; takes effect when the server restarts.", _of(report, "wal-level"))
    yield Section("Room for one more slot; takes effect when the server restarts.", _of(report, "no-slot"))
    yield Section("The role, which gets its password by hand: \\password. Managed services grant replication in their"
                  " own way.", tuple(_role(report, role)))  # fmt: skip
    yield Section("What it reads.", tuple(_grants(schemas, role, database)))
    yield Section("Replica identities, so that deletes and moves are traced; the publication.", _publication(report))
    yield Section("Indexes over links, so that a change is no scan.", _of(report, "index-missing"))


def _of(report: LiveReport, code: str) -> tuple[str, ...]:
    return tuple(mending(report.diagnostics, code))


def _role(report: LiveReport, role: str) -> Iterator[str]:
    yield (
        f"DO $do$ BEGIN IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {literal(role)}) THEN"
        f" CREATE ROLE {quote(role)} LOGIN; END IF; END $do$;"
    )
    yield f"ALTER ROLE {quote(role)} LOGIN REPLICATION;"
    if mending(report.diagnostics, "row-security"):
        yield f"ALTER ROLE {quote(role)} BYPASSRLS;"


def _grants(schemas: Sequence[DocumentSchema], role: str, database: str) -> Iterator[str]:
    tables = sorted({table for schema in schemas for table in schema.tables})
    yield f"GRANT CONNECT ON DATABASE {quote(database)} TO {quote(role)};"
    for name in sorted({table.schema for table in tables}):
        yield f"GRANT USAGE ON SCHEMA {quote(name)} TO {quote(role)};"
    yield f"GRANT SELECT ON {', '.join(table.sql for table in tables)} TO {quote(role)};"


def _publication(report: LiveReport) -> tuple[str, ...]:
    return report.coverage.sql if report.coverage else ()
