"""How far behind a run is, by samples of the server; what it tells of its last batches, and to whom."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from penstock.engine import batch
from penstock.engine.batch import Tally
from penstock.engine.recent import summary
from penstock.engine.report import Course, IndexReport, Phase, Report
from penstock.engine.state import Seed
from penstock.errors import UnavailableError
from penstock.model import Lsn
from penstock.ops.status import Sampler, Slot, behind_s, position, unready
from penstock.postgres.replication import postgres_clock_now
from penstock.spark.direct import Desk, commits, fetch
from tests.unit.engine_parts import MemorySink, changes, parts


def slot(written: int, confirmed: int = 0) -> Slot:
    return Slot(Lsn(written), Lsn(confirmed), True, False, "reserved", 10, written - confirmed, None)


@pytest.fixture
def report() -> Report:
    found = Report({"books": IndexReport(Phase.LIVE)})
    found.batch(Tally(5, {"books": 3}), Lsn(100), direct=True)
    return found


def test_what_was_received_counts_as_done_only_when_there_was_nothing_to_do() -> None:
    """A stream that is busy, or has just been, may have received what it has not worked off."""
    assert position(Lsn(100), Lsn(900), idle_s=0.0) == Lsn(100)
    assert position(Lsn(100), Lsn(900), idle_s=5.0) == Lsn(900)
    assert position(Lsn(900), Lsn(100), idle_s=5.0) == Lsn(900)
    assert position(Lsn(100), None, idle_s=5.0) == Lsn(100)


def test_behind_is_since_the_first_wal_that_is_not_done() -> None:
    seen = [(10.0, Lsn(50)), (11.0, Lsn(120)), (12.0, Lsn(200))]
    assert behind_s(seen, Lsn(100), 15.0) == 4.0
    assert behind_s(seen, Lsn(200), 15.0) == 0.0


def test_a_sample_tells_positions_and_lag_and_a_silent_server_is_told_as_that(report: Report) -> None:
    answers: list[Slot | None] = [slot(400, 90), None]

    def ask() -> Slot:
        found = answers.pop(0)
        if found is None:
            raise UnavailableError("away")
        return found

    sampler = Sampler(report, ask, lambda: Lsn(300), lambda: 2)
    with report.applying():
        sampler.take()
    told = sampler.told()
    assert told["source"]["lag_bytes"] == 300, "nothing that was received counts while a batch is under way"
    assert (told["source"]["written"], told["source"]["confirmed"]) == ("0/190", "0/5A")
    assert (told["quarantined"], told["ready"]) == (2, True)
    sampler.take()
    told = sampler.told()
    assert told["source"]["reachable"] is False
    assert told["source"]["lag_bytes"] is None
    assert len(sampler.history()) == 2
    assert sampler.history(after=time.time()) == []


def test_rates_are_of_the_last_seconds(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Sampler(report, lambda: slot(400), lambda: None, lambda: 0)
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    sampler.take()
    assert sampler.told()["rates"]["changes_per_s"] is None
    report.batch(Tally(20, {"books": 6}, {"books": 4}), Lsn(200), direct=True)
    now = 1002.0
    sampler.take()
    assert sampler.told()["rates"] == {"changes_per_s": 10.0, "documents_per_s": 5.0, "wal_bytes_per_s": 0.0}


@pytest.mark.parametrize("written_before", [0, 70_000])
def test_a_seed_that_begins_is_no_speed(written_before: int, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts from its own beginning, be that nothing or what an earlier run has written of it."""
    sampler = Sampler(report, lambda: slot(400), lambda: None, lambda: 0)
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    report.seeding(Seed("books", "", (), Lsn(1), total=10))
    report.seeded("books", 10, 50_000)
    sampler.take()
    report.seeding(Seed("books", "", (), Lsn(2), total=10, documents=written_before))
    report.seeded("books", 1, 20)
    now = 1002.0
    sampler.take()
    assert sampler.told()["rates"]["documents_per_s"] == 10.0


