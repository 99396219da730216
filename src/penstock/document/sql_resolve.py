"""The statement that takes a path's first values to root keys: one for a whole array of values, no filter anywhere.

Guarantees: keys come distinct and as Postgres prints them; a path whose first values are root keys already needs no
statement. Deliberately not: following the change itself (`changes` reads its old and new values).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from penstock.document.paths import Hop, Path, root_key
from penstock.document.schema import DocumentSchema
from penstock.document.sql_catalog import SqlCatalog, same_text
from penstock.document.sql_filters import operator
from penstock.document.sql_scope import Link, among_keys
from penstock.model import quote


@dataclass(frozen=True, slots=True)
class Resolution:
    """How a path is followed: by a statement, or, without one, its first values are the keys."""

    path: Path
    sql: str = ""


def resolution(path: Path, schema: DocumentSchema, catalog: SqlCatalog) -> Resolution:
    """How to follow a path of the schema."""
    hops = path.hops
    last = Link(hops[-1].table, hops[-1].to) if hops else Link(path.table, path.columns)
    if not _are_keys(last, schema, catalog) and path.role != "root":
        hops = (*hops, Hop(schema.table, schema.primary_key, root_key(schema)))
    return Resolution(path, _statement(hops, catalog, schema.index) if hops else "")


def _are_keys(values: Link, schema: DocumentSchema, catalog: SqlCatalog) -> bool:
    """Whether the values are printed as the root's own key is; those of the root itself are."""
    key = root_key(schema)
    if (values.table, values.columns) == (schema.table, key):
        return True
    kinds = [catalog.type_of(schema.table, name, schema.index) for name in key]
    found = [catalog.type_of(values.table, name, schema.index) for name in values.columns]
    return all(same_text(one, other) for one, other in zip(kinds, found, strict=True))


def _statement(hops: tuple[Hop, ...], catalog: SqlCatalog, index: str) -> str:
    first = hops[0]
    kinds = [catalog.type_of(first.table, name, index) for name in first.on]
    sources = [f"{first.table.sql} AS t0"]
    for number, (before, hop) in enumerate(pairwise(hops), 1):
        same = [
            f"t{number}.{quote(on)} {operator('=', catalog.type_of(hop.table, on, index))} t{number - 1}.{quote(to)}"
            for on, to in zip(hop.on, before.to, strict=True)
        ]
        sources.append(f"JOIN {hop.table.sql} AS t{number} ON {' AND '.join(same)}")
    keys = Link(hops[-1].table, hops[-1].to).sql(f"t{len(hops) - 1}")
    where = [among_keys(Link(first.table, first.on).sql("t0"), kinds), *(f"{key} IS NOT NULL" for key in keys)]
    return "\n".join(
        [f"SELECT DISTINCT {', '.join(keys)}", "FROM " + "\n".join(sources), f"WHERE {' AND '.join(where)}"]
    )
