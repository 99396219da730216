"""Blocks of row messages turned into columns, many messages at once.

A block holds row messages as the server sent them. Decoding walks all messages of one relation together, column by
column, with array operations, so that no Python runs per row. Guarantees: the same result as `pgoutput.decode` on
each message, and the same `DecodeError` for a message that it refuses; a value that an update did not touch is
filled in from the old tuple where the server sent it there, and is marked unchanged otherwise.
Values stay the server's bytes: giving them types is `values`' work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BugError
from penstock.postgres.pgoutput import DELETE, INSERT, UPDATE, Relation, decode

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_N, _K, _O = b"NKO"
_TEXT, _BINARY, _NULL, _UNCHANGED = b"tbnu"
# Bytes after the last message, so that reading a kind, a length or a short value never leaves the buffer.
PADDING = bytes(64)
# Values up to this size are gathered by copying this many bytes each and dropping the surplus.
_SHORT = 48


@dataclass(frozen=True, slots=True)
class Block:
    """Row messages somewhere in received bytes, all of them after the same descriptions of their relations.

    Message `i` is `lengths[i]` bytes of `data` from `starts[i]` on; `data` ends with `PADDING`. `streamed`: a message
    carries the xid of its (sub)transaction after its tag.
    """

    data: bytes
    starts: Ints
    lengths: Ints
    relations: Mapping[int, Relation]
    streamed: bool = False

    @classmethod
    def of(cls, messages: Sequence[bytes], relations: Mapping[int, Relation], streamed: bool = False) -> Block:
        """A block of the given messages."""
        lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        return cls(b"".join([*messages, PADDING]), np.cumsum(lengths) - lengths, lengths, relations, streamed)

    def __len__(self) -> int:
        return len(self.starts)

    def xids(self) -> Ints:
        """The xid of each message of a streamed block."""
        xids: Ints = _u32(np.frombuffer(self.data, np.uint8))[self.starts + 1].astype(np.int64)
        return xids

    def oids(self) -> npt.NDArray[np.uint32]:
        """The relation of each message, by its oid; every message must be long enough to name it."""
        return _u32(np.frombuffer(self.data, np.uint8))[self.starts + (5 if self.streamed else 1)]

    def described(self) -> list[Relation]:
        """The relations that its messages belong to, as far as they were described."""
        long = self.lengths > (9 if self.streamed else 5)
        oids = self.oids() if long.all() else self.kept(long).oids()
        one = len(oids) and (oids == oids[0]).all()
        found = [self.relations.get(int(oid)) for oid in (oids[:1] if one else np.unique(oids))]
        return [relation for relation in found if relation is not None]

    def kept(self, keep: Mask) -> Block:
        """The block without the messages that are not to be kept."""
        return replace(self, starts=self.starts[keep], lengths=self.lengths[keep])

    def rows(self, first: int, end: int) -> Block:
        """The messages `first` … `end - 1`."""
        return replace(self, starts=self.starts[first:end], lengths=self.lengths[first:end])

    def joins(self, other: Block) -> bool:
        """Whether the messages of both can be decoded as one block."""
        return self.relations is other.relations and self.streamed == other.streamed

    def packed(self) -> bytes:
        """The messages alone, back to back."""
        if not len(self):
            return b""
        first, last = int(self.starts[0]), int(self.starts[-1] + self.lengths[-1])
        if last - first == int(self.lengths.sum()):
            return self.data[first:last]
        return b"".join(self.messages())

    def messages(self) -> Iterator[bytes]:
        """Each message by itself."""
        for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True):
            yield self.data[start : start + length]


def joined(blocks: Sequence[Block]) -> Block:
    """Several blocks that can be decoded as one."""
    if len(blocks) == 1:
        return blocks[0]
    # Runs of rows out of the same received bytes share them; they are not multiplied.
    places: dict[int, int] = {}
    received: list[bytes] = []
    size = 0
    for block in blocks:
        if id(block.data) not in places:
            places[id(block.data)] = size
            received.append(block.data)
            size += len(block.data)
    starts = np.concatenate([block.starts + places[id(block.data)] for block in blocks])
    lengths = np.concatenate([block.lengths for block in blocks])
    return replace(blocks[0], data=b"".join(received), starts=starts, lengths=lengths)


@dataclass(frozen=True, slots=True)
class Tuples:
    """Some columns of many tuples. Column `i` is `values[i]`; where `unchanged[i]` is set its value was not sent."""

    values: tuple[pa.Array[Any], ...]
    unchanged: tuple[Mask | None, ...]


@dataclass(frozen=True, slots=True)
class TableRows:
    """The rows of one relation in a block, in order.

    `at` is each row's place in the block, `tags` its message tag. `new` has a tuple for each insert and update (in
    order), `old` one for each row that `has_old`; `full` says that these are whole rows, not just identities.
    """

    relation: Relation
    columns: tuple[int, ...]
    at: Ints
    tags: npt.NDArray[np.uint8]
    has_old: Mask
    full: Mask
    new: Tuples
    old: Tuples


def split(block: Block, wanted: Callable[[Relation], Sequence[int]]) -> list[TableRows]:
    """The rows of each relation in a block, with the columns that `wanted` names for it."""
    if not len(block):
        return []
    data = np.frombuffer(block.data, np.uint8)
    starts, ends = block.starts, block.starts + block.lengths
    head = 9 if block.streamed else 5
    if int(block.lengths.min()) <= head:
        raise _refusal(block, block.lengths <= head)
    oids = block.oids()
    first = int(oids[0])
    if (oids == first).all():
        groups = [(first, np.arange(len(starts)))]
    else:
        groups = [(int(oid), np.flatnonzero(oids == oid)) for oid in np.unique(oids)]
    return [_table_rows(block, data, (starts, ends), at, oid, wanted) for oid, at in groups]


def _table_rows(
    block: Block,
    data: npt.NDArray[np.uint8],
    bounds: tuple[Ints, Ints],
    at: Ints,
    oid: int,
    wanted: Callable[[Relation], Sequence[int]],
) -> TableRows:
    relation = block.relations.get(oid)
    starts, ends = bounds[0][at], bounds[1][at]
    if relation is None:
        raise _refusal(block, np.isin(np.arange(len(bounds[0])), at))
    columns = tuple(wanted(relation))
    walk = _Walk(data, len(relation.columns), columns)
    tags = data[starts]
    place = starts + (9 if block.streamed else 5)
    kind = data[place]
    full = kind == _O
    has_old = full | (kind == _K)
    is_delete = tags == DELETE
    bad = ((tags == INSERT) & (kind != _N)) | ((tags == UPDATE) & ~has_old & (kind != _N)) | (is_delete & ~has_old)
    bad |= ~((tags == INSERT) | (tags == UPDATE) | is_delete)
    place = place + 1
    some_old = bool(has_old.any())
    old = walk.tuples(place[has_old]) if some_old else walk.nothing()
    if some_old:
        place[has_old] = old.end
        bad[has_old] |= old.bad
        follows = has_old & ~is_delete
        bad[follows] |= data[place[follows]] != _N
        place[follows] += 1
    has_new = ~is_delete
    new = walk.tuples(place[has_new]) if has_new.any() else walk.nothing()
    place[has_new] = new.end
    bad[has_new] |= new.bad
    bad |= place != ends
    if bad.any():
        raise _refusal(block, _spread(bad, at, len(bounds[0])))
    if some_old:
        keys = np.array([relation.columns[column].key for column in columns], np.bool_)
        _fill_unchanged(new, old, (has_old[has_new], has_new[has_old]), full[has_old], keys)
    return TableRows(relation, columns, at, tags, has_old, full, new.columns(data), old.columns(data))


def _spread(bad: Mask, at: Ints, size: int) -> Mask:
    whole = np.zeros(size, np.bool_)
    whole[at[bad]] = True
    return whole


def _refusal(block: Block, bad: Mask) -> BugError:
    """The error of the first message that is refused, as the reference decoder words it."""
    for message, is_bad in zip(block.messages(), bad.tolist(), strict=True):
        if is_bad:
            decode(message, streamed=block.streamed, relations=block.relations)
    return BugError("the two decoders disagree about a message", hint="Please report it with the server's version.")


@dataclass(slots=True)
class _Found:
    """Where the wanted values of many tuples stand, where each tuple ends, and which tuples are no tuples."""

    starts: list[Ints]
    lengths: list[Ints]
    null: list[Mask | None]
    unchanged: list[Mask | None]
    end: Ints
    bad: Mask

    def columns(self, data: npt.NDArray[np.uint8]) -> Tuples:
        values = [
            gather(data, start, length, null)
            for start, length, null in zip(self.starts, self.lengths, self.null, strict=True)
        ]
        return Tuples(tuple(values), tuple(self.unchanged))


class _Walk:
    """Walks tuples of one shape, all at the same column at a time."""

    def __init__(self, data: npt.NDArray[np.uint8], count: int, wanted: Sequence[int]) -> None:
        self._data = data
        self._count = count
        self._wanted = wanted
        self._u32 = _u32(data)

    def nothing(self) -> _Found:
        none = np.zeros(0, np.int64)
        size = len(self._wanted)
        return _Found([none] * size, [none] * size, [None] * size, [None] * size, none, none.astype(np.bool_))

    def tuples(self, place: Ints) -> _Found:
        data, limit = self._data, len(self._data) - len(PADDING) + 1
        place = np.minimum(place, limit)
        bad = (data[place].astype(np.int64) << 8 | data[place + 1]) != self._count
        found: dict[int, tuple[Ints, Ints, Mask | None, Mask | None]] = {}
        place = np.minimum(place + 2, limit)
        for column in range(self._count):
            kind = data[place]
            sent = kind == _TEXT
            if sent.all():
                length, null, unchanged = self._u32[place + 1].astype(np.int64), None, None
                step = length + 5
            else:
                sent |= kind == _BINARY
                null, unchanged = kind == _NULL, kind == _UNCHANGED
                bad |= ~(sent | null | unchanged)
                length = np.where(sent, self._u32[place + 1], 0).astype(np.int64)
                step = np.where(sent, length + 5, 1)
                null |= unchanged
                unchanged = unchanged if unchanged.any() else None
            if column in self._wanted:
                found[column] = (place + 5, length, null, unchanged)
            place = np.minimum(place + step, limit)
        parts = [found[column] for column in self._wanted]
        starts, lengths, nulls, unchangeds = ([part[i] for part in parts] for i in range(4))
        return _Found(starts, lengths, nulls, unchangeds, place, bad)  # type: ignore[arg-type]


def _fill_unchanged(new: _Found, old: _Found, pairs: tuple[Mask, Mask], full: Mask, keys: Mask) -> None:
    """Take from the old tuple what the new one left out as unchanged: any column of a whole row, else the identity.

    A null there is no value: what is left out is never null. The server marks a row as whole by the identity of the
    table it speaks of, and sends what the partition keeps, which may be less.
    """
    for column, unchanged in enumerate(new.unchanged):
        if unchanged is None:
            continue
        target, source = np.flatnonzero(pairs[0]), np.flatnonzero(pairs[1])
        fill = unchanged[target] & (full[source] | keys[column])
        if (old_null := old.null[column]) is not None:
            fill &= ~old_null[source]
        source, target = source[fill], target[fill]
        new.starts[column][target] = old.starts[column][source]
        new.lengths[column][target] = old.lengths[column][source]
        if (null := new.null[column]) is not None:
            null[target] = False
        unchanged[target] = False
        if not unchanged.any():
            new.unchanged[column] = None


def gather(data: npt.NDArray[np.uint8], starts: Ints, lengths: Ints, null: Mask | None) -> pa.Array[Any]:
    """The byte ranges of `data` as one Arrow binary array."""
    count = len(starts)
    if null is not None:
        lengths = np.where(null, 0, lengths)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    longest = int(lengths.max()) if count else 0
    if count and longest * count == offsets[-1]:
        values = _windows(data, longest)[starts].view(np.uint8) if longest else data[:0]
    elif longest <= _SHORT:
        rows = _windows(data, longest)[starts].view(np.uint8).reshape(count, longest)
        values = rows[np.arange(longest) < lengths[:, None]]
    else:
        values = data[np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])]
    kind, width = (pa.binary(), np.int32) if offsets[-1] < 1 << 31 else (pa.large_binary(), np.int64)
    valid = None if null is None or not null.any() else pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(offsets.astype(width)), pa.py_buffer(values)])


def _windows(data: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.void]:
    """A view of `data` whose item `i` is the `size` bytes from `i` on."""
    return np.ndarray((max(len(data) - size + 1, 0),), np.dtype(("V", size)), data, strides=(1,))


def _u32(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    return np.ndarray((max(len(data) - 3, 0),), np.dtype(">u4"), data, strides=(1,))