def test_what_went_back_has_no_rate(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server that takes over may have written less."""
    written = [400, 300]
    sampler = Sampler(report, lambda: slot(written.pop(0)), lambda: None, lambda: 0)
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    sampler.take()
    now = 1002.0
    sampler.take()
    assert sampler.told()["rates"] == {"changes_per_s": 0.0, "documents_per_s": 0.0, "wal_bytes_per_s": None}


def test_a_thread_takes_samples_until_it_is_closed(report: Report) -> None:
    sampler = Sampler(report, lambda: slot(400), lambda: None, lambda: 0)
    sampler.close()
    sampler = Sampler(report, lambda: slot(400), lambda: None, lambda: 0)
    sampler.start()
    sampler.close()
    assert sampler.history()


def test_ready_is_when_every_index_is_live_and_nothing_is_wrong(report: Report) -> None:
    told = report.told()
    assert unready(told) == []
    assert unready({**told, "trouble": "the server is away"}) == ["the stream failed and is tried again"]
    report.seeding(Seed("books", "", (), Lsn(1), total=10))
    assert unready(report.told()) == ["index books is seeding"]
    report.rebuilding("books", "under way")
    assert unready(report.told()) == [], "readers see the generation before, which is kept current"
    report.stopped("books", "a column is gone")
    assert unready(report.told()) == ["index books is stopped"]


def test_last_changes_hold_no_key_unless_values_are_asked_for(report: Report) -> None:
    made = changes("secret-a", "secret-b")
    tally = Tally(
        2, {"books": 2, "books#outgoing": 2}, spent={"build": 0.25}, touched={"books": ["secret-a", "secret-b"]}
    )
    report.batch(tally, Lsn(300), True, Course(0.01, [(time.time() - 20, 2)], summary(made)))
    (found,) = report.changes_made()
    assert found["changes"] == [{"table": "public.book", "op": "update", "count": 2}]
    assert found["documents"] == [{"index": "books", "count": 2}]
    assert 20 <= found["latency_s"] < 25
    assert "secret" not in json.dumps([report.changes_made(), report.told()]) + repr(report) + repr(tally)
    (found,) = report.changes_made(values=True)
    assert found["changes"][0]["keys"] == ["id=secret-a", "id=secret-b"]
    assert found["documents"][0]["ids"] == ["secret-a", "secret-b"]
    assert report.told()["latency"]["p50_s"] == pytest.approx(20, rel=0.3)
    assert report.told()["stages_s"] == {"build": 0.25}


def test_a_large_batch_is_counted_whole_and_named_in_part(report: Report) -> None:
    for count in (1000, 1001, 5000):
        (found,) = summary(changes(*map(str, range(count)), op="delete"))
        assert (found.count, found.op, found.table) == (count, "delete", "public.book")
        assert found.keys == tuple(f"id={n}" for n in range(8))
    tally = Tally()
    for _ in range(3):
        tally.add(Tally(touched={"books": [str(n) for n in range(5)]}))
    assert len(tally.touched["books"]) == 8


def test_a_batch_tells_where_its_time_went_and_what_it_touched() -> None:
    found = batch.apply(parts([], MemorySink(), rows=("a", "b")), changes("a", "b", "gone"), Lsn(9), lambda *_: None)
    assert found.spent.keys() == {"settle", "resolve", "build", "write", "flush"}
    assert all(seconds >= 0 for seconds in found.spent.values())
    assert found.touched == {"books": ["a", "b", "gone"]}


def test_commit_times_come_with_the_batch_also_with_one_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is slow would be missing from the latency otherwise."""
    monkeypatch.chdir(tmp_path)
    desk = Desk("desk.sock")
    try:
        desk.offer(Lsn(7), [changes("a")], [postgres_clock_now(), postgres_clock_now()])
        found = fetch("desk.sock")
        assert found is not None
        assert [count for _, count in found.commits] == [1, 1]
        assert all(abs(time.time() - at) < 10 for at, _ in found.commits)
        now = postgres_clock_now()
        desk.offer(Lsn(9), None, [now - n * 1000 for n in range(10_000)], {"lsn": 9})
        assert fetch("desk.sock") is None
        assert commits("desk.sock", {"lsn": 8}) == (), "those of another range"
        told = commits("desk.sock", {"lsn": 9})
        assert sum(count for _, count in told) == 10_000
        assert len(told) <= 256
        assert min(at for at, _ in told) == pytest.approx(time.time() - 10, abs=2)
    finally:
        desk.close()
    assert commits("desk.sock") == commits("") == ()


def test_the_quantiles_of_the_histogram_are_of_what_is_in_it(report: Report) -> None:
    """It goes back five minutes; the others are of the last one."""
    now = time.time()
    report.latency.observe(2.0, now - 200, 90)
    report.latency.observe(0.02, now, 10)
    told = report.told()["latency"]
    assert told["p50_s"] == pytest.approx(0.02, rel=0.3)
    assert told["counts_p50_s"] == pytest.approx(2.0, rel=0.3)
    assert sum(told["counts"]) == 100


def test_a_clock_that_is_behind_the_servers_gives_no_negative_latency(report: Report) -> None:
    report.batch(Tally(1, {"books": 1}), Lsn(300), True, Course(0.01, [(time.time() + 60, 1)]))
    assert 0 <= report.told()["latency"]["p50_s"] <= 0.001
    assert report.latency.total_s == 0.0
