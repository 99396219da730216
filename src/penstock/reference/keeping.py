"""Keeping views current: a loop for whoever has a thread to spare, and a thread for whoever has not.

Guarantees: passing trouble is borne, with growing waits, and told in the log; what somebody has to mend ends the loop,
and stands in the view's status. A view that lies still is asked again after a pause, sooner where changes come.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from penstock.errors import PenstockError, RetryableError
from penstock.postgres import replication
from penstock.reference.view import ReferenceView

log = logging.getLogger(__name__)

_PAUSE_S = 0.1


def keep_current(
    views: Sequence[ReferenceView],
    stop: threading.Event,
    *,
    pause_s: float = _PAUSE_S,
    after_each: Callable[[ReferenceView], None] = lambda view: None,
) -> None:
    """Update the views in turn until told to stop; raises what somebody has to mend. `after_each` sees each."""
    failures = 0
    while not stop.is_set():
        count = 0
        try:
            for view in views:
                count += view.update()
                after_each(view)
        except RetryableError as error:
            wait_s = replication.backoff_s(failures)
            log.warning("a view was not updated, again in %.1f s: %s", wait_s, error)
            failures += 1
            stop.wait(wait_s)
            continue
        failures = 0
        if not count:
            stop.wait(pause_s)


@contextmanager
def kept_current(*views: ReferenceView, pause_s: float = _PAUSE_S) -> Iterator[None]:
    """Keep views current by threads, as long as the block lasts."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=_keep, args=(view, stop, pause_s), name=f"penstock-view-{view.table.name}", daemon=True)
        for view in views
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _keep(view: ReferenceView, stop: threading.Event, pause_s: float) -> None:
    try:
        keep_current([view], stop, pause_s=pause_s)
    except PenstockError as error:
        log.error("the view of %s stays as it is: %s", view.table, error)
