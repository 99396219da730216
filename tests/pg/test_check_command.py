"""`penstock check` and `penstock sample` as commands, and every example deployment held against its own tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.commands import run_penstock
from tests.fixtures.databases import Database

EXAMPLES = sorted(path.parent for path in (Path(__file__).parents[2] / "examples").glob("*/tables.sql"))
TABLES = """
CREATE TABLE author (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE book (id int, part int, title text, price numeric, author_id int REFERENCES author, gone bool,
                   PRIMARY KEY (id, part));
INSERT INTO author VALUES (1, 'Ada');
INSERT INTO book SELECT n, 1, 'hidden', 0, 1, true FROM generate_series(1, 200) n;
INSERT INTO book VALUES (7000, 2, 'She said "a, [b]"', 12.50000000000000000001, 1, false);
"""
SCHEMA = """\
version: 1
table: book
soft_delete: {column: gone}
fields:
  - {integer: id}
  - {text: title}
  - {decimal: price}
  - {belongs_to: author, column: author_id, table: author, fields: [{text: name}]}
"""


@pytest.fixture
def folder(tmp_path: Path, db18: Database) -> Path:
    db18.execute(TABLES)
    (tmp_path / "books.schema.yml").write_text(SCHEMA)
    (tmp_path / "penstock.toml").write_text(
        '[source]\ntype = "postgres"\nconnection_url = { env = "BOOKS_URL" }\n'
        '[[index]]\nname = "books"\nschema = "books.schema.yml"\n'
    )
    return tmp_path


def check(folder: Path, database: Database, *flags: str) -> Any:
    return run_penstock("check", "--config", str(folder), *flags, BOOKS_URL=database.url)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_passes_check_on_its_own_tables(db18: Database, example: Path) -> None:
    db18.execute((example / "tables.sql").read_text())
    urls = {"DATABASE_URL": db18.url, "WAREHOUSE_URL": db18.url}
    done = run_penstock("check", "--config", str(example), "--strict", "--json", **urls)
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert {one["severity"] for one in answer["diagnostics"]} <= {"note"}
    assert all(one["touched_by"] for one in answer["indexes"])


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3


def test_check_says_what_is_wrong_where_and_what_mends_it(folder: Path, db18: Database) -> None:
    done = check(folder, db18)
    assert done.returncode == 0, "a warning is no error"
    assert 'no index over ("author_id") of public.book' in done.stdout
    assert 'CREATE INDEX CONCURRENTLY ON "public"."book" ("author_id");' in done.stdout
    assert f"{folder}/books.schema.yml:8:5" in done.stdout
    assert "public.author  as author: by id → public.book where author_id is that" in done.stdout
    assert done.stdout.endswith("1 warning, 1 note.\n")
    assert check(folder, db18, "--strict").returncode == 1


def test_check_answers_machines(folder: Path, db18: Database) -> None:
    (folder / "books.schema.yml").write_text(SCHEMA.replace("text: title", "text: titel"))
    done = check(folder, db18, "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["worst"]) == (1, "error")
    (error,) = [one for one in answer["diagnostics"] if one["severity"] == "error"]
    assert error == {
        "severity": "error", "code": "column-missing", "index": "books", "file": f"{folder}/books.schema.yml",
        "line": 6, "column": 5, "message": "field 'titel': public.book has no column \"titel\"",
        "hint": "The nearest one is title.", "sql": "",
    }  # fmt: skip
    (index,) = answer["indexes"]
    assert index["body"]["mappings"]["properties"]["author"]["properties"]["name"]["type"] == "text"
    assert [one["key"] for one in index["mapping"]] == ["id", "titel", "price", "author"]


def test_offline_needs_no_server_and_shows_the_mapping(folder: Path) -> None:
    done = run_penstock("check", "--config", str(folder / "penstock.toml"), "--offline")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "books  one document for each row of public.book",
        "├─ id       integer           id",
        "├─ title    text +keyword     title",
        "├─ price    double (decimal)  price",
        "└─ author   object            belongs_to public.author by author_id",
        "   └─ name  text +keyword     name",
        "",
        "The files are in order: 1 index.",
    ]


def test_a_bad_file_is_told_with_its_place_and_ends_with_2(folder: Path) -> None:
    (folder / "books.schema.yml").write_text("version: 1\ntable: book\nfields: [{txt: title}]\n")
    done = run_penstock("check", "--config", str(folder), "--offline")
    assert done.returncode == 2 and "books.schema.yml:3:" in done.stderr


def test_the_script_for_an_administrator_is_sql_alone(folder: Path, db18: Database) -> None:
    """E34, E42: role, grants, publication, identity."""
    done = check(folder, db18, "--sql", "--role", "keeper")
    assert (done.returncode, done.stderr) == (0, "")
    statements = [line for line in done.stdout.splitlines() if line and not line.startswith("--")]
    assert statements[1:] == [
        'ALTER ROLE "keeper" LOGIN REPLICATION;',
        f'GRANT CONNECT ON DATABASE "{db18.name}" TO "keeper";',
        'GRANT USAGE ON SCHEMA "public" TO "keeper";',
        'GRANT SELECT ON "public"."author", "public"."book" TO "keeper";',
        'CREATE PUBLICATION "penstock" FOR TABLE "public"."author", "public"."book";',
        'CREATE INDEX CONCURRENTLY ON "public"."book" ("author_id");',
    ]


def test_what_no_statement_mends_is_counted_beside_the_script(folder: Path, db18: Database) -> None:
    (folder / "books.schema.yml").write_text(SCHEMA.replace("text: title", "text: titel"))
    done = check(folder, db18, "--sql")
    assert (done.returncode, done.stderr) == (0, "1 error no statement fixes: see penstock check.\n")
    as_json = check(folder, db18, "--sql", "--json")
    told = json.loads(as_json.stdout)
    assert (as_json.returncode, as_json.stderr, told["sql"]) == (0, "", done.stdout)
    assert [one["severity"] for one in told["left"]] == ["error"]
    alone = check(folder, db18, "--role", "keeper")
    assert (alone.returncode, alone.stdout) == (2, "")
    assert "Add --sql" in alone.stderr


def test_an_index_that_is_not_there_is_named_with_those_that_are(folder: Path, db18: Database) -> None:
    done = check(folder, db18, "bokks")
    assert done.returncode == 2 and "There are: books." in done.stderr


def test_sample_shows_one_real_document_with_every_digit(folder: Path, db18: Database) -> None:
    found = run_penstock("sample", "books", "7000", "2", "--config", str(folder), BOOKS_URL=db18.url)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == (
        '{\n  "id": 7000,\n  "title": "She said \\"a, [b]\\"",\n  "price": 12.50000000000000000001,\n'
        '  "author": {\n    "name": "Ada"\n  }\n}\n'
    )
    by_id = run_penstock("sample", "books", "7000|2", "--json", "--config", str(folder), BOOKS_URL=db18.url)
    assert by_id.stdout == found.stdout, "as an id has it"
    raw = run_penstock("sample", "books", "--raw", "--config", str(folder), BOOKS_URL=db18.url)
    assert json.loads(raw.stdout)["id"] == 7000, "the first rows have no document, and it is found all the same"
    assert raw.stdout.count("\n") == 0


def test_sample_of_nothing_says_so(folder: Path, db18: Database) -> None:
    hidden = run_penstock("sample", "books", "1", "1", "--config", str(folder), BOOKS_URL=db18.url)
    assert (hidden.returncode, hidden.stdout) == (1, "")
    assert hidden.stderr == "books has no document with the key 1, 1.\n"
    told = run_penstock("sample", "books", "1", "1", "--json", "--config", str(folder), BOOKS_URL=db18.url)
    assert (told.returncode, told.stdout) == (1, "")
    assert json.loads(told.stderr)["error"]["message"] == "books has no document with the key 1, 1"
    word = run_penstock("sample", "books", "one", "1", "--config", str(folder), BOOKS_URL=db18.url)
    assert word.returncode == 2
    assert word.stderr.startswith("Error: that is no key of books\nHint: Its key is (")
    short = run_penstock("sample", "books", "1", "--config", str(folder), BOOKS_URL=db18.url)
    assert short.returncode == 2 and "has 2 parts (id, part), and 1 were given" in short.stderr
