"""Postgres' clock: microseconds since 2000, with two infinities."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.postgres.replication import POSTGRES_EPOCH_MICROS, postgres_clock_now, postgres_clock_to_unix_ms

DAY = 86_400_000_000


@pytest.mark.parametrize(
    ("micros", "unix_ms"),
    [
        (0, 946_684_800_000),
        (1, 946_684_800_000),
        (999, 946_684_800_000),
        (1000, 946_684_800_001),
        (-1, 946_684_799_999),
        (-1000, 946_684_799_999),
        (-1001, 946_684_799_998),
        (-POSTGRES_EPOCH_MICROS, 0),
        (-POSTGRES_EPOCH_MICROS - 1, -1),
        (-POSTGRES_EPOCH_MICROS - DAY, -86_400_000),
        (-(2**63), None),
        (2**63 - 1, None),
        (-(2**63) + 1, (-(2**63) + 1 + POSTGRES_EPOCH_MICROS) // 1000),
        (2**63 - 2, (2**63 - 2 + POSTGRES_EPOCH_MICROS) // 1000),
    ],
)
def test_the_clock_is_read_right_at_its_edges(micros: int, unix_ms: int | None) -> None:
    """E9: zero, negative, before 1970, both infinities and their neighbours; microseconds are rounded down."""
    assert postgres_clock_to_unix_ms(micros) == unix_ms


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)))
def test_the_clock_agrees_with_the_calendar(moment: datetime) -> None:
    """E9."""
    micros = (moment - datetime(2000, 1, 1)) // timedelta(microseconds=1)
    expected = (moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert postgres_clock_to_unix_ms(micros) == expected


def test_now_is_now() -> None:
    """E9."""
    before = time.time_ns() // 1_000_000
    now = postgres_clock_to_unix_ms(postgres_clock_now())
    assert now is not None
    assert before <= now <= time.time_ns() // 1_000_000
