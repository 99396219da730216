"""COPY's text form, against a reader that goes character by character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DecodeError
from penstock.postgres import copytext

LETTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
# Plenty of what is escaped, of what looks like an escape, and of what looks like a null.
TEXTS = st.text(st.sampled_from("\\\\\b\f\n\r\t\vNnxäa€"), max_size=6) | st.sampled_from(["", "\\N", "N", "\\"])
ROWS = st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(st.none() | TEXTS, min_size=n, max_size=n), min_size=1))


def written(rows: list[list[str | None]]) -> bytes:
    """Rows as the server writes them."""
    return "".join("\t".join(map(escaped, row)) + "\n" for row in rows).encode()


def escaped(value: str | None) -> str:
    if value is None:
        return "\\N"
    codes = {meaning: letter for letter, meaning in LETTERS.items()} | {"\\": "\\"}
    return "".join("\\" + codes[one] if one in codes else one for one in value)


@given(ROWS)
def test_fields_come_back_as_they_were_written(rows: list[list[str | None]]) -> None:
    found = copytext.columns(written(rows), len(rows[0]))
    back = [[None if value is None else value.decode() for value in column.to_pylist()] for column in found]
    assert [list(row) for row in zip(*back, strict=True)] == rows
    for column in found:
        column.validate(full=True)


@pytest.mark.parametrize("block", [b"", b"1\t2", b"1\n", b"1\t2\t3\n", b"1\n2\t3\t4\n", b"1\t2\n3\n", b"1\n2\n"])
def test_what_is_no_block_of_lines_is_refused(block: bytes) -> None:
    with pytest.raises(DecodeError, match="2 fields"):
        copytext.columns(block, 2)
