"""From a deployment to the connection's settings, in the process that connects.

Guarantees: the order of the secrets' sources holds: a variable that the file names, then `DATABASE_URL`, then what
stands in the file; what none of them says is taken from the `PG*` variables and libpq's files. Certificates are found
relative to the deployment's file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.config.deployment import Deployment
from penstock.model import TlsConfig

if TYPE_CHECKING:
    from penstock.postgres.settings import ConnectionSettings


def connection_settings(deployment: Deployment, environ: Mapping[str, str] | None = None) -> ConnectionSettings:
    """Where the source is and as whom to connect."""
    from penstock.postgres.settings import resolve

    variables = os.environ if environ is None else environ
    source = deployment.source
    mode = source.ssl_mode
    certificates = {
        "sslrootcert": _located(deployment, source.ssl_root_cert),
        "sslcert": _located(deployment, source.ssl_cert),
        "sslkey": _located(deployment, source.ssl_key),
    }
    tls = TlsConfig(mode) if mode else None
    parts = source.parts
    if parts is None or source.url.resolve(variables):
        return resolve(source.url.require(variables), tls=tls, env=variables, **certificates)
    return resolve(
        None,
        tls=tls,
        env=variables,
        host=parts.host,
        port=parts.port,
        user=parts.user,
        password=parts.password.resolve(variables),
        database=parts.database,
        **certificates,
    )


def _located(deployment: Deployment, path: str | None) -> str | None:
    return path if path is None or path == "system" else deployment.locate(path)
