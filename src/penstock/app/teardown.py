"""Taking a deployment down: what it left on the server, in the sinks and on this machine, and removing all of it.

Guarantees: nothing is removed before all of it could be listed; nothing at all while a run is active. What is missing
already is no failure, so a teardown that broke off can be repeated: sinks go first, then the slot and the publication,
the state last, which alone knows that there is something to take down. Only files that Penstock makes are removed from
the state folder, and the folder itself only when nothing else is in it. Deliberately not: a publication that the
deployment does not manage, and replica identities, whose former state nobody knows.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.app.parts import open_sink
from penstock.config.connection import connection_settings
from penstock.engine.state import State
from penstock.errors import DiskError, OperatorError
from penstock.postgres import publication, slot
from penstock.postgres.connection import open_sql

if TYPE_CHECKING:
    from penstock.config.deployment import Deployment
    from penstock.contracts import Sink
    from penstock.postgres.connection import ConnectionSettings
    from penstock.postgres.slot import SlotInfo

# What a run makes in its state folder.
_OURS = ("checkpoint", "spark.log", "state.sqlite*", "control.*", "lock", "token")


@dataclass(frozen=True, slots=True)
class Held:
    """What one sink has of one index, under the name that readers ask for."""

    sink: str
    name: str
    what: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inventory:
    """All that is there now; None or empty: it is not."""

    slot: SlotInfo | None
    publication: str | None
    indexes: tuple[Held, ...]
    state: Path | None
    foreign_publication: str | None = None
    """The deployment reads it and did not make it: it stays."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to take down."""
        return self.slot is None and not (self.publication or self.indexes or self.state)


@contextmanager
def taking_down(deployment: Deployment) -> Iterator[tuple[Inventory, Callable[[], None]]]:
    """What there is, and the function that removes it; no run can begin meanwhile."""
    settings = connection_settings(deployment)
    folder = Path(deployment.locate(deployment.state))
    with _alone(folder):
        sinks = [open_sink(config, deployment) for config in deployment.sinks]
        try:
            found = _look(deployment, settings, sinks, folder)
            yield found, lambda: _remove(found, settings, sinks, folder)
        finally:
            for sink in sinks:
                sink.close()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else runs with this state, as long as this lasts."""
    if not (folder / "lock").exists():
        yield
        return
    with closing(State(folder)) as state:
        if not state.acquire():
            raise OperatorError(
                f"a penstock runs with the state in {folder}",
                hint="Stop it first (Ctrl-C, or SIGTERM): it writes to what would be removed.",
            )
        yield


def _look(deployment: Deployment, settings: ConnectionSettings, sinks: list[Sink], folder: Path) -> Inventory:
    source = deployment.source
    with open_sql(settings) as connection:
        reader = slot.inspect(connection, source.slot)
        is_published = source.publication in publication.names(connection)
    if reader and reader.active:
        raise OperatorError(
            f"slot {reader.name} is in use (server process {reader.active_pid})",
            hint="Stop whoever reads it. If that is another deployment, this one has to name a slot of its own.",
        )
    names = [f"{deployment.prefix}{index.name}" for index in deployment.indexes]
    held = [Held(sink.name, name, tuple(sink.holdings(name))) for sink in sinks for name in names]
    managed = source.publication if is_published else None
    return Inventory(
        reader,
        managed if source.manage_publication else None,
        tuple(one for one in held if one.what),
        folder if any(_files(folder)) else None,
        None if source.manage_publication else managed,
    )


def _remove(found: Inventory, settings: ConnectionSettings, sinks: list[Sink], folder: Path) -> None:
    by_name = {sink.name: sink for sink in sinks}
    for held in found.indexes:
        by_name[held.sink].remove(held.name)
    with open_sql(settings) as connection:
        if found.slot:
            slot.drop(connection, found.slot.name)
        if found.publication:
            publication.drop(connection, found.publication)
    for sink in sinks:
        sink.close()
    _remove_state(folder)


def _files(folder: Path) -> Iterator[Path]:
    return (path for pattern in _OURS for path in folder.glob(pattern))


def _remove_state(folder: Path) -> None:
    try:
        for path in _files(folder):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        if folder.exists() and not any(folder.iterdir()):
            folder.rmdir()
    except OSError as error:
        raise DiskError(
            f"the state in {folder} cannot be removed: {error.strerror}", hint="Check the folder and its owner."
        ) from None
