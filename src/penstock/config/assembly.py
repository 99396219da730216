"""From what `penstock.toml` says to a deployment's values, its schema files read along.

Guarantees: what a file leaves out has its default; a part with a problem is left out, and the rest is still looked at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.config.deployment import (
    ConnectionParts,
    DeltaSink,
    Deployment,
    Index,
    LocalSink,
    OnError,
    OpenSearchSink,
    ParquetSink,
    Server,
    Sink,
    Source,
    StdoutSink,
)
from penstock.config.secrets import Secret
from penstock.config.shapes import Given
from penstock.config.words import SinkFound, SinkType
from penstock.document.reading import schema_of, text_of
from penstock.document.reading_shapes import Found
from penstock.document.reading_tree import Problems
from penstock.document.reading_yaml import parse_yaml


def deployment_of(found: Found, folder: str, problems: Problems) -> Deployment | None:
    """The deployment, or None where it is not whole."""
    sinks = tuple(_sink(one) for one in found["sinks"] if one.found.complete)
    indexes = _indexes(found, folder, problems)
    source = _source(found["source"]) if found["source"] and found["source"].complete else None
    server = found["server"]
    if source is None or not found.complete:
        return None
    return Deployment(
        source,
        sinks or (StdoutSink("stdout"),),
        indexes,
        found["prefix"],
        found["on_error"],
        found["state"],
        Server(server["public_address"], server["private_address"]) if server else Server(),
        folder,
    )


def _secret(given: Given | None, label: str, reserved: str = "") -> Secret:
    if given is None:
        return Secret(label, reserved=reserved)
    return Secret(label, literal=given.literal, env=given.env, reserved=reserved, place=given.place)


def _source(found: Found) -> Source:
    where: Given | Found | None = found["connection_url"]
    label = "source.connection_url"
    parts = None
    if isinstance(where, Found):
        if not where.complete:
            return Source()
        password = _secret(where["password"], f"{label}.password")
        parts = ConnectionParts(where["database"], where["host"], where["port"], where["user"], password)
        where = None
    rest = {name: found[name] for name in found.values if name not in ("type", "connection_url")}
    return Source(_secret(where, label, "DATABASE_URL"), parts, place=found.place, **rest)


def _sink(sink: SinkFound) -> Sink:
    name, type_, found = sink
    rest: dict[str, Any] = {key: found[key] for key in found.values if key != "type"}
    rest |= {"name": name, "place": found.place}
    if type_ in (SinkType.OPENSEARCH, SinkType.ELASTICSEARCH):
        variables = f"{name}_{type_}".replace("-", "_").upper()
        for key in ("url", "username", "password", "api_key"):
            rest[key] = _secret(found[key], f"sinks.{name}.{key}", f"{variables}_{key.upper()}")
        return OpenSearchSink(type=str(type_), **rest)
    if type_ is SinkType.DELTA:
        options = found["storage_options"].items()
        label = f"sinks.{name}.storage_options"
        rest["storage_options"] = {key: _secret(given, f"{label}.{key}") for key, given in options}
        return DeltaSink(**rest)
    if type_ is SinkType.LOCAL:
        return LocalSink(**rest)
    return ParquetSink(**rest) if type_ is SinkType.PARQUET else StdoutSink(**rest)


def _indexes(found: Found, folder: str, problems: Problems) -> tuple[Index, ...]:
    indexes: dict[str, Index | None] = {}
    for one in found["index"]:
        name = one["name"]
        if name in indexes:
            problems.add(one.at("name"), f"the index `{name}` is there twice", "give each index a name of its own")
        made = _index(one, found["on_error"], folder, problems)
        if name:
            indexes[name] = made
    return tuple(index for index in indexes.values() if index)


def _index(found: Found, on_error: OnError, folder: str, problems: Problems) -> Index | None:
    if not found["schema"]:
        return None
    path = Path(folder) / found["schema"]
    text = text_of(path, found.at("schema"), problems)
    node = parse_yaml(text, str(path), problems) if text is not None else None
    schema = schema_of(node, found["name"] or "", problems) if node is not None else None
    if schema is None or not found.complete:
        return None
    chosen = found["on_error"] or on_error
    return Index(found["name"], schema, found["schema"], found["enabled"], chosen, found.place)
