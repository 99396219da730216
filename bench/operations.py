"""What running it for years costs: a reconcile, a reindex, and whether a busy and healthy system is reported as such.

Documents and servers are those of `engine.py`. `reconcile_docs_s`: documents held against the database a second, by the
running deployment, while nothing changes. `reconcile_false`: what reconciles report while two writers change rows all
the time, and nothing is wrong; any is a defect. `reindex_ratio`: a reindex (a seed, then a comparison) beside
the first backfill. Before speed, results: documents that were spoilt are found, each once, and mended.

    python bench/operations.py [--books 100000] [--busy 60]

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from typing import Any

from engine_load import write
from engine_world import Run, World, say, until

from penstock.ops.control import ask

PACE = 1_000
SPOILT = 20


def reconcile(run: Run, *, repair: bool = False) -> dict[str, Any]:
    """What a reconcile by the running deployment found, and how long it took."""
    began = time.perf_counter()
    told = ask(run.state, "reconcile", action="start", repair=repair)
    while told["running"]:
        time.sleep(0.05)
        told = ask(run.state, "reconcile", action="state")
    if told["error"] or told["skipped"]:
        raise SystemExit(f"the reconcile failed: {told['error'] or told['skipped']}")
    (found,) = told["comparisons"]
    return {**found, "seconds": time.perf_counter() - began}


def spoil(run: Run, world: World) -> None:
    """Some documents are deleted, some changed, some added; all are found, and mended."""
    for n in range(1, SPOILT + 1):
        world.node.ask("DELETE", f"/books/_doc/{500 + n}")
        world.node.ask("POST", f"/books/_update/{1000 + n}", {"doc": {"title": "spoilt"}})
        world.node.ask("PUT", f"/books/_doc/{world.books + n}", {"title": "nobody's"})
    run.catch_up(world)
    found = reconcile(run, repair=True)
    if set(found["counts"].values()) != {SPOILT} or found["left"]:
        raise SystemExit(f"of {SPOILT} each: {found['counts']}, {found['left']} left")
    world.compare()


def busy(run: Run, world: World, seconds: int) -> dict[str, float]:
    """One reconcile after the other beside two writers."""
    writing = threading.Thread(target=write, args=(world, seconds), kwargs={"rate": PACE})
    writing.start()
    wrong, rounds = 0, 0
    while writing.is_alive():
        found = reconcile(run)
        wrong, rounds = wrong + found["differing"], rounds + 1
        say(f"beside writers: {found['compared']:,} compared in {found['seconds']:.1f} s, {found['counts']}")
    writing.join()
    return {"reconcile_false": wrong, "reconcile_rounds": rounds}


def reindex(run: Run, world: World) -> float:
    """Documents a second of a reindex."""
    before = set(world.node.ask("GET", "/_alias/books")[1])
    began = time.perf_counter()
    ask(run.state, "reindex", index="books")
    until(lambda: set(world.node.ask("GET", "/_alias/books")[1]) != before, "readers to change over", pause_s=0.1)
    return world.books / (time.perf_counter() - began)


def measure(books: int, busy_s: int) -> dict[str, float]:
    """Everything."""
    figures: dict[str, float] = {"books": books}
    with World(books) as world, Run(world) as run:
        until(lambda: run.in_phase("seeding"), "the seed to begin")
        began = time.perf_counter()
        until(lambda: run.in_phase("live"), "the seed to be complete")
        backfill = books / (time.perf_counter() - began)
        spoil(run, world)
        quiet = reconcile(run)
        figures |= {"backfill_docs_s": backfill, "reconcile_docs_s": books / quiet["seconds"]}
        say(f"backfill {backfill:,.0f}, reconcile {figures['reconcile_docs_s']:,.0f} documents a second")
        figures |= busy(run, world, busy_s)
        figures["reindex_ratio"] = reindex(run, world) / backfill
        run.catch_up(world)
        world.compare()
        figures["peak_mb"] = run.peak_mb
    return figures


def main() -> None:
    """Measure, and print a line for machines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", type=int, default=100_000)
    parser.add_argument("--busy", type=int, default=60, help="seconds that writers write beside reconciles")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # servers are stopped on the way out
    figures = measure(options.books, options.busy)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
