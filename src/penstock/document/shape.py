"""What decides, beside rows, which changes are told: partitions, the files of tables, publication, identity, timeline.

Rows that come or go with a partition, or are written anew by ALTER TABLE, are told by no row event; nor are those of a
table that is not published; a delete under another replica identity does not tell its old parent; and a promoted server
may lack commits that were seen on the one before. Guarantees: one query, which reads the catalog only and locks
nothing. A partition that was made as one (and so was empty) is no reason, nor is a table that was only packed anew
(VACUUM FULL, CLUSTER) or truncated, which is told by an event. Deliberately not: noticing what came and went between
two looks, but for a table that left the publication and is back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock.document.schema import DocumentSchema
from penstock.document.spec import SourceSpec
from penstock.model import QualifiedTable, quote
from penstock.postgres.connection import open_sql
from penstock.postgres.settings import ConnectionSettings
from penstock.postgres.sqlstate import translating

# A table that is made as a partition is entered as one by the fourth command of its making; one that is attached in the
# transaction that makes it, later: there may be an INSERT in between.
_BORN_WITHIN = 4
_TIMELINE = "timeline"  # no table is named so: names have two parts
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


def shapes(settings: ConnectionSettings, schemas: Iterable[DocumentSchema], publication: str = "") -> dict[str, str]:
    """For each index, the shape of its tables, a text to be kept and compared.

    With the name of a publication, and schemas that are bound: also what is told of their changes.
    """
    chosen = list(schemas)
    tables = sorted({table for schema in chosen for table in schema.tables})
    found: dict[QualifiedTable, dict[str, Any]] = {table: {} for table in tables}
    timeline = ""
    with open_sql(settings) as connection, translating("reading the shape of tables"):
        entries = _ENTRIES + (_OF_SCHEMAS if connection.info.server_version >= 150000 else "")
        query = _SHAPES.format(born_within=_BORN_WITHIN, entries=entries, identity=_IDENTITY)
        names = [table.schema for table in tables], [table.name for table in tables], publication
        for schema, name, oid, shown, attached, file, columns, *told in connection.execute(query.encode(), names):
            one = {"name": shown, "attached": attached, "file": file, "columns": columns or {}}
            found[QualifiedTable(schema, name)][oid] = {**one, "entries": told[0], "identity": told[1]}
            timeline = told[2] or timeline
    return {schema.index: _text(schema, found, timeline if publication else "") for schema in chosen}


def _text(schema: DocumentSchema, found: Mapping[QualifiedTable, Mapping[str, Any]], timeline: str) -> str:
    needed = SourceSpec([schema]).thin_columns() if timeline else {}
    shape = {
        str(table): {oid: _told(one, needed.get(table, ()), timeline) for oid, one in found[table].items()}
        for table in sorted(schema.tables)
    }
    return json.dumps({**shape, _TIMELINE: timeline}, sort_keys=True)


def _told(one: Mapping[str, Any], needed: Iterable[str], timeline: str) -> dict[str, Any]:
    """One part of a table; of its identity only what the index needs to follow its changes."""
    plain = {key: value for key, value in one.items() if key not in ("entries", "identity")}
    if not timeline or one["entries"] is None:
        return plain
    identity = one["identity"]
    traced = {column: identity is None or column in identity for column in needed}
    return {**plain, "entries": one["entries"], "traced": traced}


def unmet(shape: str, *, untraced: bool = True) -> str:
    """What is not told of the index's tables now, or nothing: one is not published, or (`untraced`) not traced."""
    parts = [one for table, parts in json.loads(shape).items() if table != _TIMELINE for one in parts.values()]
    for one in parts:
        if one.get("entries") == []:
            return f"{one['name']} is not published"
    lacking = ((one["name"], column) for one in parts for column, known in one.get("traced", {}).items() if not known)
    return next((_untraced(*lack) for lack in lacking if untraced), "")


def _untraced(name: str, column: str) -> str:
    return f"the replica identity of {name} lacks {quote(column)}"


def changed(before: str, now: str, *, mended: bool = False) -> str:
    """Why documents may have changed without an event, or nothing.

    Where it was `mended` by us in between, what is told is another on purpose.
    """
    was, found = json.loads(before), json.loads(now)
    if (before_that := was.pop(_TIMELINE, "")) != (at := found.pop(_TIMELINE, "")) and before_that and at:
        return f"the server was promoted (timeline {before_that} to {at}), and may lack commits that were seen before"
    for table in found.keys() & was.keys():
        if reason := next(_changed(table, was[table], found[table]), ""):
            return reason
        common = found[table].keys() & was[table].keys()
        untold = (reason for oid in common for reason in _untold(was[table][oid], found[table][oid]))
        if not mended and (reason := next(untold, "")):
            return reason
    return ""


def _changed(table: str, was: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    for oid in was.keys() - found.keys():
        yield f"{was[oid]['name']} is no longer a part of {table}"
    for oid, one in found.items():
        before = was.get(oid)
        if before is None:
            if one["attached"]:
                yield f"{one['name']} was attached to {table} with the rows it had"
        elif before["file"] != one["file"] and _is_altered(before["columns"], one["columns"]):
            yield f"the rows of {one['name']} were written anew by ALTER TABLE"


def _untold(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Changes that were not told, or not to their old parents, since the look before; where that look saw as much."""
    name = now["name"]
    was, entries = before.get("entries"), now.get("entries")
    if was is not None and entries is not None and set(was).isdisjoint(entries) and (was or entries):
        yield f"{name} was not in the publication{' for a while' if entries else ''}"
    was, traced = before.get("traced", {}), now.get("traced", {})
    for column in traced.keys() & was.keys():
        if traced[column] != was[column]:
            lacked = f"the replica identity of {name} lacked {quote(column)} for a while"
            yield lacked if traced[column] else _untraced(name, column)


def _is_altered(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether the catalog has another entry for a column that was there."""
    return any(now[column] != entry for column, entry in before.items() if column in now)
