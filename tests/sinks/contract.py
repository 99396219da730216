"""What every keyed sink has to prove: one class of tests, run for each kind of sink by a subclass with its `rig`.

    class TestLocal(SinkContract):
        @pytest.fixture
        def rig(self, tmp_path: Path) -> Rig: ...

A rig says how a sink is made (also in another process), how readers read it, and what it rejects.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.contracts import Documents, Held, ReadableSink, Sink, Target, Writes
from penstock.errors import BugError, PenstockError, RetryableError
from penstock.model import Lsn

ROOT = Path(__file__).parents[2]
INDEX = "books"
MAPPINGS = {"dynamic": "strict", "properties": {"n": {"type": "integer"}, "title": {"type": "text"}}}
TEXTS = ("title",)

Content = Mapping[str, int]
"""What readers find: the number `n` of each document, by id."""


@dataclass(frozen=True)
class Rig:
    """One store, empty at first. `make` is a function of a module, so that another process can call it, too."""

    make: Callable[[str], Sink]
    place: str
    read: Callable[[str], Mapping[str, bytes]]
    """The documents of an index by its readers' name; empty where readers see none."""
    bad: bytes
    """A document that the sink rejects for what it holds."""

    @contextmanager
    def sink(self, **changed: Any) -> Iterator[Sink]:
        """A sink with the index open; closed at the end."""
        sink = self.make(self.place)
        try:
            sink.open(target(**changed))
            yield sink
        finally:
            sink.close()

    def content(self, name: str = INDEX) -> Content:
        """What readers find."""
        return {id: json.loads(body)["n"] for id, body in self.read(name).items()}


def target(index: str = INDEX, schema_hash: str = "a", source: str = "system/slot", **more: Any) -> Target:
    """An index of small documents: a number and a title."""
    body = {"settings": {"number_of_shards": 1, "number_of_replicas": 0}, "mappings": MAPPINGS}
    return Target(index, more.pop("name", index), schema_hash, source, body, TEXTS, **more)


def document(n: int) -> bytes:
    """A document that every sink takes."""
    return json.dumps({"n": n, "title": f"Book number {n}"}).encode()


def put(sink: Sink, version: int, documents: Mapping[str, int | None], index: str = INDEX) -> None:
    """Write documents (None: a tombstone) of one version; none of them is rejected."""
    bodies = [None if n is None else document(n) for n in documents.values()]
    assert not sink.write(Writes(Lsn(version), Documents(index, list(documents), bodies)))


