"""A deployment where nothing runs, to be looked at as its last run left it: for commands that only read.

Guarantees: nothing is published, set, made or noted down; no run can begin meanwhile. Indexes are held against the
database by the schemas that they were built by, whatever the files say by now. Of each, the sinks take part that show
it to readers, complete. Deliberately not: mending (`running.prepare`).
"""

from __future__ import annotations

import dataclasses
import logging
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.app.beginning import Beginning
from penstock.app.generations import bound_to, schema_of
from penstock.app.origins import Origins
from penstock.app.parts import open_builder, open_sink, target
from penstock.app.prepared import Prepared
from penstock.app.rejoin import require_slot
from penstock.config.connection import connection_settings
from penstock.contracts import ReadableSink, Sink
from penstock.document.spec import SourceSpec
from penstock.engine.batch import Parts
from penstock.engine.lineage import Lineage, Made, Role
from penstock.engine.state import State
from penstock.errors import ConfigError, RetryableError
from penstock.postgres import replication
from penstock.postgres.claim import Claim

if TYPE_CHECKING:
    from penstock.config.deployment import Deployment
    from penstock.config.deployment import Sink as SinkConfig
    from penstock.postgres.connection import ConnectionSettings

log = logging.getLogger(__name__)


def looked_at(deployment: Deployment) -> Prepared:
    """The deployment as it stands. An error where the slot does not serve it any more, or something begins to run."""
    folder, settings = Path(deployment.locate(deployment.state)), connection_settings(deployment)
    with ExitStack() as held:
        state = held.enter_context(closing(State(folder, only_read=True)))
        if not state.acquire():
            raise RetryableError(f"a penstock is starting or ending with the state in {folder}", hint="Try again.")
        require_slot(deployment, settings, state, repair=False)
        lineage = Lineage(state)
        made = {name: one for name, one in lineage.made(Role.CURRENT).items() if deployment.index(name)}
        deployment, bound = _as_built(deployment, settings, made)
        with replication.connect(settings) as client:
            where = f"{client.system.system_id}/{settings.database}/{deployment.source.slot}"
        origins = Origins(
            {schema.index: f"{where}/{made[schema.index].epoch}" for schema in bound.schemas},
            lineage.marks(),
            {index: one.hashes for index, one in made.items()},
        )
        builder = held.enter_context(closing(open_builder(deployment, 1)))
        sinks = _showing(deployment, origins, bound, lineage.away(), held)
        held.pop_all()
    claim = Claim(settings, deployment.source.slot)  # not taken: nothing is written
    parts = Parts(builder, sinks)
    beginning = Beginning(settings, deployment.source.slot, state, builder)
    return Prepared(deployment, settings, bound, state, claim, builder, parts, origins, lineage, beginning, {})


def _as_built(
    deployment: Deployment, settings: ConnectionSettings, made: dict[str, Made]
) -> tuple[Deployment, SourceSpec]:
    """The deployment with the schemas that its indexes were built by; those that the database does not fit are left."""
    indexes, bound = [], []
    for index in deployment.enabled:
        if index.name not in made:
            continue
        schema = schema_of(made[index.name], index.name)
        try:
            bound.append(bound_to(settings, deployment, schema))
            indexes.append(dataclasses.replace(index, schema=schema))
        except ConfigError as error:
            log.warning("index %s is not looked at: %s", index.name, error.message)
    return dataclasses.replace(deployment, indexes=tuple(indexes)), SourceSpec(bound)


def _showing(
    deployment: Deployment, origins: Origins, bound: SourceSpec, away: tuple[str, ...], held: ExitStack
) -> dict[str, list[Sink]]:
    """For each index the sinks that show it, opened; logs of changes, which nobody can ask, are not."""
    found: dict[str, list[Sink]] = {schema.index: [] for schema in bound.schemas}
    for config in deployment.sinks:
        if config.name in away:
            continue
        sink = held.enter_context(closing(open_sink(config, deployment)))
        for schema in bound.schemas:
            if not isinstance(sink, ReadableSink) or _opened(sink, deployment, config, origins, bound, schema.index):
                found[schema.index].append(sink)
        if not any(sink in sinks for sinks in found.values()):
            sink.close()
    return found


def _opened(
    sink: Sink, deployment: Deployment, config: SinkConfig, origins: Origins, bound: SourceSpec, index: str
) -> bool:
    """Whether readers see it there: then there is nothing to make, and it is opened."""
    one = target(bound.schema(index), config, deployment.prefix, origins)
    if not sink.holdings(one.name) or not sink.shows(one):
        return False
    sink.open(one)
    return True
