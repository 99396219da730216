"""Which of some documents live writes, for whoever looks at them meanwhile.

Guarantees: from the return of `begin` on, every batch that writes one of them is noted, and asking waits for the batch
under way, so that no write that can be seen is missed. A batch that failed counts as having written all of them. Who
watches is not alone; a watch ends when nobody holds it any more.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager


class Watch:
    """Ask it which of the documents were written since it began."""

    def __init__(self, index: str, ids: Collection[str], batch: AbstractContextManager[object]) -> None:
        self.pairs = frozenset((index, id) for id in ids)
        self.met: set[str] = set()
        self._batch = batch

    def __call__(self) -> Collection[str]:
        with self._batch:
            return set(self.met)


class Watches:
    """All that watch now; `batch` is held while a batch is under way."""

    def __init__(self, batch: AbstractContextManager[object]) -> None:
        self._batch = batch
        self._lock = threading.Lock()
        self._all: weakref.WeakSet[Watch] = weakref.WeakSet()

    def begin(self, index: str, ids: Collection[str]) -> Watch:
        """Watch these documents of an index."""
        watch = Watch(index, ids, self._batch)
        with self._lock:
            self._all.add(watch)
        with self._batch:
            watch.met.clear()  # the batch under way was begun without knowing
        return watch

    def watched(self) -> frozenset[tuple[str, str]]:
        """Index and id of all of them."""
        with self._lock:
            return frozenset().union(*(one.pairs for one in self._all))

    def note(self, written: Iterable[tuple[str, str]]) -> None:
        """A batch has written these (index and id)."""
        pairs = set(written)
        with self._lock:
            for one in self._all:
                one.met |= {id for _, id in pairs & one.pairs}
