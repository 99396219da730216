"""Connections that break in every way: the capture comes back by itself, loses nothing and repeats nothing in a run."""

from __future__ import annotations

import logging
import re
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.demo.server import Server
from penstock.errors import UnavailableError
from penstock.model import ReplicationConfig
from penstock.postgres import receiver, replication, slot
from penstock.postgres.capture import WalChangeCapture
from tests.fixtures.captures import Published, ids, take
from tests.fixtures.proxies import Proxy
from tests.fixtures.waiting import wait_until

StartProxy = Callable[[Server], Proxy]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["clean", "crash"])
def test_a_server_that_restarts(published: Published, how: signal.Signals) -> None:
    """E32: what was not confirmed and what is confirmed do not come again within the run."""
    stream = published.streaming()
    published.insert_each(1, 2)
    first, second = take(stream, 2)
    first.ack.confirm()
    began = time.monotonic()
    published.database.server.halt(how)
    assert time.monotonic() - began < 10, "a server that shuts down is not made to wait for the second"
    published.database.server.start()
    published.insert(3)
    assert ids(take(stream, 1)) == [3]
    second.ack.confirm()
    published.insert(4)
    assert ids(take(stream, 1)) == [4]
    wait_until(lambda: published.confirmed() >= second.position.lsn, what="the slot to move")


def test_a_server_that_is_away_for_a_while(published18: Published, caplog: pytest.LogCaptureFixture) -> None:
    """E32: attempts go on with growing waits until it is back."""
    stream = published18.streaming()
    published18.insert(1)
    assert ids(take(stream, 1)) == [1]
    published18.database.server.halt()
    wait_until(lambda: caplog.text.count("the stream broke off") >= 4, what="four attempts")
    published18.database.server.start()
    published18.insert(2)
    assert ids(take(stream, 1)) == [2]


def test_a_walsender_that_is_terminated_again_and_again(published: Published) -> None:
    """E32: also before it has sent anything, and while the stream is being opened."""
    stream = published.streaming()
    for number in range(8):
        published.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'walsender' AND datname = %s",
            published.database.name,
        )
        published.insert(number)
    assert ids(take(stream, 8)) == list(range(8))


