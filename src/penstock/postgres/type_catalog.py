"""What the types of columns really are: domains looked through, arrays told from their elements, enums known.

Guarantees: one statement for all of them; a type outside pg_catalog is named with its schema. Deliberately not: which
type serves for what (`document.types`), and how values are read (`values`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.postgres.catalog import SqlConnection, one_snapshot
from penstock.postgres.sqlstate import translating

# A domain stands for the type below it, an array for its elements; either may be over the other.
_TYPES = """
WITH RECURSIVE below (start, oid, is_array, depth) AS (
    SELECT asked.oid, asked.oid, false, 0 FROM pg_catalog.unnest(%s::oid[]) AS asked (oid)
    UNION ALL
    SELECT b.start, CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.typelem END, b.is_array OR t.typtype <> 'd',
           b.depth + 1
    FROM below b JOIN pg_catalog.pg_type t ON t.oid = b.oid
    WHERE t.typtype = 'd' OR (t.typcategory = 'A' AND t.typelem <> 0)
)
SELECT DISTINCT ON (b.start) b.start, t.typname::text, n.nspname::text, pg_catalog.format_type(t.oid, NULL),
       b.is_array, t.typtype = 'e'
FROM below b
JOIN pg_catalog.pg_type t ON t.oid = b.oid
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
ORDER BY b.start, b.depth DESC
"""


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """A type, or that of an array's elements. `short` is the catalog's name (int4), `name` that of SQL (integer)."""

    short: str
    schema: str
    name: str
    is_array: bool = False
    is_enum: bool = False

    def __str__(self) -> str:
        return f"{self.name}[]" if self.is_array else self.name


def read_types(conn: SqlConnection, oids: Iterable[int]) -> dict[int, TypeInfo]:
    """The types with these oids."""
    with translating("reading types"), one_snapshot(conn):
        rows = conn.execute(_TYPES, [sorted(set(oids))]).fetchall()
    return {oid: TypeInfo(*fields) for oid, *fields in rows}
