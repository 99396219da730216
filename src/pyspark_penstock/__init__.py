"""The name under which Spark finds the source: any session knows `format("penstock")` once this is installed."""

from penstock.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
