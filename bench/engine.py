"""How fast `penstock run` is from a Postgres to a real OpenSearch node, beside what that node can take at most.

A document is a book with its publisher and about three reviews. The backfill is set against bulk-writing the same
documents, ready-made, to the same node from as many processes, in turn, so that a noisy machine counts for both; three
times, and the medians count. Live: two writers at full speed, and how long it takes until their last change can be
read by its id; single changes, from commit to `GET`; the rename of a publisher with 10,000 books; the pace of a writer
beside us. Before speed, results: after each backfill and at the end every document in the index must equal SQL written
by hand.

    python bench/engine.py [--books 100000] [--live 60] [--samples 300] [--no-ten-times]

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import sys
import time
from typing import Any

from engine_load import Limit, write
from engine_world import Run, World, say, until

from penstock.app.parts import open_builder, sink_settings
from penstock.config.file import read_deployment
from penstock.document.mapping import index_body

GOALS = {
    "backfill_docs_s": (">=", 20_000),
    "backfill_ratio": (">=", 0.75),
    "live_tx_s": (">=", 7_000),
    "latency_ms_p50": ("<=", 45),
    "fanout_docs_s": (">=", 10_000),
    "peak_mb": ("<=", 1200),
    "peak_mb_10x": ("<=", 1200),
}
PACE = 2_000
ROUNDS = 3
PROCESSES = os.cpu_count() or 1


def body(world: World) -> dict[str, Any]:
    """The body of the index as `penstock run` makes it."""
    deployment = read_deployment(str(world.config))
    builder = open_builder(deployment, 1)
    try:
        return dict(index_body(builder.spec.schema("books"), sink_settings(deployment.sinks[0])))
    finally:
        builder.close()


def backfill(run: Run, world: World) -> dict[str, float]:
    """From the first range to the last, and how long the start before that took."""
    began = time.perf_counter()
    until(lambda: run.in_phase("seeding"), "the seed to begin", pause_s=0.05)
    first = time.perf_counter()
    until(lambda: run.in_phase("live"), "the seed to be complete", pause_s=0.05)
    return {"start_s": first - began, "backfill_docs_s": world.books / (time.perf_counter() - first)}


_marks = itertools.count()


def mark(world: World, at: int) -> float:
    """Seconds from a committed change to its document, read by id."""
    connection, title = world.connect(), f"marked {next(_marks)}"
    key = world.books - at % (world.books // 2)
    world.sql.execute("UPDATE book SET title = %s WHERE id = %s", [title, key])
    began = time.perf_counter()
    until(lambda: world.get(connection, key).get("title") == title, "a change to be seen", pause_s=0.001)
    connection.close()
    return time.perf_counter() - began


def latency(world: World, samples: int) -> dict[str, float]:
    """Single changes, after as many to warm up."""
    times = []
    for at in range(samples * 2):
        times.append(mark(world, at) * 1000)
        time.sleep(0.02 + at % 7 * 0.01)  # at no fixed place in the stream's rhythm
    measured = sorted(times[samples:])
    return {"latency_ms_p50": statistics.median(measured), "latency_ms_p99": measured[int(len(measured) * 0.99)]}


def live(run: Run, world: World, seconds: int) -> dict[str, float]:
    """Two writers at full speed, until the last of their changes is durable in the index."""
    began = time.perf_counter()
    written = write(world, seconds)
    run.catch_up(world)
    drained = written.transactions / (time.perf_counter() - began)
    rate = written.transactions / written.seconds
    return {"live_tx_s": drained, "live_ratio": drained / rate, "writer_tx_s": rate}


def fanout(world: World) -> dict[str, float]:
    """The rename of the largest publisher: documents a second, the median of three."""
    found = []
    for at in range(3):
        before = world.indexed()
        world.sql.execute("UPDATE publisher SET name = %s WHERE id = 1", [f"Renamed {at}"])
        began = time.perf_counter()
        until(lambda: world.indexed() >= before + world.giant, "the rename", pause_s=0.02)  # noqa: B023 - at once
        found.append(world.giant / (time.perf_counter() - began))
    return {"fanout_docs_s": statistics.median(found)}


def warm_up(limit: Limit) -> None:
    """A node's JVM is slow at first: go on until it gets no quicker."""
    best = limit.docs_s()
    for _ in range(8):
        now = limit.docs_s()
        say(f"the node takes {now:,.0f} documents a second")
        if now < best * 1.05:
            return
        best = now


def beside_limit(run: Run, world: World, limit: Limit) -> dict[str, float]:
    """The backfill of a run that has just started, and what the node takes at most, right after it."""
    found = backfill(run, world)
    world.compare()
    most = limit.docs_s()
    return told(found | {"limit_docs_s": most, "backfill_ratio": found["backfill_docs_s"] / most})


def measure(books: int, live_s: int, samples: int) -> dict[str, float]:
    """Everything but the ten-fold."""
    figures: dict[str, float] = {"books": books}
    paced_s = max(5, live_s // 4)
    with World(books) as world:
        limit = Limit(world, body(world), PROCESSES)
        warm_up(limit)
        alone = write(world, paced_s, rate=PACE)
        rounds, peaks = [], []
        for _ in range(ROUNDS - 1):
            with Run(world) as run:
                rounds.append(beside_limit(run, world, limit))
            peaks.append(run.peak_mb)
            world.forget(run)
        with Run(world) as run:
            rounds.append(beside_limit(run, world, limit))
            figures |= told({name: statistics.median(one[name] for one in rounds) for name in rounds[0]})
            figures |= told(latency(world, samples))
            figures |= told(fanout(world))
            figures |= told(live(run, world, live_s))
            beside = write(world, paced_s, rate=PACE)
            figures["writer_ratio"] = beside.p50_ms / alone.p50_ms
            run.catch_up(world)
            world.compare()
            figures["peak_mb"] = max(*peaks, run.peak_mb)
    return figures


def measure_ten_times(books: int) -> dict[str, float]:
    """The backfill of ten times as many."""
    with World(books * 10) as world, Run(world) as run:
        found = backfill(run, world)
        world.compare()
        return {"backfill_docs_s_10x": found["backfill_docs_s"], "peak_mb_10x": run.peak_mb}


def told(figures: dict[str, float]) -> dict[str, float]:
    """The figures, said as they come."""
    say(", ".join(f"{name} {value:,.1f}" for name, value in figures.items()))
    return figures


def main() -> None:
    """Measure, compare with the goals, print a line for machines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", type=int, default=100_000)
    parser.add_argument("--live", type=int, default=60, help="seconds that writers write at full speed")
    parser.add_argument("--samples", type=int, default=300, help="single changes timed for latency")
    parser.add_argument("--ten-times", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # servers are stopped on the way out
    figures = measure(options.books, options.live, options.samples)
    if options.ten_times:
        figures |= told(measure_ten_times(options.books))
    for name, (sense, goal) in GOALS.items():
        if name in figures:
            met = figures[name] >= goal if sense == ">=" else figures[name] <= goal
            say(f"{name}: {figures[name]:,.2f} (goal {sense} {goal}){'' if met else ', missed'}")
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
