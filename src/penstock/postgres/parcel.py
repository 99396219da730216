"""A run of row changes as bytes, to be decoded by another process.

The messages travel as the server sent them, one Arrow IPC stream: cheap to make where they are received, and the
typing is done where there are cores to spare. Guarantee: `unpack(pack(piece))` decodes to what `piece` does. The
format has a version; another one is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import BugError
from penstock.model import QualifiedTable
from penstock.postgres.changes import Origins, Piece
from penstock.postgres.columns import PADDING, Block
from penstock.postgres.pgoutput import Column, Relation
from penstock.postgres.transactions import Truncated

_FORMAT = 1
_NUMBERS = ("lsn", "seq", "xid", "time")


@dataclass(frozen=True, slots=True)
class Parcel:
    """A piece that has travelled."""

    rows: Block | Truncated
    origin: Origins

    def origins(self) -> Origins:
        """Where each row comes from."""
        return self.origin


def pack(piece: Piece) -> bytes:
    """A piece as bytes."""
    rows, origins = piece.rows, piece.origins()
    if isinstance(rows, Truncated):
        messages, relations = pa.nulls(len(rows), pa.large_binary()), list(rows.relations)
    else:
        offsets = np.concatenate([[0], np.cumsum(rows.lengths)])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(rows.packed())]
        messages = pa.Array.from_buffers(pa.large_binary(), len(rows), buffers)
        relations = rows.described()
    about = {
        "format": _FORMAT,
        "kind": "truncated" if isinstance(rows, Truncated) else "streamed" if rows.streamed else "rows",
        "relations": [_described(relation) for relation in relations],
    }
    batch = pa.record_batch([messages, *map(pa.array, origins)], names=["message", *_NUMBERS])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema.with_metadata({"penstock": json.dumps(about)})) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def unpack(data: bytes) -> Parcel:
    """The piece again."""
    reader = pa.ipc.open_stream(data)
    about = json.loads(reader.schema.metadata[b"penstock"])
    if about["format"] != _FORMAT:
        raise BugError(f"changes in format {about['format']}; this version of Penstock reads {_FORMAT}")
    batch = reader.read_next_batch()
    origins = Origins(*(np.asarray(batch[name]) for name in _NUMBERS))
    relations = [_relation(one) for one in about["relations"]]
    if about["kind"] == "truncated":
        return Parcel(Truncated(tuple(relations)), origins)
    _, offsets, content = batch["message"].buffers()
    ends = np.frombuffer(offsets, np.int64)[: len(batch) + 1]
    padded = content.to_pybytes()[: int(ends[-1])] + PADDING
    by_oid = {relation.oid: relation for relation in relations}
    block = Block(padded, ends[:-1], np.diff(ends), by_oid, about["kind"] == "streamed")
    return Parcel(block, origins)


def _described(relation: Relation) -> dict[str, Any]:
    columns = [[c.name, c.type_oid, c.typmod, c.key] for c in relation.columns]
    return {"oid": relation.oid, "table": list(relation.table), "identity": relation.identity, "columns": columns}


def _relation(about: Mapping[str, Any]) -> Relation:
    columns = tuple(Column(*column) for column in about["columns"])
    return Relation(about["oid"], QualifiedTable(*about["table"]), about["identity"], columns)
