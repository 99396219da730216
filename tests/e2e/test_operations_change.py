"""What operators do to a deployment: look after it, change it, lose a sink, take it down."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.fixtures import market
from tests.fixtures.commands import run_penstock
from tests.fixtures.opensearch import Node
from tests.fixtures.pipelines import LIMIT, Deployed

pytestmark = LIMIT

Deploy = Callable[..., Deployed]
CUSTOMERS = {"customers": market.CUSTOMERS, "marks": market.MARKS}


def penstock(deployed: Deployed, *arguments: str) -> Any:
    return run_penstock(*arguments, "--config", str(deployed.folder / "penstock.toml"))


def test_the_doctor_looks_and_teardown_leaves_nothing(deploy: Deploy, node: Node) -> None:
    """E85, E89: refused while it runs; shown before it is removed; a second time finds nothing."""
    deployed = deploy(node)
    execute = deployed.database.execute
    execute(market.ROWS)
    deployed.sinks |= {name: f'type = "{name}"\npath = "{name}"' for name in ("delta", "parquet")}
    deployed.write(**CUSTOMERS)
    before = penstock(deployed, "doctor", "--json")
    assert before.returncode == 0, before.stdout
    assert not deployed.state.exists(), "the doctor makes nothing"
    run = deployed.start()
    run.catch_up()
    told = {one["about"]: one for one in json.loads(penstock(deployed, "doctor", "--json").stdout)["findings"]}
    assert told["state"]["message"].startswith("a run is at work")
    assert "holds 2 of 2 indexes" in told["sink search"]["message"]
    assert told["slot"]["verdict"] == told["clock"]["verdict"] == "good"
    refused = penstock(deployed, "teardown", "--yes")
    assert (refused.returncode, "a penstock runs" in refused.stderr) == (1, True)
    assert run.stop() == 0
    execute("SELECT pg_drop_replication_slot(%s)", deployed.slot)
    assert penstock(deployed, "doctor").returncode == 1, "the slot of a checkpoint is gone"
    asked = penstock(deployed, "teardown")
    assert (asked.returncode, "Add --yes" in asked.stderr) == (2, True)
    for said in (
        f"publication  {deployed.slot}",
        "in sink search",
        "in sink local",
        "in sink delta",
        "in sink parquet",
    ):
        assert said in asked.stdout
    assert deployed.search("customers")
    done = penstock(deployed, "teardown", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert (json.loads(done.stdout)["slot"], json.loads(done.stdout)["removed"]) == (None, True)
    assert node.ask("GET", f"/{deployed.prefix}*")[1] == {}
    assert not deployed.state.exists()
    assert not (deployed.folder / "local.db").exists()
    assert not [*deployed.folder.glob("delta/*customers*"), *deployed.folder.glob("parquet/*customers*")]
    assert not execute("SELECT FROM pg_publication WHERE pubname = %s", deployed.slot)
    again = penstock(deployed, "teardown", "--json")
    assert (again.returncode, json.loads(again.stdout)["removed"]) == (0, False)
