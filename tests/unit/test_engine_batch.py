"""A batch from settled to durable, over a builder and sinks in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from penstock.contracts import DocumentBuilder, Documents, Extent, Key, Rejection, Sink, Writes
from penstock.engine import batch
from penstock.engine.batch import IN_FLIGHT, STALE_S, Parts, Tally
from penstock.errors import OperatorError, RetryableError, UnavailableError
from penstock.model import Lsn
from tests.fixtures.waiting import wait_until
from tests.unit.engine_parts import Journal, MemoryBuilder, MemorySink, changes, parts

END = Lsn(500)


def no_truncate(index: str, extent: Extent, version: Lsn) -> None:
    raise AssertionError("there was no truncate")


def kinds(journal: Journal) -> list[str]:
    return [entry[0] for entry in journal]


def test_the_doubles_keep_the_contracts() -> None:
    assert isinstance(MemoryBuilder(), DocumentBuilder)
    assert isinstance(MemorySink(), Sink)


def test_every_transaction_is_settled_before_anything_is_resolved_or_built() -> None:
    """E71, invariant 4: one settle, of each transaction once, comes first."""
    journal: Journal = []
    batch.apply(parts(journal, MemorySink(), rows="ab"), changes("a", "b", "a", xids=(9, 7)), END, no_truncate)
    assert journal[0] == ("settle", 7, 9)
    assert kinds(journal).count("settle") == 1


def test_a_batch_that_does_not_settle_writes_nothing() -> None:
    """E71: whoever cannot see the commit yet builds no document."""
    journal: Journal = []
    mine = parts(journal, MemorySink(), rows="a")

    def never(xids: object) -> None:
        raise UnavailableError("not visible")

    mine.builder.settle = never  # type: ignore[method-assign]
    with pytest.raises(UnavailableError):
        batch.apply(mine, changes("a"), END, no_truncate)
    assert journal == []


def test_a_document_that_several_changes_touch_is_built_once() -> None:
    journal: Journal = []
    tally = batch.apply(parts(journal, MemorySink(), rows="ab"), changes(*"aabab"), END, no_truncate)
    assert [entry for entry in journal if entry[0] == "build"] == [("build", "books", ("a",), ("b",))]
    assert (tally.changes, tally.written) == (5, {"books": 2})


def test_every_write_has_the_version_of_the_batchs_end() -> None:
    """Invariant 5: whatever the changes' own positions are."""
    journal: Journal = []
    sink = MemorySink()
    batch.apply(parts(journal, sink, rows="abcde"), changes(*"abcde", lsn=20), END, no_truncate)
    assert {version for version, _ in sink.held.values()} == {END}
    assert len(sink.held) == 5


def test_every_sink_is_flushed_once_after_the_last_write() -> None:
    """Invariant 2: durable in every sink when it returns."""
    journal: Journal = []
    batch.apply(parts(journal, MemorySink("one"), MemorySink("two"), rows="abc"), changes(*"abc"), END, no_truncate)
    assert journal[-2:] == [("flush", "one"), ("flush", "two")]
    assert kinds(journal).count("flush") == 2


def test_a_sink_that_holds_several_indexes_is_flushed_once() -> None:
    journal: Journal = []
    mine = parts(journal, MemorySink(), rows="a", indexes=("books", "authors"))
    tally = batch.apply(mine, changes("a"), END, no_truncate)
    assert kinds(journal).count("flush") == 1
    assert tally.written == {"books": 1, "authors": 1}


def test_writes_that_lost_are_counted_once() -> None:
    """E29: of every sink, by a batch and by a seed, whoever asks next counts none of them again."""
    one, two = MemorySink("one", lost=2), MemorySink("two", lost=1)
    mine = parts([], one, two, rows="a")
    assert batch.apply(mine, changes("a"), END, no_truncate).older == 3
    two.lost = 5
    assert batch.seeded(mine, "books", [(None, None)], END).older == 5
    assert batch.apply(mine, changes("a"), END, no_truncate).older == 0


def test_a_failed_flush_fails_the_batch() -> None:
    class Failing(MemorySink):
        def flush(self) -> None:
            raise UnavailableError("gone")

    with pytest.raises(UnavailableError, match="gone"):
        batch.apply(parts([], Failing(), rows="a"), changes("a"), END, no_truncate)


def test_one_failed_chunk_fails_the_batch_unflushed() -> None:
    class Failing(MemorySink):
        def write(self, writes: Writes) -> Sequence[Rejection]:
            if "e" in writes.documents.ids:
                raise UnavailableError("gone")
            return super().write(writes)

    journal: Journal = []
    with pytest.raises(UnavailableError):
        batch.apply(parts(journal, Failing(), rows="abcdefgh"), changes(*"abcdefgh"), END, no_truncate)
    assert "flush" not in kinds(journal)


