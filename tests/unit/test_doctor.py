"""What the doctor makes of a server's figures, of this machine, and of sinks that do not answer."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from penstock.app import doctor
from penstock.app.diagnosis import Finding, Verdict, judge_clock, judge_room, judge_slot
from penstock.config.file import read_deployment
from penstock.engine.lineage import Lineage
from penstock.engine.marks import Marks
from penstock.engine.state import State
from penstock.errors import DiskError
from penstock.model import Lsn
from penstock.postgres.slot import SlotInfo
from penstock.postgres.vitals import Vitals

HEALTHY = Vitals("18.1", 10, 2, 97, 12, -1, None, 3.0, 0, 0.0)
SLOT = SlotInfo(
    "penstock", "pgoutput", "logical", "shop", False, 42, Lsn(1), Lsn(2), "reserved", None, 5 << 20, 1, False, None
)
FILE = """
[source]
type = "postgres"
connection_url = "postgresql://nobody:hunter2@127.0.0.1:1/shop"
{source}
[sinks.local]
type = "local"
[sinks.search]
type = "opensearch"
url = "http://127.0.0.1:1"
max_retries = 0
[[index]]
name = "books"
schema = "books.schema.yml"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "books.schema.yml").write_text("version: 1\ntable: book\nfields: [{text: title}]\n")
    write(tmp_path)
    return tmp_path


def write(folder: Path, source: str = "") -> None:
    (folder / "penstock.toml").write_text(FILE.format(source=source))


def worst(found: Iterable[Finding]) -> Verdict:
    return max((one.verdict for one in found), key=list(Verdict).index, default=Verdict.GOOD)


@pytest.mark.parametrize(
    ("changed", "verdict", "said"),
    [
        ({}, Verdict.GOOD, ""),
        ({"senders": 10}, Verdict.ERROR, "walsenders"),
        ({"connections": 90}, Verdict.WARNING, "7 of 97 connections"),
        ({"connections": 97}, Verdict.ERROR, "0 of 97 connections"),
        ({"oldest_transaction_s": 3600.0}, Verdict.WARNING, "60 minutes"),
        ({"prepared_transactions": 2}, Verdict.WARNING, "prepared"),
    ],
)
def test_a_server_without_room_is_told_with_its_fix(changed: dict[str, float], verdict: Verdict, said: str) -> None:
    found = list(judge_room(dataclasses.replace(HEALTHY, **changed), None))
    assert worst(found) is verdict
    assert all(said in one.message and one.fix for one in found)
    assert bool(found) == bool(changed)


def test_a_slot_that_is_read_needs_no_walsender_more() -> None:
    assert not list(judge_room(dataclasses.replace(HEALTHY, senders=10), SLOT))


@pytest.mark.parametrize(
    ("vitals", "slot", "source", "verdict", "said"),
    [
        ({"wal_keep_mb": 1000}, {}, "", Verdict.GOOD, "5 MiB"),
        ({}, {}, "", Verdict.NOTE, "nothing bounds it"),
        ({}, {}, 'max_retained_wal = "20GB"', Verdict.GOOD, "5 MiB"),
        ({}, {}, 'max_retained_wal = "1MB"', Verdict.WARNING, "more than max_retained_wal"),
        ({"wal_keep_mb": 8}, {}, "", Verdict.WARNING, "8 MiB are allowed"),
        ({"wal_keep_mb": 8}, {"wal_status": "unreserved"}, "", Verdict.WARNING, "lost"),
        ({"wal_keep_mb": 1000}, {"active_pid": None}, "", Verdict.NOTE, "nobody"),
        ({"wal_keep_mb": 1000, "idle_slot_timeout_s": 60}, {}, "", Verdict.WARNING, "60 s"),
    ],
)
def test_retained_wal_is_held_against_what_is_allowed(
    folder: Path, vitals: dict[str, int], slot: dict[str, str | None], source: str, verdict: Verdict, said: str
) -> None:
    """E73: the WAL that a slot holds is shown, and warned about in time."""
    write(folder, source)
    server, one = dataclasses.replace(HEALTHY, **vitals), dataclasses.replace(SLOT, **slot)  # type: ignore[arg-type]
    found = list(judge_slot(server, one, read_deployment(str(folder))))
    assert worst(found) is verdict
    assert any(said in one.message for one in found)
    assert all(one.fix for one in found if one.verdict is not Verdict.GOOD)


