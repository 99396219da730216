"""Transactions of real servers: whole, in commit order, without what was rolled back, streamed or not."""

from __future__ import annotations

import itertools
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.contracts import Change
from penstock.demo.server import Server
from penstock.model import Op
from penstock.postgres.capture import ChangeBatch, Stream, WalChangeCapture
from tests.fixtures.databases import Database
from tests.fixtures.recordings import END, Recording, Row, limited, recording
from tests.fixtures.waiting import wait_until

STREAMING = ["off", "on", "immediate"]


def stream(database: Database, how: str) -> dict[str, Any]:
    """Have the server stream (`on`: beyond 64 kB; `immediate`: every change), or not; the config for a read."""
    if how != "off":
        database.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
    if how == "immediate":
        database.execute(f"ALTER DATABASE {database.name} SET debug_logical_replication_streaming = immediate")
    return {"streaming": how != "off"}


def streamed(database: Database, recorded: Recording) -> int:
    """How many transactions the server has sent in pieces."""
    query = "SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = %s"
    recorded.await_free()  # a walsender reports when it ends, at the latest
    return int(database.execute(query, recorded.slot)[0][0])


def ids(changes: list[Change]) -> list[int]:
    return [(change.new or change.old or {"id": None})["id"] for change in changes]


def table(database: Database, columns: str = "id int PRIMARY KEY, pad text") -> None:
    database.execute(f"CREATE TABLE t ({columns})")


def fill(connection: psycopg.Connection[Any], first: int, count: int = 1, pad: int = 0) -> None:
    connection.execute(
        f"INSERT INTO t SELECT i, repeat('x', {pad}) FROM generate_series({first}, {first + count - 1}) i"
    )


def commits(rows: list[Row]) -> list[tuple[int, list[Any]]]:
    """Each transaction's rows by id, in the order they came, with its commit's end."""
    found: list[tuple[int, list[Any]]] = []
    for row in rows:
        if not found or found[-1][0] != row.commit_lsn:
            found.append((row.commit_lsn, []))
        found[-1][1].append(row.values["id"])
    return found


@pytest.mark.parametrize("how", STREAMING)
def test_interleaved_transactions_come_whole_and_in_commit_order(database: Database, how: str) -> None:
    """E10: row LSNs of one lie between those of others; the position is the commit's end and the row's index."""
    table(database)
    a, b, c = (database.connect(autocommit=False) for _ in range(3))
    with recording(database, **stream(database, how)) as recorded:
        for step in range(3):
            for number, writer in enumerate((a, b, c)):
                fill(writer, 1000 * number + 100 * step, 100, 500)
        b.commit()
        fill(a, 5000)
        c.commit()
        a.commit()
        rows, changes = recorded.rows(), recorded.changes()
        pieces = streamed(database, recorded)
    expected = [
        [*range(1000, 1300)],
        [*range(2000, 2300)],
        [*range(300), 5000],
    ]
    assert [numbers for _, numbers in commits(rows)] == expected
    assert [lsn for lsn, _ in commits(rows)] == sorted({row.commit_lsn for row in rows})
    assert [row.seq for row in rows] == [*range(300), *range(300), *range(301)]
    assert [(change.position.lsn, change.position.row) for change in changes] == [row.position for row in rows]
    assert [change.xid for change in changes] == [row.xid for row in rows]
    assert len({row.xid for row in rows}) == 3
    assert (pieces > 0) == (how != "off")


