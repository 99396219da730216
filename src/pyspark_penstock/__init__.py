"""The name under which Spark finds the source: any session knows `format("penstock")` once this is installed.

Spark imports this whatever format is asked for, so that a version of PySpark that does not fit is told only by the
source itself, when it is used.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.spark.requirement import require_pyspark

__all__ = ["DefaultSource"]

try:
    require_pyspark()
    fits = True
except PenstockError:
    fits = False

if fits or TYPE_CHECKING:
    from penstock.spark.source import PenstockSource as DefaultSource
else:
    from pyspark.sql.datasource import DataSource

    class DefaultSource(DataSource):
        """Says which versions do."""

        def __init__(self, options: Mapping[str, str]) -> None:
            require_pyspark()

        @classmethod
        def name(cls) -> str:
            """The word in `format(…)`."""
            return "penstock"
