"""The OpenSearch sink on a real node: the contract of every sink, and what is particular to this one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from penstock.contracts import Documents, Sink, Target, Writes
from penstock.document.mapping import IndexSettings, index_body
from penstock.document.mapping_analysis import TextAnalysis
from penstock.document.reading import read_schema
from penstock.errors import OperatorError, RetryableError
from penstock.model import Lsn
from penstock.sinks.opensearch import OpenSearchSettings, OpenSearchSink
from tests.fixtures.opensearch import MAX_REQUEST_MB, Node
from tests.fixtures.waiting import wait_until
from tests.sinks.contract import INDEX, Rig, SinkContract, document, put, target


def make(place: str) -> Sink:
    """A sink on the node at that URL."""
    return OpenSearchSink(OpenSearchSettings("search", place, max_retries=20))  # a clear may take long on a busy node


def read(node: Node, name: str) -> Mapping[str, bytes]:
    """What a search by the readers' name finds."""
    if node.ask("POST", f"/{name}/_refresh")[0] == 404:
        return {}
    _, found = node.ask("GET", f"/{name}/_search?size=10000")
    return {hit["_id"]: json.dumps(hit["_source"]).encode() for hit in found["hits"]["hits"]}


@pytest.fixture
def rig(node: Node) -> Iterator[Rig]:
    """The node without an index."""
    yield Rig(make, node.url, partial(read, node), b'{"n": "seven of nine"}')
    node.ask("DELETE", f"/{INDEX}-*,users-*?expand_wildcards=all")


def physical(node: Node) -> dict[str, Any]:
    """The indexes there are, as the server shows them."""
    return dict(node.ask("GET", f"/{INDEX}-*?expand_wildcards=all")[1])


def only(node: Node) -> tuple[str, dict[str, Any]]:
    """The one index there is."""
    ((name, shown),) = physical(node).items()
    return name, shown


class TestOpenSearch(SinkContract):
    """E72, E81–E83, E85: what every keyed sink promises."""


