"""Two processes that share a key talk in JSON over TCP.

Guarantees: each side has proved to the other that it knows the key before a word is said, and the key itself never
travels; a peer that is silent while it has to prove itself is given up. What is said is not encrypted: no secret goes
over a network this way. A peer that goes away, however it goes, reads as None.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
from types import TracebackType
from typing import Any, Self

from penstock.errors import AuthenticationError

_NONCE = 32
_LENGTH = struct.Struct(">I")
_LONGEST = 1 << 20
_PROOF_S = 10.0


class Line:
    """A connection to the other side, once both have proved that they know the key."""

    def __init__(self, sock: socket.socket, key: bytes, *, calling: bool) -> None:
        self._socket = sock
        try:
            sock.settimeout(_PROOF_S)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._prove(key, calling)
            sock.settimeout(None)
        except BaseException:
            sock.close()
            raise

    def _prove(self, key: bytes, calling: bool) -> None:
        mine = os.urandom(_NONCE)
        self._socket.sendall(mine)
        theirs = self._exactly(_NONCE)
        both = mine + theirs if calling else theirs + mine
        # What each side sends is bound to its role, so that none can be answered with its own words.
        self._socket.sendall(_proof(key, both, calling))
        if not hmac.compare_digest(self._exactly(_NONCE), _proof(key, both, not calling)):
            raise AuthenticationError("the other side does not know the key")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def from_here(self) -> bool:
        """Whether the other side is on this machine, reached over loopback."""
        host = str(self._socket.getpeername()[0]).removeprefix("::ffff:")
        return host == "::1" or host.startswith("127.")

    def send(self, message: dict[str, Any]) -> None:
        """Say something."""
        data = json.dumps(message).encode()
        self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Hear something; None when the other side has gone or is silent for too long."""
        self._socket.settimeout(timeout_s)
        try:
            (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
            found = json.loads(self._exactly(size)) if size <= _LONGEST else None
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionResetError("the other side has gone")
            data += piece
        return bytes(data)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def _proof(key: bytes, both: bytes, calling: bool) -> bytes:
    return hmac.new(key, (b"caller" if calling else b"listener") + both, hashlib.sha256).digest()


def listening(everywhere: bool = True) -> socket.socket:
    """A socket that is reached from anywhere, or from this machine only, at a free port."""
    if not everywhere:
        return socket.create_server(("127.0.0.1", 0))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def call(host: str, port: int, key: bytes, timeout_s: float) -> Line:
    """Reach the other side."""
    return Line(socket.create_connection((host, port), timeout_s), key, calling=True)
