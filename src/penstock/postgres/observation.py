"""What was seen of a publication and of the tables in question, and through which published table a row travels.

Guarantees: frozen values, no I/O. A partition's changes travel as its own or, under publish_via_partition_root, as
those of the topmost published table above it; which of both holds is the server's answer (`published`), not a guess.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from penstock.model import Op, QualifiedTable
from penstock.postgres.catalog import ColumnInfo, TableInfo, TableKind


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """How one table is published: its column list (None without one), and whether a filter drops rows of it."""

    columns: tuple[str, ...] | None = None
    filtered: bool = False


@dataclass(frozen=True, slots=True)
class PublicationInfo:
    """One publication. `published` is what the server streams now, by the name it streams it under.

    `listed` and `schemas` are what the publication was told (tables one by one, and whole schemas).
    """

    owner: str
    all_tables: bool = False
    via_root: bool = False
    operations: frozenset[Op] = frozenset(Op)
    generated: bool = False
    schemas: frozenset[str] = frozenset()
    listed: frozenset[QualifiedTable] = frozenset()
    published: Mapping[QualifiedTable, PublishedTable] = field(default_factory=dict)

    def names(self, info: TableInfo) -> bool:
        """Whether a table, or one above it, was put into the publication: a later partition of it is in, too."""
        family = {info.table, *info.ancestors}
        return self.all_tables or bool(family & self.listed) or any(table.schema in self.schemas for table in family)


def carried(info: TableInfo, publication: PublicationInfo | None) -> tuple[ColumnInfo, ...]:
    """The columns of a table that a publication sends, or would send: of generated ones, those it was told to."""
    found = [publication.published.get(table) for table in (info.table, *info.partitions)] if publication else []
    lists = [one.columns for one in found if one] or [None]
    stored = publication is not None and publication.generated

    def is_sent(column: ColumnInfo, listed: Collection[str] | None) -> bool:
        if listed is not None:
            return column.name in listed
        return not column.generated or (stored and column.generated == "stored")

    return tuple(column for column in info.columns if all(is_sent(column, listed) for listed in lists))


@dataclass(frozen=True, slots=True)
class Observation:
    """The state a verdict rests on. `tables` holds the required tables and every partition below and table above."""

    name: str
    server_version: int
    publication: PublicationInfo | None
    tables: Mapping[QualifiedTable, TableInfo]

    @property
    def is_18(self) -> bool:
        """Whether the server is of the majors that publish stored generated columns, and insist on it (18 on)."""
        return self.server_version >= 180000

    @property
    def published(self) -> Mapping[QualifiedTable, PublishedTable]:
        """What the publication streams; nothing where it does not exist."""
        return self.publication.published if self.publication else {}

    @property
    def via_root(self) -> bool:
        """Whether partitions are streamed under the name of the table above them."""
        return self.publication is not None and self.publication.via_root

    def leaves(self, info: TableInfo) -> tuple[TableInfo, ...]:
        """The tables that hold its rows: itself, or its partitions."""
        if info.kind is not TableKind.PARTITIONED:
            return (info,)
        return tuple(self.tables[leaf] for leaf in info.partitions if leaf in self.tables)

    def carrier(self, info: TableInfo) -> QualifiedTable | None:
        """The table under whose name its changes are streamed now, or None."""
        return next((table for table in (*reversed(info.ancestors), info.table) if table in self.published), None)


class Standing(Enum):
    """Whether a required table's changes are in the stream."""

    PRESENT = "present"
    MISSING = "missing"
    ABSORBED = "streamed under the name of a table above it"


def standing(seen: Observation, info: TableInfo) -> Standing:
    """Present is a table all of whose rows travel under its own name or under that of its partitions."""
    leaves = [leaf for leaf in seen.leaves(info) if leaf.publishable]
    carriers = {seen.carrier(leaf) for leaf in leaves or [info]}
    if carriers & set(info.ancestors):
        return Standing.ABSORBED
    if not leaves and seen.publication is not None and seen.publication.names(info):
        return Standing.PRESENT  # partitioned, and empty so far
    return Standing.MISSING if None in carriers else Standing.PRESENT
