"""What a stream's rows look like, in each mode and for every kind of change."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pytest

from penstock.errors import ConfigError, OperatorError
from tests.fixtures.databases import Database
from tests.fixtures.streams import Rows, Steps, Streamed
from tests.fixtures.waiting import wait_until

# Too long to stay in its row, too random to be made shorter.
LONG = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 200))"


def told(rows: Rows, *columns: str) -> list[tuple[Any, ...]]:
    """Each row's change and some of its columns, then those it lacks."""
    return [(row["_change_type"], *(row[name] for name in columns), row["_missing"]) for row in rows]


@pytest.mark.smoke
def test_every_kind_of_change_is_a_row_that_says_so(stream: Streamed) -> None:
    """E3, E4, E10: typed columns; a value that was not sent is named, not null by chance."""
    stream.execute(
        "CREATE TABLE t (id int PRIMARY KEY, big text, n numeric(8,2), j jsonb, d date, at timestamptz, y bytea)"
    )
    stream.available_now(table="t")
    stream.execute(
        f"INSERT INTO t VALUES (1, {LONG}, 1.50, %s, '2024-02-29', '2024-01-01 10:00+02', '\\x00ff')",
        '{"a": [1, null]}',
    )
    stream.execute("UPDATE t SET n = NULL WHERE id = 1")
    stream.execute("UPDATE t SET id = 2 WHERE id = 1")
    stream.execute("DELETE FROM t WHERE id = 2")
    stream.execute("TRUNCATE t")
    frame = stream.load(table="t")
    assert frame.schema["j"].dataType.simpleString() == "variant"
    rows = stream.start(frame.selectExpr("*", "j:a[0]::int AS inner"), trigger={"availableNow": True}).await_end().rows
    others = ["big", "n", "j", "d", "at", "y"]
    assert told(rows, "id", "n") == [
        ("insert", 1, Decimal("1.50"), []),
        ("update_postimage", 1, None, ["big"]),
        ("update_preimage", 1, None, others),
        ("update_postimage", 2, None, ["big"]),
        ("delete", 2, None, others),
        ("truncate", None, None, ["id", *others]),
    ]
    first = rows[0]
    assert len(first["big"]) == 6400 and first["y"] == b"\x00\xff" and first["d"] == datetime.date(2024, 2, 29)
    assert first["at"].astimezone(datetime.UTC) == datetime.datetime(2024, 1, 1, 8, tzinfo=datetime.UTC)
    assert first["j"].toPython() == {"a": [1, None]} and first["inner"] == 1
    assert rows[1]["big"] is None and rows[3]["big"] is None
    assert [row["_seq"] for row in rows] == [0] * 6
    lsns = [row["_commit_lsn"] for row in rows]
    assert lsns == sorted(lsns) and len(set(lsns)) == 5 and lsns[2] == lsns[3]
    assert all(row["_xid"] > 0 for row in rows)
    ((now,),) = stream.execute("SELECT clock_timestamp()")
    assert all(abs(row["_commit_timestamp"].astimezone(datetime.UTC) - now).total_seconds() < 300 for row in rows)


def test_names_are_the_servers_own_however_odd(stream: Streamed) -> None:
    """E6: mixed case, dots, blanks, letters beyond ASCII; the same name in another schema is another table."""
    stream.execute('CREATE SCHEMA "Büro.x"')
    stream.execute('CREATE TABLE "Büro.x"."Ein Name" ("Key" int PRIMARY KEY, "a.b c" text, "ü`" int)')
    stream.execute('CREATE TABLE "Ein Name" (id int PRIMARY KEY)')
    options = {"table": '"Büro.x"."Ein Name"'}
    stream.available_now(**options)
    stream.execute('INSERT INTO "Ein Name" VALUES (9)')
    stream.execute('INSERT INTO "Büro.x"."Ein Name" VALUES (1, \'x\', 2)')
    (row,) = stream.available_now(**options).rows
    assert (row["Key"], row["a.b c"], row["ü`"]) == (1, "x", 2)


