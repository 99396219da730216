"""Penstock on Spark: the source `format("penstock")`, and a session that is quick for it.

Importing this loads neither PySpark nor Java: `session` looks for both when it is called, and says what is missing.
Nor does it load pyarrow, whose threads the processes that Spark forks its workers from must not have.
"""

from penstock.spark.folding import latest
from penstock.spark.reference import reference
from penstock.spark.session import advise, session

__all__ = ["advise", "latest", "reference", "session"]
