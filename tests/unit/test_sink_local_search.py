"""Full-text search in the local sink: what is found, in which order, and what a query may be."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli import main
from penstock.contracts import Documents, Target, Writes
from penstock.errors import ConfigError, OperatorError
from penstock.model import Lsn
from penstock.sinks.local import LocalSettings, LocalSink
from penstock.sinks.local_query import translate
from penstock.sinks.local_search import LocalReader

TEXTS = ("title", "publisher.name", "reviews.body", "reviews.author.name", "tags", "names")
BOOKS = {
    "1": {
        "title": "Notes by Ada Lovelace",
        "publisher": {"name": "Taylor"},
        "reviews": [
            {"body": "On the analytical engine", "author": {"name": "Charles"}},
            {"body": "Difficult reading", "author": None},
        ],
        "tags": ["maths", "history of computing"],
    },
    "2": {"title": "Ada, a language", "publisher": None, "reviews": [], "names": {"fr": "Le langage Ada"}},
    "3": {"title": "Ünïcode café", "publisher": {"name": "O'Reilly & C++"}, "reviews": [{"body": None}]},
    "4": {"title": None, "publisher": {"name": "Ada Ada Ada"}, "reviews": "none", "tags": 5},
}


def store(path: Path, documents: dict[str, dict[str, object]], texts: Sequence[str] = TEXTS) -> LocalSink:
    """A sink that holds these documents, complete."""
    sink = LocalSink(LocalSettings("local", str(path)))
    sink.open(Target("books", "shop_books", "a", "s", {}, tuple(texts)))
    bodies: list[bytes | None] = [json.dumps(body, ensure_ascii=False).encode() for body in documents.values()]
    assert not sink.write(Writes(Lsn(2), Documents("books", list(documents), bodies)))
    sink.flush()
    sink.complete("books", Lsn(2))
    return sink


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalReader]:
    path = tmp_path_factory.mktemp("books") / "x.db"
    store(path, BOOKS).close()
    with LocalReader(str(path)) as reader:
        yield reader


@pytest.mark.parametrize(
    "query, found",
    [
        ("lovelace", "1"),
        ("LOVELACE notes", "1"),
        ("ada lovelace", "1"),
        ("ada nobody", ""),
        ("lov*", "1"),
        ("lov", ""),
        ('"analytical engine"', "1"),
        ('"engine analytical"', ""),
        ('"engine difficult"', ""),  # no phrase reaches from one review into the next
        ("unicode cafe", "3"),
        ("taylor OR reilly", "13"),
        ("ada taylor OR langage", "12"),
        ("ada -lovelace", "24"),
        ("ada -lovelace -publisher.name:ada", "2"),
        ("title:ada", "12"),
        ("publisher:ada", "4"),
        ("reviews:charles", "1"),
        ("reviews.author.name:charles", "1"),
        ("reviews.body:charles", ""),
        ('title:"ada lovelace"', "1"),
        ("tags:history computing", "1"),
        ("maths", "1"),
        ("names:langage", "2"),
        ("c++", "3"),
        ("o'reilly", "3"),
        ("10:30", ""),
        ("http://example.org/ada", ""),
        ("AND", ""),
        ("NEAR(ada", ""),
        ("none", ""),
    ],
)
def test_a_query_finds_what_it_says(reader: LocalReader, query: str, found: str) -> None:
    assert "".join(sorted(hit.id for hit in reader.search("shop_books", query))) == found


def test_the_best_comes_first_with_the_words_marked(reader: LocalReader) -> None:
    hits = reader.search("shop_books", "ada")
    assert hits[0].id == "4"
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert hits[0].excerpt == "\x02Ada\x03 \x02Ada\x03 \x02Ada\x03"
    assert json.loads(hits[0].document) == BOOKS["4"]
    assert [hit.id for hit in reader.search("shop_books", "ada", limit=1)] == ["4"]
    (engine,) = reader.search("shop_books", "engine")
    assert engine.excerpt == "On the analytical \x02engine\x03 · Difficult reading"


@pytest.mark.parametrize(
    "query, message",
    [
        ("", "the query has no word to look for"),
        ("  +++ * -", "the query has no word to look for"),
        ("-ada", "the query has no word to look for"),
        ("OR", "the query has no word to look for"),
        ('"ada', "the query has a quotation mark that is not closed"),
        ("titel:ada", "there is no text field titel"),
    ],
)
def test_a_bad_query_is_answered_in_one_sentence(reader: LocalReader, query: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        reader.search("shop_books", query)
    assert refused.value.message == message
    assert refused.value.hint


PIECES = [*"aA1 \"*-:.()+^{}\\,'\0\nü\ue000", "OR ", "AND ", "NOT ", "title:"]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_whatever_is_typed_is_answered(reader: LocalReader, query: str) -> None:
    try:
        reader.search("shop_books", query)
    except ConfigError:
        pass


def test_a_column_is_named_by_its_place() -> None:
    query = translate("title:ada b* -c", ["title", "body"])
    assert query == '(({c0} : "ada") AND ("b"*)) NOT ("c")'


def test_search_follows_updates_deletes_and_clears(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    sink = store(path, {"1": {"title": "first"}, "2": {"title": "second"}, "3": {"title": "third"}})

    def found() -> dict[str, list[str]]:
        with LocalReader(str(path)) as reader:
            words = ("first", "second", "third", "changed")
            return {word: ids for word in words if (ids := [hit.id for hit in reader.search("shop_books", word)])}

    sink.write(Writes(Lsn(2), Documents("books", ["3"], [b'{"title": "changed"}'])))
    sink.flush()
    assert found() == {"first": ["1"], "second": ["2"], "changed": ["3"]}
    sink.write(Writes(Lsn(2), Documents("books", ["3"], [b'{"title": "third"}'])))
    sink.write(Writes(Lsn(3), Documents("books", ["1", "2"], [b'{"title": "changed"}', None])))
    sink.write(Writes(Lsn(1), Documents("books", ["1", "2"], [b'{"title": "first"}', b'{"title": "second"}'])))
    sink.flush()
    assert found() == {"changed": ["1"], "third": ["3"]}
    sink.write(Writes(Lsn(3), Documents("books", ["2"], [b'{"title": "second"}'])))
    sink.clear("books", Lsn(2))
    sink.flush()
    assert found() == {"changed": ["1"], "second": ["2"]}
    sink.clear("books", Lsn(3))
    sink.write(Writes(Lsn(3), Documents("books", ["3"], [b'{"title": "third"}'])))
    sink.close()  # what was not flushed is gone
    assert found() == {"changed": ["1"], "second": ["2"]}


def test_an_index_without_texts_and_one_that_is_not_there_are_sentences(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with pytest.raises(OperatorError, match=r"there is no .*x\.db yet"):
        LocalReader(str(path))
    store(path, BOOKS, texts=()).close()
    with LocalReader(str(path)) as reader:
        assert reader.count("shop_books") == 4
        with pytest.raises(ConfigError, match="has no text field"):
            reader.search("shop_books", "ada")
        with pytest.raises(OperatorError, match="has no complete index users") as missing:
            reader.search("users", "ada")
        assert "shop_books" in missing.value.hint


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    (tmp_path / "books.schema.yml").write_text("version: 1\ntable: books\nfields:\n  - text: title\n")
    file = tmp_path / "penstock.toml"
    file.write_text(
        'prefix = "shop_"\n[source]\ntype = "postgres"\nconnection_url = { env = "NOWHERE" }\n'
        '[sinks.mine]\ntype = "local"\n[[index]]\nname = "books"\nschema = "books.schema.yml"\n'
    )
    return file


def test_the_command_shows_ids_and_where_the_words_are(deployment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(deployment.parent / ".penstock" / "mine.sqlite", BOOKS).close()
    named = ["--config", str(deployment)]
    assert main.run(["search", "books", "ada", "--limit", "1", *named]) == 0
    assert capsys.readouterr() == ("4  Ada Ada Ada\n", "")
    assert main.run(["search", "books", "café", "--json", *named]) == 0
    shown = capsys.readouterr().out
    (hit,) = json.loads(shown)
    assert (hit["id"], hit["document"], hit["excerpt"]) == ("3", BOOKS["3"], "Ünïcode café")
    assert shown.isascii()
    assert main.run(["search", "books", "nobody", *named]) == 0
    assert capsys.readouterr() == ("", "No document of books fits.\n")


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["users", "ada"], 2, "there is no index 'users'"),
        (["books", '"ada'], 2, "a quotation mark that is not closed"),
        (["books", "ada", "--sink", "other"], 2, "there is no sink 'other' of type local"),
        (["books", "ada"], 1, "there is no"),
    ],
)
def test_the_command_answers_mistakes_in_a_sentence(
    deployment: Path, arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if code == 2:
        store(deployment.parent / ".penstock" / "mine.sqlite", BOOKS).close()
    assert main.run(["search", *arguments, "--config", str(deployment)]) == code
    assert message in capsys.readouterr().err.splitlines()[0]
