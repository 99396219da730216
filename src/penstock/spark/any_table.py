"""Rows of any table in one schema: `before` and `after` as VARIANT objects, column by column.

A preimage is joined to its postimage. Values are JSON's where JSON has them (numbers, truth, text); bytes come in
base64, dates and times in ISO 8601, numerics and whatever else as their exact Postgres text, json too where it is asked
for so. Guarantee: a column without a value here is left out of the object, not null, and named in `_missing`.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.errors import OperatorError
from penstock.model import QualifiedTable
from penstock.postgres.rows import TableBatch
from penstock.spark.schema import JSON_OIDS, MANY, MISSING
from penstock.spark.variant import Variants, to_variant


def any_table(found: TableBatch, table: QualifiedTable, json_columns: str, unrepresentable: str) -> pa.RecordBatch:
    """The changes of one table, under the name that was asked for."""
    rows, columns = found.rows, found.relation.columns
    kinds = rows["_change_type"].to_pylist()
    values = rows.select([column.name for column in columns]).to_pylist()
    missing = rows["_missing"].to_pylist()
    jsons = {column.name for column in columns if column.type_oid in JSON_OIDS and json_columns == "variant"}
    images = _Images(values, missing, jsons)
    if unrepresentable == "error" and images.lost:
        raise OperatorError(
            f"column {images.lost[0]} of {found.table} holds JSON that VARIANT cannot (a number beyond a double, half "
            "a surrogate pair, deep nesting), or a row is larger than 16 MB",
            hint="Set jsonColumns to string for its exact text, or unrepresentable to null: such values are left out, "
            "and named in _missing.",
        )
    keep = [at for at, kind in enumerate(kinds) if kind != "update_preimage"]
    kept = rows.take(pa.array(keep, pa.int64()))
    before = [_before(kinds, at) for at in keep]
    after = [at if kinds[at] in ("insert", "update_postimage") else None for at in keep]
    arrays = [
        pa.array([str(table)] * len(keep), pa.string()),
        kept["_change_type"],
        images.variants.take(pa.array(before, pa.int64())),
        images.variants.take(pa.array(after, pa.int64())),
        *(kept[name] for name in ("_commit_lsn", "_seq", "_xid", "_commit_timestamp")),
        pa.array([missing[at] for at in keep], MISSING),
    ]
    return pa.record_batch(arrays, schema=_schema())


@functools.cache
def _schema() -> pa.Schema:
    return to_arrow_schema(MANY, timezone="UTC")


def _before(kinds: Sequence[str], at: int) -> int | None:
    """Where the old row of a change stands."""
    if kinds[at] == "delete":
        return at
    return at - 1 if at and kinds[at] == "update_postimage" and kinds[at - 1] == "update_preimage" else None


class _Images:
    """Each row as a VARIANT; what no VARIANT holds is left out, added to the row's missing columns, and told."""

    def __init__(self, values: list[dict[str, Any]], missing: list[list[str]], jsons: set[str]) -> None:
        self.lost: list[str] = []
        found = _variants(values, missing, jsons)
        if found.unrepresentable is not None:
            for at in found.unrepresentable.nonzero()[0].tolist():
                self._leave_out(values[at], missing[at], jsons)
            found = _variants(values, missing, jsons)
        self.variants = found.values

    def _leave_out(self, row: dict[str, Any], missing: list[str], jsons: set[str]) -> None:
        suspects = [name for name in jsons if row[name] is not None and name not in missing]
        bad = [name for name in suspects if _variants([{name: row[name]}], [[]], jsons).unrepresentable is not None]
        missing += bad
        if not bad or _variants([row], [missing], jsons).unrepresentable is not None:  # as a whole it is too large
            bad = [name for name in row if name not in missing]
            missing += bad
        self.lost += bad


def _variants(values: Sequence[Mapping[str, Any]], missing: Sequence[Sequence[str]], jsons: set[str]) -> Variants:
    texts = [_json(row, gone, jsons) for row, gone in zip(values, missing, strict=True)]
    return to_variant(pa.array(texts, pa.string()))


def _json(row: Mapping[str, Any], missing: Sequence[str], jsons: set[str]) -> str:
    parts = []
    for name, value in row.items():
        if name in missing:
            continue
        text = value if name in jsons and value is not None else json.dumps(_plain(value))
        parts.append(f"{json.dumps(name)}: {text}")
    return "{" + ", ".join(parts) + "}"


def _plain(value: Any) -> Any:
    """A value as JSON has it; what JSON has no word for as its text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
