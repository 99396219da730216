"""Which server, as whom and how: one resolver for URL, parts, service file, `PG*` variables and TLS settings.

The first source that names a keyword wins: parts, then the URL (or libpq keyword string), then the service file, then
the environment, then libpq's own default. A `TlsConfig` counts as a part; it may ask for more TLS than the other
sources, never for less.

Guarantees: `repr`, `str` and `describe` hold no secret; a pickle holds the password, because a worker process needs
it; what another process or driver would fill in by itself is made explicit. Deliberately not: connecting.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.errors import ConfigError
from penstock.model import TlsConfig
from penstock.postgres.sources import FORMS, from_environment, from_parts, from_service, from_url

# From no TLS to all of it; `allow` is libpq's and is taken as it comes.
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
# Keywords that we act upon ourselves, so libpq does not get to check them.
_WORDS = {
    "sslmode": _SSL_MODES,
    "target_session_attrs": ("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
    "load_balance_hosts": ("disable", "random"),
}


class Endpoint(NamedTuple):
    """One place a server may be at. `host` is a name, an address, a socket folder, or empty for libpq's default."""

    host: str
    hostaddr: str
    port: str

    @property
    def is_local(self) -> bool:
        """Reached through a unix socket."""
        return not self.hostaddr and (not self.host or self.host[0] in "/@")

    def __str__(self) -> str:
        name = self.host or self.hostaddr or "local socket"
        return f"[{name}]:{self.port}" if ":" in name else f"{name}:{self.port}"


@dataclass(frozen=True, slots=True, repr=False)
class ConnectionSettings:
    """A resolved set of libpq keywords. Shows who and where, never the password. Pickles (with the password)."""

    _items: tuple[tuple[str, str], ...] = field(repr=False)

    def keywords(self) -> dict[str, str]:
        """Every keyword and its value, the password among them: for a driver, never for a log."""
        return dict(self._items)

    def get(self, keyword: str, default: str = "") -> str:
        """The value of one libpq keyword."""
        return dict(self._items).get(keyword, default)

    def merged(self, changes: Mapping[str, str]) -> ConnectionSettings:
        """The same with other values for some keywords; an empty value takes its keyword away."""
        return ConnectionSettings(tuple((k, v) for k, v in {**dict(self._items), **changes}.items() if v))

    def conninfo(self) -> bytes:
        """libpq's keyword string, the password in it: for libpq, never for a log."""
        quoted = [(name, value.replace("\\", "\\\\").replace("'", "\\'")) for name, value in self._items]
        return " ".join(f"{name}='{value}'" for name, value in quoted).encode()

    @property
    def user(self) -> str:
        return self.get("user")

    @property
    def database(self) -> str:
        return self.get("dbname")

    @property
    def host(self) -> str:
        """The host, or several of them joined by commas; empty for libpq's own socket folder."""
        return self.get("host")

    @property
    def port(self) -> int:
        """The port of the first host."""
        return int(self.endpoints[0].port)

    @property
    def sslmode(self) -> str:
        return self.get("sslmode")

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Every place to try, in order."""
        return _endpoints(self.host, self.get("hostaddr"), self.get("port"))

    def describe(self) -> str:
        """`user@host:port/database`, for messages and logs."""
        return f"{self.user}@{','.join(map(str, self.endpoints))}/{self.database}"

    def __str__(self) -> str:
        return f"{self.describe()} (sslmode {self.sslmode})"

    def __repr__(self) -> str:
        return f"ConnectionSettings({str(self)!r})"


def resolve(
    url: str | None = None,
    *,
    tls: TlsConfig | None = None,
    env: Mapping[str, str] | None = None,
    **parts: str | int | None,
) -> ConnectionSettings:
    """Settings from every source. `parts` are libpq keywords, with `database` for `dbname`; None means not given."""
    environ = os.environ if env is None else env
    given = from_parts(parts)
    written = from_url(url) if url else {}
    variables = from_environment(environ)
    service = given.get("service") or written.get("service") or variables.get("service")
    filed = from_service(service, environ) if service else {}
    merged = {**variables, **filed, **written, **given}
    merged.pop("service", None)
    if tls is not None:
        merged = _with_tls(merged, tls)
    return ConnectionSettings(tuple(_completed({k: v for k, v in merged.items() if v}).items()))


def _with_tls(merged: Mapping[str, str], tls: TlsConfig) -> dict[str, str]:
    asked = merged.get("sslmode")
    if asked in _SSL_MODES and _SSL_MODES.index(asked) > _SSL_MODES.index(tls.mode):
        raise ConfigError(
            f"the TLS settings say {tls.mode.value!r}, but the connection asks for {asked!r}, which is stricter",
            hint=f"Set the TLS mode to {asked!r}, or change sslmode where the connection is described.",
        )
    own = {"sslmode": tls.mode.value, "sslrootcert": tls.root_cert, "sslcert": tls.cert, "sslkey": tls.key}
    return {**merged, **{keyword: value for keyword, value in own.items() if value}}


def _completed(merged: dict[str, str]) -> dict[str, str]:
    """Defaults made explicit, so that another process or driver does not fill them in otherwise; then the checks."""
    if "user" not in merged:
        merged["user"] = _system_user()
    merged.setdefault("dbname", merged["user"])
    merged.setdefault("port", "5432")
    merged.setdefault("sslmode", "verify-full" if merged.get("sslrootcert") == "system" else "prefer")
    for keyword, words in _WORDS.items():
        if merged.get(keyword, words[0]) not in words:
            raise ConfigError(f"{keyword} has a value that does not exist", hint=f"There are: {', '.join(words)}.")
    if not re.fullmatch(r"-?[0-9]{1,9}", merged.get("connect_timeout", "0")):
        raise ConfigError("connect_timeout is not a number of seconds")
    _endpoints(merged.get("host", ""), merged.get("hostaddr", ""), merged["port"])
    return merged


def _endpoints(host: str, hostaddr: str, port: str) -> tuple[Endpoint, ...]:
    lists = [text.split(",") for text in (host, hostaddr, port)]
    count = max(len(lists[0]), len(lists[1]))
    # An empty list goes with any number of others, and so does a single port.
    hosts, addresses, ports = (
        one * count if one == [""] or (one is lists[2] and len(one) == 1) else one for one in lists
    )
    if not len(hosts) == len(addresses) == len(ports):
        raise ConfigError("hosts, host addresses and ports differ in number", hint="Give one port, or one a host.")
    if not all(re.fullmatch(r"[0-9]{1,5}", one) and 0 < int(one) < 65536 for one in ports if one):
        raise ConfigError("the port is not a number from 1 to 65535", hint=FORMS)
    return tuple(Endpoint(*one) for one in zip(hosts, addresses, (one or "5432" for one in ports), strict=True))


def _system_user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise ConfigError("no user is given, and the system has no name for this process' user", hint=FORMS) from None
