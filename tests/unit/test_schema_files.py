"""A schema file becomes a document schema, or every problem of it at once, each with its place."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from penstock.document.reading import FileErrors, read_schema
from penstock.document.reading_tree import Problems
from penstock.document.reading_words import FIELDS, TABLES, json_schema
from penstock.document.reading_yaml import parse_yaml
from penstock.document.schema import (
    Aggregate,
    AggregateKind,
    AnyOf,
    Comparison,
    Constant,
    DocumentSchema,
    FilterOp,
    Geo,
    Group,
    Join,
    JoinKind,
    LeafType,
    OpenMap,
    Order,
    Place,
    Raw,
    Scalar,
    SoftDelete,
    Through,
    Transform,
)
from penstock.model import QualifiedTable
from tests.unit.json_schemas import fits

HERE = Path(__file__).parent
BAD = HERE / "bad_files" / "schemas"
GOOD = sorted([*(HERE.parents[1] / "examples").glob("*/*.schema.yml"), *(HERE / "flusso_style").glob("*.schema.yml")])


def table(name: str) -> QualifiedTable:
    return QualifiedTable("public", name)


def read(*lines: str, head: str = "version: 1\ntable: orders\nprimary_key: id\n") -> DocumentSchema:
    return read_schema(head + "fields:\n" + "\n".join(f"  {line}" for line in lines), "orders")


def problems(text: str) -> list[str]:
    with pytest.raises(FileErrors) as found:
        read_schema(text, "orders")
    return [str(one) for one in found.value.problems]


@pytest.mark.parametrize("file", sorted(BAD.glob("*.schema.yml")), ids=lambda file: file.name.partition(".")[0])
def test_a_bad_file_is_told_by_exactly_these_problems(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(BAD)
    with pytest.raises(FileErrors) as found:
        read_schema(Path(file.name), "orders")
    assert str(found.value) + "\n" == file.with_name(file.name.replace(".schema.yml", ".txt")).read_text()


def test_there_are_bad_files_and_each_has_its_message() -> None:
    assert len(list(BAD.glob("*.schema.yml"))) >= 40
    assert {one.name.partition(".")[0] for one in BAD.glob("*.txt")} == {
        one.name.partition(".")[0] for one in BAD.glob("*.schema.yml")
    }


def test_a_schema_is_read_whole() -> None:
    schema = read(
        "- long: id",
        "  required: true",
        "- keyword: eMail",
        "  transforms: [trim, lowercase]",
        "  default: none",
        "  options: {ignore_above: 99}",
        "- object: state",
        "  fields: [{enum: word, variants: [open, paid]}]",
        "- geo: at",
        "  lat: y",
        "  lon: x",
        "- map: title",
        "  values: text",
        "- constant: kind",
        "  value: order",
        head="version: 1\ntable: orders\nprimary_key: id\ndoc_id: [site, id]\nsoft_delete: {field: word}\n"
        "filters: [{raw: total > 0}, {any: [{column: a, op: in, value: [1, 2]}, {column: b, op: is_null}]}]\n",
    )
    assert schema == DocumentSchema(
        "orders",
        table("orders"),
        (
            Scalar("id", LeafType.LONG, "id", True),
            Scalar(
                "eMail", LeafType.KEYWORD, "email", transforms=(Transform.TRIM, Transform.LOWERCASE), default="none",
                options={"ignore_above": 99},
            ),
            Group("state", (Scalar("word", LeafType.ENUM, "word", variants=("open", "paid")),)),
            Geo("at", lat="y", lon="x"),
            OpenMap("title", "title", LeafType.TEXT),
            Constant("kind", "order"),
        ),
        ("id",),
        ("site", "id"),
        SoftDelete("word"),
        (
            Raw("total > 0"),
            AnyOf((Comparison("a", FilterOp.IN, (1, 2)), Comparison("b", FilterOp.IS_NULL))),
        ),
    )  # fmt: skip


def test_joins_and_aggregates_are_read_to_any_depth() -> None:
    schema = read(
        "- belongs_to: customerId",
        "  table: customers",
        "  required: true",
        "  fields:",
        "    - has_many: addresses",
        "      table: addresses",
        "      foreign_key: customer_id",
        "      order_by: [{column: city}, {column: id, direction: desc}]",
        "      limit: 3",
        "      fields: [{keyword: city}]",
        "- many_to_many: tags",
        "  table: tags",
        "  through: {table: order_tags, left_key: order_id, right_key: tag_id}",
        "  fields: [{keyword: label}]",
        "- sum: total",
        "  table: lines",
        "  column: price",
        "  value_type: decimal",
        "  foreign_key: order_id",
        "  filters: [{column: kind, op: neq, value: gift}]",
        "- ids: tagIds",
        "  table: tags",
        "  element_type: long",
        "  through: {table: order_tags, left_key: order_id, right_key: tag_id}",
    )
    through = Through(table("order_tags"), ("order_id",), ("tag_id",))
    inner = Join(
        "addresses", JoinKind.HAS_MANY, table("addresses"), (Scalar("city", LeafType.KEYWORD, "city"),),
        foreign_key=("customer_id",), order_by=(Order("city"), Order("id", True)), limit=3,
    )  # fmt: skip
    assert schema.fields == (
        Join("customerId", JoinKind.BELONGS_TO, table("customers"), (inner,), ("customerid",), required=True),
        Join("tags", JoinKind.MANY_TO_MANY, table("tags"), (Scalar("label", LeafType.KEYWORD, "label"),),
             through=through),
        Aggregate("total", AggregateKind.SUM, table("lines"), "price", ("order_id",), type=LeafType.DECIMAL,
                  filters=(Comparison("kind", FilterOp.NEQ, ("gift",)),)),
        Aggregate("tagIds", AggregateKind.IDS, table("tags"), through=through, type=LeafType.LONG),
    )  # fmt: skip


def test_each_part_knows_its_place() -> None:
    schema = read("- long: id", "- has_many: lines", "  table: lines", "  foreign_key: o", "  fields: [{long: id}]")
    join = schema.fields[1]
    assert isinstance(join, Join)
    assert (schema.place, join.place) == (Place("orders.schema.yml", 1, 1), Place("orders.schema.yml", 6, 5))
    assert join.fields[0].place == Place("orders.schema.yml", 9, 14)


def test_names_fold_unless_quoted_and_tables_may_name_their_schema() -> None:
    """E68: ids and names that need quotes are read as the catalog has them."""
    schema = read(
        '- keyword: "Order State"',
        "  column: '\"Order State\"'",
        "- keyword: Grüße",
        "  column: GRÜSSE$1",
        "- has_many: lines",
        '  table: \'"Big"."Li""nes"\'',
        "  foreign_key: ORDER_ID",
        "  fields: [{long: id}]",
        "- count: n",
        "  table: things",
        "  schema: Other",
        "  foreign_key: o",
        head="version: 1\ntable: Sales.ORDERS\n",
    )
    assert schema.table == QualifiedTable("sales", "orders")
    columns = [one.column for one in schema.fields if isinstance(one, Scalar)]
    assert columns == ["Order State", "grÜsse$1"]
    joined = [one for one in schema.fields if isinstance(one, Join | Aggregate)]
    assert [one.table for one in joined] == [QualifiedTable("Big", 'Li"nes'), QualifiedTable("other", "things")]
    assert joined[0].foreign_key == ("order_id",)


def test_a_joined_table_is_in_the_schema_of_the_one_above_it() -> None:
    schema = read(
        "- many_to_many: tags",
        "  table: tags",
        "  through: {table: order_tags, left_key: o, right_key: t}",
        "  fields:",
        "    - count: uses",
        "      table: audit.uses",
        "      foreign_key: t",
        head="version: 1\ntable: orders\nschema: sales\n",
    )
    assert schema.tables == {
        QualifiedTable("sales", "orders"), QualifiedTable("sales", "tags"), QualifiedTable("sales", "order_tags"),
        QualifiedTable("audit", "uses"),
    }  # fmt: skip


def test_keys_of_several_columns_are_lists() -> None:
    schema = read(
        "- keyword: site",
        "- has_many: moves",
        "  table: moves",
        "  foreign_key: [site, bin]",
        "  fields: [{long: n}]",
        head="version: 1\ntable: stock\nprimary_key: [site, bin]\n",
    )
    join = schema.fields[1]
    assert isinstance(join, Join)
    assert (schema.primary_key, join.foreign_key) == (("site", "bin"), ("site", "bin"))


@pytest.mark.parametrize("file", GOOD, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_examples_and_files_in_flussos_style_are_read_as_they_are(file: Path) -> None:
    schema = read_schema(file, "any")
    assert schema.fields
    assert pickle.loads(pickle.dumps(schema)) == schema


def test_the_style_files_use_every_type_of_field() -> None:
    used: set[str] = set()
    for file in GOOD:
        text = file.read_text()
        used |= {type_ for type_ in FIELDS if f"- {type_}: " in text}
    assert used == set(FIELDS)


@pytest.mark.parametrize("file", GOOD, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_the_json_schema_accepts_every_good_file(file: Path) -> None:
    node = parse_yaml(file.read_text(), file.name, Problems())
    assert node
    assert fits(node.plain(), json_schema(), json_schema())


def test_the_json_schema_refuses_what_the_reader_refuses_for_its_shape() -> None:
    """What looks at more than one mapping (links' arity, keys that occur twice) a JSON Schema cannot say."""
    beyond = {
        "alias-without-end", "default-type", "document-key-no-column", "document-key-reserved", "document-key-twice",
        "document-key-twice-inside", "aggregate-no-link", "aggregate-two-links", "foreign-key-arity", "geo-half",
        "geo-nothing", "belongs-to-arity", "through-arity", "ids-of-two-columns", "key-column-twice", "name-too-long",
        "schema-twice", "soft-delete-both", "soft-delete-field", "soft-delete-neither", "variants-twice",
        "table-needs-quotes", "column-needs-quotes", "filter-in-one", "filter-between-three", "filter-without-value",
        "filter-is-null-value", "filter-like-number", "key-twice", "merge-key", "tagged",
    }  # fmt: skip
    accepted = set()
    for file in BAD.glob("*.schema.yml"):
        node = parse_yaml(file.read_text(), file.name, Problems())
        if node and fits(node.plain(), json_schema(), json_schema()):
            accepted.add(file.name.partition(".")[0])
    assert accepted <= beyond


def test_words_mean_what_yaml_1_2_says() -> None:
    node = parse_yaml("[yes, no, on, 2024-01-02, 1_0, 0x1f, True, NULL, ~, 010, -1.5e3, 'true', 1:30]", "f", Problems())
    assert node
    assert node.plain() == [
        "yes", "no", "on", "2024-01-02", "1_0", "0x1f", True, None, None, 10, -1500.0, "true", "1:30",
    ]  # fmt: skip


def test_aliases_are_followed_but_not_for_ever() -> None:
    assert read("- &one {keyword: a, options: {x: 1}}", "- object: o", "  fields: [*one]").fields[0].key == "a"
    laughs = "a: &a [x, x]\n" + "".join(
        f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
        for before, name in zip("abcdefghi", "bcdefghij", strict=True)
    )
    assert len(problems(laughs)) == 1


def test_deep_nesting_is_a_problem_and_no_crash() -> None:
    assert problems("a: " + "[" * 600) == [
        "orders.schema.yml:1:1: the file is nested too deeply to be read; write it flatter"
    ]


@pytest.mark.parametrize(
    ("content", "place"),
    [(b"version: 1\ntable: caf\xe9\n", "2:11"), (b"version: 1\ntable: a\x07b\n", "2:9")],
)
def test_bytes_that_are_no_text_are_told_with_their_place(tmp_path: Path, content: bytes, place: str) -> None:
    file = tmp_path / "orders.schema.yml"
    file.write_bytes(content)
    with pytest.raises(FileErrors) as found:
        read_schema(file, "orders")
    assert [str(one.place) for one in found.value.problems] == [f"{file}:{place}"]


def test_a_file_of_another_system_is_read(tmp_path: Path) -> None:
    file = tmp_path / "orders.schema.yml"
    file.write_bytes(b"\xef\xbb\xbfversion: 1\r\ntable: orders\r\nfields:\r\n  - keyword: a\r\n    requird: 1\r\n")
    with pytest.raises(FileErrors) as found:
        read_schema(file, "orders")
    assert [(one.place.line, one.place.column) for one in found.value.problems] == [(5, 5)]


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(FileErrors, match="cannot be read: no such file"):
        read_schema(tmp_path / "none.schema.yml", "orders")
    with pytest.raises(FileErrors, match="cannot be read: is a folder"):
        read_schema(tmp_path, "orders")


def test_what_a_problem_quotes_cannot_steer_a_terminal_nor_fill_it() -> None:
    (found,) = problems('version: 1\ntable: a\nfields: [{long: id}]\n"\\e[31m\\r\\nx": 1\n')
    assert "`\\x1b[31m\\r\\nx` is not a key of the schema" in found
    (found,) = problems(f"version: 1\ntable: a\nfields: [{{long: id}}]\n{'x' * 900}: 1\n")
    assert len(found) < 600


def test_file_errors_pickle_with_their_problems() -> None:
    with pytest.raises(FileErrors) as found:
        read_schema("version: 1\n", "orders")
    again = pickle.loads(pickle.dumps(found.value))
    assert again.problems == found.value.problems
    assert str(again) == str(found.value)


def test_every_key_says_what_it_means() -> None:
    assert not [key.name for one in TABLES for key in one.keys if not key.meaning.endswith(".")]
