"""Committed transactions turned into what consumers take: thin `Change`s, or Arrow batches of whole rows.

`pieces` cuts transactions into bounded runs of rows that can be decoded together: many small transactions at once,
a large one in several. Guarantees: order is kept; a change's position does not depend on how the cut was made; a
piece never holds more rows than asked for, nor, unless one row is larger, more bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat, tee
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


# A named tuple's own constructor is a Python function; this is the same without it.
_position = partial(tuple.__new__, Position)
_ack = partial(tuple.__new__, Ack)
_change = partial(tuple.__new__, Change)


def thin(piece: Piece, wanted: Wanted, sink: AckSink) -> Iterator[Change]:
    """The piece as thin changes, in order.

    Columns are decoded at once; the changes are made one by one as they are taken, so that they do not pile up for
    the garbage collector, which would cost more than making them.
    """
    spans = piece.spans
    lsns = chain.from_iterable(repeat(span.transaction.end_lsn, span.count) for span in spans)
    xids = chain.from_iterable(repeat(span.transaction.xid, span.count) for span in spans)
    rows = chain.from_iterable(range(span.first, span.first + span.count) for span in spans)
    positions, again = tee(map(_position, zip(lsns, rows)))  # noqa: B905 - as long as each other by construction
    acks = map(_ack, zip(repeat(sink), again))
    return map(_change, zip(*_contents(piece, wanted), xids, positions, acks))  # noqa: B905


def _contents(piece: Piece, wanted: Wanted) -> Iterable[Iterable[Any]]:
    """What each change says of its row: tables, operations, new and old values."""
    if isinstance(piece.rows, Truncated):
        tables = [relation.table for relation in piece.rows.relations]
        return tables, repeat(Op.TRUNCATE), repeat(None), repeat(None)
    found = split(piece.rows, wanted)
    each = [(repeat(rows.relation.table), _ops(rows), _new(rows), _old(rows)) for rows in found]
    if len(found) == 1:
        return each[0]
    owner = np.empty(piece.count, np.int64)
    for number, rows in enumerate(found):
        owner[rows.at] = number
    turns = owner.tolist()
    return [map(next, map([*map(iter, parts)].__getitem__, turns)) for parts in zip(*each, strict=True)]


def _ops(rows: TableRows) -> Iterator[Op]:
    return map(_OPS.__getitem__, rows.tags.tolist())


def _new(rows: TableRows) -> Iterator[dict[str, Any] | None]:
    return _scattered(_dicts(rows, rows.new, range(len(rows.columns))), rows.tags != DELETE)


def _old(rows: TableRows) -> Iterator[dict[str, Any] | None]:
    # An old identity has nulls where columns are not part of it: those are no values.
    columns = rows.relation.columns
    sent = [i for i, c in enumerate(rows.columns) if rows.relation.identity == "f" or columns[c].key]
    return _scattered(_dicts(rows, rows.old, sent), rows.has_old)


def _dicts(rows: TableRows, tuples: Tuples, columns: Sequence[int]) -> Iterator[dict[str, Any]]:
    described = [rows.relation.columns[rows.columns[i]] for i in columns]
    names = [column.name for column in described]
    lists = [
        values.to_pylist(tuples.values[i], column.type_oid, column.typmod)
        for i, column in zip(columns, described, strict=True)
    ]
    unchanged = [(name, tuples.unchanged[i]) for name, i in zip(names, columns, strict=True)]
    whole = map(dict, map(zip, repeat(names), zip(*lists, strict=True)))
    gone = [(name, mask.tolist()) for name, mask in unchanged if mask is not None]
    return _without(whole, gone) if gone else whole


def _without(found: Iterable[dict[str, Any]], gone: Sequence[tuple[str, list[bool]]]) -> Iterator[dict[str, Any]]:
    """Leave out what was not sent."""
    for at, row in enumerate(found):
        for name, absent in gone:
            if absent[at]:
                del row[name]
        yield row


def _scattered(found: Iterator[dict[str, Any]], where: Mask) -> Iterator[dict[str, Any] | None]:
    if where.all():
        return found
    return (next(found) if here else None for here in where.tolist())


def confirm(piece: Piece, confirm_rows: Callable[[Lsn, int, int], None]) -> None:
    """Confirm every change of the piece."""
    for span in piece.spans:
        confirm_rows(span.transaction.end_lsn, span.first, span.first + span.count)
