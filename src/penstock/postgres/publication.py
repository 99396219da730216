"""The publication that a capture reads: does it carry what is required, and making it so.

`inspect` reports and never changes anything; `ensure` reports what it saw, then adds what it may; `require` is the
capture's check before it makes a slot and before it streams, because a publication must be there first (E40).
Guarantees: nothing is published after which the server would reject a user's UPDATE or DELETE, and no change of a table
falls between a later snapshot and the stream. Reading is `publication_catalog`, deciding `coverage`, trying `trial`,
doing `alteration`. Deliberately not: changing a replica identity, a listing or an option; the report has that SQL.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from psycopg.pq import TransactionStatus

from penstock.errors import BugError, CoverageError, PublicationError
from penstock.model import CoverageReport, Lsn, Op, QualifiedTable, literal, quote
from penstock.postgres.alteration import add, emit_marker
from penstock.postgres.catalog import SqlConnection, TableInfo, one_snapshot, read_tables
from penstock.postgres.coverage import LOCK_TIMEOUT_S, Addition, Columns, Judgement, decide
from penstock.postgres.observation import Observation
from penstock.postgres.publication_catalog import read_publication
from penstock.postgres.sqlstate import translating
from penstock.postgres.trial import Trial, try_out

__all__ = ["Columns", "Ensured", "drop", "ensure", "inspect", "names", "provision", "read_publication", "require"]

log = logging.getLogger(__name__)

# Each time round, somebody else has just changed the publication; three times in a row is a quarrel.
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Ensured:
    """What `provision` did: the report as it stood before, the tables it added, and a WAL position past that.

    A seed of an added table starts at a boundary past `marker`.
    """

    report: CoverageReport
    added: frozenset[QualifiedTable] = frozenset()
    marker: Lsn | None = None


def inspect(
    conn: SqlConnection, publication: str, required: Collection[QualifiedTable], columns: Columns | None = None
) -> CoverageReport:
    """Report what the publication carries of the required tables. Changes nothing.

    `columns` names, for a table, the columns whose old and new values a reader follows; where it is given, the replica
    identity and a column list must hold them. Whether this role may add what is missing is found by trying in a
    transaction that is rolled back, which uses up a transaction id and holds, for a moment, a lock that no writer
    waits for.
    """
    report, _, _ = _look(conn, publication, _Wanted(required, columns))
    return report


def ensure(
    conn: SqlConnection,
    publication: str,
    required: Collection[QualifiedTable],
    manage: bool,
    columns: Columns | None = None,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> CoverageReport:
    """Report as `inspect` does, then publish what is missing where `manage` and the role allow it.

    Otherwise changes nothing and warns with the SQL. Raises CoverageError, with nothing changed, where a lock could
    not be had in time.
    """
    return _provision(conn, publication, _Wanted(required, columns), manage, lock_timeout_s).report


def provision(
    conn: SqlConnection,
    publication: str,
    required: Collection[QualifiedTable],
    manage: bool,
    lists: Columns | None = None,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> Ensured:
    """`ensure`, telling also what was added and from where in the WAL on the added tables are in the stream.

    Of a table in `lists` only those columns and its identity are published, where that can break no write. A table that
    is published already stays as it is.
    """
    return _provision(conn, publication, _Wanted(required, lists=lists), manage, lock_timeout_s)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The tables, the columns that are followed, and those that are to be published, where not all are."""

    tables: Collection[QualifiedTable]
    columns: Columns | None = None
    lists: Columns | None = None

    def judge(self, seen: Observation) -> Judgement:
        return decide(seen, self.tables, self.columns, self.lists)


def _provision(conn: SqlConnection, publication: str, wanted: _Wanted, manage: bool, lock_timeout_s: float) -> Ensured:
    if conn.info.transaction_status is not TransactionStatus.IDLE:
        raise BugError("a publication is changed in a transaction of its own, but one is open on this connection")
    report, judgement, trial = _look(conn, publication, wanted)
    addition = _permitted(judgement, trial) if manage else None
    added: frozenset[QualifiedTable] = frozenset()
    for _ in range(_ROUNDS):
        if addition is None:
            break
        added |= set(addition.tables)
        if add(conn, addition, lock_timeout_s):
            break
        addition = _permitted(wanted.judge(_observe(conn, publication, wanted.tables)), trial)
    else:
        raise CoverageError(f"publication {quote(publication)} is being changed by others; nothing was added to it")
    _tell(report, added)
    if not added:
        return Ensured(report)
    return Ensured(report, added, emit_marker(conn, publication))


