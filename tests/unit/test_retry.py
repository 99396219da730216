"""Waiting for a slot that is in use: how often, how long, for which errors, and what cuts it short."""

from __future__ import annotations

import threading

import psycopg
import pytest

from penstock.errors import OperatorError, PenstockError, SlotActiveError, UnavailableError
from penstock.postgres.replication import backoff_s, is_slot_active_error, retry_on_slot_active


class Waits(threading.Event):
    """A stop that notes how long it was waited for, and never waits."""

    def __init__(self, stops_after: int = 1000) -> None:
        super().__init__()
        self.waited_s: list[float] = []
        self._stops_after = stops_after

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waited_s.append(timeout)
        return len(self.waited_s) >= self._stops_after


def held() -> SlotActiveError:
    return SlotActiveError("in use", sqlstate="55006")


class Op:
    """Fails with each of the errors in turn, then gives its number of calls."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.calls


def test_a_free_slot_is_not_waited_for() -> None:
    """E25: nothing is retried that succeeds."""
    stop = Waits()
    assert retry_on_slot_active(3, Op(), stop=stop) == 1
    assert stop.waited_s == []


def test_a_slot_in_use_is_asked_for_again_until_it_is_free() -> None:
    """E25: with waits that grow."""
    stop = Waits()
    assert retry_on_slot_active(9, Op(*[held() for _ in range(9)]), stop=stop) == 10
    assert len(stop.waited_s) == 9
    assert all(0 < wait <= 5.0 for wait in stop.waited_s)
    assert max(stop.waited_s[:2]) < min(stop.waited_s[-2:])


@pytest.mark.parametrize("retries", [0, 1, 4])
def test_the_last_error_is_raised_as_it_is(retries: int) -> None:
    """E25: zero fails at once."""
    errors = [held() for _ in range(10)]
    op, stop = Op(*errors), Waits()
    with pytest.raises(SlotActiveError) as caught:
        retry_on_slot_active(retries, op, stop=stop)
    assert caught.value is errors[retries]
    assert op.calls == retries + 1
    assert len(stop.waited_s) == retries


@pytest.mark.parametrize(
    "error",
    [
        UnavailableError("gone", sqlstate="57P01"),
        OperatorError("no"),
        psycopg.errors.UndefinedObject("no"),
        ValueError("ours"),
    ],
)
def test_no_other_error_is_tried_again(error: Exception) -> None:
    """E25: not even one that would pass: its budget is not this one."""
    op, stop = Op(held(), error), Waits()
    with pytest.raises(type(error)) as caught:
        retry_on_slot_active(5, op, stop=stop)
    assert caught.value is error
    assert op.calls == 2
    assert len(stop.waited_s) == 1


def test_a_stop_cuts_the_waiting_short() -> None:
    """E25: the error of the attempt before it is raised."""
    op = Op(*[held() for _ in range(10)])
    with pytest.raises(SlotActiveError):
        retry_on_slot_active(9, op, stop=Waits(stops_after=2))
    assert op.calls == 2


def test_the_drivers_own_error_counts_too() -> None:
    """E25: recognised by its SQLSTATE."""
    assert retry_on_slot_active(1, Op(psycopg.errors.ObjectInUse("in use")), stop=Waits()) == 2


@pytest.mark.parametrize(
    ("error", "active"),
    [
        (SlotActiveError("x", sqlstate="55006"), True),
        (psycopg.errors.ObjectInUse("x"), True),
        (PenstockError("slot is active for PID 7", sqlstate="55000"), False),
        (PenstockError("replication slot is active"), False),
        (ValueError("55006"), False),
    ],
)
def test_a_slot_in_use_is_known_by_its_sqlstate_alone(error: BaseException, active: bool) -> None:
    """E25: never by the words of a message."""
    assert is_slot_active_error(error) is active


@pytest.mark.parametrize(("limits", "floor_s", "ceiling_s"), [({}, 0.05, 30.0), ({"ceiling_s": 2.0}, 0.05, 2.0)])
def test_waits_double_to_a_ceiling_with_jitter_of_a_half(
    limits: dict[str, float], floor_s: float, ceiling_s: float
) -> None:
    """E25: no two clients keep step for long, and none waits longer than the ceiling."""
    for attempt in (*range(12), 1000, 10_000):
        full_s = min(ceiling_s, floor_s * 2 ** min(attempt, 50))
        waits = [backoff_s(attempt, **limits) for _ in range(20)]
        assert all(full_s / 2 <= wait <= full_s for wait in waits)
        assert len(set(waits)) > 1
