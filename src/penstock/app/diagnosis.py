"""What a server's figures mean for a deployment: findings with their fixes.

Guarantees: plain functions over plain values, without I/O but for a look whether a checkpoint is there. Deliberately
not: asking the server (`postgres.vitals`), and everything that is not about the server (`app.doctor`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from penstock.engine import checkpoint
from penstock.postgres.vitals import Vitals

if TYPE_CHECKING:
    from penstock.config.deployment import Deployment
    from penstock.engine.marks import Mark
    from penstock.errors import OperatorError
    from penstock.postgres.slot import SlotInfo

_SKEW_S = 5.0
_OLD_TRANSACTION_S = 900.0
_FEW_CONNECTIONS = 10
# Of what a slot may hold back, how much may be used up before somebody should look.
_WARN_SHARE = 0.5
_REPAIR = "penstock reconcile --repair makes a slot, and repairs every index."


class Verdict(StrEnum):
    """How it stands with one thing."""

    GOOD = "good"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: what was found and, where it is not good, what to do (`sql`: to run)."""

    about: str
    verdict: Verdict
    message: str
    fix: str = ""
    sql: str = ""


def judge_room(vitals: Vitals, found: SlotInfo | None) -> Iterator[Finding]:
    """Whether connections and walsenders are left, and nothing old keeps a new slot waiting."""
    held = bool(found and found.active)
    if not held and vitals.senders >= vitals.max_senders:
        yield Finding(
            "server",
            Verdict.ERROR,
            f"all {vitals.max_senders} walsenders are in use",
            "Raise max_wal_senders and restart the server, or stop a reader.",
            f"ALTER SYSTEM SET max_wal_senders = {vitals.max_senders + 5};",
        )
    left = vitals.max_connections - vitals.connections
    if left < _FEW_CONNECTIONS:
        verdict = Verdict.ERROR if left < 1 else Verdict.WARNING
        yield Finding(
            "server",
            verdict,
            f"{max(left, 0)} of {vitals.max_connections} connections are left",
            "Close idle sessions, or raise max_connections.",
        )
    if (age := vitals.oldest_transaction_s or 0) > _OLD_TRANSACTION_S:
        yield Finding(
            "server",
            Verdict.WARNING,
            f"a transaction has been open for {age / 60:.0f} minutes",
            "A new slot waits for it, and vacuum cannot clean up behind it. End it with pg_terminate_backend(pid).",
            "SELECT pid, usename, state, xact_start FROM pg_stat_activity ORDER BY xact_start LIMIT 1;",
        )
    if vitals.prepared_transactions:
        yield Finding(
            "server",
            Verdict.WARNING,
            f"{vitals.prepared_transactions} prepared transactions are neither committed nor rolled back",
            "A new slot waits for them. COMMIT PREPARED or ROLLBACK PREPARED each.",
            "SELECT gid, prepared, owner FROM pg_prepared_xacts;",
        )


def judge_slot(
    vitals: Vitals, found: SlotInfo | None, deployment: Deployment, refusal: OperatorError | None = None
) -> Iterator[Finding]:
    """Whether the slot is there, read, and far from what the server lets it hold back.

    `refusal` is why a run will not go on from it.
    """
    name = deployment.source.slot
    if found is None:
        folder = checkpoint.of(deployment.locate(deployment.state))
        if checkpoint.planned(folder):
            yield Finding(
                "slot",
                Verdict.ERROR,
                f"slot {name} is gone, but {folder} says that it was read from",
                f"See whether the database is the right one. {_REPAIR}",
            )
        else:
            yield Finding("slot", Verdict.NOTE, f"there is no slot {name} yet", "The first penstock run makes it.")
        return
    if found.lost:
        yield Finding("slot", Verdict.ERROR, f"the server has thrown away WAL that slot {name} needed", _REPAIR)
        return
    if refusal:
        yield Finding("slot", Verdict.ERROR, refusal.message, refusal.hint)
    else:
        who = f"read by server process {found.active_pid}" if found.active else "read by nobody"
        yield Finding(
            "slot",
            Verdict.GOOD if found.active else Verdict.NOTE,
            f"slot {name} stands at {found.confirmed_flush_lsn}, {who}",
            "" if found.active else "It holds WAL until the next run: start it, or penstock teardown.",
        )
    retained = found.retained_bytes or 0
    yield from _retention(vitals, found, deployment.source.max_retained_wal, retained)
    if vitals.idle_slot_timeout_s:
        yield Finding(
            "wal",
            Verdict.WARNING,
            f"the server gives up a slot that nobody reads for {vitals.idle_slot_timeout_s} s",
            "A deployment that is stopped for longer has to be seeded again. Switch it off, or keep stops short.",
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0;",
        )


def _retention(vitals: Vitals, found: SlotInfo, limit: int | None, retained: int) -> Iterator[Finding]:
    held = f"the slot holds {retained / 2**20:.0f} MiB of WAL"
    most = vitals.wal_keep_mb * 2**20 if vitals.wal_keep_mb >= 0 else None
    if found.wal_status == "unreserved" or (most is not None and retained > most * _WARN_SHARE):
        allowed = "it is about to be lost" if most is None else f"{most / 2**20:.0f} MiB are allowed, then it is lost"
        yield Finding(
            "wal",
            Verdict.WARNING,
            f"{held}; {allowed}",
            "Let the run catch up (penstock status tells what holds it), or raise max_slot_wal_keep_size.",
            f"ALTER SYSTEM SET max_slot_wal_keep_size = '{max(2 * retained, 1 << 30) >> 20}MB';",
        )
    elif limit is not None and retained > limit:
        yield Finding(
            "wal",
            Verdict.WARNING,
            f"{held}, more than max_retained_wal",
            "A sink is down or slow: penstock status tells which.",
        )
    elif most is None and limit is None:
        yield Finding(
            "wal",
            Verdict.NOTE,
            f"{held}, and nothing bounds it: it may fill the server's disk",
            "Set max_retained_wal and on_down in the deployment, or max_slot_wal_keep_size on the server.",
        )
    else:
        yield Finding("wal", Verdict.GOOD, held)


def judge_memory(marked: Mapping[str, Mark], away: Iterable[str]) -> Iterator[Finding]:
    """What an earlier run noted down that somebody should know: indexes to reconcile, and sinks left behind."""
    for index, mark in marked.items():
        said = f"index {index} has to be reconciled: {mark.reason}"
        yield Finding("state", Verdict.WARNING, said, f"penstock reconcile --repair {index}")
    for sink in away:
        said = f"sink {sink} was left behind, because it stayed down"
        yield Finding("state", Verdict.WARNING, said, "Bring it back: a run then seeds it.")


def judge_clock(skew_s: float) -> Iterator[Finding]:
    """Whether server and machine agree on the time, to the second or so."""
    if abs(skew_s) > _SKEW_S:
        ahead = "ahead of" if skew_s > 0 else "behind"
        yield Finding(
            "clock",
            Verdict.WARNING,
            f"the server's clock is {abs(skew_s):.0f} s {ahead} this machine's",
            "Set both by NTP. Documents stay right, but every delay that is shown is off by that.",
        )
    else:
        yield Finding("clock", Verdict.GOOD, f"the server's clock and this machine's differ by {abs(skew_s):.1f} s")
