"""The rows that a document is made of: for each role of a table in a schema, which rows hang on one root row.

Goes down the tree where `paths` goes up. Guarantees: keys and counts alone are read, no other value of a row; a role
that many rows play is counted whole and told by its first keys. Deliberately not: filters, orders and limits; rows that
these hide are among those told, for a change of them touches the document, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.contracts import Key
from penstock.document.paths import root_key
from penstock.document.schema import Aggregate, Columns, DocumentSchema, Field, Group, Join, JoinKind
from penstock.document.sql_catalog import SqlCatalog
from penstock.model import QualifiedTable, literal, quote
from penstock.postgres.connection import open_sql
from penstock.postgres.settings import ConnectionSettings
from penstock.postgres.sqlstate import translating

_FIRST = 5
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Rows:
    """What a document has of a table in one role: `columns` tell the rows apart, `keys` are some of them."""

    role: str
    table: QualifiedTable
    columns: Columns
    count: int
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows by the condition that they fulfil."""

    role: str
    table: QualifiedTable
    key: Columns
    condition: str

    def some(self, columns: Columns) -> str:
        """What they hold in these columns."""
        return f"SELECT {_list(columns)} FROM {self.table.sql} WHERE {self.condition}"


def rows_of(settings: ConnectionSettings, schema: DocumentSchema, catalog: SqlCatalog, key: Key) -> list[Rows]:
    """The rows of one document of a bound schema, the root's first."""
    found = []
    with (
        open_sql(settings, statement_timeout_s=_TIMEOUT_S) as connection,
        translating("reading the rows of a document"),
    ):
        connection.execute("SET row_security = off")
        for part in _parts(schema, catalog, key):
            ((count,),) = connection.execute(
                f"SELECT count(*) FROM ({part.some(part.key)}) AS rows".encode()
            ).fetchall()
            texts = ", ".join(f"{quote(name)}::pg_catalog.text" for name in part.key)
            listed = f"{part.some(part.key)} ORDER BY {_list(part.key)} LIMIT {_FIRST}"
            first = connection.execute(f"SELECT {texts} FROM ({listed}) AS rows".encode()).fetchall()
            keys = tuple(tuple(str(one) for one in row) for row in first)
            found.append(Rows(part.role, part.table, part.key, count, keys))
    return found


def _parts(schema: DocumentSchema, catalog: SqlCatalog, key: Key) -> Iterator[_Part]:
    columns = root_key(schema)
    kinds = [catalog.type_of(schema.table, name, schema.index) for name in columns]
    values = [
        f"{quote(name)} = {literal(value)}::{kind}" for name, value, kind in zip(columns, key, kinds, strict=True)
    ]
    root = _Part("root", schema.table, schema.primary_key, " AND ".join(values))
    yield root
    yield from _below(root, schema.fields, "")


def _below(above: _Part, fields: Sequence[Field], role: str) -> Iterator[_Part]:
    for one in fields:
        if isinstance(one, Group):
            yield from _below(above, one.fields, role)
        elif isinstance(one, Join | Aggregate):
            yield from _joined(above, one, f"{role}.{one.key}" if role else one.key)


def _joined(above: _Part, join: Join | Aggregate, role: str) -> Iterator[_Part]:
    if join.through:
        link = join.through
        junction = _Part(
            f"{role} (junction)",
            link.table,
            (*link.left_key, *link.right_key),
            _among(link.left_key, above.some(above.key)),
        )
        yield junction
        condition = _among(join.primary_key, junction.some(link.right_key))
    elif isinstance(join, Join) and join.kind is JoinKind.BELONGS_TO:
        condition = _among(join.primary_key, above.some(join.column))
    else:
        condition = _among(join.foreign_key, above.some(above.key))
    own = _Part(role, join.table, join.primary_key or join.foreign_key, condition)
    yield own
    if isinstance(join, Join):
        yield from _below(own, join.fields, role)


def _among(columns: Columns, values: str) -> str:
    return f"({_list(columns)}) IN ({values})"


def _list(columns: Columns) -> str:
    return ", ".join(map(quote, columns))
