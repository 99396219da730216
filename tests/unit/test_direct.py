"""The desk and its caller, over a real unix socket: exactly the range that was offered last, or nothing."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model import Lsn
from penstock.postgres.keys import SCHEMA
from penstock.spark.direct import Desk, Fetched, fetch
from tests.unit.engine_parts import changes


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A short one, whatever the folder's path is."""
    monkeypatch.chdir(tmp_path)
    return "desk.sock"


@pytest.fixture
def desk(path: str) -> Iterator[Desk]:
    found = Desk(path)
    yield found
    found.close()


def test_what_is_fetched_is_what_was_offered(desk: Desk, path: str) -> None:
    first, second = changes("a", "b", xids=(5, 6)), changes("c", op="delete")
    desk.offer(Lsn(0x1_0000_0050), [first, second])
    found = fetch(path)
    assert found is not None and found.changes is not None
    assert found.end == Lsn(0x1_0000_0050)
    assert found.changes.schema == SCHEMA
    assert found.changes.to_pylist() == first.to_pylist() + second.to_pylist()


def test_it_may_be_fetched_again(desk: Desk, path: str) -> None:
    """A batch that failed in the middle asks again."""
    desk.offer(Lsn(7), [changes("a")])
    assert fetch(path) == fetch(path) != None  # noqa: E711 - both, and something


def test_the_last_offer_counts(desk: Desk, path: str) -> None:
    desk.offer(Lsn(7), [changes("a")])
    desk.offer(Lsn(9), [changes("b")])
    found = fetch(path)
    assert found is not None and found.changes is not None
    assert (found.end, found.changes.to_pylist()) == (Lsn(9), changes("b").to_pylist())


def test_a_range_without_changes_has_an_end(desk: Desk, path: str) -> None:
    desk.offer(Lsn(9), [], upto={"lsn": "0/9"})
    assert fetch(path) == Fetched(Lsn(9), None, (), {"lsn": "0/9"})


def test_a_range_that_is_too_large_is_for_the_frame(desk: Desk, path: str) -> None:
    """Nor does the one before it count any more."""
    desk.offer(Lsn(7), [changes("a")])
    desk.offer(Lsn(9), None)
    assert fetch(path) is None


def test_before_the_first_offer_there_is_nothing(desk: Desk, path: str) -> None:
    assert fetch(path) is None


def test_no_desk_is_no_trouble(path: str) -> None:
    assert fetch(path) is None
    assert fetch("") is None


def test_a_desk_that_ends_in_the_middle_is_no_range(path: str) -> None:
    """Half an answer must not be taken for a batch."""
    whole = _answer_of(path, [changes(*map(str, range(500)))])
    head = whole.index(b"\n") + 1
    for length in (0, 5, head, len(whole) // 2, len(whole) - 8):  # the last leaves out what ends the stream, no row
        assert _fetched_from(path, whole[:length]) is None
    assert _fetched_from(path, whole) is not None


def test_a_socket_of_a_killed_reader_is_taken_over(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    assert fetch(path) is None
    desk = Desk(path)
    desk.offer(Lsn(7), [changes("a")])
    assert fetch(path) is not None
    desk.close()


def test_a_large_range_comes_whole(desk: Desk, path: str) -> None:
    many = changes(*(f"key number {n}" for n in range(20_000)))
    desk.offer(Lsn(7), [many])
    found = fetch(path)
    assert found is not None and found.changes is not None and found.changes.equals(many)


def test_a_caller_that_leaves_early_disturbs_nobody(desk: Desk, path: str) -> None:
    desk.offer(Lsn(7), [changes(*(f"key number {n}" for n in range(20_000)))])
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(path)
        asking.recv(10)
    assert fetch(path) is not None


def test_a_caller_that_takes_its_time_holds_nobody_up(desk: Desk, path: str) -> None:
    """The next range can be offered meanwhile, and the caller still gets what it asked for, whole."""
    many = changes(*(f"key number {n}" for n in range(20_000)))
    desk.offer(Lsn(7), [many])
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(path)
        first = asking.recv(10)
        desk.offer(Lsn(9), [changes("a")])
        rest = b"".join(iter(lambda: asking.recv(1 << 20), b""))
    found = _fetched_from("taken.sock", first + rest)
    assert found is not None and found.changes is not None and found.changes.equals(many)


def test_a_closed_desk_leaves_nothing(path: str) -> None:
    desk = Desk(path)
    desk.close()
    desk.close()
    assert not os.path.exists(path)


def _answer_of(path: str, batches: list[object]) -> bytes:
    desk = Desk(path)
    desk.offer(Lsn(7), batches)  # type: ignore[arg-type]
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(path)
        found = b"".join(iter(lambda: asking.recv(1 << 20), b""))
    desk.close()
    return found


def _fetched_from(path: str, answer: bytes) -> Fetched | None:
    """What a caller makes of these bytes."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            asking, _ = listener.accept()
            with asking:
                asking.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            return fetch(path)
        finally:
            thread.join()
            os.unlink(path)


def test_the_next_reader_keeps_its_socket_when_the_one_before_ends_late(path: str) -> None:
    before = Desk(path)
    now = Desk(path)
    now.offer(Lsn(7), [changes("a")])
    before.close()
    assert fetch(path) is not None
    now.close()
    assert not os.path.exists(path)
