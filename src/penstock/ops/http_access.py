"""Who may use the private address: whoever holds the token, or a browser that was let in by a link.

The token is made for each run and lies in a file that only its user may read. A link holds a code that lets one
browser in, once and within minutes: the browser changes it for a cookie that scripts cannot read. So the token is never
in a URL, and what a browser's history or a log may keep of a link opens nothing any more. Guarantees: secrets are
compared in constant time and show in no repr. Deliberately not: users, roles, passwords.
"""

from __future__ import annotations

import hmac
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from penstock.errors import ConfigError, OperatorError

TOKEN_FILE = "token"
_CODE_S = 600.0
_SESSION_S = 12 * 3600.0
_MOST = 64


class Access:
    """The token of this run, the codes that were given out, the browsers that were let in. From any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._token = secrets.token_urlsafe(32)
        self._clock = clock
        self._cookie = f"penstock_{secrets.token_hex(4)}"  # browsers keep cookies by host, whatever the port
        self._codes: dict[str, float] = {}
        self._sessions: dict[str, float] = {}

    def write(self, folder: Path) -> None:
        """Put the token into its file, in place of the one before."""
        path = folder / TOKEN_FILE
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(self._token + "\n")

    def code(self, shown: str = "") -> str:
        """A code for a link: the one that is shown already, with its time begun anew, while nobody has used it; else a
        new one."""
        known = next((code for code in list(self._codes) if _is_same(code, shown)), "")
        is_good = self._codes.pop(known, 0.0) > self._clock()
        code = known if is_good else secrets.token_urlsafe(16)
        _keep(self._codes, code, self._clock() + _CODE_S, self._clock())
        return code

    def enter(self, secret: str) -> str | None:
        """What lets a browser in from now on, as a cookie to set; `secret` is a code, which is then used up, or
        the token. None where it is neither."""
        known = next((code for code in list(self._codes) if _is_same(code, secret)), None)
        until = self._codes.pop(known, 0.0) if known else 0.0
        if until < self._clock() and not self.is_token(secret):
            return None
        session = secrets.token_urlsafe(32)
        _keep(self._sessions, session, self._clock() + _SESSION_S, self._clock())
        return f"{self._cookie}={session}; Path=/; HttpOnly; SameSite=Strict; Max-Age={_SESSION_S:.0f}"

    def is_token(self, secret: str) -> bool:
        """Whether it is the token of this run."""
        return _is_same(self._token, secret)

    def knows(self, cookies: str) -> bool:
        """Whether a browser that sends these cookies was let in."""
        # By hand: the standard library reads none where one is odd, and other programs' cookies come along.
        pairs = (one.strip().partition("=") for one in cookies.split(";"))
        given = [value for name, _, value in pairs if name == self._cookie]
        now, sessions = self._clock(), list(self._sessions.items())
        return any(_is_same(session, one) and until > now for one in given for session, until in sessions)


def read_token(folder: Path) -> str:
    """The token of the run with this state folder."""
    path = folder / TOKEN_FILE
    try:
        found = path.stat()
        token = path.read_text().strip()
    except OSError as error:
        raise OperatorError(
            f"there is no token in {folder} ({type(error).__name__})",
            hint="penstock run writes one; only its user may read it.",
        ) from None
    if found.st_mode & 0o077:
        raise ConfigError(f"{path} can be read by others", hint="Start penstock run again: it writes a new token.")
    return token


def _keep(those: dict[str, float], one: str, until: float, now: float) -> None:
    """Add it; what is over, or more than a few, is forgotten."""
    for old in [old for old, end in list(those.items()) if end <= now] + list(those)[: max(0, len(those) - _MOST + 1)]:
        those.pop(old, None)
    those[one] = until


def _is_same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode(errors="replace"))
