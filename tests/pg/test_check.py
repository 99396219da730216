"""`check` against real databases: what does not fit is found, with its place and the SQL that fixes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from penstock.demo.server import Server
from penstock.document.check import Diagnostic, Severity
from penstock.document.check_live import LiveReport, check_live
from penstock.document.check_script import render, script
from penstock.document.check_source import SourceRules
from penstock.document.reading import read_schema
from penstock.postgres.settings import resolve
from tests.fixtures.databases import Database

TABLES = """
CREATE TABLE author (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE book (id int PRIMARY KEY, title text NOT NULL, price numeric, author_id int REFERENCES author,
                   meta jsonb, tags text[], at point, deleted_at timestamptz);
CREATE INDEX ON book (author_id);
CREATE TABLE review (id int PRIMARY KEY, book_id int NOT NULL REFERENCES book, stars smallint, body text);
CREATE INDEX ON review (book_id);
CREATE TABLE tag (id int PRIMARY KEY, word text NOT NULL);
CREATE TABLE book_tag (book_id int REFERENCES book, tag_id int REFERENCES tag, PRIMARY KEY (book_id, tag_id));
CREATE INDEX ON book_tag (tag_id);
"""
BOOKS = """\
version: 1
table: book
soft_delete: {column: deleted_at}
filters:
  - {column: price, op: gte, value: 0}
  - {raw: "lower(title) <> 'draft'"}
fields:
  - {integer: id, required: true}
  - {text: title, required: true}
  - {decimal: price}
  - {json: meta}
  - {keyword: tags}
  - {geo: at, column: at}
  - belongs_to: author
    column: author_id
    table: author
    fields: [{text: name}]
  - has_many: reviews
    table: review
    foreign_key: book_id
    order_by: [{column: stars, direction: desc}]
    fields: [{short: stars}, {text: body}]
  - many_to_many: labels
    table: tag
    through: {table: book_tag, left_key: book_id, right_key: tag_id}
    fields: [{keyword: word}]
  - {count: review_count, table: review, foreign_key: book_id}
  - {avg: rating, table: review, foreign_key: book_id, column: stars}
  - ids: label_ids
    table: tag
    element_type: integer
    through: {table: book_tag, left_key: book_id, right_key: tag_id}
"""


def check(database: Database, *schemas: str, url: str | None = None, **rules: Any) -> LiveReport:
    read = [read_schema(text, f"i{number}") for number, text in enumerate(schemas)]
    return check_live(resolve(url or database.url), read, SourceRules(**rules))


def errors(report: LiveReport) -> list[str]:
    return [one.message for one in report.of(Severity.ERROR)]


def codes(report: LiveReport) -> set[str]:
    return {one.code for one in report.diagnostics}


def only(report: LiveReport, code: str) -> Diagnostic:
    (one,) = [one for one in report.diagnostics if one.code == code]
    return one


def run(database: Database, sql: str) -> None:
    """Statement by statement, as psql does: some take no transaction around them."""
    for statement in sql.split(";\n"):
        if statement.strip():
            database.execute(statement)


def state(database: Database) -> list[Any]:
    catalogs = ("pg_publication", "pg_publication_rel", "pg_class", "pg_namespace", "pg_rewrite", "pg_type")
    return [database.execute(f"SELECT oid, xmin FROM {catalog} ORDER BY oid") for catalog in catalogs]


def test_what_check_finds_its_own_script_mends(database: Database) -> None:
    """E42: the script's identities and publication are exact; run as it stands, only notes are left."""
    database.execute(TABLES)
    database.execute("CREATE TABLE note (id int PRIMARY KEY, review_id int REFERENCES review)")
    notes = "        - {has_many: notes, table: note, foreign_key: review_id, fields: [{integer: id}]}\n"
    schema = BOOKS.replace(
        "    fields: [{short: stars}, {text: body}]\n", "    fields:\n        - {short: stars}\n" + notes
    )
    before = check(database, schema)
    assert codes(before) == {"untraceable", "not-published", "index-missing"}
    role = f"keeper_{database.name}"
    for section in script(before, [read_schema(schema, "i0")], role, database.name):
        for statement in section.statements:
            run(database, statement + "\n")
    database._roles.append(role)
    assert check(database, schema).diagnostics == ()
    assert check(database, schema, url=database.server.url(database.name, role)).diagnostics == ()


def test_the_script_is_text_for_psql(db18: Database) -> None:
    db18.execute(TABLES)
    report = check(db18, BOOKS)
    text = render(script(report, [read_schema(BOOKS, "i0")], "pen stock", db18.name), db18.name)
    for line in ('ALTER ROLE "pen stock" LOGIN REPLICATION;', 'GRANT USAGE ON SCHEMA "public" TO "pen stock";'):
        assert line in text
    assert text.index("REPLICA IDENTITY") < text.index("CREATE PUBLICATION")
    assert "password" in text and "PASSWORD '" not in text


def test_check_changes_nothing(database: Database) -> None:
    """E42: nor does it leave a view, a lock or a slot behind."""
    database.execute(TABLES)
    before = state(database)
    check(database, BOOKS)
    assert state(database) == before


def test_every_column_named_anywhere_must_exist(db18: Database) -> None:
    db18.execute(TABLES)
    schema = """\
version: 1
table: book
primary_key: k
soft_delete: {column: sd, when: [{column: w, op: is_null}]}
filters:
  - {column: f, op: eq, value: 1}
  - any: [{column: g, op: is_null}, {column: title, op: is_null}]
fields:
  - {text: s}
  - {geo: p, lat: la, lon: lo}
  - {map: m, values: long}
  - object: o
    fields: [{long: inner}]
  - {belongs_to: b, column: bc, table: author, primary_key: bk, fields: [{text: bn}]}
  - {has_many: h, table: review, foreign_key: hf, order_by: [{column: ho}], fields: [{integer: id}]}
  - {count: c, table: review, foreign_key: book_id, filters: [{column: hx, op: is_null}]}
  - {many_to_many: t, table: tag, fields: [{integer: id}], through: {table: book_tag, left_key: tl, right_key: tr}}
  - {max: x, table: review, foreign_key: xf, column: xc, value_type: long}
"""
    report = check(db18, schema)
    missing = [one for one in report.diagnostics if one.code == "column-missing"]
    named = {one.message.rpartition(" ")[2].strip('"'): one.place.line for one in missing}
    assert named == {
        "k": 1, "sd": 4, "w": 4, "f": 6, "g": 7, "s": 9, "la": 10, "lo": 10, "m": 11, "inner": 13, "bc": 14, "bk": 14,
        "bn": 14, "hf": 15, "ho": 15, "hx": 16, "tl": 17, "tr": 17, "xf": 18, "xc": 18,
    }  # fmt: skip
    assert {one.severity for one in missing} == {Severity.ERROR}


def test_missing_tables_are_named_with_the_nearest(db18: Database) -> None:
    db18.execute(TABLES)
    db18.execute("CREATE VIEW shelf AS SELECT * FROM book")
    nowhere = check(db18, "version: 1\ntable: bok\nfields: [{text: title}]\n")
    assert only(nowhere, "table-missing").hint == "The nearest one is public.book."
    assert codes(nowhere) == {"table-missing"}, "nothing else is said about it"
    view = check(db18, "version: 1\ntable: shelf\nprimary_key: id\nfields: [{text: title}]\n")
    assert only(view, "not-a-table").message == "public.shelf is a view: Postgres streams changes of tables only"


def test_a_missing_column_has_its_nearest_neighbour(db18: Database) -> None:
    db18.execute(TABLES)
    found = only(check(db18, "version: 1\ntable: book\nfields: [{text: titel}]\n"), "column-missing")
    assert (found.message, found.hint) == (
        "field 'titel': public.book has no column \"titel\"", "The nearest one is title.",
    )  # fmt: skip


def test_types_that_do_not_fit_are_told_with_those_that_do(db18: Database) -> None:
    db18.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE DOMAIN code AS varchar(9); CREATE DOMAIN codes AS code[];"
        "CREATE TABLE t (id bigint PRIMARY KEY, u uuid, n numeric(10,2), ts timestamptz, tt time, j jsonb, b bytea,"
        " mood mood, code code, codes codes, moods mood[], ip inet, small smallint, c char(3), m money, points point[])"
    )
    good = """\
version: 1
table: t
fields:
  - {long: id}
  - {uuid: u}
  - {decimal: n}
  - {timestamp: ts}
  - {timestamp: tt}
  - {json: j}
  - {map: j2, column: j, values: long}
  - {geo: g, column: j}
  - {geo: g2, lat: small, lon: n}
  - {binary: b}
  - {enum: mood}
  - {enum: moods}
  - {text: code, transforms: [trim]}
  - {keyword: codes}
  - {custom: ip, postgres: [inet], opensearch: ip}
  - {custom: n2, column: n, postgres: [numeric], opensearch: scaled_float}
  - {integer: small}
  - {keyword: c}
  - {decimal: m}
"""
    assert errors(check(db18, good, publication="p")) == []
    bad = """\
version: 1
table: t
fields:
  - {integer: id}
  - {text: u}
  - {double: n}
  - {date: ts}
  - {keyword: j}
  - {uuid: code}
  - {map: code2, column: code, values: long}
  - {geo: ip, column: ip}
  - {keyword: ip2, column: ip}
  - {custom: ip3, column: ip, postgres: [cidr], opensearch: ip}
  - {enum: mood, transforms: [lowercase]}
  - {boolean: small}
  - {geo: points, column: points}
"""
    found = [one for one in check(db18, bad, publication="p").diagnostics if one.code == "type"]
    assert [one.place.line for one in found] == list(range(4, 17))
    assert (found[0].message, found[0].hint) == (
        "field 'id': column \"id\" of public.t is bigint; integer takes smallint, integer", "For bigint: long.",
    )  # fmt: skip
    assert found[-5].hint == "For inet: custom with postgres: [inet]."


