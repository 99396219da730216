"""May this server, with this slot, serve the position that is held?

Pure deciding: a position that the slot has passed, that the server's WAL does not reach, or that belongs to another
server or to a history that was abandoned at a failover, is a clear stop. Nothing is ever skipped in silence.
"""

from __future__ import annotations

from penstock.errors import PositionError, SlotMissingError
from penstock.model import Lsn, Origin
from penstock.postgres.slot import SlotInfo

REPAIR = "Changes may be lost. penstock reconcile --repair goes on from here, and repairs every index."
"""What the runner of a deployment does about a slot that does not serve its checkpoint."""
_RECONCILE = (
    "Run penstock reconcile --repair, or start with a new slot and a new backfill (a Spark query: a new checkpoint)."
)


def check_origin(origin: Origin | None, found: Origin, switch: Lsn | None, held: Lsn) -> None:
    """Refuse another server, and a timeline that left ours before the held position. `switch`: where it left."""
    if origin is None:
        return
    if origin.system_id != found.system_id:
        raise PositionError(
            f"the position {held} belongs to the server with system identifier {origin.system_id}; this one is "
            f"{found.system_id}",
            hint=f"Connect to the right server, or, if the database was replaced: {_RECONCILE}",
        )
    if origin.timeline is None or origin.timeline == found.timeline:
        return
    if switch is None or switch < held:
        left = f"left it at {switch}" if switch else "was never on it"
        raise PositionError(
            f"the position {held} is on timeline {origin.timeline}; this server is on {found.timeline} and {left}",
            hint=f"A failover lost changes that had been received already. {_RECONCILE}",
        )


def check_slot(name: str, slot: SlotInfo | None, held: Lsn, may_create: bool) -> None:
    """Refuse to go on without the slot that the position stands for, or behind one that somebody else moved."""
    if slot is None:
        if may_create:
            return
        raise SlotMissingError(
            f"slot {name} is gone, and with it the changes since {held if held else 'it was last read'}",
            hint=f"It was dropped, or a failover did not carry it over (failover slots need Postgres 17). {_RECONCILE}",
        )
    confirmed = slot.confirmed_flush_lsn or Lsn.ZERO
    if held and confirmed > held:
        error = PositionError(
            f"slot {name} stands at {confirmed}, past the held position {held}: somebody else consumed it",
            hint=f"One slot serves one consumer. {_RECONCILE}",
        )
        error.confirmed = int(confirmed)
        raise error


def check_wal(held: Lsn, wal_end: Lsn) -> None:
    """Refuse a position that the server's WAL does not reach."""
    if held > wal_end:
        raise PositionError(
            f"the position {held} is ahead of the server's WAL, which ends at {wal_end}",
            hint=f"The server was restored from an older backup, or is another one. {_RECONCILE}",
        )
