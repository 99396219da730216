"""What an index is made with: a field of every kind, options, analyzers, limits."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.document.mapping import IndexSettings, field_mapping, index_body
from penstock.document.mapping_analysis import TextAnalysis
from penstock.document.mapping_tree import Branch, mapping_tree
from penstock.document.schema import (
    Aggregate,
    AggregateKind,
    Constant,
    DocumentSchema,
    Field,
    Geo,
    Group,
    Join,
    JoinKind,
    LeafType,
    OpenMap,
    Order,
    Scalar,
    Through,
)
from penstock.model import QualifiedTable

PLAIN = IndexSettings(auto_subfields=False)


def q(name: str) -> QualifiedTable:
    return QualifiedTable("public", name)


def scalar(type: str, key: str = "x", **more: Any) -> Scalar:
    return Scalar(key, LeafType(type), key, **more)


def schema(*fields: Field) -> DocumentSchema:
    return DocumentSchema("things", q("thing"), fields)


EVERY_LEAF = schema(*(scalar(leaf, leaf, opensearch="ip", variants=("b", "a")) for leaf in LeafType))


def join(kind: str, *fields: Field, key: str = "rows", **more: Any) -> Join:
    return Join(key, JoinKind(kind), q("other"), fields, foreign_key=("thing_id",), **more)


@pytest.mark.parametrize(
    ("leaf", "indexed"),
    [
        ("text", "text"), ("identifier", "text"), ("keyword", "keyword"), ("enum", "keyword"), ("uuid", "keyword"),
        ("boolean", "boolean"), ("short", "short"), ("integer", "integer"), ("long", "long"), ("float", "float"),
        ("double", "double"), ("decimal", "double"), ("date", "date"), ("timestamp", "date"), ("binary", "binary"),
        ("json", "object"),
    ],
)  # fmt: skip
def test_every_leaf_has_the_type_that_the_language_names(leaf: str, indexed: str) -> None:
    assert field_mapping(scalar(leaf))["type"] == indexed


def test_no_leaf_is_forgotten() -> None:
    for leaf in LeafType:
        assert field_mapping(scalar(leaf, opensearch="ip"))["type"]


def test_a_custom_leaf_is_what_the_file_says() -> None:
    assert field_mapping(scalar("custom", opensearch="ip", postgres=("inet",))) == {"type": "ip"}


def test_text_is_exact_too_and_keywords_are_searched_too_unless_told_otherwise() -> None:
    assert field_mapping(scalar("text"))["fields"]["keyword"]["type"] == "keyword"
    assert field_mapping(scalar("identifier"))["fields"]["keyword"]["type"] == "keyword"
    assert field_mapping(scalar("keyword"))["fields"]["text"]["analyzer"] == "penstock_code"
    for leaf in ("text", "identifier", "keyword"):
        assert "fields" not in field_mapping(scalar(leaf), PLAIN)


def test_every_analyzer_that_a_field_names_is_defined() -> None:
    for kind in TextAnalysis:
        body = index_body(EVERY_LEAF, IndexSettings(text_analysis=kind))
        defined = body["settings"]["index"]["analysis"]
        used = set(re.findall(r'"(?:search_)?analyzer": "(\w+)"', json.dumps(body["mappings"])))
        assert used == defined["analyzer"].keys()
        normalizers = set(re.findall(r'"normalizer": "(\w+)"', json.dumps(body["mappings"])))
        assert normalizers == defined["normalizer"].keys()
        filters = {name for one in defined["normalizer"].values() for name in one["char_filter"]}
        assert filters == defined["char_filter"].keys()


def test_icu_folds_by_the_plugin_and_builtin_without_it() -> None:
    """The golden file holds the whole body; `PENSTOCK_GOLDEN=write` writes it anew. tests/sinks shows it refused."""
    assert "icu" not in json.dumps(index_body(EVERY_LEAF))
    icu = index_body(EVERY_LEAF, IndexSettings(text_analysis=TextAnalysis.ICU))
    file = Path(__file__).parent / "golden" / "icu.json"
    if os.environ.get("PENSTOCK_GOLDEN") == "write":
        file.write_text(json.dumps(icu, indent=2) + "\n")
    assert icu == json.loads(file.read_text())


def rank_of(value: str, variants: tuple[str, ...]) -> str:
    """What the index's chain of filters makes of a value."""
    body = index_body(schema(scalar("enum", variants=variants)))
    defined = body["settings"]["index"]["analysis"]
    normalizer = body["mappings"]["properties"]["x"]["fields"]["rank"]["normalizer"]
    for name in defined["normalizer"][normalizer]["char_filter"]:
        value = re.sub(defined["char_filter"][name]["pattern"], defined["char_filter"][name]["replacement"], value)
    return value


def test_an_ordered_enum_sorts_by_rank() -> None:
    variants = ("low", "very.low", "high", "0", "1", *(f"v{number}" for number in range(10)), "a+b (c)", "Ärger", "l-w")
    ranks = [rank_of(variant, variants) for variant in variants]
    assert ranks == sorted(ranks) and len(set(ranks)) == len(variants)
    assert rank_of("lowest", variants) == "lowest" > ranks[-1]
    assert rank_of("veryxlow", variants) == "veryxlow", "a dot is no pattern"


def test_an_enum_without_variants_has_no_rank() -> None:
    assert "fields" not in field_mapping(scalar("enum"))


