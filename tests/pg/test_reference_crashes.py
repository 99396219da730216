"""A process that follows a table is killed, at steps of its saving and at any moment: what it saved is good."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import OperatorError
from penstock.reference import ReferenceView
from penstock.reference.store import read_saved
from tests.fixtures.commands import environment
from tests.fixtures.references import Dimensions
from tests.fixtures.waiting import wait_until

# A view that is saved after each change, and often as a new generation.
FOLLOW = """
import sys, threading
from penstock.model import ReplicationConfig
from penstock.reference import ReferenceCapture, ReferenceView, store
from penstock.reference.keeping import keep_current

url, slot, folder = sys.argv[1:]
store._LEAST_LOG_BYTES = 1
capture = ReferenceCapture(ReplicationConfig(slot, "dims"), url)
view = ReferenceView(capture.table("city"), path=folder, save_every_s=0)
keep_current([view], threading.Event(), pause_s=0.001)
"""


@contextmanager
def following(dims: Dimensions, folder: Path, failpoint: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A process that follows `city`."""
    words = [sys.executable, "-c", FOLLOW, dims.database.url, dims.slot, str(folder)]
    child = subprocess.Popen(words, env=environment(PENSTOCK_FAILPOINT=failpoint))
    try:
        yield child
    finally:
        child.kill()
        child.wait()


@contextmanager
def writing(dims: Dimensions, rng: random.Random) -> Iterator[None]:
    """Rows come, change, move and go, as long as the block lasts."""
    over = threading.Event()

    def write() -> None:
        with dims.database.connect() as connection:
            while not over.wait(0.002):
                one, other = rng.sample(range(200), 2)
                connection.execute(
                    rng.choice(
                        [
                            "INSERT INTO city VALUES (%(one)s, %(other)s) ON CONFLICT (id) DO UPDATE SET name = '+'",
                            "UPDATE city SET name = name || '!' WHERE id %% 20 = %(one)s %% 20",
                            "DELETE FROM city WHERE id = %(one)s",
                            "WITH gone AS (DELETE FROM city WHERE id = %(one)s) UPDATE city SET id = %(one)s + 1000"
                            " WHERE id = %(other)s AND NOT EXISTS (SELECT FROM city WHERE id = %(one)s + 1000)",
                        ]
                    ),
                    {"one": one, "other": other},
                )

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


def test_a_killed_view_goes_on_from_what_it_saved(dims18: Dimensions, tmp_path: Path, rng: random.Random) -> None:
    """E93, E21: at steps of saving, between that and confirming, and at random; nothing is lost or left behind."""
    dims18.execute("CREATE TABLE city (id int PRIMARY KEY, name text)")
    dims18.execute("INSERT INTO city SELECT n, 'x' FROM generate_series(1, 100) AS n")
    dims18.execute("CREATE PUBLICATION dims FOR TABLE city")
    with writing(dims18, rng):
        for point in ("base:1", "head:2", "unlink:1", "saved:2", ""):
            with following(dims18, tmp_path, point) as child:
                if point:
                    assert child.wait(30) == -signal.SIGKILL
                    continue
                before = place(tmp_path)
                wait_until(lambda: place(tmp_path) > before, 30, "some progress")  # noqa: B023
                threading.Event().wait(rng.uniform(0, 0.2))
    capture = dims18.capture()
    with ReferenceView(capture.table("city"), path=tmp_path) as view:
        saved = place(tmp_path)
        assert view.catch_up(20)
        found = {(row["id"], row["name"]) for row in view.to_arrow().to_pylist()}
        assert found == set(dims18.execute("SELECT id, name FROM city"))
        assert not saved or view._saved, "what was saved was gone on from, without a snapshot"
    capture.close()
    names = sorted(path.name.split("-")[0] for path in tmp_path.iterdir())
    assert names == ["base", "lock", "log", "view.json"]


def place(folder: Path) -> int:
    """How far the saved view is, which can be read at any moment; zero where there is none yet."""
    try:
        return int(read_saved(folder).checkpoint.position.lsn)
    except OperatorError as error:
        assert "no saved view" in error.message
        return 0
