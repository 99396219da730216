"""What live writes of some documents is noted for whoever looks at them."""

from __future__ import annotations

import threading

from penstock.engine.watch import Watches
from tests.fixtures.waiting import wait_until


def test_what_is_written_is_told_to_each_who_watches_it_as_long_as_they_do() -> None:
    """E83: by index and id; who lets go is forgotten."""
    watches = Watches(threading.Lock())
    books, both = watches.begin("books", ["a", "b"]), watches.begin("authors", ["a"])
    assert watches.watched() == {("books", "a"), ("books", "b"), ("authors", "a")}
    watches.note([("books", "a"), ("books", "c"), ("authors", "b")])
    assert (books(), both()) == ({"a"}, set())
    watches.note(watches.watched())
    assert (books(), both()) == ({"a", "b"}, {"a"})
    del books
    assert watches.watched() == {("authors", "a")}


def test_who_looks_at_the_same_documents_at_once_hears_of_each_by_itself() -> None:
    """E83: a reconcile beside the verification of a reindex: neither misses what the other is told or lets go of."""
    watches = Watches(threading.Lock())
    first = watches.begin("books", ["a", "b"])
    watches.note([("books", "a")])
    second = watches.begin("books", ["b", "c"])
    assert (first(), second()) == ({"a"}, set()), "what came before the second is the first one's"
    watches.note([("books", "b")])
    assert (first(), second()) == ({"a", "b"}, {"b"})
    del first
    assert watches.watched() == {("books", "b"), ("books", "c")}
    watches.note([("books", "c")])
    assert second() == {"b", "c"}


class Batch:
    """A lock that tells whether somebody came for it."""

    def __init__(self) -> None:
        self.held = threading.Lock()
        self.wanted = threading.Event()

    def __enter__(self) -> None:
        self.wanted.set()
        self.held.acquire()

    def __exit__(self, *_: object) -> None:
        self.held.release()


def test_a_watch_begins_and_answers_between_two_batches() -> None:
    """E83: what the batch under way writes without knowing is before it; what it may have written is waited for."""
    batch = Batch()
    watches = Watches(batch)
    told: list[object] = []

    def look() -> None:
        watch = watches.begin("books", ["a", "b"])
        told.append("begun")
        batch_goes_on.wait()
        told.append(watch())

    batch_goes_on = threading.Event()
    thread = threading.Thread(target=look)
    with batch.held:
        thread.start()
        wait_until(batch.wanted.is_set, 10, "the watch")
        watches.note([("books", "a")])
        assert told == []
    wait_until(lambda: told == ["begun"], 10, "the watch to begin")
    batch.wanted.clear()
    with batch.held:
        batch_goes_on.set()
        wait_until(batch.wanted.is_set, 10, "the question")
        watches.note([("books", "b")])
        assert told == ["begun"]
    thread.join()
    assert told == ["begun", {"b"}]
