"""Which server, as whom and how: one resolver for URL, parts, service file, `PG*` variables and TLS settings.

The first source that names a keyword wins: parts, then the URL (or libpq keyword string), then the service file, then
the environment, then libpq's own default. A `TlsConfig` counts as a part; it may ask for more TLS than the other
sources, never for less.

Guarantees: libpq itself parses the URL, so every form it knows is understood; whatever it says about a bad one stays
inside, because it quotes the string. `repr`, `str` and `describe` hold no secret; a pickle holds the password, because
a worker process needs it. Deliberately not: reading the password file, which libpq does when it connects.
"""

from __future__ import annotations

import difflib
import os
import pwd
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import psycopg
from psycopg import pq

from penstock.errors import ConfigError
from penstock.model import SslMode, TlsConfig

# From no TLS to all of it; `allow` is libpq's and is taken as it comes.
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_OURS = frozenset({"replication"})
_FORMS = 'Write postgresql://user@host:port/database?sslmode=require, or "host=... dbname=... user=...".'


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
    given = _from_parts(parts)
    written = _from_url(url) if url else {}
    variables = _from_environment(environ)
    service = given.get("service") or written.get("service") or variables.get("service")
    filed = _from_service(service, environ) if service else {}
    merged = {**variables, **filed, **written, **given}
    merged.pop("service", None)
    if tls is not None:
        merged = _with_tls(merged, tls)
    return ConnectionSettings(tuple(_completed({k: v for k, v in merged.items() if v}).items()))


def _options() -> dict[str, pq.misc.ConninfoOption]:
    return {option.keyword.decode(): option for option in pq.Conninfo.get_defaults()}


def _from_parts(parts: Mapping[str, str | int | None]) -> dict[str, str]:
    known = _options().keys() - _OURS
    found: dict[str, str] = {}
    for name, value in parts.items():
        keyword = "dbname" if name == "database" else name
        if keyword not in known:
            raise ConfigError(f"{name!r} is not a connection setting", hint=_nearest([name], known))
        if value is not None:
            found[keyword] = _clean(str(value), f"the connection setting {name!r}")
    return found


def _from_url(url: str) -> dict[str, str]:
    _clean(url, "the connection URL")
    known = _options().keys() - _OURS
    words = _option_words(url)
    try:
        options = pq.Conninfo.parse(url.encode())
    except (psycopg.Error, UnicodeError):
        options = None  # left here, so that no chained error quotes the string
    if options is None or _OURS.intersection(words):
        unknown = [word for word in words if word not in known and word != "ssl"]
        if unknown:
            raise ConfigError("the connection URL has an option that does not exist", hint=_nearest(unknown, known))
        raise ConfigError(
            "the connection URL cannot be read",
            hint=f"{_FORMS} In a URL, write the signs : / ? # @ % and spaces of a password as %3A %2F %3F %23 %40 %25 %20.",
        )
    return {option.keyword.decode(): option.val.decode() for option in options if option.val}


def _option_words(url: str) -> list[str]:
    """The names of the options in a URL or keyword string. They may hold part of a badly quoted password: no echo."""
    if "://" in url:
        query = url.partition("?")[2]
        return [unquote(pair.partition("=")[0]) for pair in query.split("&") if pair]
    return re.findall(r"(\w+)\s*=", url)


def _nearest(words: Iterable[str], known: Iterable[str]) -> str:
    """The known word closest to the first unknown one that resembles any."""
    names = sorted(set(known) | {"database"})
    for word in words:
        close = difflib.get_close_matches(word.lower(), names, n=1)
        if close:
            return f"The nearest one is {close[0]!r}."
    return f"There are: {', '.join(names)}."


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    found = {
        keyword: _clean(environ[option.envvar.decode()], f"the variable {option.envvar.decode()}")
        for keyword, option in _options().items()
        if option.envvar and environ.get(option.envvar.decode())
    }
    if environ.get("PGREQUIRESSL") == "1" and "sslmode" not in found:  # libpq's old spelling
        found["sslmode"] = SslMode.REQUIRE.value
    return found


