"""The settings of a connection: every source, every form of URL, what is refused, and that no secret shows."""

from __future__ import annotations

import os
import pickle
import pwd
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import ConfigError, TlsError, UnavailableError
from penstock.model import SslMode, TlsConfig
from penstock.postgres.connection import open_pgconn, resolve
from penstock.postgres.tls import check_files

SECRET = "hunter2-?:/@% secret"
ENCODED = "hunter2-%3F%3A%2F%40%25%20secret"


def keywords(url: str | None = None, env: Mapping[str, str] | None = None, **parts: Any) -> dict[str, str]:
    """What a description resolves to."""
    return resolve(url, env=env or {}, **parts).keywords()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u@h/d", {"user": "u", "host": "h", "port": "5432", "dbname": "d"}),
        ("postgres://u@h:6000/d", {"user": "u", "host": "h", "port": "6000", "dbname": "d"}),
        (f"postgresql://u:{ENCODED}@h/d", {"password": SECRET}),
        ("postgresql://%C3%BCser@h/d%20b", {"user": "üser", "dbname": "d b"}),
        ("postgresql://u@[::1]:6000/d", {"host": "::1", "port": "6000"}),
        ("postgresql://u@[2001:db8::1]/d", {"host": "2001:db8::1"}),
        ("postgresql://u@%2Frun%2Fpostgresql/d", {"host": "/run/postgresql"}),
        ("postgresql:///d?host=/run/postgresql&port=6000", {"host": "/run/postgresql", "port": "6000", "dbname": "d"}),
        ("postgresql://u@a:1,b:2/d?target_session_attrs=read-write", {"host": "a,b", "port": "1,2"}),
        ("postgresql://u@h/d?sslmode=require&connect_timeout=3", {"sslmode": "require", "connect_timeout": "3"}),
        ("postgresql://u@h/d?ssl=true", {"sslmode": "require"}),
        ("postgresql://u@h", {"dbname": "u"}),
        ("host=h user=u password=x://a/b@c", {"password": "x://a/b@c"}),
        ("host=h user=u dbname='my db' password='it''s'".replace("''", r"\'"), {"dbname": "my db", "password": "it's"}),
    ],
)
def test_every_form_of_url_is_understood(url: str, expected: dict[str, str]) -> None:
    """E110: percent-encoded password, IPv6, unix socket, several hosts, query options, libpq's keyword string."""
    assert keywords(url).items() >= expected.items()


def test_a_missing_user_is_the_systems_and_names_the_database() -> None:
    """E110: missing host or user."""
    me = pwd.getpwuid(os.geteuid()).pw_name
    found = keywords("postgresql://")
    assert (found["user"], found["dbname"]) == (me, me)
    assert "host" not in found
    assert resolve("postgresql://", env={}).describe() == f"{me}@local socket:5432/{me}"


def test_a_process_whose_user_has_no_name_must_be_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """E110: containers run as numbers."""
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_000 - 1)
    with pytest.raises(ConfigError, match="no user is given"):
        resolve("postgresql://h/d", env={})
    assert keywords("postgresql://u@h/d")["user"] == "u"


def test_the_environment_fills_what_the_url_leaves_open() -> None:
    """E110: `PG*` variables, all that libpq knows."""
    env = {
        "PGHOST": "eh",
        "PGPORT": "7000",
        "PGDATABASE": "ed",
        "PGUSER": "eu",
        "PGPASSWORD": SECRET,
        "PGSSLMODE": "require",
        "PGOPTIONS": "-c search_path=x",
        "PGPASSFILE": "/pass",
        "PGTARGETSESSIONATTRS": "primary",
        "PGCONNECT_TIMEOUT": "4",
    }
    found = keywords(env=env)
    assert (found["host"], found["port"], found["dbname"], found["user"]) == ("eh", "7000", "ed", "eu")
    assert (found["password"], found["sslmode"], found["options"]) == (SECRET, "require", "-c search_path=x")
    assert (found["passfile"], found["target_session_attrs"], found["connect_timeout"]) == ("/pass", "primary", "4")
    assert keywords("postgresql://u@h/d", env=env)["host"] == "h"
    assert keywords("postgresql://u@h/d", env={"PGREQUIRESSL": "1"})["sslmode"] == "require"


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """E110: without `env`, os.environ."""
    monkeypatch.setenv("PGDATABASE", "from-environ")
    assert resolve("postgresql://u@h").database == "from-environ"
    assert resolve("postgresql://u@h", env={}).database == "u"


def service_file(folder: Path, text: str) -> dict[str, str]:
    """The environment that names a service file of this content."""
    file = folder / "services.conf"
    file.write_text(text)
    return {"PGSERVICEFILE": str(file)}


