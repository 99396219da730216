"""`penstock init`: what it writes for a database passes `penstock check` on that database, however odd that is."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from penstock.config.file import read_deployment
from penstock.document.schema import Aggregate, DocumentSchema, Field, Geo, Group, Join, JoinKind, Scalar
from tests.fixtures.commands import run_penstock
from tests.fixtures.databases import Database

SECRET = "hunter2"

ODD = """
CREATE SCHEMA depot;
CREATE TYPE state AS ENUM ('open', 'shut');
CREATE DOMAIN money_amount AS numeric(12, 2);
-- Keys of several columns, in another order than the foreign key has them.
CREATE TABLE depot.shelf (site text, bin int, zone text NOT NULL, capacity money_amount, state state NOT NULL,
                          PRIMARY KEY (site, bin));
CREATE TABLE depot.box (id uuid PRIMARY KEY, bin int NOT NULL, site text NOT NULL, weight real, label "char",
                        FOREIGN KEY (bin, site) REFERENCES depot.shelf (bin, site));
-- Self references, once by a junction.
CREATE TABLE employee (id int PRIMARY KEY, name text NOT NULL, boss_id int REFERENCES employee,
                       password_hash text, photo bytea, deleted boolean);
CREATE TABLE follows (follower_id int REFERENCES employee, followed_id int REFERENCES employee, created_at timestamptz,
                      PRIMARY KEY (follower_id, followed_id));
-- Two ways to one table, and rows that somebody wrote.
CREATE TABLE letter (id bigint PRIMARY KEY, sender_id int NOT NULL REFERENCES employee,
                     receiver_id int REFERENCES employee, created_by int REFERENCES employee, body text,
                     deleted_at timestamptz);
-- Two tables that point at each other.
CREATE TABLE team (id int PRIMARY KEY, name text, lead_id int);
CREATE TABLE member (id int PRIMARY KEY, name text, team_id int REFERENCES team, deleted_at timestamptz);
ALTER TABLE team ADD FOREIGN KEY (lead_id) REFERENCES member;
CREATE TABLE country (id int PRIMARY KEY, iso char(2) NOT NULL UNIQUE, name text NOT NULL);
-- Partitions; no primary key; what is no table; what has an identity that no key is.
CREATE TABLE event (id bigint, at timestamptz NOT NULL, kind text, team_id int REFERENCES team, PRIMARY KEY (id, at))
  PARTITION BY RANGE (at);
CREATE TABLE event_2025 PARTITION OF event FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');
CREATE TABLE event_2026 PARTITION OF event FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
ALTER TABLE event_2026 ADD FOREIGN KEY (team_id) REFERENCES country (id);
CREATE TABLE alarm (id int PRIMARY KEY, body text, event_id bigint, event_at timestamptz,
                    FOREIGN KEY (event_id, event_at) REFERENCES event_2026);
CREATE TABLE noise (message text);
CREATE TABLE noise_of (id int REFERENCES team, message text);
ALTER TABLE noise_of REPLICA IDENTITY FULL;
CREATE UNLOGGED TABLE cache (id int PRIMARY KEY, body text);
CREATE VIEW everybody AS SELECT * FROM employee;
CREATE TABLE hidden_identity (id int PRIMARY KEY, body text);
ALTER TABLE hidden_identity REPLICA IDENTITY NOTHING;
CREATE TABLE unnamed_key (code text NOT NULL UNIQUE, title text);
ALTER TABLE unnamed_key REPLICA IDENTITY USING INDEX unnamed_key_code_key;
CREATE TABLE parent (id int PRIMARY KEY, body text);
CREATE TABLE child (extra text) INHERITS (parent);
CREATE TABLE late (id int PRIMARY KEY DEFERRABLE, body text);
-- Names that need quotes, and names that a file takes for something else.
CREATE TABLE "Odd ""Table""." ("Id" int PRIMARY KEY, "_id" text, "a.b" int, "true" boolean NOT NULL, "größe" int,
                              "Line
break" text, "select" int, "on" date);
CREATE TABLE depot."Odd ""Table""." ("Odd Id" int PRIMARY KEY REFERENCES "Odd ""Table"".", "x y" text);
-- Generated columns, and types that no field takes.
CREATE TABLE measure (id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a * 2) STORED, c inet, d interval,
                      e tsvector, f int4range, g point, h jsonb, i text[], j time, k xml, l point[], m char(3));
