"""Changes folded by key, from rows written as the stream would write them."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.spark import latest

SCHEMA = "id int, note string, n int, _change_type string, _commit_lsn long, _seq long, _missing array<string>"


def changes(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    """Changes in any order: the position counts, not the order of rows."""
    return spark.createDataFrame(list(reversed(rows)), SCHEMA)


def fold(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((row.id, row.note, row.n, row._gone, tuple(row._missing)) for row in latest(frame, "id").collect())


def test_each_value_is_the_last_one_that_was_sent(spark: SparkSession) -> None:
    """E3: a large value that did not change is not nulled by the change that left it out."""
    frame = changes(
        spark,
        (1, "long", 1, "insert", 10, 0, []),
        (1, None, 2, "update_postimage", 10, 1, ["note"]),
        (2, None, 7, "update_postimage", 9, 5, ["note"]),
        (2, None, None, "update_postimage", 11, 0, ["note"]),
    )
    assert fold(frame) == [(1, "long", 2, False, ()), (2, None, None, False, ("note",))]


def test_a_null_that_was_sent_is_a_value(spark: SparkSession) -> None:
    frame = changes(spark, (1, "a", 1, "insert", 1, 0, []), (1, None, None, "update_postimage", 2, 0, []))
    assert fold(frame) == [(1, None, None, False, ())]


def test_the_last_change_decides_whether_a_row_is_gone(spark: SparkSession) -> None:
    frame = changes(
        spark,
        (1, "a", 1, "insert", 1, 0, []),
        (1, None, None, "delete", 1, 1, ["note", "n"]),
        (2, None, None, "delete", 1, 2, ["note", "n"]),
        (2, "b", 2, "insert", 2, 0, []),
    )
    assert [(row[0], row[3]) for row in fold(frame)] == [(1, True), (2, False)]


def test_a_row_that_took_the_key_of_one_that_went_has_none_of_its_values(spark: SparkSession) -> None:
    """E3: a large value that did not change is not sent with the new key; the one sent before was the other row's."""
    frame = changes(
        spark,
        (2, "other", 2, "insert", 1, 0, []),
        (2, None, None, "delete", 2, 0, ["note", "n"]),
        (1, None, None, "update_preimage", 3, 0, ["note", "n"]),
        (2, None, 9, "update_postimage", 3, 0, ["note"]),
        (3, None, 4, "update_postimage", 4, 0, ["note"]),
    )
    assert fold(frame) == [
        (1, None, None, True, ("note", "n")),
        (2, None, 9, False, ("note",)),
        (3, None, 4, False, ("note",)),
    ]
    assert {row.id: row._renewed for row in latest(frame, "id").collect()} == {1: True, 2: True, 3: False}


def test_a_row_that_moved_to_another_key_is_gone_from_its_old_one(spark: SparkSession) -> None:
    frame = changes(
        spark,
        (1, None, None, "update_preimage", 5, 0, ["note", "n"]),
        (2, None, 9, "update_postimage", 5, 0, ["note"]),
    )
    assert fold(frame) == [(1, None, None, True, ("note", "n")), (2, None, 9, False, ("note",))]


@pytest.mark.parametrize("after", [0, 1])
def test_what_a_truncate_emptied_does_not_appear(spark: SparkSession, after: int) -> None:
    rows = [(1, "a", 1, "insert", 1, 0, []), (None, None, None, "truncate", 2, 0, ["id", "note", "n"])]
    rows += [(3, "c", 3, "insert", 2, 1, [])] * after
    assert fold(changes(spark, *rows)) == [(3, "c", 3, False, ())] * after
