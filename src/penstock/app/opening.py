"""The sinks of a deployment at its start, also where one of them is down: waited for, or left behind by its setting.

Guarantees: as at any later time, the slot holds for a sink that does not answer until `max_retained_wal` is passed, and
for a minute at least; `on_down` decides then. What was left behind is noted down before anything is written without it.
Each try is told. Deliberately not: waiting for what somebody has to mend, which is raised at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from penstock.app.parts import open_parts
from penstock.engine.policy import Backoff
from penstock.engine.retention import Retention
from penstock.errors import RetryableError, UnavailableError

if TYPE_CHECKING:
    from penstock.app.origins import Origins
    from penstock.config.deployment import Deployment
    from penstock.document.build import PgDocumentBuilder
    from penstock.engine.batch import Parts
    from penstock.engine.lineage import Lineage

log = logging.getLogger(__name__)

# Between two tries, at most.
_MOST_S = 15.0

Pause = Callable[[float, str], None]
"""Wait for so many seconds, and say why."""


def open_present(
    deployment: Deployment,
    origins: Origins,
    builder: PgDocumentBuilder,
    lineage: Lineage,
    retained: Callable[[], int | None],
    pause: Pause | None,
) -> Parts:
    """The parts with every sink that is not away. Without a `pause`, one that does not answer is an error at once."""
    backoff, retention = Backoff(most_s=_MOST_S), Retention(deployment.source.max_retained_wal)
    on_down = {sink.name: sink.on_down.value for sink in deployment.sinks}
    while True:
        away = lineage.away()
        try:
            present = [sink.name for sink in deployment.sinks if sink.name not in away]
            return open_parts(deployment, origins, present, builder)
        except UnavailableError as error:
            if pause is None or not error.sink:
                raise
            lasting, held = retention.lasting({error.sink}, monotonic()), _asked(retained)
            leaving = retention.leaving(lasting, on_down, held) if retention.is_exceeded(held) else []
            if leaving:
                lineage.detach(leaving)
                log.error("sink %s is left behind: %s. It is seeded when it answers again.", error.sink, error.message)
                continue
            wait_s = backoff.next_s()
            log.warning("sink %s cannot be opened; tried again in %.1f s: %s", error.sink, wait_s, error.message)
            pause(wait_s, f"sink {error.sink} does not answer")


def _asked(retained: Callable[[], int | None]) -> int:
    """What the slot holds back; nothing that is known of, where the server does not answer either."""
    try:
        return retained() or 0
    except RetryableError as error:
        log.debug("what the slot holds back is not known: %s", error)
        return 0