def test_a_required_field_over_a_nullable_column_is_warned_of(db18: Database) -> None:
    db18.execute(TABLES)
    schema = (
        "version: 1\ntable: book\nfields:\n  - {text: title, required: true}\n  - {decimal: price, required: true}\n"
        "  - {json: meta, required: true, default: x}\n"
        "  - {belongs_to: a, column: author_id, table: author, required: true, fields: [{text: name}]}\n"
    ).replace("  - {json: meta, required: true, default: x}\n", "")
    found = [one for one in check(db18, schema).diagnostics if one.code == "nullable"]
    assert [(one.severity, one.place.line) for one in found] == [(Severity.WARNING, 5), (Severity.WARNING, 6)]
    assert found[0].sql == 'ALTER TABLE "public"."book" ALTER COLUMN "price" SET NOT NULL;'
    for one in found:
        db18.execute(one.sql)
    assert "nullable" not in codes(check(db18, schema))


def test_keys_and_links_must_agree(db18: Database) -> None:
    db18.execute(
        "CREATE TABLE a (id uuid PRIMARY KEY, other int, x int, y int); CREATE TABLE b (id int, a_id text, v int);"
        "CREATE TABLE pair (l int, r int, PRIMARY KEY (l, r))"
    )
    schema = """\
version: 1
table: a
fields:
  - {has_many: texts, table: b, primary_key: id, foreign_key: a_id, fields: [{integer: id}]}
  - {has_many: keyless, table: b, foreign_key: a_id, fields: [{integer: id}]}
  - {belongs_to: one, column: other, table: b, primary_key: id, fields: [{integer: id}]}
  - {belongs_to: two, column: x, table: pair, fields: [{integer: l}]}
  - {ids: pairs, table: pair, foreign_key: l, element_type: integer}
"""
    found = {(one.code, one.place.line, one.severity.value) for one in check(db18, schema, publication="p").diagnostics}
    assert {one for one in found if one[0] not in ("index-missing", "not-published", "untraceable", "publication")} == {
        ("link-types", 4, "error"), ("key-not-unique", 4, "warning"),
        ("link-types", 5, "error"), ("key-missing", 5, "error"),
        ("key-not-unique", 6, "error"),
        ("link-columns", 7, "error"),
        ("link-types", 8, "error"), ("ids-key", 8, "error"),
    }  # fmt: skip


