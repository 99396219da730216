"""`PgDocumentBuilder`: which documents a change touches, and documents as bytes, from a Postgres database.

Guarantees: a document is of one snapshot, and bytes from the server to the caller; what is held at a time is bounded by
keys and bytes; connections are bounded; rows that the role may not see are an error, never a missing document. The
schemas are bound to the catalog at the first call, and statements are written once. Deliberately not: deciding when to
build, settling by itself, or remembering what it built.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from penstock.contracts import ColumnType, Documents, Extent, Key
from penstock.document.build_plan import IndexPlan, SourcePlan, read_plan
from penstock.document.ids import document_id, is_digest, key_of
from penstock.document.paths import root_key
from penstock.document.paths_start import by_table, first_values, truncated_tables, untold
from penstock.document.settle import SNAPSHOT, settle
from penstock.document.spec import SourceSpec
from penstock.document.sql_catalog import SqlCatalog
from penstock.errors import ConfigError, OperatorError, PenstockError
from penstock.model import QualifiedTable, quote
from penstock.postgres.connection import ConnectionSettings, resolve
from penstock.postgres.sessions import CANCELLED, Cells, Plan, Sessions

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.contracts import Catalog, DocumentBuilder

log = logging.getLogger(__name__)

# Up to here a plan made once for any values serves: planning would take as long as running, or a good part of it.
_PLANNED_ONCE = 1000
# How many values one statement follows to root keys, and how many keys are remembered to give each once.
_RESOLVED_AT_ONCE = 10_000
_REMEMBERED = 1 << 20
# A text that is no value of a type (data exceptions, a domain's check).
_NO_VALUE = ("22", "23")
# A table, a column or an operator is not what it was when the schema was bound.
_CHANGED_STATES = {"42P01", "42703", "42704", "42804", "42846", "42883", "3F000"}


class PgDocumentBuilder:
    """Implements `DocumentBuilder` and `Catalog`. Use it in a `with` statement, or `close` it."""

    def __init__(
        self,
        spec: SourceSpec,
        connection_url: str | ConnectionSettings,
        *,
        max_connections: int = 4,
        chunk_keys: int = 1000,
        chunk_bytes: int = 8 << 20,
        settle_timeout_s: float = 60.0,
    ) -> None:
        if max_connections < 1 or chunk_keys < 1 or chunk_bytes < 1:
            raise ConfigError("a builder needs at least one connection, and chunks of at least one key and one byte")
        self._given = spec
        self._settings = resolve(connection_url) if isinstance(connection_url, str) else connection_url
        self._sessions = Sessions(self._settings, max_connections)
        self._chunk_keys = chunk_keys
        self._chunk_bytes = chunk_bytes
        self._settle_timeout_s = settle_timeout_s
        self._lock = threading.Lock()
        self._known: SourcePlan | None = None
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        return f"PgDocumentBuilder({[schema.index for schema in self._given.schemas]}, {self._settings.describe()})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back; those of open iterators follow when these end."""
        self._sessions.close()

    def abandon(self) -> None:
        """Close, and let whatever is under way, waits included, end with a RetryableError."""
        self._sessions.abandon()

    def rest(self) -> None:
        """Give connections back that are not in use; the next call opens them again."""
        self._sessions.rest()

    @property
    def spec(self) -> SourceSpec:
        """The schemas, bound to the catalog."""
        return self._plan.spec

    @property
    def catalog(self) -> SqlCatalog:
        """What the schemas' tables are made of, as it was read."""
        return self._plan.catalog

    def adopt(self, spec: SourceSpec) -> None:
        """Serve these schemas from now on, by the catalog as it is then; what is under way ends by those before."""
        with self._lock:
            self._given, self._known = spec, None

    def column(self, table: QualifiedTable, name: str) -> ColumnType | None:
        """The column's type, or None where there is no such table or column among those that documents read."""
        return self._plan.catalog.column(table, name)

    def affected(self, index: str, changes: pa.RecordBatch) -> Iterator[list[Key]]:
        """The root keys that the changes may touch, in lists of at most `chunk_keys`, each once."""
        plan, seen, chunk = self._plan.index(index), set[Key](), list[Key]()
        for keys in self._resolved(plan, changes):
            for key in keys:
                if key in seen:
                    continue
                if len(seen) < _REMEMBERED:
                    seen.add(key)
                chunk.append(key)
                if len(chunk) == self._chunk_keys:
                    yield chunk
                    chunk = []
        if chunk:
            yield chunk

    def _resolved(self, plan: IndexPlan, changes: pa.RecordBatch) -> Iterator[Collection[Key]]:
        """Keys as they are found; the same one may come by several paths."""
        for name, rows in by_table(changes).items():
            table = self._table(name)
            for step in plan.resolutions if table else ():
                if step.path.table != table:
                    continue
                self._warn(name, untold(rows, step.path.columns))
                values = first_values(rows, step.path.columns)
                if not step.sql:
                    yield values
                    continue
                for some in _slices(list(values), _RESOLVED_AT_ONCE):
                    for portion in self._rows(plan, step.sql, _arrays(some), len(some)):
                        yield [_key(cells) for cells in portion]

    def _warn(self, table: str, columns: tuple[str, ...]) -> None:
        """Say once for a table that deletes and moves of its rows cannot be traced."""
        if columns and table not in self._warned:
            self._warned.add(table)
            listed = ", ".join(map(quote, columns))
            log.warning("%s: its replica identity lacks %s: deletes and moves leave old parents stale", table, listed)

    def truncated(self, index: str, changes: pa.RecordBatch) -> Extent:
        """The most that a TRUNCATE among the changes means for the index."""
        schema = self._plan.index(index).schema
        extent = Extent.NONE
        for name in truncated_tables(changes):
            table = self._table(name)
            if table == schema.table:
                extent = max(extent, Extent.ROOTS if name == str(table) else Extent.SOME_ROOTS)
            elif table in schema.tables:
                extent = max(extent, Extent.CHILDREN)
        return extent

    def build(self, index: str, keys: Sequence[Key]) -> Iterator[Documents]:
        """The documents of these keys; None for a key that has none."""
        plan = self._plan.index(index)
        for some in _slices(list(dict.fromkeys(keys)), self._chunk_keys):
            missing = dict.fromkeys(some)
            portions = self._rows(plan, plan.by_keys, _arrays(some), len(some))
            last = Documents(index, [], [])
            for found in self._gathered(index, portions, missing):
                if last.ids:
                    yield last
                last = found
            last.ids.extend(map(document_id, missing))
            last.bodies.extend([None] * len(missing))
            if last.ids:
                yield last

    def build_range(self, index: str, after: Key | None, upto: Key | None) -> Iterator[Documents]:
        """The documents with `after` < key <= `upto`; None leaves that end open."""
        plan = self._plan.index(index)
        statement = plan.by_range[after is not None, upto is not None]
        last = Documents(index, [], [])  # held back: at the end of the rows, the connection is free for others
        for found in self._gathered(index, self._rows(plan, statement, [*(after or ()), *(upto or ())]), {}):
            if last.ids:
                yield last
            last = found
        if last.ids:
            yield last

    def keys(self, index: str, ids: Collection[str]) -> Mapping[str, Key]:
        """The keys of documents by their ids; an id that no key of the index gives is left out."""
        plan = self._plan.index(index)
        columns = root_key(plan.schema)
        told = {id: key for id in ids if (key := key_of(id, len(columns))) is not None}
        printed = self._printed(plan, list(told.values()))
        found = {id: key for id, key in told.items() if key in printed}
        if digests := {id for id in ids if is_digest(id)}:
            statement = f"SELECT {', '.join(map(quote, columns))} FROM {plan.schema.table.sql}"
            for portion in self._rows(plan, statement, ()):
                made = {document_id(_key(cells)): _key(cells) for cells in portion if None not in cells}
                found.update({id: made[id] for id in made.keys() & digests})
        return found

    def _printed(self, plan: IndexPlan, keys: list[Key]) -> set[Key]:
        """Those of the keys that Postgres takes, and prints just so: no other is the key of a row."""
        if not keys:
            return set()
        columns = root_key(plan.schema)
        kinds = [self._plan.catalog.type_of(plan.schema.table, name, plan.schema.index) for name in columns]
        arrays = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(kinds, 1))
        try:
            portions = self._rows(plan, f"SELECT * FROM unnest({arrays})", _arrays(keys))
            return {_key(cells) for portion in portions for cells in portion} & set(keys)
        except PenstockError as error:
            if not (error.sqlstate or "").startswith(_NO_VALUE):
                raise
        half = len(keys) // 2
        return self._printed(plan, keys[:half]) | self._printed(plan, keys[half:]) if half else set()

    def settle(self, xids: Collection[int]) -> None:
        """Return when these top-level transactions are finished for every snapshot from now on."""
        with self._sessions.borrow() as session:

            def look() -> str:
                ((cells,),) = session.rows(SNAPSHOT)
                return (cells[0] or b"").decode()

            settle(xids, look, self._settle_timeout_s)

    def _gathered(self, index: str, portions: Iterator[list[Cells]], missing: dict[Key, None]) -> Iterator[Documents]:
        """Rows as documents, within the limits; the last may be empty. What is found is no longer missing."""
        found, size = Documents(index, [], []), 0
        for portion in portions:
            for cells in portion:
                key, body = _key(cells[:-1]), cells[-1] or b""
                missing.pop(key, None)
                found.ids.append(document_id(key))
                found.bodies.append(body)
                size += len(body)
                if size >= self._chunk_bytes or len(found.ids) >= self._chunk_keys:
                    yield found
                    found, size = Documents(index, [], []), 0
        yield found

    def _rows(self, plan: IndexPlan, sql: str, values: Sequence[str], count: int = 0) -> Iterator[list[Cells]]:
        """A statement's rows; it is planned once where it is for few keys."""
        how = Plan.ONCE if 0 < count <= _PLANNED_ONCE else Plan.EACH_TIME
        with self._sessions.borrow() as session, _naming(plan):
            yield from session.rows(sql, values, plan=how)

    @property
    def _plan(self) -> SourcePlan:
        with self._lock:
            if self._known is None:
                self._known = read_plan(self._given, self._settings)
            return self._known

    def _table(self, name: str) -> QualifiedTable | None:
        """The table of the schemas that a change's table is or is a part of; an unknown one is looked up once."""
        plan = self._plan
        if name not in plan.names:
            with self._lock:
                plan.learn(name, self._settings)
        return plan.names[name]


