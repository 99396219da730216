"""Keys: what tells the rows of a table apart, as values that can be hashed.

A key of one column is its value, a key of several a tuple. Guarantees: keys are equal if and only if the columns are of
the same values: 1 and "1" are keys of different columns and never met, a NULL part equals a NULL part and nothing else,
NaN equals NaN. A value that cannot be of the column's type is refused, not taken for another: neither True for 1 nor
"1" for 1. No Python runs per row where numpy can do without.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigError

_NAN = ("NaN",)  # it equals itself, which the number does not; no column's value is a tuple


def key_list(rows: pa.RecordBatch | pa.Table, names: Sequence[str]) -> list[Any]:
    """The key of each row."""
    columns = [_values(rows.column(name)) for name in names]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _values(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> list[Any]:
    kind = column.type
    if pa.types.is_integer(kind) and not column.null_count:
        found: list[Any] = column.to_numpy().tolist()
        return found
    values: list[Any] = column.to_pylist()
    if pa.types.is_floating(kind):
        return [_NAN if value != value else value for value in values]
    return values


def to_key(given: Sequence[Any], schema: pa.Schema, names: Sequence[str]) -> Any:
    """A key by its values, in the order of its columns."""
    if len(given) != len(names):
        raise ConfigError(
            f"the key has {len(names)} columns ({', '.join(names)}), and {len(given)} values were given",
            hint="Give one value for each column, in that order.",
        )
    parts = [_part(value, name, schema.field(name).type) for value, name in zip(given, names, strict=True)]
    return parts[0] if len(parts) == 1 else tuple(parts)


_TAKEN: list[tuple[Any, tuple[type, ...]]] = [
    (pa.types.is_boolean, (bool,)),
    (pa.types.is_integer, (int,)),
    (pa.types.is_floating, (int, float)),
    (pa.types.is_decimal, (int, Decimal)),
    (pa.types.is_binary, (bytes,)),
    (pa.types.is_date, (datetime.date,)),
    (pa.types.is_timestamp, (datetime.datetime,)),
    (pa.types.is_string, (str,)),
]


def _part(value: Any, name: str, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if isinstance(value, uuid.UUID) and kind == pa.string():
        return str(value)
    taken = next(types for is_kind, types in _TAKEN if is_kind(kind))
    fits = isinstance(value, taken) and (not isinstance(value, bool) or bool in taken)
    if pa.types.is_date(kind):
        fits = fits and not isinstance(value, datetime.datetime)
    if pa.types.is_timestamp(kind) and fits:
        fits = (value.tzinfo is not None) == (kind.tz is not None)
    if not fits:
        raise ConfigError(
            f"the key column {name} is {kind}, and a {type(value).__name__} was given", hint=f"Give {_wanted(kind)}."
        )
    return _NAN if value != value else value


def _wanted(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return f"a datetime {'with' if kind.tz else 'without'} a time zone"
    return {"string": "a text", "bool": "True or False", "binary": "bytes", "date32[day]": "a date"}.get(
        str(kind), "a number"
    )


def parse_key(texts: Sequence[str], schema: pa.Schema, names: Sequence[str]) -> list[Any]:
    r"""The values of a key that was written as text, as Postgres would print it; `\N` is NULL."""
    if len(texts) != len(names):
        to_key(texts, schema, names)
    return [_parsed(text, name, schema.field(name).type) for text, name in zip(texts, names, strict=True)]


def _parsed(text: str, name: str, kind: pa.DataType) -> Any:
    if text == r"\N":
        return None
    try:
        if pa.types.is_binary(kind):
            return bytes.fromhex(text.removeprefix("\\x"))
        return pc.cast(pa.scalar(text), kind).as_py()
    except (pa.ArrowInvalid, ValueError):  # its message quotes the value
        raise ConfigError(f"the key column {name} is {kind}, and what was given is none", hint=_example(kind)) from None


def _example(kind: pa.DataType) -> str:
    examples = {"bool": "true", "binary": r"\x00ff", "date32[day]": "2026-01-31"}
    default = "2026-01-31 12:00:00" if pa.types.is_timestamp(kind) else "42"
    return f"Write it as Postgres does, for example {examples.get(str(kind), default)}."
