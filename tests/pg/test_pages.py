"""What how-to pages tell people to run on their servers does what they say; those for Spark are run in tests/spark."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from tests.fixtures.commands import run_penstock, running
from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until
from tests.unit.command_lines import lines

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/how-to"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)


@pytest.fixture
def shop(db18: Database) -> Iterator[Database]:
    """A database with the pages' tables; role and slots of theirs go with the test."""
    db18.execute("CREATE TABLE customers (id int PRIMARY KEY, name text)")
    db18.execute("CREATE TABLE orders (id int PRIMARY KEY, customer_id int REFERENCES customers)")
    db18.execute("CREATE TABLE countries (code text PRIMARY KEY, name text)")
    db18.execute("INSERT INTO customers VALUES (4711, 'Ada')")
    yield db18
    slots = "FROM pg_replication_slots WHERE database = current_database()"
    wait_until(lambda: not db18.execute(f"SELECT {slots} AND active"), what="the slots to be free")
    db18.execute(f"SELECT pg_drop_replication_slot(slot_name) {slots}")
    if db18.execute("SELECT FROM pg_roles WHERE rolname = 'penstock'"):
        db18.execute("DROP OWNED BY penstock")
        db18.execute("DROP ROLE penstock")


def test_the_role_and_the_publication_of_the_page_are_enough(shop: Database) -> None:
    wal_level, role, publication, limit = blocks("prepare-postgres.md", "sql")
    assert "wal_level" in wal_level and "max_slot_wal_keep_size" in limit  # the server of all tests is left as it is
    shop.execute(role)
    shop.execute(publication)
    as_role = shop.url.replace("postgres@", "penstock@")
    assert as_role != shop.url
    for words in (["coverage", "orders", "customers"], ["slots", "create", "mine", "--publication", "penstock"]):
        done = run_penstock(*words, "--url", as_role)
        assert done.returncode == 0, done.stderr


def test_the_first_example_fits_the_tables_that_its_page_has_one_make(db18: Database) -> None:
    page = (ROOT / "examples/README.md").read_text()
    (tables,) = re.findall(r'^    psql "\$DATABASE_URL" -f (\S+)$', page, re.MULTILINE)
    db18.execute((ROOT / tables).read_text())
    ((*words, folder),) = lines(page)
    assert words == ["check", "--config"]
    done = run_penstock(*words, str(ROOT / folder), DATABASE_URL=db18.url)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_first_tutorial_shows_whether_tables_are_published_and_their_changes(
    shop: Database, tmp_path: Path
) -> None:
    coverage, tail = lines((ROOT / "docs/tutorial/first-changes.md").read_text())
    shop.execute("CREATE PUBLICATION penstock FOR TABLE orders, customers")
    done = run_penstock(*coverage, PENSTOCK_URL=shop.url)
    assert done.returncode == 0, done.stdout + done.stderr
    with running(tmp_path, *tail, PENSTOCK_URL=shop.url) as watching:

        def shown() -> list[str]:
            assert watching.process.poll() is None, watching.err
            shop.execute("UPDATE customers SET name = name || '!'")  # what comes before it listens is not shown
            return watching.lines

        first = wait_until(shown, 60, "a change")[0]
        assert "customers" in first and "4711" in first and "Ada!" in first
        watching.process.send_signal(signal.SIGINT)
        assert watching.process.wait(60) == 130


def test_tables_are_at_hand_as_the_page_says(shop: Database, tmp_path: Path) -> None:
    code, without_slot = blocks("reference-tables.md", "python")
    shop.execute("CREATE VIEW open_shops AS SELECT id, name FROM customers")
    said = StringIO()
    with redirect_stdout(said):
        for block in code, without_slot:
            placed = block.replace("postgresql://penstock@localhost/shop", shop.url).replace("/data/", f"{tmp_path}/")
            exec(placed, names := {})
    assert said.getvalue() == "{'id': 4711, 'name': 'Ada'}\n0\n"
    assert names["shops"].lookup(4711) == {"id": 4711, "name": "Ada"}
