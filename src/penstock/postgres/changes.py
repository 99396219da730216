"""Committed transactions turned into what consumers take: thin `Change`s, or Arrow batches of whole rows.

`pieces` cuts transactions into bounded runs of rows that can be decoded together: many small transactions at once,
a large one in several. Guarantees: order is kept; a change's position does not depend on how the cut was made; a
piece never holds more rows than asked for, nor, unless one row is larger, more bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, repeat, tee
from typing import Any, NamedTuple, Protocol

import numpy as np

from penstock.contracts import Ack, AckSink, Change
from penstock.model import Lsn, Op, Position, QualifiedTable
from penstock.postgres import values
from penstock.postgres.columns import Block, Ints, Mask, TableRows, Tuples, joined, split
from penstock.postgres.pgoutput import DELETE, INSERT, UPDATE, Relation
from penstock.postgres.transactions import Rows, Transaction, Truncated

_OPS = {INSERT: Op.INSERT, UPDATE: Op.UPDATE, DELETE: Op.DELETE}

Wanted = Callable[[Relation], Sequence[int]]


class Span(NamedTuple):
    """Rows `first` … `end - 1` of one transaction."""

    transaction: Transaction
    first: int
    end: int


class Origins(NamedTuple):
    """Where rows come from, as columns: commit end LSN, ordinal in the transaction, xid, commit time."""

    lsns: Ints
    ordinals: Ints
    xids: Ints
    times: Ints


class Changes(Protocol):
    """A run of rows that can be decoded: a piece, or one that has travelled to another process."""

    @property
    def rows(self) -> Block | Truncated: ...
    def origins(self) -> Origins: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of rows, or the tables of one TRUNCATE, and which transactions they belong to."""

    rows: Block | Truncated
    spans: Sequence[Span]

    @property
    def count(self) -> int:
        """How many changes it holds."""
        return len(self.rows)

    def row(self, at: int) -> Piece:
        """Of the tables of a TRUNCATE the one at a place."""
        assert isinstance(self.rows, Truncated)
        ((transaction, first, _),) = self.spans
        return Piece(self.rows.run(at, at + 1), (Span(transaction, first + at, first + at + 1),))

    def origins(self) -> Origins:
        """Where each row comes from."""
        transactions = [span.transaction for span in self.spans]
        first = np.array([span.first for span in self.spans], np.int64)
        counts = np.array([span.end for span in self.spans], np.int64) - first
        before = np.cumsum(counts) - counts
        numbers = np.array([(t.end_lsn, t.xid, t.commit_time) for t in transactions], np.int64)
        lsns, xids, times = np.repeat(numbers, counts, axis=0).T
        return Origins(lsns, np.repeat(first - before, counts) + np.arange(int(counts.sum())), xids, times)


class _Gathering:
    """Rows that are to be decoded together, as they are collected."""

    def __init__(self, max_rows: int, max_bytes: int) -> None:
        self._limits = (max_rows, max_bytes)
        self._parts: list[Rows] = []
        self.spans: list[Span] = []
        self._rows = self._bytes = 0

    def takes(self, part: Rows, size: int) -> bool:
        """Whether a part may be added."""
        if not self._parts:
            return True
        fits = self._rows + part.end - part.first <= self._limits[0] and self._bytes + size <= self._limits[1]
        return fits and self._parts[-1].block.joins(part.block)

    def add(self, part: Rows, size: int, span: Span) -> None:
        """Add it, to the run before it where it goes on from there."""
        last = self._parts[-1] if self._parts else None
        if last and last.block is part.block and last.end == part.first:
            self._parts[-1] = Rows(part.block, last.first, part.end)
        else:
            self._parts.append(part)
        self.spans.append(span)
        self._rows += span.end - span.first
        self._bytes += size

    def piece(self) -> Piece:
        """What was collected."""
        return Piece(joined([part.block.rows(part.first, part.end) for part in self._parts]), self.spans)


