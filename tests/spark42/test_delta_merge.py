"""The delta sink by Spark's MERGE, on the PySpark that a Delta jar fits: the contract, and both engines in turn."""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from penstock.contracts import Sink
from penstock.model import Lsn
from penstock.sinks.delta import DeltaSettings, DeltaSink
from penstock.sinks.delta_table import Merge, Merging, OvertakenError, find, make
from penstock.spark import merging
from penstock.spark.merging import LEAST_BYTES, fitting
from penstock.spark.session import session
from tests.fixtures import delta_jars, market
from tests.fixtures import spark as engines
from tests.fixtures.pipelines import LIMIT, Deployed
from tests.fixtures.spark import Engine
from tests.sinks.contract import INDEX, Rig, SinkContract, document, put
from tests.sinks.test_delta import read, rows

pytestmark = pytest.mark.timeout(600)
ALWAYS = {LEAST_BYTES: "0"}


def by_spark() -> Merging | None:
    """Spark's MERGE for every merge; in another process with a session of its own."""
    session("penstock-tests", master="local[2]", conf={**delta_jars.settings(), **ALWAYS})
    found = fitting()
    assert found
    return found


def make_sink(place: str) -> Sink:
    return DeltaSink(DeltaSettings("lake", place), merging=by_spark)


@pytest.fixture(scope="module")
def spark(engine: Engine) -> Iterator[SparkSession]:
    """The session, with Delta."""
    before = dict(engines.SETTINGS)
    engines.SETTINGS |= {**delta_jars.settings(), **ALWAYS}
    yield engine.get()
    engines.SETTINGS.clear()
    engines.SETTINGS |= before


@pytest.fixture(autouse=True)
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A temporary folder for processes that a test starts, and kills: their JVM leaves files there."""
    folder = tempfile.mkdtemp(prefix="s-")  # a short name: sockets lie below
    monkeypatch.setenv("TMPDIR", folder)
    yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def rig(spark: SparkSession, tmp_path: Path) -> Rig:
    place = str(tmp_path / "a lake")
    return Rig(make_sink, place, lambda name: read(place, name), bad=b'{"n": "\xff"}')


class TestDeltaBySpark(SinkContract):
    """E72, E81–E83, E85: what every keyed sink promises."""


def engines_of(place: str, name: str = INDEX) -> list[str]:
    """Who made the merges of a table, the oldest first."""
    made = [one for one in reversed(DeltaTable(f"{place}/{name}").history()) if one["operation"] == "MERGE"]
    return ["Spark" if "Spark" in one["engineInfo"] else "delta-rs" for one in made]


def test_a_batch_that_comes_again_is_no_commit_whatever_number_is_there(rig: Rig) -> None:
    """E83: the number beside the application is the highest version; rows of a lower one are taken all the same."""
    with rig.sink() as sink:
        sink.complete(INDEX, Lsn(1))
        put(sink, 7, {"x": 1, "y": 1})
        sink.flush()
        put(sink, 5, {"z": 1, "y": 0})
        sink.flush()
        before = DeltaTable(f"{rig.place}/{INDEX}").version()
        for version, documents in (7, {"x": 1}), (5, {"z": 1}), (7, {"y": 1, "x": 1}):
            put(sink, version, documents)
            sink.flush()
        put(sink, 9, {"y": None})
        sink.flush()
    table = DeltaTable(f"{rig.place}/{INDEX}")
    assert (before, table.version()) == (2, 3)
    assert engines_of(rig.place) == ["Spark"] * 3
    memory = json.loads(DeltaTable(f"{rig.place}/_penstock/{INDEX}").metadata().configuration["penstock.memory"])
    assert table.transaction_version(f"penstock/system/slot/{INDEX}/{memory['token']}") == 9
    feed = table.load_cdf(starting_version=1).read_all()
    told = sorted(zip(*(feed[name].to_pylist() for name in ("id", "_change_type", "version")), strict=True))
    assert told == [
        ("x", "insert", 7), ("y", "insert", 7), ("y", "update_postimage", 9), ("y", "update_preimage", 7),
        ("z", "insert", 5),
    ]  # fmt: skip


def test_what_delta_takes_for_done_is_merged_all_the_same(rig: Rig) -> None:
    """E83: another process of this deployment has merged a higher version since this one looked at the table."""
    made = make(f"{rig.place}/{INDEX}", {})
    late = find(f"{rig.place}/{INDEX}", {})
    assert late
    assert late.merged("a") is None
    made.merge({"x": (Lsn(8), document(8))}, "a", by_spark())
    late.merge({"x": (Lsn(5), document(5)), "y": (Lsn(5), document(5))}, "a", by_spark())
    assert {row["id"]: row["version"] for row in rows(rig.place)} == {"x": 8, "y": 5}
    assert DeltaTable(f"{rig.place}/{INDEX}").transaction_version("a") == 8


class Overtaken:
    """Spark's MERGE; tells when a commit of somebody else came between."""

    def __init__(self) -> None:
        self.once = threading.Event()

    def takes(self, uri: str, rewritten_bytes: int) -> bool:
        return True

    def merge(self, uri: str, rows: Any, merge: Merge) -> None:
        engine = by_spark()
        assert engine
        try:
            engine.merge(uri, rows, merge)
        except OvertakenError:
            self.once.set()
            raise


