"""How fast documents are built, beside a plain `COPY` of a query written by hand and beside one query a document.

A document is a book with its author, five chapters, three tags, and two aggregates over its reviews. Both sides answer
for the same keys, in turn; figures are medians, ratios those of neighbours in time, so that a noisy machine counts for
both. Before speed, results: every document of the whole table must be the same JSON on both sides.

    python bench/documents.py [--books 500000] [--rounds 5]

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pyarrow as pa

from penstock.demo.server import Server, find_binaries
from penstock.document.build import PgDocumentBuilder
from penstock.document.schema import (
    Aggregate,
    AggregateKind,
    DocumentSchema,
    Field,
    Join,
    JoinKind,
    LeafType,
    Order,
    Scalar,
    Through,
)
from penstock.document.spec import SourceSpec
from penstock.model import QualifiedTable
from penstock.postgres.keys import SCHEMA

GOALS = {"ratio_1000": 0.7, "ratio_full": 0.7, "vs_query_per_document": 5}
SIZES = (1, 10, 100, 1000, 10_000)
TABLES = """
CREATE TABLE author (id bigint PRIMARY KEY, name text NOT NULL, country text);
CREATE TABLE book (id bigint PRIMARY KEY, author_id bigint NOT NULL REFERENCES author, title text NOT NULL, isbn text,
                   price numeric(8,2), published timestamptz);
CREATE TABLE chapter (id bigint PRIMARY KEY, book_id bigint NOT NULL REFERENCES book, number int NOT NULL,
                      title text NOT NULL, pages int);
CREATE TABLE tag (id bigint PRIMARY KEY, name text NOT NULL);
CREATE TABLE book_tag (book_id bigint REFERENCES book, tag_id bigint REFERENCES tag, PRIMARY KEY (book_id, tag_id));
CREATE TABLE review (id bigint PRIMARY KEY, book_id bigint NOT NULL REFERENCES book, rating int NOT NULL);
INSERT INTO author SELECT n, 'Author number ' || n, (ARRAY['DE', 'FR', 'US', 'GB'])[n % 4 + 1]
    FROM generate_series(1, {books} / 25) n;
INSERT INTO tag SELECT n, 'tag-' || n FROM generate_series(1, 1000) n;
INSERT INTO book SELECT n, n % ({books} / 25) + 1, 'A book with the title number ' || n, '978-' || n,
    (n % 5000) / 100.0, timestamptz '2020-01-01 00:00Z' + n * interval '1 minute' FROM generate_series(1, {books}) n;
INSERT INTO chapter SELECT n, (n - 1) / 5 + 1, (n - 1) % 5 + 1, 'Chapter ' || n || ', in which much happens', n % 40
    FROM generate_series(1, {books} * 5) n;
INSERT INTO book_tag SELECT (n - 1) / 3 + 1, ((n - 1) / 3 * 7 + (n - 1) % 3 * 331) % 1000 + 1
    FROM generate_series(1, {books} * 3) n;
INSERT INTO review SELECT n, (n - 1) / 2 + 1, n % 5 + 1 FROM generate_series(1, {books} * 2) n;
CREATE INDEX ON book (author_id);
CREATE INDEX ON chapter (book_id);
CREATE INDEX ON book_tag (tag_id);
CREATE INDEX ON review (book_id);
"""
BY_HAND = """
SELECT b.id, json_build_object('id', b.id, 'title', b.title, 'price', b.price, 'published',
           to_char(b.published, 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), 'isbn', b.isbn,
           'author', json_build_object('id', a.id, 'name', a.name, 'country', a.country),
           'chapters', coalesce(c.list, '[]'), 'tags', coalesce(t.list, '[]'),
           'review_count', coalesce(r.count, 0), 'rating', r.rating)
FROM book b JOIN author a ON a.id = b.author_id
LEFT JOIN (SELECT book_id, json_agg(json_build_object('number', number, 'title', title, 'pages', pages)
                                    ORDER BY number, id) AS list
           FROM chapter {children} GROUP BY book_id) c ON c.book_id = b.id
LEFT JOIN (SELECT book_id, json_agg(json_build_object('id', tag.id, 'name', name) ORDER BY name, tag.id) AS list
           FROM book_tag JOIN tag ON tag.id = tag_id {children} GROUP BY book_id) t ON t.book_id = b.id
