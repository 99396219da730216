"""What a running deployment does when it is asked over its control socket: each command's name and the function.

Guarantees: a command is plain JSON in and out; what goes wrong is an error of ours, which the asking side shows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.app import explain, quarantine, reindex
from penstock.app.reconcile import Job

if TYPE_CHECKING:
    from penstock.app.prepared import Prepared
    from penstock.spark.pipeline import Pipeline

Command = Callable[[Mapping[str, Any]], Any]


def commands(prepared: Prepared, pipeline: Pipeline) -> dict[str, Command]:
    """Every command of this run."""
    return {
        "status": lambda _: pipeline.report.told(),
        "reindex": functools.partial(reindex.answer, pipeline),
        "quarantine": functools.partial(quarantine.answer, pipeline),
        "reconcile": Job(prepared, pipeline).answer,
        "explain": functools.partial(explain.answer, prepared, pipeline),
    }
