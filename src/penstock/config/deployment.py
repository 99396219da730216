"""A deployment as plain values: the source, the sinks, the indexes with their schemas, and how to treat trouble.

Guarantees: immutable, comparable; no secret shows in any repr; every default is filled in. Paths are kept as they are
written, so that a deployment can move to another machine: `Deployment.locate` says where they lead on this one.
Deliberately not: reading files (`file` does) and connecting.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from penstock.config.secrets import Secret
from penstock.document.schema import NOWHERE, DocumentSchema, Place
from penstock.model import SslMode


class OnError(StrEnum):
    """What a document that a sink rejects leads to."""

    STOP = "stop"
    QUARANTINE = "quarantine"


class OnDown(StrEnum):
    """What a sink that stays down past `max_retained_wal` leads to."""

    HOLD = "hold"
    DETACH = "detach"
    STOP = "stop"


class Untraceable(StrEnum):
    """What a table leads to whose identity does not hold its link columns."""

    REFUSE = "refuse"
    WARN = "warn"


class TextAnalysis(StrEnum):
    """Which analyzers texts get: those every server has, or those of the ICU plugin."""

    BUILTIN = "builtin"
    ICU = "icu"


@dataclass(frozen=True, slots=True)
class Server:
    """Where the process that runs answers over HTTP."""

    public_address: str = "127.0.0.1:9464"
    private_address: str = "127.0.0.1:9465"


_URL = Secret("source.connection_url", reserved="DATABASE_URL")
_PASSWORD = Secret("source.connection_url.password")


@dataclass(frozen=True, slots=True)
class ConnectionParts:
    """A server by its parts, where the file gives no URL."""

    database: str
    host: str = "127.0.0.1"
    port: int = 5432
    user: str = "postgres"
    password: Secret = _PASSWORD


@dataclass(frozen=True, slots=True)
class Source:
    """The Postgres server and what Penstock may do there. `url` is where it is, unless `parts` say it."""

    url: Secret = _URL
    parts: ConnectionParts | None = None
    manage_publication: bool = True
    slot: str = "penstock"
    publication: str = "penstock"
    manage_replica_identity: bool = False
    untraceable: Untraceable = Untraceable.REFUSE
    column_lists: bool = False
    max_retained_wal: int | None = None
    max_connections: int = 4
    ssl_mode: SslMode | None = None
    ssl_root_cert: str | None = None
    ssl_cert: str | None = None
    ssl_key: str | None = None
    heartbeat_s: float | None = None
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class OpenSearchSink:
    """An OpenSearch or Elasticsearch server (`type` says which)."""

    name: str
    url: Secret
    username: Secret
    password: Secret
    api_key: Secret
    type: str = "opensearch"
    ca_cert: str | None = None
    tls_verify: bool = True
    batch_size: int = 1000
    max_bytes: int = 10 << 20
    timeout_secs: float = 30
    max_retries: int = 3
    pipeline: str | None = None
    number_of_shards: int = 1
    number_of_replicas: int = 1
    refresh_interval: str = "10s"
    text_analysis: TextAnalysis = TextAnalysis.BUILTIN
    auto_subfields: bool = True
    on_down: OnDown = OnDown.HOLD
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class StdoutSink:
    """One JSON object an operation on stdout."""

    name: str
    pretty: bool = False
    on_down: OnDown = OnDown.HOLD
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class LocalSink:
    """The embedded search store, one SQLite file; without a path it is in the state folder."""

    name: str
    path: str | None = None
    on_down: OnDown = OnDown.HOLD
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class DeltaSink:
    """A Delta table an index, kept current below `path`."""

    name: str
    path: str
    storage_options: Mapping[str, Secret] = field(default_factory=dict)
    on_down: OnDown = OnDown.HOLD
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class ParquetSink:
    """An append log of changes below `path`."""

    name: str
    path: str
    on_down: OnDown = OnDown.HOLD
    place: Place = field(default=NOWHERE, compare=False)


Sink = OpenSearchSink | StdoutSink | LocalSink | DeltaSink | ParquetSink


@dataclass(frozen=True, slots=True)
class Index:
    """One kind of document and what it is called. `file` is its schema's, as the deployment names it."""

    name: str
    schema: DocumentSchema
    file: str = ""
    enabled: bool = True
    on_error: OnError = OnError.STOP
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Deployment:
    """Everything that one `penstock run` does. `folder` is where its file is; it does not count in comparisons."""

    source: Source
    sinks: tuple[Sink, ...]
    indexes: tuple[Index, ...]
    prefix: str = ""
    on_error: OnError = OnError.STOP
    state: str = ".penstock"
    server: Server = Server()
    folder: str = field(default="", compare=False)

    @property
    def enabled(self) -> tuple[Index, ...]:
        """The indexes that are kept."""
        return tuple(index for index in self.indexes if index.enabled)

    def without(self, names: Collection[str]) -> Deployment:
        """The same with these indexes left out."""
        return replace(self, indexes=tuple(index for index in self.indexes if index.name not in names))

    def index(self, name: str) -> Index | None:
        """The index of that name, enabled or not."""
        return next((index for index in self.indexes if index.name == name), None)

    def locate(self, path: str) -> str:
        """Where a path of the file leads: relative ones start beside the file; those with a scheme are kept."""
        return path if "://" in path else os.path.join(self.folder, os.path.expanduser(path))
