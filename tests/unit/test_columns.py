"""Blocks of row messages decoded as columns: always what the decoder of single messages says."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping, Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DecodeError
from penstock.postgres import pgoutput as pg
from penstock.postgres.columns import Block, joined, split
from tests.unit import wire
from tests.unit.agreement import Row, Wanted, at_once, everything, one_by_one

Relations = Mapping[int, pg.Relation]


def block_of(messages: Sequence[bytes], relations: Relations, streamed: bool = False, gap: int = 0) -> Block:
    """The messages with other bytes between them, as a frame's header is, which must not matter."""
    spread = [part for message in messages for part in (b"\xa5" * gap, message)]
    whole = Block.of(spread, relations, streamed)
    return whole.kept(np.arange(len(spread)) % 2 == 1)


def make_block(chance: wire.Chance, least: int = 0) -> Block:
    """Rows of up to three relations, mixed."""
    relations = {oid: chance.relation(oid) for oid in (1, 7, 2**32 - 1)[: 1 + chance.below(3)]}
    streamed, gap = chance.below(2) == 1, 25 * chance.below(2)
    rows = [
        chance.row(relations[sorted(relations)[chance.below(len(relations))]], 754 if streamed else None)
        for _ in range(least + chance.below(9))
    ]
    return block_of([wire.encode(row) for row in rows], relations, streamed, gap)


blocks = wire.chances(400).map(make_block)
filled_blocks = wire.chances(400).map(lambda chance: make_block(chance, 1))


def some(chance: wire.Chance) -> Wanted:
    """Some columns, in any order."""
    first, step = chance.below(5), 1 + chance.below(3)
    return lambda relation: list(everything(relation))[first :: step * (-1) ** step]


@settings(max_examples=150)
@given(blocks, st.just(everything) | wire.chances(2).map(some))
def test_a_block_is_decoded_as_its_messages_are_one_by_one(block: Block, wanted: Wanted) -> None:
    """E1, E3: text, binary, null and unchanged values, all old tuples, several relations, streamed or not."""
    assert at_once(block, wanted) == one_by_one(block, wanted)


@settings(max_examples=150)
@given(filled_blocks, st.randoms(use_true_random=False))
def test_a_broken_block_is_refused_where_its_messages_are_and_otherwise_agrees(block: Block, rng: Random) -> None:
    """E2: a byte changed, bytes cut off or added: a DecodeError by both, or the same rows by both."""
    messages = list(block.messages())
    for _ in range(rng.choice([1, 2])):
        at = rng.randrange(len(messages))
        messages[at] = _damaged(messages[at], rng)
    broken = block_of(messages, block.relations, block.streamed)
    try:
        expected = one_by_one(broken, everything)
    except DecodeError:
        with pytest.raises(DecodeError):
            split(broken, everything)
    else:
        assert at_once(broken, everything) == expected


def _damaged(message: bytes, rng: Random) -> bytes:
    # The tag stays one of a row: nothing else gets into a block.
    how = rng.choice(["byte", "length", "cut", "more", "tag"])
    if how == "tag":
        return bytes([rng.choice(b"IUD")]) + message[1:]
    if how == "cut":
        return message[: rng.randint(1, len(message))]
    if how == "more" or len(message) < 5:
        return message + rng.randbytes(rng.randint(1, 6))
    if how == "byte":
        at = rng.randrange(1, len(message))
        return message[:at] + bytes([rng.choice([*b"tbnuNKO\0\1", rng.randrange(256)])]) + message[at + 1 :]
    at = rng.randint(1, len(message) - 4)
    size = rng.choice([0, 1, 5, 2**16, 2**31 - 1, 2**31, 2**32 - 1])
    return message[:at] + size.to_bytes(4, "big") + message[at + 4 :]


