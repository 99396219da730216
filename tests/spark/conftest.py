"""What tests on Spark share: a table's slot that is free and gone when the test ends, and options that name it."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.databases import Database
from tests.fixtures.spark import Engine
from tests.fixtures.streams import Tapped
from tests.fixtures.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_numbers = itertools.count(1)


class Source(Tapped):
    """A database to stream from, without a query or a JVM of the test's own: the test runs another's code."""

    def await_slot(self, slot: str | None = None) -> None:
        """Wait until the slot is there: what is committed from now on is kept for the reader."""
        query = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND confirmed_flush_lsn IS NOT NULL"
        wait_until(lambda: self.execute(query, slot or self.slot), 60, "the slot")

    def close(self) -> None:
        """Drop every slot of the database, once its reader has let go of it."""
        held = "SELECT FROM pg_replication_slots WHERE database = current_database() AND active"
        wait_until(lambda: not self.execute(held), 20, "the slots to be free")
        self.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
        )


@pytest.fixture
def source18(db18: Database, engine: Engine) -> Iterator[Source]:
    """A database on Postgres 18 to stream from; queries left running are stopped, and fail the test."""
    source = Source(db18, f"spark_{next(_numbers)}")
    yield source
    left = engine.clear()
    source.close()
    if left:
        pytest.fail(f"left behind: {', '.join(left)}", pytrace=False)


@pytest.fixture
def load(spark: SparkSession, db18: Database) -> Iterator[Callable[..., DataFrame]]:
    """Load a table of a fresh database; what holds a snapshot of it is ended with the test."""

    def loaded(table: str = "t", **options: Any) -> DataFrame:
        reader = spark.read.format("penstock").options(url=db18.url, table=table)
        return reader.options(**{name: str(value) for name, value in options.items()}).load()

    yield loaded
    db18.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'penstock'")


@pytest.fixture
def scratch() -> Iterator[Path]:
    """The temporary folder of a program that a test runs: its processes may be the last to leave it."""
    folder = Path(tempfile.mkdtemp(prefix="s-"))  # a short name: sockets lie below
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
