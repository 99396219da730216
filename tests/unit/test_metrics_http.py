"""Both addresses over real sockets: who is answered, who is not, and what an answer never holds."""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.app.watching import Watching
from penstock.config.deployment import Server
from penstock.errors import ConfigError, OperatorError, UnavailableError
from penstock.ops.http import HttpServer, is_loopback, parse_address
from penstock.ops.http_access import Access, read_token
from penstock.ops.http_private import ACT, PAGE, READ, Private
from penstock.ops.http_public import Public
from tests.fixtures.waiting import wait_until

JSON = {"Content-Type": "application/json"}


class Answer:
    """What came back."""

    def __init__(self, found: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.body = found.status, found.headers, found.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(address: str, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, sent, {name.replace("_", "-"): value for name, value in headers.items()})
        return Answer(connection.getresponse())
    finally:
        connection.close()


def fail(asked: Mapping[str, Any]) -> Any:
    raise {
        "config": ConfigError("no such index", hint="There is: users."),
        "away": UnavailableError("the sink is away"),
        "operator": OperatorError("somebody has to act"),
    }[asked["index"]]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def access(clock: Clock) -> Access:
    return Access(clock)


@pytest.fixture
def token(access: Access, tmp_path: Path) -> str:
    access.write(tmp_path)
    return read_token(tmp_path)


@pytest.fixture
def address(access: Access) -> Iterator[str]:
    """A private address that echoes what is asked; /reindex fails as told, /changes breaks, /indexes is not there."""
    answers = {name: lambda asked, name=name: {"asked": name, **asked} for name in READ + ACT}
    answers |= {"reindex": fail, "changes": lambda _: 1 / 0}
    del answers["indexes"]
    server = HttpServer("127.0.0.1:0", Private(access, answers), "private_address", "page and status")
    yield server.address
    server.close()


def test_the_public_address_tells_health_and_readiness_and_nothing_else() -> None:
    public = Public()
    server = HttpServer("127.0.0.1:0", public, "public_address", "health and metrics")
    try:
        assert ask(server.address, "/healthz").status == 200
        starting = ask(server.address, "/readyz")
        assert (starting.status, starting.json["ready"]) == (503, False)
        assert ask(server.address, "/metrics").body == b""
        public.attach(lambda: {"unready": ["index users is seeding"]}, {})
        assert ask(server.address, "/readyz").json["reasons"] == ["index users is seeding"]
        public.attach(lambda: {"unready": []}, {})
        assert ask(server.address, "/readyz").status == 200
        assert ask(server.address, "/healthz", "HEAD").body == b""
        for path in ("/", "/status", "/session", "/../healthz"):
            assert ask(server.address, path).status == 404, path
        assert ask(server.address, "/healthz", "POST", {}, **JSON).status == 405
    finally:
        server.close()


def test_an_answer_over_a_connection_that_is_kept_does_not_wait_for_its_second_half(address: str) -> None:
    connection, took = http.client.HTTPConnection(address, timeout=10), []
    try:
        for _ in range(10):
            began = time.perf_counter()
            connection.request("GET", "/")
            assert connection.getresponse().read()
            took.append(time.perf_counter() - began)
    finally:
        connection.close()
    assert min(took[1:]) < 0.03, "40 ms each, where one side waits for the other"


def test_the_page_is_for_everybody_and_each_answer_for_who_holds_the_token(address: str, token: str) -> None:
    for path in PAGE:
        found = ask(address, path)
        assert (found.status, token.encode() in found.body) == (200, False), path
    for name in {*READ, *ACT}:
        for method, body in (("GET", None), ("POST", {})):
            for given in (
                {},
                {"Authorization": "Bearer wrong"},
                {"Authorization": f"Basic {token}"},
                {"Cookie": "a=b"},
            ):
                refused = ask(address, f"/{name}", method, body, **(JSON if body is not None else {}), **given)
                assert refused.status == 401, (name, method, given)
    assert ask(address, f"/status?token={token}").status == 401, "a token in a URL opens nothing"
    found = ask(address, "/search?index=users&query=a%20b", Authorization=f"Bearer {token}")
    assert found.json == {"asked": "search", "action": "list", "index": "users", "query": "a b"}
    found = ask(address, "/quarantine?action=drop", Authorization=f"Bearer {token}")
    assert found.json == {"asked": "quarantine", "action": "list"}, "what is read changes nothing, whatever it says"
    acted = ask(address, "/quarantine", "POST", {"action": "replay"}, Authorization=f"Bearer {token}", **JSON)
    assert acted.json == {"asked": "quarantine", "action": "replay"}


def test_the_page_loads_each_of_its_files_and_no_other(address: str) -> None:
    """A browser refuses a script of another content type; a file that nothing asks for is not served in vain."""
    kinds = {"/": "text/html", ".css": "text/css", ".js": "text/javascript"}
    loaded, waiting = set[str](), ["/"]
    while waiting:
        path = waiting.pop()
        loaded.add(path)
        found = ask(address, path)
        assert found.status == 200, path
        assert found.headers["Content-Type"] == f"{kinds[Path(path).suffix or path]}; charset=utf-8"
        text = found.body.decode()
        named = re.findall(r'(?:src|href)="(/[\w.]+)"', text) + re.findall(r'from "\.(/\w+\.js)";', text)
        waiting += [one for one in named if one not in loaded]
    assert loaded == set(PAGE)


def test_a_link_lets_one_browser_in_once(address: str, token: str, clock: Clock) -> None:
    by_token = {"Authorization": f"Bearer {token}", **JSON}
    code = ask(address, "/link", "POST", {}, **by_token).json["code"]
    assert code != token
    entered = ask(address, "/session", "POST", {"secret": code}, **JSON)
    cookie = entered.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert token not in cookie
    mine = cookie.partition(";")[0]
    assert ask(address, "/status", Cookie=f"other=1; {mine}").status == 200
    assert ask(address, "/session", "POST", {"secret": code}, **JSON).status == 401, "it is used up"
    assert ask(address, "/link", "POST", {}, Cookie=mine, **JSON).status == 404, "who came by a link makes no links"
    late = ask(address, "/link", "POST", {}, **by_token).json["code"]
    clock.now += 601
    assert ask(address, "/session", "POST", {"secret": late}, **JSON).status == 401, "and is good for minutes"
    clock.now += 12 * 3600
    assert ask(address, "/status", Cookie=mine).status == 401


def test_a_link_that_is_shown_for_long_stays_good_until_it_is_used(address: str, token: str, clock: Clock) -> None:
    by_token = {"Authorization": f"Bearer {token}", **JSON}

    def link(code: str = "") -> str:
        return str(ask(address, "/link", "POST", {"code": code}, **by_token).json["code"])

    shown = link()
    for _ in range(5):
        clock.now += 500
        assert link(shown) == shown, "the one that is shown, with its time begun anew"
    assert ask(address, "/session", "POST", {"secret": shown}, **JSON).status == 200
    fresh = link(shown)
    assert fresh != shown, "it was used"
    assert ask(address, "/session", "POST", {"secret": shown}, **JSON).status == 401
    clock.now += 601
    late = link(fresh)
    assert late != fresh, "it was too old"
    assert link("made-up") not in ("made-up", late)


def test_another_programs_cookies_keep_nobody_out(address: str, token: str) -> None:
    """A browser sends those of every port of a host, however they are written."""
    mine = ask(address, "/session", "POST", {"secret": token}, **JSON).headers["Set-Cookie"].partition(";")[0]
    name = mine.partition("=")[0]
    for other in ('prefs={"a":1}', "x=a b", "[]=1", "=", "no-value", f"{name}=old", '"'):
        for cookies in (f"{other}; {mine}", f"{mine}; {other}"):
            assert ask(address, "/status", Cookie=cookies).status == 200, cookies
        assert ask(address, "/status", Cookie=f"{other}; other_{mine}").status == 401, other


def test_another_sites_page_cannot_act(address: str, token: str) -> None:
    cookie = ask(address, "/session", "POST", {"secret": token}, **JSON).headers["Set-Cookie"].partition(";")[0]
    mine = {"Cookie": cookie, **JSON}
    assert ask(address, "/quarantine", "POST", {}, Origin=f"http://{address}", **mine).status == 200
    for origin in ("http://evil.example", "null", f"http://{address}.evil.example", "http://127.0.0.1:1"):
        assert ask(address, "/quarantine", "POST", {}, Origin=origin, **mine).status == 403, origin
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert ask(address, "/quarantine", "POST", b"{}", Cookie=cookie, Content_Type=kind).status == 403, kind
    assert "Access-Control-Allow-Origin" not in ask(address, "/status", Cookie=cookie).headers
    assert ask(address, "/quarantine", "OPTIONS", Origin="http://evil.example").status == 403


def test_every_answer_forbids_caching_framing_and_what_comes_from_elsewhere(address: str) -> None:
    for path in ("/", "/page.js", "/status", "/nowhere"):
        headers = ask(address, path).headers
        assert headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"


def test_what_goes_wrong_is_a_sentence(address: str, token: str) -> None:
    mine = {"Authorization": f"Bearer {token}", **JSON}
    for index, status in (("config", 400), ("away", 503), ("operator", 409)):
        found = ask(address, "/reindex", "POST", {"index": index}, **mine)
        assert (found.status, found.json.keys()) == (status, {"error", "hint"})
    broken = ask(address, "/changes", **mine)
    assert broken.status == 500
    assert "division" not in broken.body.decode()
    assert "does not do indexes" in ask(address, "/indexes", **mine).json["error"]
    assert ask(address, "/nowhere", **mine).status == 404
    assert ask(address, "/status", "POST", {}, **mine).status == 405
    assert ask(address, "/reindex", **mine).status == 405
    for body in (b"[]", b"{", b"\xff", b"[" * 9999):
        assert ask(address, "/session", "POST", body, **JSON).status == 400, body[:9]


def test_nonsense_and_too_much_are_refused_and_the_next_one_is_served(address: str) -> None:
    host, port = parse_address(address)
    for sent in (b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"BREW / HTTP/1.1\r\n\r\n", b"G" * 70_000 + b"\r\n"):
        with socket.create_connection((host, port), timeout=10) as caller:
            caller.sendall(sent)
            answer = b"".join(iter(lambda: caller.recv(4096), b""))
        assert b'"error"' in answer or not answer, sent[:20]
        assert b"Python" not in answer
    assert ask(address, "/session", "POST", b"x" * 70_000, **JSON).status == 413
    assert ask(address, "/").status == 200


def test_neither_token_nor_code_nor_question_is_logged(
    address: str, token: str, access: Access, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    mine = {"Authorization": f"Bearer {token}", **JSON}
    code = ask(address, "/link", "POST", {}, **mine).json["code"]
    ask(address, "/session", "POST", {"secret": code}, **JSON)
    ask(address, "/search?query=a-secret-word", **mine)
    ask(address, "/changes?query=a-secret-word", **mine)
    said = caplog.text + repr(vars(access).keys()) + repr(access)
    for secret in (token, code, "a-secret-word"):
        assert secret not in said


def test_the_token_is_its_users_alone(access: Access, tmp_path: Path) -> None:
    access.write(tmp_path)
    path = tmp_path / "token"
    assert path.stat().st_mode & 0o777 == 0o600
    first = read_token(tmp_path)
    Access().write(tmp_path)
    assert read_token(tmp_path) != first, "each run has its own"
    os.chmod(path, 0o644)
    with pytest.raises(ConfigError, match="can be read by others"):
        read_token(tmp_path)
    path.unlink()
    with pytest.raises(OperatorError, match="there is no token"):
        read_token(tmp_path)


def test_an_address_in_use_is_told_and_served_when_it_is_free(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.ops.http._BIND_AGAIN_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        server = HttpServer(taken, Public(), "public_address", "health and metrics")
        assert server.address == ""
        assert f"{taken} is in use by another process" in caplog.text
        assert f'[server] public_address = "127.0.0.1:{(other.getsockname()[1] + 10) % 65536}"' in caplog.text
    wait_until(lambda: server.address, 10, "the address to be free")
    assert ask(taken, "/healthz").status == 200
    server.close()
    waiting = socket.create_server(("127.0.0.1", 0))
    HttpServer(f"127.0.0.1:{waiting.getsockname()[1]}", Public(), "public_address", "health and metrics").close()
    waiting.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_this_machine_is_answered_by_either_of_its_own_addresses(host: str) -> None:
    """Browsers take localhost for the one or the other."""
    own = [one for one in ("127.0.0.1", "::1") if is_there(one)]
    if host.strip("[]") not in (*own, "localhost"):
        return
    server = HttpServer(f"{host}:0", Public(), "public_address", "health and metrics")
    port = server.address.rpartition(":")[2]
    assert server.address == f"{host}:{port}"
    assert [ask(f"[{one}]:{port}" if ":" in one else f"{one}:{port}", "/healthz").status for one in own] == [200] * len(
        own
    )
    server.close()
    for one in own:
        socket.create_server((one, int(port)), family=family(one)).close()


def test_what_another_program_has_at_the_other_address_is_left_to_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        if is_there("::1"):
            server = HttpServer(f"[::1]:{port}", Public(), "public_address", "health and metrics")
            assert ask(server.address, "/healthz").status == 200
            server.close()


def family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def is_there(host: str) -> bool:
    """Whether this machine has the address."""
    try:
        socket.create_server((host, 0), family=family(host)).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("public", "private", "said"),
    [
        ("127.0.0.1:0", "127.0.0.1:99999", "'127.0.0.1:99999' is not an address"),
        ("127.0.0.1:9999999", "127.0.0.1:0", "'127.0.0.1:9999999' is not an address"),
        ("[::1]:9464", "[::1]:9464", r"public_address and private_address are both \[::1\]:9464"),
        ("127.0.0.1:9464", "localhost:9464", r"public_address and private_address are both 127\.0\.0\.1:9464"),
        ("127.0.0.1:9464", "[::1]:9464", r"public_address and private_address are both 127\.0\.0\.1:9464"),
    ],
)
def test_addresses_that_cannot_both_be_served_are_refused_before_one_is(public: str, private: str, said: str) -> None:
    deployment: Any = SimpleNamespace(server=Server(public, private))
    before = threading.active_count()
    with pytest.raises(ConfigError, match=said):
        Watching(deployment)
    assert threading.active_count() == before


def test_any_free_port_may_be_asked_for_twice() -> None:
    deployment: Any = SimpleNamespace(server=Server("127.0.0.1:0", "127.0.0.1:0"))
    with Watching(deployment) as watching:
        assert watching.page == "", "until the deployment runs"


def test_an_address_of_another_machine_is_refused_by_its_setting() -> None:
    with pytest.raises(ConfigError, match=r"server.private_address 192\.0\.2\.1:9465 cannot be used"):
        HttpServer("192.0.2.1:9465", Public(), "private_address", "page and status")
    deployment: Any = SimpleNamespace(server=Server("127.0.0.1:0", "192.0.2.1:9465"))
    with pytest.raises(ConfigError, match=r"server.private_address 192\.0\.2\.1:9465 cannot be used"):
        Watching(deployment)  # before the server is asked for anything, not once the deployment is at work
    assert [is_loopback(one) for one in ("127.0.0.1:1", "[::1]:1", "localhost:1", "0.0.0.0:1", "host:1")] == [
        True, True, True, False, False,
    ]  # fmt: skip
