"""What ended a run at work on Spark, told without one."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from penstock.errors import UnavailableError
from penstock.spark.pipeline import Pipeline


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