class TestGenerations:
    """E84, E85: what readers see, what is remembered, and what is not believed."""

    def test_an_index_deleted_by_hand_is_made_anew_and_has_to_be_seeded(self, node: Node, rig: Rig) -> None:
        """E85: writers that had it open are told, and no index appears by itself."""
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(4))
            before = sink.generation(INDEX)  # type: ignore[attr-defined]
            node.ask("DELETE", f"/{only(node)[0]}")
            assert sink.seeded(INDEX) is None
            with pytest.raises(RetryableError, match="is gone"):
                put(sink, 5, {"x": 1})
            assert physical(node) == {}
            sink.open(target())
            assert sink.seeded(INDEX) is None
            assert sink.generation(INDEX) != before  # type: ignore[attr-defined]
            put(sink, 5, {"x": 1})
            sink.complete(INDEX, Lsn(5))
            assert rig.content() == {"x": 1}

    def test_who_joins_makes_nothing_and_takes_no_other_generation(self, node: Node, rig: Rig) -> None:
        """E85: what a task made by itself would miss what was there, and nobody would seed it."""
        with rig.sink() as sink, closing(OpenSearchSink(OpenSearchSettings("search", node.url))) as other:
            sink.complete(INDEX, Lsn(1))
            first = sink.generation(INDEX)
            other.join(target(), first)
            put(other, 2, {"x": 1})
            assert rig.content() == {"x": 1}
            name, _ = only(node)
            node.ask("DELETE", f"/{name}")
            with pytest.raises(RetryableError, match=f"the index {name} is gone"):
                other.join(target(), first)
            assert physical(node) == {}
            sink.open(target())
            with pytest.raises(RetryableError, match="is gone"):
                other.join(target(), first)
            second = sink.generation(INDEX)
            other.join(target(), second)
            sink.open(target(schema_hash="b"))
            with pytest.raises(OperatorError, match="was begun beside"):
                other.join(target(), second)

    def test_two_that_write_to_one_name_do_not_begin_generations_by_turns(self, node: Node, rig: Rig) -> None:
        """E84: who had it open, and finds it outdone, stops there; who comes last is seen."""
        with rig.sink() as sink, rig.sink(source="another/slot") as other:
            with pytest.raises(OperatorError, match="was begun beside"):
                sink.open(target())
            other.open(target(source="another/slot"))
            put(other, 2, {"x": 1})
            other.complete(INDEX, Lsn(2))
            assert rig.content() == {"x": 1}

    def test_a_writer_of_a_deleted_generation_does_not_write_to_the_next_of_its_name(
        self, node: Node, rig: Rig
    ) -> None:
        """E85: the next one may have the same name; what was built for the first is not for it."""
        with rig.sink() as late, rig.sink() as sink:
            name, _ = only(node)
            node.ask("DELETE", f"/{name}")
            sink.open(target())
            assert only(node)[0] == name
            with pytest.raises(RetryableError, match="is gone"):
                put(late, 5, {"x": 1})
            sink.complete(INDEX, Lsn(6))
            assert rig.content() == {}

    def test_a_copy_of_an_index_is_not_taken_for_it(self, node: Node, rig: Rig) -> None:
        """E85: a clone has all that is remembered, but it is another index."""
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(4))
            name, _ = only(node)
            copy = f"{name[:-1]}2"
            node.ask("PUT", f"/{name}/_block/write")
            assert node.ask("PUT", f"/{name}/_clone/{copy}")[0] == 200
            node.ask("DELETE", f"/{name}")
            node.ask("POST", "/_aliases", {"actions": [{"add": {"index": copy, "alias": INDEX}}]})
            sink.open(target())
            assert sink.seeded(INDEX) is None
            assert sorted(physical(node)) == [copy, f"{name[:-1]}3"]

    def test_processes_that_begin_a_generation_at_once_share_it(self, node: Node, rig: Rig) -> None:
        """E83: whoever comes second uses what the first has made."""
        sinks = [rig.make(rig.place) for _ in range(6)]
        threads = [threading.Thread(target=sink.open, args=(target(),)) for sink in sinks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for n, sink in enumerate(sinks):
            put(sink, 5, {str(n): n})
        sinks[0].complete(INDEX, Lsn(5))
        assert len(physical(node)) == 1
        assert rig.content() == {str(n): n for n in range(6)}
        for sink in sinks:
            sink.close()

    def test_an_index_of_somebody_else_under_the_readers_name_is_refused(self, node: Node, rig: Rig) -> None:
        node.ask("PUT", f"/{INDEX}")
        try:
            with pytest.raises(OperatorError, match="has to be an alias") as refused, rig.sink():
                pass
            assert "prefix" in refused.value.hint
        finally:
            node.ask("DELETE", f"/{INDEX}")

    def test_a_newer_format_is_refused(self, node: Node, rig: Rig) -> None:
        with rig.sink():
            name, shown = only(node)
            meta = shown["mappings"]["_meta"]
            meta["penstock"]["format"] = 2
            node.ask("PUT", f"/{name}/_mapping", {"_meta": meta})
        with pytest.raises(OperatorError, match="newer Penstock"), rig.sink():
            pass

    def test_a_seed_writes_without_refreshes_and_sets_them_back(self, node: Node, rig: Rig) -> None:
        """E84: set back to what the deployment says, found at once when complete, and never off where readers look."""
        wanted = target()._replace(body={**target().body, "settings": {"index": {"refresh_interval": "7s"}}})
        with rig.sink() as sink:
            sink.open(wanted)
            sink.seeding(INDEX)
            assert only(node)[1]["settings"]["index"]["refresh_interval"] == "-1"
            put(sink, 5, {"x": 1})
            sink.complete(INDEX, Lsn(5))
            assert only(node)[1]["settings"]["index"]["refresh_interval"] == "7s"
            assert node.ask("GET", f"/{INDEX}/_count")[1]["count"] == 1
            sink.seeding(INDEX)
            assert sink.seeded(INDEX) is None
            assert only(node)[1]["settings"]["index"]["refresh_interval"] == "7s"

    def test_a_generation_that_another_deployment_has_superseded_is_not_completed(self, node: Node, rig: Rig) -> None:
        """E85: two schemas under one name would take the readers' alias from each other for ever."""
        with rig.sink() as first, rig.sink(schema_hash="b") as second:
            put(first, 5, {"x": 1})
            for refused in partial(first.complete, INDEX, Lsn(5)), partial(first.seeding, INDEX):
                with pytest.raises(OperatorError, match="another generation") as told:
                    refused()
                assert "prefix" in told.value.hint
            second.complete(INDEX, Lsn(6))
            assert rig.content() == {}
            assert len(physical(node)) == 1, "what was never complete goes"

    def test_a_body_that_the_server_refuses_is_the_operators(self, node: Node, rig: Rig) -> None:
        """The ICU analyzers without the server's plugin: the server's own words, and no index."""
        schema = read_schema("version: 1\ntable: t\nfields: [{text: name}]", "users")
        body = index_body(schema, IndexSettings(text_analysis=TextAnalysis.ICU))
        with pytest.raises(OperatorError, match="icu_folding"), rig.sink() as sink:
            before = node.ask("GET", "/*")[1].keys()
            sink.open(Target("other", "users", "a", "s", body))
        assert node.ask("GET", "/*")[1].keys() == before


class TestDeletes:
    """E72, E88: a deleted document does not come back."""

    def test_a_deletes_version_is_kept_far_longer_than_the_servers_minute(self, node: Node, rig: Rig) -> None:
        """E88: also where somebody took the setting away, before the next seed and at the next start."""
        with rig.sink() as sink:
            name, shown = only(node)
            assert shown["settings"]["index"]["gc_deletes"] == "1h"
            node.ask("PUT", f"/{name}/_settings", {"index.gc_deletes": None})
            sink.seeding(INDEX)
            assert only(node)[1]["settings"]["index"]["gc_deletes"] == "1h"
            node.ask("PUT", f"/{name}/_settings", {"index.gc_deletes": None})
        with rig.sink():
            assert only(node)[1]["settings"]["index"]["gc_deletes"] == "1h"

    def test_a_forgotten_delete_would_bring_the_document_back(self, node: Node, rig: Rig) -> None:
        """E88: why the setting is raised; a server that forgets at once shows what would happen."""
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(1))
            node.ask("PUT", f"/{only(node)[0]}/_settings", {"index.gc_deletes": "1ms"})
            put(sink, 5, {"x": None, "y": None})

            def comes_back() -> bool:
                node.ask("POST", f"/{INDEX}/_refresh")
                put(sink, 4, {"x": 1})
                return "x" in rig.content()

            wait_until(comes_back, 30, "the server to forget a delete")

    def test_a_clear_turns_away_writers_of_other_processes(self, rig: Rig) -> None:
        """E72: writes below it lose, also of ids that were never there; newer ones find their way."""
        with rig.sink() as driver, rig.sink() as task:
            driver.complete(INDEX, Lsn(1))
            put(task, 3, {"old": 1})
            driver.clear(INDEX, Lsn(5))
            put(task, 4, {"old": 2, "late": 2})
            put(task, 6, {"new": 3})
            assert rig.content() == {"new": 3}
            assert task.outdone() == 2

    def test_a_delete_by_a_process_that_has_not_heard_of_a_clear_arrives(self, node: Node, rig: Rig) -> None:
        """E66, E72: for a name that is no more, the server makes an index where only deletes are sent to it."""
        with rig.sink() as driver, rig.sink() as task:
            driver.complete(INDEX, Lsn(1))
            put(task, 3, {"old": 1})
            driver.clear(INDEX, Lsn(5))
            put(driver, 6, {"gone": 1, "stays": 1})
            put(task, 7, {"gone": None})
            assert rig.content() == {"stays": 1}
        assert len(physical(node)) == 1, "nothing is left of the index that the server made"

    def test_a_clear_amid_writers_leaves_nothing_older(self, rig: Rig) -> None:
        """E66, E72: tasks write all the time while an index is cleared; what is left is newer than the clear."""
        with rig.sink() as driver:
            driver.complete(INDEX, Lsn(1))
            done, failures = threading.Event(), list[BaseException]()

            def task(version: int) -> None:
                try:
                    with rig.sink() as sink:
                        for round_ in range(10_000):
                            put(sink, version, {f"{version} {round_} {n}": version for n in range(20)})
                            if done.is_set():
                                return
                except BaseException as error:  # noqa: BLE001 - told to the test's own thread
                    failures.append(error)

            threads = [threading.Thread(target=task, args=(version,)) for version in (4, 4, 6)]
            for thread in threads:
                thread.start()
            try:
                wait_until(lambda: len(rig.content()) > 100)
                driver.clear(INDEX, Lsn(5))
                left = rig.content()
            finally:
                done.set()
                for thread in threads:
                    thread.join()
            assert not failures
            assert set(left.values()) == {6}
            assert set(rig.content().values()) == {6}

    def test_a_clear_that_was_broken_off_is_done_again(self, node: Node, rig: Rig) -> None:
        """E66: a process that died with the index blocked; writers wait for the clear that comes again."""
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(1))
            put(sink, 3, {"x": 1})
            name, shown = only(node)
            meta = shown["mappings"]["_meta"]
            meta["penstock"]["clearing"] = True
            node.ask("PUT", f"/{name}/_mapping", {"_meta": meta})
            node.ask("PUT", f"/{name}/_block/write")
        with rig.sink() as sink, rig.sink() as task:
            writing = threading.Thread(target=put, args=(task, 6, {"y": 2}))
            writing.start()
            sink.clear(INDEX, Lsn(5))
            writing.join()
            assert rig.content() == {"y": 2}


