"""How the demo looks: a live view in a terminal, a line every two seconds elsewhere.

Guarantees: rendering only reads `Figures`; no value of a row is shown.
"""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.demo.figures import Figures
from penstock.demo.sample import INDEXES
from penstock.demo.trade import TABLES, Deed
from penstock.demo.workload import by_deed

COLOURS = {
    Deed.INSERT: "green", Deed.UPDATE: "yellow", Deed.MOVE: "cyan", Deed.DELETE: "red", Deed.TRUNCATE: "magenta",
}  # fmt: skip


class View(Protocol):
    """Shows figures now and then."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def say(self, what: str) -> None:
        """What happens from now on, in a sentence."""

    def show(self, figures: Figures) -> None:
        """Show them, unless some were shown a moment ago."""


def choose_view(console: Console, folder: Path, quiet: bool) -> View:
    """The live view where somebody looks at a terminal. `folder` is where the deployment lies."""
    if quiet:
        return _Nothing()
    return _Live(console, folder) if console.is_terminal else _Lines(console, folder)


def to_try(folder: Path) -> list[str]:
    """Commands for another terminal."""
    program = sys.argv[0] if Path(sys.argv[0]).name == "penstock" else "penstock"
    at = shlex.join(["--config", str(folder)])
    searches = ("products 'oak lamp'", "users 'ada love*'", "orders 'items.product.name:kettle'")
    run = shlex.quote(program)
    return [*(f"{run} search {words} {at}" for words in searches), f"{run} status {at}"]


class _Nothing:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def say(self, what: str) -> None:
        """Nothing to do."""

    def show(self, figures: Figures) -> None:
        """Nothing to do."""


class _Lines(_Nothing):
    """A line every two seconds."""

    _EVERY_S = 2.0

    def __init__(self, console: Console, folder: Path) -> None:
        self._console = console
        self._try = to_try(folder)
        self._page = ""
        self._due = 0.0

    def say(self, what: str) -> None:
        """Write it."""
        self._line(what)

    def show(self, figures: Figures) -> None:
        """Write a line when its time has come."""
        if self._try and figures.is_live:
            self._line("Try it from another terminal:")
            for line in self._try:
                self._line(f"  {line}")
            self._try = []
        if figures.page != self._page and figures.is_live:
            told = "That link was used; another one" if self._page else "Watch it in a browser (the link works once)"
            self._page = figures.page
            self._line(f"{told}: {figures.page}")
        if figures.indexes and time.monotonic() >= self._due:
            self._due = time.monotonic() + self._EVERY_S
            indexes = [_index(name, one) for name, one in figures.indexes.items()]
            trouble = [f"trouble: {figures.trouble.splitlines()[0]}"] if figures.trouble else []
            self._line("; ".join([*indexes, _rates(figures), *trouble]))

    def _line(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


def _index(name: str, one: dict[str, object]) -> str:
    return f"{name} {one['phase']}: {one['seeded']} seeded, {one['written']} written, {one['deleted']} deleted"


class _Live:
    """A view that repaints itself in place."""

    def __init__(self, console: Console, folder: Path) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._try = to_try(folder)
        self._said = ""

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def say(self, what: str) -> None:
        """The headline from now on."""
        self._said = what
        self._live.update(Text(what, style="bold"), refresh=True)

    def show(self, figures: Figures) -> None:
        """Repaint."""
        parts: list[RenderableType] = [
            Text(self._said, style="bold"),
            _indexes(figures),
            Text(_rates(figures)),
            _deeds(figures),
        ]
        if figures.trouble:
            parts.append(Text(f"Trouble: {figures.trouble.splitlines()[0]}", style="red"))
        if figures.page:
            parts.append(Text(f"Watch it in a browser (the link works once):\n  {figures.page}", style="bold"))
        if figures.is_live:
            parts.append(Text("\n".join(["Try it from another terminal:", *(f"  {line}" for line in self._try)])))
        self._live.update(Group(*parts), refresh=True)


def _indexes(figures: Figures) -> Table:
    """How far each index is."""
    table = Table("index", "phase", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("seeded", "written", "deleted"):
        table.add_column(name, justify="right")
    for name in INDEXES:
        one = figures.indexes.get(name, {"phase": "starting", "seeded": 0, "written": 0, "deleted": 0})
        table.add_row(name, one["phase"], *(f"{one[column]:,}" for column in ("seeded", "written", "deleted")))
    return table


def _deeds(figures: Figures) -> Table:
    """What the workload did, by table."""
    table = Table("rows of", box=SIMPLE_HEAD, pad_edge=False)
    for deed in Deed:
        table.add_column(f"{deed}s", justify="right", header_style=COLOURS[deed])
    for name in TABLES:
        table.add_row(name, *(f"{figures.deeds[name, deed]:,}" for deed in Deed))
    table.add_row("all", *(f"{count:,}" for count in by_deed(figures.deeds).values()), style="bold")
    return table


def _rates(figures: Figures) -> str:
    latency = "–" if figures.latency_ms_p50 is None else f"{figures.latency_ms_p50:.0f} ms"
    lag = "–" if figures.lag_bytes is None else f"{figures.lag_bytes:,} bytes"
    return f"{figures.per_second:,.0f} changes/s, commit to searchable {latency} (median), lag {lag}"