@pytest.mark.parametrize("how", STREAMING)
def test_what_is_rolled_back_is_never_seen(database: Database, how: str) -> None:
    """E11: the whole, savepoints nested and released, an error caught inside; ordinals go on without a gap."""
    table(database)
    writer = database.connect(autocommit=False)
    with recording(database, **stream(database, how)) as recorded:
        fill(writer, 1, 300, 500)
        writer.rollback()
        fill(writer, 1000)
        writer.execute("SAVEPOINT a")
        fill(writer, 1001, 300, 500)
        writer.execute("SAVEPOINT b")
        fill(writer, 2001, 300, 500)
        writer.execute("RELEASE b")
        writer.execute("SAVEPOINT c")
        writer.execute("UPDATE t SET id = -id")
        writer.execute("ROLLBACK TO c")
        fill(writer, 3001)
        writer.execute("ROLLBACK TO a")
        fill(writer, 4001, 2)
        writer.execute("SAVEPOINT d")
        writer.execute("DELETE FROM t WHERE id = 4002")
        writer.execute("TRUNCATE t")
        writer.execute("ROLLBACK TO d")
        writer.execute("RELEASE d")
        fill(writer, 5001, 300, 500)
        writer.execute(
            "DO $$ BEGIN INSERT INTO t VALUES (6000); INSERT INTO t VALUES (6000);"
            " EXCEPTION WHEN unique_violation THEN INSERT INTO t VALUES (6001); END $$"
        )
        writer.commit()
        database.execute("INSERT INTO t VALUES (7000)")
        changes = recorded.changes()
        assert ids(changes) == [1000, 4001, 4002, *range(5001, 5301), 6001, 7000]
        assert [change.position.row for change in changes] == [*range(304), 0]
        assert [(row.position, row.xid) for row in recorded.rows()] == [(c.position, c.xid) for c in changes]


def test_a_savepoint_rolled_back_after_its_rows_were_sent(database: Database) -> None:
    """E11, E5: its pieces are taken back; the table is altered by another before the transaction commits."""
    table(database)
    database.execute("CREATE TABLE o (id int PRIMARY KEY)")
    writer = database.connect(autocommit=False)
    with recording(database, **stream(database, "on")) as recorded, limited(_live(recorded)) as live:
        writer.execute("INSERT INTO o VALUES (1)")
        writer.execute("SAVEPOINT a")
        fill(writer, 1, 1000, 500)
        sent = "SELECT stream_bytes FROM pg_stat_replication_slots WHERE slot_name = %s"
        wait_until(lambda: database.execute(sent, recorded.slot)[0][0] > 100_000, what="pieces to be sent")
        writer.execute("ROLLBACK TO a")
        database.execute("ALTER TABLE t ADD more int")
        database.execute("INSERT INTO t VALUES (2, 'x', 3)")
        writer.execute("INSERT INTO o VALUES (2)")
        writer.commit()
        database.execute("INSERT INTO t VALUES (4, 'y', 5)")
        found = [next(live) for _ in range(4)]
    assert [(str(change.table), (change.new or {})["id"]) for change in found] == [
        ("public.t", 2), ("public.o", 1), ("public.o", 2), ("public.t", 4),
    ]  # fmt: skip
    assert [change.position.row for change in found] == [0, 0, 1, 0]


def _live(recorded: Recording) -> Stream[Change]:
    return WalChangeCapture(recorded.config(), recorded.database.url).live()


@pytest.mark.parametrize("how", STREAMING)
def test_empty_transactions_leave_no_trace_and_hold_nothing_up(database: Database, how: str) -> None:
    """E11: without a row, with rows of tables that are not published, with rolled-back ones only."""
    table(database)
    database.execute("CREATE TABLE private (id int)")
    writer = database.connect(autocommit=False)
    with recording(database, "FOR TABLE t", **stream(database, how)) as recorded:
        writer.execute("SELECT pg_current_xact_id()")
        writer.commit()
        writer.execute("INSERT INTO private SELECT generate_series(1, 3000)")
        writer.commit()
        writer.execute("SAVEPOINT a")
        fill(writer, 1, 300, 500)
        writer.execute("ROLLBACK TO a")
        writer.commit()
        database.execute("UPDATE t SET id = 1 WHERE false")
        database.execute("INSERT INTO t VALUES (1)")
        assert ids(recorded.changes()) == [1]


