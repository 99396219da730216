"""What a running deployment tells about itself."""

from __future__ import annotations

import json
import threading

import pytest

from penstock.contracts import Rejection
from penstock.engine import report
from penstock.engine.batch import Tally
from penstock.engine.report import IndexReport, Phase, Report
from penstock.engine.state import Seed
from penstock.model import Lsn


@pytest.fixture
def told() -> Report:
    return Report({"books": IndexReport(), "authors": IndexReport()})


def test_an_index_waits_is_seeded_and_lives(told: Report) -> None:
    assert told.told()["indexes"]["books"]["phase"] == "waiting"
    told.seeding(Seed("books", "", (), Lsn(1), total=10, done=4, documents=400))
    found = told.told()["indexes"]["books"]
    assert (found["phase"], found["chunks"], found["chunks_done"], found["seeded"]) == ("seeding", 10, 4, 400)
    told.seeded("books", 2, 150)
    told.live(["books"])
    found = told.told()["indexes"]["books"]
    assert (found["phase"], found["chunks_done"], found["seeded"]) == ("live", 6, 550)
    assert told.told()["indexes"]["authors"]["phase"] == "waiting"


def test_the_time_to_go_is_by_the_pace_of_this_run(monkeypatch: pytest.MonkeyPatch, told: Report) -> None:
    now = 100.0
    monkeypatch.setattr(report.time, "monotonic", lambda: now)
    told.seeding(Seed("books", "", (), Lsn(1), total=10, done=4))
    one = told.indexes["books"]
    assert one.eta_s is None, "nothing is known yet: chunks of an earlier run tell nothing of this one's pace"
    told.seeded("books", 2, 0)
    now = 106.0
    assert one.eta_s == pytest.approx(12.0)
    assert told.told()["indexes"]["books"]["eta_s"] == 12.0
    told.live(["books"])
    assert one.eta_s is None


def test_batches_are_counted_by_index_and_path(told: Report) -> None:
    told.batch(Tally(5, {"books": 3}, {"books": 1, "authors": 2}), Lsn(0x50), direct=True)
    told.batch(Tally(1, {"books": 1}), Lsn(0x40), direct=False)
    found = told.told()
    assert (found["batches"], found["direct_batches"], found["changes"]) == (2, 1, 6)
    assert (found["indexes"]["books"]["written"], found["indexes"]["books"]["deleted"]) == (4, 1)
    assert found["indexes"]["authors"]["deleted"] == 2
    assert found["position"] == "0/50", "a batch that comes again does not move it back"


def test_trouble_is_told_until_a_batch_succeeds(told: Report) -> None:
    told.failed("the server is away")
    assert (told.told()["trouble"], told.told()["restarts"]) == ("the server is away", 1)
    told.batch(Tally(), Lsn(1), direct=True)
    assert (told.told()["trouble"], told.told()["restarts"]) == ("", 1)


def test_it_is_json_and_holds_no_document(told: Report) -> None:
    rejected = [("search", Rejection("books", "secret id", Lsn(1), "why"))]
    told.batch(Tally(1, {"books": 1}, {}, rejected, [("books", ("secret key",))]), Lsn(1), direct=True)
    assert "secret" not in json.dumps(told.told())


def test_no_count_is_lost_between_threads(told: Report) -> None:
    def count() -> None:
        for _ in range(200):
            told.batch(Tally(1, {"books": 1}), Lsn(1), direct=False)
            told.seeded("authors", 1, 1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (told.batches, told.changes, told.indexes["books"].written) == (800, 800, 800)
    assert told.indexes["authors"].chunks_done == 800


def test_phases_are_words() -> None:
    assert [phase.value for phase in Phase] == ["waiting", "seeding", "live", "stopped"]