def test_a_root_key_that_is_not_unique_is_an_error(db18: Database) -> None:
    db18.execute("CREATE TABLE t (id int PRIMARY KEY, k int)")
    schema = "version: 1\ntable: t\nprimary_key: k\nfields: [{integer: id}]\n"
    found = only(check(db18, schema), "key-not-unique")
    assert found.severity is Severity.ERROR
    db18.execute(found.sql)
    after = check(db18, schema)
    assert "key-not-unique" not in codes(after)
    assert only(after, "key-nullable").severity is Severity.WARNING


def test_missing_indexes_on_join_columns_come_with_the_statement(database: Database) -> None:
    database.execute(TABLES)
    database.execute(
        "DROP INDEX book_author_id_idx; DROP INDEX review_book_id_idx; DROP INDEX book_tag_tag_id_idx;"
        "CREATE INDEX partial ON review (book_id) WHERE stars > 3; CREATE INDEX late ON book (price, author_id)"
    )
    report = check(database, BOOKS)
    found = [one for one in report.diagnostics if one.code == "index-missing"]
    assert {one.sql for one in found} == {
        'CREATE INDEX CONCURRENTLY ON "public"."book" ("author_id");',
        'CREATE INDEX CONCURRENTLY ON "public"."review" ("book_id");',
        'CREATE INDEX CONCURRENTLY ON "public"."book_tag" ("tag_id");',
    }
    assert {one.severity for one in found} == {Severity.WARNING}
    for sql in {one.sql for one in found}:
        database.execute(sql)
    assert "index-missing" not in codes(check(database, BOOKS))


