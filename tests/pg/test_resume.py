"""A held position against a real server: served exactly, or refused in a clear sentence, and never skipped."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from penstock.demo.server import Server
from penstock.errors import PenstockError, PositionError, SlotActiveError, SlotLostError, SlotMissingError
from penstock.model import Lsn, Origin
from penstock.postgres import replication
from penstock.postgres.capture import WalChangeCapture
from penstock.postgres.receiver import ReplicationConfig
from tests.fixtures.captures import Published, ids, take
from tests.fixtures.proxies import Proxy
from tests.fixtures.waiting import wait_until


def failure(stream: Iterator[Any], kind: type[PenstockError]) -> PenstockError:
    """The error that ends the stream."""
    with pytest.raises(PenstockError) as caught:
        next(stream)
    assert type(caught.value) is kind, repr(caught.value)
    assert caught.value.hint
    return caught.value


def while_away(published: Published, proxy: Proxy, action: Callable[[], Any]) -> None:
    """Break the capture's connection, act while it cannot come back, and let it."""
    proxy.stall()
    published.execute("SELECT pg_terminate_backend(%s, 5000)", published.walsender())
    published.await_free()
    action()
    proxy.flow()
    proxy.cut()


def test_a_slot_dropped_between_two_connections_is_the_end(
    published: Published, proxy: Callable[[Server], Proxy]
) -> None:
    """E26: what was received before is delivered; the slot is not made again."""
    through = proxy(published.database.server)
    stream = published.streaming(through.url(published.database.name))
    published.insert(1)
    assert ids(take(stream, 1)) == [1]
    while_away(published, through, lambda: published.execute("SELECT pg_drop_replication_slot(%s)", published.slot))
    error = failure(stream, SlotMissingError)
    assert published.slot in error.message
    assert "penstock reconcile" in error.hint
    assert published.row() is None


def test_a_position_without_its_slot_is_the_end(published: Published) -> None:
    """E26: a caller that holds a position is never given a new slot."""
    error = failure(published.live(start_lsn=Lsn(16)), SlotMissingError)
    assert "0/10" in error.message
    assert published.row() is None


def test_a_capture_that_holds_nothing_makes_its_slot(published: Published) -> None:
    """E26: the one case in which it may; `lag` is None until then."""
    capture = published.capture()
    assert capture.lag() is None
    published.streaming()
    assert published.row() is not None
    assert capture.lag() is not None


def test_a_position_that_somebody_else_consumed(published: Published) -> None:
    """E29: the slot stands past what is held."""
    stream = published.streaming()
    published.insert_each(1, 2)
    first, second = take(stream, 2)
    first.ack.confirm()
    second.ack.confirm()
    stream.close()
    error = failure(published.live(start_lsn=first.position.lsn), PositionError)
    assert str(first.position.lsn) in error.message
    assert "somebody else consumed it" in error.message


def test_a_slot_consumed_by_somebody_else_between_two_connections(
    published: Published, proxy: Callable[[Server], Proxy]
) -> None:
    """E29: found at the reconnect; the change that is missing is not skipped in silence."""
    through = proxy(published.database.server)
    stream = published.streaming(through.url(published.database.name))
    published.insert(1)
    assert ids(take(stream, 1)) == [1]

    def steal() -> None:
        published.insert(2)
        published.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", published.slot)

    while_away(published, through, steal)
    assert "somebody else consumed it" in failure(stream, PositionError).message


def test_a_position_ahead_of_the_wal(published: Published) -> None:
    """E29: a backup was restored, or it is another server."""
    published.streaming().close()
    ahead = Lsn(published.wal_end() + (1 << 30))
    error = failure(published.live(start_lsn=ahead), PositionError)
    assert "ahead of the server's WAL" in error.message
    assert str(ahead) in error.message


def test_a_position_of_another_system(published: Published) -> None:
    """E29: told by the system identifier, before the slot is made or read."""
    error = failure(published.live(origin=Origin("1234567890")), PositionError)
    assert "1234567890" in error.message
    assert published.row() is None


@pytest.mark.parametrize("timeline", [None, 1])
def test_a_position_of_this_system_is_served(published: Published, timeline: int | None) -> None:
    """E29: with its timeline or without."""
    with replication.connect(published.database.url) as client:
        origin = Origin(client.system.system_id, timeline)
    stream = published.streaming(origin=origin)
    published.insert_each(1, 2)
    first, _ = take(stream, 2)
    stream.close()
    assert ids(take(published.live(origin=origin, start_lsn=first.position.lsn), 1)) == [2]