class SinkContract:
    """E72, E82, E83, E85: versions decide, tombstones are remembered, flushed is durable, seeded state is bound."""

    @pytest.mark.parametrize("versions", [(5, 4), (5, 5), (5, 6)], ids=["lower", "equal", "higher"])
    @pytest.mark.parametrize("first, second", list(itertools.product([1, None], [2, None])))
    def test_the_higher_version_stays_and_an_equal_one_overwrites(
        self, rig: Rig, first: int | None, second: int | None, versions: tuple[int, int]
    ) -> None:
        """E72, E83: whatever the two writes are, upserts or deletes."""
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(1))
            for version, n in zip(versions, (first, second), strict=True):
                put(sink, version, {"x": n, "other": 0})
                sink.flush()
            stays = second if versions[1] >= versions[0] else first
            assert rig.content() == {"other": 0} | ({} if stays is None else {"x": stays})

    def test_a_late_older_write_does_not_bring_back_what_was_deleted(self, rig: Rig) -> None:
        """E72: also where the sink never had the document, and after it was opened anew."""
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(1))
            put(sink, 3, {"had": 1})
            put(sink, 5, {"had": None, "never": None})
            sink.flush()
        with rig.sink() as sink:
            put(sink, 4, {"had": 2, "never": 2, "new": 2})
            sink.flush()
            assert rig.content() == {"new": 2}

    def test_writes_and_clears_in_any_order_and_repeated_end_the_same(self, rig: Rig, rng: random.Random) -> None:
        """E83: the newest of each document stays, however batches come."""
        batches = random_batches(rng, versions=range(1, 60, 2), ids=40, at_most=4)
        clears = [20, 34]
        steps: list[int] = [*batches, *clears, *rng.choices(list(batches), k=10), *rng.choices(clears, k=2)]
        rng.shuffle(steps)
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(1))
            for version in steps:
                if version in batches:
                    put(sink, version, batches[version])
                else:
                    sink.clear(INDEX, Lsn(version))
                if rng.random() < 0.3:
                    sink.flush()
            sink.flush()
            assert rig.content() == newest(batches, above=max(clears))

    def test_one_batch_may_hold_a_document_twice(self, rig: Rig) -> None:
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(1))
            sink.write(Writes(Lsn(5), Documents(INDEX, ["x", "y", "x"], [document(1), document(2), document(1)])))
            sink.flush()
            assert rig.content() == {"x": 1, "y": 2}

    def test_a_rejected_document_is_reported_and_its_neighbours_land(self, rig: Rig) -> None:
        """E81, E82: the report names it and holds nothing of it; a delete of what is not there is no failure."""
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(1))
            put(sink, 2, {"bad": 7})
            bodies = [document(1), rig.bad, None, document(2)]
            rejected = sink.write(Writes(Lsn(5), Documents(INDEX, ["a", "bad", "missing", "b"], bodies)))
            sink.flush()
            assert [(one.index, one.id, one.version) for one in rejected] == [(INDEX, "bad", 5)]
            assert rejected[0].reason
            assert rig.bad.decode(errors="replace") not in rejected[0].reason
            assert rig.content() == {"a": 1, "bad": 7, "b": 2}

    def test_clear_removes_what_is_not_newer_and_is_remembered(self, rig: Rig) -> None:
        """E72: an older write that comes after the clear loses; one of the clear's own version counts."""
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(1))
            put(sink, 3, {"old": 1})
            put(sink, 5, {"same": 1})
            put(sink, 6, {"newer": 1})
            sink.clear(INDEX, Lsn(5))
            put(sink, 5, {"after": 1})
            sink.flush()
            assert rig.content() == {"newer": 1, "after": 1}
        with rig.sink() as sink:
            sink.clear(INDEX, Lsn(2))
            put(sink, 4, {"old": 2, "late": 2, "newer": 2, "after": 2})
            sink.flush()
            assert rig.content() == {"newer": 1, "after": 1}

    def test_clear_of_everything_leaves_an_index_that_works(self, rig: Rig) -> None:
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(1))
            put(sink, 3, {str(n): n for n in range(50)})
            sink.clear(INDEX, Lsn(9))
            sink.flush()
            assert rig.content() == {}
            put(sink, 9, {"x": 1})
            sink.flush()
            assert rig.content() == {"x": 1}
            assert sink.seeded(INDEX) == 1

    def test_ids_are_taken_as_they_are(self, rig: Rig) -> None:
        ids = [
            "1",
            "a b",
            "a/b",
            "ünï/cödé",
            '"quoted"',
            "_leading",
            "a,b|c",
            "x" * 512,
            "-1",
            "%20",
            "#?&",
            "..",
            "😀",
        ]
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(1))
            put(sink, 3, {id: n for n, id in enumerate(ids)})
            sink.flush()
            assert rig.content() == {id: n for n, id in enumerate(ids)}

    def test_nothing_and_much_can_be_written(self, rig: Rig) -> None:
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(1))
            put(sink, 2, {})
            sink.flush()
            sink.flush()
            put(sink, 3, {str(n): n for n in range(2500)})
            sink.flush()
            assert rig.content() == {str(n): n for n in range(2500)}

    def test_indexes_do_not_mix(self, rig: Rig) -> None:
        with rig.sink() as sink:
            sink.open(target("users"))
            for index, n in (INDEX, 1), ("users", 2):
                sink.complete(index, Lsn(1))
                put(sink, 5, {"x": n, f"only {index}": n}, index)
            sink.clear("users", Lsn(4))
            put(sink, 6, {"x": None}, "users")
            sink.flush()
            assert rig.content() == {"x": 1, f"only {INDEX}": 1}
            assert rig.content("users") == {"only users": 2}

    def test_what_is_held_can_be_asked_for_by_id_and_listed(self, rig: Rig) -> None:
        """E83: the version and the very bytes of each write that returned; what is deleted is not listed."""
        exact = b'{"n": 3, "title": "1.50 \\"_source\\":{\\" and \\u00fc"}'
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(1))
            if not isinstance(sink, ReadableSink):
                assert type(sink).__name__ == "ParquetSink", "a log of changes, and no other, cannot be asked"
                return
            put(sink, 3, {str(n): n for n in range(1200)})
            put(sink, 7, {"5": 55, "6": None, "never": None})
            assert not sink.write(Writes(Lsn(9), Documents(INDEX, ['"x', "ü|y"], [exact, document(8)])))
            for _ in "before and after a flush":
                held = sink.look(INDEX, ["4", "5", '"x', "ü|y", "nobody", "6", "never", *map(str, range(700, 1200))])
                assert held["4"] == Held(Lsn(3), document(4))
                assert held["5"] == Held(Lsn(7), document(55))
                assert held['"x'] == Held(Lsn(9), exact)
                assert held["ü|y"].version == 9
                assert "nobody" not in held
                assert {held[id].body for id in ("6", "never") if id in held} <= {None}
                assert len([one for one in held.values() if one.body]) == 504
                sink.flush()
            wanted = {str(n) for n in range(1200) if n != 6} | {'"x', "ü|y"}
            listed = [id for portion in sink.scan(INDEX) for id in portion]
            assert sorted(listed) == sorted(wanted)
            assert sink.exact

    def test_threads_may_write_at_once(self, rig: Rig, rng: random.Random) -> None:
        batches = random_batches(rng, versions=range(2, 42), ids=20)
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(1))
            parts = [list(batches.items())[at::4] for at in range(4)]
            failures: list[BaseException] = []
            threads = [threading.Thread(target=_put_all, args=(sink, part, failures)) for part in parts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not failures
            assert rig.content() == newest(batches)

    def test_seeded_is_remembered_for_this_schema_and_this_source_only(self, rig: Rig) -> None:
        """E85: another schema, or another database, makes a generation that has to be seeded."""
        with rig.sink() as sink:
            assert sink.seeded(INDEX) is None
            sink.complete(INDEX, Lsn(7))
            assert sink.seeded(INDEX) == 7
        with rig.sink() as sink:
            assert sink.seeded(INDEX) == 7
            sink.complete(INDEX, Lsn(9))
            sink.complete(INDEX, Lsn(9))
            assert sink.seeded(INDEX) == 9
        with rig.sink(schema_hash="b") as sink:
            assert sink.seeded(INDEX) is None
            sink.complete(INDEX, Lsn(9))
        with rig.sink(schema_hash="b", source="another/slot") as sink:
            assert sink.seeded(INDEX) is None

    def test_a_seed_that_was_cut_short_is_not_taken_for_a_whole_one(self, rig: Rig) -> None:
        with rig.sink() as sink:
            sink.seeding(INDEX)
            put(sink, 3, {"x": 1})
            sink.flush()
        with rig.sink() as sink:
            assert sink.seeded(INDEX) is None
            sink.seeding(INDEX)
            put(sink, 3, {"y": 2})
            sink.flush()
            sink.complete(INDEX, Lsn(3))
            assert rig.content() == {"x": 1, "y": 2}

    def test_readers_see_the_generation_before_until_the_new_one_is_complete(self, rig: Rig) -> None:
        """E84: never an empty index, never a half."""
        with rig.sink() as sink:
            put(sink, 3, {"x": 1, "gone": 1})
            sink.flush()
            sink.complete(INDEX, Lsn(3))
        with rig.sink(schema_hash="b") as sink:
            sink.seeding(INDEX)
            put(sink, 5, {"x": 2})
            sink.flush()
            assert rig.content() == {"x": 1, "gone": 1}
            put(sink, 5, {"y": 2})
            sink.flush()
            sink.complete(INDEX, Lsn(5))
            assert rig.content() == {"x": 2, "y": 2}

    def test_two_generations_of_a_name_are_kept_until_readers_change_over(self, rig: Rig) -> None:
        """E84: both are written to, also after a restart; the one that is left is kept, and the one before it goes."""
        before, after = {"source": "system/1"}, {"source": "system/2"}
        old = target("old", name=INDEX, **before, beside=("system/2",))
        with rig.sink(source="system/0") as sink:
            sink.complete(INDEX, Lsn(1))
        with rig.sink(**before) as sink:
            assert not sink.shows(target(**before)), "nobody sees it yet"
            put(sink, 3, {"x": 1, "y": 1})
            sink.flush()
            sink.complete(INDEX, Lsn(3))
            if not sink.shows(target(**before)):
                return  # it says so
            assert not sink.shows(target(schema_hash="b", **before))
        for version in (5, 6):
            with rig.sink(**after, beside=("system/1",)) as sink:
                assert sink.shows(old)
                sink.open(old)
                assert (sink.seeded("old"), sink.seeded(INDEX)) == (3, None)
                for index in (INDEX, "old"):
                    put(sink, version, {"x": version, "y": None}, index)
                sink.flush()
                assert rig.content() == {"x": version}
        with rig.sink(**after, beside=("system/1",)) as sink:
            sink.open(old)
            put(sink, 7, {"only old": 7}, "old")
            sink.flush()
            sink.complete(INDEX, Lsn(6))
            assert rig.content() == {"x": 6}
            assert not sink.shows(old)
            put(sink, 8, {"x": 8}, "old")
            sink.flush()
            assert rig.content() == {"x": 6}, "nobody sees what goes to the one that was left"
            sink.forget("old")
            sink.forget("old")
            with pytest.raises(BugError, match="was not opened"):
                sink.generation("old")
            assert len(sink.holdings(INDEX)) == 2, "what is kept of it stays"
            put(sink, 9, {"x": 9})
            sink.flush()
            assert rig.content() == {"x": 9}
        with rig.sink(**after) as sink:
            sink.complete(INDEX, Lsn(6))
            assert len(sink.holdings(INDEX)) == 2, "completed again, nobody left anything"

    def test_a_generation_that_was_left_can_be_taken_up_again_when_that_is_asked_for(self, rig: Rig) -> None:
        """E84: with what it held, to be mended and completed; readers see the other one until then."""
        with rig.sink(source="system/1") as sink:
            put(sink, 3, {"x": 1, "stale": 1})
            sink.flush()
            sink.complete(INDEX, Lsn(3))
        with rig.sink(source="system/2", schema_hash="b") as sink:
            assert not sink.revive(target(source="system/never"))
            put(sink, 5, {"x": 2})
            sink.flush()
            sink.complete(INDEX, Lsn(5))
            if not sink.revive(target(source="system/1")):
                return  # it says so
            again = target(source="system/1", beside=("system/2",))
            sink.open(again)
            assert sink.seeded(INDEX) is None
            put(sink, 6, {"x": 3, "stale": None})
            sink.flush()
            assert rig.content() == {"x": 2}
            sink.complete(INDEX, Lsn(6))
            assert rig.content() == {"x": 3}
        with rig.sink(source="system/1") as sink:
            assert sink.seeded(INDEX) == 6
            assert len(sink.holdings(INDEX)) == 2
        with rig.sink(source="system/3", beside=("system/1",)) as sink:
            sink.complete(INDEX, Lsn(7))
            sink.complete(INDEX, Lsn(7))
            assert len(sink.holdings(INDEX)) == 2
            assert sink.revive(target(source="system/1")), "the one that was left last is kept"
            assert not sink.revive(target(source="system/2", schema_hash="b"))

    def test_a_generation_that_was_left_is_not_taken_up_by_itself(self, rig: Rig) -> None:
        """E84: nor where a process ended between what it noted down of a rollback and its asking for that."""
        with rig.sink(source="system/1") as sink:
            put(sink, 3, {"x": 1, "stale": 1})
            sink.flush()
            sink.complete(INDEX, Lsn(3))
        with rig.sink(source="system/2") as sink:
            put(sink, 5, {"x": 2})
            sink.flush()
            sink.complete(INDEX, Lsn(5))
        with rig.sink(source="system/1", beside=("system/2",)) as sink:
            assert (sink.seeded(INDEX), rig.content()) == (None, {"x": 2})
            put(sink, 6, {"x": 3})
            sink.flush()
            sink.complete(INDEX, Lsn(6))
            assert rig.content() == {"x": 3}

    def test_a_schema_that_gains_fields_may_go_on_in_place(self, rig: Rig) -> None:
        """E84: readers see what they saw, and then more; it counts as complete when it was seeded again."""
        with rig.sink() as sink:
            put(sink, 3, {"x": 1, "y": 1})
            sink.flush()
            sink.complete(INDEX, Lsn(3))
            before = sink.generation(INDEX)
        with rig.sink(schema_hash="b", grown_from="other") as sink:
            assert sink.generation(INDEX) != before
        with rig.sink() as sink:
            put(sink, 4, {"x": 1, "y": 1})
            sink.flush()
            sink.complete(INDEX, Lsn(4))
            before = sink.generation(INDEX)
        for _ in range(2):
            with rig.sink(schema_hash="b", grown_from="a") as sink:
                assert (sink.seeded(INDEX), rig.content()["y"]) == (None, 1)
                is_in_place = sink.generation(INDEX) == before
                put(sink, 5, {"x": 2})
                sink.flush()
                assert rig.content() == {"x": 2 if is_in_place else 1, "y": 1}
        with rig.sink(schema_hash="b") as sink:
            put(sink, 5, {"y": 2})
            sink.flush()
            sink.complete(INDEX, Lsn(5))
            assert (sink.seeded(INDEX), rig.content()) == (5, {"x": 2, "y": 2})

    def test_a_generation_that_missed_writes_is_not_taken_up_again(self, rig: Rig) -> None:
        """E85: the schema goes from a to b and back to a: what a held is stale, and has to be seeded again."""
        with rig.sink() as sink:
            put(sink, 3, {"x": 1, "gone": 1})
            sink.flush()
            sink.complete(INDEX, Lsn(3))
        with rig.sink(schema_hash="b") as sink:
            put(sink, 5, {"x": 2, "gone": None})
            sink.flush()
        with rig.sink() as sink:
            assert sink.seeded(INDEX) is None
            assert rig.content() == {"x": 1, "gone": 1}
            put(sink, 6, {"x": 3})
            sink.flush()
            sink.complete(INDEX, Lsn(6))
            assert rig.content() == {"x": 3}

    def test_what_is_removed_is_gone_and_its_neighbour_stays(self, rig: Rig) -> None:
        """E85: also what is remembered: an index of the same name that is opened later has to be seeded."""
        with rig.sink() as sink:
            assert sink.holdings("never") == []
            sink.remove("never")
            sink.open(target("users"))
            for index in (INDEX, "users"):
                put(sink, 3, {"x": 1}, index)
                sink.flush()
                sink.complete(index, Lsn(3))
        sink = rig.make(rig.place)
        try:
            assert sink.holdings(INDEX)
            sink.remove(INDEX)
            sink.remove(INDEX)
            assert (sink.holdings(INDEX), rig.content()) == ([], {})
            assert (len(sink.holdings("users")) > 0, rig.content("users")) == (True, {"x": 1})
        finally:
            sink.close()
        with rig.sink() as sink:
            assert sink.seeded(INDEX) is None
            assert rig.content("users") == {"x": 1}

    def test_what_waits_for_a_flush_outlives_another_opening(self, rig: Rig) -> None:
        """E86: the trouble of another sink, or of a seed, has every index opened again meanwhile."""
        with rig.sink() as sink:
            sink.open(target("users"))
            for index in (INDEX, "users"):
                put(sink, 3, {"old": 1}, index)
                sink.complete(index, Lsn(3))
            put(sink, 5, {"x": 1, "y": 1, "old": None})
            put(sink, 6, {"y": None})
            sink.clear("users", Lsn(4))
            put(sink, 5, {"z": 1}, "users")
            before = sink.generation(INDEX)
            for _ in range(2):
                sink.open(target())
                sink.open(target("users"))
            put(sink, 7, {"later": 1})
            sink.flush()
            assert sink.generation(INDEX) == before
            assert rig.content() == {"x": 1, "later": 1}
            assert rig.content("users") == {"z": 1}

    def test_what_waits_goes_to_the_generation_that_it_was_written_to(self, rig: Rig) -> None:
        """E84: a successor is begun, and its predecessor opened beside it, before the flush."""
        old = target("old", name=INDEX, source="system/1", beside=("system/2",))
        with rig.sink(source="system/1") as sink:
            put(sink, 3, {"x": 1})
            sink.flush()
            sink.complete(INDEX, Lsn(3))
            put(sink, 5, {"x": 5})
            sink.open(target(source="system/2", beside=("system/1",)))
            if sink.shows(old):
                sink.open(old)
            sink.flush()
            assert rig.content() == {"x": 5}
            sink.complete(INDEX, Lsn(6))
            assert rig.content() == {}

    def test_a_sink_that_is_closed_says_so_and_takes_no_flush_for_done(self, rig: Rig) -> None:
        """E73: it is left behind while a seed writes to it; who writes tries again, and finds that it is away."""
        sink = rig.make(rig.place)
        sink.open(target())
        sink.complete(INDEX, Lsn(1))
        put(sink, 3, {"x": 1})
        sink.close()
        with pytest.raises(RetryableError):
            put(sink, 5, {"y": 1})
        for act in sink.complete, sink.clear:
            with pytest.raises(RetryableError):
                act(INDEX, Lsn(3))
        try:
            sink.flush()
        except RetryableError:
            pass
        else:
            assert rig.content() == {"x": 1}, "flushed is durable"
        with rig.sink() as again:
            again.flush()

    def test_what_was_flushed_survives_kill_9(self, rig: Rig) -> None:
        """E21: the process is killed while it goes on writing; every batch that it saw flushed is there."""
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(1))
        with _process(rig, "endless") as process:
            assert process.stdout
            flushed = [int(process.stdout.readline()) for _ in range(20)][-1]
            process.send_signal(signal.SIGKILL)
            process.wait()
        with rig.sink() as sink:
            assert sink.seeded(INDEX) == 1
            found = rig.content()
            assert {id: found.get(id) for id in map(str, range(flushed))} == {str(n): n for n in range(flushed)}
            put(sink, 3, {"0": 99})
            sink.flush()
            assert rig.content()["0"] == 99

    def test_several_processes_write_at_once_where_that_is_promised(self, rig: Rig) -> None:
        """E83: racing processes leave the newest; a sink for one writer refuses the second in a sentence."""
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(1))
            if not sink.shared:
                with pytest.raises(PenstockError, match="another process") as refused, rig.sink():
                    pass
                assert refused.value.hint
                with _process(rig, "racer", "1") as process:
                    assert "another process" in process.communicate()[0]
                return
        seeds = ["1", "2", "3"]
        processes = [_process(rig, "racer", seed) for seed in seeds]
        for running in processes:
            with running as process:
                said, _ = process.communicate()
                assert said.strip() == "done"
        batches = [random_batches(random.Random(int(seed)), versions=race_of(int(seed)), ids=30) for seed in seeds]
        assert rig.content() == newest({version: batch for each in batches for version, batch in each.items()})