def test_an_identity_without_the_link_is_reported_with_the_exact_sql(database: Database) -> None:
    """E42: an index over NOT NULL columns, FULL where a link may be null; what it says mends it."""
    database.execute(TABLES)
    database.execute(
        "CREATE TABLE loan (id int PRIMARY KEY, book_id int REFERENCES book); CREATE INDEX ON loan (book_id)"
    )
    schema = """\
version: 1
table: book
fields:
  - {has_many: reviews, table: review, foreign_key: book_id, fields: [{integer: id}]}
  - {count: loans, table: loan, foreign_key: book_id}
"""
    found = {one.message.split(":")[0]: one for one in check(database, schema).diagnostics if one.code == "untraceable"}
    assert found["public.review"].sql.splitlines() == [
        'CREATE UNIQUE INDEX CONCURRENTLY "review_identity" ON "public"."review" ("id", "book_id");',
        'ALTER TABLE "public"."review" REPLICA IDENTITY USING INDEX "review_identity";',
    ]
    assert found["public.loan"].sql == 'ALTER TABLE "public"."loan" REPLICA IDENTITY FULL;'
    assert found.keys() == {"public.review", "public.loan"}
    assert {one.severity for one in found.values()} == {Severity.ERROR}
    assert {one.severity for one in check(database, schema, untraceable_is_fatal=False).diagnostics} == {
        Severity.WARNING, Severity.NOTE,
    }  # fmt: skip
    assert check(database, schema, manage_replica_identity=True).worst is Severity.NOTE
    for one in found.values():
        run(database, one.sql + "\n")
    assert "untraceable" not in codes(check(database, schema))


def test_each_leaf_partition_is_looked_at(db18: Database) -> None:
    """E42: identity does not recurse to partitions."""
    db18.execute(
        "CREATE TABLE a (id int PRIMARY KEY);"
        "CREATE TABLE p (id int, a_id int NOT NULL REFERENCES a, PRIMARY KEY (id)) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);"
        "CREATE INDEX ON p (a_id); ALTER TABLE p REPLICA IDENTITY FULL; ALTER TABLE p1 REPLICA IDENTITY FULL"
    )
    schema = "version: 1\ntable: a\nfields: [{has_many: ps, table: p, foreign_key: a_id, fields: [{integer: id}]}]\n"
    found = only(check(db18, schema), "untraceable")
    assert found.message.startswith("public.p2: its replica identity lacks")
    run(db18, found.sql + "\n")
    assert "untraceable" not in codes(check(db18, schema))


