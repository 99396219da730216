"""Reading the local sink's file: full-text search, documents by id, all documents of an index.

Guarantees: each answer is of one moment, while a writer goes on; an index that is being seeded anew answers from its
generation before. A document comes as the bytes that were written. Deliberately not: writing, and what a search engine
would do beyond words (stemming, synonyms, sorting by fields).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from penstock.errors import ConfigError, OperatorError
from penstock.sinks import local_text as sql
from penstock.sinks.local_file import open_reader, translated
from penstock.sinks.local_query import translate

MARKS = "\x02", "\x03"
"""What stands before and after a word that was found, in `Hit.excerpt`; neither can be in a text of Postgres' JSON."""

_EXCERPT_WORDS = 16


class Hit(NamedTuple):
    """A document that was found. The higher the score, the better it fits; scores of two queries do not compare."""

    id: str
    score: float
    excerpt: str
    document: bytes


class LocalReader:
    """A reader of the file. `name` is always an index as readers know it, with the deployment's prefix."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._connection = open_reader(self._path)

    def __enter__(self) -> LocalReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Any number of times."""
        self._connection.close()

    def names(self) -> list[str]:
        """The indexes that can be read."""
        with translated(self._path):
            rows = self._connection.execute("SELECT name FROM generation WHERE shown = 1 ORDER BY name").fetchall()
        return [name.decode() for (name,) in rows]

    def search(self, name: str, query: str, limit: int = 10) -> list[Hit]:
        """The documents that fit best, best first; `local_query` says what a query may be."""
        with self._generation(name) as (number, fields):
            if not fields:
                raise ConfigError(f"{name} has no text field to search in", hint="Make one of its fields a `text`.")
            documents, texts = sql.documents(number), sql.texts(number)
            rows = self._connection.execute(
                f"SELECT d.id, -rank, snippet({texts}, -1, ?, ?, '…', ?), d.body FROM {texts}"
                f" JOIN {documents} d ON d.row = {texts}.rowid WHERE {texts} MATCH ? ORDER BY rank LIMIT ?",
                [*MARKS, _EXCERPT_WORDS, translate(query, fields), limit],
            ).fetchall()
        return [Hit(id.decode(), score, _excerpt(shown), body) for id, score, shown, body in rows]

    def document(self, name: str, id: str) -> bytes | None:
        """A document by its id."""
        with self._generation(name) as (number, _):
            row = self._connection.execute(f"SELECT body FROM {sql.documents(number)} WHERE id = ?", [id]).fetchone()
        return None if row is None else row[0]

    def documents(self, name: str) -> Iterator[tuple[str, bytes]]:
        """Every document and its id, ordered by id. A reading that is not ended keeps the file from shrinking."""
        with self._generation(name) as (number, _):
            table = sql.documents(number)
            for id, body in self._connection.execute(
                f"SELECT id, body FROM {table} WHERE body IS NOT NULL ORDER BY id"
            ):
                yield id.decode(), body

    def count(self, name: str) -> int:
        """How many documents there are."""
        with self._generation(name) as (number, _):
            table = sql.documents(number)
            return int(self._connection.execute(f"SELECT count(*) FROM {table} WHERE body IS NOT NULL").fetchone()[0])

    @contextmanager
    def _generation(self, name: str) -> Iterator[tuple[int, list[str]]]:
        """The generation that readers see and its text fields, in a transaction: it stays as it is meanwhile."""
        with translated(self._path):
            self._connection.execute("BEGIN")
            try:
                yield self._shown(name)
            finally:
                self._end()

    def _end(self) -> None:
        try:
            self._connection.execute("ROLLBACK")
        except sqlite3.ProgrammingError:  # closed meanwhile
            pass

    def _shown(self, name: str) -> tuple[int, list[str]]:
        row = self._connection.execute(
            "SELECT number, texts FROM generation WHERE name = ? AND shown = 1", [name]
        ).fetchone()
        if row is None:
            known = ", ".join(self.names())
            raise OperatorError(
                f"{self._path} has no complete index {name}",
                hint=f"There {'are: ' + known if known else 'is none yet'}. `penstock run` seeds it.",
            )
        return int(row[0]), json.loads(row[1])


def _excerpt(text: bytes) -> str:
    return text.decode(errors="replace").replace(sql.SEPARATOR, " · ").replace(sql.GAP, "·")
