"""How a changed row leads to the documents that show it: for each role of a table in a schema, one path to the root.

A path starts with columns that the change itself carries, in its old and in its new state, and goes on by the rows as
they stand: each hop takes values of one table's columns to other columns of the rows that hold them, until the values
are keys of root rows. Guarantees: pure and complete; every table that a document reads has a path for every role it
plays (child, far row, junction, counted row, the same table twice). No path looks at a filter, an order, a limit or a
soft delete: a row that these hide now may have been shown before. Deliberately not: SQL (`sql_resolve` writes it).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.document.schema import Aggregate, Columns, DocumentSchema, Field, Group, Join, JoinKind
from penstock.model import QualifiedTable


@dataclass(frozen=True, slots=True)
class Hop:
    """From values of the columns `on` to the columns `to` of the rows of `table` that hold them."""

    table: QualifiedTable
    on: Columns
    to: Columns


@dataclass(frozen=True, slots=True)
class Path:
    """From a changed row of `table` by its `columns`, then hop after hop, to keys of root rows.

    `role` says for people what the row is to the document; two paths that differ in nothing else are the same.
    """

    table: QualifiedTable
    columns: Columns
    hops: tuple[Hop, ...]
    role: str = field(default="", compare=False)


def root_key(schema: DocumentSchema) -> Columns:
    """The columns that a document's key is made of: those of its id where the schema names some."""
    return schema.doc_id or schema.primary_key


def paths(schema: DocumentSchema) -> tuple[Path, ...]:
    """Every path of a bound schema, the root's own first; each once."""
    key = root_key(schema)
    up = () if key == schema.primary_key else (Hop(schema.table, schema.primary_key, key),)
    root = _Node(schema.table, schema.primary_key, up, "")
    found = [Path(schema.table, key, (), "root"), *_below(root, schema.fields)]
    return tuple(dict.fromkeys(found))


def entries(schema: DocumentSchema) -> Iterator[tuple[QualifiedTable, Columns]]:
    """The tables of a schema with the columns that a change must carry; a table comes once for each role."""
    for path in paths(schema):
        yield path.table, path.columns
    yield schema.table, schema.primary_key


@dataclass(frozen=True, slots=True)
class _Node:
    """A place in the tree that fields hang on: `up` leads from values of its `key` to root keys."""

    table: QualifiedTable
    key: Columns
    up: tuple[Hop, ...]
    role: str


def _below(node: _Node, fields: tuple[Field, ...]) -> Iterator[Path]:
    for one in fields:
        if isinstance(one, Group):
            yield from _below(node, one.fields)
        elif isinstance(one, Join | Aggregate):
            yield from _joined(node, one)


def _joined(node: _Node, join: Join | Aggregate) -> Iterator[Path]:
    """The paths of the joined rows, of the junction's, and of everything below them."""
    role = f"{node.role}.{join.key}" if node.role else join.key
    if join.through:
        link = join.through
        yield Path(link.table, link.left_key, node.up, f"{role} (junction)")
        columns, up = join.primary_key, _then(Hop(link.table, link.right_key, link.left_key), node)
        above = up
    elif isinstance(join, Join) and join.kind is JoinKind.BELONGS_TO:
        columns, up = join.primary_key, _then(Hop(node.table, join.column, node.key), node)
        above = up
    else:
        columns, up = join.foreign_key, node.up
        above = _chained(Hop(join.table, join.primary_key, join.foreign_key), node.up)
    yield Path(join.table, columns, up, role)
    if isinstance(join, Join):
        yield from _below(_Node(join.table, join.primary_key, above, role), join.fields)


def _then(hop: Hop, node: _Node) -> tuple[Hop, ...]:
    """The hop to a node's key, and on from there; a second look at the node's own rows is spared."""
    after = node.up[0] if node.up else None
    if after and hop.table == node.table and hop.to == node.key and (after.table, after.on) == (node.table, node.key):
        return (Hop(hop.table, hop.on, after.to), *node.up[1:])
    return _chained(hop, node.up)


def _chained(hop: Hop, up: tuple[Hop, ...]) -> tuple[Hop, ...]:
    return (hop, *up) if hop.on != hop.to else up
