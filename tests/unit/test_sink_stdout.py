"""The stdout sink: an object for each operation, a line for each object, and the document's bytes within it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.contracts import Documents, Sink, Target, Writes
from penstock.model import Lsn
from penstock.sinks.stdout import StdoutSettings, StdoutSink, count_fields, indented

ROOT = Path(__file__).parents[2]


def open_sink(*, pretty: bool = False) -> tuple[StdoutSink, io.BytesIO]:
    stream = io.BytesIO()
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    sink = StdoutSink(StdoutSettings("out", pretty), stream=stream, clock=lambda: moment)
    sink.open(Target("users", "shop_users", "a", "s", {}))
    return sink, stream


def test_an_operation_is_one_object() -> None:
    sink, stream = open_sink()
    bodies: list[bytes | None] = [b'{"id": 1, "tags": ["a", "b"]}', None]
    assert not sink.write(Writes(Lsn(0x1600000005), Documents("users", ["1", 'a"b'], bodies)))
    sink.clear("users", Lsn(7))
    sink.flush()
    upsert, delete, clear = map(json.loads, stream.getvalue().splitlines())
    common = {"sink": "out", "ts": "2026-01-02T03:04:05.678Z", "index": "shop_users"}
    assert upsert == common | {
        "version": "16/5", "seq": 1, "op": "upsert", "id": "1",
        "document": {"id": 1, "tags": ["a", "b"]}, "meta": {"fields": 2, "bytes": 29},
    }  # fmt: skip
    assert list(upsert) == ["sink", "version", "ts", "seq", "index", "op", "id", "document", "meta"]
    assert delete == common | {"version": "16/5", "seq": 2, "op": "delete", "id": 'a"b'}
    assert clear == common | {"version": "0/7", "seq": 3, "op": "clear", "id": None}


@pytest.mark.parametrize("pretty", [False, True])
def test_digits_and_texts_are_embedded_as_they_are(pretty: bool) -> None:
    sink, stream = open_sink(pretty=pretty)
    body = '{"n":1.10000000000000000000001,"s":"Zoë \\u00e9, {\\"x\\": 1}","e":1e400}'
    sink.write(Writes(Lsn(5), Documents("users", ["1"], [body.encode()])))
    shown = stream.getvalue().decode()
    for exact in "1.10000000000000000000001", '"Zoë \\u00e9, {\\"x\\": 1}"', "1e400":
        assert exact in shown
    assert (body in shown) is not pretty
    assert ("\n  " in shown) is pretty


def test_line_breaks_inside_a_document_do_not_end_the_line() -> None:
    """A value of type json keeps the breaks that were written between its parts."""
    sink, stream = open_sink()
    sink.write(Writes(Lsn(5), Documents("users", ["1"], [b'{"j": {\r\n "a":\n 1}, "s": "x\\ny"}'])))
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["document"] == {"j": {"a": 1}, "s": "x\ny"}


def test_it_remembers_nothing() -> None:
    sink, stream = open_sink()
    assert isinstance(sink, Sink)
    assert not sink.shared
    sink.seeding("users")
    sink.complete("users", Lsn(9))
    assert sink.seeded("users") is None
    for version in 5, 4, 5:
        sink.write(Writes(Lsn(version), Documents("users", ["1"], [b"{}"])))
    assert [json.loads(line)["version"] for line in stream.getvalue().splitlines()] == ["0/5", "0/4", "0/5"]
    sink.close()
    sink.close()


def test_threads_do_not_mix_their_lines() -> None:
    class Slow(io.BytesIO):
        def write(self, data: object) -> int:
            text = bytes(data)  # type: ignore[call-overload]
            for at in range(0, len(text), 40):
                super().write(text[at : at + 40])
                time.sleep(0)  # let another thread in
            return len(text)

    stream = Slow()
    sink = StdoutSink(StdoutSettings("out"), stream=stream)

    def write(name: str) -> None:
        for n in range(20):
            sink.write(Writes(Lsn(5), Documents("users", [f"{name}{n}"] * 3, [b'{"a": 1}'] * 3)))

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [json.loads(line)["seq"] for line in stream.getvalue().splitlines()] == list(range(1, 241))


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=3), JSON, max_size=4), st.sampled_from([None, 1]))
def test_fields_are_counted_and_indented_without_a_change(document: dict[str, object], indent: int | None) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=False).encode()
    assert count_fields(text) == len(document)
    assert json.loads(b"".join(indented(text))) == document


def test_a_closed_pipe_ends_it_cleanly() -> None:
    """Whoever reads has seen enough: exit code 0 and not a word on stderr."""
    program = """
import itertools
from penstock.cli import main
from penstock.contracts import Documents, Target, Writes
from penstock.model import Lsn
from penstock.sinks.stdout import StdoutSettings, StdoutSink

def endless(arguments):
    sink = StdoutSink(StdoutSettings("out"))
    try:
        for n in itertools.count():
            sink.write(Writes(Lsn(n), Documents("users", [str(n)], [b"{}"])))
            sink.flush()
    except BrokenPipeError:
        return 0

main.run = endless
main.main()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT / "src"
    ) as process:
        assert process.stdout
        assert process.stderr
        assert json.loads(process.stdout.readline())["seq"] == 1
        process.stdout.close()
        assert (process.wait(), process.stderr.read()) == (0, b"")
