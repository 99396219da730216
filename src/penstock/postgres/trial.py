"""Whether this role may put the tables into the publication, found by trying.

It is done for real in a transaction that is rolled back, because managed services give rights that no catalog column
shows. Guarantees: a try leaves nothing behind but a used transaction id; it waits for a lock shorter than a deadlock
check, so it cancels no autovacuum, and asks for none that a writer would queue behind. Where the answer could not be
had, it says so. Deliberately not: judging the tables themselves (`coverage`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.model import Blocker, QualifiedTable, quote
from penstock.postgres.catalog import SqlConnection
from penstock.postgres.coverage import Addition, set_lock_timeout
from penstock.postgres.observation import Observation
from penstock.postgres.sqlstate import translate, translating

# Half of the default deadlock_timeout, at which a waiting session makes the server cancel autovacuum for it.
_LOCK_TIMEOUT_S = 0.5

_INSUFFICIENT_PRIVILEGE = "42501"
_LOCK_NOT_AVAILABLE = "55P03"
# Cancelled, deadlocked, or just done by somebody else: no word on what the role may do.
_UNDECIDED = frozenset({_LOCK_NOT_AVAILABLE, "57014", "40P01", "42710", "23505"})


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of trying. `refused` are the tables that this role may not add.

    `possible` is False where the server takes no change at all: a standby, a read-only session.
    """

    refused: frozenset[QualifiedTable] = frozenset()
    blockers: tuple[Blocker, ...] = ()
    notes: tuple[str, ...] = ()
    possible: bool = True

    @property
    def allowed(self) -> bool:
        """Everything was tried, and went well."""
        return self.possible and not self.refused and not self.notes


def try_out(conn: SqlConnection, seen: Observation, addition: Addition) -> Trial:
    """Try to add the tables and take it back. Where that fails, try in parts, to say what is refused and why."""
    with translating("asking what this session may change"):
        row: Any = conn.execute(
            "SELECT current_user::text, pg_catalog.current_database()::text, pg_catalog.pg_is_in_recovery(),"
            " pg_catalog.current_setting('transaction_read_only')::boolean"
        ).fetchone()
    role, database, in_recovery, read_only = row
    if in_recovery:
        return Trial(notes=("the server is in recovery: publications are changed on its primary",), possible=False)
    if read_only:
        return Trial(notes=("the session is read-only: whether the role may publish was not tried",), possible=False)
    error = _attempt(conn, addition.statement)
    if error is None:
        return Trial()
    if error.sqlstate in _UNDECIDED:
        return Trial(notes=(_undecided(error),))
    blocker = _refused_publication(conn, seen, addition, (role, database))
    if blocker is not None:
        return Trial(frozenset(addition.tables), (blocker,))
    return _each_table(conn, seen, addition, role)


def _each_table(conn: SqlConnection, seen: Observation, addition: Addition, role: str) -> Trial:
    refused: dict[QualifiedTable, Blocker] = {}
    notes: dict[str, None] = {}
    for table in sorted(addition.tables):
        alone = addition.with_tables([table])
        error = _attempt(conn, alone.statement)
        if error is not None and error.sqlstate in _UNDECIDED:
            notes[_undecided(error)] = None
        elif error is not None:
            owned = f"it belongs to role {quote(seen.tables[table].owner)}, and role {quote(role)} may not publish it"
            refused[table] = Blocker(table, _reason(error, owned), alone.script())
    return Trial(frozenset(refused), tuple(refused.values()), tuple(notes))


def _refused_publication(
    conn: SqlConnection, seen: Observation, addition: Addition, who: tuple[str, str]
) -> Blocker | None:
    """Whether the publication itself may not be made, or not be altered, whatever the tables."""
    name, role, database = quote(seen.name), quote(who[0]), quote(who[1])
    if seen.publication is None:
        error = _attempt(conn, f"CREATE PUBLICATION {name};")
        reason = f"role {role} may not create publication {name}: it has no CREATE right on database {database}"
        sql = f"GRANT CREATE ON DATABASE {database} TO {role};"
    else:
        same = "true" if seen.publication.via_root else "false"
        error = _attempt(conn, f"ALTER PUBLICATION {name} SET (publish_via_partition_root = {same});")
        reason = f"role {role} may not alter publication {name}: it belongs to role {quote(seen.publication.owner)}"
        sql = addition.script()
    if error is None or error.sqlstate in _UNDECIDED:
        return None
    return Blocker(None, _reason(error, reason), sql)


def _attempt(conn: SqlConnection, statement: str) -> psycopg.Error | None:
    """Run a statement and take it back; what the server said against it, if anything."""
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(set_lock_timeout(_LOCK_TIMEOUT_S))
            conn.execute(statement)
    except psycopg.Error as error:
        if conn.closed or error.sqlstate is None:
            raise translate(error, "trying a change of the publication") from None
        return error
    return None


def _reason(error: psycopg.Error, expected: str) -> str:
    if error.sqlstate == _INSUFFICIENT_PRIVILEGE:
        return expected
    return f"the server refuses it (SQLSTATE {error.sqlstate})"


def _undecided(error: psycopg.Error) -> str:
    if error.sqlstate == _LOCK_NOT_AVAILABLE:
        return f"could not tell whether the role may publish: no lock within {_LOCK_TIMEOUT_S:g} s"
    return f"could not tell whether the role may publish: the try was interrupted (SQLSTATE {error.sqlstate})"
