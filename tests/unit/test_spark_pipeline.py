"""What ended a run at work on Spark, told without one."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark import SparkContext

from penstock.contracts import Extent
from penstock.engine.batch import IN_FLIGHT
from penstock.engine.policy import Backoff
from penstock.engine.report import Report
from penstock.engine.state import Chunk
from penstock.errors import UnavailableError
from penstock.model import Lsn
from penstock.spark.pipeline import Pipeline
from penstock.spark.seeds import _waves
from tests.unit.engine_parts import Journal, MemorySink, parts


@pytest.mark.parametrize(("lasts_s", "told"), [(0.2, UnavailableError), (60, ConnectionRefusedError)])
def test_a_jvm_that_is_about_to_end_has_ended(
    monkeypatch: pytest.MonkeyPatch, lasts_s: float, told: type[Exception]
) -> None:
    """E21: it refuses connections before its process is gone; that is passing trouble, and no defect."""
    jvm = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({lasts_s})"])
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=jvm))
    monkeypatch.setattr("penstock.spark.pipeline._ENDING_S", 10.0 if lasts_s < 1 else 0.1)

    def refused(_: Pipeline) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(Pipeline, "_run", refused)
    try:
        with pytest.raises(told):
            object.__new__(Pipeline).run()
    finally:
        jvm.kill()
        jvm.wait()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 31, 64, 65, 100, 1000])
def test_a_seed_is_dealt_out_in_equal_waves_for_all_who_work_on_it(count: int) -> None:
    chunks = [Chunk(at, None, None) for at in range(count)]
    waves = list(_waves(chunks))
    assert [chunk for wave in waves for chunk in wave] == chunks
    sizes = {len(wave) for wave in waves}
    assert not sizes or (max(sizes) <= 32 and max(sizes) - min(sizes) <= 1)
    assert count < 2 or len(waves) % IN_FLIGHT == 0


def test_a_sink_that_fails_while_another_is_left_behind_is_borne_too() -> None:
    """E73, E86: the plan without the one asks the other what it holds, which may not answer either."""
    opened: list[Any] = []
    plan: Any = SimpleNamespace(
        roll=SimpleNamespace(limit=None), heirs=SimpleNamespace(outgoing={}), reopened=lambda: opened.append(1) or plan
    )
    nothing: Any = None
    running = Pipeline(nothing, plan, nothing, Report({}), _backoff=Backoff(first_s=0.001))

    def consider(failure: Exception) -> bool:
        raise UnavailableError("the other is down, too")

    running._absence.consider = consider  # type: ignore[method-assign, assignment]
    running._bear(UnavailableError("it is down"))
    assert opened
    assert running.report.trouble == "the other is down, too"


def test_what_a_truncate_cleared_is_durable_before_the_batch_counts() -> None:
    """E20, E66: tasks flush what they wrote themselves; the deletes of a clear are this process's own."""
    journal: Journal = []
    plan: Any = SimpleNamespace(
        parts=parts(journal, MemorySink("search")), heirs=SimpleNamespace(outgoing={}), roll=SimpleNamespace(limit=None)
    )
    nothing: Any = None
    state: Any = SimpleNamespace(aside=lambda: journal.append(("outlived",)) or frozenset())
    Pipeline(nothing, plan, state, Report({}))._truncated("books", Extent.ROOTS, Lsn(9))
    assert journal == [("clear", "books", Lsn(9)), ("flush", "search"), ("outlived",)]


def test_the_checkpoint_is_a_folder_of_this_machine_whatever_file_system_spark_is_set_to() -> None:
    """E29, E89: where it is written is where it is looked for. Hadoop takes the path as it is: no escapes."""
    spark, nothing = MagicMock(), MagicMock()
    plan: Any = SimpleNamespace(
        checkpoint="/state of %20/checkpoint", options={}, roll=SimpleNamespace(limit=None), heirs=nothing
    )
    Pipeline(spark, plan, nothing, Report({}))._start()
    writing = spark.readStream.format().options().load().writeStream.foreachBatch().queryName()
    writing.option.assert_called_once_with("checkpointLocation", "file:///state of %20/checkpoint")
