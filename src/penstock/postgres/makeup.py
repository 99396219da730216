"""What tables are made of beyond their rows, and what carries their changes: partitions, files, publication.

Rows that come or go with a partition, or are written anew by ALTER TABLE, are told by no row event; nor are those of a
table that is not published. Guarantees: one query, which reads the catalog only and locks nothing. A partition that was
made as one (and so was empty) is no reason, nor is a table that was only packed anew (VACUUM FULL, CLUSTER) or
truncated, which is told by an event. Deliberately not: noticing what came and went between two looks, but for a table
that left the publication and is back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from penstock.model import QualifiedTable
from penstock.postgres.catalog import SqlConnection
from penstock.postgres.sqlstate import translating

Makeup = dict[str, dict[str, Any]]
"""By OID, the table, then everything below it, in values that JSON has."""

# A table that is made as a partition is entered as one by the fourth command of its making; one that is attached in the
# transaction that makes it, later: there may be an INSERT in between.
_BORN_WITHIN = 4
# For each table asked for (`top`), itself and everything below it: `attached` says that it had a life before. The
# transaction that wrote a table's first system column is the one that made the table.
_SHAPES = """
WITH RECURSIVE tree (top, oid, attached) AS (
    SELECT c.oid, c.oid, false
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN unnest(%s::text[], %s::text[]) AS wanted (schema, name)
      ON n.nspname = wanted.schema::name AND c.relname = wanted.name::name
    UNION ALL
    SELECT t.top, i.inhrelid, t.attached OR i.xmin <> a.xmin OR i.cmin::text::int - a.cmin::text::int > {born_within}
    FROM tree t
    JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.inhrelid AND a.attnum = -1
), publication AS (
    SELECT p.oid, p.puballtables FROM pg_catalog.pg_publication p
    WHERE p.pubname = %s::name AND p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate
)
SELECT n.nspname::text, c.relname::text, t.oid::text, own.oid::pg_catalog.regclass::text, t.attached,
       own.relfilenode::text,
       (SELECT pg_catalog.json_object_agg(a.attnum, a.xmin::text) FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped),
       CASE WHEN own.relkind = 'r' AND (t.oid = t.top OR own.relispartition)
                 AND pg_catalog.pg_relation_is_publishable(own.oid)
            THEN ARRAY({entries} ORDER BY 1) END,
       {identity},
       CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN
           pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) END
FROM tree t
JOIN pg_catalog.pg_class c ON c.oid = t.top
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_class own ON own.oid = t.oid
ORDER BY t.oid <> t.top
"""
# What carries a table: entries of its own or of tables above it, or of a schema of theirs (from 15 on), or all tables.
_ABOVE = "(SELECT own.oid UNION SELECT a.relid::oid FROM pg_catalog.pg_partition_ancestors(own.oid) a)"
_ENTRIES = f"""SELECT 'table ' || r.oid FROM pg_catalog.pg_publication_rel r JOIN publication p ON p.oid = r.prpubid
            WHERE r.prrelid IN {_ABOVE}
            UNION SELECT 'all ' || p.oid FROM publication p WHERE p.puballtables"""
_OF_SCHEMAS = f"""
            UNION SELECT 'schema ' || s.oid FROM pg_catalog.pg_publication_namespace s
            JOIN publication p ON p.oid = s.pnpubid JOIN pg_catalog.pg_class x ON x.relnamespace = s.pnnspid
            WHERE x.oid IN {_ABOVE}"""
# The columns of an old row that the server sends; none stands for every one.
_IDENTITY = """CASE WHEN own.relreplident <> 'f' THEN
           ARRAY(SELECT a.attname::text FROM pg_catalog.pg_index i
                 CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
                 JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                 WHERE i.indrelid = own.oid AND i.indisvalid AND i.indimmediate AND k.place <= i.indnkeyatts
                   AND CASE own.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END) END"""


def read_makeups(
    connection: SqlConnection, tables: Collection[QualifiedTable], publication: str = ""
) -> tuple[dict[QualifiedTable, Makeup], str]:
    """What each table is made of now, nothing where there is no such table; and the server's timeline."""
    found: dict[QualifiedTable, Makeup] = {table: {} for table in sorted(tables)}
    timeline = ""
    with translating("reading the shape of tables"):
        entries = _ENTRIES + (_OF_SCHEMAS if connection.info.server_version >= 150000 else "")
        query = _SHAPES.format(born_within=_BORN_WITHIN, entries=entries, identity=_IDENTITY)
        names = [table.schema for table in found], [table.name for table in found], publication
        for schema, name, oid, shown, attached, file, columns, *told in connection.execute(query.encode(), names):
            one = {"name": shown, "attached": attached, "file": file, "columns": columns or {}}
            found[QualifiedTable(schema, name)][oid] = {**one, "entries": told[0], "identity": told[1]}
            timeline = told[2] or timeline
    return found, timeline


def changes(table: str, was: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Why rows may have changed without an event."""
    for oid in was.keys() - found.keys():
        yield f"{was[oid]['name']} is no longer a part of {table}"
    for oid, one in found.items():
        before = was.get(oid)
        if before is None:
            if one["attached"]:
                yield f"{one['name']} was attached to {table} with the rows it had"
        elif before["file"] != one["file"] and _is_altered(before["columns"], one["columns"]):
            yield f"the rows of {one['name']} were written anew by ALTER TABLE"


def unpublished(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """That a part of a table was not published all the time since the look before, where that look saw as much."""
    was, entries = before.get("entries"), now.get("entries")
    if was is None or entries is None or not set(was).isdisjoint(entries) or not (was or entries):
        return ""
    return f"{now['name']} was not in the publication{' for a while' if entries else ''}"


def _is_altered(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether the catalog has another entry for a column that was there."""
    return any(now[column] != entry for column, entry in before.items() if column in now)
