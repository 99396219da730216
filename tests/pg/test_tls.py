"""TLS on every connection: each mode, each way a certificate can be wrong, and client certificates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.main import run
from penstock.errors import AccessError, AuthenticationError, PenstockError, TlsError, UnavailableError
from penstock.model import SslMode, TlsConfig
from penstock.postgres.connection import open_pgconn, open_sql, resolve
from tests.fixtures.databases import Database
from tests.fixtures.standins import StandIn
from tests.fixtures.tls import Certificates, TlsProxy

StartProxy = Callable[..., TlsProxy]


def _connect_both(url: str, tls: TlsConfig | None = None) -> tuple[bool, bool]:
    """Whether a connection for SQL and one for replication are encrypted, as libpq sees it."""
    settings = resolve(url, tls=tls, env={})
    with open_sql(settings) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        sql = connection.pgconn.ssl_in_use
    pgconn = open_pgconn(settings, replication=True)
    try:
        assert pgconn.exec_(b"IDENTIFY_SYSTEM").ntuples == 1
        return sql, pgconn.ssl_in_use
    finally:
        pgconn.finish()


def _failure(url: str, tls: TlsConfig | None = None, replication: bool = False) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        open_pgconn(resolve(url, tls=tls, env={}), replication=replication)
    assert caught.value.__cause__ is None
    return caught.value


@pytest.mark.parametrize("mode", list(SslMode))
def test_every_mode_holds_for_sql_and_for_replication(
    mode: SslMode, database: Database, tls_proxy: StartProxy, certificates: Certificates
) -> None:
    """E111: with a server that offers TLS, all modes but `disable` encrypt both kinds of connection."""
    proxy = tls_proxy(database.server)
    tls = TlsConfig(mode=mode, root_cert=certificates.root)
    encrypted = mode is not SslMode.DISABLE
    assert _connect_both(proxy.url(database.name), tls) == (encrypted, encrypted)
    assert [(one.encrypted, one.replication) for one in proxy.startups] == [(encrypted, False), (encrypted, True)]


def test_a_deployments_check_and_build_obey_its_setting(
    db18: Database,
    tls_proxy: StartProxy,
    certificates: Certificates,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """E111: every connection of both, on a server that takes no other."""
    db18.execute("CREATE TABLE person (id int PRIMARY KEY, name text); INSERT INTO person VALUES (1, 'Ada')")
    proxy = tls_proxy(db18.server, mode="insists")
    source = (
        f'connection_url = "{proxy.url(db18.name)}"\nssl_mode = "verify-full"\nssl_root_cert = "{certificates.root}"'
    )
    index = '[[index]]\nname = "people"\nschema = "people.schema.yml"\n'
    (tmp_path / "penstock.toml").write_text(f'[source]\ntype = "postgres"\n{source}\n{index}')
    (tmp_path / "people.schema.yml").write_text("version: 1\ntable: person\nfields: [{keyword: name}]\n")
    assert run(["sample", "people", "1", "--raw", "--config", str(tmp_path)]) == 0
    assert capsys.readouterr().out == '{"name":"Ada"}'
    run(["check", "--config", str(tmp_path)])
    assert "public.person" in capsys.readouterr().out
    assert len(proxy.startups) > 2
    assert all(one.encrypted for one in proxy.startups)


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
def test_the_same_by_parameters_of_the_url(
    mode: str, db18: Database, tls_proxy: StartProxy, certificates: Certificates
) -> None:
    """E111: the URL says the same as a TlsConfig."""
    proxy = tls_proxy(db18.server, mode="insists")
    url = proxy.url(db18.name, sslmode=mode, sslrootcert=certificates.root, host="localhost")
    assert _connect_both(url) == (True, True)


def test_prefer_goes_without_tls_where_there_is_none(db18: Database, tls_proxy: StartProxy) -> None:
    """E111: `prefer` takes TLS where it is offered, and only there."""
    assert _connect_both(tls_proxy(db18.server, mode="refuses").url(db18.name, sslmode="prefer")) == (False, False)
    assert _connect_both(tls_proxy(db18.server, mode="offers").url(db18.name)) == (True, True)


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
@pytest.mark.parametrize("replication", [False, True])
def test_a_server_without_tls_is_named_where_tls_is_demanded(
    mode: str, replication: bool, db18: Database, certificates: Certificates
) -> None:
    """E111: never a plain connection in its stead; here against the server itself, which is built without TLS."""
    error = _failure(f"{db18.url}?sslmode={mode}&sslrootcert={certificates.root}", replication=replication)
    assert isinstance(error, TlsError)
    assert f"offers no TLS, and sslmode {mode} asks for it" in error.message
    assert "ssl = on" in error.hint


@pytest.mark.parametrize("replication", [False, True])
def test_tls_required_is_said_first_to_who_came_without(
    replication: bool, db18: Database, tls_proxy: StartProxy
) -> None:
    """E111: 28000 on a plain connection."""
    error = _failure(tls_proxy(db18.server, mode="insists").url(db18.name, sslmode="disable"), replication=replication)
    assert isinstance(error, AccessError)
    assert error.sqlstate == "28000"
    assert "without TLS" in error.message
    assert error.hint.startswith("Try sslmode=require")


@pytest.mark.parametrize("mode", ["prefer", "allow"])
def test_of_two_refusals_the_telling_one_is_told(mode: str, db18: Database, tls_proxy: StartProxy) -> None:
    """E111: libpq tries with TLS and without, in either order; that one way is closed is not what is wrong."""
    db18.role("bob", "right")
    proxy = tls_proxy(db18.server, mode="insists")
    with db18.server.access("host all bob 127.0.0.1/32 scram-sha-256"):
        error = _failure(proxy.url(db18.name, "bob:wrong", sslmode=mode))
    assert isinstance(error, AuthenticationError)
    assert error.sqlstate == "28P01"


@pytest.mark.parametrize(
    ("mode", "leaf", "root", "said"),
    [
        ("verify-full", "other_name", "root", "is for another host name"),
        ("verify-full", "good", "other_root", "is not signed by an authority we trust"),
        ("verify-ca", "good", "other_root", "is not signed by an authority we trust"),
        ("require", "good", "other_root", "is not signed by an authority we trust"),
        ("verify-full", "expired", "root", "has expired"),
        ("verify-ca", "expired", "root", "has expired"),
    ],
)
def test_a_wrong_certificate_is_named(
    mode: str, leaf: str, root: str, said: str, db18: Database, tls_proxy: StartProxy, certificates: Certificates
) -> None:
    """E111: what is wrong with the server's certificate is told apart, by its code."""
    proxy = tls_proxy(db18.server, leaf=getattr(certificates, leaf))
    error = _failure(proxy.url(db18.name, sslmode=mode, sslrootcert=getattr(certificates, root)))
    assert isinstance(error, TlsError)
    assert error.message == f"the certificate of the server at 127.0.0.1:{proxy.port} {said}"
    assert error.hint
    assert proxy.startups == []