def _from_service(service: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The section of that name in the user's service file, else in the system's, as libpq looks them up."""
    own = environ.get("PGSERVICEFILE") or str(Path(environ.get("HOME", "~")).expanduser() / ".pg_service.conf")
    files = [Path(own)]
    if environ.get("PGSYSCONFDIR"):
        files.append(Path(environ["PGSYSCONFDIR"]) / "pg_service.conf")
    for file in files:
        found = _section(file, service)
        if found is not None:
            return found
    raise ConfigError(
        f"the service {service!r} is not in {' or '.join(map(str, files))}",
        hint=f"Write a section [{service}] there, or name the file in PGSERVICEFILE.",
    )


def _section(file: Path, service: str) -> dict[str, str] | None:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"the service file {file} cannot be read: {type(error).__name__}") from None
    known = _options().keys() - _OURS - {"service"}
    found: dict[str, str] | None = None
    for number, line in enumerate(map(str.strip, lines), 1):
        if line.startswith("["):
            if found is not None:
                break
            found = {} if line == f"[{service}]" else None
        elif found is not None and line and not line.startswith("#"):
            keyword, equals, value = line.partition("=")
            if not equals or keyword not in known:
                raise ConfigError(f"{file}:{number}: not a libpq keyword and value", hint=_nearest([keyword], known))
            found.setdefault(keyword, _clean(value, f"{file}:{number}"))
    return found


def _with_tls(merged: Mapping[str, str], tls: TlsConfig) -> dict[str, str]:
    asked = merged.get("sslmode")
    if asked in _SSL_MODES and _SSL_MODES.index(asked) > _SSL_MODES.index(tls.mode):
        raise ConfigError(
            f"the TLS settings say {tls.mode.value!r}, but the connection asks for sslmode {asked!r}, which is stricter",
            hint=f"Set the TLS mode to {asked!r}, or change sslmode where the connection is described.",
        )
    own = {"sslmode": tls.mode.value, "sslrootcert": tls.root_cert, "sslcert": tls.cert, "sslkey": tls.key}
    return {**merged, **{keyword: value for keyword, value in own.items() if value}}


def _completed(merged: dict[str, str]) -> dict[str, str]:
    """Defaults made explicit, so that another process or driver does not fill them in otherwise; then the checks."""
    merged.setdefault("user", "") or merged.update(user=_system_user())
    merged.setdefault("dbname", merged["user"])
    merged.setdefault("port", "5432")
    merged.setdefault("sslmode", "verify-full" if merged.get("sslrootcert") == "system" else "prefer")
    if merged["sslmode"] not in _SSL_MODES:
        raise ConfigError("sslmode has a value that does not exist", hint=f"There are: {', '.join(SslMode)}.")
    _endpoints(merged.get("host", ""), merged.get("hostaddr", ""), merged["port"])
    return merged


def _endpoints(host: str, hostaddr: str, port: str) -> tuple[Endpoint, ...]:
    hosts, addresses, ports = host.split(","), hostaddr.split(","), port.split(",")
    count = max(len(hosts), len(addresses))
    hosts, addresses = (hosts * count if hosts == [""] else hosts), (addresses * count if addresses == [""] else addresses)
    ports = ports * count if len(ports) == 1 else ports
    if not len(hosts) == len(addresses) == len(ports):
        raise ConfigError("hosts, host addresses and ports differ in number", hint="Give one port, or one for each host.")
    if not all(re.fullmatch(r"[0-9]{1,5}", one) and 0 < int(one) < 65536 for one in ports if one):
        raise ConfigError("the port is not a number from 1 to 65535", hint=_FORMS)
    return tuple(Endpoint(*one) for one in zip(hosts, addresses, (one or "5432" for one in ports), strict=True))


def _system_user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise ConfigError("no user is given, and the system has no name for this process' user", hint=_FORMS) from None


def _clean(value: str, where: str) -> str:
    if "\0" in value:  # libpq would cut the value there
        raise ConfigError(f"{where} holds a zero byte")
    return value
