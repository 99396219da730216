"""The page in a real browser, over one demo that runs for all of them.

With PENSTOCK_PICTURES set to a folder, the pictures of the docs are taken there (`make pictures`).
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from penstock.ops.http_private import ACT, READ
from tests.fixtures.commands import Running, run_penstock, running
from tests.fixtures.pipelines import pass_time
from tests.fixtures.programs import LIMIT, PATIENCE_S
from tests.fixtures.waiting import wait_until

pytestmark = LIMIT

PICTURES = os.environ.get("PENSTOCK_PICTURES", "")
PLACES = ("index", "ids", "id", "query", "limit", "after", "values", "rollback")
LINK = re.compile(r"http://127\.0\.0\.1:\d+/#\S+")


@dataclass
class Shop:
    """A running demo."""

    demo: Running
    folder: Path
    link: str

    def status(self) -> dict[str, Any]:
        return dict(json.loads(run_penstock("status", "--json", "--config", str(self.folder)).stdout))

    def new_link(self) -> str:
        said = run_penstock("status", "--config", str(self.folder)).stdout
        found = LINK.search(said)
        assert found, said
        return found[0]

    @property
    def address(self) -> str:
        return self.link.partition("#")[0]

    @property
    def token(self) -> str:
        return (self.folder / ".penstock" / "token").read_text().strip()


@dataclass
class Visit:
    """A page that was let in, and what it did besides."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def shop(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with running(tmp_path_factory.mktemp("demo"), "demo", "--rate", "40") as demo:

        def told() -> Shop | None:
            assert demo.process.poll() is None, demo.err
            said = "".join(demo.lines)
            folder, link = re.search(r"--config (\S+)", said), LINK.search(said)
            return Shop(demo, Path(folder[1]), link[0]) if folder and link else None

        yield wait_until(told, PATIENCE_S, "the demo to print a link")
        demo.process.send_signal(signal.SIGINT)
        assert demo.process.wait(PATIENCE_S) == 0, demo.err


@pytest.fixture(scope="module")
def context(browser: Browser, shop: Shop) -> Iterator[BrowserContext]:
    with browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light") as found:
        yield found


@pytest.fixture(scope="module")
def visit(context: BrowserContext, shop: Shop) -> Visit:
    visit = Visit(context.new_page())
    visit.page.on("console", lambda said: visit.complaints.append(f"{said.type}: {said.text}"))
    visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    visit.page.on("request", lambda asked: visit.requests.append(asked.url))
    visit.page.goto(shop.link)
    expect(visit.page.locator("#content")).to_be_visible(timeout=20_000)
    return visit


@pytest.fixture
def page(visit: Visit) -> Page:
    visit.page.evaluate("document.activeElement.blur()")
    visit.page.mouse.move(1, 1)
    return visit.page


def test_a_link_lets_one_browser_in_and_stays_nowhere(
    browser: Browser, page: Page, context: BrowserContext, shop: Shop
) -> None:
    assert page.url == shop.address, "nothing is left of the code in the address bar"
    (cookie,) = context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert page.evaluate("document.cookie") == ""
    with browser.new_context() as elsewhere:
        other = elsewhere.new_page()
        other.goto(shop.link)
        expect(other.locator("#door")).to_be_visible()
        expect(other.locator("#door-why")).to_contain_text("used before")
        expect(other.locator("#content")).to_be_hidden()
        other.fill("#door-token", "wrong")
        other.press("#door-token", "Enter")
        expect(other.locator("#door-why")).to_contain_text("penstock status")
        other.goto(shop.new_link())
        expect(other.locator("#content")).to_be_visible()
        assert other.url == shop.address, "pasted where the door is shown: the page is not loaded anew"
    with browser.new_context() as elsewhere:
        other = elsewhere.new_page()
        other.goto(shop.address)
        other.fill("#door-token", shop.token)
        other.press("#door-token", "Enter")
        expect(other.locator("#content")).to_be_visible()
    assert shop.token not in (shop.folder / "run.log").read_text() + shop.demo.err + "".join(shop.demo.lines)


