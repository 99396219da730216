"""What the changes of a table rest on: that it is the same table, published without a break, its rows told by events.

Guarantees: plain values, which a checkpoint keeps; a table that was dropped and made anew, left the publication (also
where it has come back), was written anew by ALTER TABLE, or gained or lost a partition with rows, does not stand where
it stood. Deliberately not: noticing what a look at the catalog no longer shows, such as rows that a partition took
along and brought back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from penstock.errors import PositionError
from penstock.model import QualifiedTable, quote
from penstock.postgres import publication as publications
from penstock.postgres.catalog import SqlConnection
from penstock.postgres.makeup import Makeup, changes, read_makeups, unpublished

AGAIN = "Take a new snapshot: refresh() of the view, or again() of the source."


class Footing(NamedTuple):
    """The OID of a table, and what it is made of and published by."""

    oid: int
    makeup: Makeup


def read_footings(
    connection: SqlConnection, publication: str, tables: Collection[QualifiedTable]
) -> dict[QualifiedTable, Footing]:
    """How each table stands now; one that is not there is left out."""
    makeups, _ = read_makeups(connection, tables, publication)
    return {table: Footing(int(next(iter(makeup))), makeup) for table, makeup in makeups.items() if makeup}


def unsteady(
    connection: SqlConnection,
    publication: str,
    table: QualifiedTable,
    was: Footing | None,
    found: Mapping[QualifiedTable, Footing],
) -> PositionError | None:
    """What is wrong where the stream does not tell all that happened to a table since `was`."""
    now = found.get(table)
    if was and (now is None or now.oid != was.oid):
        how = "dropped and made anew" if now else "dropped or renamed"
        return PositionError(f"{table} was {how}: not all that happened to it is in the stream", hint=AGAIN)
    report = publications.inspect(connection, publication, {table})
    if not report.complete:
        reasons = [blocker.reason for blocker in report.blockers] or [f"publication {quote(publication)} has it not"]
        return PositionError(
            f"{table} is not published any more as it has to be: {'; '.join(reasons)}",
            hint=" ".join([*(["Run:", *report.sql, "Then:"] if report.sql else []), AGAIN]),
        )
    reason = _moved(str(table), was.makeup, now.makeup) if was and now else ""
    return (
        PositionError(f"{reason}: not all that happened to its rows is in the stream", hint=AGAIN) if reason else None
    )


def _moved(table: str, was: Makeup, now: Makeup) -> str:
    gaps = (unpublished(was[oid], now[oid]) for oid in was.keys() & now.keys())
    return next((gap for gap in gaps if gap), "") or next(changes(table, was, now), "")


def encode(footing: Footing) -> dict[str, Any]:
    """As values that JSON has."""
    return footing._asdict()


def decode(found: dict[str, Any]) -> Footing:
    """What `encode` made."""
    return Footing(int(found["oid"]), dict(found["makeup"]))
