"""What how-to pages tell people to run on their servers does what they say; those for Spark are run in tests/spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from tests.fixtures.commands import run_penstock
from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until

PAGES = Path(__file__).parents[2] / "docs/how-to"


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
