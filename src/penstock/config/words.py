"""Every key of `penstock.toml`, with its shape, its default and its meaning: the one table that the reader, the JSON
Schema and the reference page share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from penstock.config.deployment import OnDown, OnError, TextAnalysis, Untraceable
from penstock.config.shapes import (
    ADDRESS,
    INDEX_NAME,
    INTERVAL,
    PATH,
    PREFIX,
    PUBLICATION_NAME,
    REFERENCE,
    SINK_NAME,
    SLOT_NAME,
    Connection,
    SecretMap,
    SecretValue,
    Size,
)
from penstock.document.reading_shapes import (
    BAD,
    Flag,
    Found,
    JsonSchema,
    Key,
    Listed,
    Seconds,
    Table,
    Text,
    Whole,
    Word,
    refuse,
)
from penstock.document.reading_tree import Node, Problems
from penstock.model import SslMode


class SourceType(StrEnum):
    """What changes come from."""

    POSTGRES = "postgres"


class SinkType(StrEnum):
    """What documents go to."""

    OPENSEARCH = "opensearch"
    ELASTICSEARCH = "elasticsearch"
    STDOUT = "stdout"
    LOCAL = "local"
    DELTA = "delta"
    PARQUET = "parquet"


class SinkFound(NamedTuple):
    """A sink as the file holds it."""

    name: str
    type: SinkType
    found: Found


@dataclass(frozen=True, slots=True)
class Sinks:
    """A table of sinks by name, each with the keys of its type."""

    accepted: str = "a table [sinks.NAME] for each sink"

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        if not isinstance(node.value, Mapping):
            return refuse(node, name, problems, self.accepted)
        sinks = []
        for key, entry in node.value.items():
            SINK_NAME.read(Node(entry.place, key), "sinks", problems)
            sinks.append(self._sink(key, entry.node, problems))
        return tuple(one for one in sinks if one)

    def _sink(self, name: str, node: Node, problems: Problems) -> SinkFound | None:
        if not isinstance(node.value, Mapping):
            refuse(node, f"sinks.{name}", problems, self.accepted)
            return None
        if "type" not in node.value:
            problems.add(node.place, f"the sink {name} has no `type`", f"accepted: {_TYPE.accepted}")
            return None
        type_ = _TYPE.read(node.value["type"].node, "type", problems)
        if type_ is BAD:
            return None
        return SinkFound(name, type_, SINKS[type_].read(node, f"sinks.{name}", problems))

    def json_schema(self) -> JsonSchema:
        return {
            "type": "object",
            "additionalProperties": {"oneOf": [table.json_schema() for table in SINKS.values()]},
        }


_TYPE = Word(SinkType)


@dataclass(frozen=True, slots=True)
class _TypeIs:
    """The word that chose the table."""

    word: str

    @property
    def accepted(self) -> str:
        return f"`{self.word}`"

    def read(self, node: Node, name: str, problems: Problems) -> Any:
        return self.word if node.value == self.word else refuse(node, name, problems, self.accepted)

    def json_schema(self) -> JsonSchema:
        return {"const": self.word}


PARTS = Table(
    "`connection_url`",
    (
        Key("host", Text("a host"), "Host name, address, or socket folder.", "127.0.0.1"),
        Key("port", Whole(1, 65535), "Port.", 5432),
        Key("user", Text("a role"), "Role to connect as.", "postgres"),
        Key("password", SecretValue(), "Its password. Secret.", shown="as libpq finds it"),
        Key("database", Text("a database"), "Database.", required=True),
    ),
)

SOURCE = Table(
    "[source]",
    (
        Key("type", Word(SourceType), "What changes come from.", required=True),
        Key(
            "connection_url", Connection(PARTS), "Where the server is: a URL (secret), or its parts."
            " `DATABASE_URL` wins over what stands here, unless that names a variable itself.", shown="`DATABASE_URL`",
        ),
        Key("manage_publication", Flag(), "Make the publication and add tables to it, where the role may.", True),
        Key("slot", SLOT_NAME, "The replication slot.", "penstock", added=True),
        Key("publication", PUBLICATION_NAME, "The publication.", "penstock", added=True),
        Key("manage_replica_identity", Flag(), "Set tables' replica identity where links need it.", False, added=True),
        Key(
            "untraceable", Word(Untraceable), "What to do where a table's identity does not hold its link columns, so"
            " that a moved or deleted row does not lead to its old document: `refuse` to start, or `warn` and go on,"
            " where such documents stay as they were.", Untraceable.REFUSE, added=True,
        ),
        Key(
            "column_lists", Flag(), "Publish only the columns needed: less to read, but the server then refuses some"
            " ALTERs of those columns.", False, added=True,
        ),
        Key("max_retained_wal", Size(), "Past how much WAL held back `on_down` counts.", shown="unset", added=True),
        Key(
            "max_connections", Whole(3, 1000), "Connections that read rows, of the whole deployment and all its tasks:"
            " half are for seeds. The replication connection, the one that holds the claim to"
            " the slot, and looks at the catalog are not counted.", 4, added=True,
        ),
        Key("ssl_mode", Word(SslMode), "How much TLS to ask for.", shown="as in the URL, else `prefer`", added=True),
        Key("ssl_root_cert", PATH, "The server's authority: its certificate, or `system`.", shown="none", added=True),
        Key("ssl_cert", PATH, "Client certificate (PEM).", shown="none", added=True),
        Key("ssl_key", PATH, "Its key; the file must be private.", shown="none", added=True),
        Key("heartbeat_s", Seconds(), "Write a heartbeat to the WAL so often.", shown="unset: none", added=True),
    ),
)  # fmt: skip

_ON_DOWN = Key("on_down", Word(OnDown), "What happens past `max_retained_wal` once the sink has been down for a"
               " minute: `hold` the slot and wait, `detach` the sink, which is seeded anew when it answers again, or"
               " `stop` the run.",
               OnDown.HOLD, added=True)  # fmt: skip


def _sink(type_: SinkType, meaning: str, *keys: Key, added: bool = True) -> Table:
    return Table(
        f"a sink of type {type_}",
        (Key("type", _TypeIs(type_), meaning, required=True, added=added), *keys, _ON_DOWN),
    )


_SEARCH = (
    Key("url", SecretValue('an http:// or https:// URL, or { env = "NAME" }', ("http://", "https://")),
        "Where the server is. Secret where a password is in it.", shown="`<SINK>_<TYPE>_URL`"),
    Key("username", SecretValue(), "User.", shown="`<SINK>_<TYPE>_USERNAME`"),
    Key("password", SecretValue(), "Its password. Secret.", shown="`<SINK>_<TYPE>_PASSWORD`"),
    Key("api_key", SecretValue(), "A key in place of user and password. Secret.", shown="`<SINK>_<TYPE>_API_KEY`",
        added=True),
    Key("ca_cert", PATH, "Certificate of the server's authority (PEM).", shown="the system's", added=True),
    Key("tls_verify", Flag(), "Check the server's certificate.", True),
    Key("batch_size", Whole(1), "Documents a request, at most.", 1000),
    Key("max_bytes", Whole(1), "Bytes a request, at most.", 10 << 20),
    Key("timeout_secs", Seconds(), "How long a request may take.", 30),
    Key("max_retries", Whole(0), "How often a request is repeated before the sink counts as down.", 3),
    Key("pipeline", Text("a name"), "Ingest pipeline.", shown="none"),
    Key("number_of_shards", Whole(1, 1024), "Primary shards of an index.", 1),
    Key("number_of_replicas", Whole(0), "Copies of each.", 1),
    Key("refresh_interval", INTERVAL, "How soon what is written can be found.", "10s"),
    Key("text_analysis", Word(TextAnalysis), "Which analyzers texts get; `icu` needs the server's ICU plugin.",
        TextAnalysis.BUILTIN),
    Key("auto_subfields", Flag(), "Give texts a keyword beside, and keywords a text.", True),
)  # fmt: skip

SINKS: Mapping[SinkType, Table] = {
    SinkType.OPENSEARCH: _sink(SinkType.OPENSEARCH, "An OpenSearch server.", *_SEARCH, added=False),
    SinkType.ELASTICSEARCH: _sink(SinkType.ELASTICSEARCH, "An Elasticsearch server.", *_SEARCH),
    SinkType.STDOUT: _sink(
        SinkType.STDOUT,
        "One JSON object an operation on stdout.",
        Key("pretty", Flag(), "Indented, for people.", False),
        added=False,
    ),
    SinkType.LOCAL: _sink(
        SinkType.LOCAL,
        "The embedded search store: one SQLite file.",
        Key("path", PATH, "The file.", shown="in the state folder", added=True),
    ),
    SinkType.DELTA: _sink(
        SinkType.DELTA,
        "A Delta table an index, kept current.",
        Key("path", PATH, "The folder, or the URL of one.", required=True, added=True),
        Key("storage_options", SecretMap(), "How the storage is reached. Secret.", {}, shown="none", added=True),
    ),
    SinkType.PARQUET: _sink(
        SinkType.PARQUET,
        "An append log of changes as Parquet files.",
        Key("path", PATH, "The folder, or the URL of one.", required=True, added=True),
    ),
}
"""By its type, the keys of a sink."""

_ON_ERROR = Word(OnError, {"skip": "quarantine"})

INDEX = Table(
    "[[index]]",
    (
        Key("name", INDEX_NAME, "What the index is called, behind the prefix.", required=True),
        Key("schema", PATH, "Its schema file, relative to this one.", required=True),
        Key("enabled", Flag(), "Whether it is kept.", True),
        Key("on_error", _ON_ERROR, "As above, for this index.", shown="that of the deployment"),
    ),
)

SERVER = Table(
    "[server]",
    (
        Key("public_address", ADDRESS, "Health, readiness and metrics, for everybody.", "127.0.0.1:9464"),
        Key(
            "private_address", ADDRESS, "The page, status and commands, for whoever holds the token.", "127.0.0.1:9465"
        ),
    ),
)

DEPLOYMENT = Table(
    "the file",
    (
        Key(
            "on_error", _ON_ERROR, "What a rejected document leads to: `stop`, or `quarantine` it and go on (`skip` is"
            " the same).", OnError.STOP,
        ),
        Key("prefix", PREFIX, "Goes before the name of every index, alias and meta index.", ""),
        Key(
            "state", PATH, "Folder of checkpoint, ledger and quarantine. Only the driver has to reach it. Changes that"
            " wait for their turn spill to the system's temporary folder (`TMPDIR`), not here.",
            ".penstock", added=True,
        ),
        Key("server", SERVER, "Where the process answers over HTTP."),
        Key("source", SOURCE, "Where changes come from.", required=True),
        Key("sinks", Sinks(), "Where documents go: every document to every sink.", (), shown="one `stdout`"),
        Key("index", Listed(INDEX, words="a table [[index]] for each index"), "One table an index.", (), shown="none"),
    ),
)  # fmt: skip

TABLES = (DEPLOYMENT, SERVER, SOURCE, PARTS, *SINKS.values(), INDEX, REFERENCE)
"""Every table of keys that the file may hold."""


def json_schema() -> JsonSchema:
    """The JSON Schema of the file."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Penstock deployment",
        **DEPLOYMENT.json_schema(),
    }