@contextmanager
def _naming(plan: IndexPlan) -> Iterator[None]:
    """Say which index is concerned, and where the database no longer fits its schema."""
    try:
        yield
    except PenstockError as error:
        if error.sqlstate in _CHANGED_STATES:
            raise ConfigError(
                f"index {plan.schema.index} does not fit the database: {error.message}",
                hint="Change the schema, or the table back.",
                sqlstate=error.sqlstate,
            ) from None
        if isinstance(error, OperatorError) or error.sqlstate == CANCELLED:
            error.message = f"index {plan.schema.index}: {error.message}"
            error.args = (error.message,)
        raise


def _key(cells: Cells) -> Key:
    return tuple([(cell or b"").decode() for cell in cells])


def _arrays(keys: Sequence[Key]) -> list[str]:
    """The keys as Postgres array literals, one for each part."""
    return [_array(parts) for parts in zip(*keys, strict=True)]


def _array(values: Sequence[str]) -> str:
    if any('"' in value or "\\" in value for value in values):
        values = [value.replace("\\", "\\\\").replace('"', '\\"') for value in values]
    return '{"' + '","'.join(values) + '"}'


def _slices(keys: list[Key], size: int) -> Iterator[list[Key]]:
    for at in range(0, len(keys), size):
        yield keys[at : at + size]


if TYPE_CHECKING:
    # mypy holds the class to the contracts that it is chosen for.
    _as_builder: type[DocumentBuilder] = PgDocumentBuilder
    _as_catalog: type[Catalog] = PgDocumentBuilder
