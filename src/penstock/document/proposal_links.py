"""Which joins the foreign keys of a catalog offer: from each table to one row, or to many, of another.

Guarantees: pure, in a fixed order; a link that is offered passes `check_links`: its columns stand in the order of the
key that they point at, can be compared with it, and can be traced. What cannot be joined is named with the reason.
Deliberately not: how deep to join, which is `proposal`'s decision.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from penstock.document import types
from penstock.document.check import Facts
from penstock.document.proposal_columns import is_stamp
from penstock.document.schema import Columns, JoinKind, Through
from penstock.model import QualifiedTable
from penstock.postgres.catalog import ForeignKey, TableInfo

# Who wrote a row is told of many tables; a list of all that somebody ever touched serves nobody.
_WRITER = re.compile(r"(created|inserted|updated|modified|changed|edited|deleted|removed)_?by(_?id)?", re.IGNORECASE)
_POINTER = re.compile(r"(.+?)(?:_(?i:id|uuid|fk|key|code|no|ref)|Id|ID|Uuid|UUID)")


@dataclass(frozen=True, slots=True)
class Survey:
    """What is known of a database: its catalog, the tables that cannot be joined and why, columns that are hidden."""

    facts: Facts
    unfit: Mapping[QualifiedTable, str] = field(default_factory=dict)
    unreadable: Mapping[QualifiedTable, Collection[str]] = field(default_factory=dict)

    def info(self, table: QualifiedTable) -> TableInfo:
        """A table that exists."""
        return self.facts.tables[table]

    def is_readable(self, table: QualifiedTable, column: str) -> bool:
        """Whether this role may read the column."""
        return column not in self.unreadable.get(table, ())


@dataclass(frozen=True, slots=True)
class Link:
    """A join that a foreign key offers. `columns` are ours for belongs_to and theirs for has_one and has_many.

    `primary_key` is given where it is not the other table's own; `wishes` are names for it, the best first.
    """

    kind: JoinKind
    table: QualifiedTable
    columns: Columns
    wishes: tuple[str, ...]
    primary_key: Columns = ()
    through: Through | None = None
    required: bool = False


def own_key(info: TableInfo) -> Columns:
    """What tells its rows apart: the primary key, else the narrowest unique index over NOT NULL columns."""
    if info.primary_key:
        return info.primary_key
    found = sorted((index.columns for index in info.indexes if index.identifies), key=len)
    return found[0] if found else ()


def named_key(info: TableInfo) -> Columns:
    """The key as a schema has to name it: not at all where it is the primary key."""
    return () if info.primary_key else own_key(info)


def belonging(survey: Survey, table: QualifiedTable) -> Iterator[Link]:
    """The rows that a row of this table points at: one for each foreign key that fits."""
    nullable = {column.name for column in survey.info(table).columns if column.nullable}
    for key in _outgoing(survey, table):
        if any(_WRITER.fullmatch(name) for name in key.columns):
            continue
        target = survey.info(key.references)
        aligned = _aligned(key, own_key(target))
        theirs = named_key(target) if aligned else key.referenced_columns
        wishes = (_pointed(key), key.references.name, key.name)
        required = nullable.isdisjoint(key.columns)
        yield Link(JoinKind.BELONGS_TO, key.references, aligned or key.columns, wishes, theirs, required=required)


def owned(survey: Survey, table: QualifiedTable) -> Iterator[Link]:
    """The rows that point at a row of this table: has_one where only one can, else has_many; junctions aside."""
    incoming = [key for key in _incoming(survey, table) if not junction(survey, key.table)]
    several = {key.table for key in incoming if sum(other.table == key.table for other in incoming) > 1}
    for key in incoming:
        columns, child = _aligned(key, own_key(survey.info(table))), survey.info(key.table)
        if not columns or any(_WRITER.fullmatch(name) for name in columns) or key.table == table:
            continue
        longer = f"{key.table.name}_as_{_pointed(key)}"
        wishes = (longer,) if key.table in several else (key.table.name, longer)
        kind = JoinKind.HAS_ONE if _is_unique(child, columns) else JoinKind.HAS_MANY
        yield Link(kind, key.table, columns, wishes, named_key(child))


def associated(survey: Survey, table: QualifiedTable) -> Iterator[Link]:
    """The rows that junctions tie to a row of this table."""
    for key in _incoming(survey, table):
        ends = junction(survey, key.table)
        if not ends:
            continue
        other = ends[1] if key == ends[0] else ends[0]
        left = _aligned(key, own_key(survey.info(table)))
        right = _aligned(other, own_key(survey.info(other.references)))
        if left and right:
            wishes = (other.references.name, _pointed(other), f"{other.references.name}_by_{key.table.name}")
            yield Link(
                JoinKind.MANY_TO_MANY, other.references, (), wishes[1:] if other.references == table else wishes,
                named_key(survey.info(other.references)), Through(key.table, left, right),
            )  # fmt: skip


def junction(survey: Survey, table: QualifiedTable) -> tuple[ForeignKey, ForeignKey] | None:
    """The two ends of a table that does nothing but link two others; None for any other."""
    info = survey.info(table)
    keys = list(_outgoing(survey, table))
    if len(keys) != 2 or len(info.foreign_keys) != 2 or info.referenced_by or set(keys[0].columns) & {*keys[1].columns}:
        return None
    linking = {*keys[0].columns, *keys[1].columns, *info.primary_key}
    payload = [column.name for column in info.columns if column.name not in linking and not is_stamp(column.name)]
    return None if payload else (keys[0], keys[1])


def hindrance(survey: Survey, key: ForeignKey) -> str:
    """Why a foreign key cannot be joined over; empty where it can."""
    facts = survey.facts
    for table, columns in ((key.table, key.columns), (key.references, key.referenced_columns)):
        if table in survey.unfit or table not in facts.tables:
            return f"{table} is left out"
        if root := facts.tables[table].partition_of:
            return f"{table} is a partition of {root}"
        for name in columns:
            column = facts.column(table, name)
            if column is None or not survey.is_readable(table, name):
                return f"{name} of {table} may not be read"
            if column.generated:
                return f"{name} of {table} is generated"
    for here, there in zip(key.columns, key.referenced_columns, strict=True):
        one, other = facts.type(key.table, here), facts.type(key.references, there)
        if one is None or other is None or not types.comparable(one, other):
            return f"{here} of {key.table} and {there} of {key.references} are of different types"
    return ""


def _outgoing(survey: Survey, table: QualifiedTable) -> Iterator[ForeignKey]:
    yield from _distinct(key for key in survey.info(table).foreign_keys if not hindrance(survey, key))


def _incoming(survey: Survey, table: QualifiedTable) -> Iterator[ForeignKey]:
    yield from _distinct(key for key in survey.info(table).referenced_by if not hindrance(survey, key))


def _distinct(keys: Iterator[ForeignKey]) -> Iterator[ForeignKey]:
    """Each link once, though two constraints may say the same."""
    seen = set()
    for key in keys:
        link = (key.table, key.columns, key.references, key.referenced_columns)
        if link not in seen:
            seen.add(link)
            yield key


def _aligned(key: ForeignKey, target: Columns) -> Columns:
    """The columns of a foreign key in the order of the key that it points at; none where it points at another."""
    pairs = dict(zip(key.referenced_columns, key.columns, strict=True))
    return tuple(pairs[name] for name in target) if set(pairs) == set(target) else ()


def _pointed(key: ForeignKey) -> str:
    """What a foreign key calls the row that it points at: user of user_id; without such a column, the table's name."""
    if len(key.columns) != 1:
        return key.references.name
    found = _POINTER.fullmatch(key.columns[0])
    return found[1] if found else key.columns[0]


def _is_unique(info: TableInfo, columns: Columns) -> bool:
    whole = (i for i in info.indexes if i.unique and i.valid and not i.partial and not i.expression)
    return any(set(index.columns) <= set(columns) for index in whole)