def filtered(*conditions: str) -> str:
    """A schema with these conditions, the first on line 4."""
    lines = "".join(f"  - {{raw: {json.dumps(condition)}}}\n" for condition in conditions)
    return f"version: 1\ntable: book\nfilters:\n{lines}fields: [{{text: title}}]\n"


def filter_findings(report: LiveReport) -> list[Diagnostic]:
    return [one for one in report.diagnostics if one.code.startswith("filter")]


HALF = "CREATE FUNCTION half(i int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT i / 2'"


def test_a_filter_over_its_own_row_is_fine(database: Database) -> None:
    """E78: functions of the row alone, and of settings that every session of ours pins, are no reason to warn."""
    database.execute(TABLES)
    database.execute(HALF)
    fine = [
        "price > 3 AND lower(title) LIKE 'a%'",
        "deleted_at::date > date '2020-01-01'  -- a comment",
        "price BETWEEN 1 AND 2 OR meta @> '{\"a\": 1}'",
        "public.half(id) > 1",
        "to_char(deleted_at, 'YYYY') = '2020'",
        "title <> 'x :funcid 1299'",
        "current_user <> 'x'",
        "title <> 'now' AND lower(title) <> 'today'",
    ]
    assert filter_findings(check(database, filtered(*fine))) == []


def test_a_filter_that_reads_more_than_its_row_is_pointed_out(database: Database) -> None:
    """E78: changes of another table, and the passing of time, cannot be seen."""
    database.execute(TABLES)
    database.execute(
        "CREATE FUNCTION known(t text) RETURNS bool LANGUAGE sql STABLE AS 'SELECT EXISTS (SELECT FROM public.tag)';"
        "CREATE VIEW shelf AS SELECT id FROM author"
    )
    cases = [
        ("EXISTS (SELECT FROM public.author a WHERE a.id = author_id)", "filter-reads-table", "public.author"),
        ("author_id IN (SELECT id FROM public.shelf)", "filter-reads-table", "public.shelf"),
        ("EXISTS (SELECT FROM public.book b WHERE b.id > book.id)", "filter-reads-table", "other rows"),
        ("deleted_at > now()", "filter-reads-clock", ""),
        ("deleted_at > CURRENT_DATE", "filter-reads-clock", ""),
        ("deleted_at > clock_timestamp() - interval '1 day'", "filter-reads-clock", ""),
        ("age(deleted_at) > interval '1 day'", "filter-reads-clock", ""),
        ("deleted_at > 'Today' OR deleted_at < timestamptz 'now'", "filter-reads-clock", ""),
        ("random() < 0.5", "filter-volatile", "random()"),
        ("public.known(title)", "filter-volatile", "public.known(text)"),
    ]
    found = filter_findings(check(database, filtered(*(condition for condition, _, _ in cases))))
    assert [(one.place.line - 4, one.code, one.severity) for one in found] == [
        (at, code, Severity.WARNING) for at, (_, code, _) in enumerate(cases)
    ]
    assert all(named in one.message for one, (_, _, named) in zip(found, cases, strict=True))


def test_a_filter_that_is_no_condition_is_an_error(database: Database) -> None:
    """E78: the server's own parser says so; a second statement is not run."""
    database.execute(TABLES)
    database.execute(HALF)
    cases = {
        "titel = 'a'": 'column "titel" does not exist',
        "price >": "syntax error",
        "price + 1": "must be type boolean",
        "price = 'abc'": "invalid input syntax for type numeric",
        "true); DROP TABLE book; SELECT (true": "cannot insert multiple commands",
        "half(id) > 1": "does not exist",
    }
    found = filter_findings(check(database, filtered(*cases)))
    assert {(one.code, one.severity) for one in found} == {("filter-invalid", Severity.ERROR)}
    assert [sentence in one.message for one, sentence in zip(found, cases.values(), strict=True)] == [True] * len(cases)
    assert database.execute("SELECT to_regclass('book')") != [(None,)]


