"""The generations of a deployment's indexes: what the files mean, what is outgoing, what a rollback goes back to.

Guarantees: an outgoing generation is kept by the schema that it was made by, as long as the database fits it; one that
it no longer fits is left as it stands, and readers see it so until they change over. Deliberately not: remembering
(`engine.lineage`), and how sinks keep generations apart.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.app import source_rules
from penstock.app.origins import outgoing_name
from penstock.app.parts import sink_settings
from penstock.config.codec import decode, encode
from penstock.config.deployment import Deployment, OpenSearchSink, ParquetSink, StdoutSink
from penstock.document.check import Severity
from penstock.document.check_live import check_live
from penstock.document.mapping import index_body
from penstock.document.mapping_change import additive, extends, fingerprint
from penstock.document.schema import DocumentSchema
from penstock.document.spec import SourceSpec
from penstock.engine.lineage import Lineage, Made, Role
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.config.deployment import Sink as SinkConfig
    from penstock.postgres.connection import ConnectionSettings

log = logging.getLogger(__name__)


def meant(deployment: Deployment, bound: SourceSpec, where: str) -> dict[str, Made]:
    """What the deployment's files mean for each index, its epoch left open. `where` is the database and the slot."""
    files = {index.name: index.schema for index in deployment.enabled}
    found = {}
    for schema in bound.schemas:
        hashes = {sink.name: fingerprint(schema, sink_settings(sink)) for sink in deployment.sinks}
        text = json.dumps(encode(files[schema.index]))
        found[schema.index] = Made("", f"{where} {fingerprint(schema)}", text, hashes)
    return found


def schema_of(made: Made, name: str) -> DocumentSchema:
    """The schema that a generation was made by, under a name."""
    try:
        schema: DocumentSchema = decode(json.loads(made.schema), DocumentSchema)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"the schema that {name} was made by cannot be read any more", hint="It was written by another version."
        ) from None
    return dataclasses.replace(schema, index=name)


def as_rolled_back(deployment: Deployment, lineage: Lineage) -> Deployment:
    """The deployment with the schemas that indexes were rolled back to, where the files still say the refused ones."""
    refused, current = lineage.made(Role.REFUSED), lineage.made(Role.CURRENT)
    schemas = {}
    for index in deployment.indexes:
        if index.name not in refused or index.name not in current:
            continue
        try:
            is_refused = fingerprint(index.schema) == fingerprint(schema_of(refused[index.name], index.name))
            schemas[index.name] = schema_of(current[index.name], index.name) if is_refused else index.schema
        except ConfigError:
            is_refused = False
        if is_refused:
            log.warning(
                "index %s was rolled back, and its file still says what was refused: the schema before is used."
                " Change the file, or run penstock reindex %s to build it all the same.", index.name, index.name,
            )  # fmt: skip
        else:
            lineage.forget(Role.REFUSED, index.name)
    indexes = (dataclasses.replace(one, schema=schemas.get(one.name, one.schema)) for one in deployment.indexes)
    return dataclasses.replace(deployment, indexes=tuple(indexes))


def bound_to(settings: ConnectionSettings, deployment: Deployment, schema: DocumentSchema) -> DocumentSchema:
    """A schema bound to the database; an error where it does not fit."""
    report = check_live(settings, [schema], source_rules(deployment.source))
    wrong = [one for one in report.of(Severity.ERROR) if one.index == schema.index]
    if wrong or not report.bound:
        why = wrong[0].message if wrong else "it cannot be bound"
        raise ConfigError(f"the schema of {schema.index} does not fit the database any more: {why}")
    return report.bound[0]


def growing(
    settings: ConnectionSettings, deployment: Deployment, lineage: Lineage, bound: SourceSpec
) -> dict[str, Mapping[str, str]]:
    """The indexes whose schema only gained fields, which every sink takes in place; what sinks know them by so far."""
    found: dict[str, Mapping[str, str]] = {}
    outgoing = lineage.made(Role.OUTGOING)
    for index, made in lineage.made(Role.CURRENT).items():
        meant = deployment.index(index)
        if meant is None or not meant.enabled or index in outgoing or index not in {one.index for one in bound.schemas}:
            continue
        try:
            before = schema_of(made, index)
            if not extends(before, meant.schema):
                continue
            old = bound_to(settings, deployment, before)
        except ConfigError:
            continue
        if all(_takes(sink, old, bound.schema(index), made) for sink in deployment.sinks):
            found[index] = made.hashes
    return found


def _takes(sink: SinkConfig, old: DocumentSchema, new: DocumentSchema, made: Made) -> bool:
    """Whether a sink can take more fields into a generation that it has; one that has none makes it anyway."""
    used = sink_settings(sink)
    if sink.name not in made.hashes or isinstance(sink, StdoutSink):
        return True
    if isinstance(sink, ParquetSink) or made.hashes[sink.name] != fingerprint(old, used):
        return False
    return not isinstance(sink, OpenSearchSink) or additive(index_body(old, used), index_body(new, used))


def kept_beside(
    settings: ConnectionSettings, deployment: Deployment, lineage: Lineage, outgoing: Mapping[str, Made]
) -> dict[str, tuple[DocumentSchema, DocumentSchema]]:
    """For each outgoing generation that can be kept, by its own name: its schema, as written and bound."""
    found = {}
    for index, made in outgoing.items():
        name = outgoing_name(index, made.epoch)
        try:
            schema = schema_of(made, name)
            found[name] = schema, bound_to(settings, deployment, schema)
        except ConfigError as error:
            log.warning("readers of %s see it as it stands until its successor is complete: %s", index, error.message)
            lineage.retire(index)
    return found


def extended(deployment: Deployment, index: str, name: str, schema: DocumentSchema) -> Deployment:
    """The deployment with one index more, treated as another one is."""
    like = deployment.index(index)
    assert like is not None
    more = dataclasses.replace(like, name=name, schema=schema, enabled=True)
    return dataclasses.replace(deployment, indexes=(*deployment.indexes, more))
