"""What the stream of a reference table does not tell: noticed in the catalog, live and across a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import ConfigError, OperatorError, PositionError, SlotMissingError
from penstock.model import QualifiedTable
from penstock.reference import ReferenceCapture, ReferenceView
from tests.fixtures.references import Dimensions
from tests.fixtures.waiting import wait_until

MADE_ANEW = ["DROP TABLE city", "CREATE TABLE city (id int PRIMARY KEY, name text)"]
LEFT = ["ALTER PUBLICATION dims DROP TABLE city"]
BACK = [*LEFT, "UPDATE city SET name = 'unseen'", "ALTER PUBLICATION dims ADD TABLE city"]
SILENT = [
    ([*MADE_ANEW, "ALTER PUBLICATION dims ADD TABLE city"], "was dropped and made anew"),
    (["DROP TABLE city"], "was dropped or renamed|does not exist"),
    (LEFT, "is not published any more"),
    (BACK, "was not in the publication for a while"),
    (["ALTER TABLE city ALTER name TYPE text USING upper(name)"], "the rows of city were written anew"),
    (["ALTER PUBLICATION dims SET (publish = 'insert')"], "does not publish update"),
]


@pytest.fixture
def view(dims18: Dimensions, tmp_path: Path) -> Callable[[], ReferenceView]:
    """A view of `city`, as a new process has it; the first one finds two rows."""
    dims18.execute("CREATE TABLE city (id int PRIMARY KEY, name text)")
    dims18.execute("CREATE TABLE other (id int PRIMARY KEY)")
    dims18.execute("INSERT INTO city VALUES (1, 'one'), (2, 'two')")
    dims18.execute("CREATE PUBLICATION dims FOR TABLE city, other")

    def start() -> ReferenceView:
        return ReferenceView(dims18.capture().table("city"), path=tmp_path)

    return start


def look_now(view: ReferenceView) -> ReferenceCapture:
    """As if the minute were over."""
    capture: ReferenceCapture = view._source._capture  # type: ignore[attr-defined]
    capture._look_at = 0.0
    return capture


@pytest.mark.parametrize(
    ("statements", "said", "live"), [*((*one, True) for one in SILENT), (*SILENT[0], False), (*SILENT[3], False)]
)
def test_what_the_stream_does_not_tell_stops_the_view_by_name(
    dims18: Dimensions, view: Callable[[], ReferenceView], statements: list[str], said: str, live: bool
) -> None:
    """E93: the position is worth nothing then; what is there stays, and nothing is published or skipped in silence."""
    with view() as before:
        before.update()
        before.update()
        for statement in statements if live else ():
            dims18.execute(statement)
        if live:
            look_now(before)
            with pytest.raises(PositionError, match=said):
                before.update()
            assert len(before) == 2
    look_now(before).close()
    for statement in statements if not live else ():
        dims18.execute(statement)
    listed = dims18.execute("SELECT tablename FROM pg_publication_tables WHERE pubname = 'dims'")
    with view() as after:
        with pytest.raises((PositionError, ConfigError), match=said):
            after.update()
        assert dims18.execute("SELECT tablename FROM pg_publication_tables WHERE pubname = 'dims'") == listed
        assert len(after) == 2, "the last good contents"
        if "DROP TABLE city" not in statements[-1] and "publish =" not in statements[-1]:
            after.refresh()
            assert sorted(after.to_arrow().to_pylist(), key=str) == [
                {"id": number, "name": name} for number, name in dims18.execute("SELECT * FROM city ORDER BY id")
            ]
            after.update()
    look_now(after).close()


def test_what_leaves_rows_alone_is_no_reason_to_stop(dims18: Dimensions, view: Callable[[], ReferenceView]) -> None:
    with view() as found:
        found.update()
        for statement in [
            "VACUUM FULL city", "ALTER TABLE city ADD COLUMN more int DEFAULT 1", "TRUNCATE city",
            "ALTER TABLE city ALTER id SET STATISTICS 5", "INSERT INTO city VALUES (3, 'three')",
        ]:  # fmt: skip
            dims18.execute(statement)
            look_now(found)
            found.update()
        wait_until(lambda: found.update() or found.lookup(3) is not None, what="the row")
        assert len(found) == 1
    look_now(found).close()


@pytest.mark.parametrize("retyped", ["uuid USING gen_random_uuid()", "varchar(5)", "json USING '1'"])
def test_a_type_that_looks_alike_is_another_type(
    dims18: Dimensions, view: Callable[[], ReferenceView], retyped: str
) -> None:
    with view() as found:
        found.update()
        dims18.execute(f"ALTER TABLE city ALTER name TYPE {retyped}")
        dims18.execute("INSERT INTO city (id) VALUES (3)")
        with pytest.raises(OperatorError, match=r"its column name has another type|were written anew"):
            wait_until(lambda: found.update() < 0, what="the error")
    look_now(found).close()


def test_an_identity_that_no_longer_names_the_key_stops_the_view(
    dims18: Dimensions, view: Callable[[], ReferenceView]
) -> None:
    """E93: a delete would come without the key, and its row stay for ever."""
    dims18.execute("ALTER TABLE city ADD COLUMN code int NOT NULL DEFAULT 0")
    dims18.execute("UPDATE city SET code = id")
    dims18.execute("CREATE UNIQUE INDEX by_code ON city (code)")
    with view() as found:
        found.update()
        dims18.execute("ALTER TABLE city REPLICA IDENTITY USING INDEX by_code")
        dims18.execute("DELETE FROM city WHERE id = 1")
        with pytest.raises(OperatorError, match=r"replica identity of public.city no longer holds id"):
            wait_until(lambda: found.update() < 0, what="the error")
    look_now(found).close()


def test_columns_that_the_publication_leaves_out_are_not_read(dims18: Dimensions) -> None:
    dims18.execute("CREATE TABLE city (id int PRIMARY KEY, name text, secret text)")
    dims18.execute("INSERT INTO city VALUES (1, 'one', 'x')")
    dims18.execute("CREATE PUBLICATION dims FOR TABLE city (id, name)")
    with ReferenceView(dims18.capture().table("city")) as found:
        found.update()
        dims18.execute("INSERT INTO city VALUES (2, 'two', 'y')")
        wait_until(lambda: found.update() or found.lookup(2) == {"id": 2, "name": "two"}, what="the row")


def test_partitions_that_come_or_go_with_rows_stop_the_view(dims: Dimensions) -> None:
    """E95: also one that was published by itself before it was attached; TRUNCATE of all that is left is understood.

    The look that finds a new partition knows it from then on.
    """
    dims.execute("CREATE TABLE city (id int PRIMARY KEY, name text) PARTITION BY RANGE (id)")
    dims.execute("CREATE TABLE low PARTITION OF city FOR VALUES FROM (0) TO (10)")
    dims.execute("CREATE TABLE mid PARTITION OF city FOR VALUES FROM (10) TO (20)")
    dims.execute("CREATE TABLE high (id int PRIMARY KEY, name text)")
    dims.execute("CREATE PUBLICATION dims FOR TABLE city, high")
    dims.execute("INSERT INTO city VALUES (1, 'one'), (11, 'eleven')")
    with ReferenceView(dims.capture().table("city")) as found:
        found.update()
        dims.execute("INSERT INTO high VALUES (21, 'before')")
        dims.execute("INSERT INTO city VALUES (2, 'two')")
        wait_until(lambda: found.update() or len(found) == 3, what="the row")
        for statement, said, rows in [
            ("ALTER TABLE city ATTACH PARTITION high FOR VALUES FROM (20) TO (30)", "high was attached", 4),
            ("DROP TABLE mid", "mid is no longer a part", 3),
        ]:
            dims.execute(statement)
            look_now(found)
            with pytest.raises(PositionError, match=said):
                found.update()
            found.refresh()
            assert len(found) == rows
        dims.execute("CREATE TABLE top PARTITION OF city FOR VALUES FROM (30) TO (40)")
        dims.execute("INSERT INTO city VALUES (31, 'x')")
        wait_until(lambda: found.update() or len(found) == 4, what="the row of a partition that was made as one")
        dims.execute("CREATE TABLE far PARTITION OF city FOR VALUES FROM (40) TO (50)")
        capture = look_now(found)
        found.update()
        assert QualifiedTable("public", "far") in capture._deliveries[found.table].known.streamed.values()
        dims.execute("TRUNCATE city")
        wait_until(lambda: found.update() or len(found) == 0, what="the truncated table")


def test_a_partitioned_table_that_is_published_as_one_is_refused(dims18: Dimensions) -> None:
    """E95: the TRUNCATE of a partition would come without a word."""
    dims18.execute("CREATE TABLE city (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    dims18.execute("CREATE TABLE low PARTITION OF city FOR VALUES FROM (0) TO (10)")
    dims18.execute("CREATE PUBLICATION dims FOR TABLE city WITH (publish_via_partition_root)")
    with pytest.raises(ConfigError, match=r"speaks of public.city as one table"):
        dims18.capture().table("city").poll_snapshot()


def test_after_its_slot_is_gone_each_table_starts_over_by_itself(dims18: Dimensions) -> None:
    """E93: the first refresh() makes a new slot; the others say what happened until they are refreshed, too."""
    for table in "city", "country":
        dims18.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)")
    capture = dims18.capture()
    with ReferenceView(capture.table("city")) as city, ReferenceView(capture.table("country")) as country:
        city.update(), country.update()
        dims18.drop_slot_in_use()
        with pytest.raises(SlotMissingError):
            wait_until(lambda: city.update() < 0, 20, "the error")
        city.refresh()
        for _ in range(2):
            with pytest.raises(SlotMissingError):
                country.update()
        country.refresh()
        for view in city, country:
            dims18.execute(f"INSERT INTO {view.table.name} VALUES (1)")
            wait_until(lambda: view.update() or len(view) == 1, what="a change")  # noqa: B023
