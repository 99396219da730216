"""What tables are made of beyond their rows: partitions, and the files that hold them; and what a change of it means.

Rows that come or go with a partition, or are written anew by ALTER TABLE, are told by no row event. Guarantees: reads
the catalog only, locks nothing. A partition that was made as one (and so was empty) is no reason, nor is a table that
was only packed anew (VACUUM FULL, CLUSTER) or truncated, which is told by an event. Deliberately not: noticing what
came and went between two looks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock.document.schema import DocumentSchema
from penstock.model import QualifiedTable
from penstock.postgres.connection import open_sql
from penstock.postgres.settings import ConnectionSettings
from penstock.postgres.sqlstate import translating

# A table that is made as a partition is entered as one by the fourth command of its making; one that is attached in the
# transaction that makes it, later: there may be an INSERT in between.
_BORN_WITHIN = 4
# For each table asked for (`top`), itself and everything below it: `attached` says that it had a life before. The
# transaction that wrote a table's first system column is the one that made the table.
_SHAPES = f"""
WITH RECURSIVE tree (top, oid, attached) AS (
    SELECT c.oid, c.oid, false
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN unnest(%s::text[], %s::text[]) AS wanted (schema, name)
      ON n.nspname = wanted.schema::name AND c.relname = wanted.name::name
    UNION ALL
    SELECT t.top, i.inhrelid, t.attached OR i.xmin <> a.xmin OR i.cmin::text::int - a.cmin::text::int > {_BORN_WITHIN}
    FROM tree t
    JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.inhrelid AND a.attnum = -1
)
SELECT n.nspname::text, c.relname::text, t.oid::text, own.oid::pg_catalog.regclass::text, t.attached,
       own.relfilenode::text,
       (SELECT pg_catalog.json_object_agg(a.attnum, a.xmin::text) FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped)
FROM tree t
JOIN pg_catalog.pg_class c ON c.oid = t.top
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_class own ON own.oid = t.oid
"""


def shapes(settings: ConnectionSettings, schemas: Iterable[DocumentSchema]) -> dict[str, str]:
    """For each index, the shape of its tables: a text to be kept and compared."""
    chosen = list(schemas)
    tables = sorted({table for schema in chosen for table in schema.tables})
    found: dict[QualifiedTable, dict[str, Any]] = {table: {} for table in tables}
    with open_sql(settings) as connection, translating("reading the shape of tables"):
        names = [table.schema for table in tables], [table.name for table in tables]
        for schema, name, oid, shown, attached, file, columns in connection.execute(_SHAPES.encode(), names).fetchall():
            one = {"name": shown, "attached": attached, "file": file, "columns": columns or {}}
            found[QualifiedTable(schema, name)][oid] = one
    return {
        schema.index: json.dumps({str(table): found[table] for table in sorted(schema.tables)}, sort_keys=True)
        for schema in chosen
    }


def changed(before: str, now: str) -> str:
    """Why documents may have changed without an event, or nothing."""
    was, found = json.loads(before), json.loads(now)
    reasons = (reason for table in found if table in was for reason in _changed(table, was[table], found[table]))
    return next(reasons, "")


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


def _is_altered(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether the catalog has another entry for a column that was there."""
    return any(now[column] != entry for column, entry in before.items() if column in now)
