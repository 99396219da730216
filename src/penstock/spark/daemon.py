"""The process that Spark's Python workers are forked from, on one machine: it has imported what they need.

Spark's own imports nothing, so that every worker takes a second of CPU and a hundred megabytes for the same modules;
forked from this one, workers share them. Guarantee: apart from that it is Spark's. Nothing that is imported here holds
a lock or a connection across the fork. Deliberately not: for executors on other machines.
"""

from __future__ import annotations

import gc
import importlib

MODULES = (
    "pyarrow.compute",
    "pandas",  # Arrow asks for it when it makes an array
    "pyspark.worker",
    "pyspark.sql.datasource",
    "pyspark.sql.conversion",
    "pyspark.sql.pandas.serializers",
    "penstock.spark.source",
    "penstock.spark.spread",
    "penstock.document.build",
    "penstock.config.deployment",
    "penstock.sinks.opensearch",
)


def main() -> None:
    """Import, then be Spark's daemon."""
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # collections in a worker would copy the pages that they look at
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