def test_prepared_transactions_come_when_they_are_committed(start_server: Callable[..., Server]) -> None:
    """E11: at COMMIT PREPARED, in its place among the others; one that is rolled back never."""
    database = Database(start_server(18, {"max_prepared_transactions": "5"}), "postgres")
    table(database)
    writer = database.connect()
    try:
        with recording(database) as recorded:
            for name, first in (("kept", 1), ("dropped", 1001)):
                writer.execute("BEGIN")
                fill(writer, first, 200, 500)
                writer.execute(f"PREPARE TRANSACTION '{name}'")
            database.execute("INSERT INTO t VALUES (5000)")
            for how in STREAMING:
                assert ids(recorded.changes(**stream(database, how))) == [5000]
            database.execute("ROLLBACK PREPARED 'dropped'")
            database.execute("COMMIT PREPARED 'kept'")
            database.execute("ALTER DATABASE postgres RESET ALL")
            for how in STREAMING:
                rows = recorded.rows(**stream(database, how))
                assert [row.values["id"] for row in rows] == [5000, *range(1, 201)]
                assert len({row.xid for row in rows[1:]}) == 1
                assert [row.seq for row in rows] == [0, *range(200)]
    finally:
        database.close()


def test_row_positions_do_not_depend_on_streaming(database: Database) -> None:
    """E10: pieces, savepoints, truncates, DDL inside, conflicts resolved: the same rows at the same positions."""
    table(database)
    database.execute("CREATE TABLE o (id int PRIMARY KEY, note text)")
    writer = database.connect(autocommit=False)
    with recording(database) as recorded:
        for start in (0, 10_000):
            fill(writer, start, 400, 300)
            writer.execute("SAVEPOINT a")
            fill(writer, start + 1000, 400, 300)
            writer.execute("ROLLBACK TO a")
            writer.execute("INSERT INTO o VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET note = o.note || 'y'")
            writer.execute(
                "INSERT INTO t SELECT i, 'again' FROM generate_series(%s::int, %s::int) i ON CONFLICT DO NOTHING",
                [start, start + 450],
            )
            writer.execute("SAVEPOINT b")
            writer.execute("UPDATE t SET id = id + 100000 WHERE id % 100 = 7")
            writer.execute("RELEASE b")
            writer.execute(f"ALTER TABLE o ADD more_{start} int")
            writer.execute("DELETE FROM o")
            writer.execute("TRUNCATE o, t" if start else "TRUNCATE o")
            writer.commit()
        found = {}
        for how in STREAMING:
            settings = stream(database, how)
            found[how] = (
                recorded.rows(**settings),
                recorded.changes(**settings),
                recorded.rows(spill_bytes=1, **settings),
            )
        assert streamed(database, recorded) > 0
    rows, changes, spilled = found["off"]
    assert len(rows) > 900
    assert spilled == rows
    for how in ("on", "immediate"):
        assert found[how][0] == found[how][2] == rows
        assert [change[:6] for change in found[how][1]] == [change[:6] for change in changes]


ROWS, PAD = 200_000, 40


