"""From a deployment to the parts that do its work: the builder, the sinks, the indexes as sinks know them.

`join_parts` is what Spark's tasks call: it takes plain values and looks secrets up in the process that connects.
Guarantee: only `open_parts` and what it uses make or change anything in a sink; a task finds what is there, or fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.app import local_path
from penstock.app.origins import Origins, index_of, is_outgoing
from penstock.config.connection import connection_settings
from penstock.config.deployment import DeltaSink, Deployment, LocalSink, OpenSearchSink, ParquetSink
from penstock.contracts import ReadableSink, SharedSink, Sink, Target
from penstock.document.build import PgDocumentBuilder
from penstock.document.mapping import IndexSettings, index_body
from penstock.document.mapping_analysis import TextAnalysis
from penstock.document.mapping_change import fingerprint
from penstock.document.schema import DocumentSchema, Field, Group, Join, LeafType, Scalar
from penstock.document.spec import SourceSpec
from penstock.engine.batch import Parts, naming
from penstock.errors import BugError

if TYPE_CHECKING:
    from penstock.config.deployment import Sink as SinkConfig

_TEXTS = {LeafType.TEXT, LeafType.IDENTIFIER, LeafType.KEYWORD, LeafType.ENUM}


def shares(deployment: Deployment) -> tuple[int, int]:
    """Of the deployment's connections, how many live may have (two at least), and how many tasks that seed."""
    seeds = deployment.source.max_connections // 2
    return deployment.source.max_connections - seeds, seeds


def own_connections(deployment: Deployment) -> int:
    """How many connections the process that runs the deployment may have: all but those of tasks that seed."""
    has_tasks = any(isinstance(sink, OpenSearchSink) for sink in deployment.sinks)
    return shares(deployment)[0] if has_tasks else deployment.source.max_connections


def open_builder(deployment: Deployment, connections: int) -> PgDocumentBuilder:
    """The builder of every enabled index."""
    spec = SourceSpec([index.schema for index in deployment.enabled])
    return PgDocumentBuilder(spec, connection_settings(deployment), max_connections=connections)


def open_parts(deployment: Deployment, origins: Origins, sinks: Sequence[str], builder: PgDocumentBuilder) -> Parts:
    """The builder, and for each index the sinks of these names, opened."""
    chosen = [open_sink(config, deployment) for config in deployment.sinks if config.name in sinks]
    try:
        return Parts(builder, open_indexes(deployment, origins, builder.spec, chosen))
    except BaseException:
        for sink in chosen:
            sink.close()
        raise


def join_parts(deployment: Deployment, origins: Origins, generations: Mapping[tuple[str, str], str]) -> Parts:
    """What a task works with: a builder with one connection, and these generations (by index and sink), joined.

    They are those that the driver has open: one that is gone is told, and it is the driver that makes another.
    """
    builder = open_builder(deployment, 1)
    sinks = {one.name: (one, open_sink(one, deployment)) for one in deployment.sinks if _is_in(one.name, generations)}
    held: dict[str, list[Sink]] = {index: [] for index in origins.indexes}
    try:
        for (index, name), generation in generations.items():
            config, sink = sinks[name]
            if not isinstance(sink, SharedSink):
                raise BugError(f"tasks cannot write to sink {name}")
            with naming(sink):
                sink.join(target(builder.spec.schema(index), config, deployment.prefix, origins), generation)
            held[index].append(sink)
    except BaseException:
        for _, sink in sinks.values():
            sink.close()
        builder.close()
        raise
    return Parts(builder, held)


def _is_in(sink: str, generations: Mapping[tuple[str, str], str]) -> bool:
    return any(name == sink for _, name in generations)


def open_indexes(
    deployment: Deployment, origins: Origins, spec: SourceSpec, sinks: Sequence[Sink]
) -> dict[str, list[Sink]]:
    """Open every index in these sinks, for the first time or again: what is not there is made. Which sinks hold each.

    An outgoing generation is opened only where readers still see it.
    """
    configs = {config.name: config for config in deployment.sinks}
    held: dict[str, list[Sink]] = {index: [] for index in origins.indexes}
    for sink in sinks:
        for index in origins.indexes:
            one = target(spec.schema(index), configs[sink.name], deployment.prefix, origins)
            with naming(sink):
                if not is_outgoing(index) or sink.shows(one):
                    sink.open(one)
                    held[index].append(sink)
    return held


