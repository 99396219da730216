"""The figures of a server that tell whether a stream can live on it: settings, counts, what holds WAL back, the clock.

Guarantees: one question, catalogs and statistics only, nothing is changed. Deliberately not: judging them (`app.doctor`
does), and rights, which are found by trying (`access`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.postgres.catalog import SqlConnection
from penstock.postgres.sqlstate import translating

# A setting that this version does not have is null. Prepared transactions and old ones hold back a new slot, and the
# rows that vacuum could remove.
_VITALS = """
SELECT pg_catalog.current_setting('server_version'),
       pg_catalog.current_setting('max_wal_senders')::int,
       (SELECT pg_catalog.count(*)::int FROM pg_catalog.pg_stat_replication),
       pg_catalog.current_setting('max_connections')::int
         - pg_catalog.current_setting('superuser_reserved_connections')::int,
       (SELECT pg_catalog.count(*)::int FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend'),
       (SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'max_slot_wal_keep_size'),
       (SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'idle_replication_slot_timeout'),
       (SELECT pg_catalog.max(EXTRACT(epoch FROM pg_catalog.clock_timestamp() - xact_start))::float
          FROM pg_catalog.pg_stat_activity
         WHERE backend_type = 'client backend' AND pid <> pg_catalog.pg_backend_pid()),
       (SELECT pg_catalog.count(*)::int FROM pg_catalog.pg_prepared_xacts),
       EXTRACT(epoch FROM pg_catalog.clock_timestamp())::float
"""


@dataclass(frozen=True, slots=True)
class Vitals:
    """How the server stands. `wal_keep_mb`: what a slot may hold before it is lost, -1 without end.

    `idle_slot_timeout_s`: after how long a slot that nobody reads is given up; 0: never, None: the server cannot.
    """

    version: str
    max_senders: int
    senders: int
    max_connections: int
    connections: int
    wal_keep_mb: int
    idle_slot_timeout_s: int | None
    oldest_transaction_s: float | None
    prepared_transactions: int
    clock_s: float


def read_vitals(conn: SqlConnection) -> Vitals:
    """The figures now."""
    with translating("asking how the server stands"):
        row: Any = conn.execute(_VITALS).fetchone()
    return Vitals(*row)
