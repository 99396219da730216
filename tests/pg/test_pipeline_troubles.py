"""What a running pipeline bears: an index that the database no longer fits, whoever notices, and statements cancelled.

A deployment is stepped by hand, as in `test_pipeline_seams`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from penstock.engine.policy import Backoff
from penstock.errors import OperatorError, RetryableError
from penstock.spark.pipeline import Pipeline
from tests.fixtures.databases import Database
from tests.fixtures.stepped import Stepped, apply
from tests.fixtures.waiting import wait_until

PATIENCE_S = 30.0
# A build that waits for a lock, and does so for longer than a role's time limit.
LATE = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%person%%' AND " + (
    "datname = current_database() AND query_start < clock_timestamp() - interval '0.4 s'"
)


@pytest.fixture
def changed(stepped: Stepped) -> Pipeline:
    """A run with two indexes, of which the database has just stopped fitting one, and nobody has noticed yet."""
    stepped.database.execute("ALTER TABLE pet ADD kind text")
    (stepped.folder / "pets.schema.yml").write_text("version: 1\ntable: pet\nfields:\n  - {keyword: kind}\n")
    with (stepped.folder / "penstock.toml").open("a") as file:
        file.write('\n[[index]]\nname = "pets"\nschema = "pets.schema.yml"\n')
    running = stepped.start()
    stepped.database.execute("ALTER TABLE pet DROP kind")
    return running


def build_pets(running: Pipeline) -> None:
    """What fails from now on."""
    list(running.plan.parts.builder.build_range("pets", None, None))


def test_an_index_that_is_stopped_while_it_is_seeded_does_not_end_the_others(changed: Pipeline) -> None:
    """E76: what the seeder fails by then is known already."""

    def act() -> None:
        changed._look_at_schemas()
        build_pets(changed)

    assert changed._seeder._step(act) is None
    assert list(changed.plan.parts.indexes) == ["people"]
    with pytest.raises(OperatorError, match="another trouble"):
        changed._seeder._step(lambda: fail(OperatorError("another trouble")))


@pytest.mark.parametrize("late", ["live", "seed"])
def test_an_index_that_live_and_its_seed_fail_by_at_once_does_not_end_the_others(changed: Pipeline, late: str) -> None:
    """E76: both find it, one of them stops it, and neither raises."""
    both, misfits = threading.Barrier(2), changed.plan.misfits

    def found(thorough: bool) -> Any:
        wrong = misfits(thorough)
        both.wait(PATIENCE_S)
        if (threading.current_thread() is seeding) == (late == "seed"):
            wait_until(lambda: "pets" not in changed.plan.parts.indexes, PATIENCE_S, "the other one's stop")
        return wrong

    changed.plan = replace(changed.plan, misfits=found)
    raised: list[BaseException] = []

    def seeds_it() -> None:
        try:
            changed._seeder._step(lambda: build_pets(changed))
        except BaseException as error:  # noqa: BLE001 - told to the thread that waits
            raised.append(error)

    seeding = threading.Thread(target=seeds_it)
    seeding.start()
    failure = OperatorError("column kind does not exist")
    changed._bear(failure)
    seeding.join(PATIENCE_S)
    assert (raised, list(changed.plan.parts.indexes)) == ([], ["people"])
    changed._shed.clear()  # as the next query begins
    with pytest.raises(OperatorError, match="kind"):
        changed._bear(failure)


@contextmanager
def impatient(database: Database) -> Iterator[None]:
    """New sessions have a time limit."""
    named = psycopg.sql.Identifier(database.name)
    change = psycopg.sql.SQL("ALTER DATABASE {} {}")
    database.execute(change.format(named, psycopg.sql.SQL("SET statement_timeout = '200ms'")).as_string())
    try:
        yield
    finally:
        database.execute(change.format(named, psycopg.sql.SQL("RESET statement_timeout")).as_string())


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_build_that_is_cancelled_is_tried_again_and_a_time_limit_that_is_meant_for_others_cancels_none(
    stepped: Stepped, is_cancelled: bool
) -> None:
    """What was cancelled is told with its index and with who may have done so; the stream goes on."""
    running, failed = stepped.start(), list[RetryableError]()
    changes = stepped.committed("UPDATE person SET name = 'new' WHERE id = 7", "public.person", "update", "7")

    def applies() -> None:
        try:
            apply(running, *changes)
        except RetryableError as error:
            failed.append(error)

    running.plan.parts.builder.rest()
    applying = threading.Thread(target=applies)
    with impatient(stepped.database), stepped.database.connect(autocommit=False) as other:
        other.execute("LOCK TABLE pet")
        applying.start()
        wait_until(lambda: stepped.database.execute(LATE), PATIENCE_S, "the build to wait")
        if is_cancelled:
            stepped.database.execute(LATE.replace("pid", "pg_cancel_backend(pid)", 1))
            applying.join(PATIENCE_S)
    applying.join(PATIENCE_S)
    for error in failed:
        assert error.message.startswith(
            "index people: reading failed: a statement timeout or an administrator cancelled"
        )
        running._backoff = Backoff(first_s=0.001)
        running._bear(error)
        apply(running, *changes)
    assert len(failed) == is_cancelled
    stepped.judge()


def fail(error: Exception) -> None:
    """Raise it, where a statement cannot stand."""
    raise error