def test_keys_of_many_tables_come_in_one_stream(stream: Streamed) -> None:
    """E7, E10: identity and link columns; rows of a partition under the table that was asked for, unlike its end."""
    stream.execute("CREATE TABLE a (id int PRIMARY KEY, note text)")
    stream.execute("CREATE TABLE b (id int, a_id int REFERENCES a, PRIMARY KEY (id)) PARTITION BY RANGE (id)")
    stream.execute("CREATE TABLE b_low PARTITION OF b FOR VALUES FROM (0) TO (100)")
    stream.execute("CREATE TABLE c (id int PRIMARY KEY)")
    stream.execute(f"CREATE PUBLICATION {stream.slot} FOR TABLE a, b, c")
    stream.available_now(tables="a, b", mode="keys")
    stream.execute("INSERT INTO a VALUES (1, 'x')")
    stream.execute("INSERT INTO c VALUES (5)")
    stream.execute("INSERT INTO b VALUES (7, 1)")
    stream.execute("UPDATE b SET id = 8")
    stream.execute("UPDATE a SET note = 'y'")
    stream.execute("DELETE FROM b")
    stream.execute("TRUNCATE b")
    rows = stream.available_now(tables="a, b", mode="keys").rows
    assert [(row["table"], row["op"], row["new"], row["old"]) for row in rows] == [
        ("public.a", "insert", {"id": "1"}, None),
        ("public.b", "insert", {"id": "7", "a_id": "1"}, None),
        ("public.b", "update", {"id": "8", "a_id": "1"}, {"id": "7"}),
        ("public.a", "update", {"id": "1"}, None),
        ("public.b", "delete", None, {"id": "8"}),
        ("public.b_low", "truncate", None, None),
    ]
    assert all(row["xid"] > 0 and row["_commit_lsn"] > 0 for row in rows)


def test_rows_of_many_tables_come_as_before_and_after(stream: Streamed) -> None:
    """E3, E10: VARIANT objects; columns by name, whatever the table."""
    stream.execute("CREATE TABLE a (id int PRIMARY KEY, big text, j json)")
    stream.execute("CREATE TABLE b (x text, y bool)")
    stream.execute("ALTER TABLE b REPLICA IDENTITY FULL")
    stream.available_now(tables="a, b")
    stream.execute(f"INSERT INTO a VALUES (1, {LONG}, '[1]')")
    stream.execute("UPDATE a SET id = 2, j = NULL")
    stream.execute("INSERT INTO b VALUES ('k', true)")
    stream.execute("UPDATE b SET y = false")
    stream.execute("DELETE FROM b")
    rows = stream.available_now(tables="a, b").rows

    def plain(value: Any) -> Any:
        return value and {name: one for name, one in value.toPython().items() if name != "big"}

    assert [(row["_table"], row["_change_type"], plain(row["before"]), plain(row["after"])) for row in rows] == [
        ("public.a", "insert", None, {"id": 1, "j": [1]}),
        ("public.a", "update_postimage", {"id": 1}, {"id": 2, "j": None}),
        ("public.b", "insert", None, {"x": "k", "y": True}),
        ("public.b", "update_postimage", {"x": "k", "y": True}, {"x": "k", "y": False}),
        ("public.b", "delete", {"x": "k", "y": False}, None),
    ]
    assert [row["_missing"] for row in rows[:3]] == [[], ["big"], []]


def test_json_comes_as_its_exact_text_where_that_is_asked_for(steps: Steps) -> None:
    """E4: with the digits that VARIANT has no room for."""
    steps.execute("CREATE TABLE t (id int PRIMARY KEY, j json)")
    steps.begin(table="t", jsonColumns="string").open()
    digits = "1." + "123456789" * 6
    steps.execute(f"INSERT INTO t VALUES (1, '{{\"b\" :{digits},\"a\": 1e999}}'), (2, 'null'), (3, NULL)")
    assert [row["j"] for row in steps.rows(3)] == [f'{{"b" :{digits},"a": 1e999}}', "null", None]


