"""Tables rebuilt from their changes alone, and the comparison with the tables themselves.

Guarantees: applying the changes of a slot in order, from an empty table on, ends with the table's rows; a value that
the server left out of an update (unchanged, and kept outside the row) is carried over from the row before. A change
of a row that is not there is counted (`strays`), not hidden. The comparison counts rows and shows none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.model import QualifiedTable
from penstock.postgres.capture import ChangeBatch
from penstock.postgres.connection import ConnectionSettings, open_sql, translating

Row = dict[str, Any]
Key = tuple[Any, ...]


class Mirror:
    """The rows of each table, by key."""

    def __init__(self, keys: Mapping[QualifiedTable, Sequence[str]]) -> None:
        self.strays = 0
        self._keys = keys
        self.tables: dict[QualifiedTable, dict[Key, Row]] = {table: {} for table in keys}

    def apply(self, batch: ChangeBatch) -> None:
        """Do what the changes say."""
        for part in batch.tables:
            rows, key = self.tables[part.table], self._keys[part.table]
            moved: Row = {}
            for change in part.rows.to_pylist():
                moved = self._apply(rows, key, change, moved)

    def _apply(self, rows: dict[Key, Row], key: Sequence[str], change: Row, moved: Row) -> Row:
        """Apply one change; what an update's new row takes over where it lacks a value, from its old one."""
        missing = change["_missing"]
        values = {name: value for name, value in change.items() if not name.startswith("_") and name not in missing}
        at = tuple(values.get(name) for name in key)
        kind = change["_change_type"]
        # An insert of a row that is there, or anything else of one that is not.
        self.strays += (kind == "insert") == (at in rows) and kind != "truncate" and not moved
        match kind:
            case "truncate":
                rows.clear()
            case "delete":
                rows.pop(at, None)
            case "update_preimage":
                return rows.pop(at, {})
            case "update_postimage":
                rows[at] = {**(moved or rows.get(at, {})), **values}
            case _:
                rows[at] = values
        return {}

    def differences(self, settings: ConnectionSettings) -> dict[QualifiedTable, str]:
        """How each table differs from its mirror; empty where none does."""
        found: dict[QualifiedTable, str] = {}
        with open_sql(settings) as connection, translating("reading the demo's tables"):
            for table, rows in self.tables.items():
                cursor: Any = connection.execute(f"SELECT * FROM {table.sql}".encode())
                names = [column.name for column in cursor.description]
                read = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
                real = {tuple(row[name] for name in self._keys[table]): row for row in read}
                if real != rows:
                    found[table] = _describe(real, rows)
        return found


def _describe(real: Mapping[Key, Row], mirrored: Mapping[Key, Row]) -> str:
    absent, extra = len(real.keys() - mirrored.keys()), len(mirrored.keys() - real.keys())
    other = sum(real[key] != mirrored[key] for key in real.keys() & mirrored.keys())
    return f"{absent} rows are not in the mirror, {extra} are only there, {other} differ"
