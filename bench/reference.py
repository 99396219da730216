"""What a reference table costs: a change by the size of the table, a lookup, and a restart beside a new snapshot.

The server is real and the changes come through its slot. A change's cost is the CPU time of the thread that updates the
view, from received bytes to the saved log: decoding, applying, noting it down. Sizes take turns, and figures are
medians over rounds, so that a noisy machine counts for all of them. A restart is everything from opening the folder to
the first lookup, a new snapshot the same without a folder. Before speed, results: each view must equal its table.

    python bench/reference.py [--rows 1000000] [--rounds 5]

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

from penstock.demo.server import Server, find_binaries
from penstock.model import Lsn, ReplicationConfig
from penstock.reference import ReferenceCapture, ReferenceView

GOALS = {"flat": 1.5, "restart_ratio": 0.2}
TABLE = """
CREATE TABLE {name} (id bigint PRIMARY KEY, code text NOT NULL, name text NOT NULL, price numeric(9,2),
                     stock int, updated timestamptz NOT NULL);
INSERT INTO {name} SELECT n, 'C-' || n, 'An article with the number ' || n, (n % 100000) / 100.0, n % 500,
    timestamptz '2020-01-01 00:00Z' + n * interval '1 second' FROM generate_series(1, {rows}) AS n;
"""
CHANGE = "UPDATE {name} SET price = %s, stock = stock + 1 WHERE id = ANY (%s)"
CHANGES, A_TRANSACTION = 20_000, 200
LOOKUPS = 50_000


class Bench:
    """One server, and a table and a view of it for each size."""

    def __init__(self, server: Server, rows: int, rounds: int) -> None:
        self.rows = rows
        self.rounds = rounds
        self.url = server.url("postgres")
        self.connection = psycopg.connect(self.url, autocommit=True)
        self.rng = random.Random(4711)
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
        self.sizes = {f"items_{size}": size for size in (rows // 100, rows // 10, rows)}
        for name, size in self.sizes.items():
            self.connection.execute(TABLE.format(name=name, rows=size).encode())
            print(f"{name}: {size} rows", file=sys.stderr)

    def close(self) -> None:
        self.connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def capture(self, slot: str) -> ReferenceCapture:
        config = ReplicationConfig(slot=slot, publication="bench", buffer_bytes=1 << 30)
        return ReferenceCapture(config, self.url)

    def write(self, name: str) -> Lsn:
        """Change rows at random, a few hundred in a transaction; where the WAL ends then."""
        for _ in range(CHANGES // A_TRANSACTION):
            ids = self.rng.sample(range(1, self.sizes[name] + 1), A_TRANSACTION)
            self.connection.execute(CHANGE.format(name=name).encode(), [self.rng.randrange(10**6) / 100, ids])
        ((end,),) = self.connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
        return Lsn.parse(end)

    def changes(self) -> dict[str, list[tuple[float, float]]]:
        """For each size and round: CPU and elapsed seconds of the changes."""
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in self.sizes}
        with self.capture("changes") as capture:
            views = {}
            for name in self.sizes:
                views[name] = ReferenceView(capture.table(name), path=self.folder / name, save_every_s=1e9)
                views[name].update()
                views[name].lookup(1)
            for _ in range(self.rounds):
                for name, view in views.items():
                    received(capture, self.write(name))
                    found[name].append(applied(view))
            for name, view in views.items():
                self.compare(name, view)
                view.close()
        return found

    def compare(self, name: str, view: ReferenceView) -> None:
        table = view.to_arrow()
        query = f"SELECT count(*), sum(id), sum(price)::text, sum(stock) FROM {name}"
        found: Any = self.connection.execute(query.encode()).fetchone()
        rows = [table.num_rows, *(sum(table[c].to_pylist()) for c in ("id", "price", "stock"))]
        if [*map(str, found)] != [*map(str, rows)]:
            sys.exit(f"{name}: the view is not what the table is")

    def lookups(self) -> float:
        """Lookups a second in the largest table."""
        name = f"items_{self.rows}"
        with self.capture("changes") as capture, ReferenceView(capture.table(name), path=self.folder / name) as view:
            view.update()
            keys = [self.rng.randint(1, self.rows) for _ in range(LOOKUPS)]
            view.lookup(1)
            since = time.perf_counter()
            for key in keys:
                view.lookup(key)
            return LOOKUPS / (time.perf_counter() - since)

    def start(self, slot: str, folder: Path | None) -> float:
        """Seconds from nothing, or from what is saved, to the first row."""
        name = f"items_{self.rows}"
        since = time.perf_counter()
        with self.capture(slot) as capture, ReferenceView(capture.table(name), path=folder) as view:
            view.update()
            if view.lookup(self.rows) is None or len(view) != self.rows:
                sys.exit("the view is not what the table is")
            return time.perf_counter() - since

    def starts(self) -> tuple[float, float]:
        """A new snapshot, which is not even saved, and a restart, in turn."""
        fresh, again = [], []
        self.start("saved", self.folder / "saved")
        for _ in range(self.rounds):
            fresh.append(self.start("fresh", None))
            again.append(self.start("saved", self.folder / "saved"))
        return statistics.median(fresh), statistics.median(again)


def received(capture: ReferenceCapture, end: Lsn) -> None:
    """Wait until the stream has been received up to there."""
    receiver = capture._receiver
    assert receiver
    deadline = time.monotonic() + 120
    while receiver.reached < end:
        if time.monotonic() > deadline:
            sys.exit("the changes do not come")
        time.sleep(0.01)


def applied(view: ReferenceView) -> tuple[float, float]:
    """Apply and note down what was received: CPU seconds of this thread, and elapsed ones."""
    cpu, since, count = time.thread_time(), time.perf_counter(), 0
    while count < CHANGES:
        count += view.update()
    return time.thread_time() - cpu, time.perf_counter() - since


def main() -> None:
    """Print each figure as it is known, and all of them at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with Server(find_binaries(18), {"max_wal_size": "8GB", "checkpoint_timeout": "1h"}) as server:
        bench = Bench(server, given.rows, given.rounds)
        try:
            figures = measure(bench)
        finally:
            bench.close()
    told = [figures[f"change_us_1e{power}"] for power in (4, 5, 6)]
    flat = max(told) / min(told)
    print(
        f"flat within {flat:.2f} (goal {GOALS['flat']}), restart_ratio goal {GOALS['restart_ratio']}", file=sys.stderr
    )
    print(json.dumps(figures))


def measure(bench: Bench) -> dict[str, float]:
    """Every figure of the last line."""
    rounds = bench.changes()
    costs = {name: statistics.median(cpu for cpu, _ in found) / CHANGES * 1e6 for name, found in rounds.items()}
    print("CPU µs a change:", {name: round(cost, 2) for name, cost in costs.items()}, file=sys.stderr)
    largest = [CHANGES / elapsed for _, elapsed in rounds[f"items_{bench.rows}"]]
    fresh_s, again_s = bench.starts()
    print(f"new snapshot {fresh_s:.2f} s, restart {again_s:.2f} s", file=sys.stderr)
    small, middle, large = costs.values()
    return {
        "apply_rows_s": round(statistics.median(largest)),
        "lookups_s": round(bench.lookups()),
        "change_us_1e4": round(small, 2),
        "change_us_1e5": round(middle, 2),
        "change_us_1e6": round(large, 2),
        "restart_ratio": round(again_s / fresh_s, 3),
        "snapshot_s": round(fresh_s, 2),
        "restart_s": round(again_s, 2),
        "rows": bench.rows,
    }


if __name__ == "__main__":
    main()
