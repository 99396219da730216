"""The decoder of single messages: every message comes back as it was written, and nothing else is accepted."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DecodeError
from penstock.model import Lsn, QualifiedTable
from penstock.postgres import pgoutput as pg
from tests.unit import wire

T = QualifiedTable("public", "t")
COLUMNS = (pg.Column("id", 20, -1, True), pg.Column("größe", 1700, 655366, False))
ROW: pg.Tuple = (b"1", None, pg.UNCHANGED, pg.Binary(b"\0\1"), b"", "🙂".encode())
KEY: pg.Tuple = (b"1", None, None, None, None, None)

OUTSIDE: list[pg.Message] = [
    pg.Begin(Lsn(0x16_B374D848), 750_000_000_000_000, 754),
    pg.Commit(0, Lsn(0x16_B374D848), Lsn(0x16_B374D878), -1),
    pg.Origin(Lsn(7), "upstream"),
    pg.StreamStart(754, True),
    pg.StreamStart(754, False),
    pg.StreamStop(),
    pg.StreamCommit(754, 0, Lsn(1), Lsn(2), 3),
    pg.StreamAbort(754, 755),
]
INSIDE: list[pg.Message] = [
    pg.Relation(16384, T, "d", COLUMNS),
    pg.Relation(16384, QualifiedTable("pg_catalog", "pg_class"), "n", ()),
    pg.Relation(16384, T, "i", COLUMNS),
    pg.Relation(16384, T, "f", tuple(replace(column, key=True) for column in COLUMNS)),
    pg.Type(16400, "public", "mood"),
    pg.LogicalMessage(True, Lsn(9), "penstock", b"heart\0beat"),
    pg.LogicalMessage(False, Lsn(9), "", b""),
    pg.Insert(16384, ROW),
    pg.Insert(16384, ()),
    pg.Update(16384, ROW),
    pg.Update(16384, ROW, KEY),
    pg.Update(16384, ROW, ROW, True),
    pg.Delete(16384, KEY),
    pg.Delete(16384, ROW, True),
    pg.Truncate((16384,)),
    pg.Truncate((16384, 16390, 16399), True, True),
    pg.Truncate((16384,), False, True),
]
STREAMED = [replace(message, xid=755) for message in INSIDE]  # type: ignore[call-arg]
EVERY = [*((m, False) for m in [*OUTSIDE, *INSIDE]), *((m, True) for m in STREAMED)]


def spelled(case: object) -> str:
    return type(case).__name__ if not isinstance(case, bool) else ("streamed" if case else "plain")


@pytest.mark.parametrize(("message", "streamed"), EVERY, ids=spelled)
def test_every_message_is_read_as_it_was_written(message: pg.Message, streamed: bool) -> None:
    """E1: protocol 1, and the same messages inside and around the pieces of protocol 2."""
    assert pg.decode(wire.encode(message), streamed=streamed) == message


def test_every_kind_of_message_is_among_those_tested() -> None:
    """E1: the list above is whole."""
    assert {type(message) for message, _ in EVERY} == set(pg.Message.__args__)
    assert {wire.encode(message)[:1] for message, _ in EVERY} == {bytes([b]) for b in b"BCORYMIUDTSEcA"}


def test_bytes_as_the_protocol_documents_them() -> None:
    """E1: an update with an old key, spelled out by hand rather than by the tests' own encoder."""
    by_hand = bytes.fromhex("55 00004000 4b 0002 74 00000001 31 6e 4e 0002 74 00000001 32 75")
    assert pg.decode(by_hand) == pg.Update(0x4000, (b"2", pg.UNCHANGED), (b"1", None))


@given(wire.plain_messages)
def test_any_message_of_protocol_1_survives_the_round_trip(message: pg.Message) -> None:
    """E1."""
    assert pg.decode(wire.encode(message)) == message


@given(wire.streamed_messages)
def test_any_message_of_a_streamed_piece_survives_the_round_trip(message: pg.Message) -> None:
    """E1."""
    assert pg.decode(wire.encode(message), streamed=True) == message


def test_a_binary_value_is_told_from_a_text() -> None:
    """E1: both arrive as bytes; what they mean differs."""
    insert = pg.decode(wire.encode(pg.Insert(1, (b"1", pg.Binary(b"1")))))
    assert isinstance(insert, pg.Insert)
    assert [type(value) for value in insert.new] == [bytes, pg.Binary]


@pytest.mark.parametrize("where", ["new", "old"])
def test_an_unchanged_value_is_neither_null_nor_empty(where: str) -> None:
    """E3: in new and in old tuples, also where the same update changes the key."""
    sent: pg.Tuple = (b"2", pg.UNCHANGED, None, b"")
    other: pg.Tuple = (b"1", None, None, None)
    message = pg.Update(1, sent, other) if where == "new" else pg.Update(1, other, sent)
    found = getattr(pg.decode(wire.encode(message)), where)
    assert found == sent
    assert len({found[1], found[2], found[3]}) == 3


@pytest.mark.parametrize(("message", "streamed"), EVERY, ids=spelled)
def test_a_message_cut_at_any_byte_is_refused(message: pg.Message, streamed: bool) -> None:
    """E2: with the offset, which lies inside what was there, and the tag."""
    whole = wire.encode(message)
    for size in range(len(whole)):
        with pytest.raises(DecodeError) as refused:
            pg.decode(whole[:size], streamed=streamed)
        assert 0 <= refused.value.offset <= size
        assert refused.value.tag == (chr(whole[0]) if size else "")
        assert f"offset {refused.value.offset}" in str(refused.value)


