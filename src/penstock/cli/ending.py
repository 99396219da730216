"""When to stop: Ctrl-C, SIGTERM, a terminal that went away, or nobody left who reads our output.

`Ending` turns these into one call of a function, made by a thread of its own and never inside a signal handler, where
a lock may be held that the function needs. Guarantees: the first signal ends in good order; a second Ctrl-C ends at
once; handlers and the thread are gone when the block is left. Deliberately not: what stopping means.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Self

from penstock.cli.failure import INTERRUPTED, TERMINATED

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ending:
    """A block during which a request to stop is noticed. `stop` may be called before `when_requested` was."""

    def __init__(self) -> None:
        self.requested = threading.Event()
        self.exit_code = 0
        self._call: Callable[[], None] = lambda: None
        self._is_interruptible = False
        self._read, self._write = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="penstock-ending", daemon=True)

    def __enter__(self) -> Self:
        logging.getLogger().addFilter(_is_no_interrupt)
        self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        logging.getLogger().removeFilter(_is_no_interrupt)
        os.write(self._write, b"x")
        self._thread.join()
        os.close(self._read)
        os.close(self._write)

    def when_requested(self, call: Callable[[], None]) -> None:
        """Have `call` called when stopping is asked for; at once where it was already. In the main thread."""
        self._call = call
        for number in _SIGNALS:  # once more: a Spark session takes SIGINT for itself
            signal.signal(number, self._on_signal)
        if self.requested.is_set():
            call()

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """A block that is left by KeyboardInterrupt at the first signal: nothing in it has to end in order."""
        self._is_interruptible = True
        try:
            yield
        finally:
            self._is_interruptible = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.exit_code = INTERRUPTED if number == signal.SIGINT else TERMINATED
        self.requested.set()
        os.write(self._write, b"s")
        if self._is_interruptible:
            raise KeyboardInterrupt

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        if (output := _pipe()) is not None:
            poll.register(output, 0)  # errors are always reported: a pipe that nobody reads is one
        found = dict(poll.poll())
        if self._read in found and os.read(self._read, 1) == b"x":
            return
        self.requested.set()
        self._call()


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Spark's gateway logs an interrupt that meets it with its traceback; who pressed Ctrl-C twice knows of it."""
    return not (record.exc_info and record.exc_info[0] is KeyboardInterrupt)


def _pipe() -> int | None:
    """Stdout, where it is a pipe or a socket."""
    try:
        number = sys.stdout.fileno()
        mode = os.fstat(number).st_mode
    except (OSError, ValueError):  # closed, or replaced by something that is no file
        return None
    return number if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None
