"""A pipeline's steps in orders that are hard to meet, one by one and without a JVM: seeds, TRUNCATEs, lost generations.

The plan, the state, the builder and the sink are those of a run. What Spark would do is done by hand: a batch is
applied when the test says so, as often as it says.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.app.prepared import Prepared
from penstock.app.running import pipeline, prepare
from penstock.config.file import read_deployment
from penstock.engine import batch
from penstock.engine.state import Chunk
from penstock.model import Lsn
from penstock.postgres.keys import SCHEMA
from penstock.spark import seeds
from penstock.spark.pipeline import Pipeline
from tests.fixtures.databases import Database

TABLES = """
CREATE TABLE person (id int PRIMARY KEY, name text) PARTITION BY RANGE (id);
CREATE TABLE young PARTITION OF person FOR VALUES FROM (0) TO (1000);
CREATE TABLE old PARTITION OF person FOR VALUES FROM (1000) TO (9000);
CREATE TABLE pet (id int PRIMARY KEY, person_id int, name text);
CREATE INDEX ON pet (person_id);
INSERT INTO person SELECT n, 'n' || n FROM generate_series(1, 3000) n;
INSERT INTO pet VALUES (1, 1500, 'Rex')
"""
PEOPLE = """
version: 1
table: person
fields:
  - text: name
  - {has_many: pets, table: pet, foreign_key: person_id, fields: [{keyword: name}]}
"""
PATIENCE_S = 30.0


class Stepped:
    """A deployment into a local sink, worked on step by step."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database, self.folder = database, folder
        self._prepared: list[Prepared] = []
        self.write(PEOPLE)

    def write(self, schema: str) -> None:
        """The deployment's files."""
        (self.folder / "people.schema.yml").write_text(schema)
        lines = ['state = "state"', "[source]", 'type = "postgres"', f'connection_url = "{self.database.url}"']
        lines += ['slot = "stepped"', 'publication = "stepped"', "manage_replica_identity = true"]
        lines += ["[sinks.local]", 'type = "local"', 'path = "local.db"']
        lines += ["[[index]]", 'name = "people"', 'schema = "people.schema.yml"']
        (self.folder / "penstock.toml").write_text("\n".join(lines))

    def start(self) -> Pipeline:
        """As a run begins; with every index seeded."""
        prepared = prepare(read_deployment(self.folder / "penstock.toml"))
        self._prepared.append(prepared)
        if prepared.fresh:
            self.database.execute("SELECT pg_create_logical_replication_slot('stepped', 'pgoutput')")
        found = pipeline(prepared, lambda: None, "")  # type: ignore[arg-type, return-value]
        for index in found.plan.seeds:
            found._seeder._ensure(index)
        self.seed(found)
        return found

    def seed(self, pipeline: Pipeline) -> None:
        """Everything that has to be."""
        for index in pipeline.plan.parts.indexes:
            while pipeline._seeder._seed(index):
                pass

    def stop(self) -> None:
        """As a run ends."""
        for prepared in self._prepared:
            prepared.close()
        self._prepared.clear()

    def committed(self, statement: str, table: str, op: str, key: str = "0") -> tuple[pa.RecordBatch, Lsn]:
        """The batch of one transaction with one change, and its end."""
        with psycopg.connect(self.database.url) as connection:
            ((xid,),) = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchall()
            connection.execute(statement.encode())
        ((text,),) = self.database.execute("SELECT pg_current_wal_flush_lsn()::text")
        end = Lsn.parse(text)
        new = None if op == "truncate" else [("id", key)]
        row = {"table": table, "op": op, "new": new, "old": None, "xid": xid, "_commit_lsn": int(end), "_seq": 0}
        return pa.RecordBatch.from_pylist([row], schema=SCHEMA), end

    def held(self) -> dict[str, Any]:
        """What readers see."""
        with closing(sqlite3.connect(f"file:{self.folder / 'local.db'}?mode=ro", uri=True)) as file:
            shown = file.execute("SELECT number FROM generation WHERE name = 'people' AND shown").fetchall()
            rows = file.execute(f"SELECT id, body FROM documents_{shown[0][0]} WHERE body IS NOT NULL") if shown else ()
            return {id: json.loads(body) for id, body in rows}

    def judge(self) -> None:
        """Readers see what the database has."""
        ((pets,),) = self.database.execute("SELECT count(*) FROM pet JOIN person ON person.id = person_id")
        names = dict(self.database.execute("SELECT id::text, name FROM person"))
        found = self.held()
        assert {id: body["name"] for id, body in found.items()} == names
        assert sum(len(body["pets"]) for body in found.values()) == pets


@pytest.fixture
def stepped(db18: Database, tmp_path: Path) -> Iterator[Stepped]:
    db18.execute(TABLES)
    found = Stepped(db18, tmp_path)
    yield found
    found.stop()
    db18.execute("SELECT pg_drop_replication_slot('stepped')")


def apply(pipeline: Pipeline, changes: pa.RecordBatch, end: Lsn) -> None:
    """A batch, to the moment before Spark is told."""
    parts = replace(pipeline.plan.parts, seeding=frozenset(), aside=frozenset())
    batch.apply(parts, changes, end, pipeline._truncated)
    pipeline._give_up_outgoing()
    pipeline.report.end = end