def pieces(transactions: Iterable[Transaction], max_rows: int, max_bytes: int) -> Iterator[Piece]:
    """Cut transactions into pieces."""
    return cut((Span(transaction, 0, transaction.rows) for transaction in transactions), max_rows, max_bytes)


def cut(spans: Iterable[Span], max_rows: int, max_bytes: int) -> Iterator[Piece]:
    """Cut runs of rows of several transactions into pieces."""
    gathering = _Gathering(max_rows, max_bytes)
    for transaction, first, end in spans:
        ordinal = first
        for part in transaction.pieces(first, end):
            for chunk, size in _cut(part, max_rows, max_bytes):
                if gathering.spans and (isinstance(chunk, Truncated) or not gathering.takes(chunk, size)):
                    yield gathering.piece()
                    gathering = _Gathering(max_rows, max_bytes)
                count = len(chunk) if isinstance(chunk, Truncated) else chunk.end - chunk.first
                span = Span(transaction, ordinal, ordinal + count)
                ordinal += count
                if isinstance(chunk, Truncated):
                    yield Piece(chunk, (span,))
                else:
                    gathering.add(chunk, size, span)
    if gathering.spans:
        yield gathering.piece()


def _cut(part: Rows | Truncated, max_rows: int, max_bytes: int) -> Iterator[tuple[Rows | Truncated, int]]:
    """The part in runs within the limits, with their sizes."""
    if isinstance(part, Truncated):
        for at in range(0, len(part), max_rows):
            yield part.run(at, at + max_rows), 0
        return
    block, first, last = part
    while first < last:
        end = min(first + max_rows, last)
        size = int(block.lengths[first]) if end == first + 1 else int(block.lengths[first:end].sum())
        if size > max_bytes and end > first + 1:
            fitting = int(np.searchsorted(np.cumsum(block.lengths[first:end]), max_bytes, side="right"))
            end = first + max(fitting, 1)
            size = int(block.lengths[first:end].sum())
        yield Rows(block, first, end), size
        first = end


class ThinColumns:
    """Which columns a thin change of a relation carries: identity and links, by the catalog and the stream's word.

    A superset is harmless, a missing key is not: where the names known for a table are not all in the relation (it
    was altered since), or none are known under REPLICA IDENTITY FULL, the change carries every column. So do those of a
    table that is not known where others are: a partition that was made since, whose links nobody has told.
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
        if self._known and relation.table not in self._known:
            return everything
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
    lsns = chain.from_iterable(repeat(span.transaction.end_lsn, span.end - span.first) for span in spans)
    xids = chain.from_iterable(repeat(span.transaction.xid, span.end - span.first) for span in spans)
    rows = chain.from_iterable(range(span.first, span.end) for span in spans)
    positions, again = tee(map(_position, zip(lsns, rows, strict=True)))
    acks = map(_ack, zip(repeat(sink, piece.count), again, strict=True))
    return map(_change, zip(*_contents(piece, wanted), xids, positions, acks, strict=True))


def _contents(piece: Piece, wanted: Wanted) -> Iterable[Iterable[Any]]:
    """What each change says of its row: tables, operations, new and old values."""
    if isinstance(piece.rows, Truncated):
        tables = [relation.table for relation in piece.rows.relations]
        return tables, *(repeat(what, len(tables)) for what in (Op.TRUNCATE, None, None))
    found = split(piece.rows, wanted)
    each = [(repeat(rows.relation.table, len(rows.at)), _ops(rows), _new(rows), _old(rows)) for rows in found]
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
    if not names:  # a table without columns, whose rows are changes nevertheless
        return iter(dict, None)
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
        return islice(found, len(where))
    return (next(found) if here else None for here in where.tolist())


def confirm(piece: Piece, confirm_rows: Callable[[Lsn, int, int], None]) -> None:
    """Confirm every change of the piece."""
    for span in piece.spans:
        confirm_rows(span.transaction.end_lsn, span.first, span.end)