def test_a_role_that_may_make_no_view_still_learns_whether_a_filter_is_valid(db18: Database) -> None:
    """E78: what could not be asked is said."""
    db18.execute(TABLES)
    role = f"reader_{db18.name}"
    url = db18.role(role, attributes="LOGIN REPLICATION")
    db18.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    db18.execute(f"REVOKE TEMPORARY ON DATABASE {db18.name} FROM PUBLIC")
    report = check(db18, filtered("deleted_at > now()"), url=url)
    assert only(report, "filter-unknown").severity is Severity.NOTE
    assert "filter-invalid" in codes(check(db18, filtered("price + 1"), url=url))


def test_values_of_filters_must_be_of_the_columns_type(db18: Database) -> None:
    db18.execute(TABLES)
    schema = """\
version: 1
table: book
filters:
  - {column: price, op: eq, value: cheap}
  - {column: price, op: between, value: [1, 2.5]}
  - {column: id, op: in, value: [1, 2.5]}
  - {column: deleted_at, op: lt, value: "2020-02-30"}
  - {column: title, op: eq, value: 7}
  - {column: price, op: like, value: "1%"}
  - {column: small, op: neq, value: 100}
  - {column: small, op: neq, value: huge}
fields: [{text: title}]
"""
    db18.execute("CREATE DOMAIN small AS int CHECK (VALUE < 10); ALTER TABLE book ADD small small")
    found = [one for one in check(db18, schema).diagnostics if one.code.startswith("filter")]
    assert [(one.code, one.place.line) for one in found] == [
        ("filter-value", 4), ("filter-value", 6), ("filter-value", 7), ("filter-type", 9), ("filter-value", 11),
    ]  # fmt: skip


def test_a_role_under_row_security_is_an_error(database: Database) -> None:
    """E74: never fewer rows taken for deletes; an owner, whom the policy does not concern, is fine."""
    database.execute(TABLES)
    role = f"reader_{database.name}"
    url = database.role(role, attributes="LOGIN REPLICATION")
    database.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    database.execute("ALTER TABLE review ENABLE ROW LEVEL SECURITY; CREATE POLICY few ON review USING (stars > 3)")
    found = only(check(database, BOOKS, url=url), "row-security")
    assert found.severity is Severity.ERROR
    assert "public.review" in found.message and found.sql == f'ALTER ROLE "{role}" BYPASSRLS;'
    assert "row-security" not in codes(check(database, BOOKS))
    database.execute(found.sql)
    assert "row-security" not in codes(check(database, BOOKS, url=url))


def test_rights_that_are_lacking_come_with_the_grant(database: Database) -> None:
    """E34: to read a table, to use a schema, to replicate."""
    database.execute(TABLES)
    database.execute("CREATE SCHEMA aside; CREATE TABLE aside.t (id int PRIMARY KEY)")
    role = f"reader_{database.name}"
    url = database.role(role)
    database.execute(
        f"GRANT SELECT ON author, tag, book_tag, review TO {role}; GRANT SELECT (id, title) ON book TO {role}"
    )
    report = check(database, BOOKS, "version: 1\ntable: aside.t\nfields: [{integer: id}]\n", url=url)
    lacking = [one for one in report.diagnostics if one.code in ("no-select", "no-usage", "replication")]
    assert {one.severity for one in lacking} == {Severity.ERROR}
    assert {one.sql for one in lacking} == {
        f'GRANT SELECT ON "public"."book" TO "{role}";', f'GRANT USAGE ON SCHEMA "aside" TO "{role}";',
        f'GRANT SELECT ON "aside"."t" TO "{role}";', "",
    }  # fmt: skip
    assert f'ALTER ROLE "{role}" REPLICATION;' in only(report, "replication").hint
    for one in lacking:
        database.execute(one.sql or f'ALTER ROLE "{role}" REPLICATION')
    after = check(database, BOOKS, "version: 1\ntable: aside.t\nfields: [{integer: id}]\n", url=url)
    assert not codes(after) & {"no-select", "no-usage", "replication"}
    database.execute(f"DROP SCHEMA aside CASCADE; DROP OWNED BY {role}")


