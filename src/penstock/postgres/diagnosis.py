"""Why a connection failed before the server said anything: a second look at the network and at TLS.

libpq tells such failures only as text in the user's language. So the same steps are taken once more by hand, as far
as the failure: the name, the port, the answer to a request for TLS, the handshake.

Guarantees: sends no credentials, and ends within the deadline or a second after it. Deliberately not: a connection
of use to anybody (`connection`).
"""

from __future__ import annotations

import socket
import ssl
import time

from penstock.errors import PenstockError, TlsError, UnavailableError
from penstock.postgres.refusal import Attempt
from penstock.postgres.tls import client_context, demands_tls, explain

_SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"  # length 8, code 80877103
# An alert about the client's certificate follows the handshake within a round trip; a server that is content stays
# silent and waits for us, which costs this long.
_ALERT_WAIT_S = 1.0


def diagnose(attempt: Attempt, deadline: float) -> PenstockError | None:
    """Why a connection failed without an answer from the server; None where network and TLS are in order."""
    timeout_s = max(deadline - time.monotonic(), _ALERT_WAIT_S)
    try:
        probe = _reach(attempt, timeout_s)
    except OSError as error:
        return _unreachable(attempt, error)
    with probe:
        try:
            return _look_at_tls(probe, attempt)
        except PenstockError as found:
            return found
        except OSError:  # the server closed the connection, or fell silent, at a step where it should answer
            return None


def _reach(attempt: Attempt, timeout_s: float) -> socket.socket:
    endpoint = attempt.endpoint
    if not endpoint.is_local:
        return socket.create_connection((endpoint.hostaddr or endpoint.host, int(endpoint.port)), timeout_s)
    probe = socket.socket(socket.AF_UNIX)
    probe.settimeout(timeout_s)
    name = f"{endpoint.host}/.s.PGSQL.{endpoint.port}"
    try:
        probe.connect("\0" + name[1:] if name.startswith("@") else name)
    except OSError:
        probe.close()
        raise
    return probe


def _unreachable(attempt: Attempt, error: OSError) -> UnavailableError:
    endpoint = attempt.endpoint
    if endpoint.is_local:
        return UnavailableError(
            f"no server answers at the unix socket of {endpoint}",
            hint="Check the socket folder (unix_socket_directories of the server) and the port; or give a host to"
            " connect over TCP.",
        )
    if isinstance(error, ConnectionRefusedError):
        return UnavailableError(
            f"nothing listens at {endpoint}",
            hint="Check the host and port, that the server runs, and its listen_addresses.",
        )
    return UnavailableError(
        f"the server at {endpoint} cannot be reached ({type(error).__name__})",
        hint="Check the host and port, and that no firewall drops the connection.",
    )


def _look_at_tls(probe: socket.socket, attempt: Attempt) -> PenstockError | None:
    settings, endpoint = attempt.settings, attempt.endpoint
    if settings.sslmode in ("disable", "allow") or endpoint.is_local:
        return None
    direct = settings.get("sslnegotiation") == "direct"
    if not direct:
        probe.sendall(_SSL_REQUEST)
        answer = probe.recv(1)
        if answer == b"N" and demands_tls(settings):
            return TlsError(
                f"the server at {endpoint} offers no TLS, and sslmode {settings.sslmode} asks for it",
                hint="Switch it on at the server (ssl = on, ssl_cert_file, ssl_key_file), or set sslmode=prefer here.",
            )
        if answer != b"S":
            return None
    context = client_context(settings, endpoint)
    if direct:
        context.set_alpn_protocols(["postgresql"])
    try:
        with context.wrap_socket(probe, server_hostname=endpoint.host or endpoint.hostaddr) as wrapped:
            wrapped.settimeout(_ALERT_WAIT_S)
            wrapped.recv(1)
    except ssl.SSLEOFError:
        return None
    except ssl.SSLError as error:
        return explain(error, settings, endpoint)
    return None