def test_a_key_without_a_document_is_a_tombstone_and_counted_as_deleted() -> None:
    sink = MemorySink()
    tally = batch.apply(parts([], sink, rows="a"), changes(*"ab"), END, no_truncate)
    assert sink.held == {("books", "a"): (END, b'{"id":"a"}'), ("books", "b"): (END, None)}
    assert (tally.written, tally.deleted) == ({"books": 1}, {"books": 1})


def test_documents_are_counted_once_however_many_sinks_take_them() -> None:
    tally = batch.apply(parts([], MemorySink("one"), MemorySink("two"), rows="a"), changes("a"), END, no_truncate)
    assert tally.written == {"books": 1}


def test_what_is_gone_is_told_of_indexes_that_are_being_seeded_only() -> None:
    """E51: a seed has to look again at what live deleted meanwhile."""
    mine = parts([], MemorySink(), rows="a", indexes=("books", "authors"))
    assert batch.apply(mine, changes(*"abc"), END, no_truncate).gone == []
    tally = batch.apply(replace(mine, seeding=frozenset({"books"})), changes(*"abc"), END, no_truncate)
    assert sorted(tally.gone) == [("books", ("b",)), ("books", ("c",))]


def test_a_truncate_is_dealt_with_before_what_came_after_it_is_written() -> None:
    """E66: a clear at the batch's end must not take rows that the batch inserted after the truncate."""
    journal: Journal = []
    mine = parts(journal, MemorySink(), rows="a")
    mine.builder.extents = {"books": Extent.ROOTS}  # type: ignore[attr-defined]
    batch.apply(mine, changes("a"), END, lambda *told: journal.append(("truncate", *told)))
    assert journal[1] == ("truncate", "books", Extent.ROOTS, END)
    assert kinds(journal) == ["settle", "truncate", "affected", "build", "write", "flush"]


def test_a_batch_without_changes_of_the_index_writes_nothing() -> None:
    journal: Journal = []
    tally = batch.apply(parts(journal, MemorySink()), changes(), END, no_truncate)
    assert kinds(journal) == ["settle", "affected", "flush"]
    assert tally == Tally()


def test_rejections_name_their_sink_and_neighbours_land() -> None:
    """E81: one document is rejected, the others of its request are there."""
    sink = MemorySink("picky", rejects=frozenset({"b"}))
    tally = batch.apply(parts([], sink, rows="abc"), changes(*"abc"), END, no_truncate)
    assert tally.rejected == [("picky", Rejection("books", "b", END, "too wild"))]
    assert sorted(one for _, one in sink.held) == ["a", "c"]


def test_a_slow_chunk_holds_up_no_other() -> None:
    """The others are done one after the other meanwhile, and their results come first."""
    others = threading.Semaphore(0)

    def act(item: int) -> int:
        if item == 0:
            for _ in range(5):
                assert others.acquire(timeout=10)
        else:
            others.release()
        return item

    assert sorted(batch.in_flight(act, range(6))) == list(range(6))


def test_what_fails_in_flight_is_told_and_nothing_else_is_begun() -> None:
    begun: list[int] = []

    def act(item: int) -> None:
        begun.append(item)
        raise UnavailableError(f"number {item}")

    with pytest.raises(UnavailableError):
        list(batch.in_flight(act, range(100)))
    assert len(begun) <= IN_FLIGHT


@pytest.mark.parametrize("waits", ["building", "resolving"])
def test_a_sink_that_is_slow_and_fails_is_told_and_not_who_waited_for_it(waits: str) -> None:
    """E73, E86: who waits for the connection that it holds gives up before it does."""
    gave_up = threading.Event()

    def keys() -> Iterator[tuple[str, list[Key]]]:
        yield from (("books", [(key,)]) for key in "ab"[: 2 if waits == "building" else 1])
        if waits == "resolving":
            yield "books", [("b",)]
            give_up()

    def give_up() -> None:
        gave_up.set()
        raise RetryableError("all 1 connections are in use")

    class Waiting(MemoryBuilder):
        def build(self, index: str, keys: Sequence[Key]) -> Iterator[Documents]:
            if keys == [("b",)] and waits == "building":
                give_up()
            return super().build(index, keys)

    class Slow(MemorySink):
        def write(self, writes: Writes) -> Sequence[Rejection]:
            assert gave_up.wait(10)
            raise UnavailableError("it did not answer")

    journal: Journal = []
    mine = replace(parts(journal, Slow("search"), rows="ab"), builder=Waiting(journal, set("ab")))
    with pytest.raises(UnavailableError, match="it did not answer") as told:
        batch.delivered(mine, keys(), END)
    assert told.value.sink == "search"


