"""Everything that can be wrong around a deployment, looked at once, each with its fix.

Server, role, slot, retained WAL, schemas and identities, this machine's Java, Spark, disk and clock, the sinks, the
state. Guarantees: changes nothing, makes nothing, reads no row; what keeps one thing from being looked at is a finding,
and the others are looked at all the same; no secret in any finding. Deliberately not: mending.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.app import source_rules
from penstock.app.diagnosis import Finding, Verdict, judge_clock, judge_memory, judge_room, judge_slot
from penstock.app.parts import open_sink
from penstock.app.rejoin import refusal
from penstock.config.connection import connection_settings
from penstock.document.check import Diagnostic
from penstock.document.check_live import check_live
from penstock.engine.lineage import Lineage
from penstock.engine.marks import Marks
from penstock.engine.state import State
from penstock.errors import OperatorError, PenstockError
from penstock.ops.control import ask
from penstock.postgres import slot
from penstock.postgres.connection import open_sql
from penstock.postgres.vitals import read_vitals

if TYPE_CHECKING:
    from penstock.config.deployment import Deployment

_SCARCE_BYTES, _FULL_BYTES = 2 << 30, 200 << 20

Look = Callable[["Deployment"], Iterable[Finding]]


def examine(deployment: Deployment, progress: Callable[[str], None] = lambda about: None) -> Iterator[Finding]:
    """Look at everything; `progress` hears what comes next."""
    told: set[str] = set()
    for about, look in _LOOKS.items():
        progress(about)
        try:
            yield from look(deployment)
        except PenstockError as error:
            if error.message in told:  # one cause, one error
                yield Finding(about, Verdict.NOTE, "not looked at, for the reason above")
                continue
            told.add(error.message)
            yield Finding(about, Verdict.ERROR, error.message, error.hint)


def _machine(deployment: Deployment) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("machine", Verdict.GOOD, f"Python {version} on {sys.platform}, {os.cpu_count()} cores")


def _java(deployment: Deployment) -> Iterator[Finding]:
    from penstock.spark.java import find_java

    yield Finding("java", Verdict.GOOD, str(find_java()))


def _spark(deployment: Deployment) -> Iterator[Finding]:
    from penstock.spark.requirement import require_pyspark

    yield Finding("spark", Verdict.GOOD, f"PySpark {require_pyspark()}")


def _disk(deployment: Deployment) -> Iterator[Finding]:
    state = Path(deployment.locate(deployment.state))
    for what, folder in (("state", state), ("temporary", Path(tempfile.gettempdir()))):
        there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
        if not os.access(there, os.W_OK | os.X_OK):
            yield Finding(
                "disk", Verdict.ERROR, f"the {what} folder {folder} cannot be written", "Change its owner or its mode."
            )
            continue
        free = shutil.disk_usage(there).free
        verdict = Verdict.ERROR if free < _FULL_BYTES else Verdict.WARNING if free < _SCARCE_BYTES else Verdict.GOOD
        fix = "" if verdict is Verdict.GOOD else "Make room: changes that wait, and Spark's own files, are kept there."
        yield Finding("disk", verdict, f"{free / 2**30:.1f} GiB free for the {what} folder {folder}", fix)


def _server(deployment: Deployment) -> Iterator[Finding]:
    settings = connection_settings(deployment)
    with open_sql(settings) as connection:
        vitals = read_vitals(connection)
        found = slot.inspect(connection, deployment.source.slot)
    here_s = time.time()
    refused = refusal(deployment, settings, found) if found and not found.lost else None
    yield Finding("server", Verdict.GOOD, f"Postgres {vitals.version}, database {settings.database}")
    yield from judge_room(vitals, found)
    yield from judge_slot(vitals, found, deployment, refused)
    yield from judge_clock(vitals.clock_s - here_s)


def _schemas(deployment: Deployment) -> Iterator[Finding]:
    schemas = [index.schema for index in deployment.enabled]
    report = check_live(connection_settings(deployment), schemas, source_rules(deployment.source))
    for one in report.diagnostics:
        yield Finding(_about(one), Verdict(one.severity.value), _said(one), one.hint, one.sql)
    if not report.diagnostics:
        fits = "1 schema fits" if len(schemas) == 1 else f"{len(schemas)} schemas fit"
        yield Finding("schemas", Verdict.GOOD, f"{fits} the database")


_ABOUT = {
    "role": ("no-usage", "no-select", "row-security", "replication"),
    "server": ("standby", "wal-level"),
    "slot": ("slot", "no-slot"),
    "identity": ("untraceable",),
    "publication": ("publication", "not-published"),
}


def _about(one: Diagnostic) -> str:
    return next((about for about, codes in _ABOUT.items() if one.code in codes), "schemas")


def _said(one: Diagnostic) -> str:
    return f"{one.place}: {one.message}" if one.place.line else one.message


def _sinks(deployment: Deployment) -> Iterator[Finding]:
    for config in deployment.sinks:
        about = f"sink {config.name}"
        try:
            with closing(open_sink(config, deployment)) as sink:
                held = {index.name: sink.holdings(f"{deployment.prefix}{index.name}") for index in deployment.enabled}
        except PenstockError as error:
            yield Finding(about, Verdict.ERROR, error.message, error.hint)
            continue
        lacking = [index for index, what in held.items() if not what]
        yield Finding(about, Verdict.GOOD, f"it answers, and holds {len(held) - len(lacking)} of {len(held)} indexes")


def _state(deployment: Deployment) -> Iterator[Finding]:
    folder = Path(deployment.locate(deployment.state))
    if not (folder / "state.sqlite").exists():
        yield Finding("state", Verdict.NOTE, f"there is no state in {folder} yet", "The first penstock run makes it.")
        return
    with closing(State(folder, only_read=True)) as state:
        stopped, aside = state.stopped(), state.count_quarantined()
        yield from judge_memory(Marks(state).marked(), Lineage(state).away())
    for index, reason in stopped.items():
        yield Finding(
            "state",
            Verdict.ERROR,
            f"index {index} is stopped: {reason}",
            "Change the schema, or the table back, and start again: it is then seeded anew.",
        )
    if aside:
        yield Finding(
            "state",
            Verdict.WARNING,
            f"{aside} documents are in quarantine",
            "Mend the rows or the schema, then penstock quarantine replay; a later write of the document clears it.",
        )
    try:
        trouble = ask(folder, "status")["trouble"]
    except OperatorError:
        yield Finding(
            "state", Verdict.NOTE, f"no penstock run uses the state folder {folder}", "Start it: penstock run."
        )
        return
    if trouble:
        yield Finding(
            "state",
            Verdict.WARNING,
            f"the run is in trouble: {trouble.splitlines()[0]}",
            "It tries again by itself; penstock status shows how it goes.",
        )
    else:
        yield Finding("state", Verdict.GOOD, f"a run is at work with the state in {folder}")


_LOOKS: dict[str, Look] = {
    "machine": _machine,
    "java": _java,
    "spark": _spark,
    "disk": _disk,
    "server": _server,
    "schemas": _schemas,
    "sinks": _sinks,
    "state": _state,
}
