"""A column's value as JSON, written by Postgres: one SQL expression for each type.

Every expression gives text (or json) that is never null: a missing value is the JSON `null`. The session pins how
values are printed (UTC, ISO dates). The rules:

- integers, booleans, floats and numerics are JSON numbers and booleans, digits exact; what JSON cannot say (NaN and
  the infinities) is null; money is a number;
- a timestamp with time zone is `2026-01-02T03:04:05.123456Z`, one without has no zone, a date is `2026-01-02`;
  fractions end with their last digit that is not 0; infinity is null; a year before Christ is as Postgres writes it;
- bytea is base64 in one line; json is itself, without line breaks between its tokens; arrays are arrays;
- everything else is a string: its text.
"""

from __future__ import annotations

import json

from penstock.document.schema import Geo, Literal, Scalar, Transform
from penstock.model import literal

_PLAIN = {"smallint", "integer", "bigint", "boolean"}
_FINITE = {"real": "real", "double precision": "double precision", "numeric": "numeric"}
_BLANKS = "E' \\t\\n\\r\\f\\v'"


def json_literal(value: Literal) -> str:
    """A value of a file as JSON."""
    return json.dumps(value, ensure_ascii=False)


def column_json(column: str, kind: str, field: Scalar | None = None) -> str:
    """The JSON of a column of base type `kind`; the field's transforms and default are applied."""
    transforms = field.transforms if field else ()
    found = array_json(column, kind[:-2], transforms) if kind.endswith("[]") else _nullable(column, kind, transforms)
    missing = json_literal(field.default if field else None)
    return f"coalesce({found}, {literal(missing)})"


def _nullable(value: str, kind: str, transforms: tuple[Transform, ...] = ()) -> str:
    """The JSON of a single value as text, null where the value is."""
    changed = transformed(value, transforms)
    if kind in _PLAIN:
        return f"{changed}::text"
    if kind in _FINITE:
        return f"CASE WHEN {changed} > '-Infinity' AND {changed} < 'Infinity' THEN {changed}::text END"
    if kind == "money":
        return f"{changed}::numeric::text"
    if kind == "uuid":
        return f"'\"' || {changed} || '\"'"
    if kind == "bytea":
        return f"'\"' || translate(encode({changed}, 'base64'), E'\\n', '') || '\"'"
    return _moment(changed, kind) or _text(changed, kind)


def _moment(value: str, kind: str) -> str:
    if kind == "date":
        return f"CASE WHEN isfinite({value}) THEN '\"' || {value} || '\"' END"
    if kind == "timestamp without time zone":
        return f"CASE WHEN isfinite({value}) THEN to_json({value})::text END"
    if kind == "timestamp with time zone":
        return f"CASE WHEN isfinite({value}) THEN replace(to_json({value})::text, '+00:00', 'Z') END"
    return ""


def _text(value: str, kind: str) -> str:
    if kind == "jsonb":
        return f"{value}::text"
    if kind == "json":  # a line break is only ever between tokens, and would break a bulk request
        return f"translate({value}::text, E'\\n\\r', '  ')"
    return f"to_json({value})::text"


def transformed(value: str, transforms: tuple[Transform, ...]) -> str:
    """A text after its transforms, in their order."""
    for one in transforms:
        value = f"lower({value})" if one is Transform.LOWERCASE else f"btrim({value}, {_BLANKS})"
    return value


def array_json(column: str, kind: str, transforms: tuple[Transform, ...] = ()) -> str:
    """The JSON of an array; null where it is null. Those that Postgres would write otherwise go value by value."""
    plain = not transforms and kind in _PLAIN | {"text", "character varying", "uuid", "jsonb"}
    if plain:
        return f"array_to_json({column})::text"
    each = _nullable("e", kind, transforms)
    listed = (
        f"SELECT string_agg(coalesce({each}, 'null'), ',' ORDER BY n) FROM unnest({column}) WITH ORDINALITY AS u (e, n)"
    )
    return f"CASE WHEN {column} IS NOT NULL THEN concat('[', ({listed}), ']') END"


def geo_json(field: Geo, columns: tuple[str, ...], kinds: tuple[str, ...]) -> str:
    """A point: of two numbers (latitude, longitude), of a point (longitude first), or in a form of its own."""
    if field.column and kinds[0] != "point":
        return column_json(columns[0], kinds[0])
    if field.column:
        halves = (f"({columns[0]})[1]", f"({columns[0]})[0]")
        kinds = ("double precision", "double precision")
    else:
        halves = (columns[0], columns[1])
    lat, lon = (_nullable(half, kind) for half, kind in zip(halves, kinds, strict=True))
    return f"coalesce('{{\"lat\":' || ({lat}) || ',\"lon\":' || ({lon}) || '}}', 'null')"


def number_json(value: str) -> str:
    """A double as JSON."""
    return f"coalesce({_nullable(value, 'double precision')}, 'null')"