def test_a_position_of_a_later_timeline_than_the_servers(published18: Published) -> None:
    """E29: the old primary came back after a failover; what was received since is not in its history."""
    with replication.connect(published18.database.url) as client:
        origin = Origin(client.system.system_id, 2)
    error = failure(published18.live(origin=origin), PositionError)
    assert "timeline 2" in error.message
    assert "was never on it" in error.message


@pytest.mark.parametrize("major", [18, 16])
def test_a_slot_lost_in_the_midst_of_the_stream(major: int, start_server: Callable[..., Server]) -> None:
    """E27: a consumer that does not confirm; what it was sent is delivered, then the error with the way out."""
    limits = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    server = start_server(major, limits)
    streaming = "SELECT 1 FROM pg_stat_replication WHERE state IN ('catchup', 'streaming')"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("CREATE TABLE other (id int)")
        connection.execute("CREATE PUBLICATION pub FOR TABLE t")
        with WalChangeCapture(ReplicationConfig("lost", "pub"), server.url()).live() as stream:
            wait_until(lambda: connection.execute(streaming).fetchall())
            connection.execute("INSERT INTO t VALUES (1)")

            def lost() -> bool:
                connection.execute("INSERT INTO other VALUES (1)")
                connection.execute("SELECT pg_switch_wal()")
                connection.execute("CHECKPOINT")
                return connection.execute("SELECT wal_status FROM pg_replication_slots").fetchone() == ("lost",)

            wait_until(lost, what="the slot to be lost")
            assert ids(take(stream, 1)) == [1]
            error = failure(stream, SlotLostError)
            assert "slot lost is lost" in error.message
            assert "penstock reconcile" in error.hint


def test_the_second_on_a_slot_waits_and_takes_over(published: Published) -> None:
    """E33: it gets what the first did not confirm, and never anything while the first is at it."""
    first = published.streaming()
    second = published.live()
    published.insert_each(1, 2, 3)
    changes = take(first, 3)
    changes[0].ack.confirm()
    changes[1].ack.confirm()
    assert second.received == Lsn.ZERO
    first.close()
    assert ids(take(second, 1)) == [3]


def test_the_second_on_a_slot_fails_with_a_clear_word_when_its_patience_ends(
    published: Published, caplog: pytest.LogCaptureFixture
) -> None:
    """E25, E33: bounded, by several attempts whose waits vary."""
    caplog.set_level(logging.INFO, "penstock")
    first = published.streaming()
    began = time.monotonic()
    error = failure(published.live(slot_wait_s=1.5), SlotActiveError)
    assert 1.5 <= time.monotonic() - began < 8
    assert error.sqlstate == "55006"
    assert "another process holds the replication slot" in error.message
    assert 3 <= caplog.text.count("waiting for slot") < 30
    published.insert(1)
    assert ids(take(first, 1)) == [1]


def test_a_patience_of_zero_fails_at_the_first_refusal(published18: Published) -> None:
    """E25: nothing is waited for."""
    published18.streaming()
    failure(published18.live(slot_wait_s=0.0), SlotActiveError)


def test_closing_cuts_the_wait_for_a_slot_short(published: Published, caplog: pytest.LogCaptureFixture) -> None:
    """E25: within a moment, and without an error."""
    caplog.set_level(logging.INFO, "penstock")
    first = published.streaming()
    second = published.live(slot_wait_s=600.0)
    wait_until(lambda: "waiting for slot" in caplog.text)
    closer = threading.Thread(target=second.close)
    closer.start()
    assert list(second) == []
    closer.join(2)
    assert not closer.is_alive()
    published.insert(1)
    assert ids(take(first, 1)) == [1]


def test_two_captures_that_start_at_once_share_one_new_slot(published: Published) -> None:
    """E33, E28: whoever comes second waits; each change is delivered to one of them."""
    streams = [published.live() for _ in range(2)]
    wait_until(published.walsender)
    published.insert(1)
    found = wait_until(lambda: [stream for stream in streams if stream.received])
    assert len(found) == 1
    assert ids(take(found[0], 1)) == [1]
    found[0].close()
    (other,) = [stream for stream in streams if stream is not found[0]]
    assert ids(take(other, 1)) == [1], "it was not confirmed"
