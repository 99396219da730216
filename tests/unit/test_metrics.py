"""The metrics as Prometheus reads them; the docs, the board and the alert rules know exactly these."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.engine.histogram import BOUNDS_S, COARSE_S, Histogram, quantile
from penstock.ops.metrics import METRICS, Metric, render

ROOT = Path(__file__).parents[2]
KNOWN = {metric.name: metric for metric in METRICS}
LINE = re.compile(r'^(\w+)(?:\{((?:\w+="(?:[^"\\\n]|\\.)*",?)+)\})? (-?[0-9.e+-]+)$')
OF_INDEX = {
    "phase": "seeding", "chunks": 10, "chunks_done": 4, "seeded": 400, "eta_s": 1.5, "written": 7, "deleted": 1,
}  # fmt: skip
TOLD: dict[str, Any] = {
    "started": 1_700_000_000.25,
    "ready": False,
    "changes": 12,
    "batches": 5,
    "direct_batches": 4,
    "stages_s": {"build": 0.5},
    "quarantined": 2,
    "outdone": 3,
    "away": {"search": "down"},
    "restarts": 1,
    "trouble": "",
    "position": "0/50",
    "indexes": {'a "b"\\c\n': OF_INDEX},
    "source": {
        "reachable": True, "written": "0/80", "received": "0/70", "confirmed": "0/40", "lag_bytes": 48, "lag_s": 0.2,
        "slot_active": True, "slot_lost": False, "slot_retained_bytes": 99, "slot_lag_bytes": 64, "slot_safe_bytes": 5,
    },
}  # fmt: skip


def histograms() -> dict[str, Histogram]:
    found = {metric.name: Histogram() for metric in METRICS if metric.kind == "histogram"}
    for one in found.values():
        for value_s in (0.0004, 0.04, 0.04, 3.0, 2000.0):
            one.observe(value_s, now=100.0)
    return found


def samples(text: str) -> dict[str, dict[str, float]]:
    """Metric → labels as they are written → value."""
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = LINE.match(line)
            assert match, line
            found.setdefault(match[1], {})[match[2] or ""] = float(match[3])
    return found


def of_histogram(metric: Metric) -> set[str]:
    return {f"{metric.name}_{part}" for part in ("bucket", "sum", "count")}


def test_every_metric_is_told_with_its_kind_and_labels_and_no_other_is() -> None:
    text = render(TOLD, histograms())
    found = samples(text)
    wanted = {name for one in METRICS for name in (of_histogram(one) if one.kind == "histogram" else {one.name})}
    assert found.keys() == wanted
    for metric in METRICS:
        assert f"# TYPE {metric.name} {metric.kind}\n" in text
        assert f"# HELP {metric.name} {metric.meaning}\n" in text
        for labels in found.get(metric.name, ()):
            assert tuple(re.findall(r'(\w+)="', labels)) == metric.labels


def test_a_position_that_is_not_known_yet_is_no_zero() -> None:
    """Before the first batch nothing is applied; a slot may have confirmed nothing."""
    told = {**TOLD, "position": "0/0", "source": {**TOLD["source"], "confirmed": "0/0", "received": None}}
    assert samples(render(told, histograms()))["penstock_position_bytes"] == {'at="written"': 0x80}
    assert "penstock_position_bytes" not in render({**told, "source": None}, histograms())


def test_numbers_are_those_of_the_run() -> None:
    found = samples(render(TOLD, histograms()))
    assert found["penstock_changes_total"] == {"": 12}
    assert found["penstock_batches_total"] == {'path="direct"': 4, 'path="spread"': 1}
    assert found["penstock_position_bytes"]['at="written"'] == 0x80
    assert found["penstock_position_bytes"]['at="applied"'] == 0x50
    assert found["penstock_ready"] == {"": 0}
    assert sum(found["penstock_index_phase"].values()) == 1
    assert found["penstock_stage_seconds_total"] == {'stage="build"': 0.5}
    assert r'index="a \"b\"\\c\n"' in found["penstock_documents_written_total"]


def test_what_is_not_known_is_left_out() -> None:
    """Zero would be a claim."""
    idle = {**OF_INDEX, "eta_s": None}
    found = samples(render({**TOLD, "source": {"reachable": False}, "indexes": {"a": idle}}, histograms()))
    assert found["penstock_source_reachable"] == {"": 0}
    assert not {name for name in found if name.startswith(("penstock_slot_", "penstock_lag_", "penstock_backfill_eta"))}


def test_a_histogram_is_cumulative_and_whole() -> None:
    name = "penstock_commit_to_searchable_seconds"
    found = samples(render(TOLD, histograms()))
    buckets = [found[f"{name}_bucket"][f'le="{bound:g}"'] for bound in COARSE_S]
    assert buckets == sorted(buckets)
    assert found[f"{name}_bucket"]['le="0.001"'] == 1
    assert found[f"{name}_bucket"]['le="0.05"'] == 3
    assert found[f"{name}_bucket"]['le="500"'] == 4
    assert found[f"{name}_bucket"]['le="+Inf"'] == found[f"{name}_count"][""] == 5
    assert found[f"{name}_sum"][""] == pytest.approx(2003.0804)


def test_quantiles_are_right_to_a_tenth_and_old_observations_leave_the_window(rng: Any) -> None:
    histogram = Histogram(window_s=300)
    histogram.observe(100.0, now=0.0, count=1000)
    histogram.observe(100.0, now=300.0, count=10)
    values = sorted(rng.lognormvariate(-3, 1) for _ in range(5000))
    for value in values:
        histogram.observe(value, now=400.0)
    lately = histogram.recent(400.0, 60)
    assert sum(lately) == 5000
    assert sum(histogram.recent(400.0, 300)) == 5010
    for part in (0.5, 0.95, 0.99):
        assert quantile(lately, part) == pytest.approx(values[int(5000 * part)], rel=0.13)
    assert histogram.count == 6010
    assert quantile([0] * (len(BOUNDS_S) + 1), 0.5) is None


def test_the_reference_lists_each_metric() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    rows = re.findall(r"^\| `(penstock_\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    told = [(one.name, one.kind, ", ".join(f"`{label}`" for label in one.labels), one.meaning) for one in METRICS]
    assert rows == told


def expressions() -> Iterator[str]:
    """Everything that the board and the rules ask Prometheus for."""
    board = json.loads((ROOT / "deploy/grafana/penstock.json").read_text())
    yield from (target["expr"] for panel in board["panels"] for target in panel["targets"])
    yield from (one["expr"] for one in board["annotations"]["list"])
    yield from (one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query")
    rules = yaml.safe_load((ROOT / "deploy/prometheus/penstock.rules.yml").read_text())
    yield from (rule["expr"] for group in rules["groups"] for rule in group["rules"])


def test_the_board_and_the_rules_ask_for_metrics_and_labels_that_exist() -> None:
    asked = list(expressions())
    used = set()
    for expression in asked:
        for name, labels in re.findall(r"\b(penstock_\w+)(?:\{([^}]*)\})?", expression):
            known = KNOWN.get(re.sub(r"_(bucket|sum|count)$", "", name))
            assert known, f"{name} in {expression}"
            assert (name != known.name) == (known.kind == "histogram"), expression
            own = {*known.labels, "instance", "job"}
            assert set(re.findall(r"(\w+)\s*=", labels)) <= own, expression
            if known.kind == "counter":
                assert re.search(rf"(rate|increase)\({name}\b", expression), (
                    f"a counter is looked at by its rate: {expression}"
                )
            used.add(known.name)
        for labels in re.findall(r"by \(([^)]*)\)", expression):
            every = {"le", "instance", *(label for metric in METRICS for label in metric.labels)}
            assert set(labels.replace(" ", "").split(",")) <= every, expression
    assert used == KNOWN.keys(), "each metric is on the board or in a rule"


def test_each_alert_says_what_to_do() -> None:
    rules = yaml.safe_load((ROOT / "deploy/prometheus/penstock.rules.yml").read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert rule["annotations"].keys() == {"summary", "description"}, rule["alert"]
