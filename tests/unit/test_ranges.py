"""Parts of a table: each row in exactly one, about as many blocks or keys in each."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from penstock.postgres.ranges import (
    BlockRange,
    Everything,
    KeyColumn,
    KeyRange,
    block_range,
    block_ranges,
    key_prefix,
    key_ranges,
)

SIZES = st.lists(st.integers(0, 5000), min_size=1, max_size=8)


def blocks_in(part: BlockRange, sizes: list[int]) -> int:
    """How many blocks of tables of these sizes are in the part."""
    first, end = part.first or 0, part.end if part.end is not None else max(sizes)
    return sum(max(min(size, end) - min(size, first), 0) for size in sizes)


@given(SIZES, st.integers(1, 20))
def test_blocks_are_parted_evenly_and_without_a_gap(sizes: list[int], parts: int) -> None:
    """E53: however the sizes of a table's partitions differ."""
    found = [part for part in block_ranges(sizes, parts) if isinstance(part, BlockRange)]
    assert found[0].first is None and found[-1].end is None
    assert all(one.end == other.first for one, other in itertools.pairwise(found))
    counts = [blocks_in(part, sizes) for part in found]
    assert sum(counts) == sum(sizes)
    assert 1 <= len(found) <= parts
    assert max(counts) <= sum(sizes) / parts + len(sizes)  # a cut goes through every table at once


@given(SIZES, st.integers(1, 20))
def test_one_part_is_found_without_the_others(sizes: list[int], parts: int) -> None:
    found = [block_range(sizes, parts, number) for number in range(parts)]
    assert found[0].first is None and found[-1].end is None
    assert all(one.end == other.first for one, other in itertools.pairwise(found))
    assert {part.end for part in block_ranges(sizes, parts) if isinstance(part, BlockRange)} <= {p.end for p in found}


def test_an_empty_table_is_one_part() -> None:
    assert block_ranges([0], 8) == [BlockRange(None, None)]
    assert block_ranges([], 8) == [BlockRange(None, None)]


def test_parts_read_as_conditions() -> None:
    assert Everything().condition() == BlockRange(None, None).condition() == "TRUE"
    assert BlockRange(3, 9).condition() == "ctid >= '(3,0)'::pg_catalog.tid AND ctid < '(9,0)'::pg_catalog.tid"
    shop, at = KeyColumn("Shop", "integer", False), KeyColumn("at", "text", True)
    first, middle, last = key_ranges([shop, at], [("1", "it's"), ("1", "it's"), ("2", "b")])
    assert first.condition() == """("Shop", "at") < ('1'::integer, 'it''s'::text)"""
    assert middle.condition() == (
        """("Shop", "at") >= ('1'::integer, 'it''s'::text) AND ("Shop", "at") < ('2'::integer, 'b'::text)"""
    )
    assert last.condition() == """("Shop", "at") >= ('2'::integer, 'b'::text)"""
    low, high = key_ranges([at], [("b",)])
    assert low.condition() == """("at" < 'b'::text OR "at" IS NULL)"""
    assert high.condition() == """"at" >= 'b'::text"""
    assert [part.condition() for part in key_ranges([at], [])] == ["TRUE"]


def test_bounds_do_not_show() -> None:
    assert repr(KeyRange((KeyColumn("name", "text", False),), ("Miller",), None)) == "KeyRange(name)"


def test_a_key_is_cut_by_the_columns_before_one_that_may_be_null() -> None:
    a, b, c = KeyColumn("a", "int", False), KeyColumn("b", "int", True), KeyColumn("c", "int", False)
    assert key_prefix([a, c]) == (a, c)
    assert key_prefix([a, b, c]) == (a,)
    assert key_prefix([b, a]) == (b,)
