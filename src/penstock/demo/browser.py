"""Opening the demo's page, where a person sits at the machine with a screen.

Guarantees: nothing happens where it is not wanted, over ssh, or without a display.
"""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Callable, Mapping


def has_screen(environment: Mapping[str, str], platform: str) -> bool:
    """Whether a browser would open where somebody sees it."""
    if environment.get("SSH_CONNECTION") or environment.get("CI"):
        return False
    return platform == "darwin" or bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def show_page(link: Callable[[], str], wanted: bool) -> None:
    """Open the page in the user's browser; `link` makes a link that works once, or is empty."""
    if wanted and has_screen(os.environ, sys.platform) and (page := link()):
        webbrowser.open(page)
