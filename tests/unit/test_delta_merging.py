"""Which Delta is used with which Spark."""

from __future__ import annotations

import pytest

from penstock.spark.merging import fitting, is_known_to_fit


@pytest.mark.parametrize(
    "spark, delta, jar, fits",
    [
        ("4.2.1", "4.4.0", "io.delta_delta-spark_4.2_2.13-4.4.0.jar", True),
        ("4.2.0", "4.4.1", "delta-spark_2.13-4.4.1.jar", True),
        ("4.2.1", "4.4.0", "delta-spark_4.1_2.13-4.4.0.jar", False),
        ("4.3.0", "4.4.0", "delta-spark_4.2_2.13-4.4.0.jar", False),
        ("4.2.1", "4.3.0", "delta-spark_4.2_2.13-4.3.0.jar", False),
        ("4.2.1", "", "", False),
    ],
)
def test_a_delta_that_was_not_run_with_this_spark_is_not_used(spark: str, delta: str, jar: str, fits: bool) -> None:
    """E83: one that does not fit may commit what cannot be read."""
    assert is_known_to_fit(spark, delta, jar) is fits


def test_without_a_session_there_is_none() -> None:
    assert fitting() is None
