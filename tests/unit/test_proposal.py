"""What is proposed for a catalog, without a server: the schema is sound and reads back the same, whatever is there."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config.file import read_deployment
from penstock.config.proposal import SINKS, DeploymentDraft, deployment_text, url_without_password
from penstock.document.binding import bind
from penstock.document.check import Facts, Severity
from penstock.document.check_columns import check_columns
from penstock.document.check_links import check_links
from penstock.document.proposal import index_names, propose
from penstock.document.proposal_columns import LeftOut, deletion_column, is_secret, propose_field
from penstock.document.proposal_links import Survey, own_key
from penstock.document.proposal_tables import choose_roots, unfit_tables
from penstock.document.proposal_text import schema_text
from penstock.document.reading import read_schema
from penstock.document.schema import Field, Join, LeafType, Scalar
from penstock.model import QualifiedTable
from penstock.postgres.catalog import (
    ColumnInfo,
    ForeignKey,
    Identity,
    IdentityKind,
    IndexInfo,
    Persistence,
    TableInfo,
    TableKind,
)
from penstock.postgres.settings import resolve
from penstock.postgres.type_catalog import TypeInfo

TYPES = {
    oid: TypeInfo(short, "pg_catalog", short, is_array=is_array)
    for oid, (short, is_array) in enumerate(
        [("int4", False), ("int8", False), ("text", False), ("uuid", False), ("bool", False), ("timestamptz", False),
         ("jsonb", False), ("bytea", False), ("inet", False), ("point", False), ("point", True), ("text", True)], 1
    )
}  # fmt: skip
KEY_TYPES = (1, 2, 3, 4)
# Names as people give them, names that mean something to the proposer, and names that need every kind of quotes.
WORDS = st.sampled_from(
    ["id", "name", "user_id", "deleted_at", "deleted", "created_at", "password", "true", "on", "_id", "_source", "a.b",
     'a"b', "A b", "größe", "line\nbreak", "\x85", "#", "- x", "{", "'", "\\", "user", "users", "😀"]
)  # fmt: skip
NAMES = WORDS | st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=8)


def column(name: str, oid: int, nullable: bool = True, position: int = 1) -> ColumnInfo:
    return ColumnInfo(name, oid, -1, TYPES[oid].name, nullable, "", position)


def a_table(name: QualifiedTable, columns: tuple[ColumnInfo, ...], key: tuple[str, ...]) -> TableInfo:
    columns = tuple(replace(one, nullable=one.nullable and one.name not in key) for one in columns)
    primary = IndexInfo("pkey", key, True, True, True, True, False, False, False, True)
    return TableInfo(
        name, 0, TableKind.TABLE, Persistence.PERMANENT, "o", True, columns, key, (primary,) if key else (),
        identity=Identity(IdentityKind.DEFAULT, key),
    )  # fmt: skip


@st.composite
def catalogs(draw: st.DrawFn) -> Facts:
    """Tables with columns and keys of any names, tied by foreign keys of one or two columns, themselves included."""
    named = draw(st.lists(st.builds(QualifiedTable, st.sampled_from(["public", "S x"]), NAMES), min_size=1, max_size=5,
                          unique=True))  # fmt: skip
    tables = {name: draw(_plain_table(name)) for name in named}
    for number in range(draw(st.integers(0, 6))):
        holder, target = draw(st.sampled_from(named)), draw(st.sampled_from(named))
        if tables[target].primary_key:
            tables |= _tied(draw, tables, holder, target, f"fk{number}")
    return Facts(tables, TYPES)


@st.composite
def _plain_table(draw: st.DrawFn, name: QualifiedTable) -> TableInfo:
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    columns = tuple(column(one, draw(st.sampled_from(sorted(TYPES))), draw(st.booleans())) for one in names)
    able = [one.name for one in columns if one.type_oid in KEY_TYPES]
    return a_table(name, columns, tuple(draw(st.permutations(able)))[: draw(st.integers(0, 2))])


def _tied(
    draw: st.DrawFn, tables: dict[QualifiedTable, TableInfo], holder: QualifiedTable, target: QualifiedTable, name: str
) -> dict[QualifiedTable, TableInfo]:
    """The two tables with a foreign key more, over columns of its own, which may be the holder's key."""
    referenced = draw(st.permutations(tables[target].primary_key))
    here = tables[holder]
    free = [one for one in (f"{name}_id", f"{name}_other") if one not in {each.name for each in here.columns}]
    if len(free) < len(referenced):
        return {}
    kinds = {one.name: one.type_oid for one in tables[target].columns}
    added = tuple(column(one, kinds[to], draw(st.booleans())) for one, to in zip(free, referenced, strict=False))
    own = tuple(one.name for one in added)
    key = ForeignKey(name, holder, own, target, tuple(referenced))
    renewed = own if holder != target and not here.referenced_by and draw(st.booleans()) else here.primary_key
    made = a_table(holder, (*here.columns, *added), renewed)
    found = {holder: replace(made, foreign_keys=(*here.foreign_keys, key), referenced_by=here.referenced_by)}
    there = found.get(target, tables[target])
    return found | {target: replace(there, referenced_by=(*there.referenced_by, key))}


