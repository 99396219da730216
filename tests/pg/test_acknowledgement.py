"""What the slot may pass: never a change that is not confirmed, never backwards; and what it must pass when idle."""

from __future__ import annotations

import random
import signal
import struct
import time
from unittest.mock import ANY

import pytest

from penstock.app.heartbeat import beating
from penstock.model import Lsn
from penstock.postgres import receiver, replication
from penstock.postgres.settings import resolve
from tests.fixtures.captures import Published, ids, take
from tests.fixtures.waiting import wait_until

# The client reports every third of it, so that a test can wait for a report that was sent after what it did.
SOON = {"wal_sender_timeout": 900}


@pytest.mark.parametrize("limit", [{"max_rows": 10}, {"max_bytes": 100}])
def test_a_limit_cuts_a_transaction_but_never_its_acknowledgement(published: Published, limit: dict[str, int]) -> None:
    """E15: the slot stays before a transaction while one batch of it, here from its middle, is not confirmed."""
    stream = published.watch(published.capture(published.url(**SOON)).batches(**limit))
    wait_until(published.walsender)
    published.insert(1)
    published.insert(*range(100, 195))
    published.insert(2)
    found = [next(stream)]
    while found[-1].tables[-1].rows["id"][-1].as_py() != 2:
        found.append(next(stream))
    assert sum(batch.rows for batch in found) == 97
    lsns = [lsn for batch in found for table in batch.tables for lsn in table.rows["_commit_lsn"].to_pylist()]
    first, large, last = sorted(set(lsns))
    cut = [batch for batch in found if batch.end.lsn == large]
    assert len(cut) > 5, "the transaction was cut"
    for batch in found:
        if batch is not cut[4]:
            batch.confirm()
    published.await_reply()
    assert first <= published.confirmed() < large
    cut[4].confirm()
    wait_until(lambda: published.confirmed() >= last, what="the slot to pass the last transaction")


def test_one_unconfirmed_row_holds_its_transaction_and_all_later_ones(published: Published) -> None:
    """E15, E20: what was not confirmed comes again after a restart, whole transactions, and nothing before it."""
    stream = published.streaming(published.url(**SOON))
    published.insert(1)
    published.insert(2, 3, 4)
    published.insert(5)
    found = take(stream, 5)
    for change in found:
        if change.new != {"id": 3}:
            change.ack.confirm()
    published.await_reply()
    assert found[0].position.lsn <= published.confirmed() < found[1].position.lsn
    stream.close()
    again = take(published.live(), 4)
    assert ids(again) == [2, 3, 4, 5]
    assert [change.position for change in again] == [change.position for change in found[1:]]


