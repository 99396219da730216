"""The demo: ends by itself, tells the truth about its indexes, and leaves nothing."""

from __future__ import annotations

import json
import signal
import tempfile
from pathlib import Path

import psutil
import pytest

from penstock.demo.sample import INDEXES
from tests.fixtures.commands import run_penstock, running
from tests.fixtures.endings import await_end
from tests.fixtures.programs import LIMIT, PATIENCE_S
from tests.fixtures.waiting import wait_until


def folders() -> set[Path]:
    """What the demo keeps for itself. The fixtures look after each test for what is left of anything."""
    return set(Path(tempfile.gettempdir()).glob("penstock-*"))


@LIMIT
def test_it_ends_by_itself_and_every_document_is_what_sql_by_hand_gives() -> None:
    """Every operation happened, each index was written to, and the caller's variables do not lead it astray."""
    before = folders()
    astray = {
        "PGSSLMODE": "verify-full",
        "PGPORT": "1",
        "DATABASE_URL": "postgresql://nowhere",
        "SPARK_REMOTE": "sc://no",
    }
    done = run_penstock("demo", "--json", timeout_s=PATIENCE_S, DEMO_SECONDS="3", **astray)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    outcome = json.loads(done.stdout)
    assert outcome["equal"] is True
    assert outcome["faults"] == []
    assert set(outcome["operations"]) == {"insert", "update", "move", "delete", "truncate"}
    assert all(outcome["operations"].values())
    assert set(outcome["indexes"]) == set(INDEXES)
    assert all(
        min(one["documents"], one["seeded"], one["written"], one["deleted"]) > 0 for one in outcome["indexes"].values()
    )
    assert outcome["changes"] >= sum(outcome["operations"].values())
    assert outcome["latency_ms_p50"] > 0
    assert folders() == before


@LIMIT
def test_ctrl_c_ends_it_with_the_same_comparison_and_a_search_works_meanwhile(tmp_path: Path) -> None:
    before = folders()
    with running(tmp_path, "demo") as demo:

        def tried() -> list[str]:
            assert demo.process.poll() is None, demo.err
            return [line.strip() for line in demo.lines if line.startswith("  penstock search products ")]

        wait_until(tried, PATIENCE_S, "the indexes to be live")
        (folder,) = {path for path in folders() - before if path.name.startswith("penstock-demo-")}
        found = run_penstock("search", "products", "kettle", "--limit", "3", "--json", "--config", str(folder))
        assert len(json.loads(found.stdout)) == 3, found.stderr
        assert tried() == [f"penstock search products 'oak lamp' --config {folder}"]
        children = psutil.Process(demo.process.pid).children(recursive=True)
        demo.process.send_signal(signal.SIGINT)
        assert demo.process.wait(PATIENCE_S) == 0, demo.err + "".join(demo.lines[-12:])
        assert demo.lines[-1].startswith("Equal: ")
        assert demo.err == ""
    await_end(children)
    assert folders() == before


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_anything_was_written_leaves_nothing(how: signal.Signals, tmp_path: Path) -> None:
    before = folders()
    with running(tmp_path, "demo") as demo:
        wait_until(
            lambda: list(Path(tempfile.gettempdir()).glob("penstock-demo-*/run.log")), PATIENCE_S, "the pipeline"
        )
        assert demo.end(how) == 128 + how
        assert demo.err == "Ended before anything was written; nothing is left.\n"
    assert folders() == before
