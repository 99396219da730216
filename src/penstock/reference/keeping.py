"""Keeping views current: a loop for whoever has a thread to spare, and a thread for whoever has not.

Guarantees: passing trouble is borne, with growing waits, and told in the log, though not with every try; it keeps no
other view from its turn, which may be what ends it. What somebody has to mend ends the loop, and stands in the view's
status; a thread waits until somebody has put the view right. A view that lies still is asked again after a pause,
sooner where changes come.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from penstock.errors import PASSING, PenstockError, RetryableError
from penstock.postgres import replication
from penstock.reference.view import ReferenceView

log = logging.getLogger(__name__)

_PAUSE_S = 0.1
_TELL_AGAIN_S = 30.0


def keep_current(
    views: Sequence[ReferenceView],
    stop: threading.Event,
    *,
    pause_s: float = _PAUSE_S,
    after_each: Callable[[ReferenceView], None] = lambda view: None,
) -> None:
    """Update the views in turn until told to stop; raises what somebody has to mend. `after_each` sees each."""
    trouble = _Trouble()
    while not stop.is_set():
        count, failed = 0, list[PenstockError]()
        for view in views:
            try:
                count += view.update()
                after_each(view)
            except PASSING as error:
                if not isinstance(error, RetryableError) and not view.version:
                    raise  # it never worked
                failed.append(error)
            if stop.is_set():
                break
        wait_s = trouble.bear(failed[0]) if failed and not stop.is_set() else pause_s
        if not failed:
            trouble.end()
        if not count:
            stop.wait(wait_s)


class _Trouble:
    """Passing trouble, told when it begins or changes, now and then while it lasts, and when it is over."""

    def __init__(self) -> None:
        self._failures = 0
        self._message = ""
        self._since = self._told = 0.0

    def bear(self, error: PenstockError) -> float:
        """It failed: how long to wait before the next try."""
        now, wait_s = time.monotonic(), replication.backoff_s(self._failures)
        if not self._failures:
            self._since = now
        self._failures += 1
        if error.message != self._message:
            self._message, self._told = error.message, now
            log.warning("no update: %s. Trying again until it works. %s", error.message, error.hint)
        elif now - self._told >= _TELL_AGAIN_S:
            self._told = now
            log.warning("no update for %.0f s, %d tries: %s", now - self._since, self._failures, error.message)
        return wait_s

    def end(self) -> None:
        """It works."""
        if self._failures:
            log.info("updating again, after %.0f s and %d tries", time.monotonic() - self._since, self._failures)
        self._failures, self._message = 0, ""


@contextmanager
def kept_current(*views: ReferenceView, pause_s: float = _PAUSE_S) -> Iterator[None]:
    """Keep views current by threads, as long as the block lasts. A snapshot that is under way then is given up."""
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
        with ExitStack() as waits:
            for view in views:
                waits.enter_context(view.interrupted())
            for thread in threads:
                thread.join()


def _keep(view: ReferenceView, stop: threading.Event, pause_s: float) -> None:
    while not stop.is_set():
        try:
            keep_current([view], stop, pause_s=pause_s)
        except PenstockError as error:
            log.error("the view of %s stays as it is until its refresh(): %s", view.table, error)
            if view.closed:
                return
            while _is_in_trouble(view) and not stop.wait(max(pause_s, _PAUSE_S)):
                pass


def _is_in_trouble(view: ReferenceView) -> bool:
    return view.status().error is not None and not view.closed
