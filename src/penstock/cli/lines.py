"""A change as a line: a JSON object for machines, or time, position, operation, table and values for people.

Guarantees: a pure answer from a change; the JSON has the same fields for every operation, and values that JSON has no
form for as Postgres' text; a line for people is one line, whatever a value holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click

from penstock.cli.output import text_of, to_json
from penstock.contracts import Change
from penstock.model import Op, visible

_COLOURS = {Op.INSERT: "green", Op.UPDATE: "yellow", Op.DELETE: "red", Op.TRUNCATE: "magenta"}
# A line is for reading: what is longer than this is cut. JSON holds everything.
_LONGEST_VALUE = 80


def json_line(change: Change, committed_at: datetime) -> str:
    """The change as one JSON object."""
    return to_json(
        {
            "lsn": change.position.lsn,
            "row": change.position.row,
            "xid": change.xid,
            "committed_at": committed_at,
            "op": str(change.op),
            "table": str(change.table),
            "new": change.new,
            "old": change.old,
        }
    )


def text_line(change: Change, committed_at: datetime) -> str:
    """The change as one line of text, in colour (which is taken out where stdout is not a terminal)."""
    time = committed_at.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
    op = click.style(f"{change.op:8}", fg=_COLOURS[change.op])
    position = f"{change.position.lsn}:{change.position.row}"
    return f"{time}  {position:<14}  {op}  {visible(str(change.table))}  {_values(change)}".rstrip()


def _values(change: Change) -> str:
    if change.new is None:
        return _row(change.old or {})
    was = f"  (was {_row(_differing(change.old, change.new))})" if _differs(change) else ""
    return _row(change.new) + was


def _differs(change: Change) -> bool:
    return bool(change.old and change.new is not None and _differing(change.old, change.new))


def _differing(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (old or {}).items() if name in new and new[name] != value}


def _row(row: Mapping[str, Any]) -> str:
    return " ".join(f"{visible(name)}={_value(value)}" for name, value in row.items())


def _value(value: object) -> str:
    if value is None:
        return "NULL"
    text = visible(text_of(value))
    text = text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
    return f"'{text}'" if isinstance(value, str) else text
