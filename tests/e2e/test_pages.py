"""What how-to pages tell people to run is run, line by line, on one deployment with every kind of sink.

The pages are played in the order of `tests/fixtures/pages.py`. A line that is to be typed has to end with 0 unless it
is listed here; Python and SQL of a page are run, too.
"""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from penstock.model import Lsn
from tests.fixtures.commands import COMMAND, environment, running
from tests.fixtures.databases import Database
from tests.fixtures.opensearch import Node
from tests.fixtures.pages import PLAYED
from tests.fixtures.pipelines import LIMIT, START_S, Deployed, Run, fresh_database
from tests.fixtures.servers import Servers
from tests.fixtures.waiting import wait_until
from tests.unit.command_lines import lines

pytestmark = [LIMIT, pytest.mark.long]

HOW_TO = Path(__file__).parents[2] / "docs/how-to"
INDEXES = ("books", "users", "products", "customers", "days")
TABLES = """
CREATE SCHEMA sales;
CREATE SCHEMA crm;
CREATE TABLE books (id int PRIMARY KEY, title text);
CREATE TABLE users (id int PRIMARY KEY, name text);
CREATE TABLE products (id int PRIMARY KEY, name text);
CREATE TABLE customers (id int PRIMARY KEY, name text);
CREATE TABLE days (id int PRIMARY KEY, at date);
CREATE TABLE orders (id int PRIMARY KEY, note text);
CREATE TABLE sales.items (id int PRIMARY KEY, note text);
CREATE TABLE crm.accounts (id int PRIMARY KEY, name text);
INSERT INTO books SELECT n, 'book ' || n FROM generate_series(1, 100) n;
UPDATE books SET title = 'Notes by Ada Lovelace' WHERE id = 17;
INSERT INTO users SELECT n, 'user ' || n FROM generate_series(1, 100) n;
INSERT INTO products SELECT n, 'product ' || n FROM generate_series(1, 10) n;
INSERT INTO customers SELECT n, 'customer ' || n FROM generate_series(1, 10) n;
INSERT INTO days VALUES (1, '2026-01-01');
CREATE TABLE publisher (id int PRIMARY KEY, name text);
CREATE TABLE book (isbn text PRIMARY KEY, title text, publisher_id int NOT NULL REFERENCES publisher);
CREATE TABLE review (id int PRIMARY KEY, book_isbn text NOT NULL REFERENCES book, stars smallint, body text);
CREATE TABLE author (id int PRIMARY KEY, name text);
CREATE TABLE book_author (
    book_isbn text REFERENCES book, author_id int REFERENCES author, PRIMARY KEY (book_isbn, author_id));
CREATE INDEX ON book (publisher_id);
CREATE INDEX ON review (book_isbn);
CREATE INDEX ON book_author (author_id);
INSERT INTO publisher VALUES (1, 'Ace');
INSERT INTO book VALUES ('9780441', 'The Left Hand of Darkness', 1);
CREATE PUBLICATION penstock FOR ALL TABLES;
"""
DEPLOYMENT = """
on_error = "quarantine"
[server]
public_address = "127.0.0.1:0"
private_address = "127.0.0.1:0"
[source]
type = "postgres"
connection_url = {{ env = "DATABASE_URL" }}
slot = "pages"
publication = "pages"
[sinks.search]
type = "local"
[sinks.index]
type = "opensearch"
url = "{node}"
number_of_replicas = 0
[sinks.lake]
type = "delta"
path = "lake"
[sinks.history]
type = "parquet"
path = "history"
"""
FIELDS = {"books": "{text: title}", "days": "{date: at}"}
# What ends with something else than 0, and is right to.
CODES = {("quarantine.md", "replay"): 1}


