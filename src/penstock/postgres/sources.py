"""Where connection settings are written: parts, a URL or keyword string, the environment, a service file.

Each source is read into libpq keywords of its own; `settings` puts them together.

Guarantees: libpq itself parses the URL, so every form that it knows is understood. What it says about a bad one stays
inside, because it quotes the string, and the names of unknown options are not repeated either: they may be the rest
of a badly written password. Deliberately not: the password file, which libpq reads when it connects; the service
file of libpq's built-in folder, which no application can ask it for (PGSYSCONFDIR names it).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote

import psycopg
from psycopg import pq

from penstock.errors import ConfigError

FORMS = 'Write postgresql://user@host:port/database?sslmode=require, or "host=... dbname=... user=...".'
_QUOTING = "In a URL, write : / ? # @ % and spaces of a password as %3A %2F %3F %23 %40 %25 %20."
_SCHEMES = ("postgresql://", "postgres://")
_OURS = "replication"  # set by whoever opens the connection, never by its description


def _options() -> dict[str, pq.misc.ConninfoOption]:
    return {option.keyword.decode(): option for option in pq.Conninfo.get_defaults()}


def _known() -> set[str]:
    return _options().keys() - {_OURS}


def from_parts(parts: Mapping[str, str | int | None]) -> dict[str, str]:
    """Keywords given one by one, with `database` for `dbname`; None means not given."""
    known = _known() | {"database"}
    found: dict[str, str] = {}
    for name, value in parts.items():
        if name not in known:
            raise ConfigError(f"{name!r} is not a connection setting", hint=_nearest([name], known))
        if value is not None:
            found["dbname" if name == "database" else name] = _clean(str(value), f"the connection setting {name!r}")
    return found


def from_url(url: str) -> dict[str, str]:
    """The keywords of a URL or a libpq keyword string."""
    _clean(url, "the connection URL")
    try:
        options = pq.Conninfo.parse(url.encode())
        found = {option.keyword.decode(): option.val.decode() for option in options if option.val}
    except (psycopg.Error, UnicodeError):
        found = None  # left here, so that no chained error quotes the string
    if found is None or _has_torn_password(url):
        raise _unreadable(url)
    if _OURS in found:
        raise ConfigError("the connection URL sets 'replication', which Penstock sets where it is needed")
    return found


def _has_torn_password(url: str) -> bool:
    """A bare / in a password: libpq takes the user for the host, and the rest for a database whose name it shows."""
    authority, _, path = url.partition("://")[2].partition("/")
    return url.startswith(_SCHEMES) and "@" in path.partition("?")[0] and "@" not in authority


def _unreadable(url: str) -> ConfigError:
    known = _known()
    unknown = [word for word in _option_words(url) if word not in known and word != "ssl"]
    if unknown:
        return ConfigError("the connection URL has an option that does not exist", hint=_nearest(unknown, known))
    return ConfigError("the connection URL cannot be read", hint=f"{FORMS} {_QUOTING}")


def _option_words(url: str) -> list[str]:
    """The names of the options in a URL or keyword string. They may hold part of a badly quoted password: no echo."""
    if url.startswith(_SCHEMES):
        query = url.partition("?")[2]
        return [unquote(pair.partition("=")[0]) for pair in query.split("&") if pair]
    return re.findall(r"\b(\w+)\s*=", url)  # from the beginning of words on: else each letter of a long one is tried


def _nearest(words: Iterable[str], known: Iterable[str]) -> str:
    """The known word closest to the first unknown one that resembles any."""
    names = sorted(known)
    for word in words:
        close = difflib.get_close_matches(word.lower(), names, n=1)
        if close:
            return f"The nearest one is {close[0]!r}."
    return f"There are: {', '.join(names)}."


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The keywords that `PG*` variables name."""
    found = {
        keyword: _clean(environ[option.envvar.decode()], f"the variable {option.envvar.decode()}")
        for keyword, option in _options().items()
        if option.envvar and environ.get(option.envvar.decode())
    }
    if environ.get("PGREQUIRESSL") == "1" and "sslmode" not in found:  # libpq's old spelling
        found["sslmode"] = "require"
    return found


def from_service(service: str, environ: Mapping[str, str]) -> dict[str, str]:
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
    known = _known() - {"service"}
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


def _clean(value: str, where: str) -> str:
    if "\0" in value:  # libpq would cut the value there
        raise ConfigError(f"{where} holds a zero byte")
    return value
