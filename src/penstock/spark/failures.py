"""Errors of ours that come back through Spark: raised in a task or a reader, they arrive as a text inside another one.

Guarantee: what Spark tells is one of our errors again, of the same kind, with its message and hint and the sink that it
came from, so that passing trouble is waited out and the rest is told; of several that led to one another, the last.
What names none of ours (a task that was killed, an executor that is gone) is passing trouble.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from penstock.engine.batch import FROM_SINK
from penstock.errors import DiskError, PenstockError, RetryableError

# What Python says of an error in the JVM before it says which.
_CALLING = re.compile(r"^An error occurred while calling \S+\n: ")
_DISK = re.compile(r"No space left on device|Read-only file system|Disk quota exceeded")
_OURS = re.compile(r"penstock\.(?:errors|engine\.policy)\.(\w+): ([^\n]*)")
_SINK = re.compile(rf"^{FROM_SINK}(.*)$", re.MULTILINE)


def told(error: BaseException | None) -> PenstockError:
    """What ended a query or a job, as an error of ours."""
    if error is None:
        return RetryableError("the stream ended by itself")
    every = list(_OURS.finditer(str(error)))
    found = every[-1] if every else None
    if not found and (disk := _DISK.search(str(error))):
        return DiskError(
            f"Spark could not write: {disk[0].lower()}",
            hint="Look after the disks of the state folder and of the temporary one.",
        )
    if not found:
        said = _CALLING.sub("", str(error).strip()).partition("\n")[0][:300]
        return RetryableError(f"Spark ended its work: {said or type(error).__name__}")
    name, message = found.groups()
    kind = next((kind for kind in _subclasses(PenstockError) if kind.__name__ == name), RetryableError)
    rest = str(error)[found.end() :]
    raised = kind(message, hint=_hint(rest))
    if isinstance(raised, RetryableError) and (sink := _SINK.search(rest)):
        raised.sink = sink[1].strip()
    return raised


@contextmanager
def telling() -> Iterator[None]:
    """A job of Spark's: what its tasks raised is raised here."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise told(error) from error


def _hint(rest: str) -> str:
    """The line below a message, unless Spark goes on there."""
    line = rest.lstrip("\n").partition("\n")[0].strip()
    return (
        ""
        if re.match(
            rf"{FROM_SINK}|at |SQLSTATE|JVM stacktrace|Driver stacktrace|===|\tat |During handling|The above", line
        )
        else line
    )


def _subclasses(kind: type[PenstockError]) -> list[type[PenstockError]]:
    return [kind, *(below for one in kind.__subclasses__() for below in _subclasses(one))]