class TestRequests:
    """E80–E82, E87: what becomes of requests and of each item."""

    def test_a_rejection_names_the_field_and_no_value(self, rig: Rig) -> None:
        """E81: the server quotes values, and so do its causes; keys of a document are values too."""
        with rig.sink() as sink:
            bodies: list[bytes | None] = [b'{"n": "secret"}', b'{"secret": 1}', b'{"title": {"secret": 1}}', b"secret"]
            rejected = sink.write(Writes(Lsn(5), Documents(INDEX, ["a", "b", "c", "d"], bodies)))
            assert [one.id for one in rejected] == ["a", "b", "c", "d"]
            assert "secret" not in repr(rejected)
            assert "field n of type integer" in rejected[0].reason
            assert "not in the mapping" in rejected[1].reason
            assert "field title" in rejected[2].reason

    def test_what_is_larger_than_the_server_takes_is_halved_and_one_alone_rejected(self, node: Node, rig: Rig) -> None:
        """E82: a real 413; neighbours land."""
        large = json.dumps({"n": 1, "title": "x" * ((MAX_REQUEST_MB << 20) // 3)}).encode()
        huge = json.dumps({"n": 1, "title": "x" * (MAX_REQUEST_MB << 20)}).encode()
        sink = OpenSearchSink(OpenSearchSettings("search", node.url, max_bytes=100 << 20))
        sink.open(target())
        ids = [*"abcde", "huge", *"fg"]
        bodies: list[bytes | None] = [*[large] * 5, huge, large, document(7)]
        rejected = sink.write(Writes(Lsn(5), Documents(INDEX, ids, bodies)))
        assert [(one.id, "larger than the server takes" in one.reason) for one in rejected] == [("huge", True)]
        sink.complete(INDEX, Lsn(5))
        assert rig.content() == {**dict.fromkeys("abcdef", 1), "g": 7}
        sink.close()

    def test_ids_that_no_index_holds_are_rejected_alone(self, rig: Rig) -> None:
        """E82: the server would refuse the whole request."""
        with rig.sink() as sink:
            ids = ["x" * 513, "", "é" * 257, "é" * 256, "fits"]
            rejected = sink.write(Writes(Lsn(5), Documents(INDEX, ids, [document(1)] * 5)))
            assert [one.id for one in rejected] == ids[:3]
            sink.complete(INDEX, Lsn(5))
            assert set(rig.content()) == {"é" * 256, "fits"}

    def test_line_breaks_between_tokens_do_not_part_a_document(self, rig: Rig) -> None:
        with rig.sink() as sink:
            put(sink, 4, {"before": 1})
            assert not sink.write(Writes(Lsn(5), Documents(INDEX, ["x"], [b'{\n"n":\r\n7}'])))
            sink.complete(INDEX, Lsn(5))
            assert rig.content() == {"before": 1, "x": 7}

    def test_a_blocked_index_is_the_operators_and_not_tried_again(self, node: Node, rig: Rig) -> None:
        """E87: as a disk at its flood stage leaves it; mended, writing goes on."""
        with rig.sink() as sink:
            sink.complete(INDEX, Lsn(1))
            name, _ = only(node)
            for block in "read_only_allow_delete", "write", "read_only":
                node.ask("PUT", f"/{name}/_settings", {f"index.blocks.{block}": True})
                began = time.monotonic()
                with pytest.raises(OperatorError, match="blocked for writes") as blocked:
                    put(sink, 5, {"x": 1})
                assert "disk" in blocked.value.hint
                assert time.monotonic() - began < 5
                node.ask("PUT", f"/{name}/_settings", {f"index.blocks.{block}": None})
            put(sink, 5, {"x": 1})
            assert rig.content() == {"x": 1}

    def test_a_missing_pipeline_is_the_operators(self, node: Node, rig: Rig) -> None:
        """E81: it is not the documents' fault, so none of them is rejected."""
        node.ask("PUT", "/_ingest/pipeline/mark", {"processors": [{"set": {"field": "title", "value": "marked"}}]})
        sink = OpenSearchSink(OpenSearchSettings("search", node.url, pipeline="mark"))
        sink.open(target())
        put(sink, 5, {"x": 1})
        sink.complete(INDEX, Lsn(5))
        assert json.loads(rig.read(INDEX)["x"])["title"] == "marked"
        node.ask("DELETE", "/_ingest/pipeline/mark")
        with pytest.raises(OperatorError, match="pipeline"):
            put(sink, 6, {"x": 1})
        with pytest.raises(OperatorError, match="no ingest pipeline 'mark'"):
            sink.open(target())
        sink.close()

    def test_where_an_index_is_synced_later_flush_does_it(self, node: Node, rig: Rig) -> None:
        """Durable after flush, also where somebody set the translog to sync by and by."""

        def flushes() -> int:
            _, stats = node.ask("GET", f"/{INDEX}-*/_stats/flush?expand_wildcards=all")
            return int(stats["_all"]["primaries"]["flush"]["total"])

        body = {**target().body, "settings": {"index": {"translog.durability": "async"}}}
        with rig.sink() as sink:
            put(sink, 4, {"x": 1})
            before = flushes()
            sink.flush()
            assert flushes() == before
        with rig.sink(schema_hash="b") as sink:
            sink.open(target(schema_hash="c")._replace(body=body))
            put(sink, 5, {"x": 1})
            before = flushes()
            sink.flush()
            assert flushes() == before + 1
            sink.flush()
            assert flushes() == before + 1


def test_a_flush_does_not_return_before_one_that_took_its_writes_along() -> None:
    """E20: that one may fail, and then the writes are not durable."""
    sink = OpenSearchSink(OpenSearchSettings("search", "http://127.0.0.1:9"))
    begun, goes_on, second, flushed = threading.Event(), threading.Event(), threading.Event(), list[str]()

    def sync(one: object) -> None:
        if begun.is_set():
            flushed.append("again")
            return
        begun.set()
        assert goes_on.wait(30)
        raise RetryableError("not on every shard")

    def flush_too() -> None:
        sink.flush()
        second.set()

    sink._indexes.sync = sync  # type: ignore[method-assign, assignment]
    sink._generations[INDEX] = None  # type: ignore[assignment]
    sink._unsynced.add(INDEX)
    failed: list[RetryableError] = []

    def flush() -> None:
        try:
            sink.flush()
        except RetryableError as error:
            failed.append(error)

    threads = [threading.Thread(target=flush), threading.Thread(target=flush_too)]
    threads[0].start()
    assert begun.wait(30)
    threads[1].start()
    assert not second.wait(0.2)
    goes_on.set()
    for thread in threads:
        thread.join()
    assert (len(failed), flushed) == (1, ["again"])