@pytest.mark.parametrize(("message", "streamed"), EVERY, ids=spelled)
def test_bytes_after_a_message_are_refused(message: pg.Message, streamed: bool) -> None:
    """E2: a message is read to its last byte."""
    whole = wire.encode(message)
    with pytest.raises(DecodeError) as refused:
        pg.decode(whole + b"\0", streamed=streamed)
    assert refused.value.offset <= len(whole)


def test_an_unknown_tag_is_refused() -> None:
    """E2: also those of protocols 3 and 4, which are never asked for. What is shown of it can be printed."""
    for tag in set(range(256)) - set(b"BCORYMIUDTSEcA"):
        with pytest.raises(DecodeError, match="unknown kind") as refused:
            pg.decode(bytes([tag]) + bytes(40))
        assert refused.value.offset == 0
        assert refused.value.tag in (chr(tag), repr(chr(tag)))
        assert str(refused.value).isprintable()


HUGE = 2**31 - 1
LYING = {
    "a value longer than the message": (b"I" + struct.pack("!I", 1) + b"N\0\1t" + struct.pack("!i", HUGE), 13),
    "a binary value longer than the message": (b"I" + struct.pack("!I", 1) + b"N\0\1b" + struct.pack("!i", HUGE), 13),
    "a value of negative length": (b"I" + struct.pack("!I", 1) + b"N\0\1t" + struct.pack("!i", -1), 9),
    "more columns than bytes": (b"I" + struct.pack("!I", 1) + b"N\xff\xff" + b"n" * 9, 6),
    "more relations than bytes": (b"T" + struct.pack("!IB", HUGE, 0) + bytes(8), 6),
    "more relations than a number holds": (b"T" + struct.pack("!IB", 2**32 - 1, 0), 6),
    "a content longer than the message": (b"M\0" + bytes(8) + b"p\0" + struct.pack("!I", 2**32 - 1), 16),
    "more described columns than bytes": (b"R" + struct.pack("!I", 1) + b"s\0t\0d\xff\xff\0", 10),
    "a name without an end": (b"O" + bytes(8) + b"x" * 20, 9),
    "a name that is not UTF-8": (b"O" + bytes(8) + b"ab\xff\0", 11),
    "an unknown kind of value": (b"I" + struct.pack("!I", 1) + b"N\0\1x", 8),
    "an unknown kind of tuple": (b"I" + struct.pack("!I", 1) + b"K\0\0", 5),
    "an insert with an old tuple": (b"I" + struct.pack("!I", 1) + b"O\0\0", 5),
    "a delete with a new tuple": (b"D" + struct.pack("!I", 1) + b"N\0\0", 5),
    "an update with two old tuples": (b"U" + struct.pack("!I", 1) + b"K\0\0O\0\0", 8),
    "an unknown replica identity": (b"R" + struct.pack("!I", 1) + b"s\0t\0x\0\0", 9),
}


@pytest.mark.parametrize(("lie", "offset"), LYING.values(), ids=LYING.keys())
def test_what_claims_more_than_is_there_is_refused_at_its_place(lie: bytes, offset: int) -> None:
    """E2: and nothing is allocated for the claim."""
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError) as refused:
            pg.decode(lie)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (refused.value.offset, refused.value.tag) == (offset, chr(lie[0]))
    assert peak < 100_000


@pytest.mark.parametrize(
    "message",
    [pg.Insert(1, (b"1",)), pg.Update(1, (b"1", b"2"), (b"1",)), pg.Update(1, (b"1",)), pg.Delete(1, (b"1",) * 3)],
    ids=spelled,
)
@pytest.mark.parametrize("xid", [None, 7], ids=["plain", "streamed"])
def test_a_row_of_another_width_than_its_relation_is_refused(message: pg.Message, xid: int | None) -> None:
    """E2: in the new and in the old tuple."""
    data = wire.encode(replace(message, xid=xid))  # type: ignore[call-arg]
    with pytest.raises(DecodeError, match="for a relation of 2") as refused:
        pg.decode(data, streamed=xid is not None, relations={1: wire.relation(1)})
    assert refused.value.offset == (5 if xid is None else 9)


@pytest.mark.parametrize("message", [pg.Insert(2, (b"1", None)), pg.Truncate((1, 2))], ids=spelled)
def test_a_row_of_a_relation_never_described_is_refused(message: pg.Message) -> None:
    """E14."""
    with pytest.raises(DecodeError, match="relation 2, which was never described"):
        pg.decode(wire.encode(message), relations={1: wire.relation(1)})


@settings(max_examples=150)
@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_give_a_message_or_a_decode_error(data: bytes, streamed: bool) -> None:
    """E2: and what is accepted says the same when it is written again."""
    try:
        message = pg.decode(data, streamed=streamed)
    except DecodeError as error:
        assert 0 <= error.offset <= len(data)
        return
    assert pg.decode(wire.encode(message), streamed=streamed) == message


@settings(max_examples=150)
@given(wire.streamed_messages | wire.plain_messages, st.data())
def test_a_message_with_one_byte_changed_gives_a_message_or_a_decode_error(
    message: pg.Message, data: st.DataObject
) -> None:
    """E2: changed bytes that are still a message have its full length, and never more columns than it has bytes."""
    broken = bytearray(wire.encode(message))
    broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = pg.decode(bytes(broken), streamed=data.draw(st.booleans()))
    except DecodeError:
        return
    assert len(wire.encode(found)) == len(broken) or isinstance(found, pg.Relation | pg.Type)
