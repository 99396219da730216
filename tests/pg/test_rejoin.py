"""A slot that changes were lost from: what is refused, what a repair makes, and what is never forgotten on the way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from penstock.app.rejoin import committed, require_slot
from penstock.config.connection import connection_settings
from penstock.config.file import read_deployment
from penstock.demo.server import Server
from penstock.document.build import PgDocumentBuilder
from penstock.document.check_live import check_live
from penstock.document.check_source import SourceRules
from penstock.document.ids import document_id
from penstock.document.reading import read_schema
from penstock.document.shape import changed, shapes, unmet
from penstock.document.spec import SourceSpec
from penstock.engine.marks import Marks
from penstock.engine.state import State
from penstock.errors import DiskError, PositionError, SlotLostError, SlotMissingError
from penstock.model import Lsn
from penstock.postgres import slot
from penstock.postgres.settings import resolve
from tests.fixtures.commands import run_penstock
from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until

SLOT = "rejoined"
PAGES = """
version: 1
table: book
fields:
  - text: title
  - has_many: pages
    table: page
    foreign_key: book_id
    fields: [{integer: n}]
"""
BOOKS = "version: 1\ntable: book\nfields: [{keyword: title}]\n"


class Stopped:
    """A deployment that has read from a slot, and does not run."""

    def __init__(self, folder: Path, url: str) -> None:
        (folder / "books.schema.yml").write_text(BOOKS)
        source = f'[source]\ntype = "postgres"\nconnection_url = "{url}"\nslot = "{SLOT}"\n'
        index = '[[index]]\nname = "books"\nschema = "books.schema.yml"\n'
        (folder / "penstock.toml").write_text(f'state = "state"\n{source}[sinks.local]\ntype = "local"\n{index}')
        self.deployment = read_deployment(str(folder))
        self.url, self.folder = url, folder / "state"
        self.state = State(self.folder)
        self.checkpoint = self.folder / "checkpoint"

    def execute(self, statement: str) -> list[tuple[str, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def make_slot(self) -> None:
        self.execute(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")

    def stands(self) -> Lsn | None:
        query = f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
        return next((Lsn.parse(text) for (text,) in self.execute(query)), None)

    def log(self, batch: int, lsn: Lsn, *, done: bool = True, system: str = "") -> None:
        """What Spark writes down of a batch."""
        system = system or self.execute("SELECT system_identifier::text FROM pg_control_system()")[0][0]
        offset = {"format": 1, "system": system, "timeline": 1, "slot": SLOT, "lsn": str(lsn), "rows": -1}
        for name in ["offsets", *(["commits"] if done else [])]:
            (self.checkpoint / name).mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(offset)}")
        if done:
            (self.checkpoint / "commits" / str(batch)).write_text("v1\n{}")

    def require(self, *, repair: bool = False) -> None:
        require_slot(self.deployment, connection_settings(self.deployment), self.state, repair=repair)

    def untouched(self) -> bool:
        """Whether nothing was made or forgotten."""
        return self.checkpoint.exists() and not Marks(self.state).marked()

    def repaired(self) -> bool:
        """Whether live joins anew, and the gap is not forgotten."""
        self.require(repair=True)
        assert self.state.is_unsettled(SLOT), "what is open now is waited for before anything is built"
        return not self.checkpoint.exists() and Marks(self.state).marked().keys() == {"books"}


@pytest.fixture
def stopped(db18: Database, tmp_path: Path) -> Iterator[Stopped]:
    db18.execute("CREATE TABLE book (id int PRIMARY KEY, title text)")
    found = Stopped(tmp_path, db18.url)
    with closing(found.state):
        yield found
    found.execute(f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{SLOT}'")


def test_a_slot_that_serves_the_checkpoint_is_left_alone(stopped: Stopped) -> None:
    """E26: and one that nothing was read from is for a run to make."""
    with pytest.raises(SlotMissingError, match="nothing was read"):
        stopped.require(repair=True)
    stopped.make_slot()
    at = stopped.stands()
    assert at
    stopped.log(3, at)
    stopped.log(4, Lsn(at + 1), done=False)
    assert committed(stopped.folder) == at
    (stopped.checkpoint / "offsets" / "5").write_text("v1\n{")  # Spark was ended while it wrote
    stopped.require(repair=True)
    assert stopped.untouched()


def test_a_slot_that_is_gone_is_made_anew_only_by_a_repair(stopped: Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    """E26: a repair that breaks off leaves the marks, and the checkpoint by which a run refuses to start."""
    stopped.log(7, Lsn(1000))
    with pytest.raises(SlotMissingError, match="it was read up to 0/3E8") as refused:
        stopped.require()
    assert "penstock reconcile --repair" in refused.value.hint
    assert stopped.untouched()
    with monkeypatch.context() as broken, pytest.raises(DiskError):
        broken.setattr(slot, "create", lambda *_, **__: (_ for _ in ()).throw(DiskError("no room")))
        stopped.require(repair=True)
    assert stopped.checkpoint.exists()
    assert Marks(stopped.state).marked().keys() == {"books"}
    assert stopped.repaired()
    assert stopped.stands()


def test_a_slot_that_somebody_else_read_from_stays_where_it_is(stopped: Stopped) -> None:
    """E29: what was skipped is mended; what is in it is not lost."""
    stopped.make_slot()
    at = stopped.stands()
    assert at
    stopped.log(7, Lsn(at - 8))
    with pytest.raises(PositionError, match="was read up to"):
        stopped.require()
    assert stopped.untouched()
    assert stopped.repaired()
    assert stopped.stands() == at


@pytest.mark.parametrize(("lsn", "system"), [(Lsn.MAX, ""), (Lsn(1000), "123")], ids=["restored", "another"])
def test_another_server_is_never_joined(stopped: Stopped, lsn: Lsn, system: str) -> None:
    """E29: versions that sinks hold mean nothing there; what helps is told."""
    stopped.log(7, lsn, system=system)
    with pytest.raises(PositionError, match="of another server") as refused:
        stopped.require(repair=True)
    assert "seeds every index again" in refused.value.hint
    assert stopped.untouched()
    assert stopped.stands() is None


def test_the_doctor_says_what_the_next_run_will_refuse(stopped: Stopped) -> None:
    """E29, E89: a slot that somebody else read from, a checkpoint that is gone, another server; nothing is changed."""

    def told() -> tuple[int, list[tuple[str, str, str]]]:
        done = run_penstock("doctor", "--config", str(stopped.folder.parent), "--json")
        found = [one for one in json.loads(done.stdout)["findings"] if one["about"] == "slot"]
        return done.returncode, [(one["verdict"], one["message"], one["fix"]) for one in found]

    stopped.make_slot()
    at = stopped.stands()
    assert at
    stopped.log(7, at)
    assert [verdict for verdict, _, _ in told()[1]] == ["note"], "nobody reads it, and the next run will"
    stopped.execute("INSERT INTO book VALUES (1)")
    ((now,),) = stopped.execute("SELECT pg_current_wal_flush_lsn()::text")
    stopped.execute(f"SELECT pg_replication_slot_advance('{SLOT}', '{now}')")
    code, [(verdict, message, fix)] = told()
    assert (code, verdict) == (1, "error")
    assert message == f"slot {SLOT} stands at {stopped.stands()}, and it was read up to {at}"
    assert "penstock reconcile --repair" in fix
    stopped.log(7, at, system="123")
    assert "of another server" in told()[1][0][1]
    stopped.state.note_streamed("the id of a checkpoint")
    shutil.rmtree(stopped.checkpoint)
    assert f"{stopped.checkpoint} is gone" in told()[1][0][1]
    assert not Marks(stopped.state).marked()


def test_a_slot_that_the_server_gave_up_is_made_anew(start_server: Callable[..., Server], tmp_path: Path) -> None:
    """E27: the lost one is dropped first."""
    server = start_server(16, {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB"})
    found = Stopped(tmp_path, server.url())
    with closing(found.state):
        found.execute("CREATE TABLE book (id int PRIMARY KEY, title text)")
        found.make_slot()
        at = found.stands()
        assert at
        found.log(1, at)

        def lost() -> bool:
            for statement in ("SELECT pg_switch_wal()", "INSERT INTO book SELECT count(*) FROM book", "CHECKPOINT"):
                found.execute(statement)
            ((status,),) = found.execute("SELECT wal_status FROM pg_replication_slots")
            return status == "lost"

        wait_until(lost, 60, "the slot to be lost")
        with pytest.raises(SlotLostError):
            found.require()
        assert found.repaired()
        now = found.stands()
        assert now
        assert now > at


def test_what_leaves_rows_alone_changes_no_shape(database: Database) -> None:
    """E77: made as a partition, packed anew, truncated, a column more; beside what does matter, each in its words."""
    database.execute(
        "CREATE TABLE book (id int, part int, title text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);"
        "CREATE TABLE book_1 PARTITION OF book FOR VALUES IN (1);"
        "CREATE TABLE book_2 PARTITION OF book FOR VALUES IN (2)"
    )
    settings, schemas = resolve(database.url), [read_schema(BOOKS, "books")]

    def after(*statements: str) -> str:
        before = shapes(settings, schemas)["books"]
        for statement in statements:
            database.execute(statement)
        return changed(before, shapes(settings, schemas)["books"])

    harmless = ["CREATE TABLE book_3 PARTITION OF book FOR VALUES IN (3)", "INSERT INTO book VALUES (1, 3, 'a')"]
    harmless += ["VACUUM FULL book_3", "TRUNCATE book_1", "ALTER TABLE book ALTER title SET NOT NULL"]
    for statement in [*harmless, "ALTER TABLE book ADD COLUMN more float DEFAULT random()"]:
        assert after(statement) == "", statement
    whole = "CREATE TABLE book_4 (LIKE book INCLUDING ALL); INSERT INTO book_4 VALUES (2, 4, 'b')"
    assert "book_4 was attached" in after(f"{whole}; ALTER TABLE book ATTACH PARTITION book_4 FOR VALUES IN (4)")
    assert "book_2 is no longer a part" in after("ALTER TABLE book DETACH PARTITION book_2")
    assert "is no longer a part" in after("DROP TABLE book_4")
    assert "written anew" in after("ALTER TABLE book ALTER title TYPE text USING title || '!'")


def test_what_the_server_did_not_tell_changes_a_shape(database: Database) -> None:
    """E77: a table or its partition out of the publication (and back), a column out of its identity (and back)."""
    database.execute(
        "CREATE TABLE book (id int PRIMARY KEY, title text);"
        "CREATE TABLE page (id int, n int, book_id int NOT NULL REFERENCES book, PRIMARY KEY (id, n))"
        " PARTITION BY LIST (n);"
        "CREATE TABLE page_1 PARTITION OF page FOR VALUES IN (1);"
        "CREATE TABLE page_2 PARTITION OF page FOR VALUES IN (2);"
        "ALTER TABLE page_1 REPLICA IDENTITY FULL; ALTER TABLE page_2 REPLICA IDENTITY FULL;"
        "CREATE TABLE other (id int PRIMARY KEY); CREATE PUBLICATION told FOR TABLE book, page, other"
    )
    settings = resolve(database.url)
    bound = check_live(settings, [read_schema(PAGES, "books")], SourceRules(slot="", publication="told")).bound

    def after(*statements: str) -> tuple[str, str]:
        before = shapes(settings, bound, "told")["books"]
        for statement in statements:
            database.execute(statement)
        now = shapes(settings, bound, "told")["books"]
        assert changed(before, now, mended=True) == ""
        return changed(before, now), unmet(now)

    assert after("ALTER PUBLICATION told DROP TABLE other", "ALTER TABLE book REPLICA IDENTITY FULL") == ("", "")
    assert after("ALTER PUBLICATION told DROP TABLE book") == (
        "book was not in the publication",
        "book is not published",
    )
    assert after("INSERT INTO book VALUES (1)") == ("", "book is not published")
    assert after("ALTER PUBLICATION told ADD TABLE book") == ("book was not in the publication for a while", "")
    both = ("ALTER PUBLICATION told DROP TABLE page", "ALTER PUBLICATION told ADD TABLE page")
    assert "page_1 was not in the publication for a while" in " ".join(after(*both)).replace("page_2", "page_1")
    assert after("ALTER PUBLICATION told SET (publish = 'insert, update')")[1].endswith("is not published")
    assert after("DROP PUBLICATION told; CREATE PUBLICATION told FOR ALL TABLES")[1] == ""
    lacks = 'the replica identity of page_2 lacks "book_id"'
    assert after("ALTER TABLE page_2 REPLICA IDENTITY DEFAULT") == (lacks, lacks)
    assert unmet(shapes(settings, bound, "told")["books"], untraced=False) == ""
    assert after("ALTER TABLE page_2 REPLICA IDENTITY FULL") == (f"{lacks.replace('lacks', 'lacked')} for a while", "")
    lacks = 'the replica identity of page_3 lacks "book_id"'
    assert after("CREATE TABLE page_3 PARTITION OF page FOR VALUES IN (3)") == (lacks, lacks)
    assert after("CREATE TABLE page_4 PARTITION OF page FOR VALUES IN (4)")[0] == "", "one of others like it is no news"
    before = shapes(settings, bound, "told")["books"]
    promoted = json.dumps(json.loads(before) | {"timeline": "00000007"})
    assert "was promoted" in changed(before, promoted)
    assert changed(shapes(settings, bound)["books"], before) == "", "nothing is known of before"


def test_ids_lead_to_keys_whatever_the_keys_are(database: Database) -> None:
    """E81: also those that only a look at every key can tell; what is no key of the table is left out."""
    database.execute("CREATE TABLE book (code text, at date, title text, PRIMARY KEY (code, at))")
    keys = [("", "2026-01-02"), ("x" * 600, "2026-01-02"), ("a|\\b", "2026-01-03"), ("~sha256:no", "0044-03-15 BC")]
    for code, at in keys:
        database.execute("INSERT INTO book VALUES (%s, %s::text::date, 't')", code, at)
    with PgDocumentBuilder(SourceSpec([read_schema(BOOKS, "books")]), database.url) as builder:
        ids = {document_id(key): key for key in keys}
        unfit = ["a", "a|no date", "a|2026-1-2", "a|b|c", document_id(("y" * 600, "2026-01-02"))]
        assert builder.keys("books", [*ids, *unfit, "gone|2026-01-01"]) == {
            **ids, "gone|2026-01-01": ("gone", "2026-01-01"),
        }  # fmt: skip
        assert builder.keys("books", []) == {}
