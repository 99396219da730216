"""Which tables of a database can become documents, and which of them deserve an index of their own.

Guarantees: pure, in a fixed order; each table that is no index comes with the reason. An index is proposed for what
others refer to and for what stands alone; a junction, a part of something else and a list of words are shown inside
the documents that they belong to. Deliberately not: rights and publications, which only the server can judge.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from penstock.document.check import Facts
from penstock.document.proposal_columns import LeftOut, deletion_column, is_stamp, propose_field
from penstock.document.proposal_links import Survey, hindrance, junction, own_key, owned
from penstock.model import QualifiedTable
from penstock.postgres import identity
from penstock.postgres.catalog import Persistence, TableInfo, TableKind

# What tools that change tables write down for themselves.
_HOUSEKEEPING = re.compile(r"migrations?$|schema_history|databasechangelog", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Roots:
    """The tables that get an index, and of the other fitting ones, why they get none."""

    tables: tuple[QualifiedTable, ...] = ()
    others: dict[QualifiedTable, str] = field(default_factory=dict)


def unfit_tables(facts: Facts) -> dict[QualifiedTable, str]:
    """The tables that no document can be made of, and why. Partitions are not among them: they are parts."""
    return {
        table: reason
        for table, info in facts.tables.items()
        if not info.ancestors and (reason := _unfit(info, facts))
    }  # fmt: skip


def _unfit(info: TableInfo, facts: Facts) -> str:
    if info.kind not in (TableKind.TABLE, TableKind.PARTITIONED):
        return f"it is a {info.kind}: Postgres streams changes of tables only"
    if info.persistence is not Persistence.PERMANENT or not info.publishable:
        return f"it is {info.persistence}: its changes are not streamed"
    if info.inheritors:
        return "other tables inherit from it, and their changes are not its own"
    for member in (info, *(facts.tables[leaf] for leaf in info.partitions if leaf in facts.tables)):
        if flaw := identity.flaw(member):
            return flaw if member is info else f"{flaw} (its partition {member.table})"
    if not own_key(info):
        return "it has no primary key, and no unique index over NOT NULL columns stands in for it"
    return "" if has_fields(info, facts) else "no column of it fits into a document"


def has_fields(info: TableInfo, facts: Facts, unreadable: Collection[str] = ()) -> bool:
    """Whether a document of it shows anything: what marks a row as deleted is no field."""
    shown = (one for one in info.columns if one.name not in unreadable and one != deletion_column(info, facts))
    return any(not isinstance(propose_field(one, facts.types.get(one.type_oid), "key"), LeftOut) for one in shown)


def choose_roots(survey: Survey) -> Roots:
    """The tables that get an index where nobody named any."""
    fit = [table for table, info in sorted(survey.facts.tables.items()) if _is_candidate(survey, table, info)]
    listed = {table for table in fit if _is_list_of_words(survey, table)}
    others = {table: reason for table in fit if (reason := _why_not(survey, table, listed))}
    roots = [table for table in fit if table not in others]
    if not roots:  # nothing but small tables: then these are what the database is about
        roots = [table for table in fit if not junction(survey, table)]
    return Roots(tuple(roots), {table: reason for table, reason in others.items() if table not in roots})


def _is_candidate(survey: Survey, table: QualifiedTable, info: TableInfo) -> bool:
    return table not in survey.unfit and not info.ancestors


def _why_not(survey: Survey, table: QualifiedTable, listed: Collection[QualifiedTable]) -> str:
    """Why a table gets no index of its own; empty where it gets one."""
    info = survey.info(table)
    if ends := junction(survey, table):
        return f"it links {ends[0].references} and {ends[1].references}"
    if _HOUSEKEEPING.search(table.name):
        return "it looks like the notes of a tool that changes tables"
    if table in listed:
        return f"it is a list of words, shown inside {_named(_showing(survey, table))}"
    above = {parent for parent in _referred(survey, table) if parent not in listed and _shows(survey, parent, table)}
    if above and not set(_referring(survey, table)) - {table}:
        return f"it is a part of {_named(above)}"
    if set(own_key(info)) == {column.name for column in info.columns} and not set(_referring(survey, table)):
        return "it has nothing but its key"
    return ""


def _is_list_of_words(survey: Survey, table: QualifiedTable) -> bool:
    info = survey.info(table)
    rest = [one.name for one in info.columns if one.name not in own_key(info) and not is_stamp(one.name)]
    return len(rest) <= 1 and not info.foreign_keys and bool(set(_referring(survey, table)))


def _referring(survey: Survey, table: QualifiedTable) -> Iterator[QualifiedTable]:
    yield from (key.table for key in survey.info(table).referenced_by if not hindrance(survey, key))


def _referred(survey: Survey, table: QualifiedTable) -> Iterator[QualifiedTable]:
    yield from (key.references for key in survey.info(table).foreign_keys if not hindrance(survey, key))


def _showing(survey: Survey, table: QualifiedTable) -> Iterator[QualifiedTable]:
    """The tables whose documents show its rows: those that refer to it, and those at the far end of a junction."""
    for holder in _referring(survey, table):
        ends = junction(survey, holder)
        yield from (end.references for end in ends if end.references != table) if ends else (holder,)


def _shows(survey: Survey, parent: QualifiedTable, table: QualifiedTable) -> bool:
    return any(link.table == table for link in owned(survey, parent))


def _named(tables: Collection[QualifiedTable] | Iterator[QualifiedTable]) -> str:
    return ", ".join(map(str, sorted(set(tables))))
