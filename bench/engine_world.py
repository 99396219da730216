"""Where `engine.py` measures: a Postgres with books, a real OpenSearch node, a deployment, and `penstock run` itself.

The documents are also computed by SQL written by hand, which shares nothing with the builder; `differences` compares
each of them with what the node holds.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from penstock.demo.server import Server, find_binaries
from penstock.errors import PenstockError
from penstock.model import Lsn
from penstock.ops.control import ask
from tests.fixtures.opensearch import Node

GIANT = 10_000
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "8GB", "checkpoint_timeout": "1h", "autovacuum": "off"}
TABLES = """
CREATE TABLE publisher (id bigint PRIMARY KEY, name text NOT NULL, country text NOT NULL, founded int NOT NULL);
CREATE TABLE book (id bigint PRIMARY KEY, publisher_id bigint NOT NULL REFERENCES publisher, title text NOT NULL,
                   isbn text NOT NULL, about text NOT NULL, price numeric(8,2), published timestamptz NOT NULL);
CREATE TABLE review (id bigint PRIMARY KEY, book_id bigint NOT NULL REFERENCES book, rating int NOT NULL,
                     author text NOT NULL, words text NOT NULL);
INSERT INTO publisher SELECT n, 'Publisher number ' || n, (ARRAY['DE', 'FR', 'US', 'GB'])[n % 4 + 1], 1800 + n % 200
    FROM generate_series(1, {books} / 100 + 1) n;
INSERT INTO book SELECT n, CASE WHEN n <= {giant} THEN 1 ELSE n / 100 + 1 END, 'A book with the title number ' || n,
    '978-' || n, repeat('What this book is about, told in a sentence. ', 4), (n % 5000) / 100.0,
    timestamptz '2020-01-01 00:00Z' + n * interval '1 minute' FROM generate_series(1, {books}) n;
INSERT INTO review SELECT n, n::bigint * 7919 % {books} + 1, n % 5 + 1, 'Reader ' || n % 9973,
    'Read in one night, and again in the next: ' || n FROM generate_series(1, {books} * 3) n;
