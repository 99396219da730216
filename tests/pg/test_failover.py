"""Another server takes over: the capture follows where the history is whole, and stops where it is not."""

from __future__ import annotations

import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from penstock.contracts import Change
from penstock.demo.server import Server
from penstock.errors import PositionError, SlotMissingError
from penstock.model import Lsn, Origin, ReplicationConfig
from penstock.postgres import replication
from penstock.postgres.capture import Stream, WalChangeCapture
from penstock.postgres.connection import resolve
from penstock.postgres.receiver import Receiver
from penstock.postgres.replay import Replay
from tests.fixtures.captures import ids, take
from tests.fixtures.standbys import Twin, of_either, promote
from tests.fixtures.waiting import wait_until

STREAMING = (
    "SELECT 1 FROM pg_stat_replication WHERE application_name = 'penstock' AND state IN ('catchup', 'streaming')"
)


def run(server: Server, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.url(), autocommit=True, application_name="penstock-tests") as connection:
        cursor = connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture(params=[18, 16], ids=["pg18", "pg16"])
def primary(request: pytest.FixtureRequest, start_server: Callable[..., Server]) -> Server:
    """A server of the test's own, with a published table."""
    server = start_server(request.param)
    run(server, "CREATE TABLE t (id bigint PRIMARY KEY)")
    run(server, "CREATE PUBLICATION pub FOR TABLE t")
    return server


@pytest.fixture
def stream_from() -> Iterator[Callable[..., Stream[Change]]]:
    """`stream_from(servers, **config)`: a stream from whichever takes writes, closed when the test ends."""
    opened: list[Stream[Change]] = []

    def stream(*servers: Server, **settings: Any) -> Stream[Change]:
        config = ReplicationConfig(**{"slot": "s", "publication": "pub", **settings})
        opened.append(WalChangeCapture(config, of_either(*servers)).live())
        return opened[-1]

    yield stream
    for one in opened:
        one.close()


def test_a_newer_timeline_that_holds_everything_is_followed(
    primary: Server, copy_of: Twin, stream_from: Callable[..., Stream[Change]], caplog: pytest.LogCaptureFixture
) -> None:
    """E29, E32: at the same address; while the standby there is not promoted, that counts as passing."""
    stream = stream_from(primary)
    wait_until(lambda: run(primary, STREAMING), what="the stream to start")
    run(primary, "INSERT INTO t VALUES (1)")
    assert ids(take(stream, 1)) == [1]
    primary.halt()
    other = copy_of(primary, primary.port)
    other.start()
    wait_until(lambda: "is not read-write" in caplog.text, what="an attempt in vain")
    promote(other)
    run(other, "INSERT INTO t VALUES (2)")
    assert ids(take(stream, 1)) == [2]
    with replication.connect(other.url()) as client:
        assert client.system.timeline == 2


@pytest.mark.parametrize("primary", [18], indirect=True)
def test_a_position_of_the_timeline_before_is_served(
    primary: Server, copy_of: Twin, stream_from: Callable[..., Stream[Change]]
) -> None:
    """E29: by a new capture that holds it, as long as nobody else has consumed the slot."""
    with replication.connect(primary.url()) as client:
        replication.ensure_slot(client, "s")
        origin = Origin(client.system.system_id, client.system.timeline)
    run(primary, "INSERT INTO t VALUES (1)")
    held = take(stream_from(primary), 1)[0].position.lsn
    primary.halt()
    other = copy_of(primary)
    other.start()
    promote(other)
    run(other, "INSERT INTO t VALUES (2)")
    stream = stream_from(other, start_lsn=held, origin=origin)
    (change,) = take(stream, 1)
    assert change.new == {"id": 2}
    change.ack.confirm()
    stream.close()
    with pytest.raises(PositionError, match="somebody else consumed it"):
        next(stream_from(other, start_lsn=held, origin=origin))


