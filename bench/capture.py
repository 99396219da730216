"""How fast the capture drains a slot, beside `pg_recvlogical -f /dev/null` on the same WAL.

Both sides drain copies of one slot, in turn; figures are medians of ratios within a round, so that a noisy machine
counts for both. Before speed, results: what `pg_recvlogical` writes to a file is taken apart by a walker of this
module's own, and counts and checksums must equal those of the changes that the capture delivered.

    python bench/capture.py [--rows 400000] [--rounds 3] [--huge 5000000] [--only keys,…]

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import resource
import statistics
import struct
import subprocess
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from penstock import ReplicationConfig
from penstock.demo.server import Server, find_binaries
from penstock.postgres.capture import WalChangeCapture

COLUMNS = """id bigint PRIMARY KEY, a int, b bigint, c text, d timestamptz, e numeric(12,2), f boolean, g uuid,
             h jsonb, i double precision"""
FILL = """INSERT INTO event SELECT n, n % 100, n * 17, 'text value number ' || n || repeat('x', (n % 80)::int), now(),
          (n % 10000) / 100.0, n % 2 = 0, gen_random_uuid(), jsonb_build_object('k', n, 'name', 'n' || n), n / 7.0
          FROM generate_series({first}::bigint, {last}::bigint) n"""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
GOALS = {"keys_ratio": 0.95, "keys_list_ratio": 1.3, "rows_ratio": 0.9, "huge_tx_peak_mb": 500, "latency_ms_p50": 3}
Sums = dict[str, Any]


@dataclass
class Bench:
    """A server with a filled slot to copy, and how many changes stand in it."""

    server: Server
    sql: psycopg.Connection[Any]
    changes: int
    end: str
    number: Iterator[int]

    def copy_slot(self) -> str:
        """A slot at the start of the WAL, for one run."""
        name = f"run_{next(self.number)}"
        self.sql.execute("SELECT pg_copy_logical_replication_slot('filled', %s)", [name])
        return name

    def drop_slot(self, name: str) -> None:
        """Drop it; a walsender ends a moment after its client."""
        self.sql.execute("SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s"
                         " AND active_pid IS NOT NULL", [name])  # fmt: skip
        self.sql.execute("SELECT pg_drop_replication_slot(%s)", [name])

    def receive(self, publication: str, file: str) -> float:
        """Seconds that `pg_recvlogical` takes."""
        name = self.copy_slot()
        command = [
            str(self.server.binaries / "pg_recvlogical"),
            "-d",
            self.server.url(),
            "-S",
            name,
            "--start",
            "-f",
            file,
        ]
        options = ["-o", "proto_version=1", "-o", f"publication_names={publication}", "-E", self.end, "-F", "0"]
        started = time.perf_counter()
        subprocess.run([*command, *options], check=True, stderr=subprocess.DEVNULL)
        seconds = time.perf_counter() - started
        self.drop_slot(name)
        return seconds

    def capture(self, publication: str, consume: Callable[[WalChangeCapture, int], Sums]) -> tuple[float, Sums]:
        """Seconds that the capture takes, and what was delivered."""
        name = self.copy_slot()
        started = time.perf_counter()
        sums = consume(WalChangeCapture(ReplicationConfig(name, publication), self.server.url()), self.changes)
        seconds = time.perf_counter() - started
        self.drop_slot(name)
        return seconds, sums


def fill(server: Server, rows: int) -> Bench:
    """Inserts in transactions of 1,000 rows, then updates of an eighth and deletes of a twentieth of them."""
    sql = psycopg.connect(server.url(), autocommit=True)
    sql.execute(f"CREATE TABLE event ({COLUMNS})")
    sql.execute("CREATE PUBLICATION whole FOR TABLE event")
    sql.execute("CREATE PUBLICATION listed FOR TABLE event (id)")
    sql.execute("SELECT pg_create_logical_replication_slot('filled', 'pgoutput')")
    for first in range(0, rows, 1000):
        sql.execute(FILL.format(first=first, last=first + 999))
    for first in range(0, rows // 8, 1000):
        sql.execute("UPDATE event SET a = a + 1 WHERE id BETWEEN %s AND %s", [first, first + 999])
    for first in range(0, rows // 20, 1000):
        sql.execute("DELETE FROM event WHERE id BETWEEN %s AND %s", [first, first + 999])
    ((end,),) = sql.execute("SELECT pg_current_wal_lsn()::text").fetchall()
    sql.execute("CREATE TABLE after_the_end ()")
    changes = rows + -(-(rows // 8) // 1000) * 1000 + -(-(rows // 20) // 1000) * 1000
    return Bench(server, sql, changes, end, itertools.count())


def consume_keys(capture: WalChangeCapture, count: int) -> Sums:
    """Every thin change, confirmed transaction by transaction."""
    seen: Counter[str] = Counter()
    total = number = 0
    with capture.live() as stream:
        for change in stream:
            row = change.new or change.old or {}
            total += row["id"]
            seen[change.op] += 1
            number += 1
            change.ack.confirm()
            if number == count:
                break
    return {"ops": {str(op): n for op, n in seen.items()}, "id": total}


def consume_rows(capture: WalChangeCapture, count: int) -> Sums:
    """Every row as Arrow."""
    sums = RowSums()
    with capture.batches() as stream:
        for batch in stream:
            for table in batch.tables:
                sums.add(table.rows)
            batch.confirm()
            if sums.rows == count:
                break
    return sums.result()


class RowSums:
    """Counts and checksums over typed columns of inserted and updated rows, and the keys of deleted ones."""

    def __init__(self) -> None:
        self.rows = 0
        self.ops: Counter[str] = Counter()
        self.sums: Counter[str] = Counter()
        self.texts = dict.fromkeys("cgh", 0)

    def add(self, rows: pa.RecordBatch) -> None:
        self.rows += len(rows)
        for item in pc.value_counts(rows["_change_type"]).to_pylist():
            self.ops[item["values"].removesuffix("_postimage")] += item["counts"]
        for name in ("id", "a", "b", "e", "f"):
            self.sums[name] += pc.sum(rows[name]).as_py() or 0
        self.sums["d"] += pc.sum(rows["d"].cast(pa.int64())).as_py() or 0
        for name in self.texts:
            column = rows[name]
            _, offsets, data = column.buffers()
            ends = np.frombuffer(offsets, np.int32)
            used = memoryview(data)[ends[column.offset] : ends[column.offset + len(column)]] if data else b""
            self.texts[name] = zlib.crc32(used, self.texts[name])

    def result(self) -> Sums:
        return {"ops": dict(self.ops), **_modular(self.sums), **self.texts}


def walk(path: str) -> tuple[Sums, Sums]:
    """The sums of what pg_recvlogical wrote: for keys, and for whole rows."""
    with open(path, "rb") as file:
        data = file.read()
    names = [column.split()[0] for column in COLUMNS.replace("\n", " ").split(", ")]
    ops: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    texts = dict.fromkeys("cgh", 0)
    at = 0
    while at < len(data):
        tag, at = data[at : at + 1], at + 1
        if tag == b"B":
            at += 20
        elif tag == b"C":
            at += 25
        elif tag == b"R":
            at = _skip_relation(data, at)
        else:
            ops[{b"I": "insert", b"U": "update", b"D": "delete"}[tag]] += 1
            values, at = _tuple(data, at + 5)
            for name, value in zip(names, values, strict=False):
                _count(name, value, sums, texts)
        assert data[at : at + 1] == b"\n", "pg_recvlogical ends each message with a line feed"
        at += 1
    keys = {"ops": dict(ops), "id": sums["id"]}
    return keys, {"ops": dict(ops), **_modular(sums), **texts}


def _modular(sums: Counter[str]) -> Sums:
    """Sums as 64-bit arithmetic has them: it wraps."""
    return {name: str(value % 2**64) for name, value in sorted(sums.items())}


def _count(name: str, value: bytes | None, sums: Counter[str], texts: dict[str, int]) -> None:
    if value is None or name == "i":
        return
    if name in texts:
        texts[name] = zlib.crc32(value, texts[name])
    elif name == "e":
        sums[name] += Decimal(value.decode())  # type: ignore[assignment]
    elif name == "f":
        sums[name] += value == b"t"
    elif name == "d":
        moment = datetime.fromisoformat(value.decode())
        sums[name] += round((moment - EPOCH) / timedelta(microseconds=1))
    else:
        sums[name] += int(value)


def _skip_relation(data: bytes, at: int) -> int:
    at = data.index(b"\0", at + 4) + 1
    at = data.index(b"\0", at) + 1
    (count,) = struct.unpack_from(">H", data, at + 1)
    at += 3
    for _ in range(count):
        at = data.index(b"\0", at + 1) + 9
    return at


def _tuple(data: bytes, at: int) -> tuple[list[bytes | None], int]:
    (count,) = struct.unpack_from(">H", data, at)
    at += 2
    values: list[bytes | None] = []
    for _ in range(count):
        kind, at = data[at : at + 1], at + 1
        if kind == b"t":
            (size,) = struct.unpack_from(">i", data, at)
            values.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        else:
            values.append(None)
    return values, at


@dataclass(frozen=True)
class Drain:
    """One comparison: a publication, a consumer, and which sums of the reference they are held to."""

    publication: str
    consume: Callable[[WalChangeCapture, int], Sums]
    whole: bool


DRAINS = {
    "keys_ratio": Drain("whole", consume_keys, False),
    "keys_list_ratio": Drain("listed", consume_keys, False),
    "rows_ratio": Drain("whole", consume_rows, True),
}


def compare(bench: Bench, drain: Drain, rounds: int) -> dict[str, Any]:
    """Results first, then speed: ours ÷ pg_recvlogical, in turn."""
    with tempfile.NamedTemporaryFile(prefix="penstock-bench-") as file:
        bench.receive(drain.publication, file.name)
        expected = walk(file.name)[drain.whole]
    ratios, theirs, ours = [], [], []
    for _ in range(rounds):
        reference_s = bench.receive(drain.publication, "/dev/null")
        own_s, found = bench.capture(drain.publication, drain.consume)
        if found != expected:
            raise SystemExit(f"results differ:\n  ours      {found}\n  reference {expected}")
        ratios.append(reference_s / own_s)
        theirs.append(bench.changes / reference_s)
        ours.append(bench.changes / own_s)
    middle = statistics.median
    return {"ratio": middle(ratios), "reference": middle(theirs), "ours": middle(ours)}


def huge_transaction(server: Server, rows: int) -> dict[str, Any]:
    """Peak memory of a process that takes one transaction of many rows as Arrow, and what it saw."""
    with psycopg.connect(server.url(), autocommit=True) as sql:
        sql.execute("CREATE TABLE huge (id bigint PRIMARY KEY, v text)")
        sql.execute("CREATE PUBLICATION huge FOR TABLE huge")
        sql.execute("SELECT pg_create_logical_replication_slot('huge', 'pgoutput')")
        sql.execute(f"INSERT INTO huge SELECT n, 'value ' || n FROM generate_series(1, {rows}) n")
    context = multiprocessing.get_context("spawn")
    answer = context.SimpleQueue()
    child = context.Process(target=_take_huge, args=(server.url(), rows, answer))
    child.start()
    peak_mb, seen, total = answer.get()
    child.join()
    if (seen, total) != (rows, rows * (rows + 1) // 2):
        raise SystemExit(f"the huge transaction came as {seen} rows with the sum {total}")
    with psycopg.connect(server.url(), autocommit=True) as sql:
        sql.execute("SELECT pg_drop_replication_slot('huge')")
        sql.execute("DROP PUBLICATION huge")
        sql.execute("DROP TABLE huge")
    return {"peak_mb": peak_mb}


def _take_huge(url: str, rows: int, answer: Any) -> None:
    seen = total = 0
    with WalChangeCapture(ReplicationConfig("huge", "huge"), url).batches() as stream:
        for batch in stream:
            seen += batch.rows
            total += sum(pc.sum(table.rows["id"]).as_py() for table in batch.tables)
            batch.confirm()
            if seen >= rows:
                break
    answer.put((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, seen, total))


def latency_ms(server: Server, samples: int) -> dict[str, Any]:
    """From just before a single-row transaction is sent to its change in the consumer's hands, a writer at 200/s."""
    with psycopg.connect(server.url(), autocommit=True) as sql:
        sql.execute("CREATE TABLE moment (sent_ns bigint PRIMARY KEY)")
        sql.execute("CREATE PUBLICATION moment FOR TABLE moment")
    found: list[float] = []
    context = multiprocessing.get_context("spawn")
    with WalChangeCapture(ReplicationConfig("moment", "moment"), server.url()).live() as stream:
        starter = threading.Thread(target=_start_writer, args=(context, server.url(), samples))
        starter.start()
        for change in stream:
            found.append((time.monotonic_ns() - (change.new or {})["sent_ns"]) / 1e6)
            change.ack.confirm()
            if len(found) == samples:
                break
        starter.join()
    with psycopg.connect(server.url(), autocommit=True) as sql:
        sql.execute("SELECT pg_drop_replication_slot('moment')")
    found.sort()
    return {"p50": statistics.median(found), "p99": found[int(len(found) * 0.99)]}


