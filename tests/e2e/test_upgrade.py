"""A new major version of Postgres under a deployment, as docs/how-to/upgrade.md tells it."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from tests.fixtures import market
from tests.fixtures.commands import run_penstock
from tests.fixtures.pipelines import LIMIT, Deployed, fresh_database
from tests.fixtures.servers import Servers


@LIMIT
@pytest.mark.long
def test_another_server_is_refused_until_the_checkpoint_is_gone_and_then_everything_is_seeded(
    deploy: Callable[..., Deployed], servers: Servers
) -> None:
    """E29: the positions of one system are not taken for those of another."""
    deployed = deploy(server=servers.get(16))
    old = deployed.database
    old.execute(market.ROWS)
    deployed.write(**market.SCHEMAS)
    run = deployed.start()
    run.catch_up()
    assert run.stop() == 0
    assert run_penstock("slots", "drop", deployed.slot, "--yes", "--url", old.url).returncode == 0

    deployed.database = fresh_database(servers.get(18))
    deployed.reach(deployed.database.url)
    try:
        deployed.database.execute(market.ROWS)
        deployed.write()
        refused = deployed.start()
        assert refused.ended() == 1
        assert "is gone" in refused.err or "another" in refused.err, refused.err

        shutil.move(deployed.state / "checkpoint", deployed.folder / "checkpoint-before")
        again = deployed.start()
        again.catch_up()
        deployed.judge()
        assert again.stop() == 0
    finally:
        deployed.close()
        new, deployed.database = deployed.database, old
        new.remove()
