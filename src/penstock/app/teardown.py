"""Taking a deployment down: what it left on the server, in the sinks and on this machine, and removing all of it.

Guarantees: nothing is removed before all of it could be listed, and the right to was tried; nothing at all while a run
is active, with this state or, from another folder, with this slot. What is missing already is no failure, so a teardown
that broke off can be repeated: sinks go first, then the slot and the publication, the state last, which alone knows
that there is something to take down. Only files that Penstock makes are removed from the state folder, and the folder
itself only when nothing else is in it. Deliberately not: a slot of that name that cannot be the deployment's; a
publication that it does not manage, or that others may read; replica identities, whose former state nobody knows.
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
from penstock.document.spec import SourceSpec
from penstock.engine.state import State
from penstock.errors import DiskError, OperatorError, SlotLostError, SlotMismatchError
from penstock.model import quote
from penstock.postgres import publication, slot
from penstock.postgres.claim import Claim
from penstock.postgres.connection import open_sql

if TYPE_CHECKING:
    from penstock.config.deployment import Deployment
    from penstock.contracts import Sink
    from penstock.postgres.catalog import SqlConnection
    from penstock.postgres.connection import ConnectionSettings
    from penstock.postgres.observation import PublicationInfo
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
class Stay:
    """A slot or a publication by the deployment's name for it that stays: why, and the SQL by which it would go."""

    what: str
    name: str
    why: str
    sql: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """All that is there now; None or empty: it is not."""

    slot: SlotInfo | None
    publication: str | None
    indexes: tuple[Held, ...]
    state: Path | None
    stays: tuple[Stay, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to take down."""
        return self.slot is None and not (self.publication or self.indexes or self.state)


@contextmanager
def taking_down(deployment: Deployment) -> Iterator[tuple[Inventory, Callable[[], None]]]:
    """What there is, and the function that removes it; no run can begin meanwhile, from wherever."""
    settings = connection_settings(deployment)
    folder = Path(deployment.locate(deployment.state))
    with _alone(folder), _claimed(settings, deployment.source.slot) as claim:
        sinks = [open_sink(config, deployment) for config in deployment.sinks]
        try:
            found = _look(deployment, settings, sinks, folder)

            def remove() -> None:
                claim.require()  # somebody may have taken long to say yes
                _try(found, settings)
                _remove(found, settings, sinks)

            yield found, remove
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


@contextmanager
def _claimed(settings: ConnectionSettings, name: str) -> Iterator[Claim]:
    """The right to the slot, as long as this lasts. Who reads from one that is not ours may go on."""
    with closing(Claim(settings, name)) as claim:
        if who := claim.take():
            with open_sql(settings) as connection:
                found = slot.inspect(connection, name)
            if not _foreign(found, settings):
                raise OperatorError(
                    f"slot {name} is in use ({who})",
                    hint="Stop whoever has it. If that is another deployment, this one has to name a slot of its own.",
                )
            claim.require()
        yield claim


def _foreign(found: SlotInfo | None, settings: ConnectionSettings) -> str:
    """Why a slot cannot be the deployment's; nothing: it can be."""
    try:
        if found:
            slot.verify(found, settings.database)
    except SlotMismatchError as error:
        return error.message
    except SlotLostError:
        pass
    return ""


def _look(deployment: Deployment, settings: ConnectionSettings, sinks: list[Sink], folder: Path) -> Inventory:
    source = deployment.source
    with open_sql(settings) as connection:
        reader = slot.inspect(connection, source.slot)
        is_published, staying = _published(connection, deployment, settings)
    if reader and (why := _foreign(reader, settings)):
        staying, reader = [Stay("slot", reader.name, why), *staying], None
    names = [f"{deployment.prefix}{index.name}" for index in deployment.indexes]
    held = [Held(sink.name, name, tuple(sink.holdings(name))) for sink in sinks for name in names]
    return Inventory(
        reader,
        source.publication if is_published else None,
        tuple(one for one in held if one.what),
        folder if any(_files(folder)) else None,
        tuple(staying),
    )


def _published(
    connection: SqlConnection, deployment: Deployment, settings: ConnectionSettings
) -> tuple[bool, list[Stay]]:
    """Whether there is a publication that nobody else needs; or the one that stays."""
    source = deployment.source
    found = publication.read_publication(connection, source.publication)
    if found is None:
        return False, []
    if not source.manage_publication:
        return False, [Stay("publication", source.publication, "the deployment does not manage it")]
    why = _shared(connection, found, deployment, settings)
    if not why:
        return True, []
    return False, [Stay("publication", source.publication, why, f"DROP PUBLICATION {quote(source.publication)};")]


def _shared(
    connection: SqlConnection, found: PublicationInfo, deployment: Deployment, settings: ConnectionSettings
) -> str:
    """Why others may read a publication; nothing: there is no sign of them."""
    more = found.listed - SourceSpec([index.schema for index in deployment.indexes]).all_tables
    if more:
        return f"it carries {', '.join(map(str, sorted(more)))}, which this deployment does not read"
    if found.all_tables or found.schemas:
        return "it carries tables that this deployment does not read"
    others = [one.name for one in slot.show(connection) if one.database == settings.database]
    others = [name for name in others if name != deployment.source.slot]
    return f"slot {' and '.join(others)} may be read by way of it" if others else ""


def _try(found: Inventory, settings: ConnectionSettings) -> None:
    """See that the role may remove what is the server's, before anything is."""
    with open_sql(settings) as connection:
        if found.slot:
            slot.drop(connection, f"(a try) {found.slot.name}")  # no slot has such a name: the right is asked for first
        if found.publication:
            publication.drop(connection, found.publication, rehearse=True)


def _remove(found: Inventory, settings: ConnectionSettings, sinks: list[Sink]) -> None:
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
    if found.state:
        _remove_state(found.state)


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
