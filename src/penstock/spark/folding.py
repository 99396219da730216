"""Changes folded by key: the last state of each row that a run of changes touched, ready to be merged into a target.

A change may leave values out (`_missing`: a large value that did not change is not sent again), so that the last
change alone is not the row. Guarantees: each value is the last one that was sent, whatever came after; a value that no
change of the run sent is null and named in `_missing`, for the target to keep what it has, unless `_renewed` says that
it has another row under that key; a key that a row had before it was moved to another one counts as gone. Deliberately
not: writing anything, or knowing what the target holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ADDED = ("_change_type", "_commit_lsn", "_seq", "_xid", "_commit_timestamp", "_missing")


def latest(changes: DataFrame, *keys: str) -> DataFrame:
    """One row for each key: the table's columns, `_gone` (the row is no more), `_missing` and `_renewed`.

    `_renewed`: a row of this key went in the course of `changes`, so what is missing of this one the target has not.
    `changes` is a batch of one table's changes, read more than once: persist it. What a TRUNCATE emptied does not
    appear; a target must be emptied, too, where `changes` holds one.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    at = F.struct("_commit_lsn", "_seq", F.col("_change_type") != "update_preimage")
    values = [name for name in changes.columns if name not in (*_ADDED, *keys)]
    went = F.col("_change_type").isin("delete", "update_preimage")
    of_this_row = F.col("_went").isNull() | (at >= F.col("_went"))
    sent = {name: of_this_row & ~F.array_contains("_missing", name) for name in values}
    never_sent = [F.when(~F.max(sent[name]), F.lit(name)) for name in values]
    folded = (
        _after_truncate(changes, at)
        .withColumn("_went", F.max(F.when(went, at)).over(Window.partitionBy(*keys)))
        .groupBy(*keys)
        .agg(
            *(F.max_by(name, F.when(sent[name], at)).alias(name) for name in values),
            F.max_by(went, at).alias("_gone"),
            F.array_compact(F.array(*never_sent)).cast("array<string>").alias("_missing"),
            F.max(F.col("_went").isNotNull()).alias("_renewed"),
        )
    )
    own = [name for name in changes.columns if name not in _ADDED]
    renewed = (F.col("_renewed") & (F.size("_missing") > 0)).alias("_renewed")
    return folded.select(*own, "_gone", "_missing", renewed)


def _after_truncate(changes: DataFrame, at: Column) -> DataFrame:
    """The changes since the table was last emptied; all of them if it was not."""
    from pyspark.sql import functions as F

    emptied = changes.where("_change_type = 'truncate'").agg(F.max(at).alias("_emptied"))
    beside = changes.crossJoin(F.broadcast(emptied))
    return beside.where(F.col("_emptied").isNull() | (at > F.col("_emptied")))
