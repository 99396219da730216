"""When a shared snapshot is opened, joined, ended and refused."""

from __future__ import annotations

import pytest

from penstock.postgres import attendance
from penstock.postgres.attendance import Attendance, Seat, Visit

GRACE_S, IDLE_S = 5, 120


def visit(part: int, stage: int = 1, task: int | None = None, again: bool = False) -> Visit:
    return Visit(part, 2, stage, part if task is None else task, again)


@pytest.fixture
def runs() -> Attendance:
    return Attendance(GRACE_S, IDLE_S)


def seated(runs: Attendance, what: Visit, key: str = "run") -> Seat:
    seat = runs.admit(key, what)
    assert isinstance(seat, Seat), seat
    return seat


def read(runs: Attendance, what: Visit, now: float = 0, done: bool = True) -> Seat:
    seat = seated(runs, what)
    runs.leave(seat, done, now)
    return seat


def end_what_is_due(runs: Attendance, now: float) -> list[str]:
    ended = runs.due(now)
    for run, reason in ended:
        runs.end(run, reason)
    return [reason for _, reason in ended]


def test_the_first_opens_and_the_others_join(runs: Attendance) -> None:
    assert [seated(runs, visit(part)).first for part in (0, 1)] == [True, False]
    assert seated(runs, visit(0), "another run").first


def test_a_snapshot_ends_a_moment_after_every_part_was_read(runs: Attendance) -> None:
    """E55"""
    read(runs, visit(0), now=1)
    read(runs, visit(1), now=2)
    assert end_what_is_due(runs, 2 + GRACE_S - 1) == []
    assert end_what_is_due(runs, 2 + GRACE_S) == ["every part had been read"]
    assert end_what_is_due(runs, 1000) == []


def test_a_snapshot_is_kept_while_somebody_reads_or_will(runs: Attendance) -> None:
    slow = seated(runs, visit(0))
    read(runs, visit(1), now=1)
    assert end_what_is_due(runs, 100_000) == []
    runs.leave(slow, False, 100_000)
    assert end_what_is_due(runs, 100_000 + IDLE_S - 1) == []


def test_a_snapshot_that_nobody_reads_in_ends(runs: Attendance) -> None:
    """E55: a LIMIT leaves parts unread, a query that failed leaves all."""
    read(runs, visit(0), now=1)
    assert end_what_is_due(runs, 1 + IDLE_S) == ["no task had read in it for 120 s"]
    assert runs.admit("run", visit(1)) == "no task had read in it for 120 s"
    assert runs.admit("run", visit(0, stage=2)) == "no task had read in it for 120 s"


def test_a_task_run_again_joins_while_the_snapshot_stands_and_is_refused_after(runs: Attendance) -> None:
    read(runs, visit(0), done=False)
    read(runs, visit(0, again=True))
    read(runs, visit(1), now=1)
    assert not seated(runs, visit(1, again=True)).first
    runs = Attendance(GRACE_S, IDLE_S)
    read(runs, visit(0))
    read(runs, visit(1))
    end_what_is_due(runs, GRACE_S)
    for late in (visit(1, again=True), visit(1), visit(0, stage=1, task=7, again=True)):
        assert runs.admit("run", late) == "every part had been read"


def test_a_part_read_twice_is_not_two_parts(runs: Attendance) -> None:
    read(runs, visit(0))
    read(runs, visit(0, again=True))
    assert end_what_is_due(runs, GRACE_S) == []


def test_parts_read_by_one_job_each_are_one_run(runs: Attendance) -> None:
    """A frame taken part by part runs a job, and so a stage, for each of them."""
    assert read(runs, visit(0, stage=1, task=0)).first
    assert not read(runs, visit(1, stage=2, task=0)).first
    assert end_what_is_due(runs, GRACE_S) == ["every part had been read"]


def test_a_further_scan_of_a_run_gets_a_snapshot_of_its_own(runs: Attendance) -> None:
    """The second side of a join, or the second half of a union, which is in the same stage; never a retried task."""
    read(runs, visit(0))
    read(runs, visit(1))
    end_what_is_due(runs, GRACE_S)
    assert read(runs, visit(0, stage=2)).first
    assert runs.admit("run", visit(0, stage=1, again=True)) == "its task had read in an earlier one"
    assert not read(runs, visit(1, stage=2)).first
    end_what_is_due(runs, GRACE_S)
    assert read(runs, visit(0, stage=2, task=2)).first


def test_a_scan_that_has_begun_gets_no_second_snapshot(runs: Attendance) -> None:
    """Two stages, each with half of the parts: whether they were one scan or two, no row of another moment."""
    read(runs, visit(0, stage=1))
    read(runs, visit(1, stage=2))
    end_what_is_due(runs, GRACE_S)
    assert runs.admit("run", visit(1, stage=1)) == "every part had been read"


def test_a_snapshot_that_could_not_be_opened_is_tried_again(runs: Attendance) -> None:
    seat = seated(runs, visit(0))
    joined = seated(runs, visit(1))
    runs.withdraw(seat.run)
    again = seated(runs, visit(0, again=True))
    assert again.first
    runs.leave(joined, False, 1)
    assert again.run.readers == 1


def test_of_runs_long_past_nothing_is_kept(runs: Attendance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendance, "_REMEMBERED", 10)
    for number in range(100):
        for part in (0, 1):
            runs.leave(seated(runs, visit(part), f"run {number}"), True, 0)
        end_what_is_due(runs, GRACE_S)
    assert len(runs._runs) <= 6
    assert runs.admit("run 99", visit(0)) == "every part had been read"
