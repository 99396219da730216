"""Replica identity, with the server as the oracle: what it rejects is what we say it rejects, and our SQL mends it."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg
import pytest

from penstock.model import CoverageReport, QualifiedTable
from penstock.postgres import publication
from penstock.postgres.catalog import link_columns, read_tables
from tests.fixtures.databases import Database
from tests.fixtures.peeking import peeking


def q(name: str) -> QualifiedTable:
    return QualifiedTable("public", name)


def takes_writes(database: Database, table: str) -> bool:
    """Whether the server lets a user update and delete; it decides before it looks for rows."""
    try:
        database.execute(f"UPDATE {table} SET id = id WHERE false; DELETE FROM {table} WHERE false")
    except psycopg.errors.ObjectNotInPrerequisiteState:  # "because it does not have a replica identity"
        return False
    except psycopg.errors.InvalidColumnReference:  # the same for a column list, or generated columns, that do not fit
        return False
    return True


def rejected(report: CoverageReport) -> set[str]:
    """The tables of which a report says that the server rejects writes now."""
    return {b.table.name for b in report.blockers if b.table and "server rejects UPDATE and DELETE" in b.reason}


def run(database: Database, statements: Iterable[str], watched: Iterable[str] = ()) -> None:
    """Run statements one by one; no table that took writes before may stop to, at any step."""
    healthy = [table for table in watched if takes_writes(database, table)]
    for statement in statements:
        database.execute(statement)
        assert [table for table in healthy if takes_writes(database, table)] == healthy, f"broken by {statement}"


TABLES = {
    "plain": "id int PRIMARY KEY, a int",
    "no_key": "id int, a int",
    "unique_key": "id int NOT NULL UNIQUE, a int",
    "nullable_key": "id int UNIQUE, a int",
    "late_key": "id int PRIMARY KEY DEFERRABLE, a int",
    "whole": "id int PRIMARY KEY, a int",
    "nothing": "id int PRIMARY KEY, a int",
    "indexed": "id int NOT NULL UNIQUE, a int",
    "dropped": "id int PRIMARY KEY, a int NOT NULL UNIQUE",
    "made_key": "id int, a int GENERATED ALWAYS AS (id * 2) STORED PRIMARY KEY",
    "made_whole": "id int PRIMARY KEY, a int GENERATED ALWAYS AS (id * 2) STORED",
    "made_without_key": "id int, a int GENERATED ALWAYS AS (id * 2) STORED",
}
ALTERATIONS = """
    ALTER TABLE whole REPLICA IDENTITY FULL; ALTER TABLE made_whole REPLICA IDENTITY FULL;
    ALTER TABLE nothing REPLICA IDENTITY NOTHING;
    ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_id_key;
    ALTER TABLE dropped REPLICA IDENTITY USING INDEX dropped_a_key;
    ALTER TABLE dropped DROP CONSTRAINT dropped_a_key"""


def make_tables(database: Database) -> set[QualifiedTable]:
    for name, definition in TABLES.items():
        database.execute(f"CREATE TABLE {name} ({definition})")
    database.execute(ALTERATIONS)
    return {q(name) for name in TABLES}


def test_a_published_table_is_called_rejecting_exactly_where_the_server_rejects(database: Database) -> None:
    """E42: every form of identity, published by FOR ALL TABLES; then our own SQL mends each, and breaks none midway."""
    required = make_tables(database)
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    report = publication.inspect(database.connect(), "p", required)
    assert report.present == required
    assert rejected(report) == {name for name in TABLES if not takes_writes(database, name)}
    assert rejected(report) >= {"no_key", "unique_key", "nullable_key", "late_key", "nothing", "dropped"}
    run(database, report.sql, TABLES)
    left = publication.inspect(database.connect(), "p", required)
    assert all(takes_writes(database, name) for name in TABLES)
    # Before 18 no generated column is ever sent, so a key over one can identify nothing; no statement helps.
    unsendable = set() if database.connect().info.server_version >= 180000 else {"made_key"}
    assert {blocker.table.name for blocker in left.blockers if blocker.table} == unsendable


def test_nothing_is_published_that_would_stop_a_user_from_writing(database: Database) -> None:
    """E41: ensure leaves out each table on which UPDATE or DELETE would then be rejected, and says what would help."""
    required = make_tables(database)
    report = publication.ensure(database.connect(), "p", required, manage=True)
    assert all(takes_writes(database, name) for name in TABLES)
    after = publication.inspect(database.connect(), "p", required)
    assert after.present == required - {blocker.table for blocker in report.blockers}
    assert {q("plain"), q("whole"), q("indexed")} <= after.present
    for name in ("no_key", "unique_key", "late_key", "nothing", "dropped", "nullable_key"):
        (blocker,) = [blocker for blocker in report.blockers if blocker.table == q(name)]
        assert "once it is published, the server would reject UPDATE and DELETE" in blocker.reason
        assert blocker.sql.startswith(f'ALTER TABLE "public"."{name}" REPLICA IDENTITY')
    run(database, after.sql, TABLES)
    assert all(takes_writes(database, name) for name in TABLES)


def test_virtual_columns_forbid_full(db18: Database) -> None:
    """E42: Postgres 18 rejects writes under FULL where a column is virtual; we neither propose nor publish that."""
    db18.execute("""
        CREATE TABLE keyed (id int PRIMARY KEY, v int GENERATED ALWAYS AS (id) VIRTUAL);
        CREATE TABLE keyless (id int, v int GENERATED ALWAYS AS (id) VIRTUAL);
        ALTER TABLE keyed REPLICA IDENTITY FULL""")
    report = publication.inspect(db18.connect(), "p", {q("keyed"), q("keyless")})
    assert [(b.table, b.sql) for b in report.blockers] == [
        (q("keyed"), 'ALTER TABLE "public"."keyed" REPLICA IDENTITY DEFAULT;'),
        (q("keyless"), ""),
    ]
    publication.ensure(db18.connect(), "p", {q("keyed"), q("keyless")}, manage=True)
    assert db18.execute("SELECT 1 FROM pg_publication") == []
    db18.execute("CREATE PUBLICATION p FOR ALL TABLES")
    assert not takes_writes(db18, "keyed")
    assert rejected(publication.inspect(db18.connect(), "p", {q("keyed")})) == {"keyed"}
    run(db18, publication.inspect(db18.connect(), "p", {q("keyed")}).sql)
    assert takes_writes(db18, "keyed")


def test_full_comes_after_the_generated_columns_are_published(db18: Database) -> None:
    """E42: under FULL, Postgres 18 wants each stored generated column published, so that option comes first."""
    db18.execute("CREATE TABLE t (id int PRIMARY KEY, link int, a int GENERATED ALWAYS AS (id) STORED)")
    for before in ("CREATE PUBLICATION p FOR TABLE t", "DROP PUBLICATION p; ALTER TABLE t REPLICA IDENTITY DEFAULT"):
        db18.execute(before)
        report = publication.inspect(db18.connect(), "p", {q("t")}, {q("t"): ["link"]})
        run(db18, report.sql, ["t"])
        assert publication.inspect(db18.connect(), "p", {q("t")}, {q("t"): ["link"]}).complete


LINKED = """
    CREATE TABLE parent (id int PRIMARY KEY, code text NOT NULL UNIQUE);
    CREATE TABLE tight (id int PRIMARY KEY, parent_id int NOT NULL REFERENCES parent, note text);
    CREATE TABLE loose (id int PRIMARY KEY, parent_id int REFERENCES parent, note text);
    CREATE TABLE pair (
        parent_id int REFERENCES parent, other_id int REFERENCES parent, PRIMARY KEY (parent_id, other_id));
    CREATE TABLE coded (id int PRIMARY KEY, parent_code text REFERENCES parent (code))"""


def test_a_link_that_an_old_row_would_not_name_is_reported_with_the_sql(database: Database) -> None:
    """E42: a join table's identity must hold its links: by an index over NOT NULL columns, else by FULL."""
    database.execute(LINKED)
    infos = read_tables(database.connect())
    columns = {table: link_columns(info) for table, info in infos.items()}
    report = publication.inspect(database.connect(), "p", set(infos), columns)
    assert {b.table.name: b.sql.splitlines() for b in report.blockers if b.table} == {
        "parent": ['ALTER TABLE "public"."parent" REPLICA IDENTITY USING INDEX "parent_code_key";'],
        "tight": [
            'CREATE UNIQUE INDEX CONCURRENTLY "tight_identity" ON "public"."tight" ("id", "parent_id");',
            'ALTER TABLE "public"."tight" REPLICA IDENTITY USING INDEX "tight_identity";',
        ],
        "loose": ['ALTER TABLE "public"."loose" REPLICA IDENTITY FULL;'],
        "coded": ['ALTER TABLE "public"."coded" REPLICA IDENTITY FULL;'],
    }
    assert all("cannot be traced to its old parent" in blocker.reason for blocker in report.blockers)
    assert publication.inspect(database.connect(), "p", set(infos)).blockers == (), "asked only where columns are named"
    publication.ensure(database.connect(), "p", set(infos), True, columns)
    assert publication.inspect(database.connect(), "p", set(infos), columns).present == {q("pair")}
    run(database, publication.inspect(database.connect(), "p", set(infos), columns).sql)
    assert publication.inspect(database.connect(), "p", set(infos), columns).complete


