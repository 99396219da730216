"""What a start may take for granted, and what a look every few seconds finds out: sinks, the publication, identities.

Deployments as a run prepares them, without a JVM: what Spark would do is done by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.app.prepared import Prepared
from penstock.app.running import prepare
from penstock.config.file import read_deployment
from penstock.model import Lsn
from tests.fixtures.databases import Database

TABLES = """
CREATE TABLE person (id int PRIMARY KEY, name text);
CREATE TABLE pet (id int PRIMARY KEY, person_id int, name text);
CREATE INDEX ON pet (person_id);
"""
SCHEMAS = {
    "people": """
version: 1
table: person
fields:
  - text: name
  - {has_many: pets, table: pet, foreign_key: person_id, fields: [{keyword: name}]}
""",
    "pets": "version: 1\ntable: pet\nfields: [{keyword: name}]\n",
}
SLOT = "seams"


class Started:
    """A deployment of two indexes, prepared as often as a test likes."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database, self.folder = database, folder
        self.prefix, self.source = "", "manage_replica_identity = true"
        self.sinks = {"local": "local.db"}
        self.held: list[Prepared] = []

    def write(self) -> None:
        """The files."""
        lines = [f'prefix = "{self.prefix}"', 'state = "state"', "[source]", 'type = "postgres"', self.source]
        lines += [f'connection_url = "{self.database.url}"', f'slot = "{SLOT}"', f'publication = "{SLOT}"']
        for name, path in self.sinks.items():
            lines += [f"[sinks.{name}]", 'type = "local"', f'path = "{path}"']
        for name, text in SCHEMAS.items():
            (self.folder / f"{name}.schema.yml").write_text(text)
            lines += ["[[index]]", f'name = "{name}"', f'schema = "{name}.schema.yml"']
        (self.folder / "penstock.toml").write_text("\n".join(lines))

    def start(self) -> Prepared:
        """As a run begins, when the one before has ended."""
        self.stop()
        self.write()
        self.held.append(prepare(read_deployment(self.folder / "penstock.toml")))
        if self.held[0].fresh:
            self.database.execute(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
        return self.held[0]

    def stop(self) -> None:
        """As a run ends."""
        while self.held:
            self.held.pop().close()


@pytest.fixture
def started(db18: Database, tmp_path: Path) -> Iterator[Started]:
    db18.execute(TABLES)
    found = Started(db18, tmp_path)
    yield found
    found.stop()
    db18.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", SLOT)


def _seeded(prepared: Prepared) -> dict[str, set[str]]:
    """For each sink, the indexes that it holds complete."""
    return {
        sink.name: {index for index in prepared.parts.sinks if sink.seeded(index) is not None}
        for sink in prepared.parts.every_sink
    }


def _seed(prepared: Prepared, *, only: str = "") -> None:
    for index, sinks in prepared.parts.sinks.items():
        for sink in sinks:
            if only in ("", index):
                sink.complete(index, Lsn(1))


Change = Callable[[Started], None]


def _without(started: Started) -> None:
    del started.sinks["other"]


def _elsewhere(started: Started) -> None:
    started.sinks["other"] = "elsewhere.db"


def _by_another_name(started: Started) -> None:
    started.prefix = "new_"


@pytest.mark.parametrize(
    ("away", "half"), [(_without, ""), (_without, "people"), (_elsewhere, "people"), (_by_another_name, "")]
)
def test_a_sink_that_was_left_out_for_a_run_is_seeded_on_its_return(started: Started, away: Change, half: str) -> None:
    """E85: taken out of the file, or the same name for another place or for other indexes, and back; also while it is
    seeded: what it holds in part has missed deletes. The sink that was there all the time stays as it is."""
    both = set(SCHEMAS)
    started.sinks["other"] = "other.db"
    first = started.start()
    _seed(first, only=half)
    old = first.parts.sinks["pets"][1].generation("pets")
    assert _seeded(started.start())["other"] == ({half} if half else both), "a start alone changes nothing"
    away(started)
    there = started.start()
    _seed(there)
    assert _seeded(started.start())[there.parts.every_sink[-1].name] == both
    started.prefix, started.sinks["other"] = "", "other.db"
    back = started.start()
    assert _seeded(back)["other"] == set()
    assert back.parts.sinks["pets"][1].generation("pets") != old
    _seed(back)
    again = _seeded(started.start())
    assert again["other"] == both
    if away is not _by_another_name:
        assert again["local"] == both


def test_an_index_that_is_gone_from_a_sink_is_the_only_one_seeded(started: Started) -> None:
    """E85: what its neighbours in that sink hold is trusted as before."""
    first = started.start()
    _seed(first)
    first.parts.sinks["pets"][0].remove("pets")
    assert _seeded(started.start()) == {"local": {"people"}}
