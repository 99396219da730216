"""`penstock.toml` for a deployment that is proposed, with comments.

Guarantees: what is written reads back as meant; no secret gets into it: the connection is the name of a variable.
Deliberately not: which indexes (`document.proposal`), and writing the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote as url_quote

from penstock.model import QualifiedTable, SslMode, visible

if TYPE_CHECKING:
    from penstock.postgres.settings import ConnectionSettings

VARIABLE = "DATABASE_URL"
SINKS: Mapping[str, str] = {
    "local": "# One SQLite file with full-text search, in the state folder: penstock search INDEX WORDS\n"
    '[sinks.search]\ntype = "local"\n',
    "opensearch": '[sinks.search]\ntype = "opensearch"\nurl = { env = "OPENSEARCH_URL" }\n'
    '# username = "penstock"\n# password = { env = "OPENSEARCH_PASSWORD" }\n',
    "elasticsearch": '[sinks.search]\ntype = "elasticsearch"\nurl = { env = "ELASTICSEARCH_URL" }\n'
    '# api_key = { env = "ELASTICSEARCH_API_KEY" }\n',
    "delta": '# One Delta table an index, below this folder or URL.\n[sinks.lake]\ntype = "delta"\npath = "delta"\n',
    "parquet": "# An append log of changes, in files below this folder.\n"
    '[sinks.log]\ntype = "parquet"\npath = "parquet"\n',
    "stdout": '# One JSON object a document on stdout.\n[sinks.lines]\ntype = "stdout"\n',
}
"""By the word of a flag, the sink of a deployment."""


@dataclass(frozen=True, slots=True)
class DeploymentDraft:
    """What goes into the file: the schema file of each index, the sink, the slot, tables that get a new identity."""

    schemas: Mapping[str, str]
    sink: str
    slot: str
    reidentified: tuple[QualifiedTable, ...] = ()


def deployment_text(settings: ConnectionSettings, draft: DeploymentDraft) -> str:
    """The file."""
    lines = [
        f"# Documents of database {visible(settings.database)}. Proposed by penstock init; change it as you like.",
        "",
        "[source]",
        'type = "postgres"',
        "# The URL, its password included, stands in this variable and in no file.",
        f'connection_url = {{ env = "{VARIABLE}" }}',
    ]
    if draft.slot != "penstock":
        lines += ["# The server has a slot named penstock that serves something else.", f'slot = "{draft.slot}"']
    if draft.reidentified:
        lines += [
            "# A row that is deleted, or moved from one document to another, has to say where it was. penstock run",
            "# sets the replica identity of these tables so that it does, at the price of some more WAL; the",
            "# statements, for whoever would rather run them by hand, are in penstock check.",
            *(f"#   {visible(str(table))}" for table in draft.reidentified),
            "manage_replica_identity = true",
        ]
    lines += [*_tls(settings), "", SINKS[draft.sink]]
    for index, file in draft.schemas.items():
        lines += ["[[index]]", f'name = "{index}"', f'schema = "{file}"', ""]
    return "\n".join(lines).rstrip() + "\n"


def _tls(settings: ConnectionSettings) -> list[str]:
    """What was asked for beyond the default; the deployment shall ask for no less."""
    lines = []
    if settings.sslmode in (SslMode.REQUIRE, SslMode.VERIFY_CA, SslMode.VERIFY_FULL):
        lines.append(f'ssl_mode = "{settings.sslmode}"')
    for key, keyword in (("ssl_root_cert", "sslrootcert"), ("ssl_cert", "sslcert"), ("ssl_key", "sslkey")):
        if path := settings.get(keyword):
            lines.append(
                f"{key} = {json.dumps(path if path == 'system' else os.path.abspath(path), ensure_ascii=False)}"
            )
    return lines


def url_without_password(settings: ConnectionSettings) -> str:
    """A URL to put into the variable; where a password is needed, it is still to be put in."""
    user, database = url_quote(settings.user, safe=""), url_quote(settings.database, safe="")
    ends = settings.endpoints
    if any(one.is_local for one in ends):
        folder = f"&host={url_quote(settings.host)}" if settings.host else ""
        return f"postgresql:///{database}?user={user}&port={settings.port}{folder}"
    return f"postgresql://{user}@{','.join(map(str, ends))}/{database}"
