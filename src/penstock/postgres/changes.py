"""Committed transactions turned into what consumers take: thin `Change`s, or Arrow batches of whole rows.

`pieces` cuts transactions into bounded runs of rows that can be decoded together: many small transactions at once,
a large one in several. Guarantees: order is kept; a change's position does not depend on how the cut was made; a
piece never holds more rows than asked for, nor, unless one row is larger, more bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np

from penstock.contracts import Ack, AckSink, Change
from penstock.model import Lsn, Op, Position, QualifiedTable
from penstock.postgres import values
from penstock.postgres.columns import Block, Ints, Mask, TableRows, Tuples, split
from penstock.postgres.pgoutput import DELETE, INSERT, UPDATE, Relation
from penstock.postgres.transactions import Transaction, Truncated

_OPS = {INSERT: Op.INSERT, UPDATE: Op.UPDATE, DELETE: Op.DELETE}

Wanted = Callable[[Relation], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Span:
    """Rows `first` … `first + count - 1` of one transaction."""

    transaction: Transaction
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of rows, or the tables of one TRUNCATE, and which transactions they belong to."""

    rows: Block | Truncated
    spans: tuple[Span, ...]

    @property
    def count(self) -> int:
        """How many changes it holds."""
        return sum(span.count for span in self.spans)

    def per_row(self, of: Callable[[Transaction], int]) -> Ints:
        """A number of each row's transaction."""
        numbers = np.array([of(span.transaction) for span in self.spans], np.int64)
        return np.repeat(numbers, [span.count for span in self.spans])

    def ordinals(self) -> Ints:
        """Each row's ordinal within its transaction."""
        return np.concatenate([np.arange(span.first, span.first + span.count) for span in self.spans])


def pieces(transactions: Iterable[Transaction], max_rows: int, max_bytes: int) -> Iterator[Piece]:
    """Cut transactions into pieces."""
    blocks: list[Block] = []
    spans: list[Span] = []
    rows = size = 0
    for transaction in transactions:
        ordinal = 0
        for part in transaction.blocks():
            for chunk in _cut(part, max_rows, max_bytes):
                count = len(chunk.relations) if isinstance(chunk, Truncated) else len(chunk.lengths)
                weight = 0 if isinstance(chunk, Truncated) else len(chunk.data)
                alone = isinstance(chunk, Truncated) or (blocks and not blocks[-1].joins(chunk))
                if blocks and (alone or rows + count > max_rows or size + weight > max_bytes):
                    yield Piece(_joined(blocks), tuple(spans))
                    blocks, spans, rows, size = [], [], 0, 0
                span = Span(transaction, ordinal, count)
                ordinal += count
                if isinstance(chunk, Truncated):
                    yield Piece(chunk, (span,))
                    continue
                blocks.append(chunk)
                spans.append(span)
                rows, size = rows + count, size + weight
    if blocks:
        yield Piece(_joined(blocks), tuple(spans))