def test_so_many_chunks_are_in_flight_and_no_more() -> None:
    """Memory is bounded by the chunks in flight, and one is built while another is written."""
    meeting = threading.Barrier(IN_FLIGHT, timeout=10)
    lock = threading.Lock()
    under_way: list[int] = []
    most = 0

    class Counting(MemoryBuilder):
        taken = 0

        def affected(self, index: str, changes: object) -> Iterator[list[Key]]:
            for at in range(10 * IN_FLIGHT):
                Counting.taken += 1
                assert Counting.taken <= done + IN_FLIGHT + 1, "keys are resolved no faster than they are written"
                yield [(str(at),)]

        def build(self, index: str, keys: Sequence[Key]) -> Iterator[Documents]:
            nonlocal most, done
            with lock:
                under_way.append(1)
                most = max(most, len(under_way))
            meeting.wait()
            with lock:
                under_way.pop()
                done += 1
            return super().build(index, keys)

    done = 0
    journal: Journal = []
    mine = replace(parts(journal, MemorySink()), builder=Counting(journal))
    tally = batch.apply(mine, changes("a"), END, no_truncate)
    assert most == IN_FLIGHT
    assert tally.deleted == {"books": 10 * IN_FLIGHT}


def test_content_that_grew_old_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """E88: sinks remember deletes for a while; what was built long ago could bring one back."""
    now = 0.0

    class Slow(MemoryBuilder):
        def build(self, index: str, keys: Sequence[Key]) -> Iterator[Documents]:
            nonlocal now
            now += STALE_S + 1
            yield from super().build(index, keys)

    monkeypatch.setattr(batch.time, "monotonic", lambda: now)
    journal: Journal = []
    mine = replace(parts(journal, MemorySink()), builder=Slow(journal, {"a"}))
    with pytest.raises(UnavailableError, match="more than 900 s"):
        batch.delivered(mine, [("books", [("a",)])], END)
    assert "write" not in kinds(journal)
    mine = replace(mine, builder=MemoryBuilder(journal, {"a"}))
    assert batch.delivered(mine, [("books", [("a",)])], END).written == {"books": 1}


@pytest.mark.parametrize(
    "deliver",
    [
        lambda mine: batch.delivered(mine, [("books", [("a",)])], END),
        lambda mine: batch.rebuilt(mine, "books", ["a"], END),
        lambda mine: batch.rebuilt(mine, "books", [""], END),
        lambda mine: batch.seeded(mine, "books", [(None, None)], END),
    ],
)
def test_content_that_grew_old_in_one_sink_is_not_sent_to_the_next(
    monkeypatch: pytest.MonkeyPatch, deliver: Callable[[Parts], Tally]
) -> None:
    """E88: nor where the right to write was lost meanwhile."""
    now, slowness, lost = 0.0, 0.0, False

    class Slow(MemorySink):
        def write(self, writes: Writes) -> Sequence[Rejection]:
            nonlocal now, lost
            now, lost = now + slowness, True
            return super().write(writes)

    def claim() -> None:
        if lost and not slowness:
            raise OperatorError("another penstock has taken over")

    monkeypatch.setattr(batch.time, "monotonic", lambda: now)
    for seconds, told in (STALE_S + 1, UnavailableError), (0.0, OperatorError):
        slowness, lost, journal = seconds, False, Journal()
        mine = parts(journal, Slow("slow"), MemorySink("next"), rows="a")
        with pytest.raises(told):
            deliver(replace(mine, claim=claim))
        assert [entry[1] for entry in journal if entry[0] == "write"] == ["slow"]


def test_ranges_of_a_seed_are_written_with_its_version_and_flushed() -> None:
    journal: Journal = []
    sink = MemorySink()
    mine = parts(journal, sink, rows="abcdef")
    tally = batch.seeded(mine, "books", [(None, ("b",)), (("b",), ("d",)), (("d",), None)], Lsn(40))
    assert tally.written == {"books": 6}
    assert {version for version, _ in sink.held.values()} == {Lsn(40)}
    assert journal[-1] == ("flush", "memory")


def test_tallies_of_parts_add_up() -> None:
    one = Tally(2, {"a": 1}, {"a": 1}, [], [("a", ("1",))])
    rejected = ("s", Rejection("b", "9", END, "why"))
    one.add(Tally(3, {"a": 4, "b": 1}, {}, [rejected], [("b", ("2",))]))
    assert one == Tally(5, {"a": 5, "b": 1}, {"a": 1}, [rejected], [("a", ("1",)), ("b", ("2",))])


def test_no_thread_outlives_a_batch() -> None:
    batch.apply(parts([], MemorySink(), rows="abcdef"), changes(*"abcdef"), END, no_truncate)
    wait_until(lambda: not [one for one in threading.enumerate() if one.name.startswith("penstock-deliver")])