def test_relations_are_objects_or_nested_arrays() -> None:
    for kind, indexed in (
        ("belongs_to", "object"), ("has_one", "object"), ("has_many", "nested"), ("many_to_many", "nested"),
    ):  # fmt: skip
        found = field_mapping(join(kind, scalar("long", "id")))
        assert found == {"type": indexed, "properties": {"id": {"type": "long"}}}


def test_groups_geo_constants_and_aggregates() -> None:
    assert field_mapping(Group("g", (scalar("long", "id"),)))["properties"] == {"id": {"type": "long"}}
    assert field_mapping(Geo("g", column="at")) == {"type": "geo_point"}
    values = {True: "boolean", 7: "long", 1.5: "double", "a": "keyword"}
    assert {value: field_mapping(Constant("c", value))["type"] for value in values} == values
    kinds = {kind: Aggregate("a", kind, q("other"), type=LeafType.DATE) for kind in AggregateKind}
    found = {kind.value: field_mapping(one)["type"] for kind, one in kinds.items()}
    assert found == {"count": "long", "avg": "double", "sum": "date", "min": "date", "max": "date", "ids": "date"}


def test_unknown_fields_are_rejected_except_below_json_and_map() -> None:
    body = index_body(schema(scalar("json", "j"), OpenMap("m", "m", LeafType.LONG), Group("g", ())))
    assert body["mappings"]["dynamic"] == "strict"
    assert body["mappings"]["properties"]["j"] == {"type": "object", "dynamic": True}
    assert "dynamic" not in body["mappings"]["properties"]["g"]


def test_a_maps_values_get_their_leaf_at_any_depth() -> None:
    inner = OpenMap("prices", "prices", LeafType.DECIMAL)
    body = index_body(schema(join("has_many", Group("g", (inner,)))))
    assert body["mappings"]["dynamic_templates"] == [
        {"rows.g.prices": {"path_match": "rows.g.prices.*", "mapping": {"type": "double"}}}
    ]


def test_options_always_win() -> None:
    assert field_mapping(scalar("text", options={"analyzer": "german"}))["analyzer"] == "german"
    more = field_mapping(scalar("text", options={"fields": {"raw": {"type": "keyword"}}}))
    assert more["fields"].keys() == {"keyword", "raw"}
    money = scalar("decimal", options={"type": "scaled_float", "scaling_factor": 100})
    assert field_mapping(money) == {"type": "scaled_float", "scaling_factor": 100}
    assert field_mapping(scalar("text", options={"type": "keyword"})) == {"type": "keyword"}, "no analyzer is left over"
    flat = join("has_many", scalar("long", "id"), options={"type": "object"})
    assert field_mapping(flat) == {"type": "object", "properties": {"id": {"type": "long"}}}


def test_settings_of_the_sink_are_those_of_the_index() -> None:
    settings = IndexSettings(3, 0, "1s", pipeline="enrich")
    index = index_body(schema(scalar("long")), settings)["settings"]["index"]
    assert (index["number_of_shards"], index["number_of_replicas"], index["refresh_interval"]) == (3, 0, "1s")
    assert index["default_pipeline"] == "enrich"
    assert not [name for name in index if name.startswith("mapping.")], "a small schema needs no other limits"


def test_a_large_schema_raises_the_limits_that_it_needs() -> None:
    wide = schema(*(scalar("text", f"f{number}") for number in range(600)))
    assert index_body(wide)["settings"]["index"]["mapping.total_fields.limit"] == 1200
    many = schema(*(join("has_many", key=f"r{number}") for number in range(51)))
    assert index_body(many)["settings"]["index"]["mapping.nested_fields.limit"] == 51
    deep: Field = scalar("long")
    for _ in range(20):
        deep = Group("g", (deep,))
    assert index_body(schema(deep))["settings"]["index"]["mapping.depth.limit"] == 21


def test_the_tree_says_what_each_key_is_and_where_it_comes_from() -> None:
    through = Through(q("thing_tag"), ("thing_id",), ("tag_id",))
    tree = mapping_tree(
        schema(
            scalar("identifier", "code", required=True),
            join("has_many", scalar("uuid", "id"), order_by=(Order("at", descending=True),), limit=3),
            Join("tags", JoinKind.MANY_TO_MANY, q("tag"), (), through=through),
            Aggregate("n", AggregateKind.COUNT, q("other"), foreign_key=("thing_id",)),
        )
    )
    assert tree == Branch("things", "index", "public.thing", (), tree.below)
    assert tree.below == (
        Branch("code", "text (identifier)", "code, required", ("keyword",)),
        Branch(
            "rows", "nested", "has_many public.other by thing_id, by at desc, at most 3",
            below=(Branch("id", "keyword (uuid)", "id"),),
        ),
        Branch("tags", "nested", "many_to_many public.tag by public.thing_tag (thing_id → tag_id)"),
        Branch("n", "long", "count of public.other by thing_id"),
    )  # fmt: skip


def test_the_reference_says_how_each_leaf_is_indexed() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/mapping.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([a-z_]+) \|", page, re.MULTILINE))
    assert rows == rows | {leaf.value: field_mapping(scalar(leaf))["type"] for leaf in LeafType if leaf != "custom"}
    named = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| .*? \|", page, re.MULTILINE))))
    others = {*JoinKind, *AggregateKind, "object", "map", "constant", "geo", "custom"}
    assert not {str(word) for word in others} - named
    settings = {one.name for one in dataclasses.fields(IndexSettings)}
    assert not settings - named
