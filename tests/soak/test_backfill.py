"""A backfill of many rows takes no more memory than one of few."""

from __future__ import annotations

import os
from collections.abc import Callable

import psutil

from tests.fixtures.flatness import measure
from tests.fixtures.opensearch import Node
from tests.fixtures.pipelines import START_S, Deployed, Run

ROWS = int(os.environ.get("SOAK_ROWS", "10000000"))
FEW = ROWS // 50
ROWS_S = 2_000  # at the least, on a busy machine
NAMES = "version: 1\ntable: customer\nfields: [{keyword: name}]\n"


def peak_mb(deployed: Deployed, rows: int) -> float:
    """Seed so many rows; the most that all its processes held meanwhile."""
    deployed.database.execute("TRUNCATE customer CASCADE")
    deployed.database.execute("INSERT INTO customer SELECT n, 'c' || n FROM generate_series(1, %s) n", rows)
    deployed.database.execute("ANALYZE customer")
    run = deployed.start()
    most = 0.0

    def is_live() -> bool:
        nonlocal most
        held = measure("all", [psutil.Process(run.process.pid), *run.family()])
        most = max(most, held["all memory"])
        return phase(run) == "live"

    run.wait(is_live, START_S + rows / ROWS_S, f"{rows} rows to be seeded")
    assert deployed.node
    deployed.node.ask("POST", f"/{deployed.prefix}names/_refresh")
    _, said = deployed.node.ask("GET", f"/{deployed.prefix}names/_count")
    assert said["count"] == rows
    assert run.stop() == 0
    return most


def phase(run: Run) -> str:
    told = run.status()
    return str(told["indexes"]["names"]["phase"]) if told else ""


def test_the_memory_of_a_backfill_does_not_depend_on_the_rows(deploy: Callable[..., Deployed], node: Node) -> None:
    """E54: of the driver, the JVM, its workers and the reader together, at a fiftieth of the rows and at all."""
    peaks = []
    for rows in (FEW, ROWS):
        deployed = deploy(node)
        del deployed.sinks["local"]
        deployed.write(names=NAMES)
        peaks.append(peak_mb(deployed, rows))
    few, many = peaks
    print(f"peak with {FEW} rows {few:.0f} MB, with {ROWS} rows {many:.0f} MB")
    assert many < few * 1.15 + 50
