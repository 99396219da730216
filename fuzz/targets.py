"""What the fuzzer does with an input: whatever its bytes, a DecodeError may come of it and nothing else.

The first byte says how the rest is taken: as one message, as frames of a stream (each behind its length in two bytes),
or as a block of rows of known relations (each behind its length in one byte), which both decoders must read alike.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import DecodeError
from penstock.model import QualifiedTable
from penstock.postgres import pgoutput as pg
from penstock.postgres.changes import pieces
from penstock.postgres.columns import Block, split
from penstock.postgres.transactions import Assembler, Transaction, Truncated
from tests.unit.agreement import at_once, everything, one_by_one

MESSAGE, FRAMES, BLOCK = b"mfb"

_TAGS = bytes([pg.INSERT, pg.UPDATE, pg.DELETE])


def _relation(oid: int, identity: str, keys: str) -> pg.Relation:
    columns = [pg.Column(f"c{at}", 25, -1, key == "k") for at, key in enumerate(keys)]
    return pg.Relation(oid, QualifiedTable("public", f"t{oid}"), identity, tuple(columns))


RELATIONS = {
    1: _relation(1, "d", "k--"),
    2: _relation(2, "f", "kkkk"),
    3: _relation(3, "i", "-k"),
    4: _relation(4, "n", ""),
}
"""What a block's rows belong to; a row's relation is chosen by its second byte."""


def run(data: bytes) -> None:
    """Try one input; raises what is a finding."""
    if not data:
        return
    target = {MESSAGE: _message, FRAMES: _frames, BLOCK: _block}[
        b"mfb"[data[0] % 3] if data[0] not in b"mfb" else data[0]
    ]
    target(data[1:])


def _message(data: bytes) -> None:
    for streamed in (False, True):
        try:
            pg.decode(data, streamed=streamed)
        except DecodeError as error:
            assert 0 <= error.offset <= len(data), "the offset lies inside of the message"


def _frames(data: bytes) -> None:
    assembler = Assembler(spill_bytes=len(data) % 3 * 100)
    transactions: list[Transaction] = []
    try:
        for event in assembler.feed(list(_cut(data, 2))):
            if isinstance(event, Transaction):
                transactions.append(event)
        for piece in pieces(transactions, 7, 1000):
            if not isinstance(piece.rows, Truncated):
                split(piece.rows, everything)
    except DecodeError:
        pass
    finally:
        assembler.reset()
        for transaction in transactions:
            transaction.release()


def _block(data: bytes) -> None:
    streamed = bool(data and data[0] & 1)
    rows = [_row(one, streamed) for one in _cut(data[1:], 1) if len(one) > 1]
    block = Block.of(rows, RELATIONS, streamed)
    try:
        expected = one_by_one(block, everything)
    except DecodeError:
        try:
            split(block, everything)
        except DecodeError:
            return
        raise AssertionError("a row was accepted in a block and refused by itself") from None
    assert at_once(block, everything) == expected, "both decoders read the same rows"


def _row(one: bytes, streamed: bool) -> bytes:
    # Always a row, mostly of a relation that is known: the fuzzer is to spend its time on what comes after.
    oid = one[1] % 5 + 1
    return _TAGS[one[0] % 3 : one[0] % 3 + 1] + (b"\0\0\0\7" if streamed else b"") + bytes([0, 0, 0, oid]) + one[2:]


def _cut(data: bytes, width: int) -> Iterator[bytes]:
    """Parts behind their lengths; the last one may be cut short."""
    at = 0
    while at + width <= len(data):
        size = int.from_bytes(data[at : at + width], "big")
        at += width
        yield data[at : at + size]
        at += size