def _joined(blocks: list[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    data = b"".join([block.data for block in blocks])
    return replace(blocks[0], data=data, lengths=np.concatenate([block.lengths for block in blocks]))


def _cut(part: Block | Truncated, max_rows: int, max_bytes: int) -> Iterator[Block | Truncated]:
    if isinstance(part, Truncated):
        for first in range(0, len(part.relations), max_rows):
            yield Truncated(part.relations[first : first + max_rows], part.xid)
        return
    total = len(part.lengths)
    if total <= max_rows and len(part.data) <= max_bytes:
        if total:
            yield part
        return
    ends = np.cumsum(part.lengths)
    first = 0
    while first < total:
        before = int(ends[first - 1]) if first else 0
        fits = int(np.searchsorted(ends, before + max_bytes, side="right"))
        end = min(max(fits, first + 1), first + max_rows, total)
        yield part.rows(first, end)
        first = end


class ThinColumns:
    """Which columns a thin change of a relation carries: identity and links, by the catalog and the stream's word.

    A superset is harmless, a missing key is not: where the names known for a table are not all in the relation (it
    was altered since), or none are known under REPLICA IDENTITY FULL, the change carries every column.
    """

    def __init__(self, known: Mapping[QualifiedTable, Sequence[str]]) -> None:
        self._known = known
        self._cache: dict[Relation, tuple[int, ...]] = {}

    def __call__(self, relation: Relation) -> tuple[int, ...]:
        if relation not in self._cache:
            self._cache[relation] = self._choose(relation)
        return self._cache[relation]

    def _choose(self, relation: Relation) -> tuple[int, ...]:
        names = set(self._known.get(relation.table, ()))
        here = {column.name for column in relation.columns}
        everything = tuple(range(len(relation.columns)))
        if relation.identity == "f" and (not names or not names <= here):
            return everything
        flagged = {column.name for column in relation.columns if column.key and relation.identity != "f"}
        chosen = names | flagged
        return tuple(i for i, column in enumerate(relation.columns) if column.name in chosen) or everything


def thin(piece: Piece, wanted: Wanted, sink: AckSink) -> list[Change]:
    """The piece as thin changes, in order."""
    lsns = [lsn for span in piece.spans for lsn in repeat(span.transaction.end_lsn, span.count)]
    positions = list(map(Position, lsns, piece.ordinals().tolist()))
    acks = list(map(Ack, repeat(sink), positions))
    xids = piece.per_row(lambda transaction: transaction.xid).tolist()
    if isinstance(piece.rows, Truncated):
        tables = [relation.table for relation in piece.rows.relations]
        return list(map(Change, tables, repeat(Op.TRUNCATE), repeat(None), repeat(None), xids, positions, acks))
    changes: list[Change | None] = [None] * piece.count
    for rows in split(piece.rows, wanted):
        at = rows.at.tolist()
        whole = len(at) == len(changes)
        own = ((lst if whole else [lst[i] for i in at]) for lst in (xids, positions, acks))
        ops = list(map(_OPS.__getitem__, rows.tags.tolist()))
        made = map(Change, repeat(rows.relation.table), ops, _new(rows), _old(rows), *own)
        if whole:
            return list(made)
        for place, change in zip(at, made, strict=True):
            changes[place] = change
    return changes  # type: ignore[return-value]  # every row belongs to a relation


def _new(rows: TableRows) -> list[dict[str, Any] | None]:
    return _scattered(_dicts(rows, rows.new, range(len(rows.columns))), rows.tags != DELETE)


def _old(rows: TableRows) -> list[dict[str, Any] | None]:
    # An old identity has nulls where columns are not part of it: those are no values.
    columns = rows.relation.columns
    sent = [i for i, c in enumerate(rows.columns) if rows.relation.identity == "f" or columns[c].key]
    return _scattered(_dicts(rows, rows.old, sent), rows.has_old)


def _dicts(rows: TableRows, tuples: Tuples, columns: Sequence[int]) -> list[dict[str, Any]]:
    described = [rows.relation.columns[rows.columns[i]] for i in columns]
    names = [column.name for column in described]
    lists = [
        values.to_pylist(tuples.values[i], column.type_oid, column.typmod)
        for i, column in zip(columns, described, strict=True)
    ]
    if len(names) == 1:
        found = [{names[0]: value} for value in lists[0]]
    else:
        found = [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]
    for name, i in zip(names, columns, strict=True):
        unchanged = tuples.unchanged[i]
        for at in np.flatnonzero(unchanged).tolist() if unchanged is not None else ():
            del found[at][name]
    return found


def _scattered(found: list[dict[str, Any]], where: Mask) -> list[dict[str, Any] | None]:
    if len(found) == len(where):
        return found  # type: ignore[return-value]  # a list of dicts is read as one of optional dicts
    spread: list[dict[str, Any] | None] = [None] * len(where)
    for at, row in zip(np.flatnonzero(where).tolist(), found, strict=True):
        spread[at] = row
    return spread


def confirm(piece: Piece, confirm_rows: Callable[[Lsn, int, int], None]) -> None:
    """Confirm every change of the piece."""
    for span in piece.spans:
        confirm_rows(span.transaction.end_lsn, span.first, span.first + span.count)
