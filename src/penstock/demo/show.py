"""How the demo looks: a live view in a terminal, a line a second elsewhere.

Guarantees: rendering only reads a `Tally`; what is shown of a row is its key.
"""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.demo.shop import KEYS
from penstock.demo.tally import Tally
from penstock.model import Op

COLOURS = {Op.INSERT: "green", Op.UPDATE: "yellow", Op.DELETE: "red", Op.TRUNCATE: "magenta"}


class View(Protocol):
    """Shows a tally now and then."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def show(self, tally: Tally, now: datetime) -> None:
        """Show it, unless it was shown a moment ago."""


def choose_view(console: Console, quiet: bool) -> View:
    """The live view where somebody looks at a terminal."""
    if quiet:
        return _Nothing()
    return _Live(console) if console.is_terminal else _Lines(console)


class _Nothing:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def show(self, tally: Tally, now: datetime) -> None:
        """Nothing to do."""


class _Lines(_Nothing):
    """A line a second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._due = 0.0

    def show(self, tally: Tally, now: datetime) -> None:
        """Write a line when a second is over."""
        if now.timestamp() < self._due:
            return
        self._due = now.timestamp() + 1
        counts = ", ".join(f"{count} {op}s" for op, count in tally.by_op().items())
        self._console.print(Text(f"{now:%H:%M:%S}  {counts}; {_rates(tally, now)}"), soft_wrap=True)


class _Live:
    """A view that repaints itself in place."""

    _EVERY_S = 0.125

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._due = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def show(self, tally: Tally, now: datetime) -> None:
        """Repaint, a few times a second at most."""
        if now.timestamp() >= self._due:
            self._due = now.timestamp() + self._EVERY_S
            head = Text("Changes of an embedded Postgres, as they are committed. Ctrl-C ends it.", style="bold")
            self._live.update(Group(head, _counts(tally), Text(_rates(tally, now)), _recent(tally)), refresh=True)


def _counts(tally: Tally) -> Table:
    """Changes by table and operation."""
    table = Table("table", box=SIMPLE_HEAD, pad_edge=False)
    for op in Op:
        table.add_column(f"{op}s", justify="right", header_style=COLOURS[op])
    for name in KEYS:
        table.add_row(str(name), *(f"{tally.counts[name, op]:,}" for op in Op))
    table.add_row("all", *(f"{count:,}" for count in tally.by_op().values()), style="bold")
    return table


def _rates(tally: Tally, now: datetime) -> str:
    latency = tally.latency_ms_p50()
    shown = "–" if latency is None else f"{latency:.1f} ms"
    lag = "–" if tally.lag_bytes is None else f"{tally.lag_bytes:,} bytes"
    return f"{tally.per_second(now):,.0f} changes/s, commit to consumer {shown} (median), lag {lag}"


def _recent(tally: Tally) -> Table:
    table = Table("committed", "operation", "table", "key", box=SIMPLE_HEAD, pad_edge=False)
    for seen in tally.recent:
        key = " ".join(f"{name}={value}" for name, value in seen.key.items())
        op = Text(seen.op, style=COLOURS[seen.op])
        table.add_row(f"{seen.committed_at:%H:%M:%S.%f}"[:-3], op, str(seen.table), _plain(key))
    return table


def _plain(value: Any) -> Text:
    return Text(str(value))
