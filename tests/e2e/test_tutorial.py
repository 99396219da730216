"""The tutorial does what it shows: its files, its commands and its answers, on a real server."""

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

PAGE = (Path(__file__).parents[2] / "docs/tutorial/first-documents.md").read_text()


def block(language: str) -> str:
    """The page's one block of a language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def commands(program: str) -> list[list[str]]:
    """The words of each command of the page that runs a program, without the program."""
    lines = re.findall(rf"^    {program} ([^#\n]*)", PAGE, re.MULTILINE)
    return [shlex.split(line) for line in lines]


@pytest.fixture
def library(db18: Database) -> Iterator[Database]:
    """A database whose slots go with the test, whatever became of it."""
    yield db18
    slots = "FROM pg_replication_slots WHERE database = current_database()"
    wait_until(lambda: not db18.execute(f"SELECT {slots} AND active"), 20, "the slot to be free")
    db18.execute(f"SELECT pg_drop_replication_slot(slot_name) {slots}")


@LIMIT
def test_the_page_leads_from_two_tables_to_an_index_that_follows_them(library: Database, tmp_path: Path) -> None:
    library.execute(block("sql"))
    (tmp_path / "books.schema.yml").write_text(block("yaml"))
    (tmp_path / "penstock.toml").write_text(block("toml"))
    check, sample, run, search, again, teardown = commands("penstock")
    (renaming,) = [words[-1] for words in commands("psql") if "UPDATE" in words[-1]]
    here = {"DATABASE_URL": library.url, "PENSTOCK_CONFIG": str(tmp_path)}

    def answer(words: list[str]) -> str:
        return run_penstock(*words, **here).stdout

    assert run_penstock(*check, **here).returncode == 0
    assert answer(sample) == block("json")
    with running(tmp_path, *run, **here) as pipeline:
        wait_until(lambda: answer(search) or pipeline.process.poll() is not None, PATIENCE_S, "the index")
        (shown,) = re.findall(r"^    (1  .*\n)", PAGE, re.MULTILINE)
        assert answer(search) == shown, pipeline.err
        library.execute(renaming)
        wait_until(lambda: answer(again), 60, "the new name")
        assert answer(search) == "", "the old name is gone"
        assert pipeline.end() == 0, pipeline.err
    assert run_penstock(*teardown, "--yes", **here).returncode == 0
    assert library.execute("SELECT FROM pg_replication_slots WHERE database = current_database()") == []
    assert library.execute("SELECT FROM pg_publication") == []
    assert not (tmp_path / ".penstock").exists()
