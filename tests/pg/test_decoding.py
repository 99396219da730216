"""What real servers send, decoded: every message, shapes that change, names, partitions, partial publications."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.model import Lsn, Op, QualifiedTable
from penstock.postgres import pgoutput as pg
from penstock.postgres import replication
from penstock.postgres.replication import Duplex, ReplicationParams
from penstock.postgres.rows import RowShape
from tests.fixtures.databases import Database
from tests.fixtures.recordings import Row, recording

_numbers = itertools.count(1)


@contextmanager
def listening(database: Database, **params: Any) -> Iterator[Callable[[], list[pg.Message]]]:
    """A stream of single messages; the function it gives returns those up to now, transaction by transaction."""
    database.execute("CREATE TABLE IF NOT EXISTS done (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)")
    database.execute("CREATE PUBLICATION heard FOR ALL TABLES")
    client = replication.connect(database.url)
    name = f"heard_{next(_numbers)}"
    replication.ensure_slot(client, name, temporary=True)
    duplex = replication.start_replication(client, ReplicationParams(name, "heard", **params))
    try:
        yield lambda: _until_marked(database, duplex)
    finally:
        duplex.close()


def _until_marked(database: Database, duplex: Duplex) -> list[pg.Message]:
    ((end,),) = database.execute("INSERT INTO done DEFAULT VALUES RETURNING pg_current_xact_id()::text::bigint")
    found: list[pg.Message] = []
    while True:
        event = replication.recv(duplex, 20)
        assert event is not None, f"nothing more after {found[-3:]}"
        found.append(event.message)
        # The last transaction is the marker's own: without a piece of it, without its begin.
        if isinstance(event.message, pg.Commit | pg.StreamCommit):
            starts = [at for at, m in enumerate(found) if isinstance(m, pg.Begin | pg.StreamStart) and m.xid == end]
            if starts:
                return found[: starts[0]]


def kinds(messages: list[pg.Message]) -> list[str]:
    return [type(message).__name__ for message in messages]


def only(messages: list[pg.Message], *wanted: type) -> list[Any]:
    return [message for message in messages if isinstance(message, wanted)]


@pytest.mark.parametrize("protocol", [1, 2])
def test_every_message_of_a_plain_transaction_is_read(database: Database, protocol: int) -> None:
    """E1: begin, commit, relation, type, origin, logical message, all rows, truncate with its flags."""
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'fine')")
    database.execute("CREATE TABLE a (id int PRIMARY KEY, m mood)")
    database.execute("CREATE TABLE f (id int PRIMARY KEY, note text)")
    database.execute("ALTER TABLE f REPLICA IDENTITY FULL")
    database.execute("SELECT pg_replication_origin_create('upstream')")
    writer = database.connect()
    with listening(database, protocol=protocol, messages=True) as heard:
        writer.execute("SELECT pg_replication_origin_session_setup('upstream')")
        with writer.transaction():
            writer.execute("SELECT pg_replication_origin_xact_setup('0/123', '2024-01-01')")
            writer.execute("INSERT INTO a VALUES (1, 'sad')")
            writer.execute("UPDATE a SET m = 'fine'")
            writer.execute("UPDATE a SET id = 2")
            writer.execute("DELETE FROM a")
            writer.execute("SELECT pg_logical_emit_message(true, 'prefix', 'content')")
            writer.execute("INSERT INTO f VALUES (1, 'x')")
            writer.execute("UPDATE f SET note = NULL")
            writer.execute("DELETE FROM f")
            writer.execute("TRUNCATE a, f RESTART IDENTITY CASCADE")
        writer.execute("SELECT pg_replication_origin_session_reset()")
        found = heard()
        database.execute("SELECT pg_logical_emit_message(false, 'alone', '')")
        alone = heard()
    database.execute("SELECT pg_replication_origin_drop('upstream')")
    (begin,), (commit,), (origin,) = only(found, pg.Begin), only(found, pg.Commit), only(found, pg.Origin)
    assert begin.final_lsn == commit.commit_lsn < commit.end_lsn
    assert begin.commit_time == commit.commit_time
    assert (origin.name, origin.commit_lsn) == ("upstream", Lsn(0x123))
    (mood,) = set(only(found, pg.Type))  # described again before the truncate
    assert (mood.schema, mood.name) == ("public", "mood")
    a, f = sorted(set(only(found, pg.Relation)), key=lambda relation: relation.table)
    assert (a.table, a.identity, f.identity) == (QualifiedTable("public", "a"), "d", "f")
    assert [(c.name, c.type_oid, c.key) for c in a.columns] == [("id", 23, True), ("m", mood.oid, False)]
    assert all(column.key for column in f.columns)
    assert only(found, pg.Insert, pg.Update, pg.Delete) == [
        pg.Insert(a.oid, (b"1", b"sad")),
        pg.Update(a.oid, (b"1", b"fine")),
        pg.Update(a.oid, (b"2", b"fine"), (b"1", None)),
        pg.Delete(a.oid, (b"2", None)),
        pg.Insert(f.oid, (b"1", b"x")),
        pg.Update(f.oid, (b"1", None), (b"1", b"x"), True),
        pg.Delete(f.oid, (b"1", None), True),
    ]
    assert only(found, pg.Truncate) == [pg.Truncate((a.oid, f.oid), True, True)]
    (told,), (untold,) = only(found, pg.LogicalMessage), only(alone, pg.LogicalMessage)
    assert (told.transactional, told.prefix, told.content) == (True, "prefix", b"content")
    assert (untold.transactional, untold.prefix, untold.content) == (False, "alone", b"")


def test_every_message_of_a_streamed_transaction_is_read(database: Database) -> None:
    """E1: start, stop, commit, abort of a part and of the whole, and each message inside with its xid."""
    database.execute(f"ALTER DATABASE {database.name} SET debug_logical_replication_streaming = immediate")
    database.execute("CREATE TYPE mood AS ENUM ('sad')")
    database.execute("CREATE TABLE a (id int PRIMARY KEY, m mood)")
    writer = database.connect(autocommit=False)
    with listening(database, streaming=True, messages=True) as heard:
        writer.execute("INSERT INTO a VALUES (1, 'sad')")
        writer.execute("SAVEPOINT s")
        writer.execute("INSERT INTO a VALUES (2, 'sad')")
        started = heard()  # sent while the transaction runs
        writer.execute("ROLLBACK TO s")
        writer.execute("UPDATE a SET id = 3")
        writer.execute("DELETE FROM a")
        writer.execute("TRUNCATE a")
        writer.execute("SELECT pg_logical_emit_message(true, 'prefix', 'content')")
        writer.commit()
        committed = heard()
        writer.execute("INSERT INTO a VALUES (4, 'sad')")
        begun = heard()
        writer.rollback()
        rolled_back = heard()
    assert {"StreamStart", "Type", "Relation", "Insert", "StreamStop"} == set(kinds(started))
    (first, *later) = only(started, pg.StreamStart)
    assert (first.first, {start.first for start in later} <= {False}) == (True, True)
    one, two = only(started, pg.Insert)
    assert (one.new, two.new) == ((b"1", b"sad"), (b"2", b"sad"))
    assert one.xid == first.xid != two.xid
    assert {message.xid for message in only(started, pg.Relation, pg.Type)} <= {one.xid, two.xid}
    assert only(committed, pg.StreamAbort) == [pg.StreamAbort(first.xid, two.xid)]
    (update,), (delete,) = only(committed, pg.Update), only(committed, pg.Delete)
    assert (update.old, update.new, delete.old) == ((b"1", None), (b"3", b"sad"), (b"3", None))
    (truncate,), (message,) = only(committed, pg.Truncate), only(committed, pg.LogicalMessage)
    assert None not in (update.xid, delete.xid, truncate.xid, message.xid)
    (commit,) = [m for m in only(committed, pg.StreamCommit) if m.xid == first.xid]
    assert commit.commit_lsn < commit.end_lsn
    (again,) = [start for start in only(begun, pg.StreamStart) if start.first]
    assert only(rolled_back, pg.StreamAbort) == [pg.StreamAbort(again.xid, again.xid)]


def test_binary_values_are_read_where_they_are_asked_for(database: Database) -> None:
    """E1: numbers in network order; what has no binary form comes as text."""
    database.execute("CREATE TABLE b (id int PRIMARY KEY, n int8, t text, u int4[])")
    with listening(database, binary=True) as heard:
        database.execute("INSERT INTO b VALUES (1, -2, 'x', NULL)")
        (insert,) = only(heard(), pg.Insert)
    assert insert.new == (b"\0\0\0\1", b"\xff" * 7 + b"\xfe", b"x", None)
    assert [type(value) for value in insert.new[:3]] == [pg.Binary] * 3


BIG = "repeat(md5(random()::text), 400)"  # stored out of line, and not compressible to fit in


def toasted(database: Database, identity: str) -> None:
    database.execute("CREATE TABLE o (id int PRIMARY KEY, big text, note text)")
    database.execute("ALTER TABLE o ALTER big SET STORAGE EXTERNAL")
    database.execute(f"ALTER TABLE o REPLICA IDENTITY {identity}")


def test_an_unchanged_toasted_value_is_missing_and_not_null(database: Database) -> None:
    """E3: in a plain update and in one that changes the key; a value set to null is null."""
    toasted(database, "DEFAULT")
    with recording(database) as recorded:
        database.execute(f"INSERT INTO o SELECT 1, {BIG}, 'a'")
        database.execute("UPDATE o SET note = 'b'")
        database.execute("UPDATE o SET id = 2")
        database.execute("UPDATE o SET big = NULL")
        insert, update, before, after, cleared = recorded.rows()
        changes = recorded.changes(columns={QualifiedTable("public", "o"): ["id", "big"]})
    assert len(insert.values["big"]) == 12_800
    assert (update.values, update.missing) == ({"id": 1, "big": None, "note": "b"}, ("big",))
    assert (before.values["id"], before.missing) == (1, ("big", "note"))
    assert (after.values, after.missing) == ({"id": 2, "big": None, "note": "b"}, ("big",))
    assert (cleared.values["big"], cleared.missing) == (None, ())
    assert [change.new and change.new.keys() for change in changes] == [
        {"id", "big"}, {"id"}, {"id"}, {"id", "big"},
    ]  # fmt: skip


def test_an_unchanged_toasted_value_is_filled_in_from_a_full_old_row(database: Database) -> None:
    """E3: the server sent it there."""
    toasted(database, "FULL")
    with recording(database) as recorded:
        database.execute(f"INSERT INTO o SELECT 1, {BIG}, 'a'")
        database.execute("UPDATE o SET id = 2, note = NULL")
        insert, before, after = recorded.rows()
        ((stored,),) = database.execute("SELECT big FROM o")
    assert insert.values["big"] == before.values["big"] == after.values["big"] == stored
    assert (before.missing, after.missing) == ((), ())
    assert after.values == {"id": 2, "big": stored, "note": None}


def test_a_toasted_key_is_known_in_the_new_row(database: Database) -> None:
    """E3: the server sends it in the old identity only, where the update did not touch it."""
    database.execute("CREATE TABLE o (k text PRIMARY KEY, note text)")
    database.execute("ALTER TABLE o ALTER k SET STORAGE EXTERNAL")
    with listening(database) as heard, recording(database) as recorded:
        database.execute("INSERT INTO o SELECT repeat(md5('x'), 78), 'a'")  # fits an index, not a row
        database.execute("UPDATE o SET note = 'b'")
        (update,) = only(heard(), pg.Update)
        changes, rows = recorded.changes(), [row for row in recorded.rows() if row.table == "public.o"]
        ((stored,),) = database.execute("SELECT k FROM o")
    assert (update.new[0], update.old) == (pg.UNCHANGED, (stored.encode(), None))
    assert (changes[1].new, changes[1].old) == ({"k": stored}, {"k": stored})
    assert (rows[-1].values, rows[-1].missing) == ({"k": stored, "note": "b"}, ())


def shapes(rows: list[Row]) -> list[dict[str, Any]]:
    return [row.values for row in rows]


def test_rows_keep_the_shape_of_their_time(database: Database) -> None:
    """E5: added, dropped, renamed and retyped columns, between transactions and several times inside of one."""
    database.execute("CREATE TABLE s (id int PRIMARY KEY, a text)")
    writer = database.connect(autocommit=False)
    with recording(database) as recorded:
        database.execute("INSERT INTO s VALUES (1, '1')")
        database.execute("ALTER TABLE s ADD b int DEFAULT 7")
        database.execute("INSERT INTO s VALUES (2, '2')")
        writer.execute("INSERT INTO s VALUES (3, '3', 3)")
        writer.execute("ALTER TABLE s DROP b")
        writer.execute("INSERT INTO s VALUES (4, '4')")
        writer.execute("ALTER TABLE s RENAME a TO c")
        writer.execute("INSERT INTO s VALUES (5, '5')")
        writer.execute("ALTER TABLE s ALTER c TYPE int USING c::int")
        writer.execute("INSERT INTO s VALUES (6, 6)")
        writer.execute("UPDATE s SET c = 60 WHERE id = 6")
        writer.commit()
        database.execute("DELETE FROM s WHERE id = 1")
        streaming, plain = recorded.rows(), recorded.rows(streaming=False)
        changes = recorded.changes(columns={QualifiedTable("public", "s"): ["id", "a", "b", "c"]})
    assert shapes(streaming) == [
        {"id": 1, "a": "1"},
        {"id": 2, "a": "2", "b": 7},
        {"id": 3, "a": "3", "b": 3},
        {"id": 4, "a": "4"},
        {"id": 5, "c": "5"},
        {"id": 6, "c": 6},
        {"id": 6, "c": 60},
        {"id": 1, "c": None},
    ]
    assert streaming == plain
    assert [change.new for change in changes[:-1]] == shapes(streaming)[:-1]


def test_a_table_dropped_and_made_again_is_another(database: Database) -> None:
    """E5: rows written before come with the shape of the one that is gone."""
    database.execute("CREATE TABLE s (id int PRIMARY KEY, a text)")
    with recording(database) as recorded:
        database.execute("INSERT INTO s VALUES (1, 'x')")
        database.execute("DROP TABLE s")
        database.execute("CREATE TABLE s (id text PRIMARY KEY)")
        database.execute("INSERT INTO s VALUES ('y')")
        assert shapes(recorded.rows()) == [{"id": 1, "a": "x"}, {"id": "y"}]


NAMES = ["t", "T", "a.b", 'say "hi"', "größe", "表", "it's", "select", " ", "x" * 63]


def test_names_are_taken_as_they_are(database: Database) -> None:
    """E6: mixed case, dots, quotes, letters beyond ASCII; the same name in two schemas."""
    schemas = ["public", "Other.Schema"]
    database.execute('CREATE SCHEMA "Other.Schema"')
    tables = [QualifiedTable(schema, name) for schema in schemas for name in NAMES]
    for table in tables:
        columns = ", ".join('"' + name.replace('"', '""') + '" text' for name in NAMES)
        database.execute(f"CREATE TABLE {table.sql} (id int PRIMARY KEY, {columns})")
    with recording(database) as recorded:
        for number, table in enumerate(tables):
            database.execute(f"INSERT INTO {table.sql} VALUES ({number})")
        changes, rows = recorded.changes(), recorded.rows()
    assert [(change.table, change.new) for change in changes] == [(table, {"id": n}) for n, table in enumerate(tables)]
    assert [row.table for row in rows] == [str(table) for table in tables]
    assert all(list(row.values) == ["id", *NAMES] for row in rows)


@pytest.mark.parametrize("name", ["Sales.Orders", '"Sales"."Orders"', '"a.b"', "ÄRGER", "Größe.Maß", '"x""y"."Z"'])
def test_a_table_name_is_folded_as_the_server_folds_it(db18: Database, name: str) -> None:
    """E6: the server is asked."""
    ((parts,),) = db18.execute("SELECT parse_ident(%s)", name)
    assert list(QualifiedTable.parse(name))[-len(parts) :] == parts


def test_a_table_of_1600_columns(database: Database) -> None:
    """E6: as wide as a table can be; nulls, and some values."""
    names = [f"c{at}" for at in range(1599)]
    database.execute(f"CREATE TABLE w (id int PRIMARY KEY, {', '.join(f'{name} bool' for name in names)})")
    with recording(database) as recorded:
        database.execute("INSERT INTO w (id, c0, c1598) SELECT i, i % 2 = 0, true FROM generate_series(1, 20) i")
        database.execute("UPDATE w SET id = -id, c800 = false WHERE id = 1")
        rows, changes = recorded.rows(), recorded.changes()
    assert len(rows) == 22
    assert len(rows[0].values) == 1600
    assert [row.values["c0"] for row in rows[:20]] == [at % 2 == 0 for at in range(1, 21)]
    assert {row.values["c1598"] for row in rows[:20]} == {True}
    assert rows[20].missing == tuple(names)
    assert (rows[21].values["id"], rows[21].values["c800"]) == (-1, False)
    assert (changes[-1].new, changes[-1].old) == ({"id": -1}, {"id": 1})


def test_a_table_without_columns(database: Database) -> None:
    """E6: as narrow as a table can be; each row counts."""
    database.execute("CREATE TABLE n ()")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with recording(database) as recorded:
        database.execute("INSERT INTO n DEFAULT VALUES")
        with database.connect(autocommit=False) as writer:
            writer.execute("INSERT INTO n DEFAULT VALUES")
            writer.execute("INSERT INTO t VALUES (1)")
            writer.execute("INSERT INTO n DEFAULT VALUES")
        rows, changes = recorded.rows(), recorded.changes()
    assert [(row.table, row.seq) for row in rows] == [
        ("public.n", 0),
        ("public.n", 0),
        ("public.t", 1),
        ("public.n", 2),
    ]
    assert [(str(change.table), change.new) for change in changes] == [
        ("public.n", {}), ("public.n", {}), ("public.t", {"id": 1}), ("public.n", {}),
    ]  # fmt: skip


@pytest.mark.parametrize("via_root", [True, False], ids=["root", "leaves"])
def test_partitions_come_as_the_publication_speaks_of_them(database: Database, via_root: bool) -> None:
    """E7: by the root or by the leaves; rows that move between them; partitions attached and detached."""
    database.execute("CREATE TABLE p (id int, part int, note text, PRIMARY KEY (id, part)) PARTITION BY LIST (part)")
    database.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)")
    # Its columns stand in another order, as after a life of its own.
    database.execute("CREATE TABLE p2 (note text, part int NOT NULL, id int NOT NULL, PRIMARY KEY (id, part))")
    database.execute("ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2)")
    option = f" WITH (publish_via_partition_root = {str(via_root).lower()})"
    with recording(database, f"FOR TABLE p{option}") as recorded:
        database.execute("INSERT INTO p VALUES (1, 1, 'a'), (2, 2, 'b')")
        database.execute("UPDATE p SET note = 'c' WHERE id = 2")
        database.execute("UPDATE p SET part = 2 WHERE id = 1")
        database.execute("CREATE TABLE p3 (id int, part int, note text, PRIMARY KEY (id, part))")
        database.execute("ALTER TABLE p ATTACH PARTITION p3 FOR VALUES IN (3)")
        database.execute("INSERT INTO p3 VALUES (3, 3, 'd')")
        database.execute("ALTER TABLE p DETACH PARTITION p2")
        database.execute("INSERT INTO p2 (id, part, note) VALUES (4, 2, 'e')")
        database.execute("TRUNCATE p")
        rows, plain = recorded.rows(), recorded.rows(streaming=False)
        changes = recorded.changes()
    expected = [
        ("p1", "insert", 1, 1), ("p2", "insert", 2, 2), ("p2", "update_postimage", 2, 2),
        ("p1", "delete", 1, 1), ("p2", "insert", 1, 2), ("p3", "insert", 3, 3),
    ]  # fmt: skip
    leaves = [(row.table, row.change_type, row.values["id"], row.values["part"]) for row in rows]
    truncated = ["public.p"] if via_root else ["public.p1", "public.p3"]
    assert leaves == [
        *((f"public.{'p' if via_root else leaf}", *rest) for leaf, *rest in expected),
        *((table, "truncate", None, None) for table in truncated),
    ]
    assert rows == plain
    assert rows[1].values == {"id": 2, "part": 2, "note": "b"}
    assert [change.op for change in changes][-len(truncated) :] == [Op.TRUNCATE] * len(truncated)


def test_a_column_list_sends_what_it_lists(database: Database) -> None:
    """E8: also where a listed column is altered, and the rest is."""
    database.execute("CREATE TABLE c (id int PRIMARY KEY, secret text, link int, note text)")
    with recording(database, "FOR TABLE c (link, id)") as recorded:
        database.execute("INSERT INTO c VALUES (1, 's', 10, 'n')")
        database.execute("UPDATE c SET secret = 't'")
        database.execute("UPDATE c SET id = 2, link = 20")
        database.execute("ALTER TABLE c ADD more int")
        database.execute("DELETE FROM c")
        rows, changes = recorded.rows(), recorded.changes()
    assert [(row.change_type, row.values, row.missing) for row in rows] == [
        ("insert", {"id": 1, "link": 10}, ()),
        ("update_postimage", {"id": 1, "link": 10}, ()),
        ("update_preimage", {"id": 1, "link": None}, ("link",)),
        ("update_postimage", {"id": 2, "link": 20}, ()),
        ("delete", {"id": 2, "link": None}, ("link",)),
    ]
    assert [(change.new, change.old) for change in changes] == [
        ({"id": 1}, None), ({"id": 1}, None), ({"id": 2}, {"id": 1}), (None, {"id": 2}),
    ]  # fmt: skip


def test_a_row_filter_turns_updates_into_what_the_filter_sees(database: Database) -> None:
    """E8: a row that enters is an insert, one that leaves a delete; others are not sent."""
    database.execute("CREATE TABLE r (id int PRIMARY KEY, v int)")
    database.execute("ALTER TABLE r REPLICA IDENTITY FULL")
    with recording(database, "FOR TABLE r WHERE (v > 10)") as recorded:
        database.execute("INSERT INTO r VALUES (1, 5), (2, 20), (3, NULL)")
        database.execute("UPDATE r SET v = 15 WHERE id = 1")
        database.execute("UPDATE r SET v = 25 WHERE id = 2")
        database.execute("UPDATE r SET v = 1 WHERE id = 2")
        database.execute("DELETE FROM r")
        rows = recorded.rows(RowShape(preimage=True))
    assert [(row.change_type, row.values["id"], row.values["v"]) for row in rows] == [
        ("insert", 2, 20),
        ("insert", 1, 15),
        ("update_preimage", 2, 20),
        ("update_postimage", 2, 25),
        ("delete", 2, 25),
        ("delete", 1, 15),
    ]


def test_a_publication_of_some_operations_sends_those(database: Database) -> None:
    """E8: inserts and truncates only; positions count what is sent."""
    database.execute("CREATE TABLE r (id int PRIMARY KEY)")
    with recording(database, "FOR ALL TABLES WITH (publish = 'insert, truncate')") as recorded:
        with database.connect(autocommit=False) as writer:
            writer.execute("INSERT INTO r VALUES (1)")
            writer.execute("UPDATE r SET id = 2")
            writer.execute("DELETE FROM r")
            writer.execute("INSERT INTO r VALUES (3)")
            writer.execute("TRUNCATE r")
        changes = recorded.changes()
    assert [(change.op, change.new, change.position.row) for change in changes] == [
        (Op.INSERT, {"id": 1}, 0), (Op.INSERT, {"id": 3}, 1), (Op.TRUNCATE, None, 2),
    ]  # fmt: skip


def test_lsns_are_spelled_and_ordered_as_the_server_does(database: Database, rng: random.Random) -> None:
    """E9: both ends of the range and a hundred between."""
    lsns = [Lsn.ZERO, Lsn.MAX, *(Lsn(rng.getrandbits(rng.randint(1, 64))) for _ in range(100))]
    rows = database.execute(
        "SELECT l::text AS shown FROM unnest(%s::pg_lsn[]) AS l ORDER BY l", [str(lsn) for lsn in lsns]
    )
    assert [Lsn.parse(text) for (text,) in rows] == sorted(lsns)
    assert [text for (text,) in rows] == [str(lsn) for lsn in sorted(lsns)]


def test_the_time_of_a_commit_is_the_servers(database: Database) -> None:
    """E9: to the microsecond, between the moments that the server names before and after it."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with recording(database) as recorded:
        ((before,),) = database.execute("SELECT clock_timestamp()")
        database.execute("INSERT INTO t VALUES (1)")
        ((after,),) = database.execute("SELECT clock_timestamp()")
        tables = [table for batch in recorded.batches() for table in batch.tables if table.table.name == "t"]
    (moment,) = tables[0].rows.column("_commit_timestamp").to_pylist()
    assert before <= moment <= after
