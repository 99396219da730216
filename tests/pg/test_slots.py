"""Slots on real servers: made, refused, raced for, moved, dropped, waited for; and servers that can have none."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from penstock.demo.server import Server
from penstock.errors import (
    CapacityError,
    ConfigError,
    OperatorError,
    PenstockError,
    PositionError,
    PrivilegeError,
    RecoveryError,
    SlotActiveError,
    SlotExistsError,
    SlotLostError,
    SlotMismatchError,
    SlotMissingError,
    WalLevelError,
)
from penstock.model import Lsn
from penstock.postgres import receiver, replication, slot
from penstock.postgres.capture import WalChangeCapture
from penstock.postgres.connection import open_sql, resolve
from tests.fixtures.captures import Published, ids, take
from tests.fixtures.tls import Certificates, TlsProxy
from tests.fixtures.waiting import wait_until


@pytest.fixture
def sql(published: Published) -> Iterator[slot.Connection]:
    """A connection for SQL, as Penstock opens it."""
    with open_sql(resolve(published.database.url)) as connection:
        yield connection


def failure(action: Callable[[], Any], kind: type[PenstockError]) -> PenstockError:
    """The error of `action`, which must be of exactly that kind and say what to do."""
    with pytest.raises(PenstockError) as caught:
        action()
    assert type(caught.value) is kind, repr(caught.value)
    assert caught.value.hint
    return caught.value


def test_a_slot_is_made_inspected_and_dropped(published: Published, sql: slot.Connection) -> None:
    """E30: dropping what is not there is success."""
    assert slot.inspect(sql, published.slot) is None
    assert slot.lag(sql, published.slot) is None
    at = slot.create(sql, published.slot)
    info = slot.inspect(sql, published.slot)
    assert info is not None
    assert (info.plugin, info.kind, info.database) == ("pgoutput", "logical", published.database.name)
    assert (info.temporary, info.active, info.lost, info.failover) == (False, False, False, False)
    assert info.confirmed_flush_lsn == at == published.confirmed()
    assert info.wal_status == "reserved"
    assert slot.drop(sql, published.slot) is True
    assert slot.drop(sql, published.slot) is False
    assert published.row() is None


def test_a_slot_of_that_name_is_not_made_twice(published: Published, sql: slot.Connection) -> None:
    """E28: 42710 has a name of its own."""
    slot.create(sql, published.slot)
    error = failure(lambda: slot.create(sql, published.slot), SlotExistsError)
    assert error.sqlstate == "42710"


def test_advancing_goes_forward_only_and_tells_where_it_got(published: Published, sql: slot.Connection) -> None:
    """E30: zero is no move, equal is fine, past is explained, the future ends at the WAL's end."""
    at = slot.create(sql, published.slot)
    published.insert(1)
    assert slot.advance(sql, published.slot, Lsn.ZERO) == at
    assert slot.advance(sql, published.slot, at) == at
    assert published.confirmed() == at
    reached = slot.advance(sql, published.slot, Lsn(published.wal_end() + (1 << 40)))
    assert at < reached <= published.wal_end()
    assert published.confirmed() == reached
    error = failure(lambda: slot.advance(sql, published.slot, at), PositionError)
    assert error.sqlstate == "55000"
    assert str(reached) in error.message
    assert str(at) in error.message


@pytest.mark.parametrize("to", [Lsn.ZERO, Lsn(1), Lsn.MAX])
def test_a_slot_that_is_not_there_cannot_be_advanced(to: Lsn, published18: Published) -> None:
    """E30: absent is an error here, unlike for a drop."""
    with open_sql(resolve(published18.database.url)) as connection:
        error = failure(lambda: slot.advance(connection, published18.slot, to), SlotMissingError)
    assert error.sqlstate == "42704"


def test_a_slot_in_use_is_neither_advanced_nor_dropped(published: Published, sql: slot.Connection) -> None:
    """E30: both are 55006, and the stream goes on."""
    stream = published.streaming()
    published.insert(1)
    for action in (
        lambda: slot.advance(sql, published.slot, published.wal_end()),
        lambda: slot.drop(sql, published.slot),
    ):
        error = failure(action, SlotActiveError)
        assert replication.is_slot_active_error(error)
    assert ids(take(stream, 1)) == [1]


def test_a_physical_slot_is_refused(published: Published) -> None:
    """E28: by every way that would use it."""
    published.execute("SELECT pg_create_physical_replication_slot(%s)", published.slot)
    error = failure(lambda: next(published.live()), SlotMismatchError)
    assert "a physical slot" in error.message
    with replication.connect(published.database.url) as client:
        failure(lambda: replication.ensure_slot(client, published.slot), SlotMismatchError)


