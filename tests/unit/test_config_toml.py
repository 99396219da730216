"""Where each key and value of a TOML file stands, held to Python's own reader of TOML."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.config.toml import Path, find_spans, parse_toml
from penstock.document.reading_tree import Node, Problems

keys = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,4}", fullmatch=True),
    st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=4).map(lambda text: json.dumps(text)),
    st.from_regex(r"'[a-z. #=\[]{0,3}'", fullmatch=True),
)
scalars = st.one_of(
    st.integers(-(10**12), 10**12).map(str),
    st.sampled_from(["true", "1.5e3", "-inf", "nan", "0x1f", "1_000", "1979-05-27", "1979-05-27 07:32:00", "07:32:00"]),
    st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=8).map(lambda text: json.dumps(text)),
    st.sampled_from(["''", "'#]}'", '"\\"]#"', "'''a''b\n]'''", '"""x\\"""\n " "" #"""', '""""a""""', "''''''", '""']),
)
blanks = st.sampled_from(["", " ", "\t "])
ends = st.sampled_from(["\n", " # [x] = \"'\n", "\n\n"])


def arrays(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    gap = st.sampled_from(["", " ", "\n", " # ] ,\n"])
    return st.builds(
        lambda items, before, after, comma: f"[{before}{f'{after},{before}'.join(items)}{comma * bool(items)}{after}]",
        st.lists(inner, max_size=3), gap, gap, st.sampled_from(["", ","]),
    )  # fmt: skip


def inline_tables(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.builds(lambda key, gap, value: f"{key}{gap}={gap}{value}", keys, blanks, inner)
    return st.lists(pair, max_size=3).map(lambda pairs: "{ " + ", ".join(pairs) + " }")


values = st.recursive(scalars, lambda inner: arrays(inner) | inline_tables(inner), max_leaves=6)
dotted = st.builds(lambda parts, gap: f"{gap}.{gap}".join(parts), st.lists(keys, min_size=1, max_size=3), blanks)
pairs = st.builds(lambda key, value, end: f"{key} = {value}{end}", dotted, values, ends)
headers = st.builds(lambda key, end: f"[{key}]{end}", dotted, ends)
list_headers = st.builds(lambda key, gap, end: f"[[{gap}{key}{gap}]]{end}", dotted, blanks, ends)
files = st.lists(st.one_of(pairs, pairs, headers, list_headers), max_size=8).map("".join)


def leaves(data: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every part of the data by its path."""
    if path:
        yield path, data
    if isinstance(data, dict):
        for key, value in data.items():
            yield from leaves(value, (*path, key))
    elif isinstance(data, list):
        for at, value in enumerate(data):
            yield from leaves(value, (*path, at))


@settings(max_examples=100)
@given(files)
@example("[[a]]\n[[a]]\n[a.b]\nc = 1\n[[a.d]]\n[[a.d]]\ne = 2\n")
@example("a = { b = nan, c.d = [{}, { e = '}' }] }\n")
def test_every_part_that_the_reader_finds_is_found_at_its_place(text: str) -> None:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return  # the same key twice, say: then nobody asks where things are
    spans = find_spans(text)
    parts = dict(leaves(data))
    assert spans.keys() == parts.keys()
    for path, span in spans.items():
        if span.end > span.start:
            value = tomllib.loads(f"value = {text[span.start : span.end]}")["value"]
            assert repr(value) == repr(parts[path])  # not ==, because of nan
        else:
            assert text[span.start] == "[" or text[span.start : span.key] == "", "a header, or part of a dotted key"


SAMPLE = """\
# A comment with = and [brackets]
prefix = "dev_" # and "quotes"
server.public_address = "h:1"

[source]
  slot  =  'a#b'
[source.connection_url]
password = { env = "P" }

[sinks.a]
[sinks]
[[index]]
name = "one"
[[index]]
name = \"\"\"
two\"\"\"
"""


def test_places_count_from_one_and_lead_to_keys_and_values() -> None:
    node = parse_toml(SAMPLE, "f", Problems())
    assert node
    found = {path: (str(key), str(value)) for path, key, value in places(node)}
    assert found["prefix",] == ("f:2:1", "f:2:10")
    assert found["server", "public_address"] == ("f:3:8", "f:3:25")
    assert found["source",] == ("f:5:2", "f:5:1")
    assert found["source", "slot"] == ("f:6:3", "f:6:12")
    assert found["source", "connection_url", "password", "env"] == ("f:8:14", "f:8:20")
    assert found["index", 1, "name"] == ("f:15:1", "f:15:8")
    assert found["sinks",] == ("f:11:2", "f:11:1"), "its own header, not the one that only passed through"


def places(node: Node, path: Path = ()) -> Iterator[tuple[Path, Any, Any]]:
    for key, entry in node.entries.items():
        yield (*path, key), entry.place, entry.node.place
        yield from places(entry.node, (*path, key))
    for at, one in enumerate(node.value if isinstance(node.value, tuple) else ()):
        yield from places(one, (*path, at))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('a = "x', "f:1:7"),
        ("a = 1\na = 2\n", "f:2:6"),
        ("a = [1,\n2", "f:2:2"),
        ("[a]\n[a]\n", "f:2:3"),
        ("a = 1\r\nb = \r\n", "f:2:5"),
    ],
)
def test_what_is_no_toml_is_told_with_its_place(text: str, place: str) -> None:
    problems = Problems()
    assert parse_toml(text, "f", problems) is None
    assert [str(one.place) for one in problems.found] == [place]


def test_deep_nesting_is_a_problem_and_no_crash() -> None:
    problems = Problems()
    assert parse_toml("a = " + "[" * 5000 + "]" * 5000, "f", problems) is None
    assert len(problems.found) == 1
