"""`penstock reindex`: a new generation of an index beside the one that readers see, or back to the former one.

Guarantees: asked of a running deployment, which answers at once and does it in its own time; how far it is can be asked
like everything else. Before readers change over, every document is held against the database by ranges of keys, and
what differs is mended at a settled version: that is also what brings a former generation up to date.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.app.asked import text
from penstock.contracts import Key, ReadableSink, Sink
from penstock.document.cutting import cuts
from penstock.engine.reconcile import Ground, compare
from penstock.errors import RetryableError, UnavailableError

if TYPE_CHECKING:
    from penstock.app.prepared import Prepared
    from penstock.spark.pipeline import Pipeline, Plan
    from penstock.spark.succession import Heirs


def answer(pipeline: Pipeline, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The control socket's `reindex`: of `index`; with `rollback`, back to the former generation."""
    pipeline.succession.request(text(asked, "index"), rollback=bool(asked.get("rollback")))
    return {"asked": True}


def heirs(prepared: Prepared, plan: Callable[[Prepared], Plan]) -> Heirs:
    """What a plan may do about generations."""
    from penstock.spark.succession import Heirs

    return Heirs(
        outgoing=prepared.origins.outgoing,
        rebuild=lambda index, rollback: plan(prepared.rebuilt(index, rollback=rollback)),
        release=lambda index, is_done: plan(prepared.released(index, is_done=is_done)),
        verify=lambda pipeline, index, sinks: _verified(prepared, pipeline, index, sinks),
    )


def _verified(prepared: Prepared, pipeline: Pipeline, index: str, sinks: Sequence[Sink]) -> int:
    """Hold an index in these sinks against the database; how many documents differed, all of which are mended now.

    Where none of them can be compared, nothing is built.
    """
    from penstock.app.reconcile import catch_up

    def advanced(_: int) -> None:
        if pipeline.stopping.is_set():
            raise UnavailableError("penstock run is ending")

    asked = [sink for sink in sinks if isinstance(sink, ReadableSink) and sink.exact]
    if not asked:
        advanced(0)
        return 0
    ground = Ground(
        version=pipeline.settled,
        watch=pipeline.watch,
        catch_up=lambda: catch_up(prepared, pipeline),
        judge=pipeline.judge,
        aside=pipeline.state.aside,
        advanced=advanced,
        repair=True,
    )
    parts = replace(pipeline.plan.parts, sinks={index: asked})
    edges: list[Key | None] = [None, *cuts(prepared.settings, prepared.schemas.schema(index)), None]
    found = compare(parts, index, itertools.pairwise(edges), ground)
    if left := sum(one.left - one.rejected for one in found):
        raise RetryableError(f"{left} documents of the new generation of {index} are not what the database says")
    return sum(one.differing for one in found)
