"""Spark's filters as SQL conditions, where Postgres means exactly the same by them.

Guarantees: a filter that is taken over keeps the very rows that Spark would keep, nulls, NaN, trailing blanks and
collations included; any other is left to Spark. Types whose values may come as null although they are none (an
infinite date under `unrepresentable = null`) are left to Spark, too. Plain functions over plain values: no I/O.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from pyspark.sql import datasource as spark
from pyspark.sql.datasource import Filter

from penstock.model import literal, quote
from penstock.postgres import values
from penstock.postgres.catalog import ColumnInfo

_COMPARED: Mapping[type[Filter], str] = {
    spark.EqualTo: "=",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
}
_PATTERNS: Mapping[type[Filter], tuple[str, str]] = {
    spark.StringStartsWith: ("", "%"),
    spark.StringEndsWith: ("%", ""),
    spark.StringContains: ("%", "%"),
}
_TEXTS = (values.TEXT, values.VARCHAR)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _whole(value: Any) -> str | None:
    return str(value) if type(value) is int else None


def _truth(value: Any) -> str | None:
    return str(value).upper() if type(value) is bool else None


def _double(value: Any) -> str | None:
    if type(value) is not float:
        return None
    text = (
        repr(value) if math.isfinite(value) else "NaN" if math.isnan(value) else f"{value:+}inity".replace("inf", "Inf")
    )
    return f"{literal(text)}::float8"


def _text(value: Any) -> str | None:
    return literal(value) if type(value) is str and "\0" not in value else None


def _uuid(value: Any) -> str | None:
    """Only as Postgres writes it: any other spelling equals no text that Spark sees."""
    return f"{literal(value)}::uuid" if type(value) is str and _UUID.fullmatch(value) else None


def _bytes(value: Any) -> str | None:
    return f"'\\x{bytes(value).hex()}'::bytea" if isinstance(value, bytes | bytearray) else None


def _date(value: Any) -> str | None:
    return f"'{value.isoformat()}'::date" if type(value) is date else None


def _moment(value: Any) -> str | None:
    if type(value) is not datetime or value.tzinfo is None:
        return None
    return f"'{value.astimezone(UTC).replace(tzinfo=None).isoformat()}+00'::timestamptz"


def _clock(value: Any) -> str | None:
    return f"'{value.isoformat()}'::timestamp" if type(value) is datetime and value.tzinfo is None else None


def _decimal(value: Any) -> str | None:
    fits = type(value) is int or (isinstance(value, Decimal) and value.is_finite())
    return f"{literal(format(Decimal(value), 'f'))}::numeric" if fits else None


_Literal = Callable[[Any], str | None]
_ALWAYS: Mapping[int, _Literal] = {
    **dict.fromkeys((values.INT2, values.INT4, values.INT8), _whole),
    **dict.fromkeys((values.FLOAT4, values.FLOAT8), _double),
    **dict.fromkeys(_TEXTS, _text),
    values.BOOL: _truth,
    values.UUID: _uuid,
    values.BYTEA: _bytes,
}
# Of these, a value that the column cannot hold may come as null: only where that is an error they are compared.
_IF_EXACT: Mapping[int, _Literal] = {
    values.DATE: _date,
    values.TIMESTAMP: _clock,
    values.TIMESTAMPTZ: _moment,
    values.NUMERIC: _decimal,
}


def take_over(
    filters: Iterable[Filter], columns: Iterable[ColumnInfo], *, exact: bool, utf8: bool
) -> tuple[list[str], list[Filter]]:
    """The conditions of the filters that can be taken over, and the filters that cannot.

    `exact`: values that a type cannot hold are errors, not nulls. `utf8`: the server orders text by UTF-8's bytes.
    """
    known = {column.name: column for column in columns}
    conditions, left = [], []
    for one in filters:
        condition = _condition(one, known, exact, utf8)
        left.append(one) if condition is None else conditions.append(condition)
    return conditions, left


def _condition(one: Filter, known: Mapping[str, ColumnInfo], exact: bool, utf8: bool) -> str | None:
    if isinstance(one, spark.Not):
        inner = _condition(one.child, known, exact, utf8)
        return None if inner is None else f"(NOT {inner})"
    path: tuple[str, ...] = getattr(one, "attribute", ())
    column = known.get(path[0]) if len(path) == 1 else None
    if column is None:
        return None
    write = {**_ALWAYS, **(_IF_EXACT if exact else {})}.get(column.type_oid)
    if column.type_oid == values.NUMERIC and values.arrow_type(column.type_oid, column.typmod) == values.arrow_type(0):
        write = None  # it comes as text
    if isinstance(one, spark.IsNull | spark.IsNotNull):
        no = " NOT" if isinstance(one, spark.IsNull) else ""
        # Unlike IS NULL, this is false for a composite value whose parts are all null.
        return f"({quote(column.name)} IS{no} DISTINCT FROM NULL)" if exact or write else None
    return None if write is None else _compared(one, column, write, utf8)


def _compared(one: Filter, column: ColumnInfo, write: _Literal, utf8: bool) -> str | None:
    name, is_text = quote(column.name), column.type_oid in _TEXTS
    # Spark compares text by its bytes. Equal bytes are equal under any collation, so the plain comparison, which may
    # find an index, stands beside the exact one.
    exact = f'{name} COLLATE "C"' if is_text else name
    if isinstance(one, spark.In):
        return _among(name, exact, [("NULL" if value is None else write(value)) for value in one.value])
    if type(one) in _PATTERNS:
        before, after = _PATTERNS[type(one)]
        pattern = re.sub(r"([\\%_])", r"\\\1", str(getattr(one, "value", "")))
        return f"({exact} LIKE {literal(before + pattern + after)})" if is_text and "\0" not in pattern else None
    value = write(getattr(one, "value", None))
    if value is None:
        return None
    if isinstance(one, spark.EqualNullSafe):
        return f"coalesce({exact} = {value}, FALSE)"
    operator = _COMPARED.get(type(one))
    if operator == "=":
        return f"({name} = {value} AND {exact} = {value})" if is_text else f"({name} = {value})"
    return None if operator is None or (is_text and not utf8) else f"({exact} {operator} {value})"


def _among(name: str, exact: str, listed: list[str | None]) -> str | None:
    found = [value for value in listed if value is not None]
    if len(found) != len(listed) or not found:
        return None
    words = ", ".join(found)
    return f"({name} IN ({words}) AND {exact} IN ({words}))" if name != exact else f"({name} IN ({words}))"
