"""The process that keeps snapshots for tasks, which come late, fail, come again or never; it ends with its driver."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import psutil
import pytest

from penstock.errors import AuthenticationError, OperatorError, UnavailableError
from penstock.model import QualifiedTable
from penstock.postgres import holding, parley, snapshot
from penstock.postgres.attendance import Visit
from penstock.postgres.connection import resolve
from penstock.postgres.export import Ticket, open_reading
from penstock.postgres.holding import Address
from penstock.postgres.processes import mark
from penstock.postgres.ranges import Range
from penstock.postgres.snapshot_plan import Selection, SnapshotQuery, plan, select
from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until

SECRET = "not to be seen"
GRACE_S = 0.3
IDLE_S = 4.0


class Driver:
    """Stands for a driver: a process that lives, a folder, a planned read of two parts, and the holder beside it."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.folder = folder
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.settings = resolve(database.role("reader", SECRET))
        database.execute("CREATE TABLE t AS SELECT n AS id, repeat('x', 2000) AS pad FROM generate_series(1, 20) n")
        database.execute("GRANT SELECT ON t TO reader")
        self.selection, self.ranges = self._planned()
        self.address = self.start()
        holding.register(self.address, "frame", self.settings, self.selection)

    def start(self) -> Address:
        return holding.find_or_start(self.folder, mark(self.process.pid), grace_s=GRACE_S, idle_s=IDLE_S)

    def _planned(self) -> tuple[Selection, list[Range]]:
        with open_reading(self.settings) as connection:
            selection = select(connection, SnapshotQuery(QualifiedTable("public", "t")))
            return selection, plan(connection, selection, 2)

    def joined(self, part: int, run: str = "1", again: bool = False) -> AbstractContextManager[Ticket]:
        return holding.joined(self.address, "frame", run, Visit(part, 2, 7, part, again))

    def read(self, part: int, run: str = "1", again: bool = False) -> list[int]:
        """A task: the ids of one part."""
        with self.joined(part, run, again) as ticket:
            batches = snapshot.read_part(self.settings, self.selection, self.ranges[part], ticket)
            return [number for batch in batches for number in batch["id"].to_pylist()]

    def open_transactions(self) -> int:
        query = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'reader' AND state = 'idle in transaction'"
        return int(self.database.execute(query)[0][0])

    def await_end(self) -> None:
        """Wait until no snapshot is held open."""
        wait_until(lambda: not self.open_transactions(), what="the snapshot to end")

    def holder(self) -> psutil.Process | None:
        """The holder's process."""
        running = psutil.process_iter(["cmdline", "environ"])  # None of those that ended meanwhile
        found = (one for one in running if "penstock.postgres.holder" in str(one.info["cmdline"]))
        ours = str(self.folder)
        return next((one for one in found if (one.info["environ"] or {}).get("PENSTOCK_TEST") == ours), None)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        wait_until(lambda: self.holder() is None, what="the holder to end with its driver")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the holder is found; children inherit the variable, so that the test finds its own."""
    monkeypatch.setenv("PENSTOCK_TEST", str(tmp_path / "holder"))
    return tmp_path / "holder"


@pytest.fixture
def driver(db18: Database, folder: Path) -> Iterator[Driver]:
    """A driver with a planned read, on Postgres 18."""
    with closing(Driver(db18, folder)) as driver:
        yield driver


@pytest.fixture
def each_driver(database: Database, folder: Path) -> Iterator[Driver]:
    """The same on each major in turn."""
    with closing(Driver(database, folder)) as driver:
        yield driver


def test_a_task_that_starts_late_reads_the_same_moment(each_driver: Driver) -> None:
    """E50, E55: rows change between the tasks; when both have read, nothing is held open any more."""
    driver = each_driver
    assert driver.open_transactions() == 0
    first = driver.read(0)
    driver.database.execute("UPDATE t SET id = id + 100")
    driver.database.execute("DELETE FROM t WHERE id > 115")
    wait_until(lambda: driver.open_transactions() == 1, what="the reader's own connection to end")
    assert sorted(first + driver.read(1)) == list(range(1, 21))
    driver.await_end()


def test_each_execution_reads_a_moment_of_its_own(driver: Driver) -> None:
    """A frame is planned once and used any number of times."""
    assert sorted(driver.read(0, "1") + driver.read(1, "1")) == list(range(1, 21))
    driver.database.execute("UPDATE t SET id = id + 100")
    assert sorted(driver.read(0, "2") + driver.read(1, "2")) == list(range(101, 121))


def test_a_task_that_failed_and_runs_again_still_finds_the_snapshot(driver: Driver) -> None:
    with pytest.raises(ZeroDivisionError), driver.joined(0):
        raise ZeroDivisionError
    driver.database.execute("UPDATE t SET id = id + 100")
    other = driver.read(1)
    past_grace = time.monotonic() + 3 * GRACE_S
    wait_until(lambda: time.monotonic() > past_grace)
    assert sorted(driver.read(0, again=True) + other) == list(range(1, 21))


def test_a_task_that_comes_too_late_is_told_what_to_do(driver: Driver) -> None:
    """E55: what a query leaves unread does not hold the snapshot for ever, and never is another one taken for it."""
    driver.read(0)
    driver.await_end()
    with pytest.raises(OperatorError, match=r"no task had read in it for 4 s") as caught:
        driver.read(1)
    assert "Run it again" in caught.value.hint
    driver.read(0, "2")
    driver.read(1, "2")
    driver.await_end()
    with pytest.raises(OperatorError, match="every part had been read"):
        driver.read(1, "2", again=True)


def test_a_snapshot_is_held_while_a_task_reads(driver: Driver) -> None:
    with driver.joined(0):
        driver.read(1)
        ((server_ms,),) = driver.database.execute("SELECT extract(epoch FROM clock_timestamp()) * 1000")
        wait_until(
            lambda: (
                driver.database.execute("SELECT extract(epoch FROM clock_timestamp()) * 1000 > %s", server_ms + 2500)
                == [(True,)]
            )
        )
        assert driver.open_transactions() == 1


def test_an_export_that_fails_is_told_to_the_task_and_tried_again(driver: Driver) -> None:
    driver.database.execute("REVOKE SELECT ON t FROM reader")
    with pytest.raises(OperatorError, match="permission denied for table t") as caught:
        driver.read(0)
    assert caught.value.sqlstate == "42501"
    driver.database.execute("GRANT SELECT ON t TO reader")
    assert sorted(driver.read(0, again=True) + driver.read(1)) == list(range(1, 21))


def test_a_lost_snapshot_is_noticed_and_never_replaced(driver: Driver) -> None:
    driver.read(0)
    driver.database.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'reader'")
    with pytest.raises(OperatorError, match="the snapshot that this read shares is gone"):
        driver.read(1)


def test_one_holder_serves_all_reads_and_ends_with_its_driver(driver: Driver) -> None:
    assert driver.start() == driver.address
    holder = driver.holder()
    assert holder is not None and holder.is_running()
    with driver.joined(0):
        driver.close()
        wait_until(lambda: not driver.open_transactions(), what="the snapshot to end with the driver")


def test_the_holder_ends_when_its_folder_is_removed(driver: Driver) -> None:
    for path in driver.folder.iterdir():
        path.unlink()
    driver.folder.rmdir()
    wait_until(lambda: driver.holder() is None, what="the holder to end")


def test_a_holder_that_died_is_replaced_and_old_frames_say_so(driver: Driver) -> None:
    holder = driver.holder()
    assert holder is not None
    holder.kill()
    wait_until(lambda: driver.holder() is None)
    with pytest.raises(UnavailableError, match="keeps this read's snapshot is not reached") as caught:
        driver.read(0)
    assert "numPartitions" in caught.value.hint
    driver.address = driver.start()
    with pytest.raises(OperatorError, match="its keeper was restarted"):
        driver.read(0)


def test_no_secret_is_where_others_see_it(driver: Driver) -> None:
    """E103: not in the process list, not in a file, not in what a task shows."""
    holder = driver.holder()
    assert holder is not None
    key = driver.address.key.hex()
    for text in (" ".join(holder.cmdline()), str(holder.environ()), repr(driver.address)):
        assert SECRET not in text and key not in text
    files = [path for path in driver.folder.rglob("*") if path.is_file()]
    assert all(SECRET.encode() not in path.read_bytes() for path in files)
    assert {path.stat().st_mode & 0o777 for path in files if key in path.read_text()} == {0o600}
    assert driver.folder.stat().st_mode & 0o777 == 0o700


def test_who_does_not_know_the_key_is_not_heard(driver: Driver) -> None:
    with pytest.raises(AuthenticationError):
        parley.call("127.0.0.1", driver.address.port, b"another key", 5)
    with socket.create_connection(("127.0.0.1", driver.address.port)) as sock:
        sock.sendall(b"x" * 64)
        sock.settimeout(5)
        seen = b""
        while piece := sock.recv(1000):
            seen += piece
        assert len(seen) <= 64  # a challenge and a proof, then nothing
    assert len(driver.read(0)) + len(driver.read(1)) == 20


def test_a_folder_that_others_can_enter_is_refused(driver: Driver, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    os.chmod(tmp_path / "open", 0o755)
    with pytest.raises(OperatorError, match=re.escape(f"{tmp_path / 'open'} is not this user's alone")):
        holding.find_or_start(tmp_path / "open", mark(driver.process.pid))
