"""The delta and the parquet sink behind `penstock run`: killed and started again, they hold what SQL says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.fixtures import market
from tests.fixtures.pipelines import LIMIT, Deployed
from tests.sinks import test_delta, test_parquet

pytestmark = [LIMIT, pytest.mark.long]


def judge(deployed: Deployed) -> None:
    """Both sinks hold, for each index, what the SQL by hand says."""
    for index in deployed.schemas:
        name, wanted = f"{deployed.prefix}{index}", market.expected(deployed.database, index)
        for sink, read in ("lake", test_delta.read), ("history", test_parquet.read):
            documents = read(str(deployed.folder / sink), name)
            found: dict[str, Any] = {id: json.loads(body) for id, body in documents.items()}
            assert found == wanted, f"{index} in {sink}"


@pytest.mark.parametrize("spread", [False, True], ids=["direct", "spread"])
def test_a_table_and_a_log_follow_the_database_through_a_crash(deploy: Callable[..., Deployed], spread: bool) -> None:
    """E21, E66, E83: seeded, changed, deleted, truncated, with a kill -9 in between."""
    deployed = deploy()
    execute = deployed.database.execute
    deployed.sinks = {
        "lake": 'type = "delta"\npath = "lake"\nstorage_options = { secret_word = "not needed here" }',
        "history": 'type = "parquet"\npath = "history"',
    }
    execute(market.ROWS)
    deployed.write(**market.SCHEMAS)
    run = deployed.start(spread=spread)
    run.catch_up()
    judge(deployed)
    execute("DELETE FROM customer WHERE id % 3 = 0; UPDATE customer SET name = 'before the kill'")
    run.kill()
    execute("UPDATE customer SET name = 'while nobody runs' WHERE id % 2 = 0; TRUNCATE mark")
    run = deployed.start(spread=spread)
    run.catch_up()
    judge(deployed)
    told = run.status()
    assert told
    assert {one["seeded"] for one in told["indexes"].values()} == {0}
    assert run.stop() == 0
    assert "not needed here" not in run.err
