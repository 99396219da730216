"""How tables are cut, and what is said where they cannot be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.errors import ConfigError
from penstock.model import QualifiedTable
from penstock.postgres import snapshot
from penstock.postgres.connection import resolve
from penstock.postgres.export import open_reading
from penstock.postgres.ranges import Everything
from penstock.postgres.snapshot_plan import SnapshotQuery, plan, select
from tests.fixtures.databases import Database


def parts_of(
    database: Database, name: str = "t", parts: int | None = None, key: Sequence[str] = (), where: str = ""
) -> list[list[int]]:
    """The numbers (column `n`) of the rows in each part."""
    settings = resolve(database.url)
    with open_reading(settings) as connection:
        selection = select(connection, SnapshotQuery(QualifiedTable("public", name), ("n",), where))
        ranges = plan(connection, selection, parts, key)
    found = [snapshot.read_part(settings, selection, part) for part in ranges]
    return [[number for batch in batches for number in batch["n"].to_pylist()] for batches in found]


def is_even(found: Sequence[Sequence[int]], parts: int) -> bool:
    """No part has more than half as much again as its share."""
    sizes = [len(part) for part in found]
    return len(sizes) == parts and max(sizes) <= 1.5 * sum(sizes) / parts


def each_once(found: Sequence[Sequence[int]], numbers: Sequence[int] = range(1, 5001)) -> bool:
    return sorted(number for part in found for number in part) == list(numbers)


KEYS = {
    "serial": ("int", "n"),
    "skewed": ("int", "CASE WHEN n % 10 = 0 THEN n * 1000 ELSE n END"),
    "texts": ("text", "md5(n::text)"),
    "long_texts": ("text", "repeat('z', (n % 7)::int) || n || ' ''quoted'' \\ '"),
    "fixed": ("char(8)", "n"),
    "uuids": ("uuid", "md5(n::text)::uuid"),
    "numerics": ("numeric", "n / 7.0"),
    "doubles": ("float8", "CASE n WHEN 1 THEN 'NaN' WHEN 2 THEN '-Infinity' ELSE ln(n) END"),
    "moment": ("timestamptz", "timestamptz '2024-01-01 00:00:00.5+00' + n::float * n * interval '1 ms'"),
    "bytes": ("bytea", "decode(md5(n::text), 'hex')"),
    "negative": ("bigint", "n * -1000000007"),
}


def test_keys_of_every_kind_fall_into_fair_parts(database: Database) -> None:
    """E53: each row in exactly one part, no part far above its share."""
    for kind, (column, value) in KEYS.items():
        database.execute(f"CREATE TABLE {kind} (id {column} PRIMARY KEY, n int)")
        database.execute(f"INSERT INTO {kind} SELECT {value}, n FROM generate_series(1::bigint, 5000) n")
        found = parts_of(database, kind, 4, ["id"])
        assert is_even(found, 4) and each_once(found), kind


def test_a_composite_key_is_cut_inside_its_first_column(database: Database) -> None:
    """E53: nearly all rows share the first column of the key."""
    database.execute("CREATE TABLE t (shop int, at text, n int, PRIMARY KEY (shop, at))")
    database.execute("INSERT INTO t SELECT (n % 100 = 0)::int, md5(n::text), n FROM generate_series(1, 5000) n")
    found = parts_of(database, parts=4, key=["shop", "at"])
    assert is_even(found, 4) and each_once(found)


def test_rows_without_a_key_are_in_one_part(database: Database) -> None:
    """E53: NULL in a unique key, alone or as the second of two."""
    database.execute("CREATE TABLE t (a int UNIQUE, b int, n int, UNIQUE (b, a))")
    database.execute("INSERT INTO t SELECT CASE WHEN n % 3 > 0 THEN n END, n / 100, n FROM generate_series(1, 5000) n")
    for key in (["a"], ["b", "a"], ["a", "b"]):
        found = parts_of(database, parts=4, key=key)
        assert len(found) == 4 and each_once(found)


def test_a_large_table_is_cut_by_a_sample_of_it(db18: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.postgres.snapshot_plan._SAMPLED_BLOCKS", 40)
    db18.execute(
        "CREATE TABLE t AS SELECT md5(n::text) AS id, repeat('x', 500) AS pad, n FROM generate_series(1, 5000) n"
    )
    found = parts_of(db18, parts=4, key=["id"])
    assert is_even(found, 4) and each_once(found)


def test_one_value_that_fills_the_table_makes_fewer_parts(db18: Database) -> None:
    db18.execute("CREATE TABLE t AS SELECT 7 AS id, n FROM generate_series(1, 5000) n")
    assert each_once(parts_of(db18, parts=4, key=["id"]))


def test_blocks_are_cut_evenly_whatever_the_keys(database: Database) -> None:
    """E53: without a primary key, by ctid; rows that come after the plan are in the last part."""
    database.execute("CREATE TABLE t AS SELECT n, repeat('x', 100) AS pad FROM generate_series(1, 5000) n")
    found = parts_of(database, parts=4)
    assert is_even(found, 4) and each_once(found)
    settings = resolve(database.url)
    with open_reading(settings) as connection:
        selection = select(connection, SnapshotQuery(QualifiedTable("public", "t"), ("n",)))
        ranges = plan(connection, selection, 4)
    database.execute("INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(5001, 9000) n")
    later = [
        [number for batch in snapshot.read_part(settings, selection, part) for number in batch["n"].to_pylist()]
        for part in ranges
    ]
    assert each_once(later, range(1, 9001))


def test_a_part_of_blocks_reads_those_blocks_only(database: Database) -> None:
    database.execute("CREATE TABLE t AS SELECT n, repeat('x', 100) AS pad FROM generate_series(1, 5000) n")
    database.execute("ANALYZE t")
    with open_reading(resolve(database.url)) as connection:
        selection = select(connection, SnapshotQuery(QualifiedTable("public", "t")))
        for part in plan(connection, selection, 4):
            lines = [line for (line,) in connection.execute(f"EXPLAIN {selection.statement(part)}".encode())]
            assert "Tid Range Scan" in lines[0]


def test_partitions_of_any_size_are_cut_together(database: Database) -> None:
    """E53: a partitioned table whose leaves differ in size and in the order of their columns."""
    database.execute("CREATE TABLE t (n int, pad text) PARTITION BY RANGE (n)")
    database.execute("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (1) TO (4001)")
    database.execute("CREATE TABLE t2 (gone int, pad text, n int)")
    database.execute("ALTER TABLE t2 DROP COLUMN gone")
    database.execute("ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (4001) TO (4501)")
    database.execute("CREATE TABLE t3 PARTITION OF t DEFAULT PARTITION BY RANGE (n)")
    database.execute("CREATE TABLE t4 PARTITION OF t3 FOR VALUES FROM (4501) TO (9999)")
    database.execute("INSERT INTO t (n, pad) SELECT n, repeat('x', 100) FROM generate_series(1, 5000) n")
    found = parts_of(database, parts=4)
    assert is_even(found, 4) and each_once(found)
    by_key = parts_of(database, parts=4, key=["n"])
    assert is_even(by_key, 4) and each_once(by_key)


def test_tables_below_by_inheritance_are_read_as_a_query_does(db18: Database) -> None:
    db18.execute("CREATE TABLE t (n int, pad text)")
    db18.execute("CREATE TABLE below (more int) INHERITS (t)")
    db18.execute("INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 2000) n")
    db18.execute("INSERT INTO below SELECT n, repeat('x', 100), 0 FROM generate_series(2001, 5000) n")
    found = parts_of(db18, parts=4)
    assert is_even(found, 4) and each_once(found)


def test_what_has_no_blocks_is_one_part_unless_a_key_is_given(database: Database) -> None:
    database.execute("CREATE TABLE base AS SELECT n, repeat('x', 100) AS pad FROM generate_series(1, 5000) n")
    database.execute("CREATE VIEW t AS SELECT n FROM base")
    database.execute("CREATE MATERIALIZED VIEW m AS SELECT * FROM base")
    assert each_once(parts_of(database, parts=4)) and len(parts_of(database, parts=4)) == 1
    found = parts_of(database, parts=4, key=["n"])
    assert is_even(found, 4) and each_once(found)
    assert is_even(parts_of(database, "m", 4), 4)


def test_a_small_table_is_one_part_and_a_large_one_at_most_four(
    db18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    db18.execute("CREATE TABLE t AS SELECT n, repeat('x', 100) AS pad FROM generate_series(1, 5000) n")
    assert len(parts_of(db18)) == 1
    monkeypatch.setattr("penstock.postgres.snapshot_plan._PART_BYTES", 100_000)
    assert is_even(parts_of(db18), 4)


def test_a_condition_holds_in_every_part_and_cuts_fairly(database: Database) -> None:
    database.execute("CREATE TABLE t AS SELECT n, repeat('x', 100) AS pad FROM generate_series(1, 5000) n")
    for where in (
        "n > 4000",
        "n > 4000 OR false -- a comment",
        "n > 4000 AND pad LIKE '%x%;%' OR n > 4000 AND pad <> ';'",
    ):
        assert each_once(parts_of(database, parts=3, where=where), range(4001, 5001))
        found = parts_of(database, parts=3, key=["n"], where=where)
        assert is_even(found, 3) and each_once(found, range(4001, 5001))


UNFIT = {
    "n >": "at its end: ",
    "n = = 1": "at character 5: ",
    "nn = 1": 'at character 1: column "nn" does not exist',
    "n": "at character 1: ",
    "n = 1; DROP TABLE t": "at character 6: ",
    "true); DROP TABLE t; SELECT (1": "cannot insert multiple commands into a prepared statement",
    "n = 1) OR (n = 2": "at character 6: ",
    "true) UNION ALL SELECT FROM t WHERE (true": "at character 5: ",
    "count(*) > 1": "aggregate functions are not allowed in WHERE",
    "(n = 1": "at its end: ",
    "'x": "unterminated",
    "n = 'x'": "at character 5: ",
}


def test_a_condition_that_is_none_is_refused_with_its_place(database: Database) -> None:
    database.execute("CREATE TABLE t (n int)")
    for where, told in UNFIT.items():
        with pytest.raises(ConfigError, match="the condition in where is not understood") as caught:
            parts_of(database, where=where)
        assert told in caught.value.message, where
    assert database.execute("SELECT to_regclass('t') IS NOT NULL") == [(True,)]


def test_what_is_asked_for_and_not_there_is_a_sentence(db18: Database) -> None:
    db18.execute("CREATE TABLE t (n int, j json)")
    db18.execute("CREATE TABLE nothing ()")
    t, absent, nothing = (QualifiedTable("public", name) for name in ("t", "absent", "nothing"))
    cases: list[tuple[SnapshotQuery, list[str], str]] = [
        (SnapshotQuery(absent), [], "table public.absent does not exist in the database"),
        (SnapshotQuery(t, ("nn",)), [], "table public.t has no column 'nn'\nDid you mean 'n'?"),
        (SnapshotQuery(nothing), [], "table public.nothing has no columns"),
        (SnapshotQuery(t), ["m"], "table public.t has no column 'm'"),
        (SnapshotQuery(t), ["j"], "public.t cannot be cut by j: the type has no order"),
    ]
    with open_reading(resolve(db18.url)) as connection:
        for query, key, told in cases:
            with pytest.raises(ConfigError) as caught:
                plan(connection, select(connection, query), 4, key)
            assert told in str(caught.value)


def test_everything_is_a_condition_too(db18: Database) -> None:
    db18.execute("CREATE TABLE t AS SELECT 1 AS n")
    with open_reading(resolve(db18.url)) as connection:
        selection = select(connection, SnapshotQuery(QualifiedTable("public", "t")))
        (block,) = snapshot.blocks(connection, selection, Everything())
    assert block[0].to_pylist() == [b"1"]
