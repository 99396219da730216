"""One `penstock run` for a long time: every document is right at the end, and nothing has grown.

`make soak-long` runs it for `SOAK_MINUTES` (60) and writes `last-long-run.txt`; by `make soak` it takes a minute, in
which only the documents are judged. The run is a process of its own, into a local sink and a search node; its writer
is slow, and pauses now and then: what is looked for leaks by the number of things done, not by their size. Beside
it, one after the other and again: a large transaction, fan-outs, key changes, columns added and dropped, rejected
documents and their replay, a reindex, a reconcile, truncated tables, ended connections, a rest long enough for the slot
to move by itself; once, after a third, the node is killed and started again. The run itself is one process from start
to end, so that all figures are of one life. How flatness is judged, and why so: tests/fixtures/flatness.py.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.demo.server import _free_port
from tests.fixtures import market
from tests.fixtures.commands import run_penstock
from tests.fixtures.flatness import LEAST_MINUTES, figures, supersedes, table
from tests.fixtures.opensearch import Node
from tests.fixtures.pipelines import START_S, Deployed, Run, pass_time
from tests.fixtures.programs import ROOT
from tests.fixtures.trade import Trade
from tests.fixtures.watches import Watch

MINUTES = float(os.environ.get("SOAK_MINUTES", "1"))
PAUSE_S = 0.5  # between two transactions of the writer: with all the rest about a tenth of a core
RESULT = Path(__file__).with_name("last-long-run.txt")

DAYS = """
version: 1
table: day
fields: [{date: at}, {keyword: note}]
"""
TABLES = """
CREATE TABLE day (id int PRIMARY KEY, at date, note text);
INSERT INTO day SELECT n, '2026-01-01', n FROM generate_series(1, 20) n;
"""


class Operations:
    """What is done to the deployment beside the writer."""

    def __init__(self, deployed: Deployed, run: Run, rng: random.Random) -> None:
        self.done: Counter[str] = Counter()
        self._deployed, self._run, self._rng = deployed, run, rng
        self._numbers = itertools.count(1)
        self._turn = self._turns()

    def next(self) -> None:
        """The next one; each has its turn before one has another."""
        act = next(self._turn)
        act()
        self.done[act.__name__] += 1

    def _turns(self) -> Iterator[Callable[[], None]]:
        every = [self.grow, self.fan_out, self.rekey, self.alter, self.reject, self.reindex, self.reconcile]
        every += [self.truncate, self.disconnect]
        while True:
            yield from self._rng.sample(every, len(every))

    def penstock(self, *arguments: str, code: int = 0) -> Any:
        """The JSON that a command prints."""
        config = str(self._deployed.folder / "penstock.toml")
        done = run_penstock(*arguments, "--json", "--config", config, timeout_s=START_S)
        assert done.returncode == code, f"{arguments}: {done.returncode}: {done.stdout}\n{done.stderr}"
        return json.loads(done.stdout.splitlines()[0])

    def grow(self) -> None:
        """One large transaction; the next one takes it back, so that the tables stay what they are."""
        self._execute("INSERT INTO customer SELECT n, 'many' FROM generate_series(10001, 14000) n")
        self._run.catch_up()
        self._execute("DELETE FROM customer WHERE id > 10000; DELETE FROM mark")

    def fan_out(self) -> None:
        """A few rows that many documents show."""
        self._execute("UPDATE brand SET name = %s; UPDATE product SET name = name".replace("%s", self._word()))
        self._execute(f"UPDATE tag SET name = {self._word()}, grade = grade % 9 + 1")

    def rekey(self) -> None:
        """Keys of documents, and where their children hang."""
        for before, after in (("M", "Mx"), ("Mx", "M")):
            self._execute(f"UPDATE place SET code = '{after}', name = {self._word()} WHERE code = '{before}'")
        self._execute("UPDATE visit SET code = CASE code WHEN 'B' THEN 'M' ELSE 'B' END")
        self._execute("UPDATE customer SET id = id + 5000 WHERE id < 20")
        self._execute(
            "UPDATE customer SET id = id - 5000 WHERE id BETWEEN 5000 AND 6000 AND id - 5000 NOT IN"
            " (SELECT id FROM customer)"
        )
        self._execute("DELETE FROM customer WHERE id BETWEEN 5000 AND 6000")
        self._execute("UPDATE invoice SET customer_id = customer_id % 40 + 1")

    def alter(self) -> None:
        """A column that no index reads comes, is written to, and goes."""
        name = f"extra_{next(self._numbers)}"
        self._execute(f"ALTER TABLE customer ADD COLUMN {name} int; UPDATE customer SET {name} = id")
        self._run.catch_up()
        self._execute(f"ALTER TABLE customer DROP COLUMN {name}")

    def reject(self) -> None:
        """Documents go to quarantine, are rejected again, and are taken in the end."""
        self._reject_words(True)
        self._execute("UPDATE day SET note = 'word ' || id WHERE id <= 5")
        self._run.await_status(quarantined=5)
        assert self.penstock("quarantine", "replay", code=1) == {"taken": 0, "rejected": 5, "skipped": {}}
        self._reject_words(False)
        assert self.penstock("quarantine", "replay") == {"taken": 5, "rejected": 0, "skipped": {}}
        self._execute("UPDATE day SET note = id")

    def _reject_words(self, rejecting: bool) -> None:
        node = self._deployed.node
        assert node
        body = {"processors": [{"convert": {"field": "note", "type": "integer"}}]}
        assert node.ask("PUT", "/_ingest/pipeline/numbers", body)[0] == 200
        settings = {"index": {"final_pipeline": "numbers" if rejecting else "_none"}}
        assert node.ask("PUT", f"/{self._deployed.prefix}days/_settings", settings)[0] == 200

    def reindex(self) -> None:
        """A new generation of one index."""
        self.penstock("reindex", self._rng.choice([*self._deployed.schemas]))

    def reconcile(self) -> None:
        """Nothing differs, while rows change."""
        found = self.penstock("reconcile")
        assert not [one for one in found["comparisons"] if one["differing"]], found

    def disconnect(self) -> None:
        """Every connection of the run's is ended by the server; it goes on by itself."""
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        self._execute(f"{query} AND application_name LIKE 'penstock%' AND application_name NOT LIKE 'penstock-tests%'")
        self._run.catch_up()

    def truncate(self) -> None:
        """A child's rows, and those of a root."""
        for name in ("stamp", "customer"):
            self._execute(f"TRUNCATE {name}")
            self._run.catch_up()
        self._execute("INSERT INTO customer SELECT n, 'again' FROM generate_series(1, 40) n ON CONFLICT DO NOTHING")

    def lose_node(self) -> None:
        """The search node is killed, and comes back."""
        node = self._deployed.node
        assert node
        node.halt(signal.SIGKILL)
        self._execute("UPDATE customer SET name = 'while it is down'")
        self._run.await_trouble()
        node.start()
        self._run.catch_up()

    def _execute(self, statement: str) -> None:
        while True:
            try:
                self._deployed.database.execute(statement)
                return
            except psycopg.errors.DeadlockDetected:  # with the writer
                pass

    def _word(self) -> str:
        return f"'word {self._rng.randint(1, 9999)}'"


