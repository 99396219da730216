"""The demo's parts that need no Spark: what happens in its shop, and the comparison of its indexes with SQL by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.app.origins import Origins
from penstock.app.parts import open_builder, open_parts
from penstock.config.file import read_deployment
from penstock.contracts import Documents, Writes
from penstock.demo import verdict
from penstock.demo.deployment import Deployment
from penstock.demo.sample import INDEXES, write_deployment
from penstock.demo.trade import ITEMS, PRODUCT_TAGS, Deed
from penstock.demo.workload import Workload, by_deed
from penstock.engine.batch import Parts, seeded
from penstock.errors import OperatorError
from penstock.model import Lsn
from penstock.postgres.connection import resolve
from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until

# Statements on all rows of a kind, of which there may be none.
_MAY_MEET_NOTHING = {(ITEMS, Deed.DELETE), (PRODUCT_TAGS, Deed.DELETE)}


def busy(db: Database, transactions: int) -> Workload:
    """A shop in which something has happened."""
    workload = Workload(resolve(db.url, env={}), 100, 1)
    workload.prepare()
    connection = db.connect()
    for _ in range(transactions):
        workload._execute(connection, workload._shop.plan())
    return workload


@pytest.fixture
def filled(db18: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parts]:
    """The demo's indexes over a shop in which something has happened, built without a pipeline."""
    busy(db18, 300)
    monkeypatch.setenv("DATABASE_URL", db18.url)
    write_deployment(tmp_path)
    deployment, origins = read_deployment(str(tmp_path)), Origins(dict.fromkeys(INDEXES, "here"))
    parts = open_parts(deployment, origins, ["search"], open_builder(deployment, 1))
    for index in INDEXES:
        seeded(parts, index, [(None, None)], Lsn(1))
        parts.sinks[index][0].complete(index, Lsn(1))
    yield parts
    parts.every_sink[0].close()
    parts.builder.close()  # type: ignore[attr-defined]


def test_no_planned_statement_meets_a_missing_row(db18: Database) -> None:
    """2,000 transactions: each touches what it is meant to, and only those that roll back leave nothing."""
    workload = busy(db18, 0)
    connection = db18.connect()
    for _ in range(2000):
        transaction = workload._shop.plan()
        before = Counter(workload.counts)
        workload._execute(connection, transaction)
        done = workload.counts - before
        if transaction.rolled_back:
            assert not done
            continue
        for statement in transaction.statements:
            kind = statement.table, statement.deed
            assert done[kind] or kind in _MAY_MEET_NOTHING, statement.sql


def test_the_thread_runs_the_opening_however_early_it_is_stopped(db18: Database) -> None:
    """Every operation has happened then."""
    workload = busy(db18, 0)
    workload.start()
    workload.stop()
    workload.join()
    assert workload.failure is None
    assert all(by_deed(workload.counts).values())


def test_a_workload_that_fails_says_why(db18: Database) -> None:
    workload = busy(db18, 0)
    db18.execute("DROP TABLE items")
    workload.start()
    workload.join()
    assert isinstance(workload.failure, OperatorError)
    assert "a table does not exist" in str(workload.failure)


def test_sql_by_hand_gives_every_document_and_tells_each_kind_of_difference(
    db18: Database, filled: Parts, tmp_path: Path
) -> None:
    """Equal at first; then one is missing, one is too many, and one has another field. No value is told."""
    settings, path = resolve(db18.url, env={}), str(tmp_path / "search.db")
    counts, faults = verdict.compare(settings, path)
    assert faults == []
    assert counts == {index: count for index, count in counts.items() if count > 100}
    (sink,) = filled.every_sink
    ((first,), (second,)) = db18.execute("SELECT id::text FROM products WHERE NOT discontinued ORDER BY id LIMIT 2")
    ((body,),) = db18.execute('SELECT \'{"id": \' || %s || \', "name": "secret"}\'', second)
    sink.write(Writes(Lsn(2), Documents("products", [first, second, "x"], [None, body.encode(), b'{"id": 0}'])))
    sink.flush()
    _, faults = verdict.compare(settings, path)
    missing, extra, other = faults
    assert missing == f"products: documents that are missing: 1 ({first})"
    assert extra == "products: documents that should not be there: 1 (x)"
    assert other.startswith(f"products: documents that differ: 1 ({second}) in description, name, price, ")
    assert "secret" not in "".join(faults)


def test_a_pipeline_that_ends_by_itself_is_told_with_its_last_words() -> None:
    """And its folder goes with it."""
    with Deployment("postgresql://nobody@127.0.0.1:1/nothing") as deployment:
        deployment.start()

        def ended() -> bool:
            try:
                deployment.require_running()
            except OperatorError as error:
                assert "penstock run ended with exit code 3: " in str(error)
                assert "127.0.0.1:1" in str(error)
                return True
            return False

        wait_until(ended, 60, "penstock run to give up")
        assert deployment.status() is None
    assert not deployment.folder.exists()
