"""The script of deploy/ for spark-submit: a deployment whose JVM was there before it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pyspark
import pytest

from penstock.spark.java import find_java, home_for_spark
from tests.fixtures import market
from tests.fixtures.pipelines import LIMIT, Deployed, Run
from tests.fixtures.programs import ROOT, environment

SCRIPT = ROOT / "deploy/spark-submit.sh"


class Submitted(Run):
    """A run that spark-submit started."""

    def __init__(self, deployment: Deployed, java: Path) -> None:
        self.deployment = deployment
        self._err, self._family = deployment.folder / "err", {}
        given = environment(
            TMPDIR=str(deployment.folder / "tmp"), JAVA_HOME=str(java), SPARK_HOME=os.path.dirname(pyspark.__file__),
            PYSPARK_PYTHON=sys.executable, PENSTOCK_MASTER="local[2]", SHOP_URL=deployment.database.url,
            SPARK_LOCAL_IP="127.0.0.1",
        )  # fmt: skip
        command = [SCRIPT, str(deployment.folder / "penstock.toml"), "--driver-memory", "600m"]
        with open(self._err, "wb") as err:
            self.process = subprocess.Popen(command, env=given, stdin=subprocess.DEVNULL, stdout=err, stderr=err)


@LIMIT
@pytest.mark.long
def test_the_script_runs_a_deployment_with_what_it_is_told(deploy: Callable[..., Deployed]) -> None:
    deployed = deploy()
    deployed.database.execute(market.ROWS)
    deployed.write(**market.SCHEMAS)
    file = deployed.folder / "penstock.toml"
    file.write_text(file.read_text().replace(f'"{deployed.database.url}"', '{ env = "SHOP_URL" }'))
    run = Submitted(deployed, home_for_spark(find_java(), deployed.folder))
    deployed.runs.append(run)
    run.await_live()
    assert "600m" in " ".join(psutil.Process(run.process.pid).cmdline()), "flags reach spark-submit"
    run.catch_up()
    deployed.judge()
    (driver,) = [one for one in run.family() if _is_driver(one)]
    driver.terminate()
    assert run.ended() == 0


def _is_driver(process: psutil.Process) -> bool:
    try:
        return any(word.endswith("submit.py") for word in process.cmdline())
    except psutil.Error:
        return False  # it has ended