def test_a_token_that_is_sent_twice_is_one_who_watches(browser: Browser, shop: Shop) -> None:
    with browser.new_context() as elsewhere:
        page = elsewhere.new_page()
        page.goto(shop.address)
        expect(page.locator("#door")).to_be_visible()
        page.fill("#door-token", shop.token)
        page.evaluate(
            "performance.clearResourceTimings();"
            " for (const _ of [1, 2]) document.getElementById('door-form').requestSubmit()"
        )
        expect(page.locator("#content")).to_be_visible()
        asked = (
            "performance.getEntriesByType('resource')"
            ".filter(one => one.name.endsWith('/status')).map(one => one.startTime)"
        )
        times = wait_until(lambda: len(found := page.evaluate(asked)) > 4 and found, 20, "the page to ask again")
        assert min(after - before for before, after in pairwise(times)) > 500, times


def test_at_the_door_a_key_is_nothing_but_a_letter(browser: Browser, shop: Shop) -> None:
    """Of a token that is typed beside the field, too."""
    with browser.new_context() as elsewhere:
        page = elsewhere.new_page()
        page.goto(shop.address)
        expect(page.locator("#door")).to_be_visible()
        page.evaluate("document.activeElement.blur()")
        page.keyboard.type("kK/tT?")
        assert not page.locator("#show-keys").is_checked()
        expect(page.locator("#theme-word")).to_have_text("system")
        expect(page.locator("#keys")).to_be_hidden()


def test_the_flow_shows_the_shop_at_work(page: Page, shop: Shop) -> None:
    expect(page.locator("#state")).to_have_text("live", timeout=20_000)
    expect(page).to_have_title("live · Penstock")
    for place in ("written", "confirmed", "applied"):
        expect(page.locator(f"#lsn-{place}")).to_have_text(re.compile(r"^[0-9A-F]+/[0-9A-F]+$"))
    before = page.locator("#lsn-applied").inner_text()
    expect(page.locator("#lsn-applied")).not_to_have_text(before)
    expect(page.locator("#pipe-changes")).to_have_text(re.compile(r"[1-9].* changes/s"))
    expect(page.locator(".pipe.runs")).to_have_count(3)
    expect(page.locator("#tile-latency")).to_have_text(re.compile(r"^[0-9.]+ m?s$"))
    assert page.locator("#chart-latency .bar").count() > 0
    expect(page.locator("#chart-lag-bytes .stroke")).to_have_count(1)
    assert re.search(r"build \d+ %", page.locator("#stages").get_attribute("aria-label") or "")
    told = shop.status()["indexes"]
    rows = page.locator("#indexes tbody tr")
    assert rows.count() == len(told) == 3
    for at, (name, one) in enumerate(told.items()):
        cells = rows.nth(at).locator("th, td").all_inner_texts()
        assert (cells[0], cells[1], cells[2]) == (name, "live", "complete")
        assert 0 < int(cells[4].replace(",", "")) <= one["written"] + 10_000


def test_keys_are_shown_to_who_asks_and_lead_to_the_document(page: Page) -> None:
    changes = page.locator("#changes")
    expect(changes.locator("li").first).to_be_visible()
    assert "id=" not in changes.inner_text()
    assert changes.locator("button").count() == 0
    page.keyboard.press("k")
    expect(changes).to_contain_text("id=")
    # At once: the list moves on with the shop.
    id = changes.locator("button").first.evaluate("link => { const id = link.innerText; link.click(); return id; }")
    expect(page.locator("#search-said")).to_contain_text(f"with the id {id}")
    expect(page.locator("#hits pre")).to_contain_text(re.compile(r'"\w+": |no such document'))
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("k")
    expect(changes).not_to_contain_text("id=")


