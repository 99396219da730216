"""What an index must know of its documents: the body (settings and mappings) by which it is made.

Guarantees: a pure, deterministic answer from the schema alone, no database needed; a field that is not in the schema
is rejected (`dynamic: strict`), except below `json` and `map`; what a field's `options` say always wins. Rows of
has_many and many_to_many are `nested`, so that a query about one row never mixes in the values of another; `options:
{type: object}` chooses otherwise. Deliberately not: talking to an index, and the values of documents (`sql`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.document.mapping_analysis import CODE, CODE_SEARCH, TEXT, TextAnalysis, analysis, rank_normalizer
from penstock.document.schema import (
    Aggregate,
    AggregateKind,
    Constant,
    DocumentSchema,
    Field,
    Geo,
    Group,
    Join,
    JoinKind,
    LeafType,
    OpenMap,
    Scalar,
)

Properties = dict[str, Any]

# A term has 32,766 bytes at most and a character up to four: a longer value is kept, but neither found nor sorted by.
_TERM_CHARACTERS = 8191
# How long a deleted id remembers its version: far longer than a write can be late.
_DELETES_KEPT = "1h"
# What an index allows by itself; more is asked for only where the schema needs it.
_TOTAL_FIELDS, _NESTED_FIELDS, _DEPTH = 1000, 50, 20
_DATES = "strict_date_optional_time||epoch_millis"
# A column of time of day becomes a timestamp field as well.
_TIMES = (
    "strict_date_optional_time||strict_hour_minute_second_fraction||strict_hour_minute_second"
    "||strict_time||strict_time_no_millis||epoch_millis"
)

_PLAIN: Mapping[LeafType, Mapping[str, Any]] = {
    LeafType.UUID: {"type": "keyword"},
    LeafType.BOOLEAN: {"type": "boolean"},
    LeafType.SHORT: {"type": "short"},
    LeafType.INTEGER: {"type": "integer"},
    LeafType.LONG: {"type": "long"},
    LeafType.FLOAT: {"type": "float"},
    LeafType.DOUBLE: {"type": "double"},
    LeafType.DECIMAL: {"type": "double"},
    LeafType.DATE: {"type": "date", "format": _DATES},
    LeafType.TIMESTAMP: {"type": "date", "format": _TIMES},
    LeafType.BINARY: {"type": "binary"},
    LeafType.JSON: {"type": "object", "dynamic": True},
}


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """What a deployment says about its indexes; the words are those of the file."""

    number_of_shards: int = 1
    number_of_replicas: int = 1
    refresh_interval: str = "10s"
    text_analysis: TextAnalysis = TextAnalysis.BUILTIN
    auto_subfields: bool = True
    pipeline: str = ""


def index_body(schema: DocumentSchema, settings: IndexSettings | None = None) -> dict[str, Any]:
    """The body of the request that makes the index."""
    chosen = settings or IndexSettings()
    properties = _properties(schema.fields, chosen)
    index: dict[str, Any] = {
        "number_of_shards": chosen.number_of_shards,
        "number_of_replicas": chosen.number_of_replicas,
        "refresh_interval": chosen.refresh_interval,
        "gc_deletes": _DELETES_KEPT,
        **_limits(properties),
        "analysis": analysis(chosen.text_analysis, _rankings(schema.fields)),
    }
    if chosen.pipeline:
        index["default_pipeline"] = chosen.pipeline
    # Below json a text that looks like a date would make a date of the key, and the next text would be rejected.
    mappings: dict[str, Any] = {"dynamic": "strict", "date_detection": False, "properties": properties}
    if templates := list(_templates(schema.fields, "", chosen)):
        mappings["dynamic_templates"] = templates
    return {"settings": {"index": index}, "mappings": mappings}


def field_mapping(field: Field, settings: IndexSettings | None = None) -> Properties:
    """How one field is indexed, its options included."""
    chosen = settings or IndexSettings()
    return _with_options(_derived(field, chosen), field.options)


def _properties(fields: Iterable[Field], settings: IndexSettings) -> Properties:
    return {one.key: field_mapping(one, settings) for one in fields}


def _derived(field: Field, settings: IndexSettings) -> Properties:
    if isinstance(field, Scalar):
        if field.type is LeafType.CUSTOM:
            return {"type": field.opensearch}
        return _leaf(field.type, settings, field.variants)
    if isinstance(field, Geo):
        return {"type": "geo_point"}
    if isinstance(field, OpenMap):
        return {"type": "object", "dynamic": True}
    if isinstance(field, Constant):
        return _constant(field)
    if isinstance(field, Aggregate):
        return _aggregate(field, settings)
    many = isinstance(field, Join) and field.kind in (JoinKind.HAS_MANY, JoinKind.MANY_TO_MANY)
    return {"type": "nested" if many else "object", "properties": _properties(field.fields, settings)}


def _leaf(kind: LeafType, settings: IndexSettings, variants: tuple[str, ...] = ()) -> Properties:
    exact: Properties = {"type": "keyword", "ignore_above": _TERM_CHARACTERS}
    code = {"analyzer": CODE, "search_analyzer": CODE_SEARCH}
    if kind is LeafType.TEXT or kind is LeafType.IDENTIFIER:
        how = {"analyzer": TEXT} if kind is LeafType.TEXT else code
        return {"type": "text", **how, **({"fields": {"keyword": exact}} if settings.auto_subfields else {})}
    if kind is LeafType.KEYWORD:
        return {**exact, **({"fields": {"text": {"type": "text", **code}}} if settings.auto_subfields else {})}
    if kind is LeafType.ENUM:
        ranked = {"type": "keyword", "normalizer": rank_normalizer(variants)}
        return {**exact, **({"fields": {"rank": ranked}} if variants else {})}
    return dict(_PLAIN[kind])


def _constant(field: Constant) -> Properties:
    if isinstance(field.value, bool):
        return {"type": "boolean"}
    if isinstance(field.value, int):
        return {"type": "long"}
    return {"type": "double"} if isinstance(field.value, float) else {"type": "keyword"}


def _aggregate(field: Aggregate, settings: IndexSettings) -> Properties:
    if field.kind is AggregateKind.COUNT:
        return {"type": "long"}
    if field.kind is AggregateKind.AVG:
        return {"type": "double"}
    by_default = LeafType.KEYWORD if field.kind is AggregateKind.IDS else LeafType.DOUBLE
    return _leaf(field.type or by_default, settings)


def _with_options(derived: Properties, options: Mapping[str, Any]) -> Properties:
    """What is derived, overruled by name; another type brings none of what belonged to the first."""
    if options.get("type", derived["type"]) != derived["type"]:
        kept = {"properties"} if options["type"] in ("object", "nested") else set()
        derived = {name: value for name, value in derived.items() if name in kept}
    merged = {**derived, **options}
    for name in ("fields", "properties"):
        if isinstance(derived.get(name), Mapping) and isinstance(options.get(name), Mapping):
            merged[name] = {**derived[name], **options[name]}
    return merged


def _templates(fields: Iterable[Field], path: str, settings: IndexSettings) -> Iterator[dict[str, Any]]:
    """A map's keys are open: each value gets its leaf's mapping when it first comes."""
    for one in fields:
        here = f"{path}{one.key}"
        if isinstance(one, OpenMap):
            yield {here: {"path_match": f"{here}.*", "mapping": _leaf(one.values, settings)}}
        elif isinstance(one, Group | Join):
            yield from _templates(one.fields, f"{here}.", settings)


def _rankings(fields: Iterable[Field]) -> Iterator[tuple[str, ...]]:
    for one in fields:
        if isinstance(one, Scalar) and one.type is LeafType.ENUM and one.variants:
            yield one.variants
        elif isinstance(one, Group | Join):
            yield from _rankings(one.fields)


def _limits(properties: Properties) -> dict[str, int]:
    sizes = list(_sizes(properties, 1))
    total, nested = len(sizes), sum(is_nested for _, is_nested in sizes)
    depth = max((level for level, _ in sizes), default=1)
    limits = {
        "mapping.total_fields.limit": (total, _TOTAL_FIELDS),
        "mapping.nested_fields.limit": (nested, _NESTED_FIELDS),
        "mapping.depth.limit": (depth, _DEPTH),
    }
    return {name: needed for name, (needed, allowed) in limits.items() if needed > allowed}


def _sizes(properties: Properties, level: int) -> Iterator[tuple[int, bool]]:
    """Every field and subfield, as the index counts them: at which depth it is, and whether it is nested."""
    for mapping in properties.values():
        yield level, mapping.get("type") == "nested"
        yield from ((level, False) for _ in mapping.get("fields", ()))
        yield from _sizes(mapping.get("properties", {}), level + 1)