def test_both_engines_go_on_with_each_others_table_also_at_once(rig: Rig) -> None:
    """E83: a commit of the other one that came between is merged on top of; nothing is lost and nothing comes twice."""
    place, spark = f"{rig.place}/{INDEX}", Overtaken()
    make(place, {}).merge({str(n): (Lsn(2), document(n)) for n in range(3000)}, "seed")
    failures: list[BaseException] = []

    def merge(odd: int, by: Merging | None) -> None:
        try:
            table = find(place, {})
            assert table
            for version in itertools.count(10):
                table.merge({str(n): (Lsn(version), document(n)) for n in range(odd, 3000, 100)}, str(odd), by)
                if spark.once.is_set() and version >= 13:
                    return
        except BaseException as error:  # noqa: BLE001 - told to the test, whose thread is another
            failures.append(error)
            spark.once.set()

    other = threading.Thread(target=merge, args=(1, None))
    other.start()
    merge(0, spark)
    other.join()
    assert not failures
    found = {row["id"]: row["version"] for row in rows(rig.place)}
    assert found.keys() == {str(n) for n in range(3000)}
    assert {found[str(n)] for n in range(3000) if n % 100 > 1} == {2}
    numbers = [DeltaTable(place).transaction_version(str(odd)) for odd in (0, 1)]
    assert [{found[str(n)] for n in range(odd, 3000, 100)} for odd in (0, 1)] == [{number} for number in numbers]
    assert set(engines_of(rig.place)) == {"Spark", "delta-rs"}


def test_a_small_merge_is_left_to_delta_rs_and_files_stay_small(rig: Rig, spark: SparkSession) -> None:
    """What Spark writes anew is cut into files of the size that small merges count on."""
    place = f"{rig.place}/{INDEX}"
    table = make(place, {})
    noise = {n: bytes.hex(n.to_bytes(4, "big") * 2 + hash(str(n)).to_bytes(8, "big", signed=True)) for n in range(9000)}
    body = {n: json.dumps({"n": n, "title": text * 8}).encode() for n, text in noise.items()}
    table.merge({str(n): (Lsn(2), body[n]) for n in body}, "a")
    small = merging.SparkMerging(spark)
    small._least_bytes = 1 << 20
    table.merge({str(n): (Lsn(3), body[n]) for n in range(10)}, "a", small)
    assert engines_of(rig.place) == ["delta-rs"] * 2
    assert small.takes("gs://bucket/books", 1 << 20)
    assert not small.takes("s3://bucket/books", 1 << 40), "two writers' commits would not be kept apart"
    small._session.conf.set("spark.delta.logStore.s3a.impl", "io.delta.storage.S3DynamoDBLogStore")
    assert small.takes("s3://bucket/books", 1 << 40)
    table.merge({str(n): (Lsn(4), body[n]) for n in body}, "a", by_spark())
    assert engines_of(rig.place)[-1] == "Spark"
    counts = DeltaTable(place).get_add_actions(flatten=True)["num_records"].to_pylist()
    assert sum(counts) == len(body)
    assert max(counts) <= (table._rows_a_file() or 0) * 2


@LIMIT
def test_a_run_whose_session_brings_delta_merges_by_spark(deploy: Callable[..., Deployed]) -> None:
    """E21, E66, E83: seeded, changed, truncated, with a kill -9, by either path; then gone on with without the jar."""
    deployed = deploy()
    execute = deployed.database.execute
    deployed.sinks = {"lake": 'type = "delta"\npath = "lake"'}
    execute(market.ROWS)
    deployed.write(customers=market.CUSTOMERS, marks=market.MARKS)
    conf = {**delta_jars.settings(), **ALWAYS}
    arguments = tuple(one for name, value in conf.items() for one in ("--conf", f"{name}={value}"))
    lake = str(deployed.folder / "lake")

    def judge() -> None:
        for index in deployed.schemas:
            found: dict[str, Any] = {id: json.loads(body) for id, body in read(lake, deployed.prefix + index).items()}
            assert found == market.expected(deployed.database, index), index

    run = deployed.start(arguments=arguments)
    run.catch_up()
    judge()
    execute("DELETE FROM customer WHERE id % 3 = 0; UPDATE customer SET name = 'before the kill'")
    run.kill()
    execute("UPDATE customer SET name = 'while nobody runs' WHERE id % 2 = 0; TRUNCATE mark")
    run = deployed.start(spread=True, arguments=arguments)
    run.catch_up()
    judge()
    assert run.stop() == 0
    assert "Spark" in engines_of(lake, f"{deployed.prefix}customers")
    run = deployed.start()
    execute("UPDATE customer SET name = 'without the jar' WHERE id % 5 = 0")
    run.catch_up()
    judge()
    assert run.stop() == 0
    assert engines_of(lake, f"{deployed.prefix}customers")[-1] == "delta-rs"