def require(
    conn: SqlConnection, publication: str, slot: str | None = None, tables: Collection[QualifiedTable] = ()
) -> None:
    """Raise PublicationError unless the publication exists; call it before a slot is made, and before streaming.

    Where `slot` exists already, it was made before the publication, and what was written since then cannot be had from
    it: the server stops decoding at the first such change (up to 17) or leaves it out without a word (18).
    """
    with translating("looking for the publication"):
        row: Any = conn.execute(
            "SELECT pg_catalog.current_database()::text,"
            " EXISTS (SELECT FROM pg_catalog.pg_publication p WHERE p.pubname = %s::name),"
            " EXISTS (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = %s::name)",
            [publication, slot],
        ).fetchone()
    database, exists, slot_exists = row
    if exists:
        return
    create = f"CREATE PUBLICATION {quote(publication)} FOR TABLE {', '.join(t.sql for t in sorted(tables)) or '…'};"
    message = f"publication {quote(publication)} does not exist in database {quote(database)}"
    if slot is None or not slot_exists:
        raise PublicationError(message, hint=f"Create it, before the slot: {create}")
    raise PublicationError(
        f"{message}, but slot {quote(slot)} does; changes since the slot was made cannot be read from it",
        hint=f"Start anew, publication first: SELECT pg_drop_replication_slot({literal(slot)}); {create}"
        " Then let Penstock make the slot and seed again.",
    )


def _look(conn: SqlConnection, publication: str, wanted: _Wanted) -> tuple[CoverageReport, Judgement, Trial]:
    seen = _observe(conn, publication, wanted.tables)
    judgement = wanted.judge(seen)
    trial = try_out(conn, seen, judgement.addition) if judgement.addition else Trial()
    whole = judgement.addition is not None and judgement.missing == set(judgement.addition.tables)
    report = CoverageReport(
        publication=publication,
        present=judgement.present,
        missing=judgement.missing,
        manageable=not judgement.missing or (whole and trial.allowed),
        blockers=(*judgement.blockers, *trial.blockers),
        sql=judgement.sql,
        notes=(*judgement.notes, *trial.notes),
    )
    return report, judgement, trial


def _permitted(judgement: Judgement, trial: Trial) -> Addition | None:
    """What to add for real: not what the role was refused; but where the try could not tell, yes."""
    if judgement.addition is None or not trial.possible:
        return None
    tables = [table for table in judgement.addition.tables if table not in trial.refused]
    return judgement.addition.with_tables(tables) if tables else None


def _tell(report: CoverageReport, added: frozenset[QualifiedTable]) -> None:
    """Log what was added; warn of what is left, with the SQL as long as nothing of it was run."""
    name = quote(report.publication)
    if added:
        log.info("publication %s now carries %s", name, _listed(added))
    lines = [f"{f'{blocker.table}: ' if blocker.table else ''}{blocker.reason}" for blocker in report.blockers]
    if left := report.missing - added:
        lines.insert(0, f"publication {name} does not carry {_listed(left)}")
    sql = [blocker.sql for blocker in report.blockers if blocker.sql] if added else report.sql
    if lines:
        log.warning("%s", "\n".join([*lines, *(["To fix it, run:", *sql] if sql else [])]))


def _listed(tables: Collection[QualifiedTable]) -> str:
    return ", ".join(map(str, sorted(tables)))


def _observe(conn: SqlConnection, publication: str, required: Collection[QualifiedTable]) -> Observation:
    """Read the publication, the required tables and their partition families, all in one snapshot."""
    with translating("reading the publication"), one_snapshot(conn):
        info = read_publication(conn, publication)
        tables = read_tables(conn, required)
        if info is not None and not info.operations.issuperset(Op):
            # Widening its operations concerns every table that it holds.
            tables |= read_tables(conn, info.published.keys() - tables.keys())
        while relatives := read_tables(conn, _families(tables) - tables.keys()):
            tables |= relatives
    return Observation(publication, conn.info.server_version, info, tables)


def _families(tables: Mapping[QualifiedTable, TableInfo]) -> set[QualifiedTable]:
    return {relative for info in tables.values() for relative in (*info.ancestors, *info.partitions)}


def drop(conn: SqlConnection, publication: str, *, rehearse: bool = False) -> bool:
    """Drop the publication; False where there was none. With `rehearse`, find out whether that is allowed."""
    there = publication in names(conn)
    with translating(f"dropping publication {quote(publication)}"), conn.transaction(force_rollback=rehearse):
        conn.execute(f"DROP PUBLICATION IF EXISTS {quote(publication)}")
    return there


def names(conn: SqlConnection) -> tuple[str, ...]:
    """Every publication of the database."""
    with translating("looking for publications"):
        rows = conn.execute("SELECT pubname::text FROM pg_catalog.pg_publication ORDER BY 1").fetchall()
    return tuple(name for (name,) in rows)