def test_a_truncated_partition_is_gone_when_the_rest_is_built_anew_and_never_more(stepped: Stepped) -> None:
    """E66, E84: readers see what they saw until then; a wave of a seed that the same batch began before counts not."""
    running = stepped.start()
    assert len(stepped.held()) == 3000
    changes, end = stepped.committed("TRUNCATE young", "public.young", "truncate")
    apply(running, changes, end)
    assert len(stepped.held()) == 3000
    filled, goes_on, fill = threading.Event(), threading.Event(), running._seeder._fill

    def paused(*arguments: Any) -> Any:
        found = fill(*arguments)
        filled.set()
        assert goes_on.wait(PATIENCE_S)
        return found

    running._seeder._fill = paused  # type: ignore[method-assign]
    wave = threading.Thread(target=running._seeder._seed, args=("people",))
    wave.start()
    assert filled.wait(PATIENCE_S)
    assert len(running.state.chunks_left("people")) == 3
    apply(running, changes, end)  # it failed in another sink, and comes again
    goes_on.set()
    wave.join(PATIENCE_S)
    assert running.state.chunks_left("people") == [Chunk(0, None, None)], "none of it is done"
    stepped.seed(running)
    stepped.judge()
    assert running.state.seed("people") is None


def test_a_truncated_child_does_not_hold_live_up(stepped: Stepped) -> None:
    """E66: the rows of the root are counted by the thread that seeds, also where they cannot be counted for long."""
    running = stepped.start()
    asked = [0]

    def cut(index: str) -> list[Any]:
        asked[0] += 1
        return [("1000",), ("2000",)]

    running.plan = replace(running.plan, cuts=cut)
    apply(running, *stepped.committed("TRUNCATE pet", "public.pet", "truncate"))
    assert (asked[0], len(running.state.chunks_left("people"))) == (0, 1)
    stepped.seed(running)
    assert asked[0] == 1
    stepped.judge()


def test_a_sweep_is_done_by_whoever_completes_the_seed(stepped: Stepped) -> None:
    """E52, E66: after a restart, too."""
    running = stepped.start()
    apply(running, *stepped.committed("TRUNCATE young", "public.young", "truncate"))
    stepped.stop()
    stepped.start()
    stepped.judge()


@pytest.mark.parametrize("table", ["pet", "young", "person"])
def test_a_truncate_while_an_index_is_built_anew(stepped: Stepped, table: str) -> None:
    """E66, E84: the batch builds for both generations to its end; readers see the old one until the new is complete."""
    running = stepped.start()
    running.succession.request("people", rollback=False)
    running.succession.begin()
    assert len(running.plan.parts.indexes) == 2
    apply(running, *stepped.committed(f"TRUNCATE {table}", f"public.{table}", "truncate"))
    assert len(stepped.held()) == (0 if table == "person" else 3000)
    stepped.seed(running)
    for index in running.plan.seeds:
        running._seeder._ensure(index)
    running.catch_up = lambda: None  # type: ignore[attr-defined]
    stepped.seed(running)
    stepped.judge()


def test_a_generation_that_is_lost_between_two_waves_is_seeded_from_its_beginning(
    stepped: Stepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E85: what was noted down of the old one does not count, whoever opened the new one."""
    monkeypatch.setattr(seeds, "_WAVE", 1)
    monkeypatch.setattr(seeds.batch, "in_flight", lambda act, items: map(act, items))
    finished, finish = [0], seeds.Seeder._is_under_way

    def lose(seeder: seeds.Seeder, seed: Any) -> bool:
        finished[0] += 1
        if finished[0] == 2:
            running = seeder.pipeline
            running.plan.parts.sinks["people"][0].close()
            for file in stepped.folder.glob("local.db*"):
                file.unlink()
            running.reopen()
        return finish(seeder, seed)

    monkeypatch.setattr(seeds.Seeder, "_is_under_way", lose)
    stepped.start()
    assert finished[0] > 4
    stepped.judge()


def log_committed(state: Path, end: Lsn) -> None:
    """What Spark writes down of a batch that is done."""
    for kind, text in (("offsets", json.dumps({"lsn": str(end)})), ("commits", "{}")):
        (state / "checkpoint" / kind).mkdir(parents=True)
        (state / "checkpoint" / kind / "0").write_text(f"v1\n{text}")


def test_a_field_is_added_to_every_document_though_the_slot_went_back(stepped: Stepped) -> None:
    """E20, E85: a server that crashed may have set it back behind what is durable in the sinks."""
    running = stepped.start()
    changes, end = stepped.committed("UPDATE person SET name = 'x' WHERE id = 7", "public.person", "update", "7")
    apply(running, changes, end)
    log_committed(stepped.folder / "state", end)
    stepped.stop()
    stepped.write(PEOPLE + "  - {keyword: again, column: name}\n")
    stepped.start()
    assert [id for id, body in stepped.held().items() if "again" not in body] == []