def ways(table: QualifiedTable, fields: tuple[Field, ...]) -> Iterator[list[QualifiedTable]]:
    """The tables on each way down."""
    yield [table]
    for one in fields:
        if isinstance(one, Join):
            yield from ([table, *way] for way in ways(one.table, one.fields))


@settings(max_examples=50, deadline=None)
@given(catalogs())
def test_whatever_the_catalog_the_schema_is_sound_and_reads_back_the_same(facts: Facts) -> None:
    survey = Survey(facts, unfit_tables(facts))
    fit = [table for table in facts.tables if table not in survey.unfit]
    for proposal in propose(survey, fit):
        schema = proposal.schema
        text = schema_text(proposal)
        assert read_schema(text, schema.index) == schema, text
        found = [*check_columns(schema, facts), *check_links(schema, facts)]
        assert not [one for one in found if one.severity is Severity.ERROR], text
        bind(schema, facts.tables)
        for way in ways(schema.table, schema.fields):
            assert len(way) <= 3
            below = way[1:] if way[:1] == way[1:2] else way
            assert len(set(below)) == len(below), "no table twice on the way down, but a row's own table"


@settings(max_examples=30, deadline=None)
@given(catalogs())
def test_every_table_is_an_index_or_has_the_reason_why_not(facts: Facts) -> None:
    survey = Survey(facts, unfit_tables(facts))
    roots = choose_roots(survey)
    assert {*roots.tables, *roots.others, *survey.unfit} == facts.tables.keys()
    assert not {*roots.tables} & {*roots.others}
    assert roots.tables or len(roots.others) + len(survey.unfit) == len(facts.tables)
    names = index_names(roots.tables)
    assert len({*names.values()}) == len(names)


def test_an_index_is_named_in_lower_case_ascii_whatever_its_table_is_called() -> None:
    tables = [QualifiedTable("s", name) for name in ("ÄRGER", "Straße", "İzmir", "ΟΔΟΣ", "Ⅷ", "Éé_ É")]
    names = list(index_names(tables).values())
    assert names == ["arger", "strasse", "izmir", "documents", "viii", "ee_e"]


T = QualifiedTable("public", "t")


@pytest.mark.parametrize(
    ("name", "oid", "leaf"),
    [
        ("id", 1, LeafType.INTEGER), ("id", 2, LeafType.LONG), ("title", 3, LeafType.TEXT),
        ("sku", 3, LeafType.IDENTIFIER),
        ("orderStatus", 3, LeafType.KEYWORD), ("email", 3, LeafType.KEYWORD), ("labels", 12, LeafType.TEXT),
        ("tokens_left", 1, LeafType.INTEGER), ("at", 6, LeafType.TIMESTAMP), ("extra", 7, LeafType.JSON),
    ],
)  # fmt: skip
def test_a_column_becomes_the_leaf_that_its_type_and_name_suggest(name: str, oid: int, leaf: LeafType) -> None:
    assert propose_field(column(name, oid), TYPES[oid], "k") == Scalar("k", leaf, name)