def race_of(seed: int) -> Sequence[int]:
    """The versions that one racer writes: no two racers write the same."""
    return range(seed + 1, 91, 3)


def random_batches(
    rng: random.Random, versions: Sequence[int], ids: int, at_most: int = 20
) -> dict[int, dict[str, int | None]]:
    """A batch for each version: some of the ids, each upserted or deleted."""
    return {
        version: {
            str(id): None if rng.random() < 0.3 else version for id in rng.sample(range(ids), rng.randint(1, at_most))
        }
        for version in versions
    }


def newest(batches: Mapping[int, Mapping[str, int | None]], above: int = 0) -> dict[str, int]:
    """What is left of the batches in the order of their versions."""
    left: dict[str, int | None] = {}
    for version in sorted(batches):
        if version > above:
            left |= batches[version]
    return {id: n for id, n in left.items() if n is not None}


def _put_all(sink: Sink, batches: list[tuple[int, dict[str, int | None]]], failures: list[BaseException]) -> None:
    try:
        for version, documents in reversed(batches):
            put(sink, version, documents)
            sink.flush()
    except BaseException as error:  # noqa: BLE001 - told to the test, whose thread is another
        failures.append(error)


def _process(rig: Rig, role: str, *arguments: str) -> subprocess.Popen[str]:
    """Another process that writes to the rig's store."""
    maker = f"{rig.make.__module__}:{rig.make.__qualname__}"
    return subprocess.Popen(
        [sys.executable, "-c", "from tests.sinks.contract import child; child()", role, maker, rig.place, *arguments],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def child() -> None:
    """The other process: `endless` says how many documents were flushed; `racer` writes its batches, oldest last."""
    role, maker, place, *rest = sys.argv[1:]
    module, name = maker.split(":")
    sink: Sink = getattr(importlib.import_module(module), name)(place)
    try:
        sink.open(target())
        if role == "endless":
            for at in itertools.count(step=10):
                put(sink, 2, {str(n): n for n in range(at, at + 10)})
                sink.flush()
                print(at + 10, flush=True)
        batches = random_batches(random.Random(int(rest[0])), versions=race_of(int(rest[0])), ids=30)
        for version in reversed(batches):
            put(sink, version, batches[version])
            sink.flush()
        print("done")
    except PenstockError as error:
        print(error.message)
    finally:
        sink.close()
