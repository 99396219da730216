"""What a start may take for granted, and what a look every few seconds finds out: sinks, the publication, identities.

Deployments as a run prepares them, without a JVM: what Spark would do is done by hand.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.app.prepared import Prepared
from penstock.app.reconcile import alone
from penstock.app.running import prepare
from penstock.config.file import read_deployment
from penstock.errors import ConfigError, PositionError
from penstock.model import Lsn
from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until

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
        if not self.database.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", SLOT):
            self.database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", SLOT)
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


def test_what_no_row_event_could_tell_is_refused_unless_identities_may_be_set(started: Started) -> None:
    """E42: a pet's delete would not say whose it was; nothing is made then, and the remedy is told."""
    started.source = ""
    with pytest.raises(ConfigError, match=r"public.pet.*person_id") as refused:
        started.start()
    assert "penstock check" in refused.value.hint
    assert not started.database.execute("SELECT FROM pg_publication WHERE pubname = %s", SLOT)
    assert not started.database.execute("SELECT FROM pg_class WHERE relname = 'pet' AND relreplident <> 'd'")
    assert not (started.folder / "local.db").exists()


def test_who_waited_looks_at_what_there_is_when_it_takes_over(
    started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    """E33: what was stopped, rolled back or changed meanwhile counts, not what was so when it began to wait."""
    started.start()
    began = list[Any]()

    def take_over() -> None:
        try:
            began.append(prepare(read_deployment(started.folder / "penstock.toml")))
        except ConfigError as error:
            began.append(error)

    waiting = threading.Thread(target=take_over)
    waiting.start()
    wait_until(lambda: "waiting to take over" in caplog.text, what="it to wait")
    started.database.execute("ALTER TABLE pet DROP COLUMN name")
    started.stop()
    waiting.join(30)
    (found,) = began
    assert isinstance(found, ConfigError), "it took over with what it knew before"
    assert "name" in found.message


def test_versions_that_the_server_has_yet_to_reach_are_refused(started: Started) -> None:
    """E29: it was put back to an earlier time: every write would lose to what the sink holds, and look taken."""
    first = started.start()
    ((text,),) = started.database.execute("SELECT pg_current_wal_flush_lsn()::text")
    for index, sinks in first.parts.sinks.items():
        sinks[0].complete(index, Lsn(Lsn.parse(text) + (1 << 30)))
    with pytest.raises(PositionError, match="sink local holds index people as of") as refused:
        started.start()
    assert f"penstock slots drop {SLOT}" in refused.value.hint


def _log(folder: Path, end: str, id: str, system: str = "") -> None:
    """What Spark writes down of a batch."""
    (folder / "offsets").mkdir(parents=True, exist_ok=True)
    (folder / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps({'lsn': end, 'system': system})}")
    (folder / "metadata").write_text(json.dumps({"id": id}))


def test_a_checkpoint_that_is_gone_or_another_one_is_told_and_mended(started: Started) -> None:
    """E89, E29: how far the slot was read is known to nobody then; a repair goes on, and compares every index."""
    first = started.start()
    _seed(first)
    ((end,),) = started.database.execute("SELECT pg_current_wal_flush_lsn()::text")
    checkpoint = started.folder / "state" / "checkpoint"
    _log(checkpoint, end, "ours")
    first.state.note_streamed("ours")
    started.start()
    _log(checkpoint, end, "theirs")
    with pytest.raises(PositionError, match="is another one"):
        started.start()
    shutil.rmtree(checkpoint)
    with pytest.raises(PositionError, match="checkpoint is gone, and changes were read") as refused:
        started.start()
    assert "penstock reconcile --repair" in refused.value.hint
    deployment = read_deployment(started.folder / "penstock.toml")
    with pytest.raises(PositionError, match="checkpoint is gone"):
        alone(deployment, [], repair=False, tell=lambda _: None)
    mended = alone(deployment, [], repair=True, tell=lambda _: None)
    assert {one.index for one in mended.comparisons} == set(SCHEMAS)
    assert _seeded(started.start()) == {"local": set(SCHEMAS)}


def test_a_slot_that_somebody_else_read_is_told_with_its_remedy_before_a_sink_is_opened(started: Started) -> None:
    """E26, E29: the way on is the deployment's, not that of a Spark query."""
    _seed(started.start())
    (started.folder / "local.db").unlink()
    _log(started.folder / "state" / "checkpoint", "0/1", "ours")
    with pytest.raises(PositionError, match=r"stands at .* and it was read up to 0/1") as refused:
        started.start()
    assert "penstock reconcile --repair" in refused.value.hint
    assert not (started.folder / "local.db").exists()
    _log(started.folder / "state" / "checkpoint", "0/1", "ours", system="another")
    started.start()  # its positions say nothing about this server, which the stream's reader tells