def test_a_service_file_stands_between_url_and_environment(tmp_path: Path) -> None:
    """E110: service file, by `service=` in the URL, as a part and by PGSERVICE."""
    env = service_file(
        tmp_path, "# ours\n[other]\nhost=wrong\n\n[shop]\nhost=sh\nport=7001\nuser=su\npassword=a=b # c\n[z]\n"
    )
    env |= {"PGHOST": "eh", "PGDATABASE": "ed"}
    for found in (
        keywords("postgresql://?service=shop", env=env),
        keywords("service=shop", env=env),
        keywords(service="shop", env=env),
        keywords(env=env | {"PGSERVICE": "shop"}),
    ):
        assert (found["host"], found["port"], found["user"], found["dbname"]) == ("sh", "7001", "su", "ed")
        assert found["password"] == "a=b # c"
        assert "service" not in found
    assert keywords("postgresql://uu@/?service=shop", env=env)["user"] == "uu"


def test_the_service_file_at_home_then_the_systems(tmp_path: Path) -> None:
    """E110: ~/.pg_service.conf, then the folder that PGSYSCONFDIR names."""
    (tmp_path / ".pg_service.conf").write_text("[mine]\nhost=home\n")
    (tmp_path / "pg_service.conf").write_text("[mine]\nhost=never\n[all]\nhost=system\n")
    env = {"HOME": str(tmp_path), "PGSYSCONFDIR": str(tmp_path)}
    assert keywords(service="mine", env=env)["host"] == "home"
    assert keywords(service="all", env=env)["host"] == "system"


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("[other]\nhost=h\n", "the service 'shop' is not in ", "[shop]"),
        ("[shop]\nhst=h\n", ":2: not a libpq keyword and value", "'host'"),
        (f"[shop]\n{SECRET}\n", ":2: not a libpq keyword and value", ""),
        ("[shop]\nservice=other\n", ":2: not a libpq keyword and value", ""),
    ],
)
def test_a_service_file_that_does_not_fit_is_named_with_its_line(
    text: str, said: str, hint: str, tmp_path: Path
) -> None:
    """E110: the file, the line and the nearest word, without the line's content."""
    with pytest.raises(ConfigError) as caught:
        resolve(service="shop", env=service_file(tmp_path, text))
    assert said in caught.value.message
    assert hint in caught.value.hint
    assert "hunter2" not in str(caught.value)


def test_parts_come_before_the_url() -> None:
    """E110: parts, URL, service file, environment, default, in this order."""
    found = keywords("postgresql://u:p@h:1/d", host="ph", port=2, database="pd", user=None, password=SECRET)
    assert (found["host"], found["port"], found["dbname"], found["user"]) == ("ph", "2", "pd", "u")
    assert found["password"] == SECRET