class Writer(Trade):
    """Trade that leaves TRUNCATE to the operations: a seed that is under way refuses a reindex."""

    def _step(self) -> tuple[str, str]:
        while (step := super()._step())[0] == "truncate":
            pass
        return step


def live(run: Run, watch: Watch, operations: Operations, rng: random.Random) -> Counter[str]:
    """Write, operate and rest, until the time is over; what was written."""
    written: Counter[str] = Counter()
    lost = False
    while watch.share < 1:
        with Writer(run.deployment.database, rng, pause_s=PAUSE_S) as writer:
            for _ in range(12):
                pass_time(rng.uniform(1, 5))
                operations.next()
                if not lost and watch.share > 1 / 3:
                    operations.lose_node()
                    lost = True
                if watch.share >= 1:
                    break
        written += writer.done
        run.catch_up()
        # A rest longer than the slot stands still by itself.
        pass_time(max(0.0, min(65.0, MINUTES * 4, (1 - watch.share) * MINUTES * 60)))
    return written


@pytest.mark.timeout(MINUTES * 60 + 1200)
def test_nothing_grows_and_every_document_is_right(
    deploy: Callable[..., Deployed], start_node: Callable[..., Node], rng: random.Random
) -> None:
    """E23, E32, E80, E81, E83: memory, descriptors, threads, connections, files, and the WAL that the slot holds."""
    commit = git("rev-parse", "--short", "HEAD").stdout.strip()
    deployed = deploy(start_node())
    deployed.database.execute(market.ROWS + TABLES)
    public, private = _free_port(), _free_port()
    addresses = f'public_address = "127.0.0.1:{public}"\nprivate_address = "127.0.0.1:{private}"'
    deployed.top = f'on_error = "quarantine"\n[server]\n{addresses}'
    deployed.write(days=DAYS, **market.SCHEMAS)
    run = deployed.start()
    run.catch_up()
    operations = Operations(deployed, run, rng)
    with Watch(run, public, MINUTES * 60) as watch:
        written = live(run, watch, operations, rng)
    run.catch_up()
    deployed.judge(*market.SCHEMAS)
    days = {str(id): {"at": str(at), "note": note} for id, at, note in deployed.database.execute("SELECT * FROM day")}
    assert deployed.found("days") == {"local": days, "search": days}
    found = figures(watch.samples, MINUTES * 60)
    report = f"{table(found)}\n\nwritten: {dict(written)}\noperations: {dict(operations.done)}\n"
    print(report)
    if MINUTES >= LEAST_MINUTES:
        assert {one.name for one in found} == {name for _, sample in watch.samples for name in sample}
        grown = [one.name for one in found if not one.is_flat]
        record(commit, report, f"grows: {', '.join(grown)}" if grown else "flat, and every document equals SQL")
        assert not grown, report
    assert run.stop() == 0


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def record(commit: str, report: str, verdict: str) -> None:
    """Keep the result of the commit that ran, unless one is kept that says more."""

    def is_newer(before: str) -> bool:
        return commit != before and git("merge-base", "--is-ancestor", before, commit).returncode == 0

    if not commit or (RESULT.exists() and not supersedes(RESULT.read_text(), MINUTES, is_newer)):
        return
    today = time.strftime("%Y-%m-%d", time.gmtime())
    head = f"{today}, commit {commit}, for {MINUTES:g} minutes: {verdict}"
    units = "memory, heap, state, sink, WAL and lag in MB, Python's blocks in thousands"
    RESULT.write_text(f"{head}\nMedians of quarters; {units}; growth is that from the 2nd to the 4th.\n\n{report}")