def _start_writer(context: Any, url: str, samples: int) -> None:
    with psycopg.connect(url, autocommit=True) as sql:
        while not sql.execute("SELECT FROM pg_replication_slots WHERE slot_name = 'moment' AND active").fetchall():
            time.sleep(0.01)
    writer = context.Process(target=_write_moments, args=(url, samples))
    writer.start()
    writer.join()


def _write_moments(url: str, samples: int) -> None:
    with psycopg.connect(url, autocommit=True) as sql:
        for _ in range(samples):
            sql.execute("INSERT INTO moment VALUES (%s)", [time.monotonic_ns()])
            time.sleep(0.005)


def main() -> None:
    """Run everything, print a table for people and a line for machines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000, help="inserted rows; updates and deletes come on top")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--huge", type=int, default=5_000_000, help="rows of the one large transaction")
    parser.add_argument("--samples", type=int, default=1000, help="transactions timed for latency")
    options = parser.parse_args()
    table = Table("what", "ours", "reference", "figure", "goal", title="Capture")
    figures: dict[str, float] = {}
    with Server(find_binaries(), {"max_wal_size": "8GB", "checkpoint_timeout": "1h"}) as server:
        bench = fill(server, options.rows)
        for name, drain in DRAINS.items():
            found = compare(bench, drain, options.rounds)
            figures[name] = round(found["ratio"], 3)
            rates = [f"{found[side]:,.0f}/s" for side in ("ours", "reference")]
            table.add_row(name, *rates, f"{figures[name]:.2f}", f"≥ {GOALS[name]}")
        bench.sql.execute("SELECT pg_drop_replication_slot('filled')")
        bench.sql.close()
        waited = latency_ms(server, options.samples)
        figures |= {"latency_ms_p50": round(waited["p50"], 3), "latency_ms_p99": round(waited["p99"], 3)}
        p99 = f"p99 {waited['p99']:.2f} ms"
        table.add_row("latency_ms_p50", p99, "", f"{waited['p50']:.2f}", f"≤ {GOALS['latency_ms_p50']}")
        peak = huge_transaction(server, options.huge)
        figures["huge_tx_peak_mb"] = round(peak["peak_mb"])
        goal = f"≤ {GOALS['huge_tx_peak_mb']}"
        table.add_row("huge_tx_peak_mb", f"{options.huge:,} rows", "", f"{peak['peak_mb']:.0f}", goal)
    Console().print(table)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
