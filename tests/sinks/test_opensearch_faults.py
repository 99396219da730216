"""What the OpenSearch sink does when the server, or the network before it, misbehaves."""

from __future__ import annotations

import json
import pickle
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.contracts import Documents, Writes
from penstock.errors import (
    AuthenticationError,
    ConfigError,
    OperatorError,
    PrivilegeError,
    TlsError,
    UnavailableError,
)
from penstock.model import Lsn
from penstock.sinks.opensearch import OpenSearchSettings, OpenSearchSink
from penstock.sinks.opensearch_http import Answer
from tests.fixtures.opensearch import Node, Nodes
from tests.fixtures.opensearch_faults import Faulty, Seen, Told
from tests.fixtures.tls import Certificates
from tests.fixtures.waiting import wait_until
from tests.sinks.contract import INDEX, Content, document, put, target
from tests.sinks.test_opensearch import read

Opened = Callable[..., OpenSearchSink]


@pytest.fixture
def opened(node: Node) -> Iterator[Opened]:
    """`opened(url, batch_size=2)`: a sink with the index open; everything is gone afterwards."""
    sinks: list[OpenSearchSink] = []

    def start(url: str, **settings: Any) -> OpenSearchSink:
        sinks.append(OpenSearchSink(OpenSearchSettings("search", url, **settings)))
        sinks[-1].open(target())
        return sinks[-1]

    yield start
    for sink in sinks:
        sink.close()
    node.ask("DELETE", f"/{INDEX}-*?expand_wildcards=all")


def content(node: Node) -> Content:
    """What the index holds, whether readers see it or not."""
    return {id: json.loads(body)["n"] for id, body in read(node, f"{INDEX}-*").items()}


class Counted:
    """How many requests a sink has sent since."""

    def __init__(self, sink: OpenSearchSink) -> None:
        self.requests = 0
        http = sink._http
        attempt = http.attempt

        def count(*arguments: Any) -> Any:
            self.requests += 1
            return attempt(*arguments)

        http.attempt = count  # type: ignore[method-assign]


@pytest.mark.parametrize("fault", [429, 502, 503, 504, 500, "reset", "lost", "silent"])
def test_passing_trouble_is_tried_again_in_order_and_nothing_is_dropped(
    node: Node, faulty: Callable[..., Faulty], opened: Opened, fault: int | str
) -> None:
    """E80: each request meets trouble twice; the waits grow, and the next request waits for its turn."""
    between = faulty()
    sink = opened(between.url, batch_size=2, timeout_s=4 if fault == "silent" else 30)
    between.faults += [fault, fault]
    put(sink, 5, {"a": 1, "b": 2, "c": 3})
    assert [one.ids for one in between.bulks] == [["a", "b"]] * 3 + [["c"]]
    assert content(node) == {"a": 1, "b": 2, "c": 3}
    first, second, third, _ = [one.at for one in between.bulks]
    if isinstance(fault, int):
        assert second - first >= 0.1
        assert third - second >= 0.2


def test_waits_differ_between_writers(node: Node, faulty: Callable[..., Faulty], opened: Opened) -> None:
    """E80: writers that were turned away together do not come back together."""
    between = faulty()
    sink = opened(between.url)
    waits = []
    for n in range(5):
        between.faults.append(503)
        put(sink, 5, {str(n): n})
        first, second = [one.at for one in between.bulks[-2:]]
        waits.append(round(second - first, 2))
    assert len(set(waits)) > 1, waits


def test_a_server_that_stays_down_is_said_so_after_the_last_try(
    node: Node, faulty: Callable[..., Faulty], opened: Opened
) -> None:
    """E80: the error can be retried by whoever asked, and crosses processes."""
    between = faulty()
    sink = opened(between.url, max_retries=2)
    between.faults += [503] * 3
    with pytest.raises(UnavailableError, match="answered 503") as down:
        put(sink, 5, {"a": 1})
    assert len(between.bulks) == 3
    assert str(pickle.loads(pickle.dumps(down.value))) == str(down.value)
    put(sink, 5, {"a": 1})
    assert content(node) == {"a": 1}


