"""The types that domains stand for, by the names that the catalog gives them."""

from __future__ import annotations

from penstock.postgres.catalog import SqlConnection, one_snapshot
from penstock.postgres.sqlstate import translating

_DOMAINS = """
WITH RECURSIVE below (domain, type) AS (
    SELECT t.oid, t.typbasetype FROM pg_catalog.pg_type t WHERE t.typtype = 'd'
    UNION ALL
    SELECT b.domain, t.typbasetype FROM below b JOIN pg_catalog.pg_type t ON t.oid = b.type AND t.typtype = 'd'
)
SELECT pg_catalog.format_type(b.domain, NULL), pg_catalog.format_type(b.type, NULL)
FROM below b JOIN pg_catalog.pg_type t ON t.oid = b.type AND t.typtype <> 'd'
"""


def base_types(conn: SqlConnection) -> dict[str, str]:
    """For each domain, the type it is made of, through domains over domains."""
    with translating("reading the catalog"), one_snapshot(conn):
        return dict(conn.execute(_DOMAINS).fetchall())
