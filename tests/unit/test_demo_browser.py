"""When the demo opens a browser: where a person would see it, and nowhere else."""

from __future__ import annotations

import pytest

from penstock.demo import browser


@pytest.mark.parametrize(
    ("environment", "platform", "seen"),
    [
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({}, "darwin", True),
        ({}, "linux", False),
        ({"DISPLAY": ":10", "SSH_CONNECTION": "1 2 3 4"}, "linux", False),
        ({"DISPLAY": ":0", "CI": "1"}, "linux", False),
    ],
)
def test_a_browser_opens_where_there_is_a_screen(environment: dict[str, str], platform: str, seen: bool) -> None:
    assert browser.has_screen(environment, platform) is seen


def test_no_link_is_used_up_where_no_browser_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(browser.webbrowser, "open", opened.append)
    monkeypatch.setattr(browser, "has_screen", lambda *_: True)
    browser.show_page(lambda: "a link", wanted=False)
    browser.show_page(lambda: "", wanted=True)
    assert opened == [], "nor where there is no link to be had"
    browser.show_page(lambda: "a link", wanted=True)
    assert opened == ["a link"]
