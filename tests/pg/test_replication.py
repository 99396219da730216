"""The low-level module on real servers: connect, slot, start, receive, report, function by function."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from penstock.errors import DatabaseMissingError, OperatorError, SlotActiveError, SlotMissingError, UnavailableError
from penstock.model import Lsn
from penstock.postgres import pgoutput, replication
from penstock.postgres.replication import Duplex, ReplicationEvent, ReplicationParams
from tests.fixtures.captures import Published, ids, take
from tests.fixtures.waiting import wait_until


@contextmanager
def streaming(published: Published, url: str | None = None, **params: Any) -> Iterator[Duplex]:
    """A stream by the low-level functions alone."""
    client = replication.connect(url or published.database.url)
    replication.ensure_slot(client, published.slot)
    duplex = replication.start_replication(client, ReplicationParams(published.slot, "pub", **params))
    wait_until(published.walsender)
    try:
        yield duplex
    finally:
        duplex.close()


def receive(duplex: Duplex, until: type[Any] = pgoutput.Commit) -> list[ReplicationEvent]:
    """Events up to the first of that kind."""
    found: list[ReplicationEvent] = []
    while not found or not isinstance(found[-1].message, until):
        event = replication.recv(duplex, 10)
        assert event is not None, f"nothing came after {found}"
        found.append(event)
    return found


def kinds(events: list[ReplicationEvent]) -> list[str]:
    return [type(event.message).__name__ for event in events]


def test_connecting_proves_that_the_server_serves(published: Published) -> None:
    """E34, E29: IDENTIFY_SYSTEM is asked; the client knows which server it is on, and no connection string."""
    with replication.connect(published.database.url) as client:
        ((system_id,),) = published.execute("SELECT system_identifier::text FROM pg_control_system()")
        assert client.system.system_id == system_id
        assert client.system.timeline == 1
        assert client.system.database == published.database.name
        assert Lsn.ZERO < client.system.wal_end <= published.wal_end()
        assert set(vars(client)) == {"connection", "system"}
    client.close()
    with pytest.raises(DatabaseMissingError):
        replication.connect(published.database.server.url("nowhere"))


def test_every_event_of_a_transaction_is_received_in_order(published: Published) -> None:
    """E1, E10: boundaries included, with where each stood; keepalives are not seen."""
    with streaming(published) as duplex:
        published.insert(1, 2)
        events = receive(duplex)
        assert kinds(events) == ["Begin", "Relation", "Insert", "Insert", "Commit"]
        begin, commit = events[0].message, events[-1].message
        assert isinstance(begin, pgoutput.Begin)
        assert isinstance(commit, pgoutput.Commit)
        assert begin.final_lsn == commit.commit_lsn < commit.end_lsn
        assert all(event.clock for event in events)
        published.execute("UPDATE t SET v = 'y' WHERE id = 1")
        published.execute("TRUNCATE t")
        later = [kind for kind in kinds(receive(duplex) + receive(duplex)) if kind != "Relation"]
        assert later == ["Begin", "Update", "Commit", "Begin", "Truncate", "Commit"]


def test_receiving_ends_when_the_time_is_over_or_the_stream_stopped(published: Published) -> None:
    """E1: None says so in both cases."""
    with streaming(published) as duplex:
        began = time.monotonic()
        assert replication.recv(duplex, 0.05) is None
        assert time.monotonic() - began < 2
        assert not duplex.ended
        duplex.close()
        assert duplex.ended
        assert replication.recv(duplex, 10) is None


def test_a_status_moves_the_slot_and_never_back(published: Published) -> None:
    """E20: a lower position is sent as the highest so far."""
    with streaming(published) as duplex:
        published.insert(1)
        commit = receive(duplex)[-1].message
        replication.send_status_update(duplex, commit.end_lsn)
        wait_until(lambda: published.confirmed() >= commit.end_lsn, what="the slot to move")
        ((before,),) = published.execute("SELECT clock_timestamp()")
        replication.send_status_update(duplex, Lsn(1), reply=True)
        query = "SELECT reply_time > %s, flush_lsn::text FROM pg_stat_replication WHERE pid = %s"
        pid = published.walsender()
        wait_until(lambda: published.execute(query, before, pid)[0][0], what="the status to arrive")
        assert Lsn.parse(published.execute(query, before, pid)[0][1]) == commit.end_lsn
        assert published.confirmed() >= commit.end_lsn


def test_keepalives_are_answered_while_receiving(published: Published) -> None:
    """E24: nothing else is sent here, and the server does not give up."""
    with streaming(published, published.url(wal_sender_timeout=2000)) as duplex:
        pid = published.walsender()
        assert replication.recv(duplex, 5.2) is None
        assert published.walsender() == pid
        published.insert(1)
        assert kinds(receive(duplex))[-1] == "Commit"


def test_logical_messages_come_where_they_are_asked_for(published: Published) -> None:
    """E1: with their prefix and content."""
    with streaming(published, messages=True) as duplex:
        published.execute("SELECT pg_logical_emit_message(true, 'here', 'I am')")
        message = receive(duplex, pgoutput.LogicalMessage)[-1].message
        assert (message.prefix, bytes(message.content)) == ("here", b"I am")


def test_protocol_1_and_binary_tuples(published: Published) -> None:
    """E1: values of fixed width come in their binary form, and protocol 1 knows no pieces."""
    with streaming(published, protocol=1, streaming=True, binary=True) as duplex:
        assert not duplex.streaming
        published.insert(258)
        insert = receive(duplex, pgoutput.Insert)[-1].message
        assert bytes(insert.new[0]) == (258).to_bytes(8, "big")


def test_a_transaction_in_pieces(published: Published) -> None:
    """E1, E12: the server sends a large one before its commit; each piece is framed, the end is a stream commit."""
    with streaming(published, published.url(logical_decoding_work_mem="64kB"), streaming=True) as duplex:
        published.execute("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 2000) i")
        found = kinds(receive(duplex, pgoutput.StreamCommit))
        assert found.count("StreamStart") == found.count("StreamStop") > 1
        assert found.count("Insert") == 2000
        published.insert(9999)
        assert kinds(receive(duplex)) == ["Begin", "Insert", "Commit"]


def test_a_slot_that_is_missing_or_in_use_is_told_at_the_start(published: Published) -> None:
    """E25, E26: by name and SQLSTATE."""
    params = ReplicationParams(published.slot, "pub")
    with replication.connect(published.database.url) as client, pytest.raises(SlotMissingError) as missing:
        replication.start_replication(client, params)
    assert published.slot in missing.value.message
    with streaming(published), replication.connect(published.database.url) as client:
        with pytest.raises(SlotActiveError) as active:
            replication.start_replication(client, params)
        assert replication.is_slot_active_error(active.value)


def test_a_slot_that_becomes_free_is_taken_by_a_retry(published18: Published) -> None:
    """E25: over real time, with the server's own error."""
    holder = replication.connect(published18.database.url)
    replication.ensure_slot(holder, published18.slot)
    params = ReplicationParams(published18.slot, "pub")
    held = replication.start_replication(holder, params)
    attempts: list[float] = []

    def start() -> Duplex:
        attempts.append(time.monotonic())
        if len(attempts) == 3:
            held.close()
            published18.await_free()
        client = replication.connect(published18.database.url)
        try:
            return replication.start_replication(client, params)
        except BaseException:
            client.close()
            raise

    replication.retry_on_slot_active(5, start).close()
    assert len(attempts) == 3


