"""What a teardown takes for the deployment's own, and what it leaves to whoever else has it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from penstock.app.teardown import Inventory, taking_down
from penstock.config.file import read_deployment
from penstock.errors import OperatorError, PrivilegeError
from penstock.postgres.claim import Claim
from penstock.postgres.settings import resolve
from tests.fixtures.commands import run_penstock
from tests.fixtures.databases import Database

SLOT = "taken_down"
BOOKS = "version: 1\ntable: book\nfields: [{keyword: title}]\n"


class Here:
    """A deployment's folder, of which nothing ever ran."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder, self.database = folder, database
        (folder / "books.schema.yml").write_text(BOOKS)
        self.write(database.url)

    def write(self, url: str) -> None:
        source = f'[source]\ntype = "postgres"\nconnection_url = "{url}"\nslot = "{SLOT}"\npublication = "{SLOT}"\n'
        index = '[[index]]\nname = "books"\nschema = "books.schema.yml"\n'
        (self.folder / "penstock.toml").write_text(
            f'state = "state"\n{source}[sinks.local]\ntype = "local"\npath = "local.db"\n{index}'
        )

    def publish(self, tables: str = "book") -> None:
        self.database.execute(f"CREATE PUBLICATION {SLOT} FOR TABLE {tables}")

    def is_published(self) -> bool:
        return bool(self.database.execute(f"SELECT FROM pg_publication WHERE pubname = '{SLOT}'"))

    def slots(self) -> list[tuple[str, ...]]:
        return self.database.execute("SELECT slot_name FROM pg_replication_slots ORDER BY 1")

    def take_down(self) -> Inventory:
        with taking_down(read_deployment(str(self.folder))) as (found, remove):
            remove()
        return found


def make_slot(url: str, name: str = SLOT, plugin: str = "pgoutput") -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, %s)", [name, plugin])


@pytest.fixture
def here(db18: Database, tmp_path: Path) -> Iterator[Here]:
    db18.execute("CREATE TABLE book (id int PRIMARY KEY, title text); CREATE TABLE shelf (id int PRIMARY KEY)")
    yield Here(tmp_path, db18)
    db18.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def test_a_slot_of_another_database_stays(here: Here) -> None:
    """E28: slot names are the server's, and the deployment's may be taken: shown with the reason, not dropped."""
    make_slot(here.database.server.url())
    told = run_penstock("teardown", "--config", str(here.folder))
    assert told.returncode == 0, told.stderr
    assert "There is nothing to take down." in told.stdout
    assert f"Slot {SLOT} stays: slot {SLOT} belongs to database postgres, not to {here.database.name}" in told.stdout
    here.publish()
    found = here.take_down()
    assert (found.slot, here.slots(), here.is_published()) == (None, [(SLOT,)], False)
    answer = json.loads(run_penstock("teardown", "--config", str(here.folder), "--json").stdout)
    assert (answer["slot"], answer["stays"]["slot"], answer["removed"]) == (None, SLOT, False)


def test_a_physical_slot_and_one_of_another_plugin_stay(here: Here) -> None:
    """E28: neither was made by a run."""
    make_slot(here.database.url, plugin="test_decoding")
    assert here.take_down().slot is None
    here.database.execute("SELECT pg_drop_replication_slot(%s)", SLOT)
    here.database.execute("SELECT pg_create_physical_replication_slot(%s)", SLOT)
    assert here.take_down().slot is None
    assert here.slots() == [(SLOT,)]


def test_nothing_goes_while_another_process_has_the_slot(here: Here) -> None:
    """E33: it may be between two streams, or before its first, and its state may lie in another folder."""
    make_slot(here.database.url)
    settings = resolve(here.database.url)
    with closing(Claim(settings, SLOT)) as other:
        assert other.take() == ""
        with pytest.raises(OperatorError, match=rf"slot {SLOT} is in use \(process \d+, penstock, user "):
            here.take_down()
        other.close()
        with taking_down(read_deployment(str(here.folder))) as (found, remove):
            assert found.slot
            assert other.take().startswith("process "), "no run begins between the look and the end"
            remove()
        assert (other.take(), here.slots()) == ("", [])


def test_a_publication_that_others_may_read_stays(here: Here) -> None:
    """E40: without it another deployment's slot could not be decoded any more, for good."""
    make_slot(here.database.url)
    here.publish("book, shelf")
    told = run_penstock("teardown", "--config", str(here.folder), "--yes")
    assert told.returncode == 0, told.stderr
    said = f"Publication {SLOT} stays: it carries public.shelf, which this deployment does not read."
    assert f'{said} To drop it: DROP PUBLICATION "{SLOT}";' in told.stdout
    assert (here.slots(), here.is_published()) == ([], True)
    here.database.execute(f"ALTER PUBLICATION {SLOT} DROP TABLE shelf")
    make_slot(here.database.url, "neighbour")
    found = here.take_down()
    assert [(one.what, one.why) for one in found.stays] == [("publication", "slot neighbour may be read by way of it")]
    assert here.is_published()
    here.database.execute("SELECT pg_drop_replication_slot('neighbour')")
    make_slot(here.database.server.url(), "elsewhere")
    assert (here.take_down().publication, here.is_published()) == (SLOT, False), "of another database"


def test_a_publication_of_all_tables_stays(here: Here) -> None:
    """E41: a run makes none like that."""
    here.database.execute(f"CREATE PUBLICATION {SLOT} FOR TABLES IN SCHEMA public")
    assert here.take_down().publication is None
    here.database.execute(f"DROP PUBLICATION {SLOT}; CREATE PUBLICATION {SLOT} FOR ALL TABLES")
    assert [one.why for one in here.take_down().stays] == ["it carries tables that this deployment does not read"]


def test_rights_are_tried_before_anything_is_removed(here: Here) -> None:
    """E34: a refusal leaves no half of a teardown."""
    make_slot(here.database.url)
    here.publish()
    here.write(here.database.role("reader", attributes="LOGIN REPLICATION"))
    with pytest.raises(PrivilegeError, match=f'publication "?{SLOT}'):
        here.take_down()
    assert (here.slots(), here.is_published()) == ([(SLOT,)], True)
    here.write(here.database.role("owner"))
    here.database.execute(f"GRANT CREATE ON DATABASE {here.database.name} TO owner")
    here.database.execute(f"ALTER PUBLICATION {SLOT} OWNER TO owner")
    with pytest.raises(PrivilegeError, match="may not use replication slots"):
        here.take_down()
    assert (here.slots(), here.is_published()) == ([(SLOT,)], True)
    here.database.execute(f"REVOKE CREATE ON DATABASE {here.database.name} FROM owner; DROP PUBLICATION {SLOT}")
