"""As much of JSON Schema as our two use: enough to say whether a file fits."""

from __future__ import annotations

import re
from typing import Any

_TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
    "null": type(None),
}  # fmt: skip
KNOWN = {
    "$schema", "$ref", "title", "description", "default", "definitions", "type", "properties", "required",
    "additionalProperties", "items", "minItems", "maxItems", "minLength", "maxLength", "pattern", "minimum", "maximum",
    "exclusiveMinimum", "enum", "const", "oneOf",
}  # fmt: skip


def fits(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """Whether the value is one that the schema describes."""
    assert not schema.keys() - KNOWN, f"the judge does not know {schema.keys() - KNOWN}"
    if "$ref" in schema:
        return fits(value, root["definitions"][schema["$ref"].rsplit("/", 1)[1]], root)
    if "oneOf" in schema and sum(fits(value, one, root) for one in schema["oneOf"]) != 1:
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "const" in schema and value != schema["const"]:
        return False
    types = schema.get("type", [])
    if types and not any(_is(value, one) for one in ([types] if isinstance(types, str) else types)):
        return False
    return _object(value, schema, root) and _array(value, schema, root) and _scalar(value, schema)


def _is(value: Any, type_: str) -> bool:
    return isinstance(value, _TYPES[type_]) and (type_ == "boolean" or not isinstance(value, bool))


def _object(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    if not isinstance(value, dict):
        return True
    known = schema.get("properties", {})
    others = schema.get("additionalProperties", {})
    if set(schema.get("required", ())) - value.keys() or (others is False and value.keys() - known.keys()):
        return False
    return all(fits(one, known.get(key, others or {}), root) for key, one in value.items())


def _array(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    if not isinstance(value, list):
        return True
    enough = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
    return enough and all(fits(one, schema.get("items", {}), root) for one in value)


def _scalar(value: Any, schema: dict[str, Any]) -> bool:
    if isinstance(value, str):
        long_enough = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
        return long_enough and bool(re.search(schema.get("pattern", ""), value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        above = value > schema.get("exclusiveMinimum", value - 1)
        return above and schema.get("minimum", value) <= value <= schema.get("maximum", value)
    return True
