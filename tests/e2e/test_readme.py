"""The README's two files make an index that follows its tables, on a real server."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.commands import run_penstock, running
from tests.fixtures.databases import Database
from tests.fixtures.programs import LIMIT, PATIENCE_S
from tests.fixtures.waiting import wait_until

README = (Path(__file__).parents[2] / "README.md").read_text()
TABLES = """
CREATE TABLE publishers (id bigint PRIMARY KEY, name text);
CREATE TABLE books (id bigint PRIMARY KEY, title text, publisher_id bigint NOT NULL REFERENCES publishers);
CREATE TABLE reviews (id bigint PRIMARY KEY, book_id bigint NOT NULL REFERENCES books, stars smallint);
CREATE INDEX ON books (publisher_id);
CREATE INDEX ON reviews (book_id);
INSERT INTO publishers VALUES (1, 'Ace');
INSERT INTO books VALUES (1, 'The Left Hand of Darkness', 1), (2, 'The Word for World Is Forest', 1);
INSERT INTO reviews VALUES (1, 1, 5), (2, 2, 4);
"""


def block(language: str) -> str:
    """The one block of a language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return str(found)


@pytest.fixture
def library(db18: Database) -> Iterator[Database]:
    """A database whose slots go with the test, whatever became of it."""
    db18.execute(TABLES)
    yield db18
    slots = "FROM pg_replication_slots WHERE database = current_database()"
    wait_until(lambda: not db18.execute(f"SELECT {slots} AND active"), 20, "the slot to be free")
    db18.execute(f"SELECT pg_drop_replication_slot(slot_name) {slots}")


@LIMIT
def test_the_two_files_are_enough_and_a_moved_child_leaves_both_documents_right(
    library: Database, tmp_path: Path
) -> None:
    """E61: as the README says, a review that moves to another book is gone from the first."""
    (tmp_path / "books.schema.yml").write_text(block("yaml"))
    (tmp_path / "penstock.toml").write_text(block("toml"))
    lines = [shlex.split(line, comments=True) for line in re.findall(r"^    penstock (.*)", README, re.MULTILINE)]
    check, run, search = lines
    (shown,) = re.findall(r"^    (1  .*\n)", README, re.MULTILINE)
    here = {"DATABASE_URL": library.url, "PENSTOCK_CONFIG": str(tmp_path)}

    def ratings() -> list[str]:
        found = run_penstock("search", "books", "the", "--json", **here).stdout
        return sorted(re.findall(r'"rating": ?([\d.]+|null)', found))

    assert run_penstock(*check, **here).returncode == 0
    with running(tmp_path, *run, **here) as pipeline:
        wait_until(
            lambda: run_penstock(*search, **here).stdout or pipeline.process.poll() is not None, PATIENCE_S, "the index"
        )
        assert run_penstock(*search, **here).stdout == shown, pipeline.err
        library.execute("UPDATE reviews SET book_id = 1 WHERE id = 2")
        wait_until(lambda: "null" in ratings(), 60, "the book without a review")
        assert [value for value in ratings() if value != "null"] in (["4.5"], ["4.5000000000000000"])
        assert pipeline.end() == 0, pipeline.err
