"""Whether a run may begin: nobody else is at work with its state or its slot, and what it goes on from is there.

Guarantees: another process is waited for, and named; a slot, a checkpoint or a sink that does not belong to the others
is a clear stop, before anything is forgotten or written. Deliberately not: mending (`rejoin`, by a repair).
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from penstock.app.origins import index_of
from penstock.app.rejoin import logged, lost_checkpoint, why_unfit
from penstock.engine import checkpoint
from penstock.errors import PositionError, RetryableError, SlotMissingError
from penstock.model import Lsn
from penstock.postgres import slot
from penstock.postgres.claim import Claim
from penstock.postgres.connection import open_sql

if TYPE_CHECKING:
    from penstock.app.prepared import Prepared
    from penstock.config.deployment import Deployment
    from penstock.engine.state import State

log = logging.getLogger(__name__)

_STATE_POLL_S = 0.5


def become_the_one(state: State, claim: Claim, deployment: Deployment) -> None:
    """Wait until no other process runs with this state, or with this slot from another folder.

    When it ends, however it ends, this one takes over.
    """
    if not state.acquire():
        where = deployment.locate(deployment.state)
        log.warning("another penstock runs with the state in %s; waiting to take over", where)
        while not state.acquire():
            time.sleep(_STATE_POLL_S)
    said, began = "", time.monotonic()
    while holder := _holder(claim):
        # For a moment it may be what is left of the run before.
        if holder != said and time.monotonic() - began > _STATE_POLL_S:
            said = holder
            log.warning("waiting for slot %s: %s", deployment.source.slot, holder)
        time.sleep(_STATE_POLL_S)


def _holder(claim: Claim) -> str:
    """Why it cannot be had now; nothing: it is ours."""
    try:
        who = claim.take()
        return f"it is in use ({who})" if who else ""
    except RetryableError as error:
        return error.message


def check_slot(found: slot.SlotInfo | None, deployment: Deployment, state: State, system_id: str) -> None:
    """Stop, before anything is forgotten, where a slot is gone that was read from, or what says how far it was.

    And where the slot holds no more what is still to be read. That this is another server, the stream's reader tells.
    """
    folder, name = checkpoint.of(deployment.locate(deployment.state)), deployment.source.slot
    if found is not None:
        read = logged(folder)
        is_ours = read is None or read.system_id in ("", system_id)
        if trouble := lost_checkpoint(folder, state) or (why_unfit(found, read, name) if is_ours else None):
            raise trouble
    if found is None and checkpoint.planned(folder):
        raise SlotMissingError(
            f"slot {name} is gone, but {folder} says that changes were read from it",
            hint="Changes made since then cannot be had any more. See whether the database is the right one. If it is,"
            " penstock reconcile --repair makes a slot and repairs every index.",
        )
    if found is None:
        state.forget_streamed()


def check_versions(fit: Prepared) -> None:
    """Stop where a sink holds versions that this server has yet to reach: every write would lose, and look taken."""
    with open_sql(fit.settings) as connection:
        end = slot.wal_end(connection)
    folder = checkpoint.of(fit.deployment.locate(fit.deployment.state))
    for index, sinks in fit.parts.sinks.items():
        for sink in sinks:
            if (held := sink.seeded(index) or Lsn.ZERO) > end:
                raise PositionError(
                    f"sink {sink.name} holds index {index_of(index)} as of {held}, and the server's WAL ends at {end}",
                    hint="The server was put back to an earlier time, or is another one. See whether it is the right"
                    f" one. If it is, drop the slot (penstock slots drop {fit.deployment.source.slot}) and remove"
                    f" {folder}: the next run seeds every index again.",
                )
