"""A deployment proposed for a database: what is there is looked at, schemas are proposed, and checked at once.

Guarantees: the database is only read, as by `check`. What the server would not let Penstock keep (a table that this
role may not read, that cannot be published without breaking writes, whose changes cannot be traced) is left out, each
with its reason, so that what is proposed passes `check`. No secret gets into a file: the connection is the name of a
variable. Deliberately not: writing files (`cli`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.config.file import NAMES
from penstock.config.proposal import DeploymentDraft, deployment_text
from penstock.document.binding import bind
from penstock.document.check import Facts
from penstock.document.check_live import LiveReport, check_live
from penstock.document.check_source import SourceRules
from penstock.document.proposal import Proposal, propose
from penstock.document.proposal_links import Survey, own_key
from penstock.document.proposal_tables import Roots, choose_roots, has_fields, unfit_tables
from penstock.document.proposal_text import schema_text
from penstock.document.reading import read_schema
from penstock.document.spec import SourceSpec
from penstock.errors import ConfigError, PenstockError
from penstock.model import QualifiedTable
from penstock.postgres import slot
from penstock.postgres.access import read_access
from penstock.postgres.catalog import SqlConnection, read_tables
from penstock.postgres.connection import open_sql
from penstock.postgres.coverage import decide
from penstock.postgres.observation import Observation
from penstock.postgres.publication_catalog import read_publication
from penstock.postgres.sqlstate import translating
from penstock.postgres.type_catalog import read_types

if TYPE_CHECKING:
    from penstock.postgres.settings import ConnectionSettings

# As for a check: catalog questions take milliseconds.
_STATEMENT_TIMEOUT_S, _LOCK_TIMEOUT_S = 60.0, 5.0
_MOST_INDEXES = 50

# What an extension brought along is its own.
_OF_EXTENSIONS = """
SELECT n.nspname::text, c.relname::text
FROM pg_catalog.pg_depend d
JOIN pg_catalog.pg_class c ON d.classid = 'pg_catalog.pg_class'::regclass AND c.oid = d.objid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE d.deptype = 'e'
"""


@dataclass(frozen=True, slots=True)
class Draft:
    """A deployment that was proposed: its files by name, its indexes, and what is no index and why."""

    files: Mapping[str, str]
    proposals: tuple[Proposal, ...]
    parts: Mapping[QualifiedTable, str]
    left_out: Mapping[QualifiedTable, str]
    report: LiveReport

    def file_of(self, proposal: Proposal) -> str:
        """The name of a proposal's schema file."""
        return _file(proposal.schema.index)


@dataclass(frozen=True, slots=True)
class _Choice:
    """Schemas that the server would let us keep, and what that asks for."""

    proposals: list[Proposal]
    roots: Roots
    left_out: Mapping[QualifiedTable, str]
    reidentified: tuple[QualifiedTable, ...]
    slot: str


def draft(
    settings: ConnectionSettings,
    tables: Sequence[QualifiedTable],
    sink: str,
    progress: Callable[[str], None] = lambda step: None,
) -> Draft:
    """Propose a deployment: for these tables, or for those that seem to deserve an index."""
    progress("the catalog")
    with open_sql(settings, statement_timeout_s=_STATEMENT_TIMEOUT_S, lock_timeout_s=_LOCK_TIMEOUT_S) as conn:
        choice = _choose(conn, settings, tables)
    texts = {one.schema.index: schema_text(one) for one in choice.proposals}
    schemas = [read_schema(text, index) for index, text in texts.items()]
    rules = SourceRules(slot=choice.slot, manage_replica_identity=bool(choice.reidentified))
    report = check_live(settings, schemas, rules, progress)
    schema_files = {index: _file(index) for index in texts}
    deployment = DeploymentDraft(schema_files, sink, choice.slot, choice.reidentified)
    files = {NAMES[0]: deployment_text(settings, deployment)}
    files |= {_file(index): text for index, text in texts.items()}
    return Draft(files, tuple(choice.proposals), choice.roots.others, choice.left_out, report)


def _choose(conn: SqlConnection, settings: ConnectionSettings, tables: Sequence[QualifiedTable]) -> _Choice:
    survey = _survey(conn)
    while True:
        roots = _named(survey, tables) if tables else _found(survey, settings)
        proposals = propose(survey, roots.tables)
        refused, reidentified = _judged(conn, survey, proposals)
        if not refused:
            break
        survey = replace(survey, unfit={**survey.unfit, **refused})
    return _Choice(proposals, roots, survey.unfit, reidentified, _slot(conn, settings))