class Place:
    """Where the pages are played: a database, a deployment that runs, a folder to be in."""

    def __init__(self, database: Database, node: Node) -> None:
        self.deployed = Deployed(database, node)
        self.deployed.slot, self.deployed.prefix = "pages", "no-index-of-this-name-"
        self.deployed.state = self.deployed.folder / ".penstock"
        self.folder = self.deployed.folder
        self.variables = {"DATABASE_URL": database.url, "PENSTOCK_URL": database.url, "PENSTOCK_YES": "true"}
        text = DEPLOYMENT.format(node=node.url)
        for name in INDEXES:
            text += f'[[index]]\nname = "{name}"\nschema = "{name}.schema.yml"\n'
            schema = f"version: 1\ntable: {name}\nfields: [{FIELDS.get(name, '{keyword: name}')}]\n"
            (self.folder / f"{name}.schema.yml").write_text(schema)
        (self.folder / "penstock.toml").write_text(text)
        self.running: Run | None = None

    def run(self) -> None:
        """`penstock run`, if it does not run yet."""
        if self.running is None:
            self.running = self.deployed.start(**self.variables)
        self.settle()

    def stop(self) -> None:
        """End it in good order."""
        if self.running is not None:
            assert self.running.stop() == 0, self.running.err
            self.running = None

    def settle(self) -> None:
        """Wait until nothing is seeded or built anew."""
        if (run := self.running) is None:
            return

        def rests() -> bool:
            told = run.status()
            return told is not None and all(
                one["phase"] == "live" and not one["rebuild"] for one in told["indexes"].values()
            )

        run.wait(rests, START_S, "every index to rest")

    def change(self, sql: str) -> None:
        """Change rows of an index, and wait until that is in every sink."""
        run = self.running
        assert run
        before = self.deployed.written()
        self.deployed.database.execute(sql)
        run.wait(lambda: Lsn.parse((run.status() or {}).get("position", "0/0")) > before, START_S, "the change")

    def penstock(self, words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        """A command, to its end."""
        return subprocess.run(
            [*COMMAND, *words], env=environment(**self.variables), cwd=cwd, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=START_S, check=False,
        )  # fmt: skip

    def python(self, code: str) -> str:
        """A program, in the deployment's folder; what it prints."""
        placed = code.replace("/data/", f"{self.folder}/")
        done = subprocess.run(
            [sys.executable, "-c", placed], cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def drop_slots(self) -> None:
        """Those of the pages; the deployment's stays."""
        found = "FROM pg_replication_slots WHERE database = current_database() AND slot_name <> 'pages'"
        wait_until(lambda: not self.deployed.database.execute(f"SELECT {found} AND active"), 30, "slots to be free")
        self.deployed.database.execute(f"SELECT pg_drop_replication_slot(slot_name) {found}")


@pytest.fixture(scope="module")
def place(servers: Servers, node: Node) -> Iterator[Place]:
    database = fresh_database(servers.get(18))
    database.execute(TABLES)
    found = Place(database, node)
    try:
        found.run()
        yield found
    finally:
        found.deployed.close()
        node.ask("DELETE", "/" + ",".join(f"{name}-*" for name in INDEXES))
        found.drop_slots()
        database.remove()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (HOW_TO / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("page", PLAYED)
def test_what_a_page_tells_to_run_does_what_it_says(page: str, place: Place, tmp_path: Path) -> None:
    story = STORIES.get(page, Story)(place, page, tmp_path)
    told = list(lines((HOW_TO / page).read_text()))
    assert told or blocks(page, "python")
    story.before()
    for words in told:
        place.settle()
        story.play([story.meant(word, words) for word in words])
    story.after()
    place.drop_slots()


class Story:
    """How a page is played, where nothing else is to be said: each line in the deployment's folder."""

    def __init__(self, place: Place, page: str, tmp_path: Path) -> None:
        self.place, self.page, self.tmp_path = place, page, tmp_path
        self.execute = place.deployed.database.execute
        self.cwd = place.folder

    def before(self) -> None:
        """What the page takes to be there."""

    def after(self) -> None:
        """What has to be so in the end."""

    def meant(self, word: str, words: list[str]) -> str:
        """A word that stands for one of the reader's."""
        return {"NAME": "spare", "$DATABASE_URL": self.place.deployed.database.url}.get(word, word)

    def play(self, words: list[str]) -> None:
        """One line."""
        if words[0] == "run":
            self.place.run()
            return
        done = self.place.penstock(words, self.cwd)
        wanted = next((code for (page, verb), code in CODES.items() if page == self.page and verb in words), 0)
        assert done.returncode == wanted, f"penstock {' '.join(words)}\n{done.stdout}\n{done.stderr}"
        assert done.stdout


class SearchLocally(Story):
    def after(self) -> None:
        (code,) = blocks(self.page, "python")
        assert "Notes by Ada Lovelace" in self.place.python(code)


class DeltaSink(Story):
    def after(self) -> None:
        read, follow = blocks(self.page, "python")
        assert self.place.python(f"{read}\nprint(books.num_rows)") == "100\n"
        self.place.change("UPDATE books SET title = 'told once' WHERE id = 3")
        assert "told once" in self.place.python(f"{follow}\nprint(changes['body'].to_pylist())")


class ParquetSink(Story):
    def after(self) -> None:
        """By SQLite in place of Spark: the statement is plain SQL."""
        (sql,) = blocks(self.page, "sql")
        table = pyarrow.dataset.dataset(self.place.folder / "history" / "books", partitioning="hive").to_table()
        names = ["id", "body", "op", "generation", "version", "seq"]
        with closing(sqlite3.connect(":memory:")) as file:
            file.execute(f"CREATE TABLE books ({', '.join(names)})")
            rows = zip(*(table[name].to_pylist() for name in names), strict=True)
            file.executemany(f"INSERT INTO books VALUES ({', '.join('?' * len(names))})", rows)
            found = {id: json.loads(body) for id, body in file.execute(sql)}
        assert found == {str(id): {"title": title} for id, title in self.execute("SELECT id, title FROM books")}


class Quarantine(Story):
    def before(self) -> None:
        self.execute("INSERT INTO days VALUES (3, '0044-03-15 BC'), (7, '0045-03-15 BC')")
        assert self.place.running
        self.place.running.await_status(quarantined=2)

    def after(self) -> None:
        self.execute("DELETE FROM days WHERE id IN (3, 7)")
        assert self.place.running
        self.place.running.await_status(quarantined=0)


class WatchChanges(Story):
    def before(self) -> None:
        self.execute("SELECT pg_create_logical_replication_slot('orders_cache', 'pgoutput')")
        self.execute("INSERT INTO orders SELECT n, 'waits' FROM generate_series(-20, -1) n")

    def play(self, words: list[str]) -> None:
        """Until it shows a change; without a slot of its own it shows none from before its start."""
        if "--limit" in words:
            super().play(words)
            return
        with running(self.tmp_path, *words, **self.place.variables) as tail:

            def shows() -> bool:
                self.execute("INSERT INTO orders SELECT coalesce(max(id), 0) + 1, 'seen' FROM orders")
                assert tail.process.poll() is None, tail.err
                return bool(tail.lines)

            wait_until(shows, 60, "a change to be shown")
            assert tail.end() == 130


class LookAfterSlots(Story):
    def meant(self, word: str, words: list[str]) -> str:
        if word == "LSN":
            return str(self.execute("SELECT pg_current_wal_lsn()::text")[0][0])
        return "pages" if word == "NAME" and words[1] == "lag" else super().meant(word, words)


class MoveFromPgsync(Story):
    def before(self) -> None:
        (schema,) = blocks(self.page, "yaml")
        self.cwd = self.tmp_path
        (self.cwd / "book.schema.yml").write_text(schema)
        (self.cwd / "penstock.toml").write_text(
            '[source]\ntype = "postgres"\nconnection_url = { env = "DATABASE_URL" }\nmanage_replica_identity = true\n'
            '[[index]]\nname = "book"\nschema = "book.schema.yml"\n'
        )


class StartFromADatabase(Story):
    def before(self) -> None:
        self.cwd = self.tmp_path

    def play(self, words: list[str]) -> None:
        """Its own deployment is run until it is live."""
        if words[0] != "run":
            out = self.cwd / "search"
            for file in out.iterdir() if words[0] == "init" and out.exists() else ():
                file.unlink() if file.is_file() else None
            super().play(words)
            return
        ports = {"PENSTOCK_CONFIG": str(self.cwd / "search")}
        with running(self.tmp_path, "run", **self.place.variables, **ports) as run:

            def is_live() -> bool:
                assert run.process.poll() is None, run.err
                told = self.place.penstock(["status", "--json", "--config", "search"], self.cwd).stdout
                phases: list[Any] = [one["phase"] for one in json.loads(told)["indexes"].values()] if told else []
                return bool(phases) and set(phases) == {"live"}

            wait_until(is_live, START_S, "the proposed deployment to be live")
            assert run.end(signal.SIGINT) == 0, run.err


class Reconcile(Story):
    def play(self, words: list[str]) -> None:
        """The last repair is of a deployment whose slot is gone."""
        if words == ["reconcile", "--repair"]:
            self.place.stop()
            self.execute("SELECT pg_drop_replication_slot('pages')")
            self.execute("UPDATE users SET name = 'missed'")
            refused = self.place.penstock(["run"], self.cwd)
            assert refused.returncode == 1
            assert "penstock reconcile --repair" in refused.stderr
        super().play(words)

    def after(self) -> None:
        assert self.place.penstock(["reconcile"], self.cwd).returncode == 0
        self.place.stop()  # it was started by this page


class TakeItDown(Story):
    def before(self) -> None:
        self.place.stop()  # where this page is played by itself

    def after(self) -> None:
        assert not self.place.deployed.state.exists()
        assert not self.execute("SELECT FROM pg_replication_slots WHERE slot_name = 'pages'")


STORIES: dict[str, Callable[[Place, str, Path], Story]] = {
    "search-locally.md": SearchLocally,
    "delta-sink.md": DeltaSink,
    "parquet-sink.md": ParquetSink,
    "quarantine.md": Quarantine,
    "watch-changes.md": WatchChanges,
    "look-after-slots.md": LookAfterSlots,
    "move-from-pgsync.md": MoveFromPgsync,
    "start-from-a-database.md": StartFromADatabase,
    "reconcile.md": Reconcile,
    "take-it-down.md": TakeItDown,
}