def test_a_checkpoint_without_its_slot_is_an_error_and_a_new_deployment_is_not(folder: Path) -> None:
    """E89: what was read from a slot that is gone cannot be gone on with."""
    deployment = read_deployment(str(folder))
    (found,) = judge_slot(HEALTHY, None, deployment)
    assert found.verdict is Verdict.NOTE
    offsets = folder / ".penstock" / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").touch()
    (found,) = judge_slot(HEALTHY, None, deployment)
    assert (found.verdict, "gone" in found.message) == (Verdict.ERROR, True)
    assert "penstock reconcile --repair" in found.fix, "as penstock run says"
    (found,) = judge_slot(HEALTHY, dataclasses.replace(SLOT, wal_status="lost"), deployment)
    assert (found.verdict, "penstock reconcile --repair" in found.fix) == (Verdict.ERROR, True)


def test_what_a_run_noted_down_is_told_and_nothing_is_written(folder: Path) -> None:
    """E77, E89: marked indexes, sinks that were left behind; a file of an older format stays one."""
    deployment, state = read_deployment(str(folder)), folder / ".penstock"
    with closing(State(state)) as written:
        Marks(written).mark({"books": "a partition was attached"})
        Lineage(written).detach(["search"])
    with closing(sqlite3.connect(state / "state.sqlite")) as file:
        file.execute("DROP TABLE written")
        file.execute("PRAGMA user_version = 1")
    before = (state / "state.sqlite").read_bytes()
    found = [one for one in doctor.examine(deployment) if one.about == "state"]
    assert [one.message.partition(":")[0] for one in found[:2]] == [
        "index books has to be reconciled",
        "sink search was left behind, because it stayed down",
    ]
    assert (state / "state.sqlite").read_bytes() == before
    with closing(State(state, only_read=True)) as read:
        assert Lineage(read).written() == {}
        with pytest.raises(DiskError, match="readonly"):
            read.stop_index("books", "why not")


@pytest.mark.parametrize(
    ("skew_s", "verdict"), [(0.4, Verdict.GOOD), (90.0, Verdict.WARNING), (-90.0, Verdict.WARNING)]
)
def test_clocks_that_differ_are_told(skew_s: float, verdict: Verdict) -> None:
    (found,) = judge_clock(skew_s)
    assert found.verdict is verdict


def test_what_cannot_be_looked_at_is_a_finding_and_the_rest_is_looked_at(folder: Path) -> None:
    """E89: no server, no search engine: both are told, without a secret; Java, disk and the other sink are seen."""
    heard: list[str] = []
    found = list(doctor.examine(read_deployment(str(folder)), heard.append))
    verdicts = {one.about: one.verdict for one in found}
    assert (verdicts["server"], verdicts["sink search"]) == (Verdict.ERROR, Verdict.ERROR)
    assert (verdicts["java"], verdicts["spark"], verdicts["sink local"]) == (Verdict.GOOD,) * 3
    assert "disk" in verdicts
    assert verdicts["schemas"] is Verdict.NOTE, "one cause is one error"
    assert heard == ["machine", "java", "spark", "disk", "server", "schemas", "sinks", "state"]
    assert all("hunter2" not in repr(one) for one in found)
    assert not (folder / ".penstock").exists(), "nothing is made"


def test_a_state_folder_that_cannot_be_written_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """E89: told before a run meets it."""
    monkeypatch.setattr("os.access", lambda *_: False)
    found = [one for one in doctor.examine(read_deployment(str(folder))) if one.about == "disk"]
    assert {one.verdict for one in found} == {Verdict.ERROR}
