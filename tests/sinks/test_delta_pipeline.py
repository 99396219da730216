"""The delta and the parquet sink behind `penstock run`: killed, started again, built anew, they hold what SQL says."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.fixtures import market
from tests.fixtures.commands import run_penstock
from tests.fixtures.pipelines import LIMIT, START_S, Deployed
from tests.sinks import test_delta, test_parquet

pytestmark = LIMIT
SINKS = {
    "lake": 'type = "delta"\npath = "lake"\nstorage_options = { secret_word = "not needed here" }',
    "history": 'type = "parquet"\npath = "history"',
}


def judge(deployed: Deployed) -> None:
    """Both sinks hold, for each index, what the SQL by hand says."""
    for index in deployed.schemas:
        name, wanted = f"{deployed.prefix}{index}", market.expected(deployed.database, index)
        for sink, read in ("lake", test_delta.read), ("history", test_parquet.read):
            documents = read(str(deployed.folder / sink), name)
            found: dict[str, Any] = {id: json.loads(body) for id, body in documents.items()}
            assert found == wanted, f"{index} in {sink}"


@pytest.mark.long
@pytest.mark.parametrize("spread", [False, True], ids=["direct", "spread"])
def test_a_table_and_a_log_follow_the_database_through_a_crash(deploy: Callable[..., Deployed], spread: bool) -> None:
    """E21, E66, E83: seeded, changed, deleted, truncated, with a kill -9 in between."""
    deployed = deploy()
    execute = deployed.database.execute
    deployed.sinks = SINKS
    execute(market.ROWS)
    deployed.write(**market.SCHEMAS)
    run = deployed.start(spread=spread)
    run.catch_up()
    judge(deployed)
    execute("DELETE FROM customer WHERE id % 3 = 0; UPDATE customer SET name = 'before the kill'")
    run.kill()
    execute("UPDATE customer SET name = 'while nobody runs' WHERE id % 2 = 0; TRUNCATE mark")
    run = deployed.start(spread=spread)
    run.catch_up()
    judge(deployed)
    told = run.status()
    assert told
    assert {one["seeded"] for one in told["indexes"].values()} == {0}
    assert run.stop() == 0
    assert "not needed here" not in run.err


def told_twice(deployed: Deployed) -> list[Any]:
    """What the log has more than once, and what the change feed of the table tells more than once."""
    name = f"{deployed.prefix}customers"
    lines = [
        (row["id"], row["version"], row["op"]) for row in test_parquet.rows(str(deployed.folder / "history"), name)
    ]
    lake = DeltaTable(str(deployed.folder / "lake" / name))
    feed = pa.table(lake.load_cdf(starting_version=0).read_all()).to_pylist()
    inserts = [(row["id"], row["version"], row["_change_type"]) for row in feed]
    return [one for found in (lines, inserts) for one, count in Counter(found).items() if count > 1]


@pytest.mark.long
def test_a_folder_that_cannot_be_written_for_a_while_loses_nothing_and_doubles_nothing(
    deploy: Callable[..., Deployed],
) -> None:
    """E86, E89: a clear stop, nothing is acknowledged; when the folder is back the next run takes each change."""
    deployed = deploy()
    execute = deployed.database.execute
    deployed.sinks = SINKS
    execute("INSERT INTO customer SELECT n, 'c' || n FROM generate_series(1, 40) n")
    deployed.write(customers=market.CUSTOMERS)
    run = deployed.start()
    run.catch_up()
    for sink in "lake", "history":
        before = deployed.written()
        folder = deployed.folder / sink / f"{deployed.prefix}customers"
        aside = folder.rename(deployed.folder / "aside")
        folder.touch()  # also root cannot write into a file
        execute(f"UPDATE customer SET name = 'for {sink}' WHERE id % 2 = 0; DELETE FROM customer WHERE id % 10 = 7")
        execute("INSERT INTO customer VALUES (7, 'again'), (100, 'new') ON CONFLICT (id) DO UPDATE SET name = 'new'")
        assert run.ended() == 1
        assert str(folder) in run.err
        assert "cannot be" in run.err
        assert deployed.confirmed() <= before
        folder.unlink()
        aside.rename(folder)
        run = deployed.start()
        run.catch_up()
        judge(deployed)
    assert told_twice(deployed) == []
    told = run.status()
    assert told
    assert {one["seeded"] for one in told["indexes"].values()} == {0}
    assert run.stop() == 0


ROOTS = 20_000


class Readers:
    """How many documents there are in either sink, looked at over and over."""

    def __init__(self, deployed: Deployed) -> None:
        self.fewest = {"lake": ROOTS, "history": ROOTS}
        self.looks = 0
        self._deployed, self._over = deployed, threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        folder, name = self._deployed.folder, f"{self._deployed.prefix}customers"
        while not self._over.wait(0.3):
            table = DeltaTable(str(folder / "lake" / name)).to_pyarrow_table(filters=[("deleted", "=", False)])
            log = test_parquet.read(str(folder / "history"), name)
            for sink, count in ("lake", table.num_rows), ("history", len(log)):
                self.fewest[sink] = min(self.fewest[sink], count)
            self.looks += 1

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.long
def test_a_reindex_replaces_a_table_and_a_log_from_one_moment_to_the_next(deploy: Callable[..., Deployed]) -> None:
    """E84: readers of neither see less at any time; those of the table see it current until they change over."""
    deployed = deploy()
    execute = deployed.database.execute
    deployed.sinks = SINKS
    execute("INSERT INTO customer SELECT n, 'c' || n FROM generate_series(1, %s) n", ROOTS)
    deployed.write(customers=market.CUSTOMERS, marks=market.MARKS)
    run = deployed.start()
    run.catch_up()
    lake = str(deployed.folder / "lake")

    def is_canary() -> bool:
        return bool(json.loads(test_delta.read(lake, f"{deployed.prefix}customers")["7"])["name"] == "canary")

    readers = Readers(deployed)
    try:
        config = str(deployed.folder / "penstock.toml")
        assert run_penstock("reindex", "customers", "--no-wait", "--config", config).returncode == 0
        under_way = "SELECT 1 FROM seed WHERE name = 'customers'"
        run.wait(lambda: deployed.remember(under_way), START_S, "the new generation")
        execute("UPDATE customer SET name = 'canary' WHERE id = 7")
        run.wait(is_canary, START_S, "readers to see it")
        assert deployed.remember(under_way), "the new one is not complete"
        told = run.status()
        run.wait(
            lambda: not (run.status() or told)["indexes"]["customers"]["rebuild"], START_S, "readers to change over"
        )
        before = readers.looks
        run.wait(lambda: readers.looks > before + 1 or not readers.is_alive(), START_S, "readers to look again")
    finally:
        readers.end()
    assert readers.fewest == {"lake": ROOTS, "history": ROOTS}
    run.catch_up()
    judge(deployed)
    assert run.stop() == 0