CREATE INDEX ON book (publisher_id);
CREATE INDEX ON review (book_id);
ALTER TABLE review REPLICA IDENTITY FULL
"""
BY_HAND = """
SELECT b.id, json_build_object('id', b.id, 'title', b.title, 'isbn', b.isbn, 'about', b.about, 'price', b.price,
    'published', to_char(b.published, 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
    'publisher', json_build_object('id', p.id, 'name', p.name, 'country', p.country, 'founded', p.founded),
    'reviews', coalesce(r.list, '[]'))::text
FROM book b JOIN publisher p ON p.id = b.publisher_id
LEFT JOIN (SELECT book_id, json_agg(json_build_object('id', id, 'rating', rating, 'author', author, 'words', words)
                                    ORDER BY id) AS list FROM review GROUP BY book_id) r ON r.book_id = b.id"""
SCHEMA = """
version: 1
table: book
fields:
  - long: id
  - text: title
  - keyword: isbn
  - text: about
  - decimal: price
  - timestamp: published
  - belongs_to: publisher
    table: publisher
    column: publisher_id
    fields: [{long: id}, {text: name}, {keyword: country}, {integer: founded}]
  - has_many: reviews
    table: review
    foreign_key: book_id
    fields: [{long: id}, {integer: rating}, {keyword: author}, {text: words}]
"""
DEPLOYMENT = """
[source]
type = "postgres"
connection_url = "{source}"
slot = "bench"
publication = "bench"
[sinks.search]
type = "opensearch"
url = "{sink}"
number_of_replicas = 0
[[index]]
name = "books"
schema = "books.schema.yml"
"""


def say(text: str) -> None:
    """Progress, where it is in nobody's way."""
    print(text, file=sys.stderr, flush=True)


def until(condition: Callable[[], Any], what: str, limit_s: float = 900, pause_s: float = 0.01) -> Any:
    """Wait for it."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {limit_s:.0f} s in vain for {what}")
        time.sleep(pause_s)
    return found


class World:
    """The servers with their data, and a folder with the deployment's files. A context manager."""

    def __init__(self, books: int) -> None:
        self.books, self.giant = books, min(GIANT, books // 10)
        self._open = contextlib.ExitStack()

    def __enter__(self) -> World:
        say(f"filling tables for {self.books:,} documents")
        self.server = self._open.enter_context(Server(find_binaries(18), SETTINGS))
        self.node = Node(java=("-Xmx1g",)).start()
        self._open.callback(self.node.stop)
        self.sql = self._open.enter_context(psycopg.connect(self.server.url(), autocommit=True))
        self.sql.execute("SET timezone = 'UTC'")
        for statement in TABLES.format(books=self.books, giant=self.giant).split(";\n"):
            self.sql.execute(statement.encode())
        self.sql.execute("VACUUM ANALYZE")
        self.folder = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        (self.folder / "books.schema.yml").write_text(SCHEMA)
        self.config = self.folder / "penstock.toml"
        self.config.write_text(DEPLOYMENT.format(source=self.server.url(), sink=self.node.url))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def by_hand(self) -> Iterator[tuple[str, bytes]]:
        """Every document as it has to be: id and JSON."""
        with self.sql.transaction(), self.sql.cursor(name="by_hand") as cursor:
            cursor.itersize = 5000
            cursor.execute(BY_HAND.encode())
            for key, body in cursor:
                yield str(key), body.encode()

    def get(self, connection: http.client.HTTPConnection, key: int) -> dict[str, Any]:
        """A document by its id, as readers get it."""
        connection.request("GET", f"/books/_doc/{key}?filter_path=_source")
        said = json.loads(connection.getresponse().read())
        return dict(said.get("_source", {}))

    def connect(self) -> http.client.HTTPConnection:
        """A kept connection to the node."""
        return http.client.HTTPConnection("127.0.0.1", self.node.port, timeout=60)

    def indexed(self) -> int:
        """How many writes the node has taken for the index."""
        said = self.node.ask("GET", "/books/_stats/indexing")[1]
        return int(said["_all"]["primaries"]["indexing"]["index_total"])

    def held(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every document that the node holds."""
        self.node.ask("POST", "/books/_refresh")
        page = self.node.ask("POST", "/books/_search?scroll=1m", {"size": 5000, "sort": ["_doc"]})[1]
        while hits := page["hits"]["hits"]:
            yield from ((hit["_id"], hit["_source"]) for hit in hits)
            page = self.node.ask("POST", "/_search/scroll", {"scroll": "1m", "scroll_id": page["_scroll_id"]})[1]
        self.node.ask("DELETE", f"/_search/scroll/{page['_scroll_id']}")

    def forget(self, run: Run) -> None:
        """Be as before the run, which has ended."""
        self.sql.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        self.sql.execute("DROP PUBLICATION bench")
        shutil.rmtree(run.state)
        for one in self.node.ask("GET", "/_cat/indices?format=json")[1]:
            self.node.ask("DELETE", f"/{one['index']}")

    def compare(self) -> None:
        """Results before speed: every document equals what SQL says."""
        expected = {key: hash(_canonical(json.loads(body))) for key, body in self.by_hand()}
        wrong = [key for key, body in self.held() if expected.pop(key, None) != hash(_canonical(body))]
        if wrong or expected:
            raise SystemExit(f"results differ: {len(wrong)} wrong {wrong[:5]}, {len(expected)} missing")
        say(f"every one of {self.books:,} documents equals the SQL by hand")


def _canonical(document: dict[str, Any]) -> str:
    return json.dumps(document, sort_keys=True)


class Run:
    """`penstock run` at work on a world; its memory is watched. A context manager that ends it by SIGTERM."""

    def __init__(self, world: World, *arguments: str) -> None:
        self.peak_mb = 0.0
        self.state = world.folder / ".penstock"
        self._log = world.folder / "log"
        command = [sys.executable, "-c", "from penstock.cli.main import main; main()", "run", "--config"]
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen([*command, str(world.config), *arguments], stdout=log, stderr=log)
        self._ended = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)

    def status(self) -> dict[str, Any] | None:
        """What `penstock status` would say; None before there is anything to say."""
        if self.process.poll() is not None:
            raise SystemExit(f"penstock run ended:\n{self._log.read_text()[-3000:]}")
        try:
            return dict(ask(self.state, "status"))
        except PenstockError:
            return None

    def catch_up(self, world: World) -> None:
        """Wait until everything that was committed so far is durable in the index."""
        ((end,),) = world.sql.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()
        world.sql.execute("UPDATE book SET price = price WHERE id = 1")  # an end behind that
        until(
            lambda: Lsn.parse((self.status() or {"position": "0/0"})["position"]) > Lsn.parse(end),
            "the last change", pause_s=0.1,
        )  # fmt: skip

    def in_phase(self, phase: str) -> bool:
        """Whether the index is that far, or further."""
        told = self.status()
        return told is not None and told["indexes"]["books"]["phase"] in (phase, "live")

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            self.peak_mb = max(self.peak_mb, sum(map(_own_kb, _family(self.process.pid))) / 1024)


def _family(root: int) -> list[int]:
    """The process and all below it."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            above = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(above, []).append(int(name))
    found = [root]
    for one in found:
        found += children.get(one, ())
    return found


def _own_kb(pid: int) -> int:
    """Its memory; what it shares with others counts once over all of them."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return 0