-- A foreign key to a column that is no primary key.
CREATE TABLE city (id int PRIMARY KEY, iso char(2) REFERENCES country (iso), name text, mayor_id int UNIQUE);
CREATE TABLE schema_migrations (version text PRIMARY KEY);
CREATE TABLE only_secrets (password text PRIMARY KEY);
"""


def init(folder: Path, database: Database, *flags: str) -> Any:
    done = run_penstock("init", "--out", str(folder), "--json", *flags, PENSTOCK_URL=database.url)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)


def check(folder: Path, database: Database) -> list[dict[str, Any]]:
    done = run_penstock("check", "--config", str(folder), "--json", DATABASE_URL=database.url)
    answer = json.loads(done.stdout)
    assert done.returncode == 0, [one for one in answer["diagnostics"] if one["severity"] == "error"]
    return list(answer["diagnostics"])


def schemas(folder: Path) -> dict[str, DocumentSchema]:
    return {index.name: index.schema for index in read_deployment(folder).indexes}


def outline(fields: tuple[Field, ...]) -> Any:
    """The keys of a document, joins with what is in them."""
    found: dict[str, Any] = {}
    for one in fields:
        assert not isinstance(one, Group | Aggregate)
        found[one.key] = outline(one.fields) if isinstance(one, Join) else str(getattr(one, "type", "geo"))
    return found


def joins(schema: DocumentSchema) -> dict[str, Join]:
    return {one.key: one for one in schema.fields if isinstance(one, Join)}


def test_the_shop_becomes_the_indexes_that_a_person_would_write(db18: Database, tmp_path: Path) -> None:
    db18.execute((resources.files("penstock.demo") / "shop" / "tables.sql").read_text())
    told = init(tmp_path / "new", db18)
    assert [one["name"] for one in told["indexes"]] == ["orders", "products", "users"]
    assert told["check"] == {"error": 0, "warning": 0, "note": 1}, "the publication is still to be made"
    assert {one["severity"] for one in check(tmp_path / "new", db18)} == {"note"}
    assert told["parts"].keys() == {"public.items", "public.product_tags", "public.reviews", "public.tags"}
    assert told["parts"]["public.tags"] == "it is a list of words, shown inside public.products"
    person = {"id": "long", "name": "text", "email": "keyword", "city": "text", "country": "keyword", "joined": "date",
              "visits": "integer", "closed_at": "timestamp"}  # fmt: skip
    product = {"id": "long", "sku": "identifier", "name": "text", "description": "text", "price": "decimal",
               "stock": "integer", "discontinued": "boolean"}  # fmt: skip
    found = schemas(tmp_path / "new")
    assert outline(found["orders"].fields) == {
        "id": "long", "status": "keyword", "placed_at": "timestamp", "user": person,
        "items": {"line": "integer", "quantity": "integer", "price": "decimal", "product": product},
    }  # fmt: skip
    assert outline(found["products"].fields) == {
        **product,
        "items": {"line": "integer", "quantity": "integer", "price": "decimal",
                  "order": {"id": "long", "user_id": "long", "status": "keyword", "placed_at": "timestamp"}},
        "reviews": {"id": "long", "stars": "short", "body": "text", "written_at": "timestamp", "user": person},
        "tags": {"id": "long", "label": "text"},
    }  # fmt: skip
    done = run_penstock("sample", "orders", "--config", str(tmp_path / "new"), DATABASE_URL=db18.url)
    assert done.returncode == 1, "the shop is empty, and the statements run"


def test_whatever_a_catalog_holds_the_result_passes_check(database: Database, tmp_path: Path) -> None:
    database.execute(ODD)
    told = init(tmp_path, database)
    assert told["check"]["error"] == 0
    check(tmp_path, database)
    found = schemas(tmp_path)
    assert list(found) == [
        "shelf",
        "odd_table",
        "alarm",
        "city",
        "country",
        "employee",
        "measure",
        "member",
        "team",
        "unnamed_key",
    ]
    assert told["left_out"].keys() == {
        "public.noise", "public.noise_of", "public.cache", "public.everybody", "public.hidden_identity",
        "public.parent", "public.child", "public.late", "public.only_secrets",
    }  # fmt: skip
    shelf, employee = found["shelf"], found["employee"]
    assert joins(shelf)["box"].foreign_key == ("site", "bin"), "in the order of the key"
    assert outline(shelf.fields)["state"] == "enum"
    assert outline(employee.fields)["boss"] == {"id": "integer", "name": "text", "boss_id": "integer"}
    assert employee.soft_delete is not None and employee.soft_delete.column == "deleted"
    assert list(joins(employee)) == ["boss", "letter_as_receiver", "letter_as_sender", "follower", "followed"]
    text = (tmp_path / "employee.schema.yml").read_text()
    assert "# Left out: password_hash looks like a secret." in text and "# Left out: photo is bytea" in text
    measure = (tmp_path / "measure.schema.yml").read_text()
    assert [line.split()[3] for line in measure.splitlines() if "Left out" in line] == list("cdefkl")
    assert {"a", "b", "g", "h", "i", "j", "m", "id"} == outline(found["measure"].fields).keys()
    assert found["unnamed_key"].primary_key == ("code",)
    assert joins(found["city"])["iso"].primary_key == ("iso",)
    assert joins(found["team"])["event"].foreign_key == ("team_id",), "a partitioned table is one table"
    alarm = (tmp_path / "alarm.schema.yml").read_text()
    assert "no join by event_id, event_at: public.event_2026 is a partition of public.event." in alarm
    odd = found["odd_table"]
    columns = [one.column for one in odd.fields if isinstance(one, Scalar | Geo)]
    assert columns == ["Id", "_id", "a.b", "true", "größe", "Line\nbreak", "select", "on"]
    assert joins(odd)["Odd_Table"].kind is JoinKind.HAS_ONE


def test_each_proposed_document_can_be_built(db18: Database, tmp_path: Path) -> None:
    db18.execute(ODD)
    db18.execute("INSERT INTO employee (id, name, boss_id, deleted) VALUES (1, 'Ada', 2, NULL), (2, 'Bob', 1, false),"
                 " (3, 'Eve', 1, true)")  # fmt: skip
    db18.execute("INSERT INTO follows VALUES (1, 2), (1, 3), (2, 1)")
    db18.execute("INSERT INTO letter (id, sender_id, receiver_id, body) VALUES (1, 1, 2, 'kept')")
    db18.execute("INSERT INTO letter (id, sender_id, receiver_id, deleted_at) VALUES (2, 1, 2, now())")
    init(tmp_path, db18, "--table", "employee")
    done = run_penstock("sample", "employee", "1", "--config", str(tmp_path), DATABASE_URL=db18.url)
    document = json.loads(done.stdout)
    assert document["boss"]["name"] == "Bob"
    assert [one["name"] for one in document["followed"]] == ["Bob"]
    assert [one["body"] for one in document["letter_as_sender"]] == ["kept"], "what is deleted is in no list"


def test_tables_can_be_named_and_a_sink_chosen(db18: Database, tmp_path: Path) -> None:
    db18.execute(ODD)
    told = init(tmp_path, db18, "--table", "city", "--table", "depot.box", "--sink", "opensearch")
    assert [(one["name"], one["table"]) for one in told["indexes"]] == [("city", "public.city"), ("box", "depot.box")]
    assert 'type = "opensearch"' in (tmp_path / "penstock.toml").read_text()
    check(tmp_path, db18)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("nothing", "there is no table public.nothing"),
        ("everybody", "public.everybody cannot become an index: it is a view"),
        ("event_2025", "public.event_2025 is a partition of public.event"),
        ("noise", "public.noise cannot become an index: it has no primary key"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_the_reason(
    db18: Database, tmp_path: Path, table: str, said: str
) -> None:
    db18.execute(ODD)
    done = run_penstock("init", "--out", str(tmp_path / "new"), "--table", table, PENSTOCK_URL=db18.url)
    assert done.returncode == 2 and said in done.stderr and "Hint: " in done.stderr
    assert not (tmp_path / "new").exists(), "nothing is written"


def test_no_file_is_written_over_and_no_password_written_down(db18: Database, tmp_path: Path) -> None:
    db18.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
    url = db18.role("keeper", password=SECRET, attributes="LOGIN REPLICATION")
    db18.execute("GRANT SELECT ON t TO keeper")
    (tmp_path / "t.schema.yml").write_text("mine")
    done = run_penstock("init", "--out", str(tmp_path), DATABASE_URL=url)
    assert done.returncode == 2 and "t.schema.yml exists already; nothing was written" in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["t.schema.yml"]
    done = run_penstock("init", "--out", str(tmp_path), "--force", PENSTOCK_URL=url)
    assert (done.returncode, done.stderr) == (0, "")
    written = "".join(one.read_text() for one in tmp_path.iterdir())
    assert SECRET not in written + done.stdout and "mine" not in written
    assert 'connection_url = { env = "DATABASE_URL" }' in written
    assert "Checked: 2 errors. " in done.stdout, done.stdout
    assert "penstock check --sql prints what to run." in done.stdout
    assert f"export DATABASE_URL=postgresql://keeper@127.0.0.1:{db18.server.port}/{db18.name}" in done.stdout
    assert f"  penstock check --config {tmp_path}\n  penstock run --config {tmp_path}\n" in done.stdout


def test_what_a_role_may_not_read_is_left_out(db18: Database, tmp_path: Path) -> None:
    db18.execute("CREATE TABLE t (id int PRIMARY KEY, body text, wage int)")
    db18.execute("CREATE TABLE closed (id int PRIMARY KEY, body text)")
    db18.execute("CREATE TABLE guarded (id int PRIMARY KEY, body text)")
    db18.execute("ALTER TABLE guarded ENABLE ROW LEVEL SECURITY")
    url = db18.role("reader")
    db18.execute(f"GRANT CREATE ON DATABASE {db18.name} TO reader")
    db18.execute("GRANT SELECT (id, body) ON t TO reader")
    db18.execute("GRANT SELECT ON guarded TO reader")
    done = run_penstock("init", "--out", str(tmp_path), "--json", PENSTOCK_URL=url)
    told = json.loads(done.stdout)
    assert told["left_out"] == {
        "public.closed": "this role may not read it",
        "public.guarded": "row-level security applies to this role, and would hide rows from it",
    }
    assert [one["name"] for one in told["indexes"]] == ["t"], "that it may not be published is for its owner to mend"
    assert "# Left out: wage may not be read by this role." in (tmp_path / "t.schema.yml").read_text()


def test_a_slot_of_another_database_is_not_taken(db18: Database, pg18: Any, tmp_path: Path) -> None:
    db18.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
    assert run_penstock("slots", "create", "penstock", PENSTOCK_URL=pg18.url()).returncode == 0
    try:
        assert init(tmp_path, db18)["check"]["error"] == 0
        assert f'slot = "penstock_{db18.name}"' in (tmp_path / "penstock.toml").read_text()
    finally:
        assert run_penstock("slots", "drop", "penstock", "--yes", PENSTOCK_URL=pg18.url()).returncode == 0


def test_an_empty_database_is_told_in_one_sentence(db18: Database, tmp_path: Path) -> None:
    done = run_penstock("init", "--out", str(tmp_path), PENSTOCK_URL=db18.url)
    assert done.returncode == 2 and "has no table that could become an index" in done.stderr
    blocked = tmp_path / "file"
    blocked.write_text("")
    db18.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
    done = run_penstock("init", "--out", str(blocked / "below"), PENSTOCK_URL=db18.url)
    assert done.returncode == 2 and "cannot be written to: not a directory" in done.stderr
