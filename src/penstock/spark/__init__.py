"""Penstock on Spark: the source `format("penstock")`, and a session that is quick for it.

Importing this loads neither PySpark nor Java: `session` looks for both when it is called, and says what is missing.
"""

from penstock.spark.folding import latest
from penstock.spark.reference import reference
from penstock.spark.session import advise, session

__all__ = ["advise", "latest", "reference", "session"]