LEFT JOIN (SELECT book_id, count(*), avg(rating)::float8 AS rating
           FROM review {children} GROUP BY book_id) r ON r.book_id = b.id
{roots}"""
ONE = """
SELECT json_build_object('id', b.id, 'title', b.title, 'price', b.price, 'published', b.published, 'isbn', b.isbn,
    'author', (SELECT json_build_object('id', a.id, 'name', a.name, 'country', a.country)
               FROM author a WHERE a.id = b.author_id),
    'chapters', (SELECT json_agg(json_build_object('number', number, 'title', title, 'pages', pages)
                                 ORDER BY number, id) FROM chapter WHERE book_id = b.id),
    'tags', (SELECT json_agg(json_build_object('id', tag.id, 'name', name) ORDER BY name, tag.id)
             FROM book_tag JOIN tag ON tag.id = tag_id WHERE book_id = b.id),
    'review_count', (SELECT count(*) FROM review WHERE book_id = b.id),
    'rating', (SELECT avg(rating)::float8 FROM review WHERE book_id = b.id))::text
FROM book b WHERE b.id = %s"""


def schema() -> DocumentSchema:
    """The document, as a schema."""

    def table(name: str) -> QualifiedTable:
        return QualifiedTable("public", name)

    def fields(**types: LeafType) -> tuple[Field, ...]:
        return tuple(Scalar(name, leaf, name) for name, leaf in types.items())

    leaf = LeafType
    author = fields(id=leaf.LONG, name=leaf.TEXT, country=leaf.KEYWORD)
    chapter = fields(number=leaf.INTEGER, title=leaf.TEXT, pages=leaf.INTEGER)
    tag = fields(id=leaf.LONG, name=leaf.KEYWORD)
    through = Through(table("book_tag"), ("book_id",), ("tag_id",))
    own = fields(
        id=leaf.LONG, title=leaf.TEXT, price=leaf.DECIMAL, published=leaf.TIMESTAMP, isbn=leaf.KEYWORD
    )  # fmt: skip
    relations: tuple[Field, ...] = (
        Join("author", JoinKind.BELONGS_TO, table("author"), author, column=("author_id",)),
        Join("chapters", JoinKind.HAS_MANY, table("chapter"), chapter, foreign_key=("book_id",),
             order_by=(Order("number"),)),
        Join("tags", JoinKind.MANY_TO_MANY, table("tag"), tag, through=through, order_by=(Order("name"),)),
        Aggregate("review_count", AggregateKind.COUNT, table("review"), foreign_key=("book_id",)),
        Aggregate("rating", AggregateKind.AVG, table("review"), column="rating", foreign_key=("book_id",)),
    )  # fmt: skip
    return DocumentSchema("books", table("book"), own + relations)


def say(text: str) -> None:
    """Progress, where it is in nobody's way."""
    print(text, file=sys.stderr, flush=True)


def timed(action: Callable[..., Any], *arguments: Any) -> float:
    """Seconds that it takes."""
    started = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - started


class Bench:
    """Both sides, over the same tables."""

    def __init__(self, url: str, books: int, rounds: int) -> None:
        self.books, self.rounds = books, rounds
        self.rng = random.Random(5)
        self.sql = psycopg.connect(url, autocommit=True)
        self.sql.execute("SET timezone = 'UTC'")
        self.builder = PgDocumentBuilder(SourceSpec([schema()]), url, chunk_keys=10_000)

    def keys(self, count: int) -> list[int]:
        """Books by chance."""
        return self.rng.sample(range(1, self.books + 1), min(count, self.books))

    def build(self, keys: list[int]) -> None:
        """Our side: documents by keys."""
        found = sum(len(some.ids) for some in self.builder.build("books", [(str(key),) for key in keys]))
        assert found == len(keys)

    def build_all(self) -> Iterator[tuple[str, bytes]]:
        """Our side: every document."""
        for some in self.builder.build_range("books", None, None):
            for one, body in zip(some.ids, some.bodies, strict=True):
                yield one, body or b""

    def copy(self, keys: list[int] | None) -> Iterator[bytes]:
        """The other side: what COPY sends, a row at a time."""
        array = f"ANY ('{{{','.join(map(str, keys))}}}'::bigint[])" if keys else ""
        parts = {"children": f"WHERE book_id = {array}", "roots": f"WHERE b.id = {array}"} if keys else {}
        query = BY_HAND.format(**(parts or {"children": "", "roots": ""}))
        with self.sql.cursor().copy(f"COPY ({query}) TO STDOUT (FORMAT binary)") as copy:
            yield from map(bytes, copy)

    def drain(self, rows: Iterator[Any]) -> None:
        """Take everything."""
        for _ in rows:
            pass

    def query_each(self, keys: list[int]) -> None:
        """One prepared query a document, one after the other."""
        for key in keys:
            self.sql.execute(ONE, [key], prepare=True).fetchone()