def test_a_slot_of_another_plugin_is_refused(published18: Published) -> None:
    """E28: its name is said. (The other server of the tests has no second plugin.)"""
    published18.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", published18.slot)
    error = failure(lambda: next(published18.live()), SlotMismatchError)
    assert "test_decoding" in error.message


@pytest.mark.parametrize("held", [Lsn.ZERO, Lsn(16)])
def test_a_slot_of_another_database_is_refused(published: Published, held: Lsn) -> None:
    """E28: before any word about its position, which is another database's business."""
    with open_sql(resolve(published.database.server.url())) as connection:
        slot.create(connection, published.slot)
    error = failure(lambda: next(published.live(start_lsn=held)), SlotMismatchError)
    assert "database postgres" in error.message


def test_two_that_make_one_slot_at_once_both_have_it(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """E28: the one that comes second is told 42710, which counts as success."""
    both, inspect = threading.Barrier(2), slot.inspect
    looked: set[int] = set()

    def late(connection: slot.Connection, name: str) -> slot.SlotInfo | None:
        found = inspect(connection, name)
        if threading.get_ident() not in looked:
            looked.add(threading.get_ident())
            both.wait(10)  # until both have seen that there is none
        return found

    monkeypatch.setattr(slot, "inspect", late)
    made: list[slot.SlotInfo] = []

    def ensure() -> None:
        with replication.connect(published.database.url) as client:
            made.append(replication.ensure_slot(client, published.slot))

    threads = [threading.Thread(target=ensure) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [info.name for info in made] == [published.slot] * 2
    log = published.database.server.log.read_text(errors="replace")
    assert f'replication slot "{published.slot}" already exists' in log, "the race was had"


def test_a_slot_that_somebody_is_just_making_is_looked_at_again(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E28: the server shows its name a moment before its plugin is noted; played, since it cannot be held there."""
    with replication.connect(published.database.url) as client:
        made = replication.ensure_slot(client, published.slot)
        told = [replace(made, plugin="", confirmed_flush_lsn=None), replace(made, plugin=""), made]
        monkeypatch.setattr(slot, "show", lambda connection: [told.pop(0)])
        assert replication.ensure_slot(client, published.slot) == made
    assert not told


def test_a_temporary_slot_lives_as_long_as_its_connection(published: Published) -> None:
    """E31: it is made on the connection that streams, and leaves with it."""
    with replication.connect(published.database.url) as client:
        info = replication.ensure_slot(client, published.slot, temporary=True)
        assert info.temporary
        assert info.active_pid == client.connection.info.backend_pid
        duplex = replication.start_replication(client, replication.ReplicationParams(published.slot, "pub"))
        published.insert(1)
        assert type(replication.recv(duplex, 10).message).__name__ == "Begin"
        duplex.close()
    wait_until(lambda: published.row() is None, what="the slot to vanish")


def test_a_capture_on_a_temporary_slot(published: Published) -> None:
    """E31: it streams; once its connection is lost there is no slot to resume from, and it says so (E26)."""
    stream = published.streaming(temporary_slot=True)
    row = published.row()
    assert row is not None
    assert row["temporary"] is True
    published.insert(1)
    assert ids(take(stream, 1)) == [1]
    published.execute("SELECT pg_terminate_backend(%s)", published.walsender())
    error = failure(lambda: next(stream), SlotMissingError)
    assert published.slot in error.message
    wait_until(lambda: published.row() is None, what="the slot to vanish")


def test_a_temporary_slot_is_never_somebody_elses(published18: Published) -> None:
    """E31: a lasting slot of that name is left alone."""
    with open_sql(resolve(published18.database.url)) as connection:
        at = slot.create(connection, published18.slot)
    failure(lambda: next(published18.live(temporary_slot=True)), SlotExistsError)
    assert published18.confirmed() == at


def test_a_failover_slot(published: Published, sql: slot.Connection) -> None:
    """E32: from 17 on the slot may be carried to a standby; before, that is refused in one sentence."""
    if sql.info.server_version >= 170000:
        stream = published.streaming(failover=True)
        info = slot.inspect(sql, published.slot)
        assert info is not None
        assert info.failover
        stream.close()
    else:
        error = failure(lambda: slot.create(sql, published.slot, failover=True), ConfigError)
        assert "failover slots need Postgres 17" in error.message
        failure(lambda: next(published.live(failover=True)), ConfigError)
        assert published.row() is None


def test_no_replication_role(published: Published) -> None:
    """E34: the error holds the statement that grants it."""
    url = published.database.role("plain")
    error = failure(lambda: next(published.live(url)), PrivilegeError)
    assert "may not open replication connections" in error.message
    assert 'ALTER ROLE "plain" REPLICATION' in error.hint


@pytest.mark.parametrize("major", [18, 16])
def test_a_server_that_cannot_have_a_slot_is_named_with_the_setting(
    major: int, start_server: Callable[..., Server]
) -> None:
    """E34: wal_level replica, no free slot, no free walsender: three errors that name three settings."""
    limits = {"max_replication_slots": "1", "max_wal_senders": "1"}
    server = start_server(major, {"wal_level": "replica", **limits})
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION pub FOR TABLE t")
    capture = WalChangeCapture(receiver.ReplicationConfig("one", "pub"), server.url())
    error = failure(lambda: next(capture.live()), WalLevelError)
    assert "wal_level = replica" in error.message
    assert "ALTER SYSTEM SET wal_level = 'logical'" in error.hint
    assert error.sqlstate == "55000"
    server.configure({"wal_level": "logical"})
    server.restart()
    with replication.connect(server.url()) as client:
        error = failure(lambda: next(capture.live()), CapacityError)
        assert "no walsender free" in error.message
        assert "max_wal_senders" in error.hint
        replication.ensure_slot(client, "another")
    error = wait_until(lambda: _beyond_senders(capture))
    assert type(error) is CapacityError
    assert "no replication slot is free" in error.message
    assert "max_replication_slots" in error.hint
    assert error.sqlstate == "53400"


def _beyond_senders(capture: WalChangeCapture) -> PenstockError | None:
    """The error of the capture, once the walsender of the client before it has ended."""
    with pytest.raises(PenstockError) as caught:
        next(capture.live())
    return None if caught.value.sqlstate == "53300" else caught.value


@pytest.mark.parametrize("major", [18, 16])
def test_a_standby_in_recovery_is_named(major: int, start_server: Callable[..., Server]) -> None:
    """E35: for a capture and for a new slot, at once; from 16 on the server itself would wait for its primary."""
    server = start_server(major)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION pub FOR TABLE t")
        connection.execute("SELECT pg_create_logical_replication_slot('there', 'pgoutput')")
    server.halt()
    (server.data / "standby.signal").touch()
    server.start()
    for name in ("there", "new"):
        stream = WalChangeCapture(receiver.ReplicationConfig(name, "pub"), server.url()).live()
        error = failure(lambda stream=stream: next(stream), RecoveryError)  # type: ignore[misc]
        assert "standby in recovery" in error.message
        assert "target_session_attrs=read-write" in error.hint
    with open_sql(resolve(server.url())) as connection:
        failure(lambda: slot.create(connection, "new"), RecoveryError)
        assert [info.name for info in slot.show(connection)] == ["there"]


@pytest.fixture
def open_transaction(published: Published) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that has written, and goes on."""
    connection = published.database.connect(autocommit=False)
    connection.execute("INSERT INTO t VALUES (1, 'x')")
    yield connection
    connection.rollback()


def test_who_keeps_a_new_slot_waiting_is_named(
    published: Published,
    open_transaction: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """E36: by process id, in the log; and when it ends the stream begins."""
    monkeypatch.setattr(slot, "_ASK_BLOCKERS_AFTER_S", 0.1)
    caplog.set_level(logging.WARNING)
    stream = published.live()
    pid = open_transaction.info.backend_pid
    wait_until(lambda: f"pid {pid} " in caplog.text, what="the warning")
    assert "pg_terminate_backend(pid)" in caplog.text
    open_transaction.commit()
    wait_until(published.walsender)
    published.insert(2)
    assert ids(take(stream, 1)) == [2]


def test_a_warning_that_cannot_be_had_does_not_end_the_waiting(
    published18: Published, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """E36: where the question itself fails, the slot is waited for all the same."""

    def refuse(_: slot.Connection) -> list[slot.Waiting]:
        raise OperatorError("the server has no connection free")

    monkeypatch.setattr(slot, "_ASK_BLOCKERS_AFTER_S", 0.1)
    monkeypatch.setattr(slot, "waiting_for", refuse)
    with published18.database.connect(autocommit=False) as blocker:
        blocker.execute("INSERT INTO t VALUES (1, 'x')")
        stream = published18.live()
        wait_until(lambda: "no connection free" in caplog.text)
    wait_until(published18.walsender)
    published18.insert(2)
    assert ids(take(stream, 1)) == [2]


def test_a_close_while_a_slot_is_being_made_cancels_it(
    published: Published, open_transaction: psycopg.Connection[Any]
) -> None:
    """E36: promptly, and no slot is left behind."""
    stream = published.live()
    wait_until(published.row, what="the slot to be under way")
    began = time.monotonic()
    stream.close()
    assert time.monotonic() - began < 3
    assert list(stream) == []
    wait_until(lambda: published.row() is None, what="the slot to vanish")
    open_transaction.rollback()
    assert published.row() is None


def test_the_cancel_goes_by_tls_where_the_stream_does(
    published18: Published, tls_proxy: Callable[..., TlsProxy], certificates: Certificates
) -> None:
    """E111, E36: a request in the clear would hold the key to the session, and some servers would not take it."""
    proxy = tls_proxy(published18.database.server, mode="insists")
    url = proxy.url(published18.database.name, sslmode="verify-full", sslrootcert=certificates.root)
    with published18.database.connect(autocommit=False) as blocker:
        blocker.execute("INSERT INTO t VALUES (1, 'x')")
        stream = published18.live(url)
        wait_until(published18.row, what="the slot to be under way")
        stream.close()
        wait_until(lambda: published18.row() is None, what="the slot to vanish")


def test_a_server_that_dies_while_a_slot_is_made_is_passing_trouble(
    published: Published, open_transaction: psycopg.Connection[Any]
) -> None:
    """E36, E32: not a bug of ours; at the first connect it is told, since nothing says that the server was right."""
    stream = published.live()
    pid = wait_until(published.row, what="the slot to be under way")["active_pid"]
    published.execute("SELECT pg_terminate_backend(%s)", pid)
    error = failure(lambda: next(stream), receiver.UnavailableError)
    assert "creating slot" in error.message
    assert published.row() is None


def test_a_slot_is_served_while_it_is_about_to_be_lost_and_never_after(
    start_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    """E27: `unreserved` is said, and what it holds is delivered; `lost` is an error that names the way out."""
    server = start_server(16, {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB"})
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION pub FOR TABLE t")
        connection.execute("SELECT pg_create_logical_replication_slot('late', 'pgoutput')")
        for number in range(4):
            connection.execute("INSERT INTO t VALUES (%s)", [number])
            connection.execute("SELECT pg_switch_wal()")
        status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'late'"
        assert connection.execute(status).fetchone() == ("unreserved",)
        with WalChangeCapture(receiver.ReplicationConfig("late", "pub"), server.url()).live() as stream:
            assert ids(take(stream, 4)) == [0, 1, 2, 3]
        assert "slot late is about to be lost" in caplog.text
        with open_sql(resolve(server.url())) as sql:
            at = slot.create(sql, "lost")
            _burn_wal(connection, sql, "lost")
            info = slot.inspect(sql, "lost")
            assert info is not None
            assert info.wal_status == "lost"
            assert info.lost
            error = failure(lambda: slot.advance(sql, "lost", Lsn(at + 1)), SlotLostError)
            assert "penstock reconcile" in error.hint
            stream = WalChangeCapture(receiver.ReplicationConfig("lost", "pub"), server.url()).live()
            error = failure(lambda: next(stream), SlotLostError)
            assert "penstock reconcile" in error.hint
            assert slot.drop(sql, "lost")


def _burn_wal(connection: psycopg.Connection[Any], sql: slot.Connection, name: str) -> None:
    """Write WAL until the server gives the slot up."""

    def lost() -> bool:
        connection.execute("SELECT pg_switch_wal()")
        connection.execute("CREATE TABLE IF NOT EXISTS burnt (i int)")
        connection.execute("INSERT INTO burnt SELECT 1")
        connection.execute("CHECKPOINT")
        info = slot.inspect(sql, name)
        return info is not None and info.lost

    wait_until(lost, what="the slot to be lost")


def test_what_is_running_is_found_whatever_has_ended(published: Published, sql: slot.Connection) -> None:
    """E71: a snapshot does not list the newest of them, with a number above that of the last one that ended."""
    query = "SELECT (pg_current_xact_id()::text::bigint & 4294967295)::bigint"
    connect = published.database.connect
    with connect(autocommit=False) as first, connect(autocommit=True) as ended:
        ((one,),) = first.execute(query).fetchall()
        assert one in slot.running(sql)
        ((gone,),) = ended.execute(query).fetchall()
        with connect(autocommit=False) as second:
            ((two,),) = second.execute(query).fetchall()
            found = slot.running(sql)
            assert {one, two} <= set(found)
            assert gone not in found


def test_lag_is_none_without_a_slot_grows_and_falls(published18: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """E23: bytes between what is confirmed and the newest, over a connection of its own."""
    monkeypatch.setattr("penstock.postgres.capture._LAG_AGE_S", 0.0)
    capture = published18.capture()
    assert capture.lag() is None
    stream = published18.streaming()
    published18.insert(1, v="x" * 100_000)
    (change,) = take(stream, 1)
    lag = capture.lag()
    assert lag is not None
    assert lag > 1000
    change.ack.confirm()
    wait_until(lambda: (capture.lag() or 0) == 0, what="the lag to fall")
