"""A pipeline's steps in orders that are hard to meet, one by one and without a JVM: seeds, TRUNCATEs, lost generations.

The plan, the state, the builder and the sink are those of a run. What Spark would do is done by hand: a batch is
applied when the test says so, as often as it says.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow.dataset import dataset as parquet_dataset

from penstock.app import prepared as app_prepared
from penstock.app.quarantine import answer
from penstock.app.reconcile import Job
from penstock.app.running import _confirmed
from penstock.contracts import Documents, Rejection, Target, Writes
from penstock.engine import batch
from penstock.engine.marks import Marks
from penstock.engine.state import Chunk, State
from penstock.errors import OperatorError, RetryableError, UnavailableError
from penstock.model import Lsn
from penstock.postgres.claim import Claim
from penstock.postgres.connection import resolve
from penstock.spark import seeds
from penstock.spark.direct import Fetched
from penstock.spark.pipeline import Pipeline
from tests.fixtures.stepped import MORE, PEOPLE, Stepped, apply
from tests.fixtures.waiting import wait_until

CLAIMED = "SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE l.locktype = 'advisory'" + (
    " AND d.datname = current_database()"
)
PATIENCE_S = 30.0


def test_what_was_open_when_the_slot_was_made_is_waited_for_once_and_by_the_next_run_too(stepped: Stepped) -> None:
    """E50, E71: no seed is begun before it has ended; what begins later holds no seed up."""
    with stepped.database.connect(autocommit=False) as one, stepped.database.connect(autocommit=False) as two:
        for _ in range(2):
            fit = stepped.prepare()
            fit.builder._settle_timeout_s = 0.2
            one.execute("SELECT pg_current_xact_id()")
            with pytest.raises(RetryableError, match="were open when slot stepped was made have not ended"):
                _confirmed(fit)
            stepped.stop()
        fit = stepped.prepare()
        fit.builder._settle_timeout_s = 0.2
        with pytest.raises(RetryableError, match="have not ended"):
            _confirmed(fit)
        two.execute("SELECT pg_current_xact_id()")
        one.commit()
        _confirmed(fit)
        stepped.stop()
        ((confirmed,),) = stepped.database.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'stepped'"
        )
        log_committed(stepped.folder / "state", Lsn.parse(confirmed))
        assert _confirmed(stepped.prepare()), "the slot is read from, and nobody asks again"


def test_a_seed_outdoes_what_live_built_before_everything_was_settled(stepped: Stepped) -> None:
    """E71: live may have seen no row where one was committed before the slot's start and not visible yet."""
    running = stepped.start(seeded=False)
    _, end = stepped.committed("UPDATE person SET name = 'x' WHERE id = 7", "public.person", "update", "7")
    running.plan.parts.sinks["people"][0].write(Writes(end, Documents("people", ["7", "8"], [None, None])))
    running.report.end = end
    stepped.seed(running)
    stepped.judge()


def test_who_lost_its_slot_to_another_opens_and_writes_nothing(stepped: Stepped) -> None:
    """E33: a process that was paused, say, while another one took over: its generations would outdo the other's."""
    running = stepped.start()
    opened: list[Target] = []
    running.plan.parts.sinks["people"][0].open = opened.append  # type: ignore[method-assign]
    changes, end = stepped.committed("UPDATE person SET name = 'x' WHERE id = 7", "public.person", "update", "7")
    ((pid,),) = stepped.database.execute(CLAIMED)
    stepped.database.execute("SELECT pg_terminate_backend(%s)", pid)
    other = Claim(resolve(stepped.database.url), "stepped")
    wait_until(lambda: other.take() == "", PATIENCE_S, "the lock")
    with closing(other):
        acts: list[Callable[[], Any]] = [
            lambda: apply(running, changes, end),
            lambda: running.reopen(),
            lambda: running.plan.heirs.rebuild("people", False),
            lambda: running.plan.roll.open("local"),
        ]
        for act in acts:
            with pytest.raises(OperatorError, match="another penstock has taken over slot stepped"):
                again_and_again(act)
    assert (opened, stepped.held()["7"]["name"]) == ([], "n7")


