"""The figures of a running deployment in Prometheus' text form.

`METRICS` is the whole list: what each is called, of which kind, with which labels; the docs, the board and the alert
rules are held to it. Guarantees: a pure function of what a run tells; names of indexes, phases and stages are labels,
values of rows never are. What is not known (yet) is left out, so that nothing stands for a number that it is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock import __version__
from penstock.engine.histogram import COARSE_S, Histogram
from penstock.engine.report import Phase
from penstock.model import Lsn

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, by the name that it has in Prometheus."""

    name: str
    kind: str
    meaning: str
    labels: tuple[str, ...] = ()


METRICS: tuple[Metric, ...] = (
    Metric("penstock_info", "gauge", "1, with the version that runs", ("version",)),
    Metric("penstock_start_time_seconds", "gauge", "when the run began, as unix time"),
    Metric("penstock_ready", "gauge", "1 where every index is complete and follows in every sink, else 0"),
    Metric("penstock_changes_total", "counter", "row changes that are durable in every sink"),
    Metric("penstock_batches_total", "counter", "batches, by how they were worked on", ("path",)),
    Metric("penstock_batch_seconds", "histogram", "how long a batch with changes took"),
    Metric("penstock_commit_to_searchable_seconds", "histogram", "from a commit until it is durable in every sink"),
    Metric("penstock_stage_seconds_total", "counter", "time of all threads, by what it was spent on", ("stage",)),
    Metric("penstock_documents_written_total", "counter", "documents written by following changes", ("index",)),
    Metric("penstock_documents_deleted_total", "counter", "documents deleted by following changes", ("index",)),
    Metric("penstock_index_phase", "gauge", "1 for the phase of an index, 0 for the others", ("index", "phase")),
    Metric("penstock_index_marked", "gauge", "1 where an index has to be reconciled, else 0", ("index",)),
    Metric("penstock_backfill_chunks", "gauge", "chunks that the last seed of an index has", ("index",)),
    Metric("penstock_backfill_chunks_done", "gauge", "chunks of it that are durable", ("index",)),
    Metric("penstock_backfill_documents", "gauge", "documents that it has written", ("index",)),
    Metric("penstock_backfill_eta_seconds", "gauge", "time until it is complete, by its pace in this run", ("index",)),
    Metric("penstock_position_bytes", "gauge", "LSNs as numbers: how far each has come in the WAL", ("at",)),
    Metric("penstock_lag_bytes", "gauge", "WAL that was written and may hold changes that are not durable yet"),
    Metric("penstock_lag_seconds", "gauge", "for how long that WAL has been waiting"),
    Metric("penstock_source_reachable", "gauge", "1 where the server answered when it was last asked, else 0"),
    Metric("penstock_slot_active", "gauge", "1 where a process holds the slot, else 0"),
    Metric("penstock_slot_lost", "gauge", "1 where the server has removed WAL that the slot needed, else 0"),
    Metric("penstock_slot_retained_bytes", "gauge", "WAL that the server keeps for the slot"),
    Metric("penstock_slot_lag_bytes", "gauge", "WAL that the slot has not confirmed"),
    Metric("penstock_slot_safe_bytes", "gauge", "WAL that may still be written before the slot is lost; if limited"),
    Metric("penstock_quarantine_documents", "gauge", "documents in quarantine, once for each sink"),
    Metric(
        "penstock_writes_outdone_total",
        "counter",
        "writes that met something newer in a sink: twice sent, or late",
    ),
    Metric("penstock_sinks_away", "gauge", "sinks that were left behind, and are seeded anew when they answer again"),
    Metric("penstock_restarts_total", "counter", "how often the stream failed and was started again"),
    Metric("penstock_trouble", "gauge", "1 from such a failure until a batch succeeds, else 0"),
)

Labels = Mapping[str, str]
Values = Sequence[tuple[Labels, float]]


