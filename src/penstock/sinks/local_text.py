"""The SQL of the local sink's tables: documents with their versions, and the texts in them that are searched.

A generation N of an index has two tables. `documents_N` holds each id with its version and its JSON, or no JSON: a
tombstone. `texts_N` is the full-text index over it, a column for each path of the schema's texts, a row for each
document. A batch of writes is put into `incoming` and applied by a few statements over all of it: a full-text index
that is written row by row, by triggers say, is three times slower. Deliberately not: running anything.
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
    shown INTEGER NOT NULL DEFAULT 0,
    mark TEXT NOT NULL DEFAULT (lower(hex(randomblob(8))))
)
"""
"""`number` is used once in a file, `mark` once in all: a generation that was removed is not taken for a later one."""

_SAME = "name = (SELECT name FROM generation WHERE number = ?1)"
LEFT_BEFORE = "NOT shown AND (seeded IS NULL OR NOT (SELECT shown FROM generation WHERE number = ?1))"
"""What goes when readers come to ?1; where they are there already, only what was never complete does."""
STAMPS = "CREATE TABLE IF NOT EXISTS stamp (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
"""By the readers' name of an index; a file that was never stamped has not even the table."""
STAMP = "INTO stamp SELECT name, ? FROM generation WHERE number = ?"
STAMPED = "SELECT value FROM stamp JOIN generation USING (name) WHERE number = ?"
IS_STAMPED = "SELECT 1 FROM sqlite_master WHERE name = 'stamp'"

IS_LEFT = "seeded IS NOT NULL AND NOT shown"
COPY = (
    "INSERT INTO generation (name, schema_hash, source, texts, cleared)"
    " SELECT name, schema_hash, source, texts, cleared FROM generation WHERE number = ?"
)
SHOW = f"UPDATE generation SET shown = (number = ?1) WHERE {_SAME}"

INCOMING = "CREATE TEMP TABLE incoming (id TEXT NOT NULL, body TEXT CHECK (body IS NULL OR json_valid(body)))"
FORGET_INCOMING = "DELETE FROM temp.incoming"
TAKE_IN = "INSERT INTO temp.incoming VALUES (?, CAST(? AS TEXT))"
"""Texts come as bytes, and SQLite is told that they are text: nothing in Python looks into them."""

# A token of its own between the values of an array, so that no phrase reaches from one into the next. It is a letter to
# the tokenizer, and no text holds it: Unicode leaves it to private use.
GAP = "\ue000"
SEPARATOR = f"\n{GAP}\n"

# How many segments of a level FTS5 merges as it goes. Its own default, 4, makes changes a quarter slower.
AUTOMERGE = 8

# The oldest SQLite that knows everything used here, RETURNING last.
OLDEST = (3, 35, 0)


def documents(number: int) -> str:
    """The table that holds the documents of a generation."""
    return f"documents_{number}"


def count(number: int) -> str:
    """The statement that counts the documents of a generation."""
    return f"SELECT count(*) FROM {documents(number)} WHERE body IS NOT NULL"


def look(number: int) -> str:
    """The statement that reads documents by their ids (a JSON array), as bytes."""
    return (
        f"SELECT id, version, CAST(body AS BLOB) FROM {documents(number)} WHERE id IN (SELECT value FROM json_each(?))"
    )


def scan(number: int) -> str:
    """The statement that reads the ids of documents behind one, so many of them."""
    return f"SELECT id FROM {documents(number)} WHERE id > ? AND body IS NOT NULL ORDER BY id LIMIT ?"


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
        " body TEXT, deleted_s INTEGER)"
    )
    yield f"CREATE INDEX {table}_deleted ON {table} (deleted_s) WHERE deleted_s IS NOT NULL"
    yield from make_texts(number, paths)


def make_texts(number: int, paths: Sequence[str]) -> Iterator[str]:
    """The statements that make the full-text index and fill it from the documents; none where nothing is searched."""
    if not paths:
        return
    columns = ", ".join(map(column, range(len(paths))))
    yield f"CREATE VIRTUAL TABLE {texts(number)} USING fts5({columns}, tokenize='unicode61 remove_diacritics 2')"
    yield set_automerge(number, AUTOMERGE)
    yield _fill(number, paths)