def again_and_again(act: Callable[[], Any]) -> None:
    """As a run does, until it is told to end: passing trouble is waited out."""

    def tried() -> None:
        with suppress(RetryableError):
            act()

    wait_until(tried, PATIENCE_S, "an end")


def test_sinks_are_opened_again_between_two_batches(stepped: Stepped) -> None:
    """What a batch has written, and not flushed yet, is not to be looked for in another generation."""
    running = stepped.start()
    done: list[str] = []
    plan = running.plan
    running.plan = replace(plan, reopened=lambda: done.append("opened") or plan)  # type: ignore[func-returns-value]
    opening = threading.Thread(target=running.reopen)
    with running._idle:
        opening.start()
        opening.join(0.3)
        done.append("batch")
    opening.join(PATIENCE_S)
    assert done == ["batch", "opened"]


def test_a_truncated_partition_is_gone_when_the_rest_is_built_anew_and_never_more(stepped: Stepped) -> None:
    """E66, E84: readers see what they saw until then; a wave of a seed that the same batch began before counts not."""
    running = stepped.start()
    assert len(stepped.held()) == 3000
    changes, end = stepped.committed("TRUNCATE young", "public.young", "truncate")
    apply(running, changes, end)
    assert len(stepped.held()) == 3000
    filled, goes_on, fill = threading.Event(), threading.Event(), running._seeder._fill

    def paused(*arguments: Any) -> Any:
        found = fill(*arguments)
        filled.set()
        assert goes_on.wait(PATIENCE_S)
        return found

    running._seeder._fill = paused  # type: ignore[method-assign]
    wave = threading.Thread(target=running._seeder._seed, args=("people",))
    wave.start()
    assert filled.wait(PATIENCE_S)
    assert len(running.state.chunks_left("people")) == 3
    apply(running, changes, end)  # it failed in another sink, and comes again
    goes_on.set()
    wave.join(PATIENCE_S)
    assert running.state.chunks_left("people") == [Chunk(0, None, None)], "none of it is done"
    stepped.seed(running)
    stepped.judge()
    assert running.state.seed("people") is None


def test_a_truncated_child_does_not_hold_live_up(stepped: Stepped) -> None:
    """E66: the rows of the root are counted by the thread that seeds, also where they cannot be counted for long."""
    running = stepped.start()
    asked = [0]

    def cut(index: str) -> list[Any]:
        asked[0] += 1
        return [("1000",), ("2000",)]

    running.plan = replace(running.plan, cuts=cut)
    apply(running, *stepped.committed("TRUNCATE pet", "public.pet", "truncate"))
    assert (asked[0], len(running.state.chunks_left("people"))) == (0, 1)
    assert running.report.told()["indexes"]["people"]["phase"] == "seeding", "what waits for its seed is not live"
    stepped.seed(running)
    assert asked[0] == 1
    assert running.report.told()["indexes"]["people"]["phase"] == "live"
    stepped.judge()


def test_a_sweep_is_done_by_whoever_completes_the_seed(stepped: Stepped) -> None:
    """E52, E66: after a restart, too."""
    running = stepped.start()
    apply(running, *stepped.committed("TRUNCATE young", "public.young", "truncate"))
    stepped.stop()
    stepped.start()
    stepped.judge()


@pytest.mark.parametrize("table", ["pet", "young", "person"])
def test_a_truncate_while_an_index_is_built_anew(stepped: Stepped, table: str) -> None:
    """E66, E84: the batch builds for both generations to its end; readers see the old one until the new is complete."""
    running = stepped.start()
    running.succession.request("people", rollback=False)
    running.succession.begin()
    assert len(running.plan.parts.indexes) == 2
    apply(running, *stepped.committed(f"TRUNCATE {table}", f"public.{table}", "truncate"))
    assert len(stepped.held()) == (0 if table == "person" else 3000)
    stepped.seed(running)
    for index in running.plan.seeds:
        running._seeder._ensure(index)
    running.catch_up = lambda: None  # type: ignore[attr-defined]
    stepped.seed(running)
    stepped.judge()


def rebuilt(stepped: Stepped, running: Pipeline) -> None:
    """A new generation of the index, to its end."""
    running.succession.request("people", rollback=False)
    running.succession.begin()
    stepped.seed(running)
    assert len(running.plan.parts.indexes) == 1


