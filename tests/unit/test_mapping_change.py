"""Which files mean the same index, and which changes an index takes in place."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from penstock.document.mapping import IndexSettings, index_body
from penstock.document.mapping_analysis import TextAnalysis
from penstock.document.mapping_change import Difference, additive, compare, extends, fingerprint
from penstock.document.schema import (
    Comparison,
    DocumentSchema,
    Field,
    FilterOp,
    Join,
    JoinKind,
    LeafType,
    OpenMap,
    Order,
    Place,
    Raw,
    Scalar,
    SoftDelete,
    Transform,
)
from penstock.model import QualifiedTable

THING, OTHER = QualifiedTable("public", "thing"), QualifiedTable("public", "other")
ID, NAME = Scalar("id", LeafType.LONG, "id"), Scalar("name", LeafType.TEXT, "name")
KIND = Scalar("kind", LeafType.ENUM, "kind", variants=("a", "b"))
ROWS = Join("rows", JoinKind.HAS_MANY, OTHER, (ID, NAME), foreign_key=("thing_id",))
SCHEMA = DocumentSchema("things", THING, (ID, NAME, KIND, ROWS))


def with_fields(*fields: Field) -> DocumentSchema:
    return replace(SCHEMA, fields=fields)


def test_the_fingerprint_is_a_sha256_that_stays_as_it_is() -> None:
    """A change here makes every index of every user be filled anew: let it be on purpose."""
    assert re.fullmatch("[0-9a-f]{64}", fingerprint(SCHEMA))
    assert fingerprint(with_fields(ID)) == "cd35aba6f2dd30bd3bfed6311a7c679aefa4c8719882d40772d0986decbb32ab"


@pytest.mark.parametrize(
    "same",
    [
        replace(SCHEMA, place=Place("elsewhere.yml", 9, 9)),
        replace(SCHEMA, index="renamed"),
        with_fields(ROWS, KIND, NAME, ID),
        with_fields(ID, NAME, KIND, replace(ROWS, fields=(NAME, ID))),
        with_fields(replace(ID, place=Place("x", 1, 1)), NAME, KIND, ROWS),
    ],
    ids=["place", "index name", "order of fields", "order of nested fields", "place of a field"],
)
def test_what_means_the_same_has_the_same_fingerprint(same: DocumentSchema) -> None:
    assert fingerprint(same) == fingerprint(SCHEMA)


def test_filters_count_in_any_order() -> None:
    one, two = Raw("a > 1"), Comparison("b", FilterOp.EQ, (1,))
    assert fingerprint(replace(SCHEMA, filters=(one, two))) == fingerprint(replace(SCHEMA, filters=(two, one)))


@pytest.mark.parametrize(
    "other",
    [
        replace(SCHEMA, table=OTHER),
        replace(SCHEMA, primary_key=("key",)),
        replace(SCHEMA, doc_id=("name",)),
        replace(SCHEMA, soft_delete=SoftDelete("gone")),
        replace(SCHEMA, filters=(Raw("a > 1"),)),
        with_fields(ID, NAME, KIND),
        with_fields(ID, replace(NAME, column="title"), KIND, ROWS),
        with_fields(ID, replace(NAME, type=LeafType.IDENTIFIER), KIND, ROWS),
        with_fields(ID, replace(NAME, transforms=(Transform.TRIM,)), KIND, ROWS),
        with_fields(ID, replace(NAME, default="–"), KIND, ROWS),
        with_fields(ID, replace(NAME, options={"boost": 2}), KIND, ROWS),
        with_fields(ID, NAME, replace(KIND, variants=("b", "a")), ROWS),
        with_fields(ID, NAME, KIND, replace(ROWS, limit=3)),
        with_fields(ID, NAME, KIND, replace(ROWS, order_by=(Order("at"),))),
        with_fields(ID, NAME, KIND, replace(ROWS, filters=(Raw("a > 1"),))),
        with_fields(ID, NAME, KIND, replace(ROWS, foreign_key=("other_id",))),
    ],
)
def test_what_changes_a_document_or_its_mapping_changes_the_fingerprint(other: DocumentSchema) -> None:
    assert fingerprint(other) != fingerprint(SCHEMA)


def test_only_those_settings_count_that_change_what_is_found() -> None:
    plain = fingerprint(SCHEMA)
    assert fingerprint(SCHEMA, IndexSettings(5, 2, "1s")) == plain
    assert fingerprint(SCHEMA, IndexSettings(auto_subfields=False)) != plain
    assert fingerprint(SCHEMA, IndexSettings(text_analysis=TextAnalysis.ICU)) != plain
    assert fingerprint(SCHEMA, IndexSettings(pipeline="p")) != plain


OLD = index_body(SCHEMA)


def body(*fields: Field, **settings: Any) -> dict[str, Any]:
    return index_body(with_fields(*fields), IndexSettings(**settings))


@pytest.mark.parametrize(
    "new",
    [
        body(ID, NAME, KIND, ROWS, Scalar("more", LeafType.DATE, "more")),
        body(ID, NAME, KIND, replace(ROWS, fields=(ID, NAME, Scalar("more", LeafType.TEXT, "more")))),
        body(ID, replace(NAME, options={"fields": {"raw": {"type": "keyword"}}}), KIND, ROWS),
        body(replace(ID, column="other_id"), NAME, KIND, ROWS, number_of_replicas=0, refresh_interval="1s"),
    ],
    ids=["field", "nested field", "subfield", "nothing of the index"],
)
def test_additions_are_taken_in_place(new: dict[str, Any]) -> None:
    assert additive(OLD, new)
    assert compare(OLD, new)[0] is (Difference.NONE if new["mappings"] == OLD["mappings"] else Difference.ADDITIVE)


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (body(ID, KIND, ROWS), "name: an index cannot forget a field"),
        (
            body(replace(ID, type=LeafType.INTEGER), NAME, KIND, ROWS),
            'id: type was "long", and would be "integer"',
        ),
        (
            body(ID, NAME, KIND, replace(ROWS, options={"type": "object"})),
            'rows: type was "nested", and would be "object"',
        ),
        (
            body(ID, NAME, KIND, replace(ROWS, fields=(ID, replace(NAME, options={"analyzer": "german"})))),
            'rows.name: analyzer was "penstock_text", and would be "german"',
        ),
        (
            body(ID, NAME, KIND, ROWS, Scalar("rank", LeafType.ENUM, "r", variants=("x", "y"))),
            "analysis: an open index takes no other analyzers or normalizers",
        ),
        (
            body(ID, NAME, KIND, ROWS, number_of_shards=2),
            "number_of_shards: an index keeps the number it was made with",
        ),
    ],
)
def test_what_an_index_cannot_take_is_named(new: dict[str, Any], reason: str) -> None:
    assert compare(OLD, new) == (Difference.BREAKING, (reason,))
    assert not additive(OLD, new)


def test_the_values_of_a_map_keep_their_type() -> None:
    old, new = (body(ID, OpenMap("m", "m", values)) for values in (LeafType.LONG, LeafType.TEXT))
    assert compare(old, new)[1] == ("m: values that came already keep the type that they have",)
    assert additive(body(ID), new)


EXTRA = Scalar("extra", LeafType.KEYWORD, "extra")


@pytest.mark.parametrize(
    ("new", "grows"),
    [
        (with_fields(EXTRA, ID, NAME, KIND, ROWS), True),
        (with_fields(ID, NAME, KIND, replace(ROWS, fields=(ID, NAME, EXTRA))), True),
        (with_fields(ID, NAME, KIND, ROWS, replace(ROWS, key="more")), True),
        (SCHEMA, False),
        (with_fields(ID, NAME, KIND), False),
        (with_fields(EXTRA, ID, NAME, KIND), False),
        (with_fields(EXTRA, ID, replace(NAME, column="other"), KIND, ROWS), False),
        (with_fields(EXTRA, ID, NAME, KIND, replace(ROWS, foreign_key=("other_id",))), False),
        (replace(with_fields(EXTRA, ID, NAME, KIND, ROWS), soft_delete=SoftDelete("gone")), False),
        (replace(with_fields(EXTRA, ID, NAME, KIND, ROWS), table=OTHER), False),
    ],
)
def test_a_schema_grows_when_documents_only_gain(new: DocumentSchema, grows: bool) -> None:
    """E84: any other change may take something away, and is not made in place."""
    assert extends(SCHEMA, new) is grows
