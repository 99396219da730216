"""A message in the WAL, now and then, where the deployment asks for one (`heartbeat_s`).

The slot follows a database at rest by itself. A heartbeat is for those who look from outside: at a standby, at another
tool's slot, or at whether the whole way from the server is open. Guarantees: one short connection for each; a server
that does not answer is tried again with the next one, and never ends a run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import PenstockError
from penstock.postgres import slot
from penstock.postgres.connection import ConnectionSettings, open_sql

log = logging.getLogger(__name__)


@contextmanager
def beating(settings: ConnectionSettings, every_s: float | None) -> Iterator[None]:
    """Write one every so many seconds, the first at once, until the end of the block; none where that is None."""
    if every_s is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_beat, args=(settings, every_s, ended), name="penstock-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=10)


def _beat(settings: ConnectionSettings, every_s: float, ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            with open_sql(settings) as connection:
                slot.heartbeat(connection)
        except PenstockError as error:
            log.debug("no heartbeat was written: %s", error)
        ended.wait(every_s)
