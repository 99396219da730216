"""Snapshots of real tables: every row once, one moment for all readers, values as Postgres writes them."""

from __future__ import annotations

import itertools
import threading
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.errors import ConfigError, OperatorError, PenstockError, PrivilegeError, RetryableError
from penstock.model import Op, QualifiedTable, SnapshotTable
from penstock.postgres import snapshot
from penstock.postgres.connection import resolve
from penstock.postgres.export import Export, open_reading
from penstock.postgres.ranges import BlockRange, Everything, Range
from penstock.postgres.snapshot_plan import Selection, SnapshotQuery, plan, select
from tests.fixtures.captures import Published
from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until


def table(name: str) -> QualifiedTable:
    return QualifiedTable("public", name)


def planned(
    database: Database, name: str, parts: int | None = None, key: Sequence[str] = (), **query: Any
) -> tuple[Selection, list[Range]]:
    """A table, checked and cut."""
    with open_reading(resolve(database.url)) as connection:
        selection = select(connection, SnapshotQuery(table(name), **query))
        return selection, plan(connection, selection, parts, key)


def read(database: Database, name: str, parts: int | None = None, **query: Any) -> list[pa.RecordBatch]:
    """Everything, part by part, each part as one batch."""
    selection, ranges = planned(database, name, parts, **query)
    return [whole(selection, snapshot.read_part(resolve(database.url), selection, part)) for part in ranges]


def whole(selection: Selection, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches, selection.schema).combine_chunks().to_batches()[0]


def ids(batches: Sequence[pa.RecordBatch]) -> list[Any]:
    return [value for batch in batches for value in batch["id"].to_pylist()]


# Every type with values that are easily got wrong; the first of each is null.
SAMPLES: dict[str, Sequence[str | None]] = {
    "bool": ["t", "f"],
    "int2": ["-32768", "32767"],
    "int4": ["-2147483648", "0"],
    "int8": ["-9223372036854775808", "9223372036854775807"],
    "oid": ["4294967295"],
    "float4": ["0.1", "NaN", "-Infinity", "3.4028235e+38", "-0"],
    "float8": ["0.1", "NaN", "Infinity", "1e-323", "123456789.123456789"],
    "numeric": ["1e-30", "-12345678901234567890.123456789", "NaN", "Infinity"],
    "numeric(12,2)": ["-1234567890.12", "0.00"],
    "numeric(38,38)": ["0.00000000000000000000000000000000000001"],
    "text": ["", "\\N", "a\tb\nc\rd\\", "\\\\", "ä€😀", "\b\f\v", "\\."],
    "varchar(5)": ["ab", "  x  "],
    "char(5)": ["ab", "", "ä"],
    '"char"': ["a", ""],
    "name": ["a name"],
    "bytea": ["\\x", "\\x00ff5c0a09", "\\xdeadbeef"],
    "date": ["0001-01-01", "9999-12-31", "2024-02-29"],
    "timestamp": ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "1969-12-31 23:59:59.5"],
    "timestamptz": ["2024-02-29 12:00:00.123456+02", "0001-01-01 00:00:00+00"],
    "time": ["24:00:00", "12:34:56.789"],
    "timetz": ["12:34:56+05:30"],
    "interval": ["1 year 2 mons -3 days 04:05:06.7", "0"],
    "uuid": ["0a0b0c0d-0000-4000-8000-ffffffffffff"],
    "json": ['{"a": "\\n\\\\", "b" : [1,  2]}', "null"],
    "jsonb": ['{"b": 1, "a": "\\u00e9\\t"}', '"\\""'],
    "int4[]": ["{}", "{1,NULL,3}", "{{1,2},{3,4}}", "[0:1]={5,6}"],
    "text[]": ['{"a\\"b","c,d",NULL,"NULL","\\\\"}'],
    "inet": ["10.0.0.1", "10.0.0.0/8", "::1"],
    "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "money": ["-12.34"],
    "bit(3)": ["101"],
    "varbit": ["", "10101"],
    "point": ["(1.5,-2)"],
    "int4range": ["[1,5)", "empty", "(,)"],
    "datemultirange": ["{[2024-01-01,2024-02-01)}"],
    "tsvector": ["'a':1 'b\\\\':2"],
    "pg_lsn": ["16/B374D848"],
    "mood": ["sad", "it's ok"],
    "pair": ["(1,)", '(2,"a,b")', "(,)"],
    "positive": ["7"],
    "code": ["ab"],
}


