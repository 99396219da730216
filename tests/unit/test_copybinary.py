"""COPY's binary form: what is one is read, and what is none is refused."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BugError, DecodeError
from penstock.postgres import copybinary, values, values_binary

Row = tuple[bytes | None, ...]
SAMPLES = st.none() | st.binary(max_size=20)
ROWS = st.integers(1, 4).flatmap(lambda n: st.lists(st.tuples(*[SAMPLES] * n), min_size=1))
INT4 = struct.Struct(">i")


def written(rows: list[Row]) -> tuple[bytearray, list[int]]:
    """Rows as the server writes them."""
    lines = [struct.pack(">h", len(row)) + b"".join(map(field, row)) for row in rows]
    return bytearray(b"".join(lines)), list(map(len, lines))


def field(value: bytes | None) -> bytes:
    return INT4.pack(-1) if value is None else INT4.pack(len(value)) + value


def column(found: list[bytes | None], type_oid: int, typmod: int = -1) -> values.Typed:
    """One column of such rows, with its type."""
    walk = copybinary.Walk(*written([(one,) for one in found]), 1)
    typed = values_binary.read_column(walk, type_oid, typmod)
    walk.finish()
    typed.values.validate(full=True)
    return typed


@given(ROWS)
def test_fields_come_back_as_they_were_written(rows: list[Row]) -> None:
    walk = copybinary.Walk(*written(rows), len(rows[0]))
    found = [walk.varying().to_pylist() for _ in rows[0]]
    walk.finish()
    assert list(zip(*found, strict=True)) == rows


@given(st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), min_size=1))
def test_a_null_moves_only_its_own_row(numbers: list[int | None]) -> None:
    rows: list[Row] = [(None if n is None else INT4.pack(n), b"after") for n in numbers]
    walk = copybinary.Walk(*written(rows), 2)
    assert values_binary.read_column(walk, values.INT4, -1).values.to_pylist() == numbers
    assert walk.varying().to_pylist() == [b"after"] * len(rows)


def test_a_nan_has_one_form_and_is_no_null() -> None:
    """E4: the server keeps the sign of a NaN, and its text does not tell it."""
    found = column([b"\xff\xf8" + bytes(6), None, struct.pack(">d", -0.0)], values.FLOAT8).values
    assert found.null_count == 1 and math.copysign(1, found[2].as_py()) == -1
    assert found[0].as_py() != found[0].as_py() and np.asarray(found.take([0])).tobytes() == np.float64("nan").tobytes()


@pytest.mark.parametrize(
    ("block", "sizes"),
    [
        (b"\0\1" + bytes(4), [6]),
        (b"\0\2" + field(b"1") + b"\xff\xff", [9]),
        (b"\0\2" + field(b"1") + field(b"2") + b"3", [13]),
        (b"\0\2" + field(b"1") + INT4.pack(100), [11]),
        (b"\0\2" + INT4.pack(-2) + field(b"1"), [11]),
        (b"\0", [1]),
    ],
)
def test_what_is_no_block_of_rows_is_refused(block: bytes, sizes: list[int]) -> None:
    with pytest.raises(DecodeError, match="binary COPY"):
        walk = copybinary.Walk(bytearray(block), sizes, 2)
        walk.varying(), walk.varying()
        walk.finish()


def test_a_field_of_another_size_or_beginning_is_refused() -> None:
    with pytest.raises(DecodeError, match="4 bytes"):
        column([b"12345678"], values.INT4)
    with pytest.raises(DecodeError, match="begin"):
        column([b"\x01{}", None, b"\x02{}"], 3802)


def test_a_numeric_beyond_its_columns_type_is_refused_not_cut() -> None:
    five_two = ((5 << 16) | 2) + 4
    for words in ((1, 1, 0, 0, 1), (1, -1, 0, 3, 10), (1, -2, 0, 5, 1), (1, 9, 0, 0, 1)):
        with pytest.raises(BugError):
            column([struct.pack(f">{len(words)}h", *words)], values.NUMERIC, five_two)


def test_the_beginning_and_the_end_are_taken_off_and_required() -> None:
    block, sizes = written([(b"1",)])
    whole, all_sizes = bytearray(b"PGCOPY\n\xff\r\n\0" + bytes(8)) + block + b"\xff\xff", [19 + sizes[0], 2]
    copybinary.drop_begin(whole, all_sizes)
    assert copybinary.drop_end(whole, all_sizes) and (whole, all_sizes) == (block, sizes)
    assert not copybinary.drop_end(whole, all_sizes)
    with pytest.raises(DecodeError, match="begin"):
        copybinary.drop_begin(whole, all_sizes)
