"""HTTP by the standard library: an address, and a function that answers.

Guarantees: binding never stops a deployment: an address in use is told, and tried again until it is free; who names
this machine by `localhost` is answered, whichever of its two addresses that is taken for; a caller that is slow, sends
nonsense or a lot costs a thread for seconds at most; every answer forbids caching, framing and anything from elsewhere;
no request, header or body is logged. Deliberately not: TLS (put a proxy before it), and what is answered
(`http_public`, `http_private`).
"""

from __future__ import annotations

import errno
import ipaddress
import json
import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from penstock.errors import ConfigError

log = logging.getLogger(__name__)

_PATIENCE_S = 10.0
_LARGEST_BODY = 64 << 10
_MOST_CALLERS = 64
_BIND_AGAIN_S = 2.0
# What names this machine: the other one of its own addresses is served along, where it is there and free.
_OTHER = {"127.0.0.1": "::1", "localhost": "::1", "::1": "127.0.0.1"}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked. Names of headers are lower case."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Response:
    """What is answered."""

    body: bytes = field(default=b"", repr=False)
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def as_json(value: Any, status: int = 200, **headers: str) -> Response:
    """An answer for machines."""
    return Response(json.dumps(value).encode() + b"\n", status, headers=headers)


def refused(status: int, message: str, hint: str = "") -> Response:
    """A sentence about what is wrong, and what to do."""
    return as_json({"error": message, "hint": hint}, status)


Respond = Callable[[Request], Response]


class HttpServer:
    """Answers at an address until `close`. `setting` is the key of [server] that names it, `serves` what it is for."""

    def __init__(self, address: str, respond: Respond, setting: str, serves: str) -> None:
        self._host, self._port = parse_address(address)
        self._respond, self._setting = respond, setting
        self._closing = threading.Event()
        self._servers: list[_Server] = []
        if not self._bind():
            log.warning(
                "%s is in use by another process (another penstock run?): %s of this one are served there when it is "
                "free. To have them now, name another address in penstock.toml: [server] %s = \"%s:%d\"",
                address, serves, setting, address.rpartition(":")[0], (self._port + 10) % 65536,
            )  # fmt: skip
        self._thread = threading.Thread(target=self._serve, name=f"penstock-http-{self._port}", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where it answers, with the real port; empty while the address is in use by another process."""
        if not self._servers:
            return ""
        port = self._servers[0].port
        return f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"

    def _bind(self) -> bool:
        named = _bound(self._host, self._port, self._respond, self._setting)
        if named is None:
            return False
        self._servers = [named, *_beside(named, self._host, self._respond)]
        return True

    def _serve(self) -> None:
        while not self._servers:
            if self._closing.wait(_BIND_AGAIN_S):
                return
            self._bind()
        name = threading.current_thread().name
        threads = [threading.Thread(target=one.serve, name=f"{name}-beside", daemon=True) for one in self._servers[1:]]
        for one in threads:
            one.start()
        self._servers[0].serve()
        for one in threads:
            one.join()

    def close(self) -> None:
        """End; callers are cut off. Any number of times."""
        self._closing.set()
        while self._thread.is_alive():
            for one in self._servers:
                one.shutdown()
            self._thread.join(0.1)
        for one in self._servers:
            one.cut_off()


def require_usable(address: str, setting: str) -> None:
    """Stop where nothing can ever be served at the address; one that is in use may be free later."""
    tried = _bound(*parse_address(address), lambda _: refused(503, "nothing is served here yet"), setting)
    if tried is not None:
        tried.server_close()


def _bound(host: str, port: int, respond: Respond, setting: str) -> _Server | None:
    """A server at the address, or None while it is in use by another process."""
    try:
        return _Server(host, port, respond)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise ConfigError(
            f"server.{setting} {host}:{port} cannot be used: {error.strerror}",
            hint="Name an address of this machine, such as 127.0.0.1:9465, in [server].",
        ) from None


def _beside(named: _Server, host: str, respond: Respond) -> list[_Server]:
    if host not in _OTHER:
        return []
    try:
        return [_Server(_OTHER[host], named.port, respond)]
    except OSError as error:
        log.debug("%s is not served along: %s", _OTHER[host], error)
        return []


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[::1]:port`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(
            f"{address!r} is not an address",
            hint="Write it as host:port, such as 127.0.0.1:9465; a port is at most 65535.",
        )
    return host.strip("[]"), int(port)


def is_same(one: str, other: str) -> bool:
    """Whether serving at the one takes the other one, too."""
    (host, port), (other_host, other_port) = parse_address(one), parse_address(other)
    return port == other_port and (host == other_host or {host, other_host} <= _OTHER.keys())


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches it."""
    host, _ = parse_address(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, respond: Respond) -> None:
        self.respond = respond
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._callers: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__((host, port), _Handler)

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    def serve(self) -> None:
        """Until `shutdown`."""
        self.serve_forever(poll_interval=0.2)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # the class between would look its own name up, which may take long

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._callers) < _MOST_CALLERS:
                self._callers.add(request)
                super().process_request(request, client_address)
                return
        super().shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._callers.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a caller was lost", exc_info=True)

    def cut_off(self) -> None:
        """Give the address back, and leave no caller waiting."""
        self.server_close()
        with self._lock:
            left = list(self._callers)
        for one in left:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # gone


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _PATIENCE_S
    # Headers and body are two sends: the second would wait 40 ms for word of the first.
    disable_nagle_algorithm = True
    server: _Server

    def answer(self) -> None:
        """One request, whatever its method."""
        try:
            length = int(self.headers.get("Content-Length") or 0)
        except ValueError:
            length = -1
        if not 0 <= length <= _LARGEST_BODY or self.headers.get("Transfer-Encoding"):
            self.close_connection = True
            self._send(refused(413, f"a body has at most {_LARGEST_BODY} bytes, and says how many"))
            return
        target = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(length) if length else b""
        asked = Request(self.command, target.path, dict(parse_qsl(target.query)), headers, body)
        try:
            found = self.server.respond(asked)
        except Exception as error:
            log.error("answering %s failed with %s", asked.path, type(error).__name__)
            log.debug("where it failed", exc_info=error)
            found = refused(500, "Penstock failed to answer, with an error that it did not foresee")
        self._send(found)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = answer

    def _send(self, found: Response) -> None:
        self.send_response_only(found.status)
        content = {"Content-Type": found.content_type, "Content-Length": str(len(found.body))}
        for name, value in {**_HEADERS, **content, **found.headers}.items():
            self.send_header(name.replace("_", "-"), value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(found.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        self.close_connection = True
        self.command = getattr(self, "command", None) or "GET"
        self._send(refused(int(code), message or "the request is not understood"))

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: a path may hold what somebody searches for."""