@pytest.mark.parametrize("how", ["off", "on"])
def test_a_transaction_far_larger_than_the_memory_limit_is_spilled_and_delivered_whole(
    db18: Database, how: str
) -> None:
    """E12: 20 times the limit; memory stays flat, the disk space is given back."""
    table(db18)
    if how == "on":
        stream(db18, how)
    with recording(db18, spill_bytes=1 << 20, buffer_bytes=1 << 20, streaming=how == "on") as recorded:
        with db18.connect(autocommit=False) as writer:
            fill(writer, 0, ROWS, PAD)
            writer.execute("SAVEPOINT a")
            fill(writer, ROWS, 20_000, PAD)
            writer.execute("ROLLBACK TO a")
        count = total = arrow_bytes = 0
        positions: set[int] = set()
        with traced() as peak_bytes:
            for batch in recorded.batches():
                arrow_bytes = max(arrow_bytes, pa.total_allocated_bytes())
                for rows in (found.rows for found in batch.tables if found.table.name != END):
                    count += rows.num_rows
                    total += sum(rows.column("id").to_pylist())
                    positions |= {rows.column("_seq")[0].as_py(), rows.column("_seq")[-1].as_py()}
            peak = peak_bytes()
    assert (count, total) == (ROWS, ROWS * (ROWS - 1) // 2)
    assert (min(positions), max(positions)) == (0, ROWS - 1)
    assert peak < 16 << 20, f"{peak >> 20} MB, where the rows have {ROWS * 100 >> 20} MB on the wire alone"
    assert arrow_bytes < 16 << 20


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Trace what Python and NumPy allocate; the function it gives returns the peak."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_stop_between_begin_and_commit_shows_nothing_and_redelivers_all(database: Database) -> None:
    """E13: the transaction is open at the first stop and committed at the second read; it comes whole."""
    table(database)
    writer = database.connect(autocommit=False)
    with recording(database, **stream(database, "on")) as recorded:
        fill(writer, 0, 1000, 500)
        assert recorded.changes() == []
        pieces = streamed(database, recorded)
        fill(writer, 1000, 10)
        assert recorded.changes() == []
        writer.commit()
        assert ids(recorded.changes()) == [*range(1010)]
        with limited(_live(recorded)) as live:  # stopped inside of the transaction's delivery
            first = [change for change in itertools.islice(live, 20) if change.table.name != END][:10]
        assert ids(recorded.changes()) == [*range(1010)]
    assert ids(first) == [*range(10)]
    assert pieces > 0


def test_a_crash_of_the_server_between_begin_and_commit_leaves_nothing_of_it(
    start_server: Callable[..., Server],
) -> None:
    """E13: what was streamed of it is forgotten at the reconnect; what commits afterwards comes."""
    server = start_server(18, {"logical_decoding_work_mem": "64kB"})
    database = Database(server, "postgres")
    try:
        table(database)
        with recording(database) as recorded, limited(_live(recorded)) as live:
            writer = database.connect(autocommit=False)
            fill(writer, 0, 1000, 500)
            sent = "SELECT stream_bytes FROM pg_stat_replication_slots WHERE slot_name = %s"
            wait_until(lambda: database.execute(sent, recorded.slot)[0][0] > 100_000, what="pieces to be sent")
            server.restart(signal.SIGQUIT)
            database.execute("INSERT INTO t VALUES (5000), (5001)")
            changes = [next(live), next(live)]
    finally:
        database.close()
    assert ids(changes) == [5000, 5001]


@pytest.mark.parametrize("how", ["off", "on"])
def test_a_limit_on_rows_never_splits_an_acknowledgement(database: Database, how: str) -> None:
    """E15: the slot stays before a transaction until its last row is confirmed, in whatever order."""
    table(database)
    with recording(database, **stream(database, how)) as recorded:
        capture = WalChangeCapture(recorded.config(), database.url)
        confirmed = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
        ((start,),) = database.execute(confirmed, recorded.slot)
        with database.connect(autocommit=False) as writer:
            fill(writer, 0, 500, 500)
        with limited(capture.batches(max_rows=100)) as batches:
            pieces = _pieces(batches, 500)
            assert max(piece.rows for piece in pieces) <= 100
            for piece in (pieces[-1], *pieces[1:-1]):
                piece.confirm()
            assert batches.durable < pieces[-1].end.lsn
        recorded.await_free()
        assert database.execute(confirmed, recorded.slot) == [(start,)], "the close reports what is confirmed: nothing"
        assert ids(recorded.changes()) == [*range(500)], "all of it comes again"
        recorded.await_free()
        with limited(capture.batches(max_rows=100)) as batches:
            for piece in _pieces(batches, 500):
                assert batches.durable < piece.end.lsn
                piece.confirm()
            assert batches.durable >= piece.end.lsn
        assert recorded.changes() == []


def _pieces(batches: Stream[ChangeBatch], rows: int) -> list[ChangeBatch]:
    found: list[ChangeBatch] = []
    while sum(piece.rows for piece in found) < rows:
        found.append(next(batches))
    return found


def test_an_operation_of_each_kind_has_its_place(database: Database) -> None:
    """E10: several rows share one LSN; their indexes tell them apart."""
    table(database)
    with recording(database) as recorded:
        with database.connect(autocommit=False) as writer:
            fill(writer, 1, 3)
            writer.execute("UPDATE t SET id = id + 10")
            writer.execute("DELETE FROM t WHERE id = 11")
            writer.execute("TRUNCATE t")
        changes = recorded.changes()
    assert [(change.position.row, change.op) for change in changes] == list(
        enumerate([*[Op.INSERT] * 3, *[Op.UPDATE] * 3, Op.DELETE, Op.TRUNCATE])
    )
    assert len({change.position.lsn for change in changes}) == 1