def drop(number: int) -> Iterator[str]:
    """The statements that remove a generation's tables."""
    yield f"DROP TABLE IF EXISTS {documents(number)}"
    yield f"DROP TABLE IF EXISTS {texts(number)}"


def rename(before: int, number: int, *, has_texts: bool) -> Iterator[str]:
    """The statements that give a generation's tables another number."""
    yield f"ALTER TABLE {documents(before)} RENAME TO {documents(number)}"
    if has_texts:
        yield f"ALTER TABLE {texts(before)} RENAME TO {texts(number)}"


def drop_texts(number: int) -> str:
    """The statement that removes the full-text index and leaves the documents."""
    return f"DROP TABLE IF EXISTS {texts(number)}"


def apply(number: int, paths: Sequence[str]) -> Iterator[str]:
    """The statements that apply what is incoming (:version, :now): a write counts unless it meets a higher version."""
    table, index = documents(number), texts(number)
    met = f"FROM temp.incoming i CROSS JOIN {table} d ON d.id = i.id"
    if paths:  # those that are about to change
        changed = f"SELECT d.row {met} WHERE d.version <= :version AND d.body IS NOT NULL AND d.body IS NOT i.body"
        yield f"DELETE FROM {index} WHERE rowid IN ({changed})"
    yield (
        f"INSERT INTO {table} (id, version, body, deleted_s)"
        " SELECT id, :version, body, CASE WHEN body IS NULL THEN :now END FROM temp.incoming WHERE true"
        " ON CONFLICT (id) DO UPDATE SET version = excluded.version, body = excluded.body,"
        " deleted_s = excluded.deleted_s WHERE excluded.version >= version"
    )
    if paths:  # and those of the batch that have no texts, be they new or changed; docsize has a row for each that has
        yield (
            f"{_fill(number, paths)} AND row IN (SELECT d.row {met})"
            f" AND NOT EXISTS (SELECT 1 FROM {index}_docsize known WHERE known.id = {table}.row)"
        )


def clear(number: int, paths: Sequence[str]) -> Iterator[str]:
    """The statements that delete every document of a version not above :version."""
    table = documents(number)
    if paths:
        gone = f"SELECT row FROM {table} WHERE version <= :version AND body IS NOT NULL"
        yield f"DELETE FROM {texts(number)} WHERE rowid IN ({gone})"
    yield f"DELETE FROM {table} WHERE version <= :version"


def set_automerge(number: int, segments: int) -> str:
    """How many segments of a level the full-text index merges as it is written; 0: none until there are many."""
    index = texts(number)
    return f"INSERT INTO {index} ({index}, rank) VALUES ('automerge', {segments})"


def _fill(number: int, paths: Sequence[str]) -> str:
    columns = ", ".join(map(column, range(len(paths))))
    found = ", ".join(extract("body", path) for path in paths)
    kept = f"SELECT row, {found} FROM {documents(number)} WHERE body IS NOT NULL"
    return f"INSERT INTO {texts(number)} (rowid, {columns}) {kept}"


def extract(body: str, path: str) -> str:
    """All texts below a path as one text: through objects and arrays, of whatever depth."""
    names = path.split(".")
    direct = _step(*names)
    tables = []
    value = body
    for at, name in enumerate(names[:-1]):
        tables.append(f"json_each({_as_array(value, _step(name))}) j{at}")
        # Nothing but an object has members; a bare text would not even be JSON.
        value = f"CASE j{at}.type WHEN 'object' THEN j{at}.value ELSE '{{}}' END"
    # Most paths lead to one text without an array on the way, and that is cheap to see.
    return (
        f"CASE json_type({body}, {direct}) WHEN 'text' THEN json_extract({body}, {direct})"
        f" ELSE ({_collect(tables, value, _step(names[-1]))}) END"
    )


def _collect(tables: list[str], value: str, step: str) -> str:
    source = ", ".join([*tables, f"json_tree({value}, {step}) leaf"])
    return f"SELECT group_concat(leaf.atom, {literal(SEPARATOR)}) FROM {source} WHERE leaf.type = 'text'"


def _as_array(value: str, step: str) -> str:
    """The member as an array: an object (or nothing) stands for an array of one."""
    member = f"json_extract({value}, {step})"
    return f"CASE json_type({value}, {step}) WHEN 'array' THEN {member} ELSE json_array({member}) END"


def _step(*names: str) -> str:
    return literal("$" + "".join(f'."{name}"' for name in names))