def same_documents(bench: Bench) -> int:
    """Check that both sides give the same JSON for every book; the checksum."""
    ours = theirs = count = 0
    for one, body in bench.build_all():
        ours ^= checksum(one, body)
        count += 1
    for at, row in enumerate(bench.copy(None)):
        start = 19 if at == 0 else 0  # the header of the format
        if len(row) - start > 2:
            key = struct.unpack_from("!q", row, start + 6)[0]
            theirs ^= checksum(str(key), row[start + 18 :])
    assert count == bench.books, f"{count} documents"
    assert ours == theirs, "the two sides differ"
    return ours


def checksum(key: str, body: bytes) -> int:
    """Of the JSON, however it is spaced."""
    return zlib.crc32(f"{key} {json.dumps(json.loads(body), sort_keys=True)}".encode())


def changed_authors(bench: Bench, count: int) -> pa.RecordBatch:
    """As many changes of authors as a capture would bring them."""
    keys = [[("id", str(key))] for key in bench.rng.sample(range(1, bench.books // 25 + 1), count)]
    columns = {"table": ["public.author"] * count, "op": ["update"] * count, "new": keys, "old": [None] * count}
    numbers = {"xid": [7] * count, "_commit_lsn": [1] * count, "_seq": list(range(count))}
    return pa.record_batch(
        [pa.array(values, SCHEMA.field(name).type) for name, values in {**columns, **numbers}.items()], schema=SCHEMA
    )


def measure(bench: Bench) -> dict[str, Any]:
    """Every figure."""
    figures: dict[str, Any] = {"books": bench.books, "checksum": same_documents(bench)}
    say("the same documents on both sides")
    for size in SIZES:
        repeats = max(bench.rounds, min(200, 2000 // size))
        seconds = statistics.median(timed(bench.build, bench.keys(size)) for _ in range(repeats))
        figures[f"docs_per_s_{size}"] = round(size / seconds)
        say(f"{size} keys: {figures[f'docs_per_s_{size}']} docs/s")
    figures |= ratios(bench)
    changes = changed_authors(bench, min(10_000, bench.books // 25))
    found = sum(len(keys) for keys in bench.builder.affected("books", changes))
    seconds = statistics.median(
        timed(bench.drain, bench.builder.affected("books", changes)) for _ in range(bench.rounds)
    )
    return figures | {"resolved_keys": found, "resolve_keys_per_s": round(found / seconds)}


def ratios(bench: Bench) -> dict[str, Any]:
    """Ours beside the others, in turn."""
    found: dict[str, list[float]] = {"ratio_1000": [], "vs_query_per_document": [], "ratio_full": [], "full_s": []}
    for _ in range(bench.rounds * 3):
        keys = bench.keys(1000)
        bench.build(keys)  # both sides find the pages in memory
        ours, theirs = timed(bench.build, keys), timed(bench.drain, bench.copy(keys))
        found["ratio_1000"].append(theirs / ours)
        found["vs_query_per_document"].append(timed(bench.query_each, keys) / ours)
    for number in range(max(2, bench.rounds // 2)):
        ours, theirs = timed(bench.drain, bench.build_all()), timed(bench.drain, bench.copy(None))
        say(f"full table, round {number + 1}: {ours:.1f} s, COPY {theirs:.1f} s")
        found["full_s"].append(ours)
        found["ratio_full"].append(theirs / ours)
    medians = {name: round(statistics.median(values), 2) for name, values in found.items()}
    return medians | {"docs_per_s_full": round(bench.books / medians["full_s"])}


def main() -> None:
    """Fill a server, check, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with Server(find_binaries(18), {"shared_buffers": "512MB", "max_wal_size": "8GB"}) as server:
        say(f"filling tables for {options.books} documents")
        with psycopg.connect(server.url(), autocommit=True) as sql:
            for statement in TABLES.replace("{books}", str(options.books)).split(";\n"):
                sql.execute(statement)
            sql.execute("VACUUM ANALYZE")
        bench = Bench(server.url(), options.books, options.rounds)
        figures = measure(bench)
        bench.builder.close()
        bench.sql.close()
    for name, goal in GOALS.items():
        say(f"{name}: {figures[name]} (goal {goal}){'' if figures[name] >= goal else ', missed'}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
