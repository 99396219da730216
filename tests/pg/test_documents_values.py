"""Values in documents, exact to the last digit, and the shape of the bytes."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import Any

import pytest

from penstock.document.build import PgDocumentBuilder
from penstock.document.reading import read_schema
from penstock.document.spec import SourceSpec
from penstock.errors import ConfigError, PrivilegeError
from tests.fixtures.databases import Database
from tests.fixtures.stories import Story

LONG = base64.b64encode(b"\x00\xff" + b"a" * 90).decode()  # Postgres would break the line
# column type, leaf, SQL value, JSON text
VALUES = [
    ("smallint", "short", "-32768", "-32768"),
    ("bigint", "long", "9223372036854775807", "9223372036854775807"),
    ("boolean", "boolean", "true", "true"),
    ("real", "float", "0.1", "0.1"),
    ("real", "float", "'NaN'", "null"),
    ("double precision", "double", "1e300", "1e+300"),
    ("double precision", "double", "0.1::float8 + 0.2", "0.30000000000000004"),
    ("double precision", "double", "'-Infinity'", "null"),
    ("numeric", "decimal", "12345678901234567890.123456789010", "12345678901234567890.123456789010"),
    ("numeric(6,2)", "decimal", "1.5", "1.50"),
    ("numeric", "decimal", "'NaN'", "null"),
    ("numeric", "decimal", "'Infinity'", "null"),
    ("money", "decimal", "1234.5", "1234.50"),
    ("text", "text", r"""E'q"uote\\ \n\t\x01é€😀</script>'""", r'''"q\"uote\\ \n\t\u0001é€😀</script>"'''),
    ("text", "text", "''", '""'),
    ("character(4)", "keyword", "'ab'", '"ab  "'),
    ("name", "keyword", "'n'", '"n"'),
    ("mood", "enum", "'very good'", '"very good"'),
    ("uuid", "uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", '"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"'),
    ("date", "date", "'2026-01-02'", '"2026-01-02"'),
    ("date", "date", "'0044-03-15 BC'", '"0044-03-15 BC"'),
    ("date", "date", "'infinity'", "null"),
    ("timestamptz", "timestamp", "'2026-01-02 03:04:05.123456+02'", '"2026-01-02T01:04:05.123456Z"'),
    ("timestamptz", "timestamp", "'2026-01-02 03:04:05.5Z'", '"2026-01-02T03:04:05.5Z"'),
    ("timestamptz", "timestamp", "'2026-01-02 03:04:05Z'", '"2026-01-02T03:04:05Z"'),
    ("timestamptz", "timestamp", "'-infinity'", "null"),
    ("timestamptz", "timestamp", "'12026-01-02 03:04:05Z'", '"12026-01-02T03:04:05Z"'),
    ("timestamp", "timestamp", "'2026-01-02 03:04:05.000001'", '"2026-01-02T03:04:05.000001"'),
    ("time", "timestamp", "'03:04:05.5'", '"03:04:05.5"'),
    ("timetz", "timestamp", "'03:04:05+02'", '"03:04:05+02"'),
    (
        "bytea",
        "binary",
        r"'\x00ff'::bytea || repeat('a', 90)::bytea",
        '"AP9' + "hYWFh" * 0 + "h" + "YWFh" * 29 + 'YWE="',
    ),
    ("bytea", "binary", r"'\x'", '""'),
    ("json", "json", """E'{"b": 1,\\n "a": [1.0, "x\\\\n"],\\r\\n "b": 2}'""", None),
    ("jsonb", "json", """'{"b": 1.10, "a": null}'""", '{"a": null, "b": 1.10}'),
    ("jsonb", "json", "'null'", "null"),
    ("text[]", "keyword", """ARRAY['a"b', NULL, '']""", '["a\\"b",null,""]'),
    ("text[]", "keyword", "'{}'", "[]"),
    ("bigint[]", "long", "'{1,NULL,9223372036854775807}'", "[1,null,9223372036854775807]"),
    ("float8[]", "double", "'{1.5,NaN,NULL}'", "[1.5,null,null]"),
    ("numeric[]", "decimal", "'{1.10,NaN}'", "[1.10,null]"),
    ("timestamptz[]", "timestamp", "'{2026-01-02 03:04:05Z,infinity}'", '["2026-01-02T03:04:05Z",null]'),
    ("timestamptz[]", "timestamp", "'{}'", "[]"),
    ("bytea[]", "binary", r"ARRAY['\x00'::bytea]", '["AA=="]'),
    ("uuid[]", "uuid", "'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'", '["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]'),
    ("moment", "timestamp", "'2026-01-02 03:04:05Z'", '"2026-01-02T03:04:05Z"'),
    ("moment", "timestamp", "'infinity'", "null"),
]
TYPES = """
CREATE TYPE mood AS ENUM ('bad', 'very good');
CREATE DOMAIN instant AS timestamptz;
CREATE DOMAIN moment AS instant;
"""


def builder(database: Database, **schemas: str) -> PgDocumentBuilder:
    spec = SourceSpec([read_schema(f"version: 1\n{text}", index) for index, text in schemas.items()])
    return PgDocumentBuilder(spec, database.url)


def bodies(built: PgDocumentBuilder, index: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for some in built.build_range(index, None, None):
        found.update(zip(some.ids, [(body or b"").decode() for body in some.bodies], strict=True))
    return found


def test_every_type_has_its_json(story: Story) -> None:
    """E70: digits, zones, escapes and what JSON cannot say; a missing value is null with its key present."""
    columns = ", ".join(f"c{n} {kind}" for n, (kind, *_) in enumerate(VALUES))
    story.execute(TYPES + f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    story.execute(f"INSERT INTO t VALUES (1, {', '.join(value for _, _, value, _ in VALUES)})")
    story.execute("INSERT INTO t (id) VALUES (2)")
    fields = "\n".join(f"  - {leaf}: c{n}" for n, (_, leaf, _, _) in enumerate(VALUES))
    with builder(story.database, t=f"table: t\nfields:\n{fields}") as built:
        found = bodies(built, "t")
        by_key = next(built.build("t", [("1",), ("2",)]))
    assert {body.decode() for body in by_key.bodies if body} == set(found.values())
    assert json.loads(found["2"]) == {f"c{n}": None for n in range(len(VALUES))}
    wanted = [text if text is not None else '{"b": 1,  "a": [1.0, "x\\n"],   "b": 2}' for *_, text in VALUES]
    assert found["1"] == "{" + ",".join(f'"c{n}":{text}' for n, text in enumerate(wanted)) + "}"
    assert json.loads(found["1"], parse_float=Decimal)["c8"] == Decimal("12345678901234567890.123456789010")


def test_everything_that_is_no_plain_column(story18: Story) -> None:
    """E70: points, objects, maps, constants, transforms, defaults, odd names; no line break in a body."""
    story18.execute("""
