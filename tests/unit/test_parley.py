"""Two sides that share a key, over a real socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from penstock.errors import AuthenticationError
from penstock.postgres import parley
from penstock.postgres.parley import Line
from tests.fixtures.waiting import wait_until

KEY = b"k" * 32


@pytest.fixture
def heard() -> Iterator[tuple[int, list[Line | Exception]]]:
    """A listener that takes one caller: its port, and the line or what went wrong."""
    found: list[Line | Exception] = []
    with parley.listening() as server:

        def listen() -> None:
            try:
                found.append(Line(server.accept()[0], KEY, calling=False))
            except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
                found.append(error)

        thread = threading.Thread(target=listen)
        thread.start()
        yield server.getsockname()[1], found
        thread.join(20)
    for one in found:
        if isinstance(one, Line):
            one.close()


def listened(heard: tuple[int, list[Line | Exception]]) -> Line:
    wait_until(lambda: heard[1], what="the caller to be heard")
    (line,) = heard[1]
    assert isinstance(line, Line)
    return line


def test_it_listens_to_this_machine_only_where_that_is_enough() -> None:
    with parley.listening(everywhere=False) as server:
        assert server.getsockname()[0] == "127.0.0.1"
    with parley.listening() as server:
        assert server.getsockname()[0] in ("::", "0.0.0.0")


def test_both_sides_speak_and_notice_the_end(heard: tuple[int, list[Line | Exception]]) -> None:
    with parley.call("127.0.0.1", heard[0], KEY, 5) as line:
        other = listened(heard)
        assert other.from_here
        line.send({"word": "ä"})
        assert other.receive(5) == {"word": "ä"}
        other.send({"long": "x" * 100_000})
        assert line.receive(5) == {"long": "x" * 100_000}
        assert line.receive(0.01) is None
    assert other.receive(5) is None


def test_a_caller_with_another_key_is_refused_by_both(heard: tuple[int, list[Line | Exception]]) -> None:
    with pytest.raises((AuthenticationError, ConnectionError)):
        parley.call("127.0.0.1", heard[0], b"another", 5)


def test_a_listener_cannot_be_answered_with_its_own_words(heard: tuple[int, list[Line | Exception]]) -> None:
    with socket.create_connection(("127.0.0.1", heard[0])) as sock:
        sock.settimeout(5)
        sock.sendall(sock.recv(32))
        sock.sendall(sock.recv(32))
        assert sock.recv(1) == b""
    wait_until(lambda: heard[1], what="the listener to give up")
    assert isinstance(heard[1][0], AuthenticationError)


@pytest.mark.parametrize("said", [b"\xff\xff\xff\xff", b"\0\0\0\1{", b"\0\0\0\2[]", b"\0\0"])
def test_what_is_no_message_reads_as_the_end(heard: tuple[int, list[Line | Exception]], said: bytes) -> None:
    line = parley.call("127.0.0.1", heard[0], KEY, 5)
    other = listened(heard)
    line._socket.sendall(said)
    line.close()
    assert other.receive(5) is None