def test_a_connection_that_dies_at_any_step_of_opening(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """E32: driver errors there are passing trouble, not a bug of ours."""
    stream = published.streaming()
    died: list[str] = []

    def dies(name: str, of: Any) -> None:
        real = getattr(of, name)

        def wrapped(first: Any, *rest: Any) -> Any:
            if name not in died:
                died.append(name)
                connection = getattr(first, "connection", first)
                published.execute("SELECT pg_terminate_backend(%s, 5000)", connection.info.backend_pid)
            return real(first, *rest)

        monkeypatch.setattr(of, name, wrapped)

    dies("inspect", slot)
    dies("_sender_timeout_s", receiver)
    dies("start_replication", replication)
    published.execute("SELECT pg_terminate_backend(%s)", published.walsender())
    published.insert(1)
    assert ids(take(stream, 1)) == [1]
    assert died == ["inspect", "_sender_timeout_s", "start_replication"]


def test_a_cut_connection(published: Published, proxy: StartProxy) -> None:
    """E32: several times; changes written meanwhile are there afterwards."""
    through = proxy(published.database.server)
    stream = published.streaming(through.url(published.database.name))
    for number in range(4):
        through.cut()
        published.insert(number)
        (change,) = take(stream, 1)
        assert change.new == {"id": number}
        change.ack.confirm()
    wait_until(lambda: published.confirmed() >= change.position.lsn)


def test_a_connection_cut_in_the_midst_of_a_large_transaction(published18: Published, proxy: StartProxy) -> None:
    """E13, E32: whole, once, in order."""
    through = proxy(published18.database.server)
    stream = published18.streaming(through.url(published18.database.name), spill_bytes=200_000)
    published18.execute("INSERT INTO t SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, 20000) i")
    wait_until(lambda: stream._source.receiver._assembler._open is not None, what="rows to arrive")  # the test's look
    through.cut()
    assert ids(take(stream, 20_000)) == list(range(1, 20_001))
    published18.insert(99_999)
    assert ids(take(stream, 1)) == [99_999]


def test_a_half_open_connection_is_given_up(
    published: Published, proxy: StartProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """E32: nothing comes and nothing ends; after twice wal_sender_timeout the capture connects anew."""
    through = proxy(published.database.server)
    stream = published.streaming(through.url(published.database.name, wal_sender_timeout=500))
    published.insert(1)
    assert ids(take(stream, 1)) == [1]
    through.stall()
    through.flow()
    began = time.monotonic()
    published.insert(2)
    assert ids(take(stream, 1)) == [2]
    assert 0.5 < time.monotonic() - began < 5
    assert re.search(r"has sent nothing for \d+ s", caplog.text)


def test_an_idle_connection_is_not_taken_for_half_open(published: Published, caplog: pytest.LogCaptureFixture) -> None:
    """E32: a server at rest answers when it is asked."""
    caplog.set_level(logging.INFO, "penstock")
    stream = published.streaming(published.url(wal_sender_timeout=2000))
    pid = published.walsender()
    idle_until = time.monotonic() + 5.2
    wait_until(lambda: time.monotonic() > idle_until)
    assert published.walsender() == pid
    assert "broke off" not in caplog.text
    published.insert(1)
    assert ids(take(stream, 1)) == [1]


def test_patience_with_a_silent_server_grows(published18: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """E32: one that is busy for long with something large would have to begin again with every connection."""
    stream = published18.streaming(published18.url(wal_sender_timeout=100))
    silent: list[float] = []
    check = receiver.Receiver._check_silence

    def noting(self: receiver.Receiver) -> None:
        try:
            check(self)
        except UnavailableError:
            silent.append(time.monotonic() - self._heard)
            raise

    monkeypatch.setattr(receiver.Receiver, "_check_silence", noting)
    monkeypatch.setattr(replication.Duplex, "drain", lambda *_: [])
    wait_until(lambda: len(silent) >= 3, what="three to be given up")
    assert [silent_s >= limit_s for silent_s, limit_s in zip(silent, (0.2, 0.4, 0.8), strict=False)] == [True] * 3
    monkeypatch.undo()
    published18.insert(1)
    assert ids(take(stream, 1)) == [1]


def test_a_server_that_is_full_when_we_come_back(published: Published, caplog: pytest.LogCaptureFixture) -> None:
    """E32: a lack of connections passes, once a stream has been open."""
    url = published.database.role("reader", attributes="LOGIN REPLICATION")
    stream = published.streaming(url)
    published.execute("ALTER ROLE reader CONNECTION LIMIT 0")
    published.execute("SELECT pg_terminate_backend(%s)", published.walsender())
    wait_until(lambda: "has all the connections" in caplog.text, what="an attempt in vain")
    published.execute("ALTER ROLE reader CONNECTION LIMIT -1")
    published.insert(1)
    assert ids(take(stream, 1)) == [1]


def test_our_own_walsender_that_lingers_is_waited_for(
    published18: Published, proxy: StartProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """E25: the slot is still held by the connection that broke, longer than `slot_wait_s` allows a stranger."""
    caplog.set_level(logging.INFO, "penstock")
    through = proxy(published18.database.server)
    url = through.url(published18.database.name, wal_sender_timeout=1000)
    stream = published18.streaming(url, slot_wait_s=0.0)
    lingering = published18.walsender()
    gone: list[receiver.Receiver] = []

    def lose_the_network(self: receiver.Receiver) -> None:
        if not gone:
            gone.append(self)
            through.stall()  # the server will not learn that the client has gone
            through.flow()
            raise UnavailableError("the network is gone")

    monkeypatch.setattr(receiver.Receiver, "_check_silence", lose_the_network)
    wait_until(lambda: "waiting for slot" in caplog.text, what="the slot to be found in use")
    published18.insert(1)
    assert ids(take(stream, 1)) == [1]
    assert published18.walsender() != lingering


def test_at_the_first_connect_trouble_is_told_at_once() -> None:
    """E32: an address where nobody listens is more likely wrong than passing trouble."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    capture = WalChangeCapture(ReplicationConfig("s", "pub"), f"postgresql://postgres@127.0.0.1:{port}/postgres")
    with pytest.raises(UnavailableError) as caught, capture.live() as stream:
        next(stream)
    assert "nothing listens" in caught.value.message
    assert caught.value.hint


def test_a_question_that_crosses_an_answer_is_not_taken_for_a_shutdown(
    published18: Published, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """E24: a slow client is asked now and then, right after it has reported; it stays connected."""
    stream = published18.streaming(published18.url(wal_sender_timeout=2400))
    pid = published18.walsender()
    hand_over = receiver.Receiver._hand_over
    asked: list[float] = []

    def with_a_question(self: receiver.Receiver, duplex: replication.Duplex, frames: list[memoryview]) -> None:
        if not asked or time.monotonic() - asked[-1] > 1.2:
            asked.append(time.monotonic())
            self._report(duplex)
            frames = [*frames, memoryview(b"k" + self._seen.to_bytes(8, "big") + bytes(8) + b"\1")]
        hand_over(self, duplex, frames)

    monkeypatch.setattr(receiver.Receiver, "_hand_over", with_a_question)
    wait_until(lambda: published18.capture().heartbeat() and len(asked) >= 5, what="five questions")
    assert published18.walsender() == pid
    assert "broke off" not in caplog.text
    published18.insert(1)
    assert ids(take(stream, 1)) == [1]