def test_a_mark_outlives_a_reconcile_after_a_reindex(stepped: Stepped, monkeypatch: pytest.MonkeyPatch) -> None:
    """E77: what is still lost is asked of the generation that is kept now, not of the one that the run began with."""
    monkeypatch.setattr("penstock.app.reconcile.catch_up", lambda *_: None)
    running = stepped.start()
    rebuilt(stepped, running)
    running.plan.misfits(False)
    stepped.database.execute("ALTER PUBLICATION stepped DROP TABLE pet")
    running.plan.misfits(False)
    assert Marks(running.state).marked().keys() == {"people"}
    job = Job(stepped.prepared, running)
    job.answer({"action": "start", "indexes": ["people"], "repair": True})
    wait_until(lambda: not job.answer({"action": "state"})["running"], PATIENCE_S, "its end")
    told = job.answer({"action": "state"})
    assert (told["error"], [one["left"] for one in told["comparisons"]]) == ("", [0])
    assert Marks(running.state).marked().keys() == {"people"}


def test_a_rollback_brings_the_former_generation_up_to_date_before_readers_see_it(
    stepped: Stepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E84: it missed what was written since readers had left it, also what was deleted."""
    monkeypatch.setattr("penstock.app.reconcile.catch_up", lambda *_: None)
    running = stepped.start()
    rebuilt(stepped, running)
    for statement, key in (
        ("UPDATE person SET name = 'since' WHERE id = 7", "7"),
        ("DELETE FROM person WHERE id = 8", "8"),
    ):
        apply(running, *stepped.committed(statement, "public.person", "update", key))
    (sink,) = running.plan.parts.sinks["people"]
    before, complete = sink.generation("people"), sink.complete

    def shown(index: str, version: Lsn) -> None:
        complete(index, version)
        stepped.judge()

    sink.complete = shown  # type: ignore[method-assign]
    running.succession.request("people", rollback=True)
    running.succession.begin()
    stepped.seed(running)
    assert sink.generation("people") != before
    stepped.judge()


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "ends"])
def test_a_rollback_that_a_truncate_crosses_brings_nothing_back_that_was_deleted(
    stepped: Stepped, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """E84: also where the run ends before it is shown, and the next one knows of no outgoing generation; which stays
    what a rollback goes back to."""
    monkeypatch.setattr("penstock.app.reconcile.catch_up", lambda *_: None)
    running = stepped.start()
    rebuilt(stepped, running)
    apply(running, *stepped.committed("DELETE FROM person WHERE id = 8", "public.person", "update", "8"))
    running.succession.request("people", rollback=True)
    running.succession.begin()
    apply(running, *stepped.committed("TRUNCATE pet", "public.pet", "truncate"))
    assert not running.plan.heirs.outgoing
    if ends:
        stepped.stop()
        running = stepped.start(seeded=False)
    stepped.seed(running)
    stepped.judge()
    running.succession.request("people", rollback=True)
    running.succession.begin()
    assert running.plan.heirs.outgoing
    stepped.seed(running)
    stepped.judge()


def test_what_is_rejected_is_kept_before_its_batch_counts_and_replayed_as_it_is_by_then(
    stepped: Stepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E81: durable, with key, version and reason; a replay builds by the key, there are no bytes of the document."""
    stepped.write(PEOPLE, on_error="skip")
    running = stepped.start()
    (sink,) = running.plan.parts.sinks["people"]
    write, kept = sink.write, list[Any]()
    changes, end = stepped.committed("UPDATE person SET name = 'wild' WHERE id = 7", "public.person", "update", "7")
    fetched = Fetched(end, changes)
    running._fetched = lambda number: fetched  # type: ignore[method-assign]
    sink.write = lambda writes: [Rejection("people", id, end, "too wild") for id in writes.documents.ids]  # type: ignore[method-assign]

    def counted(*_: object) -> None:
        with closing(State(stepped.folder / "state", only_read=True)) as state:
            kept.extend(state.quarantined())

    monkeypatch.setattr(type(running.report), "batch", counted)
    running._apply(None, 0)  # type: ignore[arg-type]
    assert [(one.index, one.sink, one.id, one.version, one.reason) for one in kept] == [
        ("people", "local", "7", end, "too wild")
    ]
    running.report.end = end
    stepped.database.execute("UPDATE person SET name = 'tame' WHERE id = 7")
    sink.write = write  # type: ignore[method-assign]
    assert answer(running, {"action": "replay", "index": "people"}) == {"taken": 1, "rejected": 0, "skipped": {}}
    assert (stepped.held()["7"]["name"], running.state.quarantined()) == ("tame", [])


def test_what_the_generation_before_lacked_leaves_quarantine_with_it(stepped: Stepped) -> None:
    """E81, E84: nobody could build it any more; what the index itself lacks stays."""
    running = stepped.start()
    running.succession.request("people", rollback=False)
    running.succession.begin()
    (outgoing,) = running.plan.heirs.outgoing.values()
    for name in ("people", outgoing):
        running.state.quarantine([("local", Rejection(name, "1", Lsn.MAX, "no"))])
    for index in running.plan.seeds:
        running._seeder._ensure(index)
    stepped.seed(running)
    assert {one.index for one in running.state.quarantined()} == {"people"}


def test_what_a_seed_writes_is_in_quarantine_no_more(stepped: Stepped) -> None:
    """E81: a later success clears it, whoever has it; what was rejected at a newer version stays."""
    running = stepped.start()
    changes, end = stepped.committed("TRUNCATE pet", "public.pet", "truncate")
    for id, version in (("7", end), ("8", Lsn(end + 1))):
        running.state.quarantine([("local", Rejection("people", id, version, "no"))])
    apply(running, changes, end)
    stepped.seed(running)
    assert [one.id for one in running.state.quarantined()] == ["8"]


def test_a_generation_that_is_given_up_has_its_rejections_judged_first(stepped: Stepped) -> None:
    """E66, E81: its policy is that of the index, in the batch that it is given up with, too."""
    stepped.write(PEOPLE, on_error="skip")
    running = stepped.start()
    running.succession.request("people", rollback=False)
    running.succession.begin()
    (outgoing,) = running.plan.heirs.outgoing.values()
    sink = running.plan.parts.sinks[outgoing][0]
    changes, end = stepped.committed("TRUNCATE pet", "public.pet", "truncate")
    fetched = Fetched(end, changes)
    running._fetched = lambda number: fetched  # type: ignore[method-assign]
    write = sink.write
    sink.write = lambda writes: (
        [  # type: ignore[method-assign]
            Rejection(writes.documents.index, id, writes.version, "no") for id in writes.documents.ids
        ]
        if writes.documents.index == outgoing
        else write(writes)
    )
    running._apply(None, 0)  # type: ignore[arg-type]
    assert not running.plan.heirs.outgoing
    assert running.state.quarantined() == []


def test_a_generation_that_is_lost_between_two_waves_is_seeded_from_its_beginning(
    stepped: Stepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E85: what was noted down of the old one does not count, whoever opened the new one."""
    monkeypatch.setattr(seeds, "_waves", lambda chunks: ([chunk] for chunk in chunks))
    monkeypatch.setattr(seeds.batch, "in_flight", lambda act, items: map(act, items))
    finished, finish = [0], seeds.Seeder._is_under_way

    def lose(seeder: seeds.Seeder, seed: Any) -> bool:
        finished[0] += 1
        if finished[0] == 2:
            running = seeder.pipeline
            running.plan.parts.sinks["people"][0].close()
            for file in stepped.folder.glob("local.db*"):
                file.unlink()
            running.reopen()
        return finish(seeder, seed)

    monkeypatch.setattr(seeds.Seeder, "_is_under_way", lose)
    stepped.start()
    assert finished[0] > 4
    stepped.judge()


def test_a_generation_that_is_lost_is_seeded_though_another_sink_could_not_be_opened(
    stepped: Stepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E85, E86: the stream may go on meanwhile, so that nothing fails that would open the sinks once more."""
    stepped.start()
    stepped.stop()
    running = stepped.start()
    tries = [0]

    def fails_after(*arguments: Any) -> Any:
        tries[0] += 1
        held = opened(*arguments)
        if tries[0] == 1:
            raise UnavailableError("the other sink does not answer")
        return held

    opened = app_prepared.open_indexes
    monkeypatch.setattr(app_prepared, "open_indexes", fails_after)
    running.plan.parts.sinks["people"][0].close()
    for file in stepped.folder.glob("local.db*"):
        file.unlink()
    running.reopen()
    assert not running.plan.seeds["people"]
    begun = threading.Event()
    begun.set()
    seeding = threading.Thread(target=running._seeder.run, args=(begun,))
    seeding.start()
    try:
        wait_until(lambda: len(stepped.held()) == 3000, PATIENCE_S, "the new generation")
    finally:
        running.stop()
        seeding.join()
    stepped.judge()


def test_a_sink_that_is_left_behind_in_the_midst_of_its_seed_is_no_failure(
    stepped: Stepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E73: who writes to it tries again, and finds that it is away; the other sink is seeded."""
    file = stepped.folder / "penstock.toml"
    file.write_text(file.read_text().replace("[[index]]", '[sinks.lake]\ntype = "delta"\npath = "lake"\n[[index]]'))
    running = stepped.start(seeded=False)
    running._seeder._ensure("people")
    seeded = batch.seeded

    def leaves(*arguments: Any) -> Any:
        if not running.plan.roll.away:
            running.change(lambda: running.plan.roll.leave(["lake"]))
        return seeded(*arguments)

    monkeypatch.setattr(seeds.batch, "seeded", leaves)
    while running._seeder._step(lambda: running._seeder._seed("people")):
        pass
    assert running.plan.roll.away == ("lake",)
    assert running.state.seed("people") is None
    stepped.judge()


@pytest.mark.parametrize("sink", ["lake", "history"])
def test_a_folder_that_cannot_be_written_to_for_a_while_holds_the_batch_and_loses_nothing_of_it(
    stepped: Stepped, sink: str
) -> None:
    """E86, E89: whichever sink it is of, the batch fails as often as it is tried, and then is in all of them, once."""
    file = stepped.folder / "penstock.toml"
    file.write_text(file.read_text().replace("[[index]]", f"{MORE}[[index]]"))
    running = stepped.start()
    place, aside = stepped.folder / sink / "people", stepped.folder / "aside"
    changes = stepped.committed("UPDATE person SET name = 'new' WHERE id = 7", "public.person", "update", "7")
    place.rename(aside)
    place.touch()  # nobody can write into a file, whoever he is
    for _ in range(2):
        with pytest.raises((OperatorError, RetryableError)):
            apply(running, *changes)
        with suppress(OperatorError):
            running.reopen()
    place.unlink()
    aside.rename(place)
    stepped.stop()
    running = stepped.start()
    assert not any(running.plan.seeds.values()), "what was there is believed"
    apply(running, *changes)
    stepped.judge()
    lake = DeltaTable(str(stepped.folder / "lake" / "people"))
    names = {row["id"]: json.loads(row["body"])["name"] for row in lake.to_pyarrow_table().to_pylist()}
    assert (len(names), names["7"]) == (3000, "new")
    feed = pa.table(lake.load_cdf(starting_version=0).read_all()).to_pylist()
    told = [row["_change_type"] for row in feed if row["id"] == "7"]
    assert sorted(told) == ["insert", "update_postimage", "update_preimage"]
    rows = parquet_dataset(str(stepped.folder / "history" / "people"), partitioning="hive").to_table().to_pylist()
    assert [json.loads(row["body"])["name"] for row in rows if row["id"] == "7"] == ["n7", "new"]


def log_committed(state: Path, end: Lsn) -> None:
    """What Spark writes down of a batch that is done."""
    for kind, text in (("offsets", json.dumps({"lsn": str(end)})), ("commits", "{}")):
        (state / "checkpoint" / kind).mkdir(parents=True)
        (state / "checkpoint" / kind / "0").write_text(f"v1\n{text}")


def test_a_field_is_added_to_every_document_though_the_slot_went_back(stepped: Stepped) -> None:
    """E20, E85: a server that crashed may have set it back behind what is durable in the sinks."""
    running = stepped.start()
    changes, end = stepped.committed("UPDATE person SET name = 'x' WHERE id = 7", "public.person", "update", "7")
    apply(running, changes, end)
    log_committed(stepped.folder / "state", end)
    stepped.stop()
    stepped.write(PEOPLE + "  - {keyword: again, column: name}\n")
    stepped.start()
    assert [id for id, body in stepped.held().items() if "again" not in body] == []