def test_verify_ca_does_not_compare_names(db18: Database, tls_proxy: StartProxy, certificates: Certificates) -> None:
    """E111: the one thing by which verify-ca and verify-full differ."""
    proxy = tls_proxy(db18.server, leaf=certificates.other_name)
    assert _connect_both(proxy.url(db18.name, sslmode="verify-ca", sslrootcert=certificates.root)) == (True, True)


def test_a_client_certificate_reaches_the_server(
    database: Database, tls_proxy: StartProxy, certificates: Certificates
) -> None:
    """E111: with client certificates, on both kinds of connection."""
    proxy = tls_proxy(database.server, client_ca=certificates.authority)
    tls = TlsConfig(SslMode.VERIFY_FULL, certificates.root, certificates.client.cert, certificates.client.key)
    assert _connect_both(proxy.url(database.name), tls) == (True, True)
    assert [one.client_certificate for one in proxy.startups] == [True, True]


def test_a_missing_and_a_foreign_client_certificate_are_told_apart(
    db18: Database, tls_proxy: StartProxy, certificates: Certificates
) -> None:
    """E111: a server that demands client certificates."""
    url = tls_proxy(db18.server, client_ca=certificates.authority).url(db18.name)
    missing = _failure(url, TlsConfig(SslMode.VERIFY_FULL, certificates.root))
    assert isinstance(missing, TlsError)
    assert "no client certificate was given" in missing.message
    foreign = certificates.foreign_client
    error = _failure(url, TlsConfig(SslMode.VERIFY_FULL, certificates.root, foreign.cert, foreign.key))
    assert isinstance(error, TlsError)
    assert "did not accept the client certificate" in error.message


def test_files_that_cannot_be_used_are_named_before_connecting(
    tmp_path: Path, db18: Database, tls_proxy: StartProxy, certificates: Certificates
) -> None:
    """E111: libpq would go on without a client certificate whose file is missing, and without TLS in `prefer`."""
    client = certificates.client
    open_key = tmp_path / "open.key"
    open_key.write_bytes(Path(client.key).read_bytes())
    open_key.chmod(0o644)
    cases = [
        (TlsConfig(SslMode.PREFER, None, client.cert, str(open_key)), f"the private key {open_key} is open to others"),
        (TlsConfig(SslMode.REQUIRE, None, "/nowhere.crt", client.key), "the file /nowhere.crt (sslcert) is missing"),
        (TlsConfig(SslMode.REQUIRE, None, client.cert, "/nowhere.key"), "the file /nowhere.key (sslkey) is missing"),
        (TlsConfig(SslMode.VERIFY_CA, "/nowhere.pem"), "the file /nowhere.pem (sslrootcert) is missing"),
        (TlsConfig(SslMode.REQUIRE, None, client.cert), "a client certificate is given without its private key"),
        (TlsConfig(SslMode.VERIFY_FULL), "sslmode verify-full needs the certificate of the authority"),
    ]
    proxy = tls_proxy(db18.server)
    for tls, said in cases:
        error = _failure(proxy.url(db18.name), tls)
        assert isinstance(error, TlsError)
        assert error.message.startswith(said)
    assert proxy.startups == []


def test_a_key_of_another_certificate_is_named(
    db18: Database, tls_proxy: StartProxy, certificates: Certificates
) -> None:
    """E111: found when the handshake is looked at again."""
    tls = TlsConfig(SslMode.REQUIRE, None, certificates.client.cert, certificates.foreign_client.key)
    error = _failure(tls_proxy(db18.server).url(db18.name), tls)
    assert isinstance(error, TlsError)
    assert "a certificate or key" in error.message


@pytest.mark.parametrize("mode", ["require", "verify-full"])
def test_a_server_that_goes_away_in_the_handshake_is_not_taken_for_a_wrong_certificate(
    mode: str, stand_in: Callable[..., StandIn], certificates: Certificates
) -> None:
    """E111: trouble of the network stays retryable, whatever TLS is asked for."""
    url = stand_in(breaks_tls=True).url(options=f"sslmode={mode}&sslrootcert={certificates.root}")
    assert isinstance(_failure(url), UnavailableError)
