"""The statements by which `catalog` reads: plain text, one for each part, all tables at once.

They name everything by its schema (but `unnest` of two arrays, which the grammar knows only by its bare name) and use
no column that Postgres 14 lacks. Deliberately no function that would lock a table (`pg_partition_tree` does).
"""

_RELATIONS = """
SELECT c.oid, n.nspname::text, c.relname::text,
       CASE c.relkind WHEN 'r' THEN 'table' WHEN 'p' THEN 'partitioned table' WHEN 'v' THEN 'view'
                      WHEN 'm' THEN 'materialized view' ELSE 'foreign table' END,
       CASE c.relpersistence WHEN 'p' THEN 'permanent' WHEN 'u' THEN 'unlogged' ELSE 'temporary' END,
       pg_catalog.pg_get_userbyid(c.relowner)::text,
       pg_catalog.pg_relation_is_publishable(c.oid),
       CASE c.relreplident WHEN 'd' THEN 'default' WHEN 'f' THEN 'full' WHEN 'i' THEN 'index' ELSE 'nothing' END,
       c.reltuples, c.relrowsecurity, c.relforcerowsecurity
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
"""

ALL_RELATIONS = (
    _RELATIONS
    + """
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)'
ORDER BY n.nspname, c.relname
"""
)

NAMED_RELATIONS = (
    _RELATIONS
    + """
JOIN unnest(%s::text[], %s::text[]) AS wanted (schema, name)
  ON n.nspname = wanted.schema::name AND c.relname = wanted.name::name
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
ORDER BY n.nspname, c.relname
"""
)

COLUMNS = """
SELECT a.attrelid, a.attname::text, a.atttypid, a.atttypmod, pg_catalog.format_type(a.atttypid, a.atttypmod),
       NOT a.attnotnull, CASE a.attgenerated WHEN 's' THEN 'stored' WHEN 'v' THEN 'virtual' ELSE '' END, a.attnum
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""

# Key columns only: what INCLUDE adds is no part of an identity. The primary key comes first, the rest by name.
INDEXES = """
SELECT i.indrelid, c.relname::text,
       ARRAY(SELECT a.attname::text
             FROM pg_catalog.unnest(i.indkey) WITH ORDINALITY AS k (attnum, at)
             JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
             WHERE k.at <= i.indnkeyatts ORDER BY k.at),
       i.indisunique, i.indisprimary, i.indisvalid, i.indimmediate,
       i.indpred IS NOT NULL, i.indexprs IS NOT NULL, i.indisreplident
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = ANY (%s::oid[])
ORDER BY i.indrelid, i.indisprimary DESC, c.relname
"""

FOREIGN_KEYS = """
SELECT k.conrelid, k.confrelid, p.conrelid, p.confrelid, k.conname::text,
       fn.nspname::text, f.relname::text,
       ARRAY(SELECT a.attname::text FROM pg_catalog.unnest(k.conkey) WITH ORDINALITY AS c (attnum, at)
             JOIN pg_catalog.pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = c.attnum ORDER BY c.at),
       tn.nspname::text, t.relname::text,
       ARRAY(SELECT a.attname::text FROM pg_catalog.unnest(k.confkey) WITH ORDINALITY AS c (attnum, at)
             JOIN pg_catalog.pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = c.attnum ORDER BY c.at)
FROM pg_catalog.pg_constraint k
LEFT JOIN pg_catalog.pg_constraint p ON p.oid = k.conparentid
JOIN pg_catalog.pg_class f ON f.oid = k.conrelid JOIN pg_catalog.pg_namespace fn ON fn.oid = f.relnamespace
JOIN pg_catalog.pg_class t ON t.oid = k.confrelid JOIN pg_catalog.pg_namespace tn ON tn.oid = t.relnamespace
WHERE k.contype = 'f' AND (k.conrelid = ANY (%s::oid[]) OR k.confrelid = ANY (%s::oid[]))
ORDER BY fn.nspname, f.relname, k.conname
"""

# A partition that is being detached concurrently no longer counts.
BELOW = """
WITH RECURSIVE below (top, oid) AS (
    SELECT i.inhparent, i.inhrelid FROM pg_catalog.pg_inherits i
    WHERE i.inhparent = ANY (%s::oid[]) AND NOT i.inhdetachpending
    UNION
    SELECT b.top, i.inhrelid FROM below b
    JOIN pg_catalog.pg_inherits i ON i.inhparent = b.oid AND NOT i.inhdetachpending
)
SELECT b.top, n.nspname::text, c.relname::text, c.relkind <> 'p', c.reltuples
FROM below b
JOIN pg_catalog.pg_class c ON c.oid = b.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY n.nspname, c.relname
"""

ABOVE = """
WITH RECURSIVE above (start, oid, depth) AS (
    SELECT c.oid, i.inhparent, 1 FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid AND NOT i.inhdetachpending
    WHERE c.oid = ANY (%s::oid[]) AND c.relispartition
    UNION ALL
    SELECT a.start, i.inhparent, a.depth + 1 FROM above a
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.oid AND NOT i.inhdetachpending
)
SELECT a.start, n.nspname::text, c.relname::text
FROM above a
JOIN pg_catalog.pg_class c ON c.oid = a.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY a.start, a.depth
"""