def test_search_finds_what_the_command_finds(page: Page, shop: Shop) -> None:
    page.keyboard.press("/")
    page.select_option("#search-index", "products")
    page.keyboard.type("kettle")
    expect(page.locator("#hits mark").first).to_have_text(re.compile("kettle", re.IGNORECASE))
    found = {hit.inner_text() for hit in page.locator("#hits button").all()}
    told = run_penstock("search", "products", "kettle", "--limit", "60", "--json", "--config", str(shop.folder))
    assert found & {hit["id"] for hit in json.loads(told.stdout)}
    said = page.locator("#search-said")
    expect(said).to_have_text(re.compile(r"^(\d+ found|The best 20)\. The index has [\d,]+ documents\.$"))
    page.fill("#search-query", "s*")
    expect(said).to_have_text(re.compile(r"^The best 20\. The index has [\d,]+ documents\.$"))
    expect(page.locator("#hits > li")).to_have_count(20)
    page.fill("#search-query", '"kettle" xyzzy')
    expect(page.locator("#search-said")).to_have_text(re.compile(r"^None fits\. The index has [\d,]+ documents\.$"))
    page.fill("#search-query", 'a "phrase')
    expect(page.locator("#search-said")).to_contain_text("quotation mark")
    page.fill("#search-query", "<img src=x onerror=alert(1)>")
    expect(page.locator("#hits li")).to_have_count(0)


NONE_OF_THE_SHOP = 10**9
REASON = "<b>a mapping</b> that does not fit"


def put_aside(shop: Shop, ids: range) -> None:
    """Into quarantine; the shop has none of them, and so heals none by itself."""
    with closing(sqlite3.connect(shop.folder / ".penstock" / "state.sqlite", timeout=20)) as state, state:
        insert = "INSERT INTO quarantine (name, sink, id, version, reason) VALUES ('users', 'search', ?, '0/1', ?)"
        state.executemany(insert, [(str(NONE_OF_THE_SHOP + id), REASON) for id in ids])


def test_a_document_in_quarantine_is_replayed(page: Page, shop: Shop) -> None:
    """One by itself, then all of more than the page shows."""
    put_aside(shop, range(1, 2))
    expect(page.locator("#quarantine tbody tr")).to_have_count(1)
    expect(page.locator("#quarantine tbody")).to_contain_text(REASON)
    page.locator("#quarantine").get_by_role("button", name="Replay").click()
    expect(page.locator("#quarantine-said")).to_contain_text("1 taken, 0 rejected")
    expect(page.locator("#quarantine tbody tr")).to_have_count(0)
    put_aside(shop, range(1, 121))
    assert shop.status()["quarantined"] == 120
    expect(page.locator("#quarantine-said")).to_contain_text("The oldest 100 of 120 are shown")
    expect(page.locator("#quarantine tbody tr")).to_have_count(100)
    page.locator("#replay-all").click()
    done = "Replayed: 120 taken, 0 rejected again."
    expect(page.locator("#quarantine-said")).to_have_text(done, timeout=30_000)
    assert shop.status()["quarantined"] == 0


def test_who_replays_by_keyboard_stays_where_they_were(page: Page, shop: Shop) -> None:
    """The table goes on being read; a row that goes hands the focus to the next one."""
    put_aside(shop, range(201, 204))
    rows = page.locator("#quarantine tbody tr")
    expect(rows).to_have_count(3)
    second = rows.nth(1).get_by_role("button", name="Replay")
    second.focus()
    put_aside(shop, range(204, 205))
    expect(rows).to_have_count(4)
    expect(second).to_be_focused()
    page.keyboard.press("Enter")
    expect(rows).to_have_count(3)
    expect(rows.nth(1).get_by_role("button", name="Replay")).to_be_focused()
    expect(rows.nth(1).locator(".id")).to_have_text(str(NONE_OF_THE_SHOP + 203))
    page.locator("#replay-all").focus()
    page.keyboard.press("Enter")
    expect(rows).to_have_count(0)
    expect(page.locator("#quarantine-title")).to_be_focused()
    expect(page.locator("#quarantine-said")).to_have_text("Empty: no document waits here that a sink rejected.")


