"""Bulk requests as bytes, and what each answer means; no server needed."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from penstock.errors import BugError
from penstock.model import Lsn
from penstock.sinks.opensearch_bulk import Item, Verdict, actions, cut, describe, judge, read, took_all

PROPERTIES = {
    "price": {"type": "double"},
    "attributes": {"type": "object", "dynamic": True},
    "rows": {"type": "nested", "properties": {"name": {"type": "text", "fields": {"keyword": {"type": "keyword"}}}}},
}


def test_a_request_is_lines_of_json_with_the_version_and_the_documents_own_bytes() -> None:
    lines = actions(Lsn(0x16B374D848), ["1", 'a"b\n\u2028é'], [b'{"n":1.10}', None])
    assert lines[0] == b'{"index":{"_id":"1","version":97500059720,"version_type":"external_gte"}}\n{"n":1.10}\n'
    assert lines[1].count(b"\n") == 1
    assert json.loads(lines[1])["delete"]["_id"] == 'a"b\n\u2028é'


def test_a_version_that_no_server_holds_is_refused() -> None:
    with pytest.raises(BugError):
        actions(Lsn.MAX, ["1"], [None])


def test_cuts_keep_order_and_limits(rng: random.Random) -> None:
    for _ in range(200):
        lines = [b"x" * rng.randint(1, 30) for _ in range(rng.randint(0, 20))]
        count, size = rng.randint(1, 6), rng.randint(1, 60)
        parts = [lines[begin:end] for begin, end in cut(lines, count, size)]
        assert [line for part in parts for line in part] == lines
        for part, after in zip(parts, [*parts[1:], []], strict=False):
            assert 0 < len(part) <= count
            assert len(part) == 1 or sum(map(len, part)) <= size
            if after:
                assert len(part) == count or sum(map(len, part)) + len(after[0]) > size, "cut where it had to be"


@pytest.mark.parametrize(
    "item, verdict",
    [
        (Item(200), Verdict.TAKEN),
        (Item(201), Verdict.TAKEN),
        (Item(404), Verdict.TAKEN),  # a delete that found nothing
        (Item(404, "index_not_found_exception"), Verdict.ASTRAY),
        (Item(409, "version_conflict_engine_exception"), Verdict.OLDER),
        (Item(429, "rejected_execution_exception"), Verdict.AGAIN),
        (Item(429, "circuit_breaking_exception"), Verdict.AGAIN),
        (Item(429, "cluster_block_exception"), Verdict.BLOCKED),
        (Item(403, "cluster_block_exception"), Verdict.BLOCKED),
        (Item(503, "cluster_block_exception"), Verdict.AGAIN),  # a cluster that is still starting
        (Item(503, "unavailable_shards_exception"), Verdict.AGAIN),
        (Item(403, "security_exception"), Verdict.REFUSED),
        (Item(400, "illegal_argument_exception", "pipeline with id [x] does not exist"), Verdict.REFUSED),
        (Item(400, "mapper_parsing_exception"), Verdict.REJECTED),
        (Item(400, "strict_dynamic_mapping_exception"), Verdict.REJECTED),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, Item) else value.name,
)
def test_each_item_is_judged_by_status_and_type(item: Item, verdict: Verdict) -> None:
    """E80–E82, E87: the status alone does not tell."""
    assert judge(item) is verdict


@pytest.mark.parametrize(
    "reason, cause, told",
    [
        ("failed to parse field [price] of type [double] in document with id '7'. Preview of field's value: 'SECRET'",
         'For input string: "SECRET"', "kind: field price of type double"),
        ("failed to parse field [attributes.SECRET] of type [long] in document", "",
         "kind: field attributes of type long"),
        ("failed to parse field [rows.name.keyword] of type [keyword]", "",
         "kind: field rows.name.keyword of type keyword"),
        ("mapping set to strict, dynamic introduction of [SECRET] within [_doc] is not allowed", "",
         "kind: a key that is not in the mapping"),
        ("mapping set to strict, dynamic introduction of [SECRET] within [rows] is not allowed", "",
         "kind: a key that is not in the mapping, in rows"),
        ("Limit of total fields [1000] has been exceeded", "", "kind: Limit of total fields [1000]"),
        ("failed to parse", "The number of nested documents has exceeded the allowed limit of [10000]. SECRET",
         "kind: The number of nested documents has exceeded the allowed limit of [10000]"),
        ('Document contains at least one immense term in field="rows.name" (whose … is: SECRET', "",
         "kind: field rows.name"),
        ("object mapping for [price] tried to parse field [SECRET] as object", "", "kind: field price"),
        ("SECRET", "SECRET", "kind"),
    ],
)  # fmt: skip
def test_a_reason_names_what_the_mapping_has_and_nothing_of_the_document(reason: str, cause: str, told: str) -> None:
    """E81: the server quotes values in its own words."""
    assert describe(Item(400, "kind", reason, cause), PROPERTIES) == told


@pytest.mark.parametrize("answer", [b"", b"<html>", b"[]", b'{"items":[{"index":{}}]}', b'{"items":[]}', b'{"took":1}'])
def test_an_answer_without_an_item_for_each_write_is_no_answer(answer: bytes) -> None:
    """E87: HTTP 200 proves nothing."""
    with pytest.raises(BugError):
        read(answer, 1)


def test_items_are_read_in_order() -> None:
    error: dict[str, Any] = {"type": "kind", "reason": "words", "caused_by": {"reason": "cause"}}
    items = [{"index": {"status": 201}}, {"delete": {"status": 404}}, {"index": {"status": 400, "error": error}}]
    assert read(json.dumps({"items": items}).encode(), 3) == [Item(201), Item(404), Item(400, "kind", "words", "cause")]


def test_only_an_answer_of_as_many_items_without_an_error_is_a_whole_success() -> None:
    """E87: one error among them, or one item fewer, and each is looked at."""
    fine, gone = {"index": {"status": 201}}, {"delete": {"status": 404}}
    bad = {"index": {"status": 409, "error": {"type": "version_conflict_engine_exception"}}}

    def answer(*items: Any) -> bytes:
        return json.dumps({"errors": bad in items, "items": items}, separators=(",", ":")).encode()

    assert took_all(answer(fine, gone), 2)
    assert not took_all(answer(fine), 2)
    assert not took_all(answer(fine, bad), 2)
    assert not took_all(b"", 1)