def test_after_our_sql_a_move_and_a_delete_name_the_old_parent(database: Database) -> None:
    """E42: shown on the stream itself."""
    database.execute(LINKED)
    tables = {q("tight"), q("loose")}
    columns = dict.fromkeys(tables, ("id", "parent_id"))
    run(database, publication.inspect(database.connect(), "p", tables, columns).sql)
    with peeking(database, "p") as peek:
        database.execute("""
            INSERT INTO parent VALUES (1, 'a'), (2, 'b'); INSERT INTO tight VALUES (7, 1);
            INSERT INTO loose VALUES (7, 1); UPDATE tight SET parent_id = 2; UPDATE loose SET parent_id = 2;
            DELETE FROM tight; DELETE FROM loose""")
        rows = peek.rows()
    links = {(row.table, row.op): row.old and row.old["parent_id"] for row in rows}
    for table in ("tight", "loose"):
        assert (links[table, "update"], links[table, "delete"]) == ("1", "2")


def test_every_leaf_needs_an_identity_of_its_own(database: Database) -> None:
    """E42: identity does not recurse to partitions; each leaf is checked, and mended, by name."""
    database.execute("""
        CREATE TABLE root (id int, day int, link int NOT NULL, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
        CREATE TABLE target (id int PRIMARY KEY); ALTER TABLE root ADD FOREIGN KEY (link) REFERENCES target;
        CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (10);
        CREATE TABLE high PARTITION OF root FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);
        CREATE TABLE high_0 PARTITION OF high FOR VALUES FROM (0) TO (10);
        ALTER TABLE high_0 REPLICA IDENTITY NOTHING""")
    report = publication.inspect(database.connect(), "p", {q("root")})
    assert [(b.table, b.sql) for b in report.blockers] == [
        (q("high_0"), 'ALTER TABLE "public"."high_0" REPLICA IDENTITY DEFAULT;')
    ]
    publication.ensure(database.connect(), "p", {q("root")}, manage=True)
    assert takes_writes(database, "root") and database.execute("SELECT 1 FROM pg_publication") == []
    for via_root in ("false", "true"):
        database.execute(f"CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root = {via_root})")
        before = publication.inspect(database.connect(), "p", {q("root")}, {q("root"): ["link"]})
        named = {b.table.name for b in before.blockers if b.table}
        assert named == ({"low", "high_0"} if via_root == "false" else {"root"}), "leaves first, then the root itself"
        run(database, before.sql, ["low", "high_0", "root"])
        assert publication.inspect(database.connect(), "p", {q("root")}, {q("root"): ["link"]}).complete
        assert takes_writes(database, "low") and takes_writes(database, "high_0")
        database.execute("DROP PUBLICATION p")


@pytest.mark.parametrize("via_root", ["false", "true"])
def test_a_partition_that_cannot_be_captured_is_named(database: Database, via_root: str) -> None:
    """E42: a partition may be a foreign table, or unlogged; its rows are in no WAL."""
    database.execute("""
        CREATE TABLE root (id int) PARTITION BY RANGE (id);
        CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (9);
        CREATE UNLOGGED TABLE fast PARTITION OF root FOR VALUES FROM (9) TO (19);
        CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER there FOREIGN DATA WRAPPER nowhere;
        CREATE FOREIGN TABLE away PARTITION OF root FOR VALUES FROM (19) TO (29) SERVER there;
        ALTER TABLE low REPLICA IDENTITY FULL; ALTER TABLE root REPLICA IDENTITY FULL""")
    database.execute(f"CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root = {via_root})")
    report = publication.inspect(database.connect(), "p", {q("root")})
    assert report.present == {q("root")} and not report.complete
    assert [(b.table, b.sql) for b in report.blockers] == [(q("away"), ""), (q("fast"), "")]
    assert "it is a foreign table" in report.blockers[0].reason and "unlogged" in report.blockers[1].reason
