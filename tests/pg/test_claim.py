"""The right to a slot: who has it, who waits, and what becomes of it when connections are lost."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import OperatorError, RetryableError
from penstock.postgres import claim
from penstock.postgres.claim import Claim
from penstock.postgres.connection import resolve
from tests.fixtures.captures import Published
from tests.fixtures.commands import running
from tests.fixtures.databases import Database
from tests.fixtures.proxies import Proxy
from tests.fixtures.waiting import wait_until

SLOT = "claimed"
HELD = """SELECT pid FROM pg_locks WHERE locktype = 'advisory'
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""


def end(database: Database, pid: int) -> None:
    database.execute("SELECT pg_terminate_backend(%s)", pid)
    wait_until(lambda: not database.execute("SELECT FROM pg_stat_activity WHERE pid = %s", pid), 10, "its end")


def test_one_process_has_a_slot_at_a_time(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """E33: the second is told who has it, and gets it when that one ends; lost with its connection, it is taken again,
    or it is told who was quicker."""
    monkeypatch.setattr(claim, "_AGAIN_S", 0.0)
    settings = resolve(database.url)
    first, second, other = Claim(settings, SLOT), Claim(settings, SLOT), Claim(settings, "another")
    try:
        assert first.take() == ""
        ((pid,),) = database.execute(HELD)
        assert f"process {pid}, penstock, user" in second.take()
        assert other.take() == "", "of another slot"
        other.close()
        wait_until(lambda: database.execute(HELD) == [(pid,)], 10, "the other lock to go")
        first.renew()
        end(database, pid)
        # That a connection is gone is heard a moment after the server has ended its process.
        ((pid,),) = wait_until(lambda: first.renew() or database.execute(HELD), 10, "it to be taken again")
        assert f"process {pid}, penstock, user" in second.take()
        end(database, pid)
        assert second.take() == ""
        with pytest.raises(OperatorError, match="taken over slot claimed"):
            wait_until(first.renew, 10, "the first to be told")
        second.close()
        wait_until(lambda: not database.execute(HELD), 10, "the lock to go")
        first.renew()
    finally:
        for one in (first, second, other):
            one.close()


def test_a_slot_that_is_read_from_is_not_given(published18: Published) -> None:
    """E33: whoever reads from it, Penstock or not; and the lock is left free for the one that reads."""
    claim = Claim(resolve(published18.database.url), published18.slot)
    published18.streaming()
    assert claim.take().startswith(f"process {published18.walsender()}, ")
    assert not published18.database.execute(HELD)
    published18.close()
    wait_until(lambda: claim.take() == "", 10, "the slot to be free")
    claim.close()


def test_a_connection_that_looks_well_is_not_believed(
    db18: Database, proxy: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """E33: a process that was paused for long may still have one, while the server has given its lock to another."""
    way = proxy(db18.server)
    mine, other = Claim(resolve(way.url(db18.name)), SLOT), Claim(resolve(db18.url), SLOT)
    try:
        assert mine.take() == ""
        monkeypatch.setattr(claim, "_SURE_S", 0.0)
        mine.require()
        monkeypatch.setattr(claim, "_CONNECT_S", 0.2)
        way.stall()
        ((pid,),) = db18.execute(HELD)
        end(db18, pid)
        assert other.take() == ""
        mine.renew()
        with pytest.raises(RetryableError, match="the server does not say that slot claimed is still ours"):
            mine.require()
        monkeypatch.setattr(claim, "_LOST_S", 0.0)
        monkeypatch.setattr(claim, "_CONNECT_S", 10.0)
        monkeypatch.setattr(claim, "_AGAIN_S", 0.0)
        way.flow()
        with pytest.raises(RetryableError):  # no answer is awaited any more
            mine.require()
        with pytest.raises(OperatorError, match="taken over slot claimed"):
            mine.require()
    finally:
        mine.close()
        other.close()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_waits_for_the_slot_ends_at_the_first_signal(
    db18: Database, tmp_path: Path, how: signal.Signals
) -> None:
    """E33: in good order: nothing was begun, and a service manager that stops it sees no failure."""
    (tmp_path / "books.schema.yml").write_text("version: 1\ntable: book\nfields: [{keyword: title}]\n")
    (tmp_path / "penstock.toml").write_text(
        f'[server]\npublic_address = "127.0.0.1:0"\nprivate_address = "127.0.0.1:0"\n'
        f'[source]\ntype = "postgres"\nconnection_url = "{db18.url}"\nslot = "{SLOT}"\n'
        '[[index]]\nname = "books"\nschema = "books.schema.yml"\n'
    )
    with closing(Claim(resolve(db18.url), SLOT)) as other:
        assert other.take() == ""
        with running(tmp_path, "run", "--config", str(tmp_path)) as waiting:
            said = f"waiting for slot {SLOT}: it is in use (process "
            wait_until(lambda: said in waiting.err or waiting.process.poll() is not None, 60, "it to wait")
            assert said in waiting.err
            assert waiting.end(how) == 0, waiting.err
    assert "Stopped before it was at work." in waiting.err
    assert "Traceback" not in waiting.err