@pytest.mark.parametrize(
    ("url", "nearest"),
    [
        ("postgresql://u:hunter2@h/d?sslmod=require", "'sslmode'"),
        ("postgresql://u:hunter2@h/d?sslmode=require&aplication_name=x", "'application_name'"),
        ("host=h usr=hunter2", "'user'"),
        ("postgresql://u:hunter2@h/d?qqqq=1", "There are: "),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest_one(url: str, nearest: str) -> None:
    """E110: query options that do not exist."""
    with pytest.raises(ConfigError, match="an option that does not exist") as caught:
        resolve(url, env={})
    assert nearest in caught.value.hint


def test_an_unknown_part_is_answered_with_the_nearest_one() -> None:
    """E110: the same for parts."""
    with pytest.raises(ConfigError, match="'databse' is not a connection setting") as caught:
        resolve(databse="x", env={})
    assert caught.value.hint == "The nearest one is 'database'."


BAD_URLS = [
    "postgresql://u:hunter2@h:port/d",
    "postgresql://u:hunter2@h:99999/d",
    "postgresql://u:hunter2@[::1/d",
    "postgresql://u:hunter2%zz@h/d",
    "postgresql://u:hunter2 x@h/d",
    "postgresql://u:x/hunter2@h/d",
    "postgresql://u:123/hunter2@h/d",
    "postgresql://u:123/hunter2?x@h/d",
    "host=a,b,c port=1,2 password=hunter2",
    "postgresql://u:hunter2@h/d?sslmode=hunter2",
    "postgresql://u:hunter2@h/d?target_session_attrs=hunter2",
    "postgresql://u:hunter2@h/d?connect_timeout=hunter2",
    "postgresql://u:hunter2@h/d?replication=database",
    "jdbc:postgresql://h/d?password=hunter2",
    "postgresql+psycopg://u:hunter2@h/d",
    "host=h password='hunter2",
    "hunter2",
    "password=hunter2\0x",
    "postgresql://u:hunter2\udcff@h/d",
]


@pytest.mark.parametrize("url", BAD_URLS, ids=range(len(BAD_URLS)))
def test_a_bad_url_is_refused_without_being_quoted(url: str) -> None:
    """E110: not in the message, the hint, a chained error, or a printed traceback's error lines."""
    with pytest.raises(ConfigError) as caught:
        resolve(url, env={})
    error = caught.value
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__
    printed = "".join(traceback.format_exception(error, limit=0))
    assert "hunter2" not in printed + repr(error) + repr(error.__context__) + repr(error.args)


@given(st.text(max_size=60))
@example("%80")
def test_any_text_as_a_url_is_understood_or_refused(url: str) -> None:
    """E110: nothing but a ConfigError comes out."""
    try:
        settings = resolve("postgresql://u:" + url, env={})
    except ConfigError as error:
        assert error.__cause__ is None
    else:
        assert settings.describe()


@given(password=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_any_password_survives_the_way_to_libpq(password: str) -> None:
    """E110: as a part, and percent-encoded in a URL; and again out of the string that libpq is given."""
    assert keywords(password=password)["password"] == password
    settings = resolve(f"postgresql://u:{quote(password, safe='')}@h/d", env={})
    assert settings.get("password") == password
    assert psycopg.conninfo.conninfo_to_dict(settings.conninfo().decode())["password"] == password


def test_no_secret_shows() -> None:
    """E110: not in repr, str, describe, format, or the repr of what holds it; a pickle keeps it for a worker."""
    settings = resolve(f"postgresql://u:{ENCODED}@h/d", sslpassword=SECRET, env={})
    for shown in (repr(settings), str(settings), settings.describe(), f"{settings}", repr([settings])):
        assert "hunter2" not in shown
    assert repr(settings) == "ConnectionSettings('u@h:5432/d (sslmode prefer)')"
    copy = pickle.loads(pickle.dumps(settings))
    assert copy == settings and copy.keywords()["password"] == SECRET
    assert "hunter2" not in repr(copy)


@pytest.mark.parametrize(
    ("url", "described"),
    [
        ("postgresql://u@[::1]:6000/d", "u@[::1]:6000/d"),
        ("postgresql://u@a:1,b/d", "u@a:1,b:5432/d"),
        ("postgresql://u@%2Ftmp/d", "u@/tmp:5432/d"),
        ("hostaddr=10.0.0.1 user=u dbname=d", "u@10.0.0.1:5432/d"),
    ],
)
def test_a_description_says_who_and_where(url: str, described: str) -> None:
    """E110: what messages and logs show."""
    settings = resolve(url, env={})
    assert settings.describe() == described
    assert settings.port == int(described.split(",")[0].split("/d")[0].rpartition(":")[2])


def test_a_tls_config_counts_as_a_part_and_never_loosens() -> None:
    """E111: one TLS setting for every connection; a weaker one elsewhere cannot undo it, nor the other way round."""
    tls = TlsConfig(SslMode.VERIFY_FULL, "/root.pem", "/c.crt", "/c.key")
    found = resolve("postgresql://u@h/d?sslmode=prefer", tls=tls, env={}).keywords()
    assert (found["sslmode"], found["sslrootcert"]) == ("verify-full", "/root.pem")
    assert (found["sslcert"], found["sslkey"]) == ("/c.crt", "/c.key")
    for url, env in [("postgresql://u@h/d?sslmode=verify-full", {}), ("postgresql://u@h/d", {"PGSSLMODE": "require"})]:
        with pytest.raises(ConfigError, match="which is stricter"):
            resolve(url, tls=TlsConfig(), env=env)
    assert resolve("postgresql://u@h/d", tls=TlsConfig(SslMode.DISABLE), env={}).sslmode == "disable"


def test_the_systems_authorities_mean_verify_full() -> None:
    """E111: sslrootcert=system asks libpq for no less."""
    settings = resolve("postgresql://u@h/d?sslrootcert=system", env={})
    assert settings.sslmode == "verify-full"
    check_files(settings)


def test_verify_full_needs_a_name_to_compare() -> None:
    """E111: an address alone proves nothing."""
    with pytest.raises(TlsError, match="compares the host's name"):
        check_files(resolve("hostaddr=10.0.0.1 user=u sslmode=verify-full sslrootcert=system", env={}))


def test_an_unknown_host_is_unavailable() -> None:
    """E110: a name that does not resolve may resolve later."""
    with pytest.raises(UnavailableError, match=r"the host name of nowhere\.invalid:5432 is not known here"):
        open_pgconn(resolve("postgresql://u@nowhere.invalid/d", env={}))


def test_a_socket_folder_that_libpq_chose_is_named() -> None:
    """E110: without a host; which folder that is depends on who built libpq."""
    with pytest.raises(UnavailableError, match="no server answers at the unix socket of /") as caught:
        open_pgconn(resolve("postgresql://u@:1/d", env={}))
    folder = Path(caught.value.message.rpartition(" ")[2].removesuffix(":1"))
    assert folder == Path("/tmp") or folder.name == "postgresql"


def test_a_value_that_libpq_refuses_is_a_matter_of_configuration() -> None:
    """E110: settings that only libpq checks; the value is not repeated."""
    bad = resolve("postgresql://u:hunter2@127.0.0.1/d?channel_binding=hunter2", env={})
    with pytest.raises(ConfigError, match="libpq does not accept") as caught:
        open_pgconn(bad)
    assert "channel_binding" in caught.value.message
    assert "hunter2" not in str(caught.value)
