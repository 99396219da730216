"""HTTP to an OpenSearch or Elasticsearch server: kept connections, patience, and what an answer means for us.

Guarantees: any thread may send, each request on a connection of its own, so two threads have two in flight. What
passes by itself (429, 502, 503, 504, a timeout, a lost connection) is tried again after growing, jittered waits, until
`max_retries` were in vain: then UnavailableError. Every request we send may be repeated. No secret shows in a repr or
an error, and no more of an answer than its error's type. Deliberately not: redirects, compression (on a fast network
it costs more than it gains) and several hosts.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import random
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from penstock.errors import (
    AuthenticationError,
    ConfigError,
    OperatorError,
    PrivilegeError,
    TlsError,
    UnavailableError,
)

# The first wait, and the longest. Each is drawn between half and one and a half of its place in the doubling row, so
# that several writers that were turned away together do not come back together.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 20.0
# A server that is there takes a connection at once; an answer may take as long as the settings say.
_CONNECT_S = 10.0
_PASSING = frozenset({429, 502, 503, 504})
_LOST = (OSError, http.client.HTTPException)


@dataclass(frozen=True, slots=True)
class OpenSearchSettings:
    """One server and how to treat it; secrets are texts here, because this is the process that connects."""

    name: str
    url: str = field(repr=False)
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    api_key: str = field(default="", repr=False)
    ca_cert: str | None = None
    tls_verify: bool = True
    batch_size: int = 1000
    max_bytes: int = 10 << 20
    timeout_s: float = 30
    max_retries: int = 3
    pipeline: str = ""


class Answer(NamedTuple):
    """What the server said: the status, and the body as it came."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The body as a value; a server that does not speak JSON is not the one we were told of."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise OperatorError(
                f"the server answered {self.status} with something that is not JSON",
                hint="Check the sink's url: it has to lead to an OpenSearch or Elasticsearch server.",
            ) from error

    @property
    def kind(self) -> str:
        """The type of the error in the answer, or nothing."""
        try:
            return str(json.loads(self.body)["error"]["type"])
        except (ValueError, KeyError, TypeError):
            return ""

    @property
    def reason(self) -> str:
        """The server's own words, its first cause included. They may quote documents: only for requests without."""
        try:
            error = json.loads(self.body)["error"]
            words = [str(error["reason"])]
        except (ValueError, KeyError, TypeError):
            return ""
        while error := error.get("caused_by") or next(iter(error.get("suppressed", ())), None):
            words[1:] = [str(error.get("reason"))]
        return ": ".join(dict.fromkeys(words))


class Patience:
    """How often something may still fail before we say so; rounds that got somewhere do not count."""

    def __init__(self, limit: int, closing: threading.Event) -> None:
        self._limit, self._closing = limit, closing
        self._spent = 0

    def wait(self, error: UnavailableError) -> None:
        """Wait for the next try, or raise the error: patience is at its end, or the sink is being closed."""
        if self._spent >= self._limit:
            raise error
        pause_s = min(_FIRST_WAIT_S * 2**self._spent, _LONGEST_WAIT_S) * random.uniform(0.5, 1.5)
        self._spent += 1
        if self._closing.wait(pause_s):
            raise error

    def renew(self) -> None:
        """Something went through."""
        self._spent = 0


