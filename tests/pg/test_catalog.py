"""What the catalog reader says about tables, against real servers."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from penstock.model import QualifiedTable
from penstock.postgres.catalog import (
    IdentityKind,
    Persistence,
    TableInfo,
    TableKind,
    identity_columns,
    link_columns,
    read_tables,
    thin_columns,
)
from tests.fixtures.databases import Database


def q(name: str, schema: str = "public") -> QualifiedTable:
    return QualifiedTable(schema, name)


def read(database: Database, *names: str) -> dict[str, TableInfo]:
    found = read_tables(database.connect(), [q(name) for name in names] if names else None)
    return {info.table.name: info for info in found.values()}


def test_columns_come_with_types_nullability_and_generation(database: Database) -> None:
    """E6: names are the catalog's own, whatever they hold, and the same name in two schemas is two tables."""
    database.execute("""
        CREATE TYPE mood AS ENUM ('calm');
        CREATE SCHEMA "Other.One";
        CREATE TABLE "Other.One"."Größe ""x"" y" (id bigint);
        CREATE TABLE t (
            id bigint PRIMARY KEY, gone int, price numeric(10, 2), "Straße" text NOT NULL, feeling mood,
            twice numeric GENERATED ALWAYS AS (price * 2) STORED, days date[]);
        ALTER TABLE t DROP COLUMN gone;
        CREATE TABLE "Other.One".t (name varchar(7))""")
    found = read_tables(database.connect())
    assert set(found) == {q("t"), q("t", "Other.One"), q('Größe "x" y', "Other.One")}
    columns = [(c.name, c.type_name, c.nullable, c.generated, c.position) for c in found[q("t")].columns]
    assert columns == [
        ("id", "bigint", False, "", 1),
        ("price", "numeric(10,2)", True, "", 3),
        ("Straße", "text", False, "", 4),
        ("feeling", "public.mood", True, "", 5),
        ("twice", "numeric", True, "stored", 6),
        ("days", "date[]", True, "", 7),
    ]
    (name,) = found[q("t", "Other.One")].columns
    assert (name.type_oid, name.typmod, name.type_name) == (1043, 11, "character varying(7)")


def test_virtual_columns_are_told_apart(db18: Database) -> None:
    db18.execute("CREATE TABLE t (a int, b int GENERATED ALWAYS AS (a) VIRTUAL, c int GENERATED ALWAYS AS (a) STORED)")
    assert [column.generated for column in read(db18)["t"].columns] == ["", "virtual", "stored"]


def test_a_table_of_1600_columns_is_read(database: Database) -> None:
    """E6: the widest table that Postgres takes."""
    database.execute(f"CREATE TABLE t ({', '.join(f'c{n} bool' for n in range(1600))})")
    assert [column.name for column in read(database)["t"].columns] == [f"c{n}" for n in range(1600)]


def test_what_was_read_does_not_depend_on_the_search_path(database: Database) -> None:
    database.execute("""
        CREATE SCHEMA s; CREATE TYPE s.kind AS ENUM ('x'); CREATE TABLE s.t (id int PRIMARY KEY, kind s.kind);
        CREATE TABLE s.pg_class (oid int)""")
    plain, other = database.connect(), database.connect()
    other.execute("SET search_path = s, pg_catalog")
    assert read_tables(plain) == read_tables(other)
    assert other.execute("SHOW search_path").fetchone() == ("s, pg_catalog",)
    with other.transaction():
        assert read_tables(other) == read_tables(plain)
        assert other.execute("SHOW search_path").fetchone() == ("s, pg_catalog",)


def test_indexes_tell_what_they_are_good_for(database: Database) -> None:
    database.execute("""
        CREATE TABLE t (a int NOT NULL, b int NOT NULL, c int, PRIMARY KEY (b, a) INCLUDE (c));
        CREATE UNIQUE INDEX nullable ON t (c); CREATE UNIQUE INDEX partial ON t (a, b) WHERE c > 0;
        CREATE UNIQUE INDEX expression ON t (a, (b + 1)); CREATE INDEX plain ON t (a);
        ALTER TABLE t ADD CONSTRAINT deferred UNIQUE (a) DEFERRABLE""")
    info = read(database)["t"]
    assert info.primary_key == ("b", "a")
    indexes = {index.name: index for index in info.indexes}
    assert {name for name, index in indexes.items() if index.identifies} == {"t_pkey"}
    assert indexes["t_pkey"].columns == ("b", "a") and indexes["t_pkey"].primary
    assert not indexes["nullable"].all_not_null and indexes["nullable"].unique
    assert indexes["partial"].partial and indexes["expression"].expression
    assert not indexes["plain"].unique and not indexes["deferred"].immediate