@pytest.fixture
def every_type(published: Published) -> Published:
    """A published table with a column of every type, and rows with every sample."""
    execute = published.execute
    execute("CREATE TYPE mood AS ENUM ('sad', 'it''s ok')")
    execute("CREATE TYPE pair AS (a int, b text)")
    execute("CREATE DOMAIN positive AS int CHECK (VALUE > 0)")
    execute("CREATE DOMAIN code AS char(4)")
    columns = ", ".join(f"c{at} {kind}" for at, kind in enumerate(SAMPLES))
    execute(f"CREATE TABLE many (id int PRIMARY KEY, {columns})")
    execute("ALTER PUBLICATION pub ADD TABLE many")
    return published


def fill(published: Published) -> None:
    rows = itertools.zip_longest(*SAMPLES.values())
    marks = ", ".join(f"%s::{kind}" for kind in SAMPLES)
    for number, row in enumerate([(None,) * len(SAMPLES), *rows]):
        published.execute(f"INSERT INTO many VALUES ({number}, {marks})", *row)


def test_a_value_is_the_text_that_postgres_writes(every_type: Published) -> None:
    """E4: of every type, also where a cast to text would change it (char, inet, bool)."""
    fill(every_type)
    selection, _ = planned(every_type.database, "many")
    with open_reading(resolve(every_type.database.url)) as connection:
        found = [
            [None if value is None else value.decode() for value in column.to_pylist()]
            for column in next(snapshot.blocks(connection, selection, Everything()))
        ]
        names = ", ".join(column.name for column in selection.columns)
        result = connection.pgconn.exec_(f"SELECT {names} FROM many ORDER BY id".encode())
    texts = [[result.get_value(i, j) for i in range(result.ntuples)] for j in range(result.nfields)]
    assert found == [[None if text is None else text.decode() for text in column] for column in texts]


def test_a_row_of_a_snapshot_equals_the_same_row_of_the_stream(every_type: Published) -> None:
    """E4, E104: value by value over all types, as Arrow and as changes."""
    with every_type.batches() as stream:
        wait_until(every_type.walsender, what="the walsender to start")
        fill(every_type)
        streamed = [next(stream).tables[0].rows for _ in range(1)]
        while sum(map(len, streamed)) < 1 + max(map(len, SAMPLES.values())):
            streamed.append(next(stream).tables[0].rows)
    (batch,) = read(every_type.database, "many", 1)
    assert batch.schema.names == streamed[0].schema.names[: batch.num_columns]
    for at, name in enumerate(batch.schema.names):
        one = pa.chunked_array([rows.column(at) for rows in streamed]).combine_chunks()
        assert batch[name].type == one.type
        assert list(map(repr, batch[name].to_pylist())) == list(map(repr, one.to_pylist())), name


def test_both_forms_of_copy_give_the_same_values(every_type: Published) -> None:
    """E4, E104: a column by itself travels in its binary form or as text beside one that does; all together as text."""
    fill(every_type)
    (together,) = read(every_type.database, "many", 1)
    for name in together.schema.names[1:]:
        (alone,) = read(every_type.database, "many", 1, columns=("id", name))
        assert alone[name].type == together[name].type
        assert list(map(repr, alone[name].to_pylist())) == list(map(repr, together[name].to_pylist())), name


