"""Filters that Postgres evaluates keep the rows that Spark would keep."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from penstock.model import QualifiedTable
from penstock.postgres.connection import resolve
from penstock.postgres.export import open_reading
from penstock.postgres.snapshot_plan import Selection, SnapshotQuery, select
from penstock.spark.pushdown import take_over
from tests.fixtures.databases import Database

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE = """
CREATE TABLE t (n int PRIMARY KEY, i int, big bigint, x float8, y float4, s text, v varchar(9), c char(5), u uuid,
                b bytea, d date, k timestamptz, j timestamp, p numeric(6,2), free numeric, q bool, z pair)
"""
ROWS = r"""
INSERT INTO t VALUES
 (1, 1, 9007199254740993, 0.1, 0.1, 'abc', 'abc', 'abc', '0a0b0c0d-0000-4000-8000-ffffffffffff', '\x00ff',
  '2024-02-29', '2024-01-01 12:00:00.000001+00', '2024-01-01 12:00:00', 1.50, 1.5, true, '(1,a)'),
 (2, -1, -5, 'NaN', 'NaN', 'ABC', 'ä', 'ab', '00000000-0000-0000-0000-000000000000', '\x',
  '0001-01-01', '1970-01-01 00:00:00+00', '1970-01-01 00:00:00', -1.50, 'NaN', false, '(,)'),
 (3, 0, 0, '-Infinity', 'Infinity', 'a%c_\', '', 'ab   ', 'ffffffff-ffff-ffff-ffff-ffffffffffff', '\xff',
  '9999-12-31', '9999-12-31 23:59:59.999999+00', '0001-01-01 00:00:00', 0, 1e30, true, NULL),
 (4, 5, 1, -0.0, -0.0, 'é''', 'Z', '', NULL, '\x00', '2024-03-01', '2024-01-01 12:00:00+00', NULL, 9999.99, 0, NULL,
  NULL),
 (5, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
 (6, 7, 2, 0, 0, '', 'abcd', 'zz', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
"""
UUID = "0a0b0c0d-0000-4000-8000-ffffffffffff"
NOON = datetime.datetime(2024, 1, 1, 12)


def at(name: str) -> tuple[str, ...]:
    return (name,)


# What Spark writes, and the filter that it makes of it; all of them mean the same to Postgres.
SAME: dict[str, Filter] = {
    "i = 1": EqualTo(at("i"), 1),
    "i <> 1": Not(EqualTo(at("i"), 1)),
    "i in (1, 5, 8)": In(at("i"), (1, 5, 8)),
    "i in (1, null)": In(at("i"), (1, None)),
    "not i in (1, null)": Not(In(at("i"), (1, None))),
    "not i in (1, 5)": Not(In(at("i"), (1, 5))),
    "i <=> 0": EqualNullSafe(at("i"), 0),
    "not (i <=> 0)": Not(EqualNullSafe(at("i"), 0)),
    "i is null": IsNull(at("i")),
    "i is not null": IsNotNull(at("i")),
    "z is null": IsNull(at("z")),
    "z is not null": IsNotNull(at("z")),
    "big = 9007199254740993": EqualTo(at("big"), 9007199254740993),
    "big <= 1": LessThanOrEqual(at("big"), 1),
    "x = double('NaN')": EqualTo(at("x"), float("nan")),
    "x > 0D": GreaterThan(at("x"), 0.0),
    "x >= double('NaN')": GreaterThanOrEqual(at("x"), float("nan")),
    "x < double('NaN')": LessThan(at("x"), float("nan")),
    "x = 0D": EqualTo(at("x"), 0.0),
    "x = 0.1D": EqualTo(at("x"), 0.1),
    "x = double('-Infinity')": EqualTo(at("x"), float("-inf")),
    "y = float('Infinity')": EqualTo(at("y"), float("inf")),
    "y = 0.1F": EqualTo(at("y"), 0.10000000149011612),
    "s = 'abc'": EqualTo(at("s"), "abc"),
    "s <> 'abc'": Not(EqualTo(at("s"), "abc")),
    "s <=> 'ABC'": EqualNullSafe(at("s"), "ABC"),
    "s > 'a'": GreaterThan(at("s"), "a"),
    "s <= 'abc'": LessThanOrEqual(at("s"), "abc"),
    "v < 'a'": LessThan(at("v"), "a"),
    "v >= 'abc'": GreaterThanOrEqual(at("v"), "abc"),
    "s in ('ABC', '', null)": In(at("s"), ("ABC", "", None)),
    "not s in ('ABC', '')": Not(In(at("s"), ("ABC", ""))),
    "startswith(s, 'a')": StringStartsWith(at("s"), "a"),
    "startswith(s, 'a%')": StringStartsWith(at("s"), "a%"),
    "endswith(s, 'c')": StringEndsWith(at("s"), "c"),
    "endswith(s, chr(92))": StringEndsWith(at("s"), "\\"),
    "contains(s, 'b')": StringContains(at("s"), "b"),
    "contains(s, '_')": StringContains(at("s"), "_"),
    "not contains(s, 'b')": Not(StringContains(at("s"), "b")),
    "s = concat('é', chr(39))": EqualTo(at("s"), "é'"),
    f"u = '{UUID}'": EqualTo(at("u"), UUID),
    f"u <> '{UUID}'": Not(EqualTo(at("u"), UUID)),
    f"u > '{UUID}'": GreaterThan(at("u"), UUID),
    "b = X'00FF'": EqualTo(at("b"), b"\x00\xff"),
    "b > X'00'": GreaterThan(at("b"), b"\x00"),
    "d = date'2024-02-29'": EqualTo(at("d"), datetime.date(2024, 2, 29)),
    "d < date'2024-03-01'": LessThan(at("d"), datetime.date(2024, 3, 1)),
    "k > timestamp'2024-01-01 12:00:00Z'": GreaterThan(at("k"), NOON.replace(tzinfo=datetime.UTC)),
    "j = timestamp_ntz'2024-01-01 12:00:00'": EqualTo(at("j"), NOON),
    "p > 0": GreaterThan(at("p"), Decimal("0.00")),
    "p = 1.5": EqualTo(at("p"), Decimal("1.50")),
    "q": EqualTo(at("q"), True),
    "not q": Not(EqualTo(at("q"), True)),
}
# Filters that mean something else to Postgres, or nothing.
LEFT: list[Filter] = [
    EqualTo(at("c"), "abc"),  # Postgres compares without trailing blanks
    EqualTo(at("u"), UUID.upper()),
    GreaterThan(at("u"), "0"),
    EqualTo(at("free"), "1.5"),
    EqualTo(at("z"), "(1,a)"),
    EqualTo(at("i"), True),
    EqualTo(at("q"), 1),
    EqualTo(at("i"), None),
    In(at("i"), (1, "1")),
    In(at("i"), ()),
    EqualTo(("z", "a"), 1),
    EqualTo(at("absent"), 1),
    EqualTo(at("s"), "a\0b"),
    StringContains(at("c"), "a"),
    EqualTo(at("k"), NOON),
    Not(EqualTo(at("c"), "abc")),
]


@pytest.fixture
def filtered(db18: Database) -> Selection:
    """A table with values that are easily got wrong."""
    db18.execute("CREATE TYPE pair AS (a int, b text)")
    db18.execute(TABLE)
    db18.execute(ROWS)
    with open_reading(resolve(db18.url)) as connection:
        return select(connection, SnapshotQuery(QualifiedTable("public", "t")))


def rows_that_fit(rows: list[Any], number: int) -> list[int]:
    """A filter keeps a row for which it is true, not one for which it is unknown."""
    return sorted(row[0] for row in rows if row[1 + number] is True)


def test_both_sides_keep_the_same_rows(filtered: Selection, load: Callable[..., DataFrame], db18: Database) -> None:
    conditions, left = take_over(SAME.values(), filtered.columns, exact=True, utf8=True)
    assert left == []
    by_postgres = db18.execute(f"SELECT n, {', '.join(conditions)} FROM t")
    by_spark = load().selectExpr("n", *(f"{text} AS f{number}" for number, text in enumerate(SAME))).collect()
    for number, text in enumerate(SAME):
        assert rows_that_fit(by_postgres, number) == rows_that_fit(by_spark, number), (text, conditions[number])


def test_what_means_something_else_is_left_to_spark(filtered: Selection) -> None:
    assert take_over(LEFT, filtered.columns, exact=True, utf8=True) == ([], LEFT)


def test_text_is_ordered_by_postgres_only_where_bytes_are_utf8(filtered: Selection) -> None:
    ordered, equal = GreaterThan(at("s"), "a"), EqualTo(at("s"), "a")
    conditions, left = take_over([ordered, equal], filtered.columns, exact=True, utf8=False)
    assert left == [ordered]
    assert conditions == ["""("s" = 'a' AND "s" COLLATE "C" = 'a')"""]  # also under a collation for which a equals A


def test_types_with_values_that_may_come_as_null_are_left_to_spark(filtered: Selection) -> None:
    """E104"""
    days = [
        IsNull(at("d")),
        LessThan(at("d"), datetime.date(2024, 1, 1)),
        EqualTo(at("p"), Decimal(1)),
        IsNull(at("free")),
    ]
    assert take_over(days, filtered.columns, exact=False, utf8=True) == ([], days)
    assert take_over([IsNull(at("i"))], filtered.columns, exact=False, utf8=True)[1] == []


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[None]:
    """A session that pushes filters down."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def has_filter(frame: DataFrame) -> bool:
    """Whether Spark filters by itself."""
    return "Filter " in frame._jdf.queryExecution().executedPlan().toString()


def test_spark_hands_its_filters_over_where_the_session_allows_it(
    filtered: Selection, load: Callable[..., DataFrame], pushing: None
) -> None:
    """One of each type of value, since Spark hands those over in a form of its own."""
    text = (
        "i >= 0 AND big <> 7 AND x < 1D AND s LIKE 'a%' AND u = '{}' AND b = X'00FF' AND d = date'2024-02-29' AND q"
        " AND k > timestamp'2024-01-01 12:00:00Z' AND j = timestamp_ntz'2024-01-01 12:00:00' AND p IN (1.5, 2.5)"
    )
    frame = load(numPartitions=2).filter(text.format(UUID))
    assert not has_filter(frame)
    assert [row.n for row in frame.select("n").collect()] == [1]
    frame = load().filter("c = 'abc  '")
    assert has_filter(frame)
    assert [row.n for row in frame.select("n").collect()] == [1]
    assert load().count() == 6


def test_without_leave_spark_filters_by_itself(filtered: Selection, load: Callable[..., DataFrame]) -> None:
    frame = load().filter("i = 1")
    assert has_filter(frame)
    assert [row.n for row in frame.select("n").collect()] == [1]


def test_a_value_that_comes_as_null_is_filtered_as_null(
    load: Callable[..., DataFrame], db18: Database, pushing: None
) -> None:
    """E104: an infinite date that is read as null is neither later than any day nor not null."""
    db18.execute("CREATE TABLE t AS SELECT 1 AS n, date 'infinity' AS d")
    for text, count in (("d > date'2024-01-01'", 0), ("d is null", 1)):
        assert load(unrepresentable="null").filter(text).count() == count, text
    with pytest.raises(PySparkException, match=r"column d of public\.t holds a value that date32"):
        load().filter("d > date'2024-01-01'").collect()
