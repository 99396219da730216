"""The life of a stream: how it is used, closed, abandoned; what it gives up and in which order."""

from __future__ import annotations

import copy
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.demo.server import Server
from penstock.errors import BugError, DiskError, OperatorError, UnavailableError
from penstock.model import Lsn, QualifiedTable, ReplicationConfig
from penstock.postgres import replication
from penstock.postgres.capture import WalChangeCapture
from penstock.postgres.receiver import Receiver
from tests.fixtures.captures import Published, ids, take
from tests.fixtures.proxies import Proxy
from tests.fixtures.tls import Certificates, TlsProxy
from tests.fixtures.waiting import wait_until


def receiving() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-receive")]


def test_a_stream_in_a_with_statement(published: Published) -> None:
    """E22: it gives the connection back at the end, and the slot stands where it was confirmed."""
    published.streaming().close()
    with published.capture().live() as stream:
        published.insert(1)
        (change,) = take(stream, 1)
        change.ack.confirm()
    assert receiving() == []
    assert published.confirmed() >= change.position.lsn
    published.await_free()


def test_a_loop_over_a_stream_that_nobody_holds(published18: Published) -> None:
    """E22: the loop itself keeps it open, and leaving the loop closes it."""
    published18.streaming().close()
    published18.insert_each(1, 2)
    found = []
    for change in published18.capture().live():
        found.append(change.new)
        change.ack.confirm()
        if len(found) == 2:
            break
    assert found == [{"id": 1}, {"id": 2}]
    wait_until(lambda: receiving() == [], what="the thread to end")


def test_closing_twice_and_after_the_end(published18: Published) -> None:
    """E22: any number of times; afterwards the iteration is over, without an error."""
    stream = published18.streaming()
    for _ in range(3):
        stream.close()
        assert next(stream, None) is None
    assert list(stream) == []


def test_closing_from_another_thread_ends_a_wait(published: Published) -> None:
    """E22: promptly, while the consumer waits for a change that does not come."""
    stream = published.streaming()
    waiting, ended = threading.Event(), threading.Event()

    def consume() -> None:
        waiting.set()
        assert list(stream) == []
        ended.set()

    consumer = threading.Thread(target=consume)
    consumer.start()
    waiting.wait(10)
    began = time.monotonic()
    stream.close()
    assert ended.wait(2)
    assert time.monotonic() - began < 2
    consumer.join()


def test_closing_while_the_server_is_away(published18: Published) -> None:
    """E32: the waits between attempts are cut short."""
    stream = published18.streaming()
    published18.database.server.halt()
    began = time.monotonic()
    stream.close()
    assert time.monotonic() - began < 3
    assert list(stream) == []