def test_ensure_advance_and_drop_by_the_client(published: Published) -> None:
    """E30, E28: the same answers over a replication connection."""
    with replication.connect(published.database.url) as client:
        first = replication.ensure_slot(client, published.slot)
        assert replication.ensure_slot(client, published.slot).confirmed_flush_lsn == first.confirmed_flush_lsn
        assert replication.advance_slot(client, published.slot, Lsn.ZERO) == first.confirmed_flush_lsn
        published.insert(1)
        end = published.wal_end()
        assert replication.advance_slot(client, published.slot, Lsn.MAX) >= end
        assert replication.drop_slot(client, published.slot) is True
        assert replication.drop_slot(client, published.slot) is False


def test_an_ended_walsender_is_passing_trouble_and_what_came_before_is_had(published: Published) -> None:
    """E32: a whole transaction and the server's last word in one read: first the one, then the other."""
    with streaming(published) as duplex:
        pid = published.walsender()
        published.insert(1)
        query = "SELECT 1 FROM pg_stat_replication WHERE pid = %s AND sent_lsn >= %s::pg_lsn"
        there = str(published.wal_end())
        wait_until(lambda: published.execute(query, pid, there), what="it to be sent")
        published.execute("SELECT pg_terminate_backend(%s, 5000)", pid)
        assert kinds(receive(duplex))[-1] == "Commit"
        with pytest.raises(UnavailableError):
            replication.recv(duplex, 10)


def test_a_server_shuts_down_while_somebody_only_receives(published: Published) -> None:
    """E32: the server asks whether all has arrived; the answer says so, though nothing was ever reported as durable."""
    with streaming(published) as duplex:
        published.insert(1)
        receive(duplex)
        published.execute("CREATE TABLE other ()")  # what is sent last is not what was received last
        halting = threading.Thread(target=published.database.server.halt)
        halting.start()
        with suppress(UnavailableError):
            while not duplex.ended:
                replication.recv(duplex, 10)
        halting.join(20)
        assert not halting.is_alive()
    published.database.server.start()


def test_an_error_of_the_server_keeps_its_sqlstate(published16: Published) -> None:
    """E32: a publication that vanishes ends the stream on 16; that is told by its SQLSTATE, after what came before."""
    with streaming(published16) as duplex:
        published16.insert(1)
        published16.execute("DROP PUBLICATION pub")
        published16.insert(2)
        wait_until(lambda: published16.walsender() is None, what="the server to end the stream")
        assert kinds(receive(duplex))[-1] == "Commit"
        with pytest.raises(OperatorError) as caught:
            replication.recv(duplex, 10)
        assert caught.value.sqlstate == "42704"


def test_a_process_with_many_files_open_streams_too(published18: Published) -> None:
    """E32: file numbers beyond 1,024, which select() cannot take; a Spark driver has more than that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, 2100)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, hard) if hard != resource.RLIM_INFINITY else hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        stream = published18.streaming()
        published18.insert(1)
        assert ids(take(stream, 1)) == [1]
        stream.close()
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
