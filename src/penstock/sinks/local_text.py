"""The SQL of the local sink's tables: documents with their versions, and the texts in them that are searched.

A generation N of an index has two tables. `documents_N` holds each id with its version and its JSON, or no JSON: a
tombstone. `texts_N` is the full-text index over it, a column for each path of the schema's texts; triggers keep it, so
that no statement on documents can forget it. Deliberately not: running anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.model import literal

CATALOG = """
CREATE TABLE generation (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    schema_hash TEXT NOT NULL,
    source TEXT NOT NULL,
    texts TEXT NOT NULL,
    seeded INTEGER,
    cleared INTEGER NOT NULL,
    shown INTEGER NOT NULL DEFAULT 0
)
"""
"""`number` is never used again: a generation that was removed is not taken for a later one."""

# A token of its own between the values of an array, so that no phrase reaches from one into the next. It is a letter to
# the tokenizer, and no text holds it: Unicode leaves it to private use.
GAP = "\ue000"
SEPARATOR = f"\n{GAP}\n"

# The oldest SQLite with everything used here (strftime, upsert, json, window of RETURNING) is 3.35.
OLDEST = (3, 35, 0)


def documents(number: int) -> str:
    """The table that holds the documents of a generation."""
    return f"documents_{number}"


def texts(number: int) -> str:
    """The full-text index of a generation."""
    return f"texts_{number}"


def column(at: int) -> str:
    """The column of the path at that place; a path itself may be a word that FTS5 keeps for itself."""
    return f"c{at}"


def make(number: int, paths: Sequence[str]) -> Iterator[str]:
    """The statements that make a generation's tables."""
    table = documents(number)
    yield (
        f"CREATE TABLE {table} (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, version INTEGER NOT NULL,"
        " body TEXT CHECK (body IS NULL OR json_valid(body)), deleted_s INTEGER)"
    )
    yield f"CREATE INDEX {table}_deleted ON {table} (deleted_s) WHERE deleted_s IS NOT NULL"
    yield from make_texts(number, paths)


def make_texts(number: int, paths: Sequence[str]) -> Iterator[str]:
    """The statements that make the full-text index and fill it from the documents; none where nothing is searched."""
    if not paths:
        return
    table, index = documents(number), texts(number)
    columns = ", ".join(map(column, range(len(paths))))
    insert = f"INSERT INTO {index} (rowid, {columns}) SELECT"
    yield f"CREATE VIRTUAL TABLE {index} USING fts5({columns}, tokenize='unicode61 remove_diacritics 2')"
    yield f"{insert} row, {_extract_all('body', paths)} FROM {table} WHERE body IS NOT NULL"
    new = f"{insert} new.row, {_extract_all('new.body', paths)}"
    gone = f"DELETE FROM {index} WHERE rowid = old.row"
    yield f"CREATE TRIGGER {table}_insert AFTER INSERT ON {table} WHEN new.body IS NOT NULL BEGIN {new}; END"
    yield f"CREATE TRIGGER {table}_delete AFTER DELETE ON {table} WHEN old.body IS NOT NULL BEGIN {gone}; END"
    yield (
        f"CREATE TRIGGER {table}_update AFTER UPDATE OF body ON {table} WHEN old.body IS NOT new.body"
        f" BEGIN {gone}; {new} WHERE new.body IS NOT NULL; END"
    )


def drop(number: int) -> Iterator[str]:
    """The statements that remove a generation's tables."""
    yield f"DROP TABLE IF EXISTS {documents(number)}"
    yield f"DROP TABLE IF EXISTS {texts(number)}"


def drop_texts(number: int) -> Iterator[str]:
    """The statements that remove the full-text index and leave the documents."""
    for event in ("insert", "delete", "update"):
        yield f"DROP TRIGGER IF EXISTS {documents(number)}_{event}"
    yield f"DROP TABLE IF EXISTS {texts(number)}"


def upsert(number: int) -> str:
    """One write (id, version, body or None, now): it counts unless it meets a higher version."""
    return (
        f"INSERT INTO {documents(number)} (id, version, body, deleted_s)"
        " VALUES (?1, ?2, CAST(?3 AS TEXT), CASE WHEN ?3 IS NULL THEN ?4 END)"
        " ON CONFLICT (id) DO UPDATE SET version = excluded.version, body = excluded.body,"
        " deleted_s = excluded.deleted_s WHERE excluded.version >= version"
    )


def _extract_all(body: str, paths: Sequence[str]) -> str:
    return ", ".join(extract(body, path) for path in paths)


def extract(body: str, path: str) -> str:
    """All texts below a path as one text: through objects and arrays, of whatever depth."""
    *above, leaf = path.split(".")
    step = _step(leaf)
    if not above:
        simple = f"CASE json_type({body}, {step}) WHEN 'text' THEN json_extract({body}, {step}) ELSE"
        return f"{simple} ({_collect([], body, step)}) END"
    tables = []
    value = body
    for at, name in enumerate(above):
        tables.append(f"json_each({_as_array(value, _step(name))}) j{at}")
        # Nothing but an object has members; a bare text would not even be JSON.
        value = f"CASE j{at}.type WHEN 'object' THEN j{at}.value ELSE '{{}}' END"
    return f"({_collect(tables, value, step)})"


def _collect(tables: list[str], value: str, step: str) -> str:
    source = ", ".join([*tables, f"json_tree({value}, {step}) leaf"])
    return f"SELECT group_concat(leaf.atom, {literal(SEPARATOR)}) FROM {source} WHERE leaf.type = 'text'"


def _as_array(value: str, step: str) -> str:
    """The member as an array: an object (or nothing) stands for an array of one."""
    member = f"json_extract({value}, {step})"
    return f"CASE json_type({value}, {step}) WHEN 'array' THEN {member} ELSE json_array({member}) END"


def _step(name: str) -> str:
    return literal(f'$."{name}"')
