"""The public address: is it alive, is it ready, and its figures for Prometheus.

Guarantees: names of indexes and sinks, and numbers, nothing of a row, no secret; nothing can be changed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.engine.histogram import Histogram
from penstock.ops.http import Request, Response, as_json, refused
from penstock.ops.metrics import CONTENT_TYPE, render

PATHS = ("/healthz", "/readyz", "/metrics")


class Public:
    """Answers from the start of the process on; `told` says how it stands once there is something to tell."""

    def __init__(self) -> None:
        self._told: Callable[[], Mapping[str, Any]] | None = None
        self._histograms: Mapping[str, Histogram] = {}
        self.waits_for = ""
        """What the start waits for, where that is known."""

    def attach(self, told: Callable[[], Mapping[str, Any]], histograms: Mapping[str, Histogram]) -> None:
        """A deployment runs from now on."""
        self._histograms, self._told = histograms, told

    def __call__(self, asked: Request) -> Response:
        """The answer."""
        if asked.path not in PATHS:
            return refused(404, f"there is nothing at this path; there are: {', '.join(PATHS)}")
        if asked.method not in ("GET", "HEAD"):
            return refused(405, f"{asked.path} can only be read")
        if asked.path == "/healthz":
            return as_json({"alive": True})
        told = self._told() if self._told else None
        if asked.path == "/readyz":
            starting = self.waits_for or "it is starting, or waits for another process to end"
            reasons = told["unready"] if told else [starting]
            return as_json({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)
        return Response(render(told, self._histograms).encode() if told else b"", content_type=CONTENT_TYPE)