def test_an_index_is_built_anew_while_it_is_read(page: Page, shop: Shop) -> None:
    row = page.locator("#indexes tbody tr", has_text="products")
    page.once("dialog", lambda dialog: dialog.dismiss())
    row.get_by_role("button", name="Reindex").click()
    assert shop.status()["indexes"]["products"]["rebuild"] == "", "a no is a no"
    before = generation(shop, "products")
    page.once("dialog", lambda dialog: dialog.accept())
    row.get_by_role("button", name="Reindex").click()
    wait_until(lambda: generation(shop, "products") != before, PATIENCE_S, "readers to see another generation")
    expect(row.locator(".chip")).to_have_text("live", timeout=40_000)


def generation(shop: Shop, index: str) -> int:
    """Which generation readers see in the local sink."""
    with closing(sqlite3.connect(shop.folder / "search.db", timeout=20)) as sink:
        ((number,),) = sink.execute("SELECT number FROM generation WHERE name = ? AND shown", [index]).fetchall()
    return int(number)


def test_an_index_that_is_built_anew_says_so_and_is_not_asked_twice(context: BrowserContext, shop: Shop) -> None:
    """The demo's own are over in a moment: here the answer says that one of them is under way."""

    def rebuilding(told: dict[str, Any]) -> None:
        told["indexes"]["products"] |= {"phase": "live", "rebuild": "under way"}

    with status_of(context, shop, rebuilding) as page:
        row = page.locator("#indexes tbody tr", has_text="products")
        expect(row.locator(".chip")).to_have_text("reindexing")
        expect(row.get_by_role("button", name="Reindex")).to_be_disabled()


def test_a_backfill_shows_how_far_it_is_and_how_long_it_takes(context: BrowserContext, shop: Shop) -> None:
    """The demo's own are too short to be looked at: here the answer says that one of them is a quarter through."""

    def seeding(told: dict[str, Any]) -> None:
        told["indexes"]["users"] |= {"phase": "seeding", "chunks": 40, "chunks_done": 10, "eta_s": 95.0}

    with status_of(context, shop, seeding) as page:
        row = page.locator("#indexes tbody tr", has_text="users")
        expect(row.locator(".chip")).to_have_text("seeding")
        expect(row.locator(".fill")).to_have_text(re.compile(r"^25 %, 1\.6 min to go$"))
        assert row.locator("progress").evaluate("bar => bar.value / bar.max") == 0.25


def test_what_goes_back_is_no_speed(context: BrowserContext, shop: Shop) -> None:
    def falling(told: dict[str, Any]) -> None:
        told["rates"] = {"changes_per_s": 4.0, "documents_per_s": -999_541.0, "wal_bytes_per_s": None}

    with status_of(context, shop, falling) as page:
        expect(page.locator(".pipe.runs")).to_have_count(1)
        paces = page.locator(".pipe").evaluate_all("all => all.map(one => one.style.getPropertyValue('--pace'))")
        assert paces == ["3.00s", "1.50s", "3.00s"]


def test_without_a_local_sink_there_is_no_search_and_an_id_leads_nowhere(context: BrowserContext, shop: Shop) -> None:
    def elsewhere(told: dict[str, Any]) -> None:
        told["sinks"] = [{"name": "search", "type": "opensearch"}]

    with status_of(context, shop, elsewhere) as page:
        expect(page.locator("#changes li").first).to_be_visible()
        expect(page.locator("#searching")).to_be_hidden()
        page.keyboard.press("k")
        expect(page.locator("#changes .touched .keys span").first).to_be_visible()
        assert page.locator("#changes button").count() == 0


def test_a_finger_on_the_last_changes_does_not_hold_them(browser: Browser, shop: Shop) -> None:
    with browser.new_context(has_touch=True, is_mobile=True, viewport={"width": 390, "height": 844}) as phone:
        page = phone.new_page()
        page.goto(shop.new_link())
        first = page.locator("#changes li").first
        expect(first).to_be_visible()
        page.locator("#changes-title").scroll_into_view_if_needed()
        page.locator("#changes li .when").first.tap()
        before = first.inner_text()
        expect(first).not_to_have_text(before, use_inner_text=True)