def test_an_index_whose_build_failed_is_not_valid(database: Database) -> None:
    database.execute("CREATE TABLE t (a int NOT NULL)")
    database.execute("INSERT INTO t VALUES (1), (1)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        database.execute("CREATE UNIQUE INDEX CONCURRENTLY broken ON t (a)")
    (index,) = read(database)["t"].indexes
    assert not index.valid and not index.identifies


# A table named after the case; what was asked for, and the columns that the server sends of an old row.
IDENTITIES: dict[str, tuple[str, IdentityKind, tuple[str, ...]]] = {
    "plain": ("CREATE TABLE plain (id int PRIMARY KEY, a int)", IdentityKind.DEFAULT, ("id",)),
    "no_key": ("CREATE TABLE no_key (id int, a int)", IdentityKind.DEFAULT, ()),
    "late_key": ("CREATE TABLE late_key (id int PRIMARY KEY DEFERRABLE, a int)", IdentityKind.DEFAULT, ()),
    "whole": (
        "CREATE TABLE whole (id int PRIMARY KEY, a int); ALTER TABLE whole REPLICA IDENTITY FULL",
        IdentityKind.FULL,
        ("id", "a"),
    ),
    "nothing": (
        "CREATE TABLE nothing (id int PRIMARY KEY); ALTER TABLE nothing REPLICA IDENTITY NOTHING",
        IdentityKind.NOTHING,
        (),
    ),
    "indexed": (
        "CREATE TABLE indexed (id int, a int NOT NULL, b int NOT NULL); CREATE UNIQUE INDEX i ON indexed (b, a);"
        "ALTER TABLE indexed REPLICA IDENTITY USING INDEX i",
        IdentityKind.INDEX,
        ("b", "a"),
    ),
    "dropped": (
        "CREATE TABLE dropped (id int PRIMARY KEY, a int NOT NULL); CREATE UNIQUE INDEX gone ON dropped (a);"
        "ALTER TABLE dropped REPLICA IDENTITY USING INDEX gone; DROP INDEX gone",
        IdentityKind.INDEX,
        (),
    ),
}


def test_identity_is_what_the_server_really_sends(database: Database) -> None:
    """E42: DEFAULT, FULL, USING INDEX, NOTHING and no primary key, each with the columns that it gives now."""
    for definition, _, _ in IDENTITIES.values():
        database.execute(definition)
    found = {name: (info.identity.kind, info.identity.columns) for name, info in read(database).items()}
    assert found == {name: (kind, columns) for name, (_, kind, columns) in IDENTITIES.items()}


def test_foreign_keys_are_seen_from_both_ends(database: Database) -> None:
    database.execute("""
        CREATE TABLE customer (id int PRIMARY KEY, code text NOT NULL UNIQUE, name text);
        CREATE TABLE orders (
            id int PRIMARY KEY, customer_id int REFERENCES customer, code text REFERENCES customer (code));
        CREATE TABLE item (order_id int REFERENCES orders, line int, PRIMARY KEY (order_id, line))""")
    found = read(database)
    (by_code, by_id) = found["orders"].foreign_keys
    assert (by_id.columns, by_id.references, by_id.referenced_columns) == (("customer_id",), q("customer"), ("id",))
    assert found["customer"].referenced_by == (by_code, by_id)
    assert link_columns(found["orders"]) == ("customer_id", "code")
    assert link_columns(found["customer"]) == ("code",), "only a key that is not the primary one is a link of its own"
    assert thin_columns(found["item"]) == ("order_id", "line")
    assert link_columns(found["orders"], among=[q("item")]) == ()
    assert link_columns(found["customer"], among={q("orders"): None}) == ("code",)


def test_a_thin_change_under_full_carries_key_and_links_only(database: Database) -> None:
    database.execute("""
        CREATE TABLE a (id int PRIMARY KEY);
        CREATE TABLE b (id int PRIMARY KEY, a_id int REFERENCES a, note text);
        CREATE TABLE c (x int, y int);
        ALTER TABLE b REPLICA IDENTITY FULL; ALTER TABLE c REPLICA IDENTITY FULL""")
    found = read(database)
    assert thin_columns(found["b"]) == ("id", "a_id")
    assert identity_columns(found["c"]) == thin_columns(found["c"]) == ("x", "y")


def test_partitions_know_their_family(database: Database) -> None:
    """E7: root, parents and leaves; keys of and to a partitioned table appear once."""
    database.execute("""
        CREATE TABLE root (id int, day int, other int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
        CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (10);
        CREATE TABLE high PARTITION OF root FOR VALUES FROM (10) TO (20) PARTITION BY HASH (id);
        CREATE TABLE high_0 PARTITION OF high FOR VALUES WITH (MODULUS 1, REMAINDER 0);
        CREATE TABLE far (id int PRIMARY KEY);
        ALTER TABLE root ADD FOREIGN KEY (other) REFERENCES far;
        CREATE TABLE child (id int PRIMARY KEY, a int, b int, FOREIGN KEY (a, b) REFERENCES root)""")
    found = read(database)
    root, leaf = found["root"], found["high_0"]
    assert (root.kind, root.partitions, root.root) == (TableKind.PARTITIONED, (q("high_0"), q("low")), q("root"))
    assert (leaf.ancestors, leaf.root, leaf.partition_of) == ((q("high"), q("root")), q("root"), q("high"))
    assert [key.columns for key in root.foreign_keys] == [key.columns for key in leaf.foreign_keys] == [("other",)]
    assert [key.table for key in found["far"].referenced_by] == [q("root")]
    assert [key.references for key in found["child"].foreign_keys] == [q("root")]
    assert [key.table for key in root.referenced_by] == [key.table for key in leaf.referenced_by] == [q("child")]


def test_row_estimates_are_summed_over_leaves_and_unknown_before_the_first_count(database: Database) -> None:
    database.execute("""
        CREATE TABLE root (id int) PARTITION BY RANGE (id);
        CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (10);
        CREATE TABLE high PARTITION OF root FOR VALUES FROM (10) TO (20);
        INSERT INTO root SELECT generate_series(0, 14)""")
    assert read(database)["root"].row_estimate is None
    database.execute("ANALYZE low, high")
    found = read(database)
    assert (found["root"].row_estimate, found["low"].row_estimate, found["high"].row_estimate) == (15, 10, 5)


def test_what_is_no_ordinary_table_is_told_by_kind_and_persistence(database: Database) -> None:
    database.execute("""
        CREATE TABLE plain (id int); CREATE UNLOGGED TABLE fast (id int); CREATE VIEW seen AS SELECT 1 AS id;
        CREATE MATERIALIZED VIEW kept AS SELECT 1 AS id;
        CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER there FOREIGN DATA WRAPPER nowhere;
        CREATE FOREIGN TABLE away (id int) SERVER there;
        CREATE TABLE heir () INHERITS (plain)""")
    found = read(database)
    kinds = {name: (info.kind, info.persistence, info.publishable) for name, info in found.items()}
    assert kinds == {
        "plain": (TableKind.TABLE, Persistence.PERMANENT, True),
        "heir": (TableKind.TABLE, Persistence.PERMANENT, True),
        "fast": (TableKind.TABLE, Persistence.UNLOGGED, False),
        "seen": (TableKind.VIEW, Persistence.PERMANENT, False),
        "kept": (TableKind.MATERIALIZED_VIEW, Persistence.PERMANENT, False),
        "away": (TableKind.FOREIGN, Persistence.PERMANENT, False),
    }
    assert found["plain"].inheritors == (q("heir"),) and found["plain"].partitions == ()


def test_owner_and_row_security_are_read(database: Database) -> None:
    role = f"owner_of_{database.name}"
    database.role(role)
    database.execute(f"""
        CREATE TABLE t (id int); ALTER TABLE t OWNER TO {role}; ALTER TABLE t ENABLE ROW LEVEL SECURITY;
        CREATE TABLE u (id int); ALTER TABLE u FORCE ROW LEVEL SECURITY""")
    found = read(database)
    assert (found["t"].owner, found["t"].row_security, found["t"].force_row_security) == (role, True, False)
    assert (found["u"].owner, found["u"].row_security, found["u"].force_row_security) == ("postgres", False, True)


def test_the_number_of_statements_does_not_grow_with_the_tables(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("; ".join(f"CREATE TABLE t{n} (id int PRIMARY KEY, a int)" for n in range(60)))
    conn = database.connect()
    statements: list[str] = []
    real = conn.execute

    def counting(statement: str, *args: Any, **options: Any) -> Any:
        statements.append(statement)
        return real(statement, *args, **options)

    monkeypatch.setattr(conn, "execute", counting)
    read_tables(conn, [q("t1")])
    few = len(statements)
    statements.clear()
    assert len(read_tables(conn)) == 60
    assert len(statements) == few < 10


def test_the_state_read_is_one_state_although_tables_change_meanwhile(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    conn, seen = database.connect(), []
    real = conn.execute

    def interleaved(statement: str, *args: Any, **options: Any) -> Any:
        if "pg_attribute" in statement and not seen:
            seen.append(statement)
            database.execute("ALTER TABLE t DROP COLUMN a CASCADE; CREATE INDEX later ON t (id)")
        return real(statement, *args, **options)

    conn.execute = interleaved  # type: ignore[method-assign]
    info = read_tables(conn)[q("t")]
    assert seen and [column.name for column in info.columns] == ["id", "a"]
    assert [index.name for index in info.indexes] == ["t_pkey"]


def test_reading_asks_for_no_lock_on_the_tables(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE r (id int) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE leaf PARTITION OF r FOR VALUES FROM (0) TO (9)")
    holder = database.connect(autocommit=False)
    holder.execute("LOCK TABLE t, r, leaf IN ACCESS EXCLUSIVE MODE")
    reader = database.connect(options="-c lock_timeout=100ms")
    assert set(read_tables(reader)) == {q("t"), q("r"), q("leaf")}
    holder.rollback()


def test_a_table_that_is_not_there_is_left_out(database: Database) -> None:
    assert read(database, "nowhere") == {}