CREATE TABLE "T ab" (id int PRIMARY KEY, "Na""me" text, lat numeric, lon real, spot point, at jsonb, tags text[],
    m jsonb);
INSERT INTO "T ab" VALUES
    (1, E' \\tMiXed é\\n', 45.10, -1.5, '(2.5,1)', '{"lat": 1, "lon": 2}', '{" A ",NULL,b}', '{"k": 1}'),
    (2, NULL, 45, NULL, NULL, NULL, NULL, NULL), (3, '', 'NaN', 1, '(NaN,1)', '"1,2"', '{}', '{}')
""")
    fields = """
  - {text: "quoted \\" näme", column: '"Na""me"', transforms: [trim, lowercase], default: "none 'given'"}
  - {object: box, fields: [{integer: id}, {object: deep, fields: [{constant: one, value: 1}]}]}
  - {geo: place, lat: lat, lon: lon}
  - {geo: spot, column: spot}
  - {geo: at, column: at}
  - {keyword: tags, transforms: [trim, lowercase]}
  - {map: m, values: long}
  - {constant: yes, value: true}
  - {constant: text, value: "it's \\n"}
  - {constant: pi, value: 3.5}
"""
    with builder(story18.database, t=f"table: '\"T ab\"'\nfields:{fields}") as built:
        found = bodies(built, "t")
    assert not any("\n" in body for body in found.values())
    same: dict[str, Any] = {"yes": True, "text": "it's \n", "pi": 3.5}
    box = {"deep": {"one": 1}}
    assert json.loads(found["1"]) == {
        'quoted " näme': "mixed é", "box": {"id": 1, **box}, "place": {"lat": 45.1, "lon": -1.5},
        "spot": {"lat": 1.0, "lon": 2.5}, "at": {"lat": 1, "lon": 2}, "tags": ["a", None, "b"], "m": {"k": 1}, **same,
    }  # fmt: skip
    assert json.loads(found["2"]) == {
        'quoted " näme': "none 'given'", "box": {"id": 2, **box}, "place": None, "spot": None, "at": None,
        "tags": None, "m": None, **same,
    }  # fmt: skip
    assert json.loads(found["3"]) == {
        'quoted " näme': "", "box": {"id": 3, **box}, "place": None, "spot": None, "at": "1,2", "tags": [], "m": {},
        **same,
    }  # fmt: skip


def test_a_range_takes_what_lies_between_its_ends(story18: Story) -> None:
    """E68: the first key is left out, the last is taken; composite keys compare part by part."""
    story18.execute(
        "CREATE TABLE r (a int, b text, PRIMARY KEY (a, b)); CREATE TABLE c (id int PRIMARY KEY, a int, b text)"
    )
    story18.execute("INSERT INTO r SELECT n / 3, chr(97 + n % 3) FROM generate_series(0, 8) n")
    story18.execute("INSERT INTO c SELECT n, n / 3, chr(97 + n % 3) FROM generate_series(0, 8) n")
    schema = "table: r\nfields:\n  - {ids: ids, table: c, foreign_key: [a, b], element_type: integer}"
    with builder(story18.database, r=schema) as built:

        def between(after: tuple[str, ...] | None, upto: tuple[str, ...] | None) -> dict[str, Any]:
            found: dict[str, Any] = {}
            for some in built.build_range("r", after, upto):
                found |= zip(some.ids, [json.loads(body or b"")["ids"] for body in some.bodies], strict=True)
            return found

        assert between(("0", "c"), ("1", "b")) == {"1|a": [3], "1|b": [4]}
        assert between(None, ("0", "b")) == {"0|a": [0], "0|b": [1]}
        assert between(("2", "a"), None) == {"2|b": [7], "2|c": [8]}
        assert between(("9", "a"), None) == {}
        assert len(between(None, None)) == 9


def test_case_does_not_count_where_the_type_says_so(story18: Story) -> None:
    """E68: links and filters of citext find what the column itself takes for equal."""
    story18.execute("CREATE EXTENSION IF NOT EXISTS citext")
    story18.execute(
        "CREATE TABLE r (id citext PRIMARY KEY, kind citext); CREATE TABLE c (id int PRIMARY KEY, r citext)"
    )
    story18.execute("INSERT INTO r VALUES ('Ab', 'X'), ('cd', 'y'); INSERT INTO c VALUES (1, 'aB'), (2, 'CD')")
    schema = """
table: r
filters: [{column: kind, op: in, value: [x]}]
fields: [{has_many: c, table: c, foreign_key: r, fields: [{integer: id}]}]
"""
    with builder(story18.database, r=schema) as built:
        assert bodies(built, "r") == {"Ab": '{"c":[{"id":1}]}'}
        (found,) = built.build("r", [("Ab",)])
        assert (found.ids, found.bodies) == (["Ab"], [b'{"c":[{"id":1}]}'])


def test_rows_hidden_by_a_policy_are_an_error(story: Story) -> None:
    """E74: never fewer rows, which would be taken for deletes."""
    story.execute(
        "CREATE TABLE r (id int PRIMARY KEY); CREATE TABLE c (id int PRIMARY KEY, r int); INSERT INTO r VALUES (1)"
    )
    story.execute("ALTER TABLE c ENABLE ROW LEVEL SECURITY")
    url = story.database.role("reader")
    story.execute("GRANT USAGE ON SCHEMA public TO reader; GRANT SELECT ON r, c TO reader")
    spec = SourceSpec([read_schema("version: 1\ntable: r\nfields: [{count: n, table: c, foreign_key: r}]", "r")])
    with PgDocumentBuilder(spec, url) as built:
        for attempt in (lambda: built.build("r", [("1",)]), lambda: built.build_range("r", None, None)):
            with pytest.raises(PrivilegeError, match="row-level security"):
                list(attempt())
    with builder(story.database, r="table: r\nfields: [{count: n, table: c, foreign_key: r}]") as built:
        assert bodies(built, "r") == {"1": '{"n":0}'}


def test_a_column_that_goes_is_named_with_its_index(story18: Story) -> None:
    """E76: the other indexes are built as before; after the schema fits again, so is this one."""
    story18.execute("CREATE TABLE r (id int PRIMARY KEY, a text, b text); INSERT INTO r VALUES (1, 'x', 'y')")
    with builder(
        story18.database, one="table: r\nfields: [{keyword: a}]", two="table: r\nfields: [{keyword: b}]"
    ) as built:
        assert bodies(built, "one") == {"1": '{"a":"x"}'}
        list(built.build("one", [("1",)]))
        story18.execute("ALTER TABLE r DROP COLUMN a")
        for attempt in (lambda: built.build("one", [("1",)]), lambda: built.build_range("one", None, None)):
            with pytest.raises(ConfigError, match=r"index one does not fit the database.*column r\.a does not exist"):
                list(attempt())
        assert bodies(built, "two") == {"1": '{"b":"y"}'}
        story18.execute("ALTER TABLE r ADD COLUMN a int")
        built.adopt(built.spec)
        assert bodies(built, "one") == {"1": '{"a":null}'}
        with pytest.raises(ConfigError, match="there is no index three"):
            list(built.build("three", []))


def test_the_builder_knows_columns(story18: Story) -> None:
    """Types as the catalog spells them, and what a domain is made of."""
    story18.execute(TYPES + "CREATE TABLE r (id int PRIMARY KEY, a varchar(9) NOT NULL, m moment)")
    with builder(story18.database, r="table: r\nfields: [{keyword: a}]") as built:
        table = built.spec.schemas[0].table
        assert built.column(table, "a") == ("character varying(9)", False, "character varying(9)")
        assert built.column(table, "m") == ("public.moment", True, "timestamp with time zone")
        assert built.column(table, "b") is None
