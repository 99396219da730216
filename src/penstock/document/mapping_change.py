"""Whether an index still fits its schema: the schema's fingerprint, and which changes an index takes in place.

Guarantees: the fingerprint (a SHA-256) is the same for files that mean the same documents in the same index, whatever
the order of their fields, their comments and their place; it changes with anything that may change a document or how
it is searched. Take it of the schema as its file says it, before keys are filled in from the catalog. Deliberately
not: what is then done about a change.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from penstock.document.mapping import IndexSettings, index_body
from penstock.document.schema import DocumentSchema

# Counts up when values are written in another form, so that indexes are filled anew.
DOCUMENT_FORMAT = 1
# Of the same meaning in any order: fields are told by key, filters are all to hold.
_UNORDERED = frozenset({"fields", "filters", "when"})
_ASIDE = frozenset({"place", "index"})
# What an index lets one change on a field that it holds.
_CHANGEABLE = frozenset({"ignore_above", "fields", "properties", "dynamic", "search_analyzer"})


class Difference(StrEnum):
    """What a new body means for an index that was made by an old one."""

    NONE = "none"
    ADDITIVE = "additive"
    BREAKING = "breaking"


def fingerprint(schema: DocumentSchema, settings: IndexSettings | None = None) -> str:
    """64 hexadecimal digits; equal where documents and mapping are."""
    body = index_body(schema, settings)
    index = body["settings"]["index"]
    said = {
        "format": DOCUMENT_FORMAT,
        "schema": _canonical(schema),
        "mappings": body["mappings"],
        "analysis": index["analysis"],
        "pipeline": index.get("default_pipeline"),
    }
    return hashlib.sha256(_json(said).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    """A schema's value as plain JSON, without what does not count."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        said = [one for one in dataclasses.fields(value) if one.name not in _ASIDE and not _is_default(value, one)]
        parts = {one.name: _canonical(getattr(value, one.name)) for one in said}
        ordered = {name: sorted(part, key=_json) if name in _UNORDERED else part for name, part in parts.items()}
        return {"is": type(value).__name__, **ordered}
    if isinstance(value, Mapping):
        return {str(name): _canonical(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(part) for part in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _is_default(value: Any, field: dataclasses.Field[Any]) -> bool:
    """What the file does not say is left out, so that a word the language learns later changes no fingerprint."""
    made = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    found = getattr(value, field.name)
    return type(found) is type(made) and bool(found == made)


def extends(old: DocumentSchema, new: DocumentSchema) -> bool:
    """Whether the new schema is the old one with more fields, at any depth, and nothing else: documents only gain."""
    before, after = _canonical(old), _canonical(new)
    return _json(before) != _json(after) and _is_within(before, after)


def _is_within(old: Any, new: Any) -> bool:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return _json(old) == _json(new)
    if old.keys() != new.keys():
        return False
    if not all(_json(old[name]) == _json(new[name]) for name in old if name != "fields"):
        return False
    after = {field["key"]: field for field in new.get("fields", ())}
    return all(_is_within(field, after.get(field["key"])) for field in old.get("fields", ()))


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=str)


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Difference, tuple[str, ...]]:
    """How a new body differs from an old one as far as the index is concerned, and each thing it cannot take in place.

    An additive change still wants documents to be built again: those that are there lack the new field.
    """
    breaking = tuple(_breaking(old, new))
    if breaking:
        return Difference.BREAKING, breaking
    same = _json(_shape(old)) == _json(_shape(new))
    return (Difference.NONE if same else Difference.ADDITIVE), ()


def additive(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether an index made by the old body can become the new one's without being made again."""
    return compare(old, new)[0] is not Difference.BREAKING


def _shape(body: Mapping[str, Any]) -> Any:
    mappings = {name: part for name, part in body["mappings"].items() if name != "_meta"}
    return [mappings, body["settings"]["index"].get("analysis")]


def _breaking(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    before, after = old["settings"]["index"], new["settings"]["index"]
    if before.get("number_of_shards") != after.get("number_of_shards"):
        yield "number_of_shards: an index keeps the number it was made with"
    if _json(before.get("analysis")) != _json(after.get("analysis")):
        yield "analysis: an open index takes no other analyzers or normalizers"
    yield from _changed_maps(old["mappings"], new["mappings"])
    yield from _changed_fields(old["mappings"].get("properties", {}), new["mappings"].get("properties", {}), "")


def _changed_maps(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Keys of a map that came already keep the type that they got then."""
    after = {path: rule for one in new.get("dynamic_templates", ()) for path, rule in one.items()}
    for one in old.get("dynamic_templates", ()):
        for path, rule in one.items():
            if path in after and after[path] != rule:
                yield f"{path}: values that came already keep the type that they have"


def _changed_fields(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> Iterator[str]:
    for key, before in old.items():
        here = f"{path}{key}"
        after = new.get(key)
        if after is None:
            yield f"{here}: an index cannot forget a field"
            continue
        names = sorted((before.keys() | after.keys()) - _CHANGEABLE)
        for name in names:
            if before.get(name) != after.get(name):
                yield f"{here}: {name} was {_said(before.get(name))}, and would be {_said(after.get(name))}"
        for group in ("fields", "properties"):
            yield from _changed_fields(before.get(group, {}), after.get(group, {}), f"{here}.")


def _said(value: Any) -> str:
    return "not set" if value is None else _json(value)