def test_acks_in_any_order_move_the_slot_over_whole_prefixes_only(published18: Published, rng: random.Random) -> None:
    """E20: after each round of random acks the slot stands where an oracle says, never lower than before."""
    stream = published18.streaming(published18.url(**SOON))
    sizes = [rng.randint(1, 6) for _ in range(25)]
    for number, size in enumerate(sizes):
        published18.insert(*range(number * 10, number * 10 + size))
    found = take(stream, sum(sizes))
    ends = sorted({change.position.lsn for change in found})
    shuffled = rng.sample(found, len(found))
    before = published18.confirmed()
    for part in range(0, len(shuffled), len(shuffled) // 4):
        for change in shuffled[part : part + len(shuffled) // 4]:
            change.ack.confirm()
            change.ack.confirm()  # twice is as good as once
        published18.await_reply()
        left = {change.position.lsn for change in shuffled[part + len(shuffled) // 4 :]}
        held = min(left, default=Lsn.MAX)
        now = published18.confirmed()
        assert before <= now < held
        assert now >= max((end for end in ends if end < held), default=Lsn.ZERO)
        before = now


def test_a_transaction_confirmed_twice_does_not_hold_the_slot(published18: Published) -> None:
    """E20: whole and then again in part, while an earlier one is open: any number of times means any."""
    stream = published18.streaming(published18.url(**SOON))
    published18.insert(1)
    published18.insert(2, 3)
    first, *second = take(stream, 3)
    for again in (second, second[:1], second[1:]):
        for change in again:
            change.ack.confirm()
        published18.await_reply()
    first.ack.confirm()
    wait_until(lambda: published18.confirmed() >= second[1].position.lsn, what="the slot to pass both")


def test_no_status_that_is_sent_ever_goes_back(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """E20: over a crash of the server that may have set the slot back, every status holds at least the one before."""
    sent: list[tuple[int, int]] = []
    send = replication.Duplex.send

    def recording(duplex: replication.Duplex, data: bytes) -> None:
        if data[:1] == b"r":
            sent.append(struct.unpack_from(">QQ", data, 1))
        send(duplex, data)

    monkeypatch.setattr(replication.Duplex, "send", recording)
    stream = published.streaming(published.url(**SOON))
    published.insert_each(1, 2, 3)
    for change in take(stream, 3):
        change.ack.confirm()
    published.await_reply()
    published.database.server.restart(signal.SIGQUIT)
    published.insert(4)
    (change,) = take(stream, 1)
    assert change.new == {"id": 4}, "confirmed changes do not come again within a run"
    change.ack.confirm()
    wait_until(lambda: published.confirmed() >= change.position.lsn)
    stream.close()
    flushed = [flush for _, flush in sent]
    assert flushed == sorted(flushed)
    assert len(set(flushed)) > 2
    assert all(write >= flush for write, flush in sent)


def test_a_slot_that_a_crash_set_back_delivers_again_and_converges(published: Published) -> None:
    """E20: confirmed changes may come again after the server crashed, in the same order and at the same positions."""
    for number in (1, 11, 21):
        stream = published.live() if number > 1 else published.streaming()
        published.insert_each(number, number + 1, number + 2)
        first = take(stream, 3)
        for change in first:
            change.ack.confirm()
        stream.close()
        confirmed = published.confirmed()
        assert confirmed >= first[-1].position.lsn
        published.database.server.restart(signal.SIGQUIT)
        if published.confirmed() < confirmed:
            break  # else the server noted the running transactions meanwhile, as it does every 15 s, and saved the slot
    else:
        pytest.fail("no crash set the slot back: this proves nothing")
    again = take(published.live(), 3)
    assert [(change.new, change.position) for change in again] == [(change.new, change.position) for change in first]


def test_after_a_clean_close_nothing_confirmed_comes_again(published: Published) -> None:
    """E22: the next stream starts exactly behind the last confirmed commit."""
    for number in range(3):
        stream = published.live() if number else published.streaming()
        published.insert(number)
        (change,) = take(stream, 1)
        assert change.new == {"id": number}
        change.ack.confirm()
        stream.close()
        assert published.confirmed() >= change.position.lsn


def test_a_close_in_the_midst_of_a_backlog_still_reports_what_was_confirmed(published18: Published) -> None:
    """E22: the last report goes out before the connection ends, however much the server still had to send."""
    stream = published18.streaming(buffer_bytes=1)
    published18.insert(1)
    published18.execute("INSERT INTO t SELECT i, repeat(md5(i::text), 30) FROM generate_series(100, 20000) i")
    (change,) = take(stream, 1)
    change.ack.confirm()
    stream.close()
    wait_until(lambda: published18.confirmed() >= change.position.lsn)


@pytest.mark.parametrize("held", [0, 1, 2])
def test_a_start_at_a_commits_end_skips_that_commit_and_no_other(published: Published, held: int) -> None:
    """E22: `start_lsn` is the end of what is held, whatever the slot itself still remembers."""
    stream = published.streaming()
    published.insert_each(1, 2, 3, 4)
    found = take(stream, 4)
    stream.close()
    again = published.live(start_lsn=found[held].position.lsn)
    assert take(again, 3 - held) == [change._replace(ack=ANY) for change in found[held + 1 :]]


def test_a_quiet_table_in_a_busy_database_does_not_hold_the_slot(published: Published) -> None:
    """E23: the slot follows keepalives, past everything that is not published."""
    published.execute("CREATE TABLE busy (i int, filler text)")
    stream = published.streaming()
    published.execute("INSERT INTO busy SELECT i, repeat('x', 500) FROM generate_series(1, 2000) i")
    there = published.wal_end()
    wait_until(lambda: published.confirmed() >= there, what="the slot to follow")
    published.insert(1)
    (change,) = take(stream, 1)
    published.execute("INSERT INTO busy SELECT i, repeat('x', 500) FROM generate_series(1, 2000) i")
    there = published.wal_end()
    wait_until(lambda: stream.durable < change.position.lsn <= stream.received)
    query = "SELECT sent_lsn >= %s::pg_lsn FROM pg_stat_replication WHERE pid = %s"
    wait_until(lambda: published.execute(query, str(there), published.walsender()) == [(True,)])
    assert published.confirmed() < change.position.lsn, "an unconfirmed change is never passed"
    change.ack.confirm()
    wait_until(lambda: published.confirmed() >= there, what="the slot to follow again")


def test_the_slot_may_pass_the_start_of_an_open_transaction_but_delivers_it_whole(published: Published) -> None:
    """E23, E13: idle advances while a transaction is open lose nothing of it, over a restart of the consumer."""
    published.execute("CREATE TABLE busy (i int)")
    stream = published.streaming()
    with published.database.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO t VALUES (1, 'x')")
        published.execute("INSERT INTO busy SELECT generate_series(1, 1000)")
        there = published.wal_end()
        wait_until(lambda: published.confirmed() >= there, what="the slot to follow")
        stream.close()
        again = published.streaming()
        writer.execute("INSERT INTO t VALUES (2, 'x')")
    assert ids(take(again, 2)) == [1, 2]


def test_a_deployment_writes_heartbeats_where_it_asks_for_them(published18: Published) -> None:
    """E23: again and again, and none unless told."""
    execute, settings = published18.database.execute, resolve(published18.database.url)
    execute("SELECT pg_create_logical_replication_slot('beats', 'pgoutput')")
    peek = (
        "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('beats', NULL, NULL, 'proto_version', '1',"
        " 'publication_names', 'pub', 'messages', 'true') WHERE position('heartbeat'::bytea IN data) > 0"
    )
    try:
        with beating(settings, None):
            pass
        assert execute(peek) == [(0,)]
        with beating(settings, 0.05):
            wait_until(lambda: execute(peek)[0][0] >= 3, what="three heartbeats")
        (count,) = execute(peek)
        assert execute(peek) == [count]
    finally:
        execute("SELECT pg_drop_replication_slot('beats')")


def test_a_heartbeat_moves_the_slot_of_a_database_at_rest(published18: Published) -> None:
    """E23: written only when asked for; it is no change to anybody."""
    stream = published18.streaming()
    at = published18.capture().heartbeat()
    wait_until(lambda: published18.confirmed() >= at, what="the slot to pass the heartbeat")
    published18.insert(1)
    assert ids(take(stream, 1)) == [1]


def test_a_consumer_that_blocks_longer_than_the_timeout_keeps_its_connection(published: Published) -> None:
    """E24: the receiving thread reports by itself."""
    stream = published.streaming(published.url(wal_sender_timeout=1000))
    pid = published.walsender()
    published.insert(1)
    assert ids(take(stream, 1)) == [1]
    blocked_until = time.monotonic() + 2.2
    wait_until(lambda: time.monotonic() > blocked_until)
    assert published.walsender() == pid
    published.insert(2)
    assert ids(take(stream, 1)) == [2]


def test_a_full_buffer_and_an_unread_socket_do_not_trip_the_servers_timeout(published: Published) -> None:
    """E24: unsolicited status while the server is stuck in its own send; everything comes afterwards."""
    stream = published.streaming(published.url(wal_sender_timeout=2000), buffer_bytes=1, streaming=False)
    pid = published.walsender()
    published.insert(0)
    rows = 16_000
    published.execute("INSERT INTO t SELECT i, repeat(md5(i::text), 60) FROM generate_series(1, %s) i", rows)
    query = "SELECT wait_event = 'WalSenderWriteData' FROM pg_stat_activity WHERE pid = %s"
    wait_until(lambda: published.execute(query, pid) == [(True,)], what="the server to be stuck in its send")
    stuck_until = time.monotonic() + 4.4
    wait_until(lambda: time.monotonic() > stuck_until)
    assert published.execute(query, pid) == [(True,)], "it was stuck all the time, else this proves nothing"
    assert published.walsender() == pid
    assert ids(take(stream, rows + 1)) == list(range(rows + 1))


def test_a_keepalive_that_asks_is_answered_at_once(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """E24: with nothing sent unasked, the answers alone keep the connection."""
    monkeypatch.setattr(receiver.Receiver, "_report_when_due", lambda *_: None)
    stream = published.streaming(published.url(wal_sender_timeout=2000))
    pid = published.walsender()
    silent_until = time.monotonic() + 4.4
    wait_until(lambda: time.monotonic() > silent_until)
    assert published.walsender() == pid
    published.insert(1)
    assert ids(take(stream, 1)) == [1]


def test_a_walsender_that_sleeps_through_a_commit_is_woken(published: Published) -> None:
    """E24: the server hears from us soon after each progress, unasked; it may have missed what came right after."""
    stream, waits = published.streaming(), list[float]()
    for number in range(0, 400, 2):
        began = time.monotonic()
        published.insert_each(number, number + 1)
        take(stream, 2)
        waits.append(time.monotonic() - began)
    assert max(waits) < 8, "one in some hundred would have waited for seconds"
    waits = []
    for number in range(400, 405):
        began = time.monotonic()
        published.insert(number)
        (change,) = take(stream, 1)
        published.await_reply()
        waits.append(time.monotonic() - began)
    assert sorted(waits)[1] < 0.7, "nothing but the progress gave a reason to write so soon: else it is a second"
    assert published.confirmed() < change.position.lsn