@pytest.mark.parametrize(
    "name", ["password", "userPassword", "PASSWORD_HASH", "api_key", "ApiKey", "reset_token", "salt"]
)
def test_what_looks_like_a_secret_is_left_out(name: str) -> None:
    assert is_secret(name)
    assert isinstance(propose_field(column(name, 3), TYPES[3], "k"), LeftOut)


@pytest.mark.parametrize(
    ("name", "oid", "nullable", "marks"),
    [
        ("deleted_at", 6, True, True), ("deletedAt", 6, True, True), ("is_deleted", 5, False, True),
        ("deleted", 5, True, True), ("deleted_at", 6, False, False), ("deleted", 1, True, False),
        ("deleted_by", 3, True, False), ("undeleted", 5, True, False),
    ],
)  # fmt: skip
def test_a_row_counts_as_deleted_only_where_name_and_type_say_so(
    name: str, oid: int, nullable: bool, marks: bool
) -> None:
    """A number or a moment that is never null would make every row a deleted one."""
    info = a_table(T, (column("id", 1), column(name, oid, nullable)), ("id",))
    assert (deletion_column(info, Facts({T: info}, TYPES)) is not None) is marks


def test_a_table_of_which_a_document_would_show_nothing_is_no_index() -> None:
    info = a_table(T, (column("password", 3), column("deleted", 5)), ("password",))
    assert unfit_tables(Facts({T: info}, TYPES)) == {T: "no column of it fits into a document"}


def test_the_key_of_a_table_without_a_primary_key_is_its_narrowest_unique_index() -> None:
    index = IndexInfo("u", ("a",), True, False, True, True, False, False, True, True)
    wide = replace(index, name="w", columns=("a", "b"))
    info = replace(a_table(T, (column("a", 1), column("b", 1)), ()), indexes=(wide, index))
    assert own_key(info) == ("a",)


@pytest.mark.parametrize("sink", SINKS)
def test_the_deployment_reads_back_as_meant_and_holds_no_password(sink: str, tmp_path: Path) -> None:
    where = resolve("postgresql://u:hunter2@h:1/d?sslmode=verify-full", sslrootcert="c\u00e4 \U0001f600.pem", env={})
    (tmp_path / "a.schema.yml").write_text("version: 1\ntable: a\nfields: [{long: id}]\n")
    draft = DeploymentDraft({"a": "a.schema.yml"}, sink, "penstock_d", (QualifiedTable("public", "x\ny = 1"),))
    text = deployment_text(where, draft)
    assert "hunter2" not in text + url_without_password(where)
    assert tomllib.loads(text)["source"]["ssl_root_cert"].endswith("/c\u00e4 \U0001f600.pem")
    (tmp_path / "penstock.toml").write_text(text)
    found = read_deployment(tmp_path)
    assert (found.source.slot, found.source.ssl_mode, found.source.url.env) == (
        "penstock_d",
        "verify-full",
        "DATABASE_URL",
    )
    assert found.source.manage_replica_identity and [one.name for one in found.indexes] == ["a"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("postgresql://a%20b:hunter2@[::1]:7/x%2Fy", "postgresql://a%20b@[::1]:7/x%2Fy"),
        ("host=/run/pg user=a dbname=d port=6 password=hunter2", "postgresql:///d?user=a&port=6&host=/run/pg"),
    ],
)
def test_the_url_that_is_shown_leads_to_the_same_server_without_the_password(given: str, shown: str) -> None:
    told = url_without_password(resolve(given, env={}))
    assert told == shown
    assert resolve(told, env={}) == resolve(given, env={}).merged({"password": ""})
