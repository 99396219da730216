"""The private address: the page, what it shows, and what can be done from it.

The page itself holds nothing and is for everybody; each answer is for whoever holds the token (`Authorization: Bearer`)
or a browser that was let in. Guarantees against other sites' pages: the cookie is not sent with what they ask
(`SameSite=Strict`), an answer cannot be read by them, and what changes something is taken only from this page itself
(`Origin`) and only as JSON. Deliberately not: what is answered; `answers` are functions by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import ConfigError, PenstockError, RetryableError
from penstock.ops.http import Request, Response, as_json, refused
from penstock.ops.http_access import Access

Answer = Callable[[Mapping[str, Any]], Any]

_FILES = resources.files("penstock.ops").joinpath("page")
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
PAGE = {"/": "index.html"} | {f"/{one.name}": one.name for one in _FILES.iterdir() if one.name != "index.html"}
"""The page's files by their paths: the page, its style and its scripts."""
READ = ("status", "history", "indexes", "changes", "search", "document", "quarantine")
"""What can be asked for: the path is the name."""
ACT = ("reindex", "quarantine")
"""What can be done: POST, with what it is about as JSON."""
LINK, SESSION = "/link", "/session"
"""Where a link is made, and where a browser is let in by it."""


class Private:
    """Answers at the private address."""

    def __init__(self, access: Access, answers: Mapping[str, Answer]) -> None:
        self._access, self._answers = access, answers

    def __call__(self, asked: Request) -> Response:
        """The answer."""
        try:
            return self._respond(asked)
        except PenstockError as error:
            status = 400 if isinstance(error, ConfigError) else 503 if isinstance(error, RetryableError) else 409
            return refused(status, error.message, error.hint)

    def _respond(self, asked: Request) -> Response:
        reading = asked.method in ("GET", "HEAD")
        if reading and asked.path in PAGE:
            name = PAGE[asked.path]
            kind = _KINDS[name[name.rindex(".") :]]
            return Response(_FILES.joinpath(name).read_bytes(), content_type=f"{kind}; charset=utf-8")
        if not reading and (wrong := _is_foreign(asked)):
            return refused(403, wrong)
        if asked.path == SESSION and asked.method == "POST":
            return self._enter(asked)
        by_token = self._has_token(asked)
        if not by_token and not self._access.knows(asked.headers.get("cookie", "")):
            return refused(401, "this needs the token of the run", "penstock status prints a link for a browser.")
        if asked.path == LINK and asked.method == "POST" and by_token:
            return as_json({"code": self._access.code(str(_body(asked).get("code", "")))})
        return self._answer(asked, reading)

    def _enter(self, asked: Request) -> Response:
        cookie = self._access.enter(str(_body(asked).get("secret", "")))
        if cookie is None:
            return refused(401, "this link was used before, or is too old", "penstock status prints a new one.")
        return as_json({"entered": True}, Set_Cookie=cookie)

    def _has_token(self, asked: Request) -> bool:
        kind, _, token = asked.headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self._access.is_token(token.strip())

    def _answer(self, asked: Request, reading: bool) -> Response:
        name = asked.path.removeprefix("/")
        if name not in READ + ACT:
            return refused(404, f"there is nothing at this path; there are: {', '.join(sorted({*READ, *ACT}))}")
        if name not in (READ if reading else ACT) or asked.method not in ("GET", "HEAD", "POST"):
            return refused(405, f"/{name} can only be {'read (GET)' if name in READ else 'done (POST)'}")
        if name not in self._answers:
            return refused(404, f"this Penstock does not do {name} over HTTP yet")
        return as_json(self._answers[name]({**asked.query, "action": "list"} if reading else _body(asked)))


def _is_foreign(asked: Request) -> str:
    """What shows that another site's page may have sent this; empty: nothing does."""
    origin = asked.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != asked.headers.get("host"):
        return "this was sent by a page of another site"
    if asked.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return "a request that changes something has the content type application/json"
    return ""


def _body(asked: Request) -> Mapping[str, Any]:
    try:
        found = json.loads(asked.body or b"{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError("the body is not a JSON object", hint='Send one, such as {"index": "users"}.')
    return {"action": "", **found}