def test_what_was_read_of_a_chart_leaves_it_with_the_point(page: Page) -> None:
    """The crosshair of a chart that has the focus went on, out of the card."""
    left = page.evaluate("""async () => {
        const { LineChart } = await import("/charts.js");
        const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
        const how = { pick: (one) => one.lag_s, words: String, least: 1, top: (value) => value };
        const chart = new LineChart(svg, "Behind", how), points = [100, 250].map((at) => ({ at, lag_s: 1 }));
        chart.update(points, 260);
        [chart.at] = points;
        const drawn = (now) => { chart.update(points, now); return svg.querySelectorAll(".cross").length; };
        return [drawn(390), drawn(410)];
    }""")
    assert left == [1, 0]


@contextmanager
def status_of(context: BrowserContext, shop: Shop, change: Callable[[dict[str, Any]], None]) -> Iterator[Page]:
    """The page, told a status that was changed on its way."""

    def answer(route: Route) -> None:
        told = route.fetch().json()
        change(told)
        route.fulfill(json=told)

    with closing(context.new_page()) as page:
        page.route("**/status", answer)
        page.goto(shop.address)
        yield page
        page.unroute_all(behavior="wait")


def ground(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_it_is_light_or_dark_fits_a_phone_and_is_used_by_keyboard(page: Page, shop: Shop) -> None:
    light = ground(page)
    page.emulate_media(color_scheme="dark")
    dark = ground(page)
    assert dark != light, "as the system has it"
    page.keyboard.press("t")
    assert ground(page) == light, "and as was chosen, which stays"
    page.reload()
    expect(page.locator("#content")).to_be_visible()
    assert ground(page) == light
    page.keyboard.press("t")
    page.emulate_media(color_scheme="light")
    assert ground(page) == dark
    page.keyboard.press("t")
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator("#indexes tbody tr")).to_have_count(3)
    assert page.evaluate("document.documentElement.scrollWidth") == 390, "nothing sticks out"
    for cell in page.locator("#indexes tbody tr").first.locator("th, td").all():
        box = cell.bounding_box()
        assert box and 0 <= box["x"] < box["x"] + box["width"] <= 390, "each cell is seen without scrolling sideways"
    put_aside(shop, range(301, 302))
    expect(page.locator("#quarantine tbody tr")).to_have_count(1)
    for cell in page.locator("#quarantine td").all():
        box = cell.bounding_box()
        assert box and 0 <= box["x"] < box["x"] + box["width"] <= 390, "what was rejected, too, and its button"
    page.locator("#quarantine").get_by_role("button", name="Replay").click()
    expect(page.locator("#quarantine tbody tr")).to_have_count(0)
    page.get_by_role("button", name="Reindex").first.scroll_into_view_if_needed()
    expect(page.get_by_role("button", name="Reindex").first).to_be_in_viewport(ratio=1)
    page.set_viewport_size({"width": 1280, "height": 900})
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    page.focus("#chart-lag-s")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#chart-lag-s")).to_have_attribute("aria-label", re.compile(r"\d\d:\d\d:\d\d"))
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Tab")
    reached = set()
    for _ in range(30):
        reached.add(page.evaluate("document.activeElement.id"))
        page.keyboard.press("Tab")
    assert {"theme", "chart-lag-s", "show-keys", "search-index", "search-query"} <= reached


