"""What a reference table waits for ends when somebody says so: closed, stopped, or left, from any thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from penstock.contracts import ConnectorError
from penstock.errors import ConfigError, RetryableError
from penstock.reference import PostgresSnapshotSource, ReferenceView
from penstock.reference.keeping import kept_current
from tests.fixtures.references import Dimensions, await_waiting, fill, read_snapshot
from tests.fixtures.waiting import wait_until


def test_closing_at_any_moment(dims: Dimensions) -> None:
    """E94: twice, before anything was opened, in the middle of a snapshot; then any use is an error."""
    fill(dims, "city")
    dims.execute("INSERT INTO city SELECT n, repeat('x', 200) FROM generate_series(10, 40000) AS n")
    capture = dims.capture()
    for polls in 0, 1, 1000:
        source = capture.table("city")
        for _ in range(polls):
            source.poll_snapshot()
        checkpoint = source.checkpoint()
        source.close()
        source.close()
        for use in (
            source.poll_snapshot, source.poll_changes, source.checkpoint, source.again,
            partial(source.confirm, checkpoint), partial(source.restore, checkpoint),
        ):  # fmt: skip
            with pytest.raises(ConnectorError, match="is closed"):
                use()
    capture.close()
    capture.close()
    with pytest.raises(ConfigError, match="is closed"):
        capture.table("city")
    query = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'penstock' AND datname = current_database()"
    wait_until(lambda: not dims.execute(query), what="every connection to end")


@pytest.mark.parametrize(
    ("waiting", "end"), [("a snapshot", "close"), ("a snapshot", "stop"), ("a held slot", "close")]
)
def test_closing_ends_what_the_source_waits_for(dims: Dimensions, waiting: str, end: str) -> None:
    """E94: from another thread, while a transaction is open or somebody else reads the slot; others are not touched."""
    fill(dims, "city", "country")
    capture, holder = dims.capture(), dims.capture()
    if waiting == "a held slot":
        read_snapshot(holder.table("city"))
    city = capture.table("city")
    with ThreadPoolExecutor() as pool, dims.database.connect(autocommit=False) as open_one:
        if waiting == "a snapshot":
            read_snapshot(capture.table("country"))
            open_one.execute("SELECT pg_current_xact_id()")
        coming = pool.submit(read_snapshot, city)
        if waiting == "a snapshot":
            await_waiting(dims)
        wait_until(lambda: capture._receiver is not None, what="the wait for the slot")
        city.stop() if end == "stop" else city.close()
        with pytest.raises(ConnectorError, match="is closed" if end == "close" else "was given up"):
            coming.result(20)
        assert city.table not in capture._deliveries
        city.close()
    holder.close()
    assert len(read_snapshot(capture.table("city"))) == 2


@pytest.mark.parametrize("end", ["close", "leave"])
@pytest.mark.parametrize("waiting", ["a snapshot", "a held slot", "a new slot"])
def test_closing_a_view_ends_what_it_waits_for(dims18: Dimensions, waiting: str, end: str) -> None:
    """E94: whoever updates it in another thread gets an error, at once; threads that keep it current end with it."""
    fill(dims18, "city", "country")
    capture, holder = dims18.capture(), dims18.capture()
    if waiting != "a new slot":
        read_snapshot((holder if waiting == "a held slot" else capture).table("country"))
    view, left = ReferenceView(capture.table("city")), threading.Event()

    def keep() -> None:
        with kept_current(view, pause_s=0.01):
            left.wait(60)

    with ThreadPoolExecutor() as pool, dims18.database.connect(autocommit=False) as open_one:
        open_one.execute("SELECT pg_current_xact_id()")
        coming = pool.submit(keep if end == "leave" else view.update)
        if waiting == "a snapshot":
            await_waiting(dims18)
        else:
            wait_until(lambda: capture._receiver is not None, what="the wait for the slot")
        try:
            if end == "leave":
                left.set()
                coming.result(20)
            else:
                pool.submit(view.close).result(20)
                with pytest.raises(RetryableError, match=r"was given up, because an end was asked for"):
                    coming.result(20)
        finally:
            capture.stop()  # else a failure would wait for ever
            open_one.rollback()
    holder.close()
    if end == "leave":
        capture.stopping.clear()
        assert view.update() == 2, "it is open still"


def test_a_snapshot_alone_is_closed_while_another_thread_reads_it(dims18: Dimensions) -> None:
    """E94: whoever reads gets an error once rows have come."""
    fill(dims18, "city")
    source = PostgresSnapshotSource(dims18.database.url, "city")
    assert source.shape.key == ("id",)
    with ThreadPoolExecutor() as pool, dims18.database.connect(autocommit=False) as locking:
        locking.execute("LOCK TABLE city IN ACCESS EXCLUSIVE MODE")
        coming = pool.submit(source.poll_snapshot)
        query = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'city'::regclass"
        wait_until(lambda: dims18.execute(query), what="the reading thread to wait for the lock")
        source.close()
        locking.rollback()
        with pytest.raises(ConfigError, match="is closed"):
            coming.result(20)
