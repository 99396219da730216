"""What the catalog says of a publication: its options, what it was told to hold, and what it streams because of that.

Guarantees: one snapshot; no lock on any table. That is why the view pg_publication_tables is not asked: from 16 on it
opens every table, and would wait behind a VACUUM FULL of one of them. The same rules are spelled out here instead.
Deliberately not: any judgement.
"""

from __future__ import annotations

from typing import Any

from penstock.model import Op, QualifiedTable
from penstock.postgres.catalog import SqlConnection, one_snapshot
from penstock.postgres.observation import PublicationInfo, PublishedTable
from penstock.postgres.sqlstate import translating


def read_publication(conn: SqlConnection, publication: str) -> PublicationInfo | None:
    """The publication as it is now, or None."""
    version = conn.info.server_version
    with translating("reading the publication"), one_snapshot(conn):
        row: Any = conn.execute(options_sql(version), [publication]).fetchone()
        if row is None:
            return None
        oid, owner, all_tables, via_root, operations, generated, schemas = row
        listed = conn.execute(_LISTED, [oid]).fetchall()
        told = {"publication": oid, "all_tables": all_tables, "via_root": via_root}
        published = conn.execute(published_sql(version), told).fetchall()
    return PublicationInfo(
        owner=owner,
        all_tables=all_tables,
        via_root=via_root,
        operations=frozenset(map(Op, operations)),
        generated=generated,
        schemas=frozenset(schemas),
        listed=frozenset(QualifiedTable(*name) for name in listed),
        published={
            QualifiedTable(schema, name): PublishedTable(None if columns is None else tuple(columns), filtered)
            for schema, name, columns, filtered in published
        },
    )


def options_sql(version: int) -> str:
    """One row for a publication, in the columns that this version of the catalog has."""
    schemas = (
        "ARRAY(SELECT n.nspname::text FROM pg_catalog.pg_publication_namespace s"
        " JOIN pg_catalog.pg_namespace n ON n.oid = s.pnnspid WHERE s.pnpubid = p.oid)"
    )
    return f"""
SELECT p.oid, pg_catalog.pg_get_userbyid(p.pubowner)::text, p.puballtables, p.pubviaroot,
       pg_catalog.array_remove(ARRAY[CASE WHEN p.pubinsert THEN 'insert' END, CASE WHEN p.pubupdate THEN 'update' END,
                                     CASE WHEN p.pubdelete THEN 'delete' END,
                                     CASE WHEN p.pubtruncate THEN 'truncate' END], NULL),
       {"p.pubgencols = 's'" if version >= 180000 else "false"},
       {schemas if version >= 150000 else "'{}'::text[]"}
FROM pg_catalog.pg_publication p WHERE p.pubname = %s::name
"""


_LISTED = """
SELECT n.nspname::text, c.relname::text
FROM pg_catalog.pg_publication_rel r
JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE r.prpubid = %s
"""

_OF_SCHEMAS = """
    UNION
    SELECT c.oid FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_publication_namespace s ON s.pnnspid = c.relnamespace AND s.pnpubid = %(publication)s
    WHERE c.relkind IN ('r', 'p') AND pg_catalog.pg_relation_is_publishable(c.oid)"""

# A table of a published schema is published whole, whatever its own entry says.
_LISTING = """
       CASE WHEN r.prattrs IS NOT NULL THEN
           ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum = ANY (r.prattrs::int2[]) ORDER BY a.attnum) END,
       r.prqual IS NOT NULL"""

_OWN_ENTRY = """
LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = %(publication)s AND r.prrelid = c.oid
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s
                      WHERE s.pnpubid = %(publication)s AND s.pnnspid = c.relnamespace)"""


def published_sql(version: int) -> str:
    """The tables under whose names changes are streamed, with column list and filter (which came with 15).

    Members are what the publication was told to hold. A member's partitions are streamed as themselves, or, via the
    root, as the member that has no other member above it.
    """
    modern = version >= 150000
    return f"""
WITH RECURSIVE members (oid) AS (
    SELECT r.prrelid FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = %(publication)s
    UNION
    SELECT c.oid FROM pg_catalog.pg_class c
    WHERE %(all_tables)s AND c.relkind IN ('r', 'p') AND pg_catalog.pg_relation_is_publishable(c.oid)
    {_OF_SCHEMAS if modern else ""}
), family (oid, is_below) AS (
    SELECT m.oid, false FROM members m
    UNION
    SELECT i.inhrelid, true FROM family f
    JOIN pg_catalog.pg_class p ON p.oid = f.oid AND p.relkind = 'p'
    JOIN pg_catalog.pg_inherits i ON i.inhparent = f.oid AND NOT i.inhdetachpending
)
SELECT n.nspname::text, c.relname::text, {_LISTING if modern else "NULL::text[], false"}
FROM (SELECT f.oid, pg_catalog.bool_or(f.is_below) AS is_below FROM family f GROUP BY f.oid) f
JOIN pg_catalog.pg_class c ON c.oid = f.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
{_OWN_ENTRY if modern else ""}
WHERE CASE WHEN %(via_root)s THEN NOT f.is_below ELSE c.relkind <> 'p' END
  AND pg_catalog.pg_relation_is_publishable(c.oid)
ORDER BY n.nspname, c.relname
"""