def revive(deployment: Deployment, origins: Origins, spec: SourceSpec, sinks: Sequence[Sink]) -> None:
    """Have the next opening of these indexes take up generations that missed changes, where they are still there.

    Only where they can be compared: what was deleted meanwhile is found in no other way. Else a new one is filled.
    """
    configs = {config.name: config for config in deployment.sinks}
    for sink in sinks:
        if not (isinstance(sink, ReadableSink) and sink.exact):
            continue
        for index in origins.indexes:
            if not is_outgoing(index):
                sink.revive(target(spec.schema(index), configs[sink.name], deployment.prefix, origins))


def open_sink(config: SinkConfig, deployment: Deployment) -> Sink:
    """One sink; its secrets are looked up now."""
    # Each kind is imported where it is used: some load for half a second, and some need an extra.
    if isinstance(config, LocalSink):
        from penstock.sinks.local import LocalSettings
        from penstock.sinks.local import LocalSink as Local

        return Local(LocalSettings(config.name, local_path(deployment, config)))
    if isinstance(config, DeltaSink):
        from penstock.sinks.delta import DeltaSettings
        from penstock.sinks.delta import DeltaSink as Delta
        from penstock.spark.merging import fitting

        options = {key: secret.require() for key, secret in config.storage_options.items()}
        return Delta(DeltaSettings(config.name, deployment.locate(config.path), options), merging=fitting)
    if isinstance(config, ParquetSink):
        from penstock.sinks.parquet import ParquetSettings
        from penstock.sinks.parquet import ParquetSink as Parquet

        return Parquet(ParquetSettings(config.name, deployment.locate(config.path)))
    if isinstance(config, OpenSearchSink):
        return _opensearch(config, deployment)
    from penstock.sinks.stdout import StdoutSettings, StdoutSink

    return StdoutSink(StdoutSettings(config.name, config.pretty))


def _opensearch(config: OpenSearchSink, deployment: Deployment) -> Sink:
    """Either kind of server: what we ask of it is the same in both."""
    from penstock.sinks.opensearch import OpenSearchSettings
    from penstock.sinks.opensearch import OpenSearchSink as OpenSearch

    return OpenSearch(
        OpenSearchSettings(
            name=config.name,
            url=config.url.require(),
            username=config.username.resolve() or "",
            password=config.password.resolve() or "",
            api_key=config.api_key.resolve() or "",
            ca_cert=deployment.locate(config.ca_cert) if config.ca_cert else None,
            tls_verify=config.tls_verify,
            batch_size=config.batch_size,
            max_bytes=config.max_bytes,
            timeout_s=config.timeout_secs,
            max_retries=config.max_retries,
            pipeline=config.pipeline or "",
        )
    )


def target(schema: DocumentSchema, config: SinkConfig, prefix: str, origins: Origins) -> Target:
    """A bound schema's index as this sink has to know it."""
    settings, index = sink_settings(config), schema.index
    return Target(
        index=index,
        name=f"{prefix}{index_of(index)}",
        schema_hash=origins.hashes.get(index, {}).get(config.name) or fingerprint(schema, settings),
        source=origins.source(index, config.name),
        body=index_body(schema, settings),
        texts=tuple(_texts(schema.fields)),
        beside=origins.beside(index, config.name),
        grown_from=origins.grown.get(index, {}).get(config.name, ""),
    )


def sink_settings(config: SinkConfig) -> IndexSettings:
    """How a sink's indexes are made."""
    if not isinstance(config, OpenSearchSink):
        return IndexSettings()
    return IndexSettings(
        number_of_shards=config.number_of_shards,
        number_of_replicas=config.number_of_replicas,
        refresh_interval=config.refresh_interval,
        text_analysis=TextAnalysis(config.text_analysis),
        auto_subfields=config.auto_subfields,
        pipeline=config.pipeline or "",
    )


def _texts(fields: Sequence[Field], above: str = "") -> list[str]:
    """The paths of what full-text search is for."""
    found: list[str] = []
    for one in fields:
        if isinstance(one, Group | Join):
            found += _texts(one.fields, f"{above}{one.key}.")
        elif isinstance(one, Scalar) and one.type in _TEXTS:
            found.append(f"{above}{one.key}")
    return found
