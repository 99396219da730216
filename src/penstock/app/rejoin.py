"""A slot that changes were lost from: another one is made, and live joins there.

Guarantees: nothing is made or forgotten unless a repair was asked for. Every index is marked for reconcile, durably,
before anything else is done, so that whatever breaks off on the way, the gap is never forgotten: as long as the old
checkpoint is there a run refuses to start, and afterwards the marks say what is to be done. The generations stay: what
they miss is what a reconcile finds. Deliberately not: another server, or one restored to an earlier time, where the
versions that sinks hold mean nothing: only a new seed helps there.
"""

from __future__ import annotations

import logging
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.engine import checkpoint
from penstock.engine.marks import Marks
from penstock.engine.state import State
from penstock.errors import OperatorError, PositionError, SlotLostError, SlotMissingError
from penstock.model import Lsn
from penstock.postgres import replication, slot
from penstock.postgres.connection import ConnectionSettings, open_sql
from penstock.postgres.resume import REPAIR

if TYPE_CHECKING:
    from penstock.config.deployment import Deployment

log = logging.getLogger(__name__)


class _Logged(NamedTuple):
    """How far a checkpoint says that the slot was read, and of which server."""

    lsn: Lsn
    system_id: str


def require_slot(deployment: Deployment, settings: ConnectionSettings, state: State, *, repair: bool) -> None:
    """See that the slot serves the checkpoint; with `repair`, make it so: live then joins anew."""
    folder = checkpoint.of(deployment.locate(deployment.state))
    read = logged(folder)
    with open_sql(settings) as connection:
        found = slot.inspect(connection, deployment.source.slot)
        end = slot.wal_end(connection)
    wrong = why_unfit(found, read, deployment.source.slot) or lost_checkpoint(folder, state)
    if wrong is None:
        return
    _require_same_server(settings, read, end, folder)
    if not repair:
        raise wrong
    log.warning("%s", wrong.message)
    Marks(state).mark({index.name: wrong.message for index in deployment.enabled})
    state.note_unsettled(deployment.source.slot)
    _make(settings, found, deployment.source.slot)
    shutil.rmtree(folder, ignore_errors=True)
    state.forget_streamed()


def refusal(deployment: Deployment, settings: ConnectionSettings, found: slot.SlotInfo) -> OperatorError | None:
    """Why the next run will not go on from a slot as it was seen, if there is a reason. Changes nothing.

    A run may be at work: what is compared is read in the order in which it can only have moved on.
    """
    state, name = Path(deployment.locate(deployment.state)), deployment.source.slot
    folder = checkpoint.of(state)
    read = logged(folder)
    if read is not None:
        with open_sql(settings) as connection:
            end = slot.wal_end(connection)
        try:
            _require_same_server(settings, read, end, folder)
        except PositionError as error:
            return error
    if not (state / "state.sqlite").exists():
        return why_unfit(found, read, name)
    with closing(State(state, only_read=True)) as opened:
        return why_unfit(found, read, name) or lost_checkpoint(folder, opened)


def lost_checkpoint(folder: Path, state: State) -> PositionError | None:
    """Why nobody can say up to where the slot was read: the checkpoint is gone, or not the one that was written to."""
    noted = state.streamed()
    if noted is None:
        return None
    if not checkpoint.planned(folder):
        return PositionError(f"{folder} is gone, and changes were read from the slot", hint=f"Put it back. {REPAIR}")
    if noted != (found := checkpoint.identity(folder)):
        return PositionError(
            f"{folder} is another one ({found or 'unknown'}) than was written to ({noted})",
            hint=f"It belongs to another deployment, or to a copy. Put the right one back. {REPAIR}",
        )
    return None


def committed(state: Path) -> Lsn:
    """The end of the last batch that Spark has logged as done: everything up to there is settled, and in the sinks."""
    folder = checkpoint.of(state)
    done = checkpoint.done(folder)
    found = _read(folder, done[0]) if done else None
    return found.lsn if found else Lsn.ZERO


def logged(folder: Path) -> _Logged | None:
    """The last offset that Spark has logged, if there is one."""
    return next((found for one in checkpoint.planned(folder) if (found := _read(folder, one))), None)


def _read(folder: Path, batch: int) -> _Logged | None:
    """The end of a batch; None where Spark was ended while it wrote it down."""
    try:
        offset = checkpoint.end(folder, batch) or {}
        return _Logged(Lsn.parse(offset["lsn"]), str(offset.get("system", "")))
    except (ValueError, KeyError):
        return None


def why_unfit(found: slot.SlotInfo | None, read: _Logged | None, name: str) -> OperatorError | None:
    """Why the slot does not serve the checkpoint."""
    if read is None and found is None:
        raise SlotMissingError(
            f"there is no slot {name}, and nothing was read from one",
            hint="penstock run makes it, and seeds every index.",
        )
    at = read.lsn if read else Lsn.ZERO
    if found is None:
        return SlotMissingError(f"slot {name} is gone; it was read up to {at}", hint=REPAIR)
    if found.lost:
        found_out = f"the server has thrown away WAL that slot {name} needed; it was read up to {at}"
        return SlotLostError(found_out, hint=REPAIR)
    confirmed = found.confirmed_flush_lsn or Lsn.ZERO
    if read and read.lsn and confirmed > read.lsn:
        return PositionError(f"slot {name} stands at {confirmed}, and it was read up to {at}", hint=REPAIR)
    return None


def _require_same_server(settings: ConnectionSettings, read: _Logged | None, end: Lsn, folder: Path) -> None:
    """Versions in sinks are positions of the server that they were read from."""
    with replication.connect(settings) as client:
        system_id = client.system.system_id
    if read is None or (read.system_id in ("", system_id) and read.lsn <= end):
        return
    raise PositionError(
        f"{folder} is of another server, or of this one before it was restored: it has read up to {read.lsn}",
        hint="See whether the database is the right one. If it is, drop the slot where there is one (penstock slots"
        " drop) and remove that folder: the next run seeds every index again.",
    )


def _make(settings: ConnectionSettings, found: slot.SlotInfo | None, name: str) -> None:
    """A slot that can be read from: one that only was read by somebody else stays."""
    with open_sql(settings) as connection:
        if found and found.lost:
            slot.drop(connection, name)
        if found is None or found.lost:
            at = slot.create(connection, name, failover=bool(found and found.failover))
            log.warning("slot %s was made anew: live goes on from %s", name, at)