def render(told: Mapping[str, Any], histograms: Mapping[str, Histogram]) -> str:
    """Everything, as Prometheus reads it: `told` as `penstock status` has it, the histograms by their names."""
    values = _values(told)
    lines: list[str] = []
    for metric in METRICS:
        own = list(_buckets(metric.name, histograms[metric.name]) if metric.kind == "histogram" else ())
        own += [_line(metric.name, labels, value) for labels, value in values.get(metric.name, ())]
        if own:
            lines += [f"# HELP {metric.name} {metric.meaning}", f"# TYPE {metric.name} {metric.kind}", *own]
    return "\n".join(lines) + "\n"


def _values(told: Mapping[str, Any]) -> dict[str, Values]:
    return {f"penstock_{name}": values for name, values in [*_of_run(told), *_of_indexes(told), *_of_source(told)]}


def _of_run(told: Mapping[str, Any]) -> Iterator[tuple[str, Values]]:
    direct = told["direct_batches"]
    yield "info", [({"version": __version__}, 1)]
    yield "start_time_seconds", _one(told["started"])
    yield "ready", _one(told["ready"])
    yield "changes_total", _one(told["changes"])
    yield "batches_total", [({"path": "direct"}, direct), ({"path": "spread"}, told["batches"] - direct)]
    yield "stage_seconds_total", [({"stage": stage}, spent) for stage, spent in told["stages_s"].items()]
    yield "quarantine_documents", _one(told.get("quarantined"))
    yield "writes_outdone_total", _one(told["outdone"])
    yield "sinks_away", _one(len(told.get("away", ())))
    yield "restarts_total", _one(told["restarts"])
    yield "trouble", _one(bool(told["trouble"]))


def _of_indexes(told: Mapping[str, Any]) -> Iterator[tuple[str, Values]]:
    names = {
        "documents_written_total": "written", "documents_deleted_total": "deleted", "backfill_chunks": "chunks",
        "backfill_chunks_done": "chunks_done", "backfill_documents": "seeded", "backfill_eta_seconds": "eta_s",
    }  # fmt: skip
    indexes = told["indexes"].items()
    for name, field in names.items():
        yield name, [({"index": index}, one[field]) for index, one in indexes if one[field] is not None]
    yield "index_marked", [({"index": index}, index in told.get("marked", ())) for index, _ in indexes]
    yield (
        "index_phase",
        [({"index": index, "phase": phase.value}, one["phase"] == phase) for index, one in indexes for phase in Phase],
    )


def _of_source(told: Mapping[str, Any]) -> Iterator[tuple[str, Values]]:
    source: Mapping[str, Any] = told.get("source") or {}
    at = {"applied": told["position"], **{place: source.get(place) for place in ("written", "received", "confirmed")}}
    known = [({"at": place}, int(Lsn.parse(lsn))) for place, lsn in at.items() if lsn]
    yield "position_bytes", [(labels, position) for labels, position in known if position]
    yield "lag_bytes", _one(source.get("lag_bytes"))
    yield "lag_seconds", _one(source.get("lag_s"))
    yield "source_reachable", _one(source.get("reachable"))
    for name in ("active", "lost", "retained_bytes", "lag_bytes", "safe_bytes"):
        yield f"slot_{name}", _one(source.get(f"slot_{name}"))


def _one(value: float | None) -> Values:
    return [] if value is None else [({}, value)]


def _buckets(name: str, histogram: Histogram) -> Iterator[str]:
    for bound, count in zip(COARSE_S, histogram.cumulative(), strict=True):
        yield _line(f"{name}_bucket", {"le": f"{bound:g}"}, count)
    yield _line(f"{name}_bucket", {"le": "+Inf"}, histogram.count)
    yield _line(f"{name}_sum", {}, round(histogram.total_s, 6))
    yield _line(f"{name}_count", {}, histogram.count)


def _line(name: str, labels: Labels, value: float) -> str:
    shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    number = int(value) if float(value).is_integer() else value
    return f"{name}{{{shown}}} {number}" if shown else f"{name} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
