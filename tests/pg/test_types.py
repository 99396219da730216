"""Values of every type, with Postgres itself as the judge: the text it prints, and its driver's reading of it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa
import pytest

from penstock.errors import OperatorError
from penstock.model import QualifiedTable, SnapshotTable
from penstock.postgres.capture import WalChangeCapture
from penstock.postgres.rows import RowShape
from tests.fixtures.databases import Database
from tests.fixtures.recordings import Recording, recording

# The session settings under which the server prints a value; those of every connection of Penstock's.
PRINTED = "-c datestyle=ISO -c timezone=UTC -c extra_float_digits=3 -c intervalstyle=iso_8601 -c bytea_output=hex"

SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'it''s "fine"', 'größe');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN short AS char(4);
CREATE TYPE pair AS (a int, b text);
"""

# A column of each type, named after it, with values as SQL writes them. NULL is a value of each.
COLUMNS: dict[str, tuple[str, list[str]]] = {
    "bool": ("bool", ["true", "false"]),
    "int2": ("int2", ["'-32768'", "32767", "0"]),
    "int4": ("int4", ["'-2147483648'", "2147483647"]),
    "int8": ("int8", ["'-9223372036854775808'", "9223372036854775807"]),
    "oid": ("oid", ["0", "4294967295"]),
    "float4": ("float4", ["'NaN'", "'Infinity'", "'-Infinity'", "3.4028235e38", "1e-45", "0.1", "'-0'"]),
    "float8": ("float8", ["'NaN'", "'Infinity'", "'-Infinity'", "1.7976931348623157e308", "5e-324", "0.1", "'-0'"]),
    "numeric": ("numeric", ["'NaN'", "'Infinity'", "'-Infinity'", "123456789012345678901234567890." + "1234567890" * 3,
                            "1.0", "1.00", "0.000000", "'-0.1'", "1e100", "1e-100"]),
    "numeric_p_s": ("numeric(10,3)", ["'NaN'", "1", "1.5", "'-9999999.999'", "0.0005", "1234567.89"]),
    "numeric_38": ("numeric(38,10)", ["'NaN'", "1234567890123456789012345678.0123456789"]),
    "numeric_39": ("numeric(39,1)", ["'NaN'", "12345678901234567890123456789012345678.9"]),
    "numeric_rounded": ("numeric(3,-2)", ["12345", "99900"]),
    "numeric_small": ("numeric(2,5)", ["0.00012"]),
    "text": ("text", ["''", "'NULL'", "'it''s \"quoted\" \\ back'", "'🙂 emoji, 4 bytes: 𝔘'", "E'tab\\tline\\nend'"]),
    "varchar": ("varchar(9)", ["''", "'a  '", "'größe'"]),
    "char_n": ("char(6)", ["''", "'a'", "'größe'", "'sixsix'"]),
    "char": ('"char"', ["'x'", "'\\200'", "''"]),
    "name": ("name", ["'some_name'"]),
    "bytea": ("bytea", ["''", "'\\x00ff5c27'", "convert_to('\\x41', 'UTF8')", "decode(repeat('00', 300), 'hex')"]),
    "json": ("json", ["'null'", "'\"null\"'", "'{\"a\" :  1, \"a\": 2}'", "'[]'"]),
    "jsonb": ("jsonb", ["'null'", "'{\"b\": 1.0, \"a\": \"\\u00e9\"}'", "'1e400'"]),
    "jsonpath": ("jsonpath", ["'$.a[*] ? (@ > 1)'"]),
    "date": ("date", ["'infinity'", "'-infinity'", "'0044-03-15 BC'", "'4714-11-24 BC'", "'0001-01-01'", "'9999-12-31'",
                      "'10000-01-01'", "'5874897-12-31'", "'1970-01-01'", "'2000-02-29'"]),
    "timestamp": ("timestamp", ["'infinity'", "'-infinity'", "'0044-03-15 12:00 BC'", "'0001-01-01'",
                                "'2024-02-29 24:00'", "'9999-12-31 23:59:59.999999'", "'10000-01-01'",
                                "'294276-12-31 23:59:59.999999'",
                                "'1969-12-31 23:59:59.999999'", "'2000-01-01 00:00:00.1'"]),
    "timestamp_3": ("timestamp(3)", ["'2024-01-01 00:00:00.123456'", "'infinity'"]),
    "timestamptz": ("timestamptz", ["'infinity'", "'-infinity'", "'0044-03-15 12:00+05 BC'", "'0001-01-01 00:00+00'",
                                    "'9999-12-31 23:59:59.999999+00'", "'9999-12-31 23:59:59-01'",
                                    "'2024-02-29 12:00+05:45'", "'1900-01-01 00:00:00.000001+00'"]),
    "time": ("time", ["'00:00'", "'24:00'", "'23:59:59.999999'", "'00:00:00.1'"]),
    "timetz": ("timetz", ["'24:00:00-15:59:59'", "'00:00+15:59'", "'12:34:56.7+05:45'"]),
    "interval": ("interval", ["'1 year -2 mons 3 days -04:05:06.789'", "'0'", "'178000000 years'", "'1 day -24:00'"]),
    "uuid": ("uuid", ["'00000000-0000-0000-0000-000000000000'", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"]),
    "mood": ("mood", ["'sad'", "'it''s \"fine\"'", "'größe'"]),
    "positive": ("positive", ["1", "2147483647"]),
    "short": ("short", ["'a'", "'four'"]),
    "pair": ("pair", ["(1, 'a, \"b\"')::pair", "(NULL, NULL)::pair", "(2, '')::pair"]),
    "int4range": ("int4range", ["'empty'", "'[1,5]'", "'(,)'", "'[3,3]'"]),
    "tstzrange": ("tstzrange", ["'[2024-01-01 00:00+02, infinity)'", "'(,2024-01-01 00:00+00]'"]),
    "int8multirange": ("int8multirange", ["'{}'", "'{[1,3), [5,9)}'"]),
    "int4_array": ("int4[]", ["'{}'", "'{1,NULL,3}'", "'{{1,2},{3,4}}'", "'[0:1]={7,8}'",
                              "'[-2:-1][5:6]={{1,2},{3,4}}'"]),
    "text_array": ("text[]", ["'{NULL,\"NULL\",\"\"}'", "'{\"a,b\",\"{c}\",\"d\\\"e\",\"\\\\\"}'", "'{{a},{b}}'"]),
    "mood_array": ("mood[]", ["'{sad}'", "ARRAY['größe', NULL]::mood[]"]),
    "pair_array": ("pair[]", ["ARRAY[(1, 'a'), (2, NULL)]::pair[]"]),
    "money": ("money", ["'-92233720368547758.08'", "'12.34'", "0"]),
    "inet": ("inet", ["'192.168.0.1/24'", "'::1'", "'::ffff:1.2.3.4/128'"]),
    "cidr": ("cidr", ["'10.0.0.0/8'", "'::/0'"]),
    "macaddr": ("macaddr", ["'08-00-2b-01-02-03'"]),
    "macaddr8": ("macaddr8", ["'08:00:2b:01:02:03:04:05'"]),
    "bit": ("bit(5)", ["'10101'"]),
    "varbit": ("varbit", ["''", "'1'", "'0000000001'"]),
    "xml": ("xml", ["convert_to('<a>ü &amp; <b/></a>', 'UTF8')::xml", "''::bytea::xml"]),
    "tsvector": ("tsvector", ["''", "'fat:1A,2B rat:5 ''it''''s'''"]),
    "tsquery": ("tsquery", ["'fat & (rat | !cat:ab)'"]),
    "point": ("point", ["'(1.5,-2)'", "'(NaN,Infinity)'"]),
    "line": ("line", ["'{1,2,3}'"]),
    "lseg": ("lseg", ["'[(1,2),(3,4)]'"]),
    "box": ("box", ["'(3,4),(1,2)'"]),
    "path": ("path", ["'[(1,2),(3,4)]'", "'((1,2),(3,4))'"]),
    "polygon": ("polygon", ["'((1,2),(3,4),(5,0))'"]),
    "circle": ("circle", ["'<(1,2),3.5>'"]),
    "pg_lsn": ("pg_lsn", ["'16/B374D848'"]),
    "xid8": ("xid8", ["'18446744073709551615'"]),
    "txid_snapshot": ("pg_snapshot", ["'10:20:10,14,15'"]),
    "regclass": ("regclass", ["'pg_class'", "0"]),
    "tid": ("tid", ["'(4294967295,65535)'"]),
}  # fmt: skip


# Those that have a typed form; every other is a text.
TYPED = {
    "bool": pa.bool_(), "int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64(), "oid": pa.int64(),
    "float4": pa.float32(), "float8": pa.float64(), "bytea": pa.binary(), "date": pa.date32(),
    "numeric_p_s": pa.decimal128(10, 3), "numeric_38": pa.decimal128(38, 10),
    "timestamp": pa.timestamp("us"), "timestamp_3": pa.timestamp("us"), "timestamptz": pa.timestamp("us", "UTC"),
}  # fmt: skip


def available(database: Database) -> dict[str, tuple[str, list[str]]]:
    """The columns that this server can hold: all of them, and hstore where it is installed."""
    found = dict(COLUMNS)
    if database.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'hstore'"):
        database.execute("CREATE EXTENSION hstore")
        found["hstore"] = ("hstore", ["''", '\'a=>1, b=>NULL, "c d"=>"NULL"\''])
    # A server that was built without an XML parser cannot read XML, but holds and prints it.
    database.execute("CREATE CAST (bytea AS xml) WITHOUT FUNCTION")
    return found


def fill(database: Database, columns: dict[str, tuple[str, list[str]]]) -> None:
    """A table `v` with a column of each type, and rows in which every value stands once, the last row all null."""
    database.execute(SETUP)
    described = ", ".join(f'"{name}" {kind}' for name, (kind, _) in columns.items())
    database.execute(f"CREATE TABLE v (id int PRIMARY KEY, gone text, {described})")
    database.execute("ALTER TABLE v DROP COLUMN gone")


def insert(database: Database, columns: dict[str, tuple[str, list[str]]]) -> None:
    for at in range(max(len(values) for _, values in columns.values()) + 1):
        row = [values[at] if at < len(values) else "NULL" for _, values in columns.values()]
        database.execute(f"INSERT INTO v VALUES ({', '.join([str(at), *row])})".replace("%", "%%"))


def printed(database: Database, columns: list[str]) -> list[dict[str, str | None]]:
    """Every value as Postgres prints it."""
    shown = ", ".join(
        f'CASE WHEN "{name}" IS NOT NULL OR "{name}"::text <> \'\' THEN format(\'%%s\', "{name}") END'
        for name in columns
    )
    with psycopg.connect(database.url, options=PRINTED) as connection:
        rows = connection.execute(f"SELECT {shown} FROM v ORDER BY id", []).fetchall()
    return [dict(zip(columns, row, strict=True)) for row in rows]


def read(database: Database, name: str) -> list[Any]:
    """Every value of a column as the driver gives it; what it cannot hold is an Ellipsis."""
    found = []
    shown = f'"{name}"' + ("::float8" if name == "float4" else "")  # Python has no other float
    with psycopg.connect(database.url, options=PRINTED, autocommit=True) as connection:
        ids = connection.execute("SELECT id FROM v ORDER BY id").fetchall()
        for (one,) in ids:
            try:
                found += connection.execute(f"SELECT {shown} FROM v WHERE id = {one}").fetchone()
            except psycopg.DataError:
                found.append(...)
    return found


@pytest.fixture
def columns(database: Database) -> dict[str, tuple[str, list[str]]]:
    found = available(database)
    fill(database, found)
    return found


def test_every_value_is_exactly_what_postgres_holds(
    database: Database, columns: dict[str, tuple[str, list[str]]]
) -> None:
    """E4: typed where the type is exact, the text that Postgres prints otherwise; null is null, in both forms."""
    with recording(database) as recorded:
        insert(database, columns)
        texts = printed(database, list(columns))
        schema, rows = _read_whole(recorded)
        thin = recorded.changes(columns={QualifiedTable("public", "v"): ["id", *columns]})
    assert len(rows) == len(thin) == len(texts)
    assert {name: schema.field(name).type for name in columns} == {n: TYPED.get(n, pa.string()) for n in columns}
    wrong = [name for name in columns if not _exact(database, name, schema, rows, texts)]
    assert not wrong
    wrong = [
        name for name in columns if not _exact_python(database, name, [change.new or {} for change in thin], texts)
    ]
    assert not wrong
    assert "hstore" in columns or major(database) < 18, "the packaged 18 has it"


def major(database: Database) -> int:
    return int(database.execute("SELECT current_setting('server_version_num')::int / 10000")[0][0])


def _read_whole(recorded: Recording) -> tuple[pa.Schema, list[Any]]:
    batches = list(recorded.batches(RowShape(unrepresentable="null")))
    (schema,) = {table.rows.schema for batch in batches for table in batch.tables if table.table.name == "v"}
    return schema, recorded.rows()


def _exact(
    database: Database, name: str, schema: pa.Schema, rows: list[Any], texts: list[dict[str, str | None]]
) -> bool:
    """Whether a column of Arrow rows holds what the server does."""
    found = [row.values[name] for row in rows]
    missing = [name in row.missing for row in rows]
    if schema.field(name).type == pa.string():
        return found == [text[name] for text in texts] and not any(missing)
    expected = read(database, name)
    return _same(found, [None if value is ... else value for value in expected]) and missing == [
        value is ... or _is_nan_numeric(value) for value in expected
    ]


def _is_nan_numeric(value: Any) -> bool:
    return isinstance(value, Decimal) and value.is_nan()


def _same(found: list[Any], expected: list[Any]) -> bool:
    # As texts: 1.50 is not 1.5, nan is nan, -0 is not 0. A decimal column has no NaN: it is null and missing.
    expected = [None if _is_nan_numeric(value) else value for value in expected]
    return [_shown(value) for value in found] == [_shown(value) for value in expected]


def _shown(value: Any) -> str:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) and value.tzinfo else repr(value)


def _exact_python(database: Database, name: str, rows: list[Any], texts: list[dict[str, str | None]]) -> bool:
    """Whether Python values are the driver's, or else the exact text."""
    found = [row[name] for row in rows]
    typed = {type(value) for value in found} - {str, type(None)}
    if not typed:
        return found == [text[name] for text in texts]
    expected = [text[name] if value is ... else value for value, text in zip(read(database, name), texts, strict=True)]
    if name.startswith("numeric_p") or name == "numeric_38":  # a NaN there has no typed form
        expected = [str(value) if _is_nan_numeric(value) else value for value in expected]
    return [_shown(value) for value in found] == [_shown(value) for value in expected]


def test_a_snapshot_gives_the_values_that_the_stream_gives(
    database: Database, columns: dict[str, tuple[str, list[str]]]
) -> None:
    """E4: one table of types for both."""
    table, names = QualifiedTable("public", "v"), ["id", *columns]
    with recording(database) as recorded:
        insert(database, columns)
        streamed = [change.new for change in recorded.changes(columns={table: names})]
        capture = WalChangeCapture(recorded.config(), database.url)
        found = [change.new for change in capture.snapshot([SnapshotTable(table, names)])]
    assert repr(found) == repr(streamed)


def test_a_value_that_its_column_cannot_hold_is_an_error_until_null_is_asked_for(db18: Database) -> None:
    """E4, E104: the column is named, the value is not; the way on is in the hint."""
    db18.execute("CREATE TABLE v (id int PRIMARY KEY, day date)")
    with recording(db18) as recorded:
        db18.execute("INSERT INTO v VALUES (1, '2024-02-29'), (2, 'infinity')")
        with pytest.raises(OperatorError, match=r"column day of public\.v") as refused:
            recorded.rows(RowShape())
        assert "unrepresentable" in refused.value.hint
        first, second = recorded.rows(RowShape(unrepresentable="null"))
    assert (first.values["day"], first.missing) == (date(2024, 2, 29), ())
    assert (second.values["day"], second.missing) == (None, ("day",))


def test_keys_of_any_type_are_python_values_in_thin_changes(database: Database) -> None:
    """E4: in the new and in the old identity, also where one has no typed form."""
    database.execute(
        "CREATE TABLE k (n numeric, d date, u uuid, b bytea, f float8, t timestamptz, i interval, note text,"
        " PRIMARY KEY (n, d, u, b, f, t, i))"
    )
    uuid = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    with recording(database) as recorded:
        database.execute(
            "INSERT INTO k VALUES (1.50, 'infinity', %s, '\\x00', '-0', '2024-02-29 12:00+02', '1 day', 'x')", uuid
        )
        database.execute("UPDATE k SET n = 'NaN', d = '2024-02-29'")
        database.execute("DELETE FROM k")
        insert, update, delete = recorded.changes()
    moment = datetime(2024, 2, 29, 10, tzinfo=UTC)
    first = {"n": Decimal("1.50"), "d": "infinity", "u": UUID(uuid), "b": b"\0", "f": -0.0, "t": moment, "i": "P1D"}
    second = {**first, "n": Decimal("NaN"), "d": date(2024, 2, 29)}
    assert insert.new == first
    assert str(insert.new["n"]) == "1.50"
    assert (insert.old, update.old) == (None, first)
    assert update.new is not None
    assert update.new["n"].is_nan()
    assert {**update.new, "n": 0} == {**second, "n": 0}
    assert delete.new is None
    assert delete.old is not None
    assert {**delete.old, "n": 0} == {**second, "n": 0}


def test_generated_columns_come_where_the_server_publishes_them(database: Database) -> None:
    """E4: from 18 on, if the publication says so; elsewhere they are not part of the row."""
    database.execute("CREATE TABLE g (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED, note text)")
    published = major(database) >= 18
    options = " WITH (publish_generated_columns = stored)" if published else ""
    with recording(database, f"FOR TABLE g{options}") as recorded:
        database.execute("INSERT INTO g (id, note) VALUES (21, 'x')")
        database.execute("UPDATE g SET id = 22")
        rows = recorded.rows()
    twice = [{"twice": value} if published else {} for value in (42, None, 44)]
    assert [row.values for row in rows] == [
        {"id": 21, **twice[0], "note": "x"}, {"id": 21, **twice[1], "note": None}, {"id": 22, **twice[2], "note": "x"},
    ]  # fmt: skip