def test_texts_and_fields_stand_out_in_light_and_dark(context: BrowserContext, shop: Shop) -> None:
    """With everything on the page that has a colour of its own: states, a banner, changes, what was found."""
    contrast = Path(__file__).with_name("contrast.js").read_text()

    def colourful(told: dict[str, Any]) -> None:
        told["indexes"]["users"] |= {"phase": "seeding", "chunks": 40, "chunks_done": 10, "eta_s": 95.0}
        told["indexes"]["orders"] |= {"phase": "stopped", "reason": "it does not fit"}
        told["trouble"] = "a sink does not answer"

    with status_of(context, shop, colourful) as page:
        expect(page.locator("#changes li").first).to_be_visible()
        page.select_option("#search-index", "products")
        page.fill("#search-query", "kettle")
        expect(page.locator("#hits mark").first).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("k")
        expect(page.locator("#changes .keys").first).to_be_visible()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
            for state in ("good", "busy", "warn", "bad"):
                page.evaluate(f"document.getElementById('state').className = 'pill {state}'")
                assert page.evaluate(contrast) == [], (scheme, state)
            page.fill("#search-query", "")
            assert page.evaluate(contrast) == [], scheme
        page.evaluate("document.getElementById('content').classList.add('stale')")
        assert page.evaluate(contrast) == [], "what is no longer told can still be read"


def test_keys_can_be_turned_off_and_stay_so(page: Page) -> None:
    """Who dictates, or hits a key by accident, is not thrown about (WCAG 2.1.4)."""
    page.keyboard.press("?")
    page.get_by_label("Single keys act").uncheck()
    page.keyboard.press("Escape")
    page.reload()
    expect(page.locator("#content")).to_be_visible()
    page.keyboard.type("k/t?")
    assert not page.locator("#show-keys").is_checked()
    expect(page.locator("#keys")).to_be_hidden()
    page.locator("#keys-help").click()
    page.get_by_label("Single keys act").check()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")


def test_an_lsn_is_explained(page: Page) -> None:
    for place in ("written", "confirmed", "applied"):
        title = page.locator(f"p:has(> #lsn-{place})").get_attribute("title") or ""
        assert "LSN" in title and "write-ahead log" in title, place
    page.locator("#keys-help").click()
    expect(page.locator("#keys")).to_contain_text("write-ahead log")
    page.keyboard.press("Escape")


NASTY: tuple[Any, ...] = (5, None, True, "nan", "-1e999", "x" * 9000, "'; --", [], ["b"], [["b"]], {"a": {}})


def test_whatever_is_sent_to_it_is_answered_in_a_sentence(shop: Shop) -> None:
    """No answer is an error that was not foreseen (500), with something odd in each place of each question."""
    headers = {"Authorization": f"Bearer {shop.token}", "Content-Type": "application/json"}
    unforeseen = {}
    with closing(HTTPConnection(urlsplit(shop.address).netloc, timeout=30)) as connection:

        def send(method: str, path: str, body: Any = None) -> None:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status not in (200, 400, 409):
                unforeseen[method, path[:80], str(body)[:80]] = said

        for name, part, value in product(READ, PLACES, NASTY):
            send("GET", f"/{name}?{urlencode({'index': 'users', part: str(value)})}")
        for name, part, value in product(ACT, PLACES, NASTY):
            # Nothing that is there is built anew or dropped by this.
            index = "products" if name == "quarantine" else value
            send("POST", f"/{name}", {"action": "replay", "index": index, "ids": ["none"], part: value})
    assert not unforeseen


def test_it_asks_nobody_else_and_breaks_none_of_its_own_rules(visit: Visit, shop: Shop) -> None:
    """Whatever the content security policy forbids would be complained of here."""
    assert visit.requests
    assert [url for url in visit.requests if not url.startswith((shop.address, "data:"))] == []
    assert not [url for url in visit.requests if shop.token in url or shop.link.partition("#")[2] in url]
    # A query that cannot be read was refused, as it should be, and browsers note that down.
    assert [one for one in visit.complaints if "status of 400" not in one] == []


def take_pictures(page: Page) -> None:
    pass_time(100)
    page.fill("#search-query", "oak")
    expect(page.locator("#hits li").first).to_be_visible()
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    for name, scheme, width in (("light", "light", 1280), ("dark", "dark", 1280), ("phone", "light", 390)):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.set_viewport_size({"width": width, "height": 844})
        pass_time(2)
        Path(PICTURES, f"page-{name}.png").write_bytes(page.screenshot(full_page=True))


if PICTURES:

    def test_pictures_are_taken(page: Page) -> None:
        take_pictures(page)
