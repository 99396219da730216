"""How far a running pipeline is, for whoever looks: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from penstock.engine.report import Report

_TERMINAL_EVERY_S, _LINE_EVERY_S = 0.5, 10.0


class Display:
    """Shows a report until it is done."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def show(self, done: threading.Event) -> None:
        """Until `done`."""
        if sys.stderr.isatty():
            self._bars(done)
        else:
            self._lines(done)

    def _lines(self, done: threading.Event) -> None:
        said = ""
        while True:
            ended = done.wait(_LINE_EVERY_S if said else 1.0)
            line = self._line()
            if line != said:
                click.echo(line, err=True)
                said = line
            if ended:
                return

    def _line(self) -> str:
        told = self._report.told()
        indexes = [_index_line(name, one) for name, one in told["indexes"].items()]
        trouble = f"; trouble: {told['trouble'].splitlines()[0]}" if told["trouble"] else ""
        return f"{'; '.join(indexes)}; {told['changes']} changes, at {told['position']}{trouble}"

    def _bars(self, done: threading.Event) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )  # fmt: skip
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            tasks: dict[str, TaskID] = {}
            while not done.wait(_TERMINAL_EVERY_S):
                self._draw(progress, tasks)

    def _draw(self, progress: Progress, tasks: dict[str, TaskID]) -> None:
        told = self._report.told()
        for name, one in told["indexes"].items():
            if name not in tasks:  # one that is stopped may be told of later than the others
                tasks[name] = progress.add_task(name, total=None, note="")
            note = f"{one['phase']}: {one['seeded']} seeded, {one['written']} written, {one['deleted']} deleted"
            total = one["chunks"] or 1  # none in this run, where it was complete before
            done = total if one["phase"] == "live" else one["chunks_done"]
            progress.update(tasks[name], total=total, completed=done, note=note)


def _index_line(name: str, one: dict[str, object]) -> str:
    if one["phase"] == "stopped":
        return f"{name} stopped: {one['reason']}"
    if one["phase"] == "seeding":
        return f"{name} seeding {one['chunks_done']}/{one['chunks']} ({one['seeded']} documents)"
    return f"{name} {one['phase']} ({one['seeded']} seeded, {one['written']} written, {one['deleted']} deleted)"