class Http:
    """The server of one sink."""

    def __init__(self, settings: OpenSearchSettings) -> None:
        url = urlsplit(settings.url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(f"the url of sink {settings.name} is no http:// or https:// URL")
        self._host, self._path = url.hostname, url.path.rstrip("/")
        self._port = url.port or (443 if url.scheme == "https" else 9200)
        self._tls = _tls(settings) if url.scheme == "https" else None
        self._headers = _authorization(settings, unquote(url.username or ""), unquote(url.password or ""))
        self._settings = settings
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def __repr__(self) -> str:
        return f"Http({self.place})"

    @property
    def place(self) -> str:
        """The server, as errors name it."""
        return f"{self._host}:{self._port}"

    def patience(self) -> Patience:
        """A fresh one."""
        return Patience(self._settings.max_retries, self._closing)

    def down(self, why: str) -> UnavailableError:
        """What is raised when the server cannot do its work for now."""
        hint = f"Check that the server at {self.place} is up and can keep pace; what was not written stays in the slot."
        return UnavailableError(f"sink {self._settings.name}: {why}", hint=hint)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """One request with its retries. Answers below 300, and 400, 404 and 413, are the caller's to judge."""
        sent = b"" if body is None else json.dumps(body).encode()
        patience = self.patience()
        while True:
            answer = self.attempt(method, path, sent, patience)
            if answer is not None:
                return answer

    def attempt(self, method: str, path: str, body: bytes, patience: Patience) -> Answer | None:
        """One try. None: it was in vain, and the wait is over."""
        try:
            answer = self._exchange(method, path, body)
        except _LOST as error:
            trouble = self.down(f"the connection to {self.place} failed ({type(error).__name__})")
            trouble.__cause__ = error
            patience.wait(trouble)
            return None
        if answer.status == 429 and answer.kind == "cluster_block_exception":
            raise blocked(self._settings.name, "the cluster")
        if answer.status in _PASSING or answer.status == 500:
            patience.wait(self.down(f"{self.place} answered {answer.status} {answer.kind}".rstrip()))
            return None
        return self._allowed(answer)

    def close(self) -> None:
        """Close what is idle, and end every wait, also for an answer. Any number of times."""
        self._closing.set()
        with self._lock:
            idle, self._idle = self._idle, []
            for connection in self._busy:
                _hang_up(connection)
        for connection in idle:
            connection.close()

    def _allowed(self, answer: Answer) -> Answer:
        sink = f"sink {self._settings.name}"
        if answer.status == 401:
            raise AuthenticationError(
                f"{sink}: {self.place} did not accept the user or the key", hint="Check username, password or api_key."
            )
        if answer.status == 403 and answer.kind == "cluster_block_exception":
            raise blocked(self._settings.name, "the index")
        if answer.status == 403:
            raise PrivilegeError(
                f"{sink}: {self.place} refused ({answer.kind or 403})",
                hint="Grant the role the rights to create, read, write and manage the indexes of this prefix.",
            )
        if 300 <= answer.status < 400:
            raise OperatorError(f"{sink}: {self.place} redirects", hint="Set url to where it leads.")
        return answer

    def _exchange(self, method: str, path: str, body: bytes) -> Answer:
        connection, is_fresh = self._take()
        try:
            return self._send(connection, method, path, body)
        except _LOST as error:
            connection.close()
            if is_fresh or isinstance(error, TimeoutError):
                raise
        # The server may close what was idle for long: that is no failure of the request.
        connection = self._connect()
        try:
            return self._send(connection, method, path, body)
        except _LOST:
            connection.close()
            raise

    def _take(self) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), False
        return self._connect(), True

    def _connect(self) -> http.client.HTTPConnection:
        timeout_s = min(self._settings.timeout_s, _CONNECT_S)
        connection = (
            http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._tls)
            if self._tls
            else http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        )
        try:
            connection.connect()
        except ssl.SSLEOFError:
            raise
        except ssl.SSLError as error:
            raise TlsError(
                f"sink {self._settings.name}: no TLS with {self.place} ({error.reason or type(error).__name__})",
                hint="Check the url's scheme and host, and ca_cert: the certificate of the server's authority.",
            ) from error
        connection.sock.settimeout(self._settings.timeout_s)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connection

    def _send(self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes) -> Answer:
        with self._lock:
            self._busy.add(connection)
            if self._closing.is_set():
                _hang_up(connection)
        try:
            return self._exchanged(connection, method, path, body)
        finally:
            with self._lock:
                self._busy.discard(connection)

    def _exchanged(self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes) -> Answer:
        headers = {**self._headers, "Content-Type": "application/json"} if body else self._headers
        try:
            connection.request(method, self._path + path, body or None, headers)
        except (BrokenPipeError, ConnectionResetError):
            # Too large a request is answered before it is read whole: what was said may be there to read.
            pass
        response = connection.getresponse()
        answer = Answer(response.status, response.read())
        if response.will_close or self._closing.is_set():
            connection.close()
        else:
            with self._lock:
                self._idle.append(connection)
        return answer


def _hang_up(connection: http.client.HTTPConnection) -> None:
    """Have whoever waits for an answer meet a lost connection."""
    if connection.sock is not None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)  # under TLS, too: without a word


def blocked(sink: str, what: str) -> OperatorError:
    """What somebody has to lift: a full disk, or a block that was set by hand."""
    return OperatorError(
        f"sink {sink}: {what} is blocked for writes (cluster_block_exception)",
        hint="Free disk space (the flood-stage watermark blocks writes by itself), or lift the block: "
        'PUT /INDEX/_settings {"index.blocks.read_only_allow_delete": null, "index.blocks.write": null, '
        '"index.blocks.read_only": null}',
    )


def _authorization(settings: OpenSearchSettings, url_user: str, url_password: str) -> dict[str, str]:
    headers = {"User-Agent": "penstock", "Accept": "application/json"}
    if settings.api_key:
        # A key is given as the server encoded it, or as ID:KEY.
        plain = ":" in settings.api_key
        key = base64.b64encode(settings.api_key.encode()).decode() if plain else settings.api_key
        return {**headers, "Authorization": f"ApiKey {key}"}
    user, password = settings.username or url_user, settings.password or url_password
    if not user:
        return headers
    return {**headers, "Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def _tls(settings: OpenSearchSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca_cert)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"ca_cert of sink {settings.name} cannot be read: {settings.ca_cert} ({type(error).__name__})",
            hint="Name a file with the authority's certificate, in PEM.",
        ) from error
    if not settings.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
