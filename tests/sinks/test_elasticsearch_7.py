"""The sink on Elasticsearch 7.10, the oldest that it writes to: the contract, and real schemas with their analyzers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from penstock.app.origins import Origins
from penstock.app.parts import target as target_of
from penstock.config.file import read_deployment
from penstock.contracts import Documents, Writes
from penstock.model import Lsn
from tests.fixtures.opensearch import Node
from tests.sinks.contract import ROOT, Rig, SinkContract
from tests.sinks.test_elasticsearch import remove_all
from tests.sinks.test_opensearch import make, read

pytestmark = pytest.mark.long


@pytest.fixture
def rig(node7: Node) -> Iterator[Rig]:
    """The node without an index."""
    yield Rig(make, node7.url, partial(read, node7), b'{"n": "seven of nine"}')
    remove_all(node7)


class TestElasticsearch7(SinkContract):
    """E72, E81–E83, E85: what every keyed sink promises."""


def test_the_indexes_of_every_example_are_made_and_searched_by_their_analyzers(node7: Node, tmp_path: Path) -> None:
    """Analyzers, normalizers, nested rows and all: this server knows each of them."""
    sink = make(node7.url)
    places = ["src/penstock/demo/shop/penstock.toml", "examples/shop/penstock.toml", "examples/warehouse/penstock.toml"]
    names = []
    for place in places:
        deployment = read_deployment(ROOT / place)
        for index in deployment.indexes:
            origins = Origins({index.schema.index: "system/slot"})
            one = target_of(index.schema, deployment.sinks[0], "es7-", origins)
            sink.open(one)
            names.append(one.name)
            sink.complete(one.index, Lsn(1))
    assert names
    schema = read_deployment(ROOT / "examples/first/penstock.toml").indexes[0].schema
    text = target_of(schema, deployment.sinks[0], "es7-", Origins({schema.index: "s"}))
    sink.open(text)
    field = text.texts[0]
    body = json.dumps({field: "Crème brûlée"}).encode()
    assert not sink.write(Writes(Lsn(5), Documents(text.index, ["1"], [body])))
    sink.complete(text.index, Lsn(5))
    _, found = node7.ask("GET", f"/{text.name}/_search", {"query": {"match": {field: "creme brulee"}}})
    assert [hit["_id"] for hit in found["hits"]["hits"]] == ["1"]
    sink.close()
    for name in node7.ask("GET", "/es7-*?expand_wildcards=all")[1]:
        node7.ask("DELETE", f"/{name}")
