"""TLS as the settings ask for it: the files that it needs, and what a failed handshake means.

libpq makes the encrypted connections; this module says beforehand which file is missing or too open, and afterwards
why a handshake failed, by the verification code and the alert's name, never by a message's text.

Guarantees: a named certificate or key that cannot be used is an error (libpq itself would go on without it where the
mode allows). Deliberately not: I/O over the network (`diagnosis`).
"""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path

from penstock.errors import TlsError
from penstock.postgres.settings import ConnectionSettings, Endpoint

_VERIFYING = ("verify-ca", "verify-full")
# OpenSSL's X509_V_ERR_* codes.
_NOT_YET_VALID, _EXPIRED, _REVOKED = 9, 10, 23
_UNTRUSTED = (2, 18, 19, 20, 21)  # no issuer found, self-signed, first certificate not signed by a known one
_OTHER_NAME = (62, 64)  # host name, IP address


def demands_tls(settings: ConnectionSettings) -> bool:
    """Whether a connection without TLS must fail."""
    return settings.sslmode in ("require", *_VERIFYING)


def check_files(settings: ConnectionSettings) -> None:
    """Refuse files that libpq would refuse or pass over in silence."""
    remote = [endpoint for endpoint in settings.endpoints if not endpoint.is_local]
    if settings.sslmode == "disable" or not remote:  # over a unix socket there is no TLS
        return
    if settings.sslmode == "verify-full" and not all(endpoint.host for endpoint in remote):
        raise TlsError("sslmode verify-full compares the host's name, and none is given", hint="Give it in host.")
    root = _file(settings, "sslrootcert")
    if settings.sslmode in _VERIFYING and root is None and settings.get("sslrootcert") != "system":
        raise TlsError(
            f"sslmode {settings.sslmode} needs the certificate of the authority that signed the server's",
            hint=f"Name it in sslrootcert, or save it as {_default('sslrootcert')}; sslrootcert=system takes those"
            " that this machine trusts.",
        )
    for keyword in ("sslrootcert", "sslcert", "sslkey"):
        named = settings.get(keyword)
        if named and named != "system" and not os.access(named, os.R_OK):
            raise TlsError(f"the file {named} ({keyword}) is missing or cannot be read", hint="Check path and owner.")
    if _file(settings, "sslcert"):
        _check_key(settings)


def _check_key(settings: ConnectionSettings) -> None:
    key = _file(settings, "sslkey")
    if key is None:
        raise TlsError("a client certificate is given without its private key", hint="Name the key's file in sslkey.")
    found = key.stat()
    # As libpq asks: nobody else may read it; one that root owns may be read by a group.
    closed_to = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO if found.st_uid == 0 else stat.S_IRWXG | stat.S_IRWXO
    if not stat.S_ISREG(found.st_mode) or found.st_mode & closed_to:
        raise TlsError(f"the private key {key} is open to others", hint=f"chmod 600 {key}")


def client_context(settings: ConnectionSettings, endpoint: Endpoint) -> ssl.SSLContext:
    """Python's own TLS with the same files and checks, to learn why libpq's handshake failed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    root = _file(settings, "sslrootcert")
    context.check_hostname = settings.sslmode == "verify-full"
    # With a root certificate at hand, libpq verifies the chain for `require` too.
    verifies = settings.sslmode in _VERIFYING or (settings.sslmode == "require" and root is not None)
    context.verify_mode = ssl.CERT_REQUIRED if verifies else ssl.CERT_NONE
    try:
        if root is not None:
            context.load_verify_locations(root)
        elif settings.get("sslrootcert") == "system":
            context.set_default_verify_paths()
        if settings.get("sslcrl"):
            context.load_verify_locations(settings.get("sslcrl"))
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
        if cert := _file(settings, "sslcert"):
            context.load_cert_chain(cert, _file(settings, "sslkey"), password=lambda: settings.get("sslpassword"))
    except (OSError, ValueError):  # ssl.SSLError is an OSError
        raise TlsError(
            f"a certificate or key for {endpoint} cannot be used",
            hint="sslrootcert, sslcrl, sslcert and sslkey name PEM files; the key must be that of the certificate, and"
            " where it is encrypted, sslpassword opens it.",
        ) from None
    return context


def explain(error: ssl.SSLError, settings: ConnectionSettings, endpoint: Endpoint) -> TlsError:
    """The sentence and the next step for a handshake that failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _untrusted(error.verify_code, endpoint)
    reason = error.reason or type(error).__name__
    # An alert is the server's word, mostly on our certificate; anything else is our own finding.
    if "ALERT" not in reason or "PROTOCOL" in reason:
        return TlsError(
            f"the TLS handshake with {endpoint} failed ({reason})",
            hint="Check that Postgres listens there, and which TLS versions it allows (ssl_min_protocol_version).",
        )
    if _file(settings, "sslcert"):
        return TlsError(
            f"the server at {endpoint} did not accept the client certificate ({reason})",
            hint="It must be valid now and signed by an authority that the server knows (ssl_ca_file).",
        )
    return TlsError(
        f"the server at {endpoint} broke the TLS handshake off ({reason}), and no client certificate was given",
        hint="It may ask for one: name its files in sslcert and sslkey.",
    )


def _untrusted(code: int, endpoint: Endpoint) -> TlsError:
    if code in _OTHER_NAME:
        return TlsError(
            f"the certificate of the server at {endpoint} is for another host name",
            hint="Connect by a name that the certificate holds; or, if the authority signs only your own servers,"
            " sslmode=verify-ca.",
        )
    if code in (_EXPIRED, _NOT_YET_VALID):
        when = "has expired" if code == _EXPIRED else "is not valid yet"
        return TlsError(
            f"the certificate of the server at {endpoint} {when}",
            hint="Give the server a new one (ssl_cert_file, then pg_reload_conf()), and check this machine's clock.",
        )
    if code == _REVOKED:
        return TlsError(f"the certificate of the server at {endpoint} is revoked", hint="Give the server a new one.")
    why = "is not signed by an authority we trust" if code in _UNTRUSTED else f"was not accepted (OpenSSL code {code})"
    return TlsError(
        f"the certificate of the server at {endpoint} {why}",
        hint="Name the certificate of the authority that signed it in sslrootcert (managed services offer it for"
        " download); sslrootcert=system takes those that this machine trusts.",
    )


def _default(keyword: str) -> Path:
    names = {"sslrootcert": "root.crt", "sslcert": "postgresql.crt", "sslkey": "postgresql.key"}
    return Path("~/.postgresql").expanduser() / names[keyword]


def _file(settings: ConnectionSettings, keyword: str) -> Path | None:
    """The file that libpq will take: the one named, else its default where that exists."""
    named = settings.get(keyword)
    if named == "system" and keyword == "sslrootcert":
        return None
    file = Path(named) if named else _default(keyword)
    return file if named or file.exists() else None