def _survey(conn: SqlConnection) -> Survey:
    """The catalog, without what belongs to extensions; what this role may not read is found out, too."""
    with translating("reading the catalog"):
        foreign = {QualifiedTable(*row) for row in slot.execute(conn, _OF_EXTENSIONS)}
    found = {table: info for table, info in read_tables(conn).items() if table not in foreign}
    types = read_types(conn, [column.type_oid for info in found.values() for column in info.columns])
    facts = Facts(found, types)
    unfit = unfit_tables(facts)
    unreadable: dict[QualifiedTable, Collection[str]] = {}
    wanted = {table: [column.name for column in info.columns] for table, info in found.items() if table not in unfit}
    for table, access in read_access(conn, wanted).items():
        unreadable[table] = access.unreadable
        needed = {*own_key(found[table])} & {*access.unreadable}
        if not access.schema_usable or needed or not has_fields(found[table], facts, access.unreadable):
            unfit[table] = "this role may not read it"
        elif access.row_security:
            unfit[table] = "row-level security applies to this role, and would hide rows from it"
    return Survey(facts, unfit, unreadable)


def _named(survey: Survey, tables: Sequence[QualifiedTable]) -> Roots:
    for table in tables:
        info = survey.facts.tables.get(table)
        if info is None:
            raise ConfigError(f"there is no table {table}", hint=f"There are: {_listed(survey.facts.tables)}.")
        if info.ancestors:
            raise ConfigError(f"{table} is a partition of {info.root}", hint=f"Name {info.root} instead.")
        if reason := survey.unfit.get(table):
            raise ConfigError(f"{table} cannot become an index: {reason}", hint="Name another table, or fix that.")
    return Roots(tuple(dict.fromkeys(tables)))


def _found(survey: Survey, settings: ConnectionSettings) -> Roots:
    roots = choose_roots(survey)
    if not roots.tables:
        reasons = "; ".join(f"{table}: {reason}" for table, reason in sorted(survey.unfit.items())[:5])
        raise ConfigError(
            f"database {settings.database} has no table that could become an index" + (f" ({reasons})" * bool(reasons)),
            hint="Connect to the database that holds the tables, as a role that may read them.",
        )
    if len(roots.tables) > _MOST_INDEXES:
        raise ConfigError(
            f"{len(roots.tables)} tables could each become an index",
            hint=f"Name those that you want with --table: {_listed(roots.tables)}.",
        )
    return roots


def _listed(tables: Collection[QualifiedTable]) -> str:
    names = [str(table) for table in sorted(tables)]
    return ", ".join(names[:20]) + (" …" if len(names) > 20 else "")


def _judged(
    conn: SqlConnection, survey: Survey, proposals: Sequence[Proposal]
) -> tuple[dict[QualifiedTable, str], tuple[QualifiedTable, ...]]:
    """What no right to publish would let us keep, and the tables whose replica identity has to change."""
    spec = SourceSpec([bind(one.schema, survey.facts.tables) for one in proposals])
    with translating("reading the publication"):
        published = read_publication(conn, "penstock")
    seen = Observation("penstock", conn.info.server_version, published, survey.facts.tables)
    plain = decide(seen, spec.all_tables)
    traced = decide(seen, spec.all_tables, spec.thin_columns())
    hard = [*plain.blockers, *(one for one in traced.blockers if not one.sql)]
    refused = {_whole(survey, one.table): one.reason for one in hard if one.table}
    soft = {_whole(survey, one.table) for one in traced.blockers if one.table and one not in plain.blockers}
    return refused, tuple(sorted(soft))


def _whole(survey: Survey, table: QualifiedTable) -> QualifiedTable:
    """The table that a partition is a part of."""
    return survey.info(table).root if table in survey.facts.tables else table


def _slot(conn: SqlConnection, settings: ConnectionSettings) -> str:
    """The usual name, unless a slot of that name serves something else: slots are the whole server's."""
    found = slot.inspect(conn, "penstock")
    try:
        if found is not None:
            slot.verify(found, settings.database)
    except PenstockError:
        letters = "".join(one if one.isascii() and one.isalnum() else "_" for one in settings.database.lower())
        return f"penstock_{letters}"[:63]
    return "penstock"


def _file(index: str) -> str:
    return f"{index}.schema.yml"
