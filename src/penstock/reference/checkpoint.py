"""Checkpoints of reference tables: made, written down, read back, and refused where they do not fit.

A checkpoint says how far a table was delivered, and what the slot may pass once it is saved: a transaction that was
delivered in part counts for the one and not for the other. Guarantees: plain values; what is written is read back
equal; garbage, a newer format, another slot and another table are errors with a next step, before anything is changed.
Deliberately not: whether the server can still serve the position, which only the server knows.
"""

from __future__ import annotations

import json
from typing import Any

from penstock.contracts import SourceCheckpoint
from penstock.errors import ConfigError, PositionError
from penstock.model import Lsn, Origin, Position, QualifiedTable
from penstock.reference import footing as footings
from penstock.reference import seen as seens
from penstock.reference.footing import Footing
from penstock.reference.seen import Seen
from penstock.reference.shape import TableShape

FORMAT = 1


def make(
    slot: str,
    origin: Origin | None,
    shape: TableShape,
    position: Position,
    acknowledge: Lsn,
    footing: Footing | None = None,
) -> SourceCheckpoint:
    """A checkpoint; `acknowledge` is where the slot may go once it is saved, zero while a snapshot is under way."""
    metadata: dict[str, Any] = {
        "timeline": origin.timeline if origin else None,
        "acknowledge": str(acknowledge),
        "columns": [list(column) for column in shape.columns],
        "key": list(shape.key),
    }
    if footing:
        metadata["footing"] = footings.encode(footing)
    return SourceCheckpoint(FORMAT, origin.system_id if origin else "", slot, shape.table, position, metadata)


def having_seen(checkpoint: SourceCheckpoint, seen: Seen | None) -> SourceCheckpoint:
    """The same, which stands where some of what follows was delivered with a snapshot."""
    if seen is None or acknowledged(checkpoint) >= seen.upto:
        return checkpoint
    return checkpoint._replace(metadata={**checkpoint.metadata, "seen": seens.encode(seen)})


def seen(checkpoint: SourceCheckpoint) -> Seen | None:
    """What was delivered with a snapshot of all that follows; None where that is nothing."""
    found = checkpoint.metadata.get("seen")
    return seens.decode(found) if found is not None else None


def acknowledged(checkpoint: SourceCheckpoint) -> Lsn:
    """Where the slot may go once it is saved."""
    return Lsn.parse(checkpoint.metadata["acknowledge"])


def origin(checkpoint: SourceCheckpoint) -> Origin:
    """The server that it belongs to."""
    return Origin(checkpoint.system_id, checkpoint.metadata.get("timeline"))


def shape(checkpoint: SourceCheckpoint) -> TableShape:
    """The columns that were delivered."""
    columns = tuple((name, oid, typmod) for name, oid, typmod in checkpoint.metadata["columns"])
    return TableShape(checkpoint.table, columns, tuple(checkpoint.metadata["key"]))


def footing(checkpoint: SourceCheckpoint) -> Footing | None:
    """How its table stood; None where nobody looked: it is a table without changes, or older than the look."""
    found = checkpoint.metadata.get("footing")
    return footings.decode(found) if found is not None else None


def is_complete(checkpoint: SourceCheckpoint) -> bool:
    """Whether it stands behind a whole snapshot: one that does not is as good as none."""
    return checkpoint.position.lsn > Lsn.ZERO


def encode(checkpoint: SourceCheckpoint) -> str:
    """As JSON on one line."""
    lsn, row = checkpoint.position
    place = {"lsn": str(lsn), "row": row}
    return json.dumps({**checkpoint._asdict(), "table": list(checkpoint.table), "position": place})


def decode(text: str | bytes) -> SourceCheckpoint:
    """What `encode` wrote."""
    try:
        found = json.loads(text)
        place = Position(Lsn.parse(found["position"]["lsn"]), int(found["position"]["row"]))
        table = QualifiedTable(*map(str, found["table"]))
        made = SourceCheckpoint(found["format"], found["system_id"], found["slot"], table, place, found["metadata"])
    except (ValueError, TypeError, KeyError, ConfigError):
        raise _garbage() from None
    check_form(made)
    return made


def require(checkpoint: SourceCheckpoint, slot: str, table: QualifiedTable) -> None:
    """Refuse a checkpoint that is none, or that belongs elsewhere."""
    check_form(checkpoint)
    if checkpoint.table != table:
        raise PositionError(
            f"the checkpoint belongs to table {checkpoint.table}, not to {table}",
            hint="Restore the checkpoint of this table, or start without one: a new snapshot is taken.",
        )
    if checkpoint.slot != slot:
        raise PositionError(
            f"the checkpoint belongs to slot {checkpoint.slot or '(none)'}, but the table is read from slot "
            f"{slot or '(none)'}",
            hint="Use that slot again, or start without a checkpoint: a new snapshot is taken.",
        )


def check_form(checkpoint: Any) -> None:
    """Refuse what is no checkpoint, or one of a newer format."""
    if not isinstance(checkpoint, SourceCheckpoint) or not _is_of(int, checkpoint.format):
        raise _garbage()
    if checkpoint.format > FORMAT:
        raise ConfigError(
            f"the checkpoint is of format {checkpoint.format}; this Penstock reads {FORMAT} and older",
            hint="Use the Penstock that wrote it, or a newer one.",
        )
    if not (_is_of(str, checkpoint.system_id, checkpoint.slot) and _is_of(Position, checkpoint.position)):
        raise _garbage()
    try:
        known = shape(checkpoint).schema, acknowledged(checkpoint), origin(checkpoint), footing(checkpoint)
        seen(checkpoint)
    except (ValueError, TypeError, KeyError, AttributeError, ConfigError):
        raise _garbage() from None
    if known[1] > checkpoint.position.lsn:
        raise _garbage()


def _is_of(kind: type, *found: object) -> bool:
    return all(isinstance(one, kind) for one in found)


def _garbage() -> ConfigError:
    return ConfigError(
        "this is no checkpoint of a reference table",
        hint="Restore what checkpoint() gave, unchanged, or start without one: a new snapshot is taken.",
    )
