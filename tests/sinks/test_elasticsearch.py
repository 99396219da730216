"""The sink on Elasticsearch 8.19: the contract of every sink, and what its answers mean for us.

The node is the server's core: what needs its further modules (analyzers) is shown on 7.10, see
`test_elasticsearch_7`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from penstock.app.parts import open_sink
from penstock.config.file import read_deployment
from penstock.contracts import Documents, Writes
from penstock.errors import OperatorError, RetryableError
from penstock.model import Lsn
from penstock.sinks.opensearch import OpenSearchSettings, OpenSearchSink
from tests.fixtures.opensearch import MAX_REQUEST_MB, Node
from tests.sinks import test_delta, test_parquet
from tests.sinks.contract import INDEX, Rig, SinkContract, put, target
from tests.sinks.test_opensearch import make, read


@pytest.fixture
def rig(node8: Node) -> Iterator[Rig]:
    """The node without an index."""
    yield Rig(make, node8.url, partial(read, node8), b'{"n": "seven of nine"}')
    remove_all(node8)


def remove_all(node: Node) -> None:
    """Remove every index of the contract; by name, for this server refuses to delete by a pattern."""
    for name in indexes(node):
        assert node.ask("DELETE", f"/{name}")[0] == 200


def indexes(node: Node) -> list[str]:
    """The indexes there are."""
    return sorted(node.ask("GET", f"/{INDEX}-*,users-*?expand_wildcards=all&allow_no_indices=true")[1])


class TestElasticsearch(SinkContract):
    """E72, E81–E83, E85: what every keyed sink promises."""


def test_a_rejection_names_the_field_and_no_value(rig: Rig) -> None:
    """E81: in this server's words, too."""
    with rig.sink() as sink:
        bodies: list[bytes | None] = [b'{"n": "secret"}', b'{"secret": 1}', b'{"title": {"secret": 1}}', b"secret"]
        rejected = sink.write(Writes(Lsn(5), Documents(INDEX, ["a", "b", "c", "d"], bodies)))
        assert [one.id for one in rejected] == ["a", "b", "c", "d"]
        assert "secret" not in repr(rejected)
        assert "field n of type integer" in rejected[0].reason
        assert "not in the mapping" in rejected[1].reason
        assert "field title" in rejected[2].reason


def test_what_is_larger_than_the_server_takes_is_halved_and_one_alone_rejected(node8: Node, rig: Rig) -> None:
    """E82: a real 413; neighbours land."""
    large = json.dumps({"n": 1, "title": "x" * ((MAX_REQUEST_MB << 20) // 3)}).encode()
    huge = json.dumps({"n": 1, "title": "x" * (MAX_REQUEST_MB << 20)}).encode()
    sink = OpenSearchSink(OpenSearchSettings("search", node8.url, max_bytes=100 << 20))
    sink.open(target())
    rejected = sink.write(Writes(Lsn(5), Documents(INDEX, [*"abc", "huge"], [*[large] * 3, huge])))
    assert [(one.id, "larger than the server takes" in one.reason) for one in rejected] == [("huge", True)]
    sink.complete(INDEX, Lsn(5))
    assert rig.content() == dict.fromkeys("abc", 1)
    sink.close()


def test_a_blocked_index_is_the_operators(node8: Node, rig: Rig) -> None:
    """E87: as a disk at its flood stage leaves it; mended, writing goes on."""
    with rig.sink() as sink:
        sink.complete(INDEX, Lsn(1))
        (name,) = indexes(node8)
        for block in "read_only_allow_delete", "write":
            node8.ask("PUT", f"/{name}/_settings", {f"index.blocks.{block}": True})
            with pytest.raises(OperatorError, match="blocked for writes"):
                put(sink, 5, {"x": 1})
            node8.ask("PUT", f"/{name}/_settings", {f"index.blocks.{block}": None})
        put(sink, 5, {"x": 1})
        assert rig.content() == {"x": 1}


def test_deletes_are_remembered_far_longer_than_the_servers_minute(node8: Node, rig: Rig) -> None:
    """E88: nobody else ever writes to an index by a name that is gone, either."""
    with rig.sink() as sink:
        (name,) = indexes(node8)
        shown = node8.ask("GET", f"/{name}")[1][name]
        assert shown["settings"]["index"]["gc_deletes"] == "1h"
        node8.ask("DELETE", f"/{name}")
        with pytest.raises(RetryableError, match="is gone"):
            put(sink, 5, {"x": 1})
        assert indexes(node8) == []


def test_the_words_of_a_deployment_lead_to_each_sink(node8: Node, rig: Rig, tmp_path: Path) -> None:
    """`elasticsearch`, with its URL by the variable that is reserved for it, beside the sinks that write files."""
    file = tmp_path / "penstock.toml"
    file.write_text(
        '[source]\ntype = "postgres"\nconnection_url = { env = "NOT_ASKED_FOR" }\n[sinks.es]\ntype = "elasticsearch"\n'
        '[sinks.l]\ntype = "delta"\npath = "l"\n[sinks.p]\ntype = "parquet"\npath = "p"\n'
    )
    deployment = read_deployment(file)
    with mock.patch.dict(os.environ, {"ES_ELASTICSEARCH_URL": node8.url}):
        opened = [open_sink(config, deployment) for config in deployment.sinks]
    assert [(sink.name, type(sink).__name__) for sink in opened] == [
        ("es", "OpenSearchSink"), ("l", "DeltaSink"), ("p", "ParquetSink"),
    ]  # fmt: skip
    for sink in opened:
        sink.open(target())
        put(sink, 5, {"x": 1})
        sink.complete(INDEX, Lsn(5))
        sink.close()
    assert rig.content() == {"x": 1}
    assert test_delta.read(str(tmp_path / "l"), INDEX).keys() == {"x"}
    assert test_parquet.read(str(tmp_path / "p"), INDEX).keys() == {"x"}
