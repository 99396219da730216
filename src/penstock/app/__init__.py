"""The one composition root: what a user named becomes the part that does it.

Everything above (the command line, the demo) asks here for connections and captures and names no class itself.
Guarantees: a password is read from its file in this process, and shows in no repr and no error. Deliberately not:
parsing arguments (`cli`), or deciding anything about a stream.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.model import QualifiedTable, ReplicationConfig, SslMode, TlsConfig
from penstock.postgres.connection import ConnectionSettings, resolve

if TYPE_CHECKING:
    from penstock.config.deployment import Deployment, LocalSink, Source
    from penstock.contracts import CaptureProvisioning, ChangeCapture, ReferenceTableSource
    from penstock.document.check_source import SourceRules
    from penstock.document.mapping import IndexSettings
    from penstock.postgres.capture import WalChangeCapture
    from penstock.postgres.rows import Unrepresentable
    from penstock.reference import PostgresReferenceTableSource, PostgresSnapshotSource, ReferenceCapture


@dataclass(frozen=True, slots=True)
class ConnectionNames:
    """What a user said about the server. None: look in the URL, then the service file, then the `PG*` variables."""

    url: str | None = field(default=None, repr=False)
    host: str | None = None
    port: int | None = None
    database: str | None = None
    user: str | None = None
    password_file: str | None = None
    ssl_mode: str | None = None
    ssl_root_cert: str | None = None
    ssl_cert: str | None = None
    ssl_key: str | None = None


def resolve_connection(names: ConnectionNames) -> ConnectionSettings:
    """The settings of every connection. An SSL mode may ask for more TLS than the URL does, never for less."""
    tls = TlsConfig(SslMode(names.ssl_mode)) if names.ssl_mode else None
    return resolve(
        names.url,
        tls=tls,
        host=names.host,
        port=names.port,
        database=names.database,
        user=names.user,
        password=_read_password(names.password_file) if names.password_file else None,
        sslrootcert=names.ssl_root_cert,
        sslcert=names.ssl_cert,
        sslkey=names.ssl_key,
    )


def _read_password(file: str) -> str:
    """The file's first line: editors and `echo` end it with a newline that is no part of the password."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"the password file {file} cannot be read: {type(error).__name__}", hint="Check its path and its owner."
        ) from None
    if not lines or not lines[0]:
        raise ConfigError(f"the password file {file} is empty", hint="Its first line is the password, nothing else.")
    return lines[0]


def source_rules(source: Source) -> SourceRules:
    """What a deployment's source means for `check`."""
    from penstock.document.check_source import SourceRules

    return SourceRules(
        slot=source.slot,
        publication=source.publication,
        manage_publication=source.manage_publication,
        manage_replica_identity=source.manage_replica_identity,
        untraceable_is_fatal=source.untraceable == "refuse",
        place=source.place,
    )


def index_settings(deployment: Deployment) -> IndexSettings:
    """How the indexes of a deployment's first search engine are made; the defaults where it has none."""
    from penstock.config.deployment import OpenSearchSink
    from penstock.document.mapping import IndexSettings
    from penstock.document.mapping_analysis import TextAnalysis

    sink = next((sink for sink in deployment.sinks if isinstance(sink, OpenSearchSink)), None)
    if sink is None:
        return IndexSettings()
    return IndexSettings(
        number_of_shards=sink.number_of_shards,
        number_of_replicas=sink.number_of_replicas,
        refresh_interval=sink.refresh_interval,
        text_analysis=TextAnalysis(sink.text_analysis),
        auto_subfields=sink.auto_subfields,
        pipeline=sink.pipeline or "",
    )


def local_path(deployment: Deployment, sink: LocalSink) -> str:
    """Where a local sink's file is: in the state folder and named after the sink, unless the deployment says where."""
    return deployment.locate(sink.path or f"{deployment.state}/{sink.name}.sqlite")


def build_capture(settings: ConnectionSettings, config: ReplicationConfig) -> WalChangeCapture:
    """The capture that reads a slot and a publication."""
    # Here and not above: Arrow and NumPy take half a second to load, and most commands need neither.
    from penstock.postgres.capture import WalChangeCapture

    return WalChangeCapture(config, settings)


def reference_capture(settings: ConnectionSettings, config: ReplicationConfig) -> ReferenceCapture:
    """The slot that reference tables are read from."""
    from penstock.reference import ReferenceCapture

    return ReferenceCapture(config, settings)


def reference_source(
    capture: ReferenceCapture | None,
    settings: ConnectionSettings,
    table: QualifiedTable,
    key: Sequence[str] = (),
    unrepresentable: Unrepresentable = "error",
) -> PostgresReferenceTableSource | PostgresSnapshotSource:
    """A table of the slot; without a slot, its snapshots alone."""
    from penstock.reference import PostgresSnapshotSource

    if capture:
        return capture.table(table, key=key, unrepresentable=unrepresentable)
    return PostgresSnapshotSource(settings, table, key=key, unrepresentable=unrepresentable)


def temporary_slot_name(purpose: str) -> str:
    """A name that no other slot of the server has."""
    return f"penstock_{purpose}_{secrets.token_hex(6)}"


if TYPE_CHECKING:
    # mypy holds the class to the contracts that it is chosen for.
    _as_capture: type[ChangeCapture] = WalChangeCapture
    _as_provisioning: type[CaptureProvisioning] = WalChangeCapture
    _as_reference: type[ReferenceTableSource] = PostgresReferenceTableSource
    _as_snapshot: type[ReferenceTableSource] = PostgresSnapshotSource
