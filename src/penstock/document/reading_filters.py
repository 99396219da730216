"""Filters as a file writes them: SQL, comparisons, and `any` of several.

Guarantees: a comparison that comes out has as many values as its operator takes, and none of them is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.document.reading_names import Name
from penstock.document.reading_shapes import (
    BAD,
    Found,
    JsonSchema,
    Key,
    Listed,
    Shape,
    Table,
    Text,
    Value,
    Word,
    refuse,
)
from penstock.document.reading_tree import Node, Problems, choices
from penstock.document.schema import AnyOf, Comparison, FilterOp, Raw

_NONE = (FilterOp.IS_NULL, FilterOp.IS_NOT_NULL)
_SEVERAL = (FilterOp.IN, FilterOp.NOT_IN)
_PATTERN = (FilterOp.LIKE, FilterOp.ILIKE)


@dataclass(frozen=True, slots=True)
class _Operand:
    """The value of a comparison, kept until its operator is known."""

    accepted: str = "a text, a number, true or false; a list for `in`, `not_in` and `between`"

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        return node

    def json_schema(self) -> JsonSchema:
        one = Value().json_schema()
        return {"oneOf": [one, {"type": "array", "items": one, "minItems": 1}]}


@dataclass(frozen=True, slots=True)
class FilterShape:
    """One filter."""

    accepted: str = "a mapping with `raw`, or `any`, or `column` and `op`"

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        entries = node.entries
        if not entries:
            return refuse(node, name, problems, self.accepted)
        if "raw" in entries:
            found: Found = RAW.read(node, name, problems)
            return Raw(found["raw"], node.place) if found.complete else BAD
        if "any" in entries:
            found = ANY.read(node, name, problems)
            return AnyOf(found["any"], node.place) if found.complete else BAD
        if not entries.keys() & set(COMPARISON.names()):
            word, entry = next(iter(entries.items()))
            known = [*RAW.names(), *ANY.names(), *COMPARISON.names()]
            problems.add(entry.place, f"`{word}` is not a key of a filter", choices(word, known))
            return BAD
        return _comparison(COMPARISON.read(node, name, problems), problems)

    def json_schema(self) -> JsonSchema:
        return {"$ref": "#/definitions/filter"}


def _comparison(found: Found, problems: Problems) -> Any:
    if not found.complete:
        return BAD
    op: FilterOp = found["op"]
    operand: Node | None = found["value"]
    if op in _NONE:
        if operand is None:
            return Comparison(found["column"], op, (), found.place)
        problems.add(operand.place, f"`{op}` has a `value`", f"`{op}` compares with nothing: take it away")
        return BAD
    if operand is None:
        problems.add(found.place, f"`{op}` has no `value`", f"accepted: {_shape(op).accepted}")
        return BAD
    if operand.value is None:
        problems.add(operand.place, f"`{op}` compares with null", "use `is_null` or `is_not_null`")
        return BAD
    values = _shape(op).read(operand, "value", problems)
    if values is BAD:
        return BAD
    return Comparison(found["column"], op, values if isinstance(values, tuple) else (values,), found.place)


def _shape(op: FilterOp) -> Shape:
    if op in _SEVERAL:
        return Listed(Value(), least=1)
    if op is FilterOp.BETWEEN:
        return Listed(Value(), least=2, most=2)
    return Text("a text with % and _") if op in _PATTERN else Value()


FILTERS = Key("filters", Listed(FilterShape()), "Only rows for which all of these hold count.", (), shown="none")

RAW = Table(
    "a filter in SQL",
    (Key("raw", Text("SQL"), "A condition in SQL over the columns of the filter's table.", required=True),),
)
ANY = Table(
    "a filter of several",
    (
        Key(
            "any", Listed(FilterShape(), least=1), "Filters of which at least one holds.", (), required=True, added=True
        ),
    ),
)
COMPARISON = Table(
    "a filter",
    (
        Key("column", Name(), "The column that is compared.", required=True),
        Key("op", Word(FilterOp), "How it is compared.", required=True),
        Key(
            "value", _Operand(), "With what: nothing for `is_null` and `is_not_null`, a list for `in` and `not_in`, two"
            " values for `between`, one value else.",
        ),
    ),
)  # fmt: skip
