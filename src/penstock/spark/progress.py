"""A streaming query's progress as plain values: handed to a function as it happens, with nothing of Spark in it.

    spark.streams.addListener(ProgressListener(on_progress=show, on_terminated=alarm))

Guarantees: values only (numbers, text, mappings), so they can be kept, compared, pickled and written as JSON; an error
in a callback is logged and never reaches Spark, whose listeners all share one thread; an offset of another source
stays what it was. Spark calls after the batch, in its own time: a callback that blocks delays the next report, not the
query. Deliberately not: keeping a history, or asking the server; the lag is what the source itself last reported.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from penstock.errors import ConfigError
from penstock.model import Lsn

_log = logging.getLogger(__name__)

Offset = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """What one source of the query read in this batch. Offsets are None where there is none yet."""

    description: str
    start: Offset | None
    end: Offset | None
    latest: Offset | None
    rows: int
    input_rows_per_second: float
    processed_rows_per_second: float

    @property
    def lag_bytes(self) -> int | None:
        """WAL between the end of this batch and the newest that the source knew of; None for a foreign source."""
        end, latest = _lsn(self.end), _lsn(self.latest)
        return None if end is None or latest is None else max(0, latest - end)


@dataclass(frozen=True, slots=True)
class Progress:
    """One batch of a query. `durations_ms` holds Spark's own names: latestOffset, addBatch, walCommit, …"""

    query_id: str
    run_id: str
    name: str | None
    timestamp: str
    batch_id: int
    rows: int
    input_rows_per_second: float
    processed_rows_per_second: float
    duration_ms: int
    durations_ms: Mapping[str, int]
    sources: tuple[SourceProgress, ...]

    @property
    def lag_bytes(self) -> int | None:
        """The sum over the sources that know their lag; None if none does."""
        known = [source.lag_bytes for source in self.sources if source.lag_bytes is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class Terminated:
    """The end of a run; `error` is None if it was stopped, or had nothing more to do, else what failed and no more."""

    query_id: str
    run_id: str
    error: str | None
    error_class: str | None


class ProgressListener(StreamingQueryListener):
    """Hands each batch's progress, and each run's end, to the functions it was given."""

    def __init__(
        self,
        on_progress: Callable[[Progress], object] | None = None,
        on_terminated: Callable[[Terminated], object] | None = None,
    ) -> None:
        self._on_progress = on_progress
        self._on_terminated = on_terminated

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing: the one who started the query knows."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch has ended."""
        if self._on_progress is not None:
            _hand_over(self._on_progress, lambda: parse_progress(event.progress.json))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The run has ended."""
        if self._on_terminated is not None:
            _hand_over(self._on_terminated, lambda: _terminated(event))


def parse_progress(text: str) -> Progress:
    """Spark's report, as it writes it in JSON (`query.lastProgress.json`), as plain values."""
    found = json.loads(text)
    durations = {name: int(spent) for name, spent in found.get("durationMs", {}).items()}
    return Progress(
        query_id=found["id"],
        run_id=found["runId"],
        name=found.get("name"),
        timestamp=found["timestamp"],
        batch_id=found["batchId"],
        rows=found.get("numInputRows", 0),
        input_rows_per_second=_rate(found, "inputRowsPerSecond"),
        processed_rows_per_second=_rate(found, "processedRowsPerSecond"),
        duration_ms=int(found.get("batchDuration") or durations.get("triggerExecution", 0)),
        durations_ms=durations,
        sources=tuple(_source(one) for one in found.get("sources", [])),
    )


def _source(found: Mapping[str, Any]) -> SourceProgress:
    return SourceProgress(
        description=found.get("description", ""),
        start=_offset(found.get("startOffset")),
        end=_offset(found.get("endOffset")),
        latest=_offset(found.get("latestOffset")),
        rows=found.get("numInputRows", 0),
        input_rows_per_second=_rate(found, "inputRowsPerSecond"),
        processed_rows_per_second=_rate(found, "processedRowsPerSecond"),
    )


def _offset(found: Any) -> Offset | None:
    """An offset is JSON, or the text of it; a source whose offset is no object gets its value as the one field."""
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            pass  # some sources write plain text
    if found is None or isinstance(found, dict):
        return found
    return {"value": found}


def _lsn(offset: Offset | None) -> Lsn | None:
    try:
        return Lsn.parse(str((offset or {}).get("lsn")))
    except ConfigError:  # another source's, or none
        return None


def _rate(found: Mapping[str, Any], name: str) -> float:
    rate = found.get(name)  # Spark leaves out, or writes as text, what is no number: the first batch has no rate
    return float(rate) if isinstance(rate, int | float) else 0.0


def _terminated(event: QueryTerminatedEvent) -> Terminated:
    error = None if event.exception is None else shorten_error(event.exception)
    return Terminated(str(event.id), str(event.runId), error, event.errorClassOnException)


def shorten_error(text: str) -> str:
    """What failed, out of Spark's words, a Python traceback and the JVM's frames; of several an error of ours."""
    said = re.split(r"\n\tat |\n=== Streaming Query ===", text)[0]
    said = re.sub(r"(\s+SQLSTATE: \w+)+\s*$", "", said)
    parts = said.split("Traceback (most recent call last):\n")
    if len(parts) == 1:
        return said.strip()
    # Behind its frames, all indented, a traceback names the error; the words that join two of them come after.
    errors = [re.sub(r"\A(?:  .*\n)*", "", part) for part in parts[1:]]
    errors = [re.split(r"\n\n(?:During handling|The above exception)", error)[0].strip() for error in errors]
    return next((error for error in reversed(errors) if error.startswith("penstock.")), errors[-1])


def _hand_over(callback: Callable[[Any], object], build: Callable[[], object]) -> None:
    try:
        callback(build())
    except Exception:  # noqa: BLE001 – whatever the callback raised: Spark's listeners share one thread
        _log.warning("a callback for a query's progress failed", exc_info=True)