def test_a_value_that_its_column_cannot_hold_stops_the_stream_or_is_null_by_name(stream: Streamed) -> None:
    """E104: the way on is named, and a restart takes it: the same rows, with nulls."""
    stream.execute("CREATE TABLE t (id int PRIMARY KEY, d date, n numeric(5,1), at timestamptz, j jsonb)")
    stream.available_now(table="t")
    stream.execute("INSERT INTO t VALUES (1, '2024-01-01', 1.5, '2024-01-01', '1')")
    stream.execute("INSERT INTO t VALUES (2, 'infinity', 'NaN', '10000-01-01 00:00+00', '1e400')")
    running = stream.start(table="t")
    said = running.await_failure()
    stream.await_free()
    assert "column d of public.t holds a value that date32[day] cannot" in said
    assert "Set unrepresentable to null" in said
    for value in "infinity", "10000-01", "1e400", "0000000000":
        assert value not in said.replace("an infinity", ""), "no row value is told"
    rows = stream.available_now(table="t", unrepresentable="null").rows
    assert [(row["id"], row["d"], row["n"], row["at"], row["j"] and row["j"].toPython()) for row in rows] == [
        (1, datetime.date(2024, 1, 1), Decimal("1.5"), rows[0]["at"], 1),
        (2, None, None, None, None),
    ]
    assert [row["_missing"] for row in rows] == [[], ["d", "n", "at", "j"]]