def test_content_is_not_sent_again_for_ever(
    node: Node, faulty: Callable[..., Faulty], opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E88: before the server may forget a delete that came meanwhile, documents are built anew instead."""
    monkeypatch.setattr("penstock.sinks.opensearch_write._LATEST_S", 0.2)
    between = faulty()
    sink = opened(between.url, max_retries=50)
    between.faults += [503] * 50
    with pytest.raises(UnavailableError, match="were not taken within"):
        put(sink, 5, {"a": 1})
    assert 0 < len(between.bulks) < 5
    assert content(node) == {}


def test_no_server_at_all_is_said_so() -> None:
    """E80: nobody listens there."""
    sink = OpenSearchSink(OpenSearchSettings("search", "http://127.0.0.1:1", max_retries=0))
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1 failed"):
        sink.open(target())


def test_a_connection_that_was_closed_while_idle_costs_no_wait(
    node: Node, faulty: Callable[..., Faulty], opened: Opened
) -> None:
    """E80: that is how servers treat idle connections, and no failure of a request."""
    between = faulty()
    sink = opened(between.url, max_retries=0)
    put(sink, 5, {"a": 1})
    between.cut()
    put(sink, 6, {"a": 2})
    assert content(node) == {"a": 2}


@pytest.fixture(scope="module")
def crowded(nodes: Nodes) -> Iterator[Node]:
    """A node with one thread for writes and a queue of one."""
    node = nodes.start({"node.processors": "1", "thread_pool.write.queue_size": "1"})
    yield node
    nodes.stop(node)


def test_items_that_were_turned_away_are_sent_again_alone(crowded: Node) -> None:
    """E80, E87: a node whose queue is full answers 200 and turns single items away; all land in the end."""
    sink = OpenSearchSink(OpenSearchSettings("search", crowded.url, max_retries=20))
    sink.open(target()._replace(body={"settings": {"index": {"number_of_shards": 3, "number_of_replicas": 0}}}))
    failures: list[BaseException] = []
    asked = Counted(sink)

    def write(at: int) -> None:
        try:
            put(sink, 5, {f"{at} {n}": n for n in range(300)})
        except UnavailableError as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(at,)) for at in range(12)]
    for one in writers:
        one.start()
    for one in writers:
        one.join()
    sink.close()
    assert not failures
    assert asked.requests > 12, "the node turned nothing away: the test proves nothing"
    assert len(content(crowded)) == 3600


def test_what_was_written_survives_the_servers_kill_9(crowded: Node) -> None:
    """E80: writers wait for a server that comes back; what it answered for before is there."""
    sink = OpenSearchSink(OpenSearchSettings("search", crowded.url, max_retries=50))
    sink.open(target(source="another"))
    written: list[int] = []
    failures: list[BaseException] = []
    done = threading.Event()

    def write() -> None:
        try:
            for n in range(100_000):
                put(sink, 5, {str(n): n})
                sink.flush()
                written.append(n)
                if done.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - told to the test's own thread
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        wait_until(lambda: len(written) > 20, 30)
        crowded.halt(signal.SIGKILL)
        before = len(written)
        crowded.start()
        wait_until(lambda: len(written) > before + 5, 60)
    finally:
        done.set()
        thread.join()
    assert not failures
    sink.complete(INDEX, Lsn(5))
    sink.close()
    found = {id: json.loads(body)["n"] for id, body in read(crowded, INDEX).items()}
    assert {str(n) for n in written} <= set(found)


MISSING = {"error": {"type": "search_phase_execution_exception", "root_cause": [{}], "reason": "all shards failed"}}


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("/_refresh", (200, {"_shards": {"failed": 1}})),
        ("/_search?", (200, {"_shards": {"failed": 1}, "hits": {"hits": []}})),
        ("/_search/scroll", (200, {"_shards": {"failed": 1}, "hits": {"hits": []}})),
        ("/_search/scroll", (200, {"timed_out": True, "hits": {"hits": []}})),
        ("/_search/scroll", (404, MISSING)),
    ],
    ids=["refresh", "first page", "later page", "out of time", "out of context"],
)
def test_a_part_of_an_index_is_not_taken_for_all_of_it(
    node: Node,
    faulty: Callable[..., Faulty],
    opened: Opened,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
    said: tuple[int, dict[str, Any]],
) -> None:
    """E52, E84: a server answers 200 for those of its shards that answered it; a clear or a comparison needs all."""
    monkeypatch.setattr("penstock.sinks.opensearch_indexes._PAGE", 1)
    between = faulty()
    sink = opened(between.url)
    put(sink, 5, {"a": 1, "b": 2, "c": 3})
    faults = [said] * 2

    def retell(request: Seen, told: Told) -> Told:
        if at not in request.path or request.method != "POST" or not faults:
            return told
        status, changed = faults.pop()
        return status, {**told[1], **changed}

    between.retell = retell
    with pytest.raises(UnavailableError):
        list(sink.scan(INDEX))
    with pytest.raises(UnavailableError):
        sink.clear(INDEX, Lsn(6))
    sink.clear(INDEX, Lsn(6))
    assert (content(node), list(sink.scan(INDEX))) == ({}, [])


def test_a_document_that_could_not_be_asked_for_is_not_one_that_is_not_there(
    faulty: Callable[..., Faulty], opened: Opened
) -> None:
    """E84: single documents of an answer of 200 may be errors; who compares would take them for lost ones."""
    between = faulty()
    sink = opened(between.url)
    put(sink, 5, {"a": 1, "b": 2})
    error = {"type": "no_shard_available_action_exception", "reason": "a secret"}
    between.retell = lambda request, told: (
        (200, {"docs": [told[1]["docs"][0], {"_index": INDEX, "_id": "b", "error": error}]})
        if "/_mget" in request.path
        else told
    )
    with pytest.raises(UnavailableError, match="no_shard_available_action_exception") as down:
        sink.look(INDEX, ["a", "b"])
    assert "secret" not in str(down.value)


def test_a_clear_goes_on_until_nothing_is_found(node: Node, faulty: Callable[..., Faulty], opened: Opened) -> None:
    """E52: a copy that lagged behind when it was asked shows what it missed to the next look."""
    between = faulty()
    sink = opened(between.url)
    put(sink, 5, {"a": 1, "b": 2, "c": 3})
    lagging = [True]

    def retell(request: Seen, told: Told) -> Told:
        if "/_search?" in request.path and lagging:
            lagging.pop()
            told[1]["hits"]["hits"].pop()
        return told

    between.retell = retell
    sink.clear(INDEX, Lsn(6))
    assert content(node) == {}


def test_a_413_is_halved_in_order(node: Node, faulty: Callable[..., Faulty], opened: Opened) -> None:
    """E82: whoever says it, a proxy with a smaller limit than the server's, say."""
    between = faulty()
    sink = opened(between.url)
    between.limit = 400
    large = document(1)[:-1] + b" " * 500 + b"}"
    ids = ["a", "b", "large", "c", "d"]
    bodies: list[bytes | None] = [document(1), None, large, document(3), document(4)]
    rejected = sink.write(Writes(Lsn(5), Documents(INDEX, ids, bodies)))
    assert [one.id for one in rejected] == ["large"]
    assert content(node) == {"a": 1, "c": 3, "d": 4}
    taken = [id for one in between.bulks if len(one.body) <= 400 for id in one.ids]
    assert taken == ["a", "b", "c", "d"]


def test_requests_are_cut_by_count_and_by_bytes(node: Node, faulty: Callable[..., Faulty], opened: Opened) -> None:
    """E82: a document that alone is more than `max_bytes` goes alone."""
    between = faulty()
    sink = opened(between.url, batch_size=3, max_bytes=600)
    large = document(9)[:-1] + b" " * 800 + b"}"
    ids = list("abcdefgh")
    bodies: list[bytes | None] = [*[document(n) for n in range(5)], large, document(6), document(7)]
    assert not sink.write(Writes(Lsn(5), Documents(INDEX, ids, bodies)))
    assert [one.ids for one in between.bulks] == [["a", "b", "c"], ["d", "e"], ["f"], ["g", "h"]]


def test_an_answer_that_was_lost_changes_nothing(node: Node, faulty: Callable[..., Faulty], opened: Opened) -> None:
    """E83: taken, unheard of, sent again, overtaken in between: the newer stays."""
    between = faulty()
    sink, other = opened(between.url), opened(node.url)
    between.faults += ["lost"]
    writing = threading.Thread(target=put, args=(sink, 5, {"x": 5, "gone": 5}))
    writing.start()
    wait_until(lambda: "x" in content(node) or None)
    put(other, 6, {"x": 6, "gone": None})
    writing.join()
    assert content(node) == {"x": 6}


def test_closing_ends_the_wait_for_an_answer(faulty: Callable[..., Faulty], opened: Opened) -> None:
    """E80: a run that ends does not wait for a server that is silent, as long as its patience may be."""
    between = faulty()
    sink = opened(between.url)
    put(sink, 4, {"w": 1})
    between.faults += ["silent"] * 4
    failed: list[BaseException] = []

    def write() -> None:
        try:
            put(sink, 5, {"x": 1})
        except UnavailableError as error:
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    wait_until(lambda: len(between.bulks) > 1)
    sink.close()
    thread.join(10)
    assert failed


def test_two_requests_of_one_sink_are_in_flight_at_once(faulty: Callable[..., Faulty], opened: Opened) -> None:
    """Two threads do not wait for each other: the first gets no answer before the second has its."""
    between = faulty()
    sink = opened(between.url, timeout_s=10, max_retries=0)
    between.faults += ["silent"]
    failed: list[BaseException] = []

    def first() -> None:
        try:
            put(sink, 5, {"x": 1})
        except UnavailableError as error:
            failed.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    wait_until(lambda: between.bulks)
    put(sink, 5, {"y": 2})
    assert not failed
    thread.join()
    assert failed


def test_close_ends_a_wait(faulty: Callable[..., Faulty], opened: Opened) -> None:
    """E80: a process that has to end does not wait for a server that is down."""
    between = faulty()
    sink = opened(between.url, max_retries=50)
    between.faults += [503] * 50
    failed: list[BaseException] = []

    def write() -> None:
        try:
            put(sink, 5, {"x": 1})
        except UnavailableError as error:
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    wait_until(lambda: len(between.bulks) >= 4)
    began = time.monotonic()
    sink.close()
    thread.join()
    assert failed
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "status, kind", [(401, AuthenticationError), (403, PrivilegeError), (400, OperatorError), (302, OperatorError)]
)
def test_what_somebody_has_to_mend_is_not_tried_again(
    faulty: Callable[..., Faulty], opened: Opened, status: int, kind: type[Exception]
) -> None:
    between = faulty()
    sink = opened(between.url)
    between.faults += [status]
    with pytest.raises(kind):
        put(sink, 5, {"x": 1})
    assert len(between.bulks) == 1


