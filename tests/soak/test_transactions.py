"""One transaction of the size that the guarantees name."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pyarrow.compute as pc
import pytest

from tests.fixtures.databases import Database
from tests.fixtures.recordings import END, recording

ROWS = int(os.environ.get("SOAK_ROWS", "10000000"))
# What the whole process may grow by; tests before this one in the same process have left theirs.
LIMIT_BYTES = 300 << 20


@pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "plain"])
def test_a_huge_transaction_is_delivered_whole_in_bounded_memory(db18: Database, streaming: bool) -> None:
    """E12: and no idle timeout trips while the server decodes it."""
    db18.execute("CREATE TABLE t (id bigint PRIMARY KEY, pad text)")
    with recording(db18, streaming=streaming) as recorded:
        db18.execute(f"INSERT INTO t SELECT i, repeat('x', 40) FROM generate_series(0, {ROWS - 1}) i")
        count = total = 0
        with resident() as sizes:
            for batch in recorded.batches(patience_s=3600):
                for rows in (found.rows for found in batch.tables if found.table.name != END):
                    assert rows.column("_seq")[0].as_py() == count
                    count += rows.num_rows
                    total += pc.sum(rows.column("id")).as_py()
    assert (count, total) == (ROWS, ROWS * (ROWS - 1) // 2)
    grown = max(sizes) - sizes[0]
    assert grown < LIMIT_BYTES, f"{grown >> 20} MB"


@contextmanager
def resident() -> Iterator[list[int]]:
    """The process' resident memory, sampled while the block runs."""
    process, done = psutil.Process(), threading.Event()
    sizes = [process.memory_info().rss]

    def sample() -> None:
        while not done.wait(0.05):
            sizes.append(process.memory_info().rss)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield sizes
    finally:
        done.set()
        sampler.join()