def test_closing_does_not_wait_for_a_server_that_does_not_answer(
    published18: Published, proxy: Callable[[Server], Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """E32: an attempt to connect that is under way ends by its own limit, later."""
    monkeypatch.setattr("penstock.postgres.receiver._CLOSE_S", 0.2)
    through = proxy(published18.database.server)
    stream = published18.streaming(through.url(published18.database.name) + "&connect_timeout=3")
    before = through.accepted
    through.stall()
    through.cut()
    wait_until(lambda: through.accepted > before, what="an attempt to connect")
    began = time.monotonic()
    stream.close()
    assert time.monotonic() - began < 2
    assert list(stream) == []
    through.cut()
    wait_until(lambda: receiving() == [], what="the thread to end")


def test_an_abandoned_stream_is_cleaned_up(published: Published) -> None:
    """E33: by the garbage collector, in a cycle too; the slot is free for the next."""
    stream = published.streaming()
    published._streams.clear()
    knot = [stream]
    knot.append(knot)  # type: ignore[arg-type]  # only the collector can undo it
    del stream, knot
    gc.collect()
    wait_until(lambda: receiving() == [], what="the thread to end")
    published.await_free()


def test_a_receiver_that_is_closed_in_its_own_thread(
    published18: Published, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """E33: the garbage collector may run anywhere, and must find nothing to wait for."""
    stream = published18.streaming()
    closed: list[str] = []
    report = Receiver._report

    def closing(receiver: Receiver, duplex: replication.Duplex) -> None:
        report(receiver, duplex)
        if not closed:
            closed.append(threading.current_thread().name)
            receiver.close()

    monkeypatch.setattr(Receiver, "_report", closing)
    wait_until(lambda: closed, what="a report")
    assert closed[0].startswith("penstock-receive")
    assert list(stream) == []
    wait_until(lambda: receiving() == [], what="the thread to end")
    assert caplog.text == ""


def test_a_capture_is_cheap_to_copy_and_shows_no_secret(published18: Published) -> None:
    """E110: copies hold no connection of their own until they stream."""
    url = published18.database.url.replace("postgres@", "postgres:hunter2@")
    capture = WalChangeCapture(published18.config(), url)
    twin = copy.copy(capture).with_publication_management({QualifiedTable("public", "t")}, manage=False)
    assert receiving() == []
    assert "hunter2" not in repr(twin) + repr(vars(twin))
    with twin.live() as stream:
        wait_until(published18.walsender)
        published18.insert(1)
        assert ids(take(stream, 1)) == [1]


def test_an_error_of_the_server_comes_after_everything_before_it(published16: Published) -> None:
    """E32: a publication that vanishes in the midst (on 16 the server then gives up); what preceded it is delivered."""
    stream = published16.streaming()
    published16.insert_each(1, 2)
    published16.execute("DROP PUBLICATION pub")
    published16.insert(3)
    wait_until(lambda: published16.walsender() is None, what="the server to end the stream")
    assert ids(take(stream, 2)) == [1, 2]
    with pytest.raises(OperatorError) as caught:
        next(stream)
    assert '"pub" does not exist' in caught.value.message


def test_a_bug_in_the_thread_comes_after_everything_before_it(
    published18: Published, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """E20: and the slot stays where it was confirmed."""
    stream = published18.streaming()
    published18.insert(1)
    wait_until(lambda: stream.received > Lsn.ZERO)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Receiver, "_take_note", fail)
    published18.insert(2)
    wait_until(lambda: "the receiving thread failed" in caplog.text)
    assert ids(take(stream, 1)) == [1]
    with pytest.raises(BugError) as caught:
        next(stream)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_what_was_received_is_not_forgotten_when_the_answer_to_a_keepalive_fails(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E20, E32: a transaction and a keepalive in one read; the connection breaks under the answer."""
    stream = published.streaming()
    hand_over = Receiver._hand_over
    broken: list[int] = []

    def with_a_question(receiver: Receiver, duplex: replication.Duplex, frames: list[memoryview]) -> None:
        if not broken and any(frame[:1] == b"w" and frame[25:26] == b"C" for frame in map(bytes, frames)):
            broken.append(len(frames))
            question = b"k" + bytes(16) + b"\1"
            monkeypatch.setattr(duplex, "send", _unavailable)
            hand_over(receiver, duplex, [*frames, memoryview(question)])
        hand_over(receiver, duplex, frames)

    monkeypatch.setattr(Receiver, "_hand_over", with_a_question)
    published.insert_each(1, 2, 3)
    assert ids(take(stream, 3)) == [1, 2, 3]
    assert broken


def _unavailable(_: bytes) -> None:
    raise UnavailableError("the server ended the replication connection")


def test_a_spool_folder_that_cannot_be_written(published: Published, tmp_path: Path) -> None:
    """E89, E20: a DiskError that names the folder, after everything before it; nothing of it is acknowledged."""
    gone = tmp_path / "gone"
    stream = published.streaming(spill_bytes=1000, spill_dir=str(gone))
    published.insert(1)
    published.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(100, 20099) i")
    first = take(stream, 1)[0]
    assert first.new == {"id": 1}
    with pytest.raises(DiskError) as caught:
        next(stream)
    assert str(gone) in caught.value.message
    assert "spill_dir" in caught.value.hint
    first.ack.confirm()
    stream.close()
    gone.mkdir()
    again = published.live(spill_bytes=1000, spill_dir=str(gone))
    assert ids(take(again, 20_001)) == [1, *range(100, 20_100)]
    assert list(gone.iterdir()) == [], "a spool has no name"


@pytest.mark.parametrize("streaming", [True, False])
def test_a_connection_lost_between_begin_and_commit_shows_nothing_of_the_transaction(
    published: Published, streaming: bool
) -> None:
    """E13: in one piece or in several, spilled or not; it comes again whole, once, at the same position."""
    url = published.url(logical_decoding_work_mem="64kB")
    stream = published.streaming(url, streaming=streaming, spill_bytes=100_000)
    with published.database.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 3000) i")
        if streaming:
            sent = "SELECT stream_bytes > 0 FROM pg_stat_replication_slots WHERE slot_name = %s"
            wait_until(lambda: published.execute(sent, published.slot) == [(True,)], what="a piece to be sent")
        published.insert(9999)
        assert ids(take(stream, 1)) == [9999], "what commits first comes first"
        published.execute("SELECT pg_terminate_backend(%s)", published.walsender())
        writer.execute("INSERT INTO t SELECT i, 'x' FROM generate_series(3001, 3010) i")
    assert ids(take(stream, 3010)) == list(range(1, 3011))
    published.insert(10_000)
    assert ids(take(stream, 1)) == [10_000], "it came once"


def test_arrow_batches_over_reconnects_are_the_rows_of_the_table(published: Published) -> None:
    """E32: every row once within a run, in order, whatever the connection did."""
    stream = published.batches(published.url(logical_decoding_work_mem="64kB"), max_rows=70, spill_bytes=20_000)
    wait_until(published.walsender)
    found: list[tuple[int, str]] = []
    for part in range(4):
        first = part * 1000
        published.execute(
            "INSERT INTO t SELECT i, md5(i::text) FROM generate_series(%s::int, %s::int) i", first, first + 599
        )
        published.insert(first + 700, first + 701, v="small")
        while len(found) < part * 602 + 300:
            batch = next(stream)
            for table in batch.tables:
                found += zip(table.rows["id"].to_pylist(), table.rows["v"].to_pylist(), strict=True)
            batch.confirm()
        published.execute("SELECT pg_terminate_backend(%s)", published.walsender())
    while len(found) < 4 * 602:
        found += [
            row
            for table in next(stream).tables
            for row in zip(table.rows["id"].to_pylist(), table.rows["v"].to_pylist(), strict=True)
        ]
    assert found == published.execute("SELECT id, v FROM t ORDER BY id")


def test_every_connection_of_a_capture_obeys_the_same_tls_setting(
    published: Published, tls_proxy: Callable[..., TlsProxy], certificates: Certificates
) -> None:
    """E111: stream, control, snapshot, lag and coverage; and rows that fill many TLS records are not kept waiting."""
    proxy = tls_proxy(published.database.server, mode="insists")
    url = proxy.url(published.database.name, sslmode="verify-full", sslrootcert=certificates.root)
    capture = published.capture(url)
    stream = published.watch(capture.live())
    wait_until(published.walsender)
    for size in 1, 8_000, 17_000, 40_000, 200_000, 1_000_000:
        waits = []
        for number in range(size, size + 3):
            published.execute("INSERT INTO t VALUES (%s, %s)", number, "x" * size)
            began = time.monotonic()
            (change,) = take(stream, 1)
            waits.append(time.monotonic() - began)
            assert change.new == {"id": number}
            change.ack.confirm()
        assert min(waits) < 0.9, f"a row of {size} bytes waited for the next status"
    wait_until(lambda: capture.lag() == 0)
    assert capture.inspect_coverage({QualifiedTable("public", "t")}).complete
    proxy.cut()
    published.insert(100)
    assert ids(take(stream, 1)) == [100]
    assert all(one.encrypted for one in proxy.startups)
    assert {one.replication for one in proxy.startups} == {True, False}


def test_a_stream_needs_its_publication_before_its_slot(published: Published) -> None:
    """E40: no slot is made for a publication that does not exist."""
    config = ReplicationConfig(published.slot, "nowhere")
    with pytest.raises(OperatorError) as caught:
        next(WalChangeCapture(config, published.database.url).live())
    assert "nowhere" in caught.value.message
    assert published.row() is None