@pytest.mark.parametrize(
    "settings, header",
    [
        ({"username": "ada", "password": "s3cret:"}, "Basic YWRhOnMzY3JldDo="),
        ({"api_key": "aWQ6a2V5"}, "ApiKey aWQ6a2V5"),
        ({"api_key": "id:key"}, "ApiKey aWQ6a2V5"),
    ],
    ids=["basic", "key", "plain key"],
)
def test_who_we_are_is_said_with_each_request_and_shown_nowhere(
    faulty: Callable[..., Faulty], opened: Opened, settings: dict[str, str], header: str
) -> None:
    """Neither in a repr nor in an error."""
    between = faulty()
    sink = opened(between.url, **settings, max_retries=0)
    between.faults += [401]
    with pytest.raises(AuthenticationError) as refused:
        put(sink, 5, {"x": 1})
    assert {one.headers.get("authorization") for one in between.seen} == {header}
    shown = repr(OpenSearchSettings("search", between.url, **settings)) + repr(sink) + str(refused.value)
    assert not [value for name, value in settings.items() if name != "username" and value in shown]


def test_a_user_in_the_url_is_used(faulty: Callable[..., Faulty], opened: Opened) -> None:
    between = faulty()
    opened(between.url.replace("//", "//ada:s%33cret@"))
    assert between.seen[0].headers["authorization"] == "Basic YWRhOnMzY3JldA=="


def test_tls_is_checked_unless_told_otherwise(
    node: Node, faulty: Callable[..., Faulty], opened: Opened, certificates: Certificates
) -> None:
    """An unknown authority is refused in a sentence; `ca_cert` names it; `tls_verify = false` looks away."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificates.good.configure_cert(context)
    between = faulty(tls=context)
    with pytest.raises(TlsError, match="no TLS with"):
        opened(between.url)
    put(opened(between.url, ca_cert=str(certificates.root)), 5, {"x": 1})
    put(opened(between.url, tls_verify=False), 6, {"y": 1})
    assert content(node) == {"x": 1, "y": 1}
    with pytest.raises(ConfigError, match="ca_cert"):
        opened(between.url, ca_cert="/nowhere.pem")
    with pytest.raises(TlsError):
        opened(node.url.replace("http:", "https:"))


def test_what_is_no_search_server_is_said_so() -> None:
    """A url that leads elsewhere, and one that leads nowhere."""
    with pytest.raises(OperatorError, match="not JSON") as refused:
        Answer(200, b"<html>welcome</html>").json()
    assert "url" in refused.value.hint
    with pytest.raises(ConfigError, match="no http"):
        OpenSearchSink(OpenSearchSettings("search", "ftp://x"))