def test_a_preimage_comes_with_every_update_and_needs_whole_old_rows(steps: Steps) -> None:
    """E42: without FULL it is refused with the SQL, for each partition."""
    steps.execute("CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    steps.execute("CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (100)")
    steps.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    steps.begin(table="t", preimage="true")
    with pytest.raises(ConfigError) as caught:
        steps.poll()
    assert 'ALTER TABLE "public"."t_low" REPLICA IDENTITY FULL;' in str(caught.value)
    steps.execute("ALTER TABLE t_low REPLICA IDENTITY FULL")
    steps.restart().open()
    steps.execute("INSERT INTO t VALUES (1, 'a')")
    steps.execute("UPDATE t SET v = 'b'")
    assert told(steps.rows(3), "id", "v") == [
        ("insert", 1, "a", []),
        ("update_preimage", 1, "a", []),
        ("update_postimage", 1, "b", []),
    ]
    steps.execute("CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (100) TO (200)")
    steps.execute("INSERT INTO t VALUES (100, 'c')")
    wait_until(steps.poll, what="the row")
    with pytest.raises(ConfigError, match="t_high"):
        steps.read()


@pytest.mark.parametrize("asked", ["t0", "t", "t as one"])
def test_a_preimage_that_was_not_kept_for_a_while_is_a_stop(steps: Steps, asked: str) -> None:
    """E42: of a table, of a partition that is new, and where the stream has only the table's identity."""
    table, as_one = asked.removesuffix(" as one"), asked.endswith("as one")
    steps.execute("CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    steps.execute("CREATE TABLE t0 PARTITION OF t FOR VALUES FROM (0) TO (10)")
    steps.execute("ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE t0 REPLICA IDENTITY FULL")
    steps.execute(f"CREATE PUBLICATION pub FOR TABLE {table} WITH (publish_via_partition_root = {as_one})")
    steps.begin(table=table, preimage="true", publication="pub").open()
    steps.execute("INSERT INTO t VALUES (1, 'a')")
    steps.rows(1)
    leaf, first = ("t0", "ALTER TABLE t0 REPLICA IDENTITY DEFAULT")
    if table == "t":
        leaf, first = "t1", "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (10) TO (20)"
    steps.execute(  # in one transaction; when the catalog is looked at, whole rows are kept again
        f"{first}; INSERT INTO {leaf} SELECT {leaf[1]} * 10 + 2, 'b'; UPDATE {leaf} SET v = 'c' WHERE v = 'b';"
        f"ALTER TABLE {leaf} REPLICA IDENTITY FULL"
    )
    wait_until(steps.poll, what="the rows")
    with pytest.raises(ConfigError, match="preimage needs the whole old row, and the replica identity of") as caught:
        steps.read()
    assert "REPLICA IDENTITY FULL" in str(caught.value) and "preimage set to false" in str(caught.value)
    steps.restart(preimage="false")
    assert [row["_change_type"] for row in steps.batch()] == ["insert", "update_postimage"]
    steps.restart(preimage="true")
    steps.execute("UPDATE t SET v = 'd' WHERE id = 1")
    assert [row["_change_type"] for row in steps.rows(2)] == ["update_preimage", "update_postimage"]


@pytest.mark.parametrize("via_root", [False, True])
def test_rows_of_partitions_come_under_their_table_also_those_made_meanwhile(
    steps: Steps, via_root: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """E7: made, attached, with columns in another order; a stranger in the same publication stays out."""
    steps.execute("CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    steps.execute("CREATE TABLE t0 PARTITION OF t FOR VALUES FROM (0) TO (10)")
    steps.execute("CREATE TABLE t2 (v text, id int PRIMARY KEY)")
    steps.execute(f"CREATE PUBLICATION pub FOR TABLE t, t2 WITH (publish_via_partition_root = {via_root})")
    steps.begin(table="t", publication="pub").open()
    steps.execute("INSERT INTO t VALUES (1, 'a')")
    assert told(steps.rows(1), "id", "v") == [("insert", 1, "a", [])]
    steps.execute("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (10) TO (20)")
    steps.execute("INSERT INTO t VALUES (11, 'b')")
    assert told(steps.rows(1), "id", "v") == [("insert", 11, "b", [])]
    steps.execute("INSERT INTO t2 VALUES ('c', 21)")  # which may count as t's: it is, once t2 is attached
    steps.execute("ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (20) TO (30)")
    steps.execute("INSERT INTO t VALUES (22, 'd')")
    rows: Rows = []
    while not any(row["id"] == 22 for row in rows):
        rows += steps.batch()
    assert told(rows, "id", "v")[-1] == ("insert", 22, "d", [])
    steps.execute("UPDATE t SET id = 2 WHERE id = 11")
    moved = told(steps.rows(2), "id", "v")
    assert moved == [("delete", 11, None, ["v"]), ("insert", 2, "b", [])]
    assert ("TRUNCATE of one of its partitions does not come" in caplog.text) is via_root
    if via_root:
        steps.execute("TRUNCATE t1")
    steps.execute("TRUNCATE t")
    assert told(steps.rows(1), "id") == [("truncate", None, ["id", "v"])]


def test_what_a_partition_does_not_keep_of_an_old_row_is_missing_though_its_table_keeps_all(steps: Steps) -> None:
    """E3, E42: via the root, the stream has the identity of the table, and old rows by that of the partition."""
    steps.execute("CREATE TABLE t (id int PRIMARY KEY, v text, big text) PARTITION BY RANGE (id)")
    steps.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    steps.execute("CREATE TABLE t0 PARTITION OF t FOR VALUES FROM (0) TO (10)")
    steps.execute("ALTER TABLE t0 REPLICA IDENTITY FULL")
    steps.execute("CREATE PUBLICATION pub FOR TABLE t WITH (publish_via_partition_root)")
    steps.begin(table="t", publication="pub").open()
    steps.execute("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (10) TO (20)")  # with an identity of its own
    steps.execute(f"INSERT INTO t SELECT id, NULL, {LONG} FROM unnest('{{1, 11}}'::int[]) AS id")
    big = [row["big"] for row in steps.rows(2)]
    steps.execute("UPDATE t SET id = id + 1 WHERE id = 1")
    steps.execute("UPDATE t SET id = id + 1 WHERE id = 11")
    steps.execute("DELETE FROM t")
    assert told(steps.rows(6), "id", "v", "big") == [
        ("update_preimage", 1, None, big[0], ["v"]),  # which cannot be told from one that was not kept
        ("update_postimage", 2, None, big[0], []),
        ("update_preimage", 11, None, None, ["v", "big"]),
        ("update_postimage", 12, None, None, ["big"]),
        ("delete", 2, None, big[0], ["v"]),
        ("delete", 12, None, None, ["v", "big"]),
    ]


def test_a_partition_alone_can_be_asked_for(steps: Steps) -> None:
    """E7: its neighbours stay out."""
    steps.execute("CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    steps.execute("CREATE TABLE t0 PARTITION OF t FOR VALUES FROM (0) TO (10)")
    steps.execute("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (10) TO (20)")
    steps.begin(table="t0").open()
    steps.execute("INSERT INTO t VALUES (11), (1)")
    assert [row["id"] for row in steps.rows(1)] == [1]


def test_a_column_with_the_name_of_an_added_one_is_refused(db18: Database, steps: Steps) -> None:
    db18.execute("CREATE TABLE t (id int PRIMARY KEY, _seq int)")
    with pytest.raises(ConfigError, match="has a column _seq"):
        steps.begin(table="t")


def test_a_table_whose_updates_would_then_be_rejected_is_not_published(steps: Steps) -> None:
    """E41: the query says what is missing."""
    steps.execute("CREATE TABLE t (id int)")
    steps.begin(table="t")
    with pytest.raises(OperatorError, match="replica identity"):
        steps.poll()


def test_a_table_that_others_inherit_from_is_streamed_together_with_them_or_not_at_all(steps: Steps) -> None:
    """E50, E100: a snapshot would have their rows and the stream would not."""
    steps.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    steps.execute("CREATE TABLE heir (PRIMARY KEY (id)) INHERITS (t)")
    for start in "slot", "snapshot":
        steps.begin(table="t", startingPosition=start)
        with pytest.raises(ConfigError, match=r"tables that inherit from it \(public.heir\)") as caught:
            steps.poll()
        assert '.option("tables", "public.t, public.heir")' in str(caught.value)
    assert not steps.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", steps.slot)
    steps.begin(table=None, tables="public.t, public.heir", startingPosition=None).open()
    steps.execute("INSERT INTO heir VALUES (1, 'x')")
    (row,) = steps.rows(1)
    assert row["_table"] == "public.heir"


@pytest.mark.parametrize("asked", [{"table": "p"}, {"tables": "p, q"}], ids=["one table", "many"])
def test_a_truncate_of_every_partition_is_one_row_and_one_of_some_is_a_stop(
    steps: Steps, asked: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """E7: no row says which partition was emptied, and a target would be emptied whole."""
    steps.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    steps.execute("CREATE TABLE q (id int PRIMARY KEY)")
    for n in 0, 1, 2:
        steps.execute(f"CREATE TABLE p{n} PARTITION OF p FOR VALUES FROM ({n}0) TO ({n + 1}0)")
    # One row a batch: a TRUNCATE is judged as a whole all the same.
    steps.begin(**asked, maxRowsPerTrigger="1").open()

    def following(rows: int) -> list[tuple[str, str]]:
        return [(row.get("_table", "public.p"), row["_change_type"]) for row in steps.rows(rows)]

    emptied = [(f"public.{table}", "truncate") for table in ("p, q" if "tables" in asked else "p").split(", ")]
    steps.execute("TRUNCATE p, q")
    assert sorted(following(len(emptied))) == emptied
    steps.execute("ALTER TABLE p DETACH PARTITION p2")
    steps.execute("TRUNCATE p")
    steps.execute("INSERT INTO p VALUES (1)")
    assert following(2) == [("public.p", "truncate"), ("public.p", "insert")], "a partition that is gone is no matter"
    steps.execute("TRUNCATE p1")
    wait_until(steps.poll, what="the truncate")
    with pytest.raises(OperatorError, match=r"partition public\.p1 of public\.p was truncated, and public\.p0 was not"):
        steps.read()
    steps.restart(failOnDataLoss="false")
    assert steps.batch() == []
    assert "partition public.p1 of public.p was truncated" in caplog.text
    steps.execute("INSERT INTO p VALUES (2)")
    assert following(1) == [("public.p", "insert")]


def test_a_truncate_of_a_partition_that_is_asked_for_by_itself_is_a_row(steps: Steps) -> None:
    """E7."""
    steps.execute("CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    steps.execute("CREATE TABLE t0 PARTITION OF t FOR VALUES FROM (0) TO (10)")
    steps.execute("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (10) TO (20)")
    steps.begin(table="t0").open()
    steps.execute("TRUNCATE t0")
    assert told(steps.rows(1), "id") == [("truncate", None, ["id"])]
