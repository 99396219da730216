"""Spark's offsets: a cut in the stream as JSON, with what is needed to know it again.

An offset names its format, the server's system identifier and timeline, the slot and the place: the LSN, and how many
rows of the transaction that ends there (-1: all of it). Guarantees: the text of an offset is the same for the same
place, because Spark compares texts; an offset of another server, of another slot or of a newer format is refused in
one sentence.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import ConfigError, PositionError
from penstock.model import Lsn, Origin
from penstock.postgres.replay import Cut
from penstock.spark.seeding import Chunks

_FORMAT = 1
_CHUNKS_FORMAT = 2  # of an offset that counts chunks; the first one had no step behind the last of them
_ALL = -1

INITIAL: dict[str, Any] = {"format": _FORMAT, "lsn": "0/0", "rows": _ALL}
"""Where the slot stands, wherever that is."""


def to_offset(cut: Cut, origin: Origin, slot: str) -> dict[str, Any]:
    """A cut as an offset."""
    rows = _ALL if cut.rows is None else cut.rows
    server = {"system": origin.system_id, "timeline": origin.timeline}
    return {"format": _FORMAT, **server, "slot": slot, "lsn": str(cut.lsn), "rows": rows}


def to_cut(offset: dict[str, Any], slot: str) -> tuple[Cut, Origin | None]:
    """An offset as a cut, and the server it belongs to; the initial offset belongs to none."""
    found = offset.get("format")
    if not isinstance(found, int) or found > _CHUNKS_FORMAT:
        raise ConfigError(
            f"the checkpoint holds an offset of format {found}; this version of Penstock reads up to {_CHUNKS_FORMAT}",
            hint="Upgrade Penstock, or use the checkpoint that belongs to this query.",
        )
    rows = int(offset["rows"])
    cut = Cut(Lsn.parse(offset["lsn"]), None if rows == _ALL else rows)
    if "system" not in offset:
        return cut, None
    if offset["slot"] != slot:
        raise PositionError(
            f"the checkpoint belongs to slot {offset['slot']}, but the query reads slot {slot}",
            hint="Set slot back, or start with a new checkpoint.",
        )
    return cut, Origin(offset["system"], offset.get("timeline"))


def to_chunk_offset(chunks: Chunks, origin: Origin, slot: str) -> dict[str, Any]:
    """How far a starting snapshot has been read, as an offset."""
    counted = {"format": _CHUNKS_FORMAT, "chunk": chunks.done, "chunks": chunks.total}
    return to_offset(Cut(chunks.lsn), origin, slot) | counted


def to_chunks(offset: dict[str, Any]) -> Chunks | None:
    """How far a starting snapshot has been read, where the offset tells."""
    if "chunk" not in offset:
        return None
    total = offset["chunks"] + (offset["format"] < _CHUNKS_FORMAT)
    return Chunks(Lsn.parse(offset["lsn"]), offset["chunk"], total)