def test_a_newer_timeline_that_lacks_what_was_received_is_refused(
    primary: Server, copy_of: Twin, stream_from: Callable[..., Stream[Change]]
) -> None:
    """E29: the new primary has never seen a change that was delivered; to go on would be to skip its own."""
    run(primary, "SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    primary.halt()
    other = copy_of(primary)
    primary.start()
    stream = stream_from(primary, other)
    run(primary, "INSERT INTO t VALUES (1)")
    assert ids(take(stream, 1)) == [1]
    primary.halt(signal.SIGQUIT)
    other.start()
    promote(other)
    run(other, "INSERT INTO t VALUES (2)")
    with pytest.raises(PositionError) as caught:
        next(stream)
    assert "is on timeline 1; this server is on 2 and left it at" in caught.value.message
    assert "penstock reconcile" in caught.value.hint


def test_what_the_server_before_had_written_further_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """E29: a keepalive told of WAL that the new primary never had; its own changes up to there are still to come.

    A stand-in for the two servers: the moment, a standby that lags behind while nothing of ours is written, is rare.
    """
    for name in "slot.require_primary", "replication.timeline_switch", "resume.check_origin", "resume.check_wal":
        monkeypatch.setattr(f"penstock.postgres.receiver.{name}", lambda *_: None)
    held, far = Lsn(0x1000), Lsn(0x2000)
    known = {"_origin": Origin("1", 1), "_reached": far, "_seen": far, "_changed": threading.Condition()}
    receiver: Any = SimpleNamespace(_config=ReplicationConfig("s", "p"), promised=Lsn.ZERO, **known)
    for timeline, reached in (1, far), (2, held):
        system = SimpleNamespace(system_id="1", timeline=timeline, wal_end=far)
        Receiver._check_server(receiver, SimpleNamespace(connection=None, system=system), held)  # type: ignore[arg-type]
        assert (receiver._reached, receiver._seen) == (reached, reached)


def test_a_newer_timeline_that_lacks_what_was_planned_is_refused(primary: Server, copy_of: Twin) -> None:
    """E29: nothing of a planned batch is acknowledged, it may be an idle step; going on would skip the new server's
    changes up to its end. By the reader that goes on, and by one that is started again."""
    run(primary, "SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    primary.halt()
    other = copy_of(primary)
    primary.start()
    settings, config = resolve(of_either(primary, other)), ReplicationConfig("s", "pub")
    with closing(Replay(settings, config)) as replay:
        start = wait_until(lambda: found if (found := replay.opening(0.1)).lsn else None, what="the slot")
        run(primary, "CREATE TABLE elsewhere (id int)")
        ((end,),) = run(primary, "SELECT pg_current_wal_flush_lsn()::text")
        wait_until(lambda: replay.reached >= Lsn.parse(end), what="the server to tell how far it is")
        planned = replay.promise(replay.resting(start))
        assert planned.lsn > start.lsn
        primary.halt(signal.SIGQUIT)
        other.start()
        promote(other)
        run(other, "INSERT INTO t VALUES (2)")
        config = dataclasses.replace(config, start_lsn=start.lsn, origin=replay.origin)
        with closing(Replay(settings, config, floor=start.lsn, promised=planned.lsn)) as again:
            for one in replay, again:
                with pytest.raises(PositionError, match="is on timeline 1; this server is on 2 and left it at"):
                    wait_until(lambda one=one: one.latest(start, None, None, 0.1) != start, what="the stop")


@pytest.mark.parametrize("primary", [16], indirect=True)
def test_a_failover_that_did_not_carry_the_slot_over_is_the_end(
    primary: Server, copy_of: Twin, stream_from: Callable[..., Stream[Change]]
) -> None:
    """E26, E32: as it is before 17, or with a slot that is no failover slot."""
    stream = stream_from(primary)
    wait_until(lambda: run(primary, STREAMING), what="the stream to start")
    run(primary, "INSERT INTO t VALUES (1)")
    change = take(stream, 1)[0]
    stream.close()
    primary.halt()
    other = copy_of(primary)
    other.start()
    run(other, "SELECT pg_drop_replication_slot('s')")
    promote(other)
    with pytest.raises(SlotMissingError) as caught:
        next(stream_from(primary, other, start_lsn=change.position.lsn))
    assert "failover slots need Postgres 17" in caught.value.hint
    assert run(other, "SELECT count(*) FROM pg_replication_slots") == [(0,)]


def test_a_promoted_standby_takes_over_with_the_failover_slot(
    start_server: Callable[..., Server], standby_of: Twin, stream_from: Callable[..., Stream[Change]]
) -> None:
    """E32: the primary crashes; the running capture goes on by itself, and every row is delivered."""
    primary = start_server(18)
    run(primary, "CREATE TABLE t (id bigint PRIMARY KEY)")
    run(primary, "CREATE PUBLICATION pub FOR TABLE t")
    standby = standby_of(primary)
    # A logical walsender then sends nothing that the standby has not got.
    run(primary, "ALTER SYSTEM SET synchronized_standby_slots = 'standby'")
    primary.reload()
    stream = stream_from(primary, standby, failover=True)
    wait_until(lambda: run(primary, STREAMING), what="the stream to start")
    run(primary, "INSERT INTO t SELECT generate_series(1, 100)")
    found = take(stream, 100)
    for change in found:
        change.ack.confirm()
    _await_slot(primary, standby)
    run(primary, "INSERT INTO t SELECT generate_series(101, 200)")
    found += take(stream, 100)
    primary.halt(signal.SIGQUIT)
    promote(standby)
    run(standby, "INSERT INTO t SELECT generate_series(201, 300)")
    found += take(stream, 100)
    assert ids(found) == list(range(1, 301))
    for change in found[100:]:
        change.ack.confirm()
    at = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = 's'"
    wait_until(lambda: run(standby, at, str(found[-1].position.lsn)) == [(True,)], what="the slot to move")


def _await_slot(primary: Server, standby: Server) -> None:
    """Wait until the standby has the slot: its own WAL must not begin behind what the slot needs."""
    ready = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = 's'"

    def carried_over() -> bool:
        run(primary, "SELECT pg_log_standby_snapshot()")  # lets the slot's restart_lsn move
        return run(standby, ready) == [(True,)]

    wait_until(carried_over, 30, what="the slot to be carried over")