ROWS: list[Row] = [
    pg.Insert(1, (b"1", b"x" * 50)),
    pg.Update(1, (b"1", pg.UNCHANGED)),
    pg.Update(1, (b"2", None), (b"1", None)),
    pg.Update(1, (b"2", pg.UNCHANGED), (b"1", b"y"), True),
    pg.Delete(1, (b"2", None)),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
@pytest.mark.parametrize("last", [True, False], ids=["last", "followed"])
def test_a_row_cut_at_any_byte_is_refused_with_its_place(row: Row, last: bool) -> None:
    """E2: also where the bytes of the next message would make it whole."""
    relations = {1: wire.relation(1)}
    whole = wire.encode(row)
    after = [] if last else [wire.encode(ROWS[0])]
    for size in range(1, len(whole)):
        block = block_of([wire.encode(ROWS[0]), whole[:size], *after], relations, gap=25)
        with pytest.raises(DecodeError) as refused:
            split(block, everything)
        with pytest.raises(DecodeError) as by_reference:
            pg.decode(whole[:size], relations=relations)
        assert (refused.value.offset, refused.value.tag) == (by_reference.value.offset, chr(whole[0]))


@pytest.mark.parametrize("tag", list(b"IUD"), ids=chr)
def test_a_tuple_of_another_kind_than_its_row_may_have_is_refused(tag: int) -> None:
    """E2: by both decoders, with one tuple and with two."""
    relations, values = {1: wire.relation(1)}, wire.row((b"1", None))
    for kind in b"NKOnko\0X":
        for follows in (b"", b"N" + values, b"K" + values):
            message = bytes([tag, 0, 0, 0, 1, kind]) + values + follows
            block = block_of([wire.encode(ROWS[0]), message], relations)
            try:
                expected = one_by_one(block, everything)
            except DecodeError:
                with pytest.raises(DecodeError):
                    split(block, everything)
            else:
                assert at_once(block, everything) == expected


@pytest.mark.parametrize("length", [2**31 - 1, 2**31, 2**32 - 1])
def test_a_length_larger_than_the_block_allocates_nothing(length: int) -> None:
    """E2."""
    row = bytearray(wire.encode(ROWS[0]))
    row[9:13] = length.to_bytes(4, "big")
    block = block_of([bytes(row)] * 100, {1: wire.relation(1)})
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            split(block, everything)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_a_row_of_a_relation_never_described_is_refused() -> None:
    """E14: also among rows of known ones."""
    block = block_of([wire.encode(ROWS[0]), wire.encode(pg.Insert(2, (b"1", b"2")))], {1: wire.relation(1)})
    with pytest.raises(DecodeError, match="relation 2, which was never described"):
        split(block, everything)


@pytest.mark.parametrize(
    ("full", "value", "expected"),
    [
        (True, b"whole", [b"whole", pg.UNCHANGED]),
        (True, None, [pg.UNCHANGED] * 2),
        (False, None, [pg.UNCHANGED] * 2),
    ],
    ids=["whole", "said to be whole", "identity"],
)
def test_an_unchanged_value_is_taken_from_a_whole_old_row_only(
    full: bool, value: bytes | None, expected: list[pg.Value]
) -> None:
    """E3: an old identity has nulls where it has no value; those are not taken. Unchanged in both stays unchanged.

    Nor are they where the row is said to be whole, by the identity of a table whose partition keeps less: what is too
    large for its row is not null.
    """
    relation = wire.relation(1, identity="f" if full else "d")
    old: pg.Tuple = (b"1", value)
    rows = [
        pg.Update(1, (b"2", pg.UNCHANGED), old, full),
        pg.Update(1, (b"2", pg.UNCHANGED), (b"1", pg.UNCHANGED), full),
    ]
    ((_, _, _, _, first), (_, _, _, _, second)) = at_once(
        block_of(list(map(wire.encode, rows)), {1: relation}), everything
    )[1]
    assert [first[1], second[1]] == expected


def test_an_unchanged_key_is_taken_from_the_old_identity() -> None:
    """E3: a long key that the update did not touch."""
    row = pg.Update(1, (pg.UNCHANGED, b"x"), (b"long", None))
    assert at_once(block_of([wire.encode(row)], {1: wire.relation(1)}), everything)[1][0][4] == (b"long", b"x")


@given(filled_blocks, st.randoms(use_true_random=False))
def test_rows_cut_from_a_block_and_rows_left_out_of_it_are_as_before(block: Block, rng: Random) -> None:
    messages = list(block.messages())
    first = rng.randrange(len(messages))
    end = rng.randint(first + 1, len(messages))
    assert list(block.rows(first, end).messages()) == messages[first:end]
    keep = [rng.random() < 0.5 for _ in messages]
    kept = block.kept(np.array(keep, np.bool_))
    assert list(kept.messages()) == [message for message, stays in zip(messages, keep, strict=True) if stays]
    if block.streamed:
        assert set(block.xids().tolist()) == {int.from_bytes(message[1:5], "big") for message in messages}


@given(st.lists(filled_blocks, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_blocks_joined_hold_the_messages_of_each(found: list[Block], rng: Random) -> None:
    parts = [block.rows(first, len(block)) for block in found for first in (0, rng.randrange(len(block)))]
    whole = joined(parts)
    assert list(whole.messages()) == [message for part in parts for message in part.messages()]


def test_runs_out_of_the_same_bytes_are_joined_without_multiplying_them() -> None:
    """E12: a transaction that came in many small pieces."""
    block = block_of([wire.encode(ROWS[0])] * 1000, {1: wire.relation(1)})
    whole = joined([block.rows(at, at + 1) for at in range(0, 1000, 2)])
    assert len(whole.data) == len(block.data)
    assert at_once(whole, everything) == one_by_one(whole, everything)


def test_a_thousand_columns_and_values_of_every_size() -> None:
    """E6: as wide as a table can be, with values around the size at which they are gathered differently."""
    relation = wire.relation(1, [f"c{i}" for i in range(1600)])
    row = pg.Insert(1, tuple(b"v" * (i % 60) if i % 7 else None for i in range(1600)))
    block = block_of([wire.encode(row)] * 3, {1: relation})
    assert at_once(block, everything) == one_by_one(block, everything)