def test_a_numeric_has_every_digit_whatever_its_precision_and_scale(database: Database) -> None:
    """E4"""
    kinds = ["15,0", "15,15", "15,7", "12,2", "9,4", "5,1", "1,1", "16,2", "18,18"]
    columns = ", ".join(f"c{at} numeric({kind})" for at, kind in enumerate(kinds))
    database.execute(f"CREATE TABLE digits (id int PRIMARY KEY, {columns})")
    for sign in ("", "-"):
        for digit in "0159":
            row = ", ".join(f"{sign}{_nines(kind, digit)}" for kind in kinds)
            database.execute(f"INSERT INTO digits SELECT count(*), {row} FROM digits")
    database.execute(f"INSERT INTO digits VALUES (100, {', '.join(['NULL'] * len(kinds))})")
    (found,) = read(database, "digits", 1)
    for at in range(len(kinds)):
        texts = [text for (text,) in database.execute(f"SELECT c{at}::text FROM digits ORDER BY id")]
        assert [None if one is None else f"{one:f}" for one in found[f"c{at}"].to_pylist()] == texts


def _nines(kind: str, digit: str) -> str:
    """A number of a numeric's every digit, but with one of another kind in the middle and at the end."""
    precision, scale = map(int, kind.split(","))
    digits = ("9" * (precision // 2) + digit).ljust(precision, "0")[: precision - 1] + digit
    return f"{digits[: precision - scale] or '0'}.{digits[precision - scale :] or '0'}"


def test_a_value_that_its_type_cannot_hold_is_an_error_or_null(database: Database) -> None:
    """E104"""
    database.execute("CREATE TABLE odd (id int PRIMARY KEY, d date, n numeric(5,2), s timestamptz)")
    database.execute(
        "INSERT INTO odd VALUES (1, 'infinity', 'NaN', '294276-12-31 23:59:59+00'), (2, '2024-01-01', 1, now())"
    )
    selection, (part,) = planned(database, "odd", 1)
    with pytest.raises(OperatorError, match=r"column d of public.odd holds a value that date32") as caught:
        list(snapshot.read_part(resolve(database.url), selection, part))
    assert "unrepresentable" in caught.value.hint and "infinity'" not in str(caught.value)
    (batch,) = snapshot.read_part(resolve(database.url), selection, part, unrepresentable="null")
    assert batch.column("d").is_valid().to_pylist() == [False, True]
    assert batch.column("n").is_valid().to_pylist() == [False, True]
    assert batch.column("s").is_valid().to_pylist() == [False, True]
    outside = ["-infinity", "infinity", "0001-12-31 BC", "10000-01-01", "4714-11-24 BC"]
    for at, text in enumerate(outside):
        database.execute("INSERT INTO odd VALUES (%s, %s, NULL, %s)", 3 + at, text, text)
    (batch,) = snapshot.read_part(resolve(database.url), selection, part, unrepresentable="null")
    assert batch.column("d").null_count == batch.column("s").null_count == 1 + len(outside)


def test_an_empty_table_completes_at_once_and_has_its_types(database: Database) -> None:
    """E53"""
    database.execute("CREATE TABLE empty (id int PRIMARY KEY, v numeric(5,2))")
    selection, ranges = planned(database, "empty", 8)
    assert ranges == [BlockRange(None, None)]
    assert list(snapshot.read_part(resolve(database.url), selection, ranges[0])) == []
    assert selection.schema == pa.schema([("id", pa.int32()), ("v", pa.decimal128(5, 2))])
    (only,) = planned(database, "empty", 8, key=["id"])[1]
    assert list(snapshot.read_part(resolve(database.url), selection, only)) == []


def test_columns_that_are_generated_dropped_or_left_out(database: Database) -> None:
    """Generated columns come with their values, dropped ones do not come, and chosen ones come in the asked order."""
    database.execute(
        "CREATE TABLE g (id int PRIMARY KEY, gone text, v int, twice int GENERATED ALWAYS AS (v * 2) STORED)"
    )
    database.execute("INSERT INTO g (id, gone, v) VALUES (1, 'x', 21)")
    database.execute("ALTER TABLE g DROP COLUMN gone")
    database.execute("ALTER TABLE g ADD COLUMN late text DEFAULT 'filled'")
    (batch,) = read(database, "g")
    assert batch.to_pylist() == [{"id": 1, "v": 21, "twice": 42, "late": "filled"}]
    (batch,) = read(database, "g", columns=("late", "twice"))
    assert batch.to_pylist() == [{"late": "filled", "twice": 42}]


def test_all_readers_see_one_moment_while_a_writer_changes_rows(database: Database) -> None:
    """E50: two accounts' sum never changes, whatever part of the table each reader takes, and whenever it starts."""
    database.execute("CREATE TABLE account (id int PRIMARY KEY, amount int, pad text)")
    database.execute("INSERT INTO account SELECT n, 100, repeat('x', 200) FROM generate_series(1, 2000) n")
    settings, stop = resolve(database.url), threading.Event()
    writer = threading.Thread(target=_move_money, args=(database.url, stop))
    writer.start()
    try:
        selection, ranges = planned(database, "account", 4)
        assert len(ranges) == 4
        with Export(settings, [selection]) as export:
            found = []
            for part in ranges:
                before = database.execute("SELECT sum(xmin::text::bigint) FROM account")
                wait_until(lambda b=before: database.execute("SELECT sum(xmin::text::bigint) FROM account") != b)  # type: ignore[misc]
                export.ping()
                found += list(snapshot.read_part(settings, selection, part, export.ticket))
    finally:
        stop.set()
        writer.join()
    assert sorted(ids(found)) == list(range(1, 2001))
    assert sum(value for batch in found for value in batch["amount"].to_pylist()) == 200_000


def _move_money(url: str, stop: threading.Event) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        while not stop.is_set():
            connection.execute(
                "WITH two AS (SELECT ceil(random() * 2000)::int AS a, ceil(random() * 2000)::int AS b)"
                " UPDATE account SET amount = amount + (id = a)::int - (id = b)::int FROM two"
                " WHERE id IN (a, b) AND a <> b"
            )


def test_a_snapshot_that_is_gone_is_said_so_and_never_replaced(database: Database) -> None:
    """E55"""
    database.execute("CREATE TABLE t AS SELECT 1 AS id")
    selection, (part,) = planned(database, "t")
    with Export(resolve(database.url), [selection]) as export:
        ticket = export.ticket
    wait_until(lambda: not database.execute("SELECT 1 FROM pg_stat_activity WHERE application_name = 'penstock'"))
    with pytest.raises(OperatorError, match="the snapshot that this read shares is gone") as caught:
        list(snapshot.read_part(resolve(database.url), selection, part, ticket))
    assert "Run it again" in caught.value.hint


def test_a_host_name_that_leads_to_another_server_is_noticed(db18: Database) -> None:
    """A snapshot's name says nothing about its server: another one may have one of the same name."""
    db18.execute("CREATE TABLE t AS SELECT 1 AS id")
    selection, (part,) = planned(db18, "t")
    with Export(resolve(db18.url), [selection]) as export:
        for other in (replace(export.ticket, server="2000-01-01 00:00:00+00"), replace(export.ticket, state="1:1:")):
            with pytest.raises(OperatorError, match="leads to another server"):
                list(snapshot.read_part(resolve(db18.url), selection, part, other))
        (batch,) = snapshot.read_part(resolve(db18.url), selection, part, export.ticket)
    assert len(batch) == 1


def test_of_several_hosts_the_one_with_the_snapshot_is_read(db18: Database) -> None:
    db18.execute("CREATE TABLE t AS SELECT 1 AS id")
    selection, (part,) = planned(db18, "t")
    server = db18.server
    nowhere = f"postgresql://postgres@127.0.0.1:1,127.0.0.1:{server.port}/{db18.name}"
    with Export(resolve(nowhere), [selection]) as export:
        assert (export.ticket.host, export.ticket.port) == ("127.0.0.1", str(server.port))
        (batch,) = snapshot.read_part(resolve(nowhere), selection, part, export.ticket)
    assert len(batch) == 1


def test_an_export_nobody_pings_is_ended_by_the_server_itself(db18: Database) -> None:
    """E55: even when the machine that holds it is gone."""
    with Export(resolve(db18.url)) as export:
        ((limit,),) = export._connection.execute("SHOW idle_in_transaction_session_timeout").fetchall()
        assert limit == "1min"


def test_nobody_empties_a_table_under_a_snapshot(database: Database) -> None:
    """E50: TRUNCATE is not bound by snapshots: a reader that came later would see no row. It waits instead."""
    database.execute("CREATE TABLE t AS SELECT n AS id FROM generate_series(1, 10) n")
    selection, (part,) = planned(database, "t")
    other = database.connect()
    other.execute("SET lock_timeout = '100ms'")
    with Export(resolve(database.url), [selection]) as export:
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute("TRUNCATE t")
        (batch,) = snapshot.read_part(resolve(database.url), selection, part, export.ticket)
    assert len(batch) == 10


def test_a_reader_behind_a_waiting_alter_gives_up_instead_of_waiting_for_ever(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ALTER waits for the snapshot's end, the reader for the ALTER: somebody has to go."""
    monkeypatch.setattr("penstock.postgres.export._LOCK_S", 0.2)
    database.execute("CREATE TABLE t AS SELECT 1 AS id")
    selection, (part,) = planned(database, "t")
    waiting = database.connect()
    with Export(resolve(database.url), [selection]) as export:
        alter = threading.Thread(target=waiting.execute, args=("ALTER TABLE t ADD COLUMN v int",))
        alter.start()
        wait_until(lambda: database.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 't'::regclass"))
        with pytest.raises(RetryableError, match="a lock was not free in time"):
            list(snapshot.read_part(resolve(database.url), selection, part, export.ticket))
    alter.join()


def test_a_table_that_was_altered_after_planning_is_no_wrong_data(db18: Database) -> None:
    db18.execute("CREATE TABLE t AS SELECT 1 AS id, 2 AS v")
    selection, (part,) = planned(db18, "t")
    db18.execute("ALTER TABLE t ALTER COLUMN v TYPE text")
    with pytest.raises(OperatorError, match=r'public\.t was altered after the read was planned: column "v"'):
        list(snapshot.read_part(resolve(db18.url), selection, part))


def test_row_level_security_is_an_error_never_fewer_rows(database: Database) -> None:
    """E74"""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("INSERT INTO t SELECT generate_series(1, 5)")
    url = database.role("sees_some", "secret")
    database.execute("GRANT SELECT ON t TO sees_some")
    database.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    database.execute("CREATE POLICY part ON t USING (id > 3)")
    selection, (part,) = planned(database, "t")
    with pytest.raises(PrivilegeError, match="row-level security"):
        list(snapshot.read_part(resolve(url), selection, part))
    with pytest.raises(PrivilegeError, match="row-level security"):
        list(snapshot.read_snapshot(resolve(url), [SnapshotTable(table("t"))]))


def test_memory_holds_a_block_of_rows_never_a_table(db18: Database) -> None:
    """E54: 60 MB of rows pass through a few."""
    db18.execute("CREATE TABLE wide AS SELECT n AS id, repeat('x', 1000) AS v FROM generate_series(1, 60000) n")
    selection, (part,) = planned(db18, "wide", 1)
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    highest = rows = 0
    for batch in snapshot.read_part(resolve(db18.url), selection, part):
        rows += len(batch)
        highest = max(highest, pa.total_allocated_bytes() - before + tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    assert rows == 60_000
    assert highest < 12 << 20


def test_a_reader_that_stops_early_leaves_nothing(db18: Database) -> None:
    db18.execute("CREATE TABLE t AS SELECT n AS id, repeat('x', 1000) AS v FROM generate_series(1, 10000) n")
    selection, (part,) = planned(db18, "t", 1)
    batches = snapshot.read_part(resolve(db18.url), selection, part)
    assert len(next(batches)) < 10_000
    batches.close()
    wait_until(lambda: not db18.execute("SELECT 1 FROM pg_stat_activity WHERE application_name = 'penstock'"))


def test_a_connection_that_is_lost_mid_read_is_a_typed_error(db18: Database) -> None:
    db18.execute("CREATE TABLE t AS SELECT n AS id, repeat('x', 1000) AS v FROM generate_series(1, 50000) n")
    selection, (part,) = planned(db18, "t", 1)
    batches = snapshot.read_part(resolve(db18.url), selection, part)
    next(batches)
    ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'penstock'"
    wait_until(lambda: db18.execute(ours) == [(1,)], what="only the reader's connection")
    query = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'penstock'"
    assert db18.execute(query) == [(True,)]
    with pytest.raises(RetryableError, match=r"reading public\.t failed"):
        list(batches)


def test_a_condition_that_fails_on_a_row_names_no_value(db18: Database) -> None:
    db18.execute("CREATE TABLE t AS SELECT n AS id, 'secret' || n AS v FROM generate_series(1, 10) n")
    selection, (part,) = planned(db18, "t", where="v::int > 3")
    with pytest.raises(PenstockError, match="22P02") as caught:
        list(snapshot.read_part(resolve(db18.url), selection, part))
    assert "secret" not in str(caught.value)


def test_changes_of_a_snapshot_are_inserts_of_one_moment(database: Database) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    database.execute("CREATE TABLE b (x int, y int, a_id int REFERENCES a, v text, PRIMARY KEY (x, y))")
    database.execute("INSERT INTO a VALUES (1, 'one'), (2, 'two')")
    database.execute("INSERT INTO b VALUES (1, 1, 2, 'v')")
    found = list(snapshot.read_snapshot(resolve(database.url), [SnapshotTable(table("a")), SnapshotTable(table("b"))]))
    assert [change.new for change in found] == [{"id": 1}, {"id": 2}, {"x": 1, "y": 1, "a_id": 2}]
    assert {change.op for change in found} == {Op.INSERT}
    assert [change.position.row for change in found] == [0, 1, 2]
    assert len({change.position.lsn for change in found}) == 1
    for change in found:
        change.ack.confirm()
    (first, _) = snapshot.read_snapshot(resolve(database.url), [SnapshotTable(table("a"), ["v", "id"])])
    assert first.new == {"v": "one", "id": 1}


@pytest.mark.parametrize("how", ["", "UNIQUE"])
def test_rows_that_cannot_be_told_apart_are_refused_by_name(db18: Database, how: str) -> None:
    """E53: no primary key, or a unique one that may be null; a batch read takes the table all the same."""
    db18.execute(f"CREATE TABLE plain (id int {how}, v text)")
    db18.execute("INSERT INTO plain VALUES (NULL, 'a'), (NULL, 'a'), (1, 'b')")
    with pytest.raises(ConfigError, match=r"public\.plain has no primary key"):
        list(snapshot.read_snapshot(resolve(db18.url), [SnapshotTable(table("plain"))]))
    (batch,) = read(db18, "plain")
    assert len(batch) == 3


def test_an_identity_index_tells_rows_apart_too(db18: Database) -> None:
    db18.execute("CREATE TABLE t (id int NOT NULL UNIQUE, v text)")
    db18.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX t_id_key")
    db18.execute("INSERT INTO t VALUES (1, 'a')")
    (change,) = snapshot.read_snapshot(resolve(db18.url), [SnapshotTable(table("t"))])
    assert change.new == {"id": 1}


def test_the_capture_reads_snapshots_by_the_same_code(published18: Published) -> None:
    published18.insert(1, 2)
    found = published18.capture().snapshot([SnapshotTable(table("t"), ["id", "v"])])
    assert [change.new for change in found] == [{"id": 1, "v": "x"}, {"id": 2, "v": "x"}]
    with pytest.raises(ConfigError, match=r"table public\.absent does not exist"):
        list(published18.capture().snapshot([SnapshotTable(table("absent"))]))
    with pytest.raises(ConfigError, match=r"public\.t has no column 'w'"):
        list(published18.capture().snapshot([SnapshotTable(table("t"), ["w"])]))
