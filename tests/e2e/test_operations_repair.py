"""What people do when something went wrong: quarantine, reconcile, explain, on one running deployment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures import market
from tests.fixtures.commands import run_penstock
from tests.fixtures.opensearch import Node
from tests.fixtures.pipelines import LIMIT, START_S, Deployed, Run, fresh_database
from tests.fixtures.servers import Servers

pytestmark = LIMIT

DAYS = """
version: 1
table: day
fields: [{date: at}, {keyword: note}]
"""


class Operated:
    """A deployment that runs, and the command line beside it."""

    def __init__(self, deployed: Deployed, node: Node) -> None:
        self.deployed, self.node = deployed, node
        self.execute = deployed.database.execute

    @property
    def run(self) -> Run:
        return self.deployed.runs[-1]

    def penstock(self, *arguments: str, code: int = 0) -> str:
        """What a command prints; it ends with this code."""
        config = str(self.deployed.folder / "penstock.toml")
        done = run_penstock(*arguments, "--config", config, timeout_s=START_S)
        assert done.returncode == code, f"{done.returncode}: {done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def told(self, *arguments: str, code: int = 0) -> Any:
        """The JSON that a command prints."""
        return json.loads(self.penstock(*arguments, "--json", code=code).splitlines()[0])

    def reject_words(self, rejecting: bool = True) -> None:
        """Have the search server reject every day whose note is no number, or take it again."""
        body = {"processors": [{"convert": {"field": "note", "type": "integer"}}]}
        assert self.node.ask("PUT", "/_ingest/pipeline/numbers", body)[0] == 200
        settings = {"index": {"final_pipeline": "numbers" if rejecting else "_none"}}
        assert self.node.ask("PUT", f"/{self.deployed.prefix}days/_settings", settings)[0] == 200


@pytest.fixture(scope="module")
def operated(servers: Servers, node: Node) -> Iterator[Operated]:
    """The market and a table of days, into a search server and a local sink."""
    database = fresh_database(servers.get(18))
    database.execute(market.ROWS)
    database.execute(
        "CREATE TABLE day (id int PRIMARY KEY, at date, note text);"
        " INSERT INTO day SELECT n, '2026-01-01', n FROM generate_series(1, 9) n"
    )
    deployed = Deployed(database, node)
    deployed.top = 'on_error = "quarantine"'
    deployed.write(days=DAYS, **market.SCHEMAS)
    try:
        deployed.start().await_live()
        yield Operated(deployed, node)
    finally:
        deployed.close()
        database.remove()


def test_a_document_leaves_quarantine_when_a_sink_takes_it(operated: Operated) -> None:
    """E81: by a replay, by the next change of its row, by its delete; and stays while it is rejected."""
    operated.reject_words()
    operated.execute("UPDATE day SET note = 'secret ' || id WHERE id IN (2, 3, 4)")
    operated.run.await_status(quarantined=3)
    listed = operated.told("quarantine", "list", "days")
    assert [(one["index"], one["sink"], one["id"]) for one in listed] == [("days", "search", id) for id in "234"]
    assert listed[0]["reason"] == "illegal_argument_exception"
    for shown in (operated.penstock("quarantine", "list"), operated.penstock("quarantine", "show", "days", "3")):
        assert "search" in shown
        assert "secret" not in shown
    assert operated.told("quarantine", "replay", code=1) == {"taken": 0, "rejected": 3}
    operated.reject_words(False)
    assert operated.told("quarantine", "replay", "days", "2") == {"taken": 1, "rejected": 0}
    assert operated.deployed.search("days")["2"] == {"at": "2026-01-01", "note": "secret 2"}
    operated.execute("UPDATE day SET note = 'mended' WHERE id = 3; DELETE FROM day WHERE id = 4")
    operated.run.await_status(quarantined=0)
    assert operated.deployed.search("days") == operated.deployed.local("days")
    assert "Nothing is in quarantine" in operated.penstock("quarantine", "list")
    assert "is not in quarantine" in operated.penstock("quarantine", "show", "days", "3", code=1)
    assert "there is no index 'nights'" in operated.penstock("quarantine", "replay", "nights", code=2)
