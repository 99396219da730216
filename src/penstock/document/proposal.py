"""A schema proposed for a table: its columns as fields, and what its foreign keys tie to it.

A document holds its row, the rows that it points at (and those that these point at), and the rows that point at it or
are tied to it by a junction, each with the rows that they point at in turn; no further. Guarantees: pure and
deterministic; no table occurs twice on the way down, but that a row may show the row of its own table that it points
at; what is proposed passes `check` on that catalog. What was left out is told in remarks. Deliberately not: which
tables (`proposal_tables`), and how it is written (`proposal_text`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.document.proposal_columns import (
    LeftOut,
    deletion_column,
    free_key,
    is_stamp,
    not_deleted,
    propose_field,
)
from penstock.document.proposal_links import (
    Link,
    Survey,
    associated,
    belonging,
    hindrance,
    named_key,
    own_key,
    owned,
)
from penstock.document.schema import DocumentSchema, Field, Geo, Join, JoinKind, Scalar, SoftDelete
from penstock.model import QualifiedTable
from penstock.postgres.catalog import ColumnInfo

Keys = tuple[str, ...]
"""The way down to a part of a document: the keys of the joins; empty for the root."""

_DEEPEST = 2
# More lists than these make a document that nobody reads and that every other change rewrites.
_MOST_LISTS = 8


@dataclass(frozen=True, slots=True)
class Proposal:
    """A schema, and what was left out of each part of it."""

    schema: DocumentSchema
    remarks: Mapping[Keys, tuple[str, ...]]


def propose(survey: Survey, tables: Sequence[QualifiedTable]) -> list[Proposal]:
    """A schema for each of these tables, which all have to fit."""
    names = index_names(tables)
    return [_Tree(survey).document(table, names[table]) for table in tables]


def index_names(tables: Sequence[QualifiedTable]) -> dict[QualifiedTable, str]:
    """A name for the index of each table: the table's, with its schema where another has the same."""
    plain = [_index_name(table.name) for table in tables]
    names: dict[QualifiedTable, str] = {}
    for table in tables:
        name = _index_name(table.name)
        wishes = [name] if plain.count(name) == 1 else [_index_name(f"{table.schema}_{table.name}")]
        names[table] = free_key(wishes, names.values())
    return names


def _index_name(name: str) -> str:
    """Lower-case ASCII letters, digits and underscores, which every sink takes."""
    ascii_only = unicodedata.normalize("NFKD", name.casefold()).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "_", ascii_only.lower()).strip("_")[:100] or "documents"


@dataclass(frozen=True, slots=True)
class _Place:
    """A table at one point of the tree; `above` are the tables on the way to it, `linking` the columns of the link."""

    table: QualifiedTable
    keys: Keys = ()
    above: tuple[QualifiedTable, ...] = ()
    linking: Collection[str] = ()

    @property
    def depth(self) -> int:
        return len(self.keys)


@dataclass(slots=True)
class _Tree:
    """One document being proposed."""

    survey: Survey
    remarks: dict[Keys, tuple[str, ...]] = field(default_factory=dict)

    def document(self, table: QualifiedTable, index: str) -> Proposal:
        info = self.survey.info(table)
        deleted = deletion_column(info, self.survey.facts)
        soft = SoftDelete(deleted.name) if deleted and self.survey.is_readable(table, deleted.name) else None
        fields = self._fields(_Place(table))
        schema = DocumentSchema(index, table, fields, named_key(info), soft_delete=soft)
        return Proposal(schema, {keys: told for keys, told in self.remarks.items() if told})

    def _fields(self, place: _Place) -> tuple[Field, ...]:
        links = self._links(place)
        # The joined row shows the key that a column points at; a document's own key is shown all the same.
        kept = () if place.depth else own_key(self.survey.info(place.table))
        pointing = (link.columns for link in links if link.kind is JoinKind.BELONGS_TO)
        replaced = {columns[0] for columns in pointing if len(columns) == 1 and columns[0] not in kept}
        plain, told = self._plain(place, replaced | set(place.linking))
        if not plain:  # then rather what says little than nothing
            plain, told = self._plain(_Place(place.table), ())
        told += self._unjoined(place)
        taken = {one.key for one in plain}
        joins: list[Join] = []
        for link in links:
            name = free_key(link.wishes, taken)
            taken.add(name)
            joins.append(self._join(place, link, name))
        self.remarks[place.keys] = (*told, *self.remarks.get(place.keys, ()))
        return (*plain, *joins)

    def _plain(self, place: _Place, without: Collection[str]) -> tuple[list[Scalar | Geo], list[str]]:
        """The row's own fields, and why some columns are none."""
        info = self.survey.info(place.table)
        deleted = deletion_column(info, self.survey.facts)
        fields: list[Scalar | Geo] = []
        told: list[str] = []
        for column in info.columns:
            if column.name in without or column == deleted or (place.depth and is_stamp(column.name)):
                continue
            found = self._field(place.table, column, {one.key for one in fields})
            if isinstance(found, LeftOut):
                told.append(f"{found.column} {found.reason}")
            else:
                fields.append(found)
        return fields, told

    def _field(self, table: QualifiedTable, column: ColumnInfo, taken: Collection[str]) -> Scalar | Geo | LeftOut:
        if not self.survey.is_readable(table, column.name):
            return LeftOut(column.name, "may not be read by this role")
        key = free_key([column.name], taken)
        return propose_field(column, self.survey.facts.types.get(column.type_oid), key)

    def _links(self, place: _Place) -> list[Link]:
        """The joins that fit here; of lists, as many as are sensible."""
        above = {place.table, *place.above}
        to_one = belonging(self.survey, place.table) if place.depth < _DEEPEST else ()
        found = [link for link in to_one if link.table not in above or _is_own(link, place)]
        if place.depth:
            return found
        to_many = [*owned(self.survey, place.table), *associated(self.survey, place.table)]
        if rest := to_many[_MOST_LISTS:]:
            tables = ", ".join(str(link.table) for link in rest)
            self.remarks[place.keys] = (f"rows of {tables} point here, too",)
        return [*found, *to_many[:_MOST_LISTS]]

    def _join(self, place: _Place, link: Link, key: str) -> Join:
        is_belonging = link.kind is JoinKind.BELONGS_TO
        linking = () if is_belonging or link.through else link.columns
        inner = _Place(link.table, (*place.keys, key), (place.table, *place.above), linking)
        info = self.survey.info(link.table)
        deleted = None if is_belonging else deletion_column(info, self.survey.facts)
        hidden = deleted and self.survey.is_readable(link.table, deleted.name)
        return Join(
            key,
            link.kind,
            link.table,
            self._fields(inner),
            column=link.columns if is_belonging else (),
            foreign_key=linking,
            through=link.through,
            primary_key=link.primary_key,
            filters=(not_deleted(deleted, self.survey.facts, info),) if deleted and hidden else (),
            required=link.required,
        )

    def _unjoined(self, place: _Place) -> Iterator[str]:
        for key in self.survey.info(place.table).foreign_keys:
            if reason := hindrance(self.survey, key):
                yield f"no join by {', '.join(key.columns)}: {reason}"


def _is_own(link: Link, place: _Place) -> bool:
    """A row may show the one of its own table that it points at."""
    return place.depth == 0 and link.table == place.table
