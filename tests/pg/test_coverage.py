"""What a publication carries of the required tables: the report, in every state a publication can be in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.demo.server import Server
from penstock.errors import PublicationError
from penstock.model import CoverageReport, QualifiedTable
from penstock.postgres import publication
from tests.fixtures.databases import Database


def q(name: str, schema: str = "public") -> QualifiedTable:
    return QualifiedTable(schema, name)


def inspect(database: Database, *names: str, **columns: list[str]) -> CoverageReport:
    wanted = {q(name): listed for name, listed in columns.items()}
    return publication.inspect(database.connect(), "p", {q(name) for name in names}, wanted)


def mend(database: Database, report: CoverageReport) -> None:
    for statement in report.sql:
        database.execute(statement)


def state(database: Database) -> list[Any]:
    """Everything that coverage could change."""
    catalogs = ("pg_publication", "pg_publication_rel", "pg_publication_namespace")
    parts = [database.execute(f"SELECT xmin, * FROM {catalog} ORDER BY oid") for catalog in catalogs]
    tables = database.execute("SELECT oid, xmin, relreplident FROM pg_class WHERE oid >= 16384 ORDER BY oid")
    return [
        *parts,
        tables,
        database.execute("SELECT * FROM pg_locks WHERE locktype = 'relation' AND pid <> pg_backend_pid()"),
    ]


def reasons(report: CoverageReport) -> dict[str, str]:
    return {blocker.table.name if blocker.table else "": blocker.reason for blocker in report.blockers}


TABLES = (
    "CREATE TABLE a (id int PRIMARY KEY, x int, y int); CREATE TABLE b (id int PRIMARY KEY); CREATE TABLE c (id int)"
)


def test_a_missing_publication_is_reported_with_the_sql_that_makes_it(database: Database) -> None:
    """E41: missing publication; the SQL is exact: run as it stands, it leaves nothing to report."""
    database.execute(TABLES)
    report = inspect(database, "a", "b")
    assert (report.present, report.missing, report.manageable) == (frozenset(), {q("a"), q("b")}, True)
    assert report.sql == ('CREATE PUBLICATION "p" FOR TABLE "public"."a", "public"."b";',)
    mend(database, report)
    after = inspect(database, "a", "b")
    assert after.complete and after.present == {q("a"), q("b")} and after.sql == ()


def test_a_missing_table_is_reported_with_a_transaction_that_loses_no_change(database: Database) -> None:
    """E41: missing table; the SQL for people takes the same lock as we do."""
    database.execute(f"{TABLES}; CREATE PUBLICATION p FOR TABLE a")
    report = inspect(database, "a", "b")
    assert (report.present, report.missing, report.manageable) == ({q("a")}, {q("b")}, True)
    assert report.sql[0].splitlines() == [
        "BEGIN;",
        "SET LOCAL lock_timeout = '5000ms';",
        'LOCK TABLE "public"."b" IN SHARE ROW EXCLUSIVE MODE;',
        'ALTER PUBLICATION "p" ADD TABLE "public"."b";',
        "COMMIT;",
    ]
    mend(database, report)
    assert inspect(database, "a", "b").complete


@pytest.mark.parametrize("before", ["", "CREATE PUBLICATION p FOR TABLE a"])
def test_inspect_changes_nothing(database: Database, before: str) -> None:
    """E41: neither a publication nor a table is touched, no lock stays, and a read-only transaction is enough."""
    database.execute(f"{TABLES}; {before}")
    seen = state(database)
    conn = database.connect()
    report = publication.inspect(conn, "p", {q("a"), q("b"), q("c")})
    assert state(database) == seen
    with conn.transaction():
        conn.execute("SET TRANSACTION READ ONLY")
        careful = publication.inspect(conn, "p", {q("a"), q("b"), q("c")})
        assert conn.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() == (None,)
    assert (careful.present, careful.missing, careful.sql) == (report.present, report.missing, report.sql)
    assert not careful.manageable and "read-only" in careful.notes[0]
    with conn.transaction():
        conn.execute("SET LOCAL search_path = 'elsewhere'")
        assert publication.inspect(conn, "p", {q("a"), q("b"), q("c")}) == report
        assert conn.execute("SHOW search_path").fetchone() == ("elsewhere",)
        assert conn.execute("SELECT count(*) FROM pg_locks WHERE relation >= 16384").fetchone() == (0,)
    assert state(database) == seen


def test_for_all_tables_carries_everything(database: Database) -> None:
    """E41: FOR ALL TABLES."""
    database.execute(f"{TABLES}; CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE leaf PARTITION OF r FOR VALUES FROM (0) TO (9); CREATE UNLOGGED TABLE fast (id int)")
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    report = inspect(database, "a", "b", "r", "leaf")
    assert report.complete and len(report.present) == 4
    assert (inspect(database, "fast").missing, inspect(database, "fast").sql) == ({q("fast")}, ())


def test_for_tables_in_schema_carries_the_schema_and_takes_further_tables(database: Database) -> None:
    """E41: FOR TABLES IN SCHEMA."""
    database.execute("""
        CREATE SCHEMA s; CREATE TABLE s.a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY);
        CREATE TABLE s.empty (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE PUBLICATION p FOR TABLES IN SCHEMA s""")
    required = {q("a", "s"), q("empty", "s"), q("b")}
    report = publication.inspect(database.connect(), "p", required)
    assert (report.present, report.missing) == ({q("a", "s"), q("empty", "s")}, {q("b")})
    mend(database, report)
    assert publication.inspect(database.connect(), "p", required).complete


PARTITIONED = """
    CREATE TABLE r (id int, d int, PRIMARY KEY (id, d)) PARTITION BY RANGE (d);
    CREATE TABLE low PARTITION OF r FOR VALUES FROM (0) TO (10);
    CREATE TABLE high PARTITION OF r FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);
    CREATE TABLE high_0 PARTITION OF high FOR VALUES FROM (0) TO (10);
    CREATE TABLE void (id int PRIMARY KEY) PARTITION BY RANGE (id)"""


def test_a_partitioned_table_is_present_as_its_root_or_as_all_of_its_leaves(database: Database) -> None:
    """E41, E7: partitioned root listed as its leaves, with and without publish_via_partition_root."""
    database.execute(PARTITIONED)
    cases = {
        "r": ("false", {"r", "low", "high", "high_0"}),
        "low, high_0": ("false", {"r", "low", "high", "high_0"}),
        "low, high": ("false", {"r", "low", "high", "high_0"}),
        "low": ("false", {"low"}),
        "high": ("true", {"high"}),
        "void": ("false", {"void"}),
    }
    for listed, (via_root, present) in cases.items():
        database.execute(f"CREATE PUBLICATION p FOR TABLE {listed} WITH (publish_via_partition_root = {via_root})")
        report = inspect(database, "r", "low", "high", "high_0", "void")
        assert {table.name for table in report.present} == present, listed
        one_by_one = [
            note for note in report.notes if note.startswith("public.r: its partitions are published one by one")
        ]
        assert bool(one_by_one) == ("low, " in listed)
        mend(database, report)
        after = inspect(database, "r", "void")
        assert after.complete and not after.sql, listed
        database.execute("DROP PUBLICATION p")


def test_a_partition_streamed_under_its_roots_name_is_said_to_be(database: Database) -> None:
    """E41: a leaf is required while publish_via_partition_root streams only its root; adding it would not help."""
    database.execute(f"{PARTITIONED}; CREATE PUBLICATION p FOR TABLE r WITH (publish_via_partition_root = true)")
    report = inspect(database, "r", "low", "high")
    assert (report.present, report.missing) == ({q("r")}, {q("low"), q("high")})
    assert not report.manageable and report.sql == ()
    for name in ("low", "high"):
        assert "published as those of public.r" in reasons(report)[name]
    assert "TRUNCATE of one of its partitions is not published" in report.notes[0]
    database.execute("ALTER PUBLICATION p ADD TABLE low")
    assert q("low") in inspect(database, "r", "low").missing


def test_what_is_published_is_what_the_server_says(database: Database) -> None:
    """E8, E41: our reading of every form of publication equals the view of the server, which may wait for locks."""
    database.execute(f"""
        {PARTITIONED}; {TABLES}; CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY, x int);
        CREATE TABLE s.out PARTITION OF r FOR VALUES FROM (20) TO (30); CREATE UNLOGGED TABLE s.fast (id int);
        CREATE TABLE s.sub (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE outside PARTITION OF s.sub FOR VALUES FROM (0) TO (9)""")
    forms = [
        "ALL TABLES",
        "TABLES IN SCHEMA s",
        "TABLES IN SCHEMA s, TABLE s.t, r",
        "TABLE r, low, a (id, y)",
        "TABLE high_0",
    ]
    forms += ["TABLE high, high_0, a WHERE (x > 1), b (id) WHERE (id > 1)", "TABLE void", "TABLES IN SCHEMA s, public"]
    view = (
        "SELECT schemaname::text, tablename::text, attnames::text[], rowfilter IS NOT NULL FROM pg_publication_tables"
    )
    for form in forms:
        for via_root in ("true", "false"):
            database.execute(f"CREATE PUBLICATION p FOR {form} WITH (publish_via_partition_root = {via_root})")
            info = publication.read_publication(database.connect(), "p")
            expected = {
                q(name, schema): (columns, filtered) for schema, name, columns, filtered in database.execute(view)
            }
            assert info is not None and info.published.keys() == expected.keys(), (form, via_root)
            for table, listing in info.published.items():
                columns, filtered = expected[table]
                assert listing.filtered == filtered
                assert listing.columns is None or list(listing.columns) == columns
            narrowed = {table.name for table, listing in info.published.items() if listing.columns is not None}
            assert narrowed == {name for name in "ab" if f"{name} (id" in form}
            database.execute("DROP PUBLICATION p")
    database.execute("CREATE PUBLICATION p")
    empty = publication.read_publication(database.connect(), "p")
    assert empty is not None and empty.published == {} and publication.read_publication(database.connect(), "q") is None


def test_inspect_waits_for_nobody(database: Database) -> None:
    """E41: not even for a table that is being rewritten; only the try for a missing one could, and gives up."""
    database.execute(f"{TABLES}; CREATE PUBLICATION p FOR TABLE a")
    holder = database.connect(autocommit=False)
    holder.execute("LOCK TABLE a, b IN ACCESS EXCLUSIVE MODE")
    impatient = database.connect(options="-c lock_timeout=50ms")
    assert publication.inspect(impatient, "p", {q("a")}).complete
    publication.require(impatient, "p")
    assert "could not tell" in publication.inspect(impatient, "p", {q("a"), q("b")}).notes[0]
    holder.rollback()


def test_row_filters_are_refused_by_name(database: Database) -> None:
    """E8, E42: a row filter hides rows; the SQL lists the table anew without it, and keeps its column list."""
    database.execute(f"{TABLES}; CREATE PUBLICATION p FOR TABLE a WHERE (id > 5), b (id) WHERE (id > 5)")
    report = inspect(database, "a", "b")
    assert report.present == {q("a"), q("b")} and not report.complete
    assert all("row filter" in reason for reason in reasons(report).values())
    mend(database, report)
    after = inspect(database, "a", "b")
    assert after.complete and after.notes == ('public.b: its column list publishes "id" only',)


def test_column_lists_are_judged_by_what_is_needed(database: Database) -> None:
    """E8: a list that narrows is noted; one that leaves out identity, or columns that are needed, is a blocker."""
    database.execute("""
        CREATE TABLE narrow (id int PRIMARY KEY, x int, y int); CREATE TABLE lacking (id int PRIMARY KEY, x int, y int);
        CREATE TABLE keyless (id int PRIMARY KEY, x int, y int); CREATE TABLE whole (id int PRIMARY KEY, x int);
        CREATE PUBLICATION p FOR TABLE narrow (id, x), lacking (id, x), keyless (x), whole (id);
        ALTER TABLE whole REPLICA IDENTITY FULL; ALTER TABLE lacking REPLICA IDENTITY FULL;
        ALTER TABLE lacking REPLICA IDENTITY DEFAULT""")
    report = inspect(database, "narrow", "lacking", "keyless", "whole", narrow=["id"], lacking=["id", "y"])
    assert "narrow" not in reasons(report) and 'public.narrow: its column list publishes "id", "x" only' in report.notes
    assert 'column list leaves out "id" of its replica identity: the server rejects' in reasons(report)["keyless"]
    assert "column list and REPLICA IDENTITY FULL: the server rejects" in reasons(report)["whole"]
    assert {b.reason for b in report.blockers if b.table == q("lacking")} == {
        'its column list leaves out "y"',
        'its replica identity lacks "y": a delete or a move of a row cannot be traced to its old parent',
    }
    for statement in report.sql:
        database.execute(statement)
        database.execute("UPDATE narrow SET id = id; UPDATE lacking SET id = id")  # taken at every step
    after = inspect(database, "narrow", "lacking", "keyless", "whole", narrow=["id"], lacking=["id", "y"])
    assert after.complete
    assert {note.partition(":")[0] for note in after.notes} == {"public.narrow", "public.keyless"}
    for table in ("narrow", "lacking", "keyless", "whole"):
        database.execute(f"UPDATE {table} SET id = id; DELETE FROM {table}")


def test_a_column_list_on_the_root_is_held_against_every_leaf(database: Database) -> None:
    """E8, E42: under publish_via_partition_root the list is the root's, and the identity each leaf's own."""
    database.execute(f"{PARTITIONED}; ALTER TABLE high_0 REPLICA IDENTITY FULL")
    database.execute("CREATE PUBLICATION p FOR TABLE r (id, d) WITH (publish_via_partition_root = true)")
    with pytest.raises(Exception, match="Column list"):
        database.execute("UPDATE high_0 SET id = id")
    report = inspect(database, "r")
    assert "column list and REPLICA IDENTITY FULL" in reasons(report)["r"]
    mend(database, report)
    assert inspect(database, "r").complete
    database.execute("UPDATE high_0 SET id = id")


def test_operations_left_out_are_named_and_widened_only_over_sound_tables(database: Database) -> None:
    """E42: publish without update, delete or truncate; every table of the publication gets its identity first."""
    database.execute(f"{TABLES}; CREATE PUBLICATION p FOR TABLE a, c WITH (publish = 'insert, delete')")
    database.execute("ALTER PUBLICATION p SET (publish = 'insert')")
    report = inspect(database, "a", "b")
    assert reasons(report)[""] == (
        'publication "p" does not publish update, delete, truncate; public.c of it must get a replica identity first'
    )
    assert report.blockers[0].sql.splitlines() == [
        'ALTER TABLE "public"."c" REPLICA IDENTITY FULL;',
        "ALTER PUBLICATION \"p\" SET (publish = 'insert, update, delete, truncate');",
    ]
    for statement in report.sql:
        database.execute(statement)
        database.execute("UPDATE a SET id = id; UPDATE b SET id = id; UPDATE c SET id = id")
    assert inspect(database, "a", "b").complete


def test_what_cannot_be_published_is_refused_by_name(database: Database) -> None:
    """E42: views, foreign, unlogged and temporary tables, system tables, and what is not there at all."""
    conn = database.connect()
    conn.execute("""
        CREATE UNLOGGED TABLE fast (id int PRIMARY KEY); CREATE VIEW seen AS SELECT 1 AS id;
        CREATE MATERIALIZED VIEW kept AS SELECT 1 AS id; CREATE TEMPORARY TABLE brief (id int PRIMARY KEY);
        CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER there FOREIGN DATA WRAPPER nowhere;
        CREATE FOREIGN TABLE away (id int) SERVER there""")
    row: Any = conn.execute("SELECT pg_my_temp_schema()::regnamespace::text").fetchone()
    names = {q(name) for name in ("fast", "seen", "kept", "away", "gone")}
    required = names | {q("brief", row[0]), q("pg_class", "pg_catalog"), q("sql_features", "information_schema")}
    report = publication.ensure(conn, "p", required, manage=True)
    assert report.missing == required and report.sql == () and not report.manageable
    words = {"fast": "unlogged", "seen": "a view", "kept": "a materialized view", "away": "a foreign table"}
    words |= {"gone": "no such table", "brief": "temporary", "pg_class": "system", "sql_features": "system"}
    assert words.keys() == reasons(report).keys()
    assert all(word in reasons(report)[name] for name, word in words.items())
    assert database.execute("SELECT 1 FROM pg_publication") == []


def test_columns_that_do_not_exist_or_are_never_sent_are_named(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)")
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    report = inspect(database, "t", t=["id", "nope", "twice"])
    said = " ".join(blocker.reason for blocker in report.blockers)
    assert 'it has no column "nope"' in said and '"twice"' in said
    assert any("publish_generated_columns" in b.sql for b in report.blockers) == (
        database.connect().info.server_version >= 180000
    )


def test_tables_that_inherit_are_not_dragged_along(database: Database) -> None:
    """E41: without ONLY the server would also publish the heirs, and reject writes to the one without a key."""
    database.execute("CREATE TABLE base (id int PRIMARY KEY); CREATE TABLE heir () INHERITS (base)")
    report = publication.ensure(database.connect(), "p", {q("base")}, manage=True)
    assert report.sql == ('CREATE PUBLICATION "p" FOR TABLE ONLY "public"."base";',)
    assert "public.heir" in report.notes[0]
    database.execute("UPDATE base SET id = id; DELETE FROM heir")
    assert publication.inspect(database.connect(), "p", {q("base")}).complete


@pytest.fixture
def role(database: Database) -> str:
    """A role without any right but to log in, and its name as the database spells it."""
    database.role(f"reader_{database.name}")
    return f"reader_{database.name}"


def as_role(database: Database, role: str) -> Any:
    return database.connect(database.server.url(database.name, role))


def test_a_role_without_create_is_told_the_grant(database: Database, role: str) -> None:
    """E41: role without CREATE on the database."""
    database.execute(f"{TABLES}; ALTER TABLE a OWNER TO {role}")
    conn = as_role(database, role)
    report = publication.ensure(conn, "p", {q("a")}, manage=True)
    assert not report.manageable and report.sql == ('CREATE PUBLICATION "p" FOR TABLE "public"."a";',)
    (blocker,) = report.blockers
    assert blocker.table is None and "no CREATE right" in blocker.reason
    assert database.execute("SELECT 1 FROM pg_publication") == []
    database.execute(blocker.sql)
    assert publication.ensure(conn, "p", {q("a")}, manage=True).manageable
    assert publication.inspect(conn, "p", {q("a")}).complete
    database.execute(f"REVOKE CREATE ON DATABASE {database.name} FROM {role}")


def test_a_table_of_another_role_is_named_and_the_rest_is_added(database: Database, role: str) -> None:
    """E41: table owned by another role; ensure fixes what it may."""
    database.execute(f"{TABLES}; ALTER TABLE a OWNER TO {role}; GRANT CREATE ON DATABASE {database.name} TO {role}")
    conn = as_role(database, role)
    report = publication.ensure(conn, "p", {q("a"), q("b")}, manage=True)
    assert not report.manageable and report.missing == {q("a"), q("b")}
    (blocker,) = report.blockers
    assert blocker.table == q("b") and 'belongs to role "postgres"' in blocker.reason
    after = publication.inspect(conn, "p", {q("a"), q("b")})
    assert (after.present, after.missing, after.manageable) == ({q("a")}, {q("b")}, False)
    mend(database, after)  # by the superuser
    assert publication.inspect(conn, "p", {q("a"), q("b")}).complete
    database.execute(f"REVOKE CREATE ON DATABASE {database.name} FROM {role}")


def test_a_publication_of_another_role_is_named(database: Database, role: str) -> None:
    """E41: the role owns the table but not the publication."""
    database.execute(f"{TABLES}; ALTER TABLE b OWNER TO {role}; CREATE PUBLICATION p FOR TABLE a")
    conn = as_role(database, role)
    report = publication.ensure(conn, "p", {q("a"), q("b")}, manage=True)
    assert (report.present, report.missing, report.manageable) == ({q("a")}, {q("b")}, False)
    (blocker,) = report.blockers
    assert blocker.table is None and 'publication "p": it belongs to role "postgres"' in blocker.reason
    assert publication.inspect(conn, "p", {q("a")}).complete, "what is there needs no right"
    database.execute(f"GRANT CREATE ON DATABASE {database.name} TO {role}; ALTER PUBLICATION p OWNER TO {role}")
    assert publication.inspect(conn, "p", {q("a"), q("b")}).manageable
    database.execute(f"REVOKE CREATE ON DATABASE {database.name} FROM {role}")


def test_a_lock_that_others_hold_leaves_the_verdict_open(database: Database) -> None:
    """E41: a try waits half a second at most, and then says that it could not tell."""
    database.execute(TABLES)
    holder = database.connect(autocommit=False)
    holder.execute("LOCK TABLE a IN SHARE UPDATE EXCLUSIVE MODE")
    report = inspect(database, "a", "b")
    assert not report.manageable and report.blockers == ()
    assert "could not tell whether the role may publish: no lock within 0.5 s" in report.notes
    holder.rollback()
    assert inspect(database, "a", "b").manageable


def test_a_try_does_not_hold_up_writers(database: Database) -> None:
    """E41: nor does it wait for one."""
    database.execute(TABLES)
    writer = database.connect(autocommit=False)
    writer.execute("INSERT INTO a VALUES (1)")
    assert inspect(database, "a").manageable
    writer.rollback()


def test_in_recovery_the_report_says_that_nothing_can_be_tried(start_server: Callable[..., Server]) -> None:
    """E41: a server in recovery is read like any other, and is not written to."""
    server = start_server()
    database = Database(server, "postgres")
    database.execute(f"{TABLES}; CREATE PUBLICATION p FOR TABLE a")
    server.halt()
    (server.data / "standby.signal").touch()
    server.start()
    report = publication.ensure(database.connect(), "p", {q("a"), q("b")}, manage=True)
    assert (report.present, report.missing, report.manageable) == ({q("a")}, {q("b")}, False)
    assert report.notes == ("the server is in recovery: publications are changed on its primary",)
    assert publication.inspect(database.connect(), "p", {q("a")}).complete
    database.close()


def test_a_capture_is_refused_where_its_publication_is_missing(database: Database) -> None:
    """E40: publication before slot; with a slot there, the way out starts with dropping it."""
    database.execute(TABLES)
    conn, slot = database.connect(), f"s_{database.name}"
    with pytest.raises(PublicationError, match='publication "p" does not exist') as early:
        publication.require(conn, "p", slot, [q("a")])
    assert early.value.hint == 'Create it, before the slot: CREATE PUBLICATION "p" FOR TABLE "public"."a";'
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    with pytest.raises(PublicationError, match=f'but slot "{slot}" does') as late:
        publication.require(conn, "p", slot, [q("a")])
    assert f"SELECT pg_drop_replication_slot('{slot}'); CREATE PUBLICATION" in late.value.hint
    database.execute("SELECT pg_drop_replication_slot(%s)", slot)
    database.execute('CREATE PUBLICATION p FOR TABLE a; CREATE PUBLICATION "P" FOR TABLE a')
    publication.require(conn, "p", slot)
    publication.require(conn, "P")