def test_a_server_that_cannot_stream_is_named_with_its_setting(start_server: Callable[..., Server]) -> None:
    """E34: wal_level not logical, no free slot, no free walsender."""
    server = start_server(settings={"wal_level": "replica", "max_replication_slots": "1", "max_wal_senders": "1"})
    database = Database(server, "postgres")
    database.execute(TABLES)
    database.execute("SELECT pg_create_physical_replication_slot('taken')")
    report = check(database, BOOKS)
    assert only(report, "wal-level").sql == "ALTER SYSTEM SET wal_level = 'logical';"
    assert only(report, "no-slot").sql == "ALTER SYSTEM SET max_replication_slots = 5;"
    assert "replication" not in codes(report)
    holder = database.connect(replication="database")
    assert "no walsender free" in only(check(database, BOOKS), "replication").message
    holder.close()
    database.close()


def test_a_slot_of_another_database_is_refused(db18: Database) -> None:
    """E34: slot names are shared by all databases of a server."""
    db18.execute(TABLES)
    name = f"slot_{db18.name}"
    db18.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", name)
    assert "test_decoding" in only(check(db18, BOOKS, slot=name), "slot").message
    db18.execute("SELECT pg_drop_replication_slot(%s)", name)


def test_tables_that_run_would_publish_are_a_note_else_an_error(db18: Database) -> None:
    """E42: manage_publication and the right to publish decide."""
    db18.execute(TABLES)
    assert only(check(db18, BOOKS), "not-published").severity is Severity.NOTE
    unmanaged = only(check(db18, BOOKS, manage_publication=False), "not-published")
    assert unmanaged.severity is Severity.ERROR and unmanaged.sql.startswith('CREATE PUBLICATION "penstock" FOR TABLE')


def test_one_bad_schema_does_not_hide_what_another_lacks(db18: Database) -> None:
    db18.execute(TABLES)
    report = check(db18, "version: 1\ntable: nowhere\nfields: [{text: x}]\n", BOOKS)
    assert {one.index for one in report.of(Severity.ERROR)} >= {"i0", "i1"}
    assert [schema.index for schema in report.bound] == ["i1"]


def test_an_id_that_is_not_unique_is_an_error(db18: Database) -> None:
    db18.execute("CREATE TABLE t (id int PRIMARY KEY, k int NOT NULL)")
    schema = "version: 1\ntable: t\ndoc_id: [k]\nfields: [{integer: id}]\n"
    found = only(check(db18, schema), "key-not-unique")
    assert found.severity is Severity.ERROR
    db18.execute(found.sql)
    assert "key-not-unique" not in codes(check(db18, schema))


def test_the_server_has_the_last_word_on_the_statements(database: Database) -> None:
    """A type that the server cannot sort, and that no other check knows of."""
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY, a_id int, acl aclitem)")
    schema = (
        "version: 1\ntable: a\nfields:\n"
        "  - {has_many: bs, table: b, foreign_key: a_id, order_by: [{column: acl}], fields: [{integer: id}]}\n"
    )
    found = only(check(database, schema), "statement")
    assert found.severity is Severity.ERROR
    assert found.message == (
        "the server refuses the statement that builds its documents:"
        " could not identify an ordering operator for type aclitem"
    )
    assert "statement" not in codes(check(database, schema.replace("column: acl", "column: id")))


def test_a_table_that_cannot_be_published_is_named_once(db18: Database) -> None:
    """E42: an unlogged table, and one whose identity is NOTHING; the second with the SQL that fixes it."""
    db18.execute(
        "CREATE TABLE a (id int PRIMARY KEY); ALTER TABLE a REPLICA IDENTITY NOTHING;"
        "CREATE UNLOGGED TABLE u (id int PRIMARY KEY, a_id int); CREATE INDEX ON u (a_id)"
    )
    schema = "version: 1\ntable: a\nfields: [{count: us, table: u, foreign_key: a_id}]\n"
    report = check(db18, schema)
    found = {one.message.split(":")[0]: one for one in report.diagnostics if one.code == "publication"}
    assert found.keys() == {"public.a", "public.u"} and {one.severity for one in found.values()} == {Severity.ERROR}
    assert "untraceable" not in codes(report)
    assert found["public.a"].sql == 'ALTER TABLE "public"."a" REPLICA IDENTITY DEFAULT;'
