"""What decides, beside rows, which changes are told: partitions, the files of tables, publication, identity, timeline.

Rows that come or go with a partition, or are written anew by ALTER TABLE, are told by no row event; nor are those of a
table that is not published; a delete under another replica identity does not tell its old parent; and a promoted server
may lack commits that were seen on the one before. Guarantees: one query, which reads the catalog only and locks
nothing. A partition that was made as one (and so was empty) is no reason where it traces what the others do, nor is a
table that was only packed anew (VACUUM FULL, CLUSTER) or truncated, which is told by an event. Deliberately not:
noticing what came and went between two looks, but for a table that left the publication and is back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from penstock.document.schema import DocumentSchema
from penstock.document.spec import SourceSpec
from penstock.model import QualifiedTable, quote
from penstock.postgres.connection import open_sql
from penstock.postgres.makeup import changes, read_makeups, unpublished
from penstock.postgres.settings import ConnectionSettings

_TIMELINE = "timeline"  # no table is named so: names have two parts


def shapes(settings: ConnectionSettings, schemas: Iterable[DocumentSchema], publication: str = "") -> dict[str, str]:
    """For each index, the shape of its tables, a text to be kept and compared.

    With the name of a publication, and schemas that are bound: also what is told of their changes.
    """
    chosen = list(schemas)
    with open_sql(settings) as connection:
        found, timeline = read_makeups(connection, {table for schema in chosen for table in schema.tables}, publication)
    return {schema.index: _text(schema, found, timeline if publication else "") for schema in chosen}


def _text(schema: DocumentSchema, found: Mapping[QualifiedTable, Mapping[str, Any]], timeline: str) -> str:
    needed = SourceSpec([schema]).thin_columns() if timeline else {}
    shape = {
        str(table): {oid: _told(one, needed.get(table, ()), timeline) for oid, one in found[table].items()}
        for table in sorted(schema.tables)
    }
    return json.dumps({**shape, _TIMELINE: timeline}, sort_keys=True)


def _told(one: Mapping[str, Any], needed: Iterable[str], timeline: str) -> dict[str, Any]:
    """One part of a table; of its identity only what the index needs to follow its changes."""
    plain = {key: value for key, value in one.items() if key not in ("entries", "identity")}
    if not timeline or one["entries"] is None:
        return plain
    identity = one["identity"]
    traced = {column: identity is None or column in identity for column in needed}
    return {**plain, "entries": one["entries"], "traced": traced}


def unmet(shape: str, *, untraced: bool = True) -> str:
    """What is not told of the index's tables now, or nothing: one is not published, or (`untraced`) not traced."""
    parts = [one for table, parts in json.loads(shape).items() if table != _TIMELINE for one in parts.values()]
    for one in parts:
        if one.get("entries") == []:
            return f"{one['name']} is not published"
    lacking = ((one["name"], column) for one in parts for column, known in one.get("traced", {}).items() if not known)
    return next((_untraced(*lack) for lack in lacking if untraced), "")


def _untraced(name: str, column: str) -> str:
    return f"the replica identity of {name} lacks {quote(column)}"


def changed(before: str, now: str, *, mended: bool = False) -> str:
    """Why documents may have changed without an event, or nothing.

    Where it was `mended` by us in between, what is told is another on purpose.
    """
    was, found = json.loads(before), json.loads(now)
    if (before_that := was.pop(_TIMELINE, "")) != (at := found.pop(_TIMELINE, "")) and before_that and at:
        return f"the server was promoted (timeline {before_that} to {at}), and may lack commits that were seen before"
    for table in found.keys() & was.keys():
        if reason := next(changes(table, was[table], found[table]), ""):
            return reason
        common = found[table].keys() & was[table].keys()
        untold = (reason for oid in common for reason in _untold(was[table][oid], found[table][oid]))
        born = (reason for oid in found[table].keys() - common for reason in _unlike(was[table], found[table][oid]))
        if not mended and (reason := next(chain(untold, born), "")):
            return reason
    return ""


def _unlike(before: Mapping[str, Mapping[str, Any]], new: Mapping[str, Any]) -> Iterator[str]:
    """What a new part of a table does not trace, and all before it did: it lacks the identity that they were given."""
    known = [part["traced"] for part in before.values() if "traced" in part]
    for column, traced in new.get("traced", {}).items():
        if known and not traced and all(one.get(column) for one in known):
            yield _untraced(new["name"], column)


def _untold(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Changes that were not told, or not to their old parents, since the look before; where that look saw as much."""
    name = now["name"]
    if reason := unpublished(before, now):
        yield reason
    was, traced = before.get("traced", {}), now.get("traced", {})
    for column in traced.keys() & was.keys():
        if traced[column] != was[column]:
            lacked = f"the replica identity of {name} lacked {quote(column)} for a while"
            yield lacked if traced[column] else _untraced(name, column)
