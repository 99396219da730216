"""Which indexes have to be reconciled, because something changed in a way that no row event tells of.

Guarantees: looked at before a seed begins and every few seconds from then on; what happened between two runs is
noticed by the next one. A mark is durable, is shown by `penstock status`, and goes when a reconcile mended the index.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.app.origins import is_outgoing
from penstock.config.deployment import Untraceable
from penstock.document.shape import changed, shapes, unmet
from penstock.engine.marks import Marks

if TYPE_CHECKING:
    from penstock.app.prepared import Prepared
    from penstock.document.schema import DocumentSchema
    from penstock.engine.state import State
    from penstock.postgres.connection import ConnectionSettings

log = logging.getLogger(__name__)


def look_at_shapes(prepared: Prepared, *, starting: bool = False) -> dict[str, str]:
    """Compare the shape of every table with what it was, and mark the indexes for which that matters; the shapes.

    At a start, what was published and set since `look_before_mending` is no matter; and what was marked before and not
    mended since is told again.
    """
    sources = {index: one for index, one in prepared.origins.indexes.items() if not is_outgoing(index)}
    now = shapes(prepared.settings, prepared.schemas.schemas, prepared.deployment.source.publication)
    reasons = _compare(Marks(prepared.state), now, sources, mended=starting)
    marked = Marks(prepared.state).marked() if starting else {}
    _tell({index: mark.reason for index, mark in marked.items() if index in sources} if starting else reasons)
    return now


def look_before_mending(
    settings: ConnectionSettings, schemas: Sequence[DocumentSchema], publication: str, state: State
) -> None:
    """The same at a start, before anything is published or set again: what was wrong meanwhile is marked.

    An index that is seeded for another reason loses the mark with that.
    """
    marks = Marks(state)
    _compare(marks, shapes(settings, schemas, publication), marks.sources())


def lacking(prepared: Prepared, index: str) -> str:
    """Why changes of an index are lost even now, or nothing: a reconcile that ends is no reason to take its mark away.

    What is not traced counts unless the deployment says to bear with it.
    """
    source = prepared.deployment.source
    return unmet(look_at_shapes(prepared)[index], untraced=source.untraceable is not Untraceable.WARN)


def _compare(
    marks: Marks, found: Mapping[str, str], sources: Mapping[str, str], *, mended: bool = False
) -> dict[str, str]:
    """Note the shapes of the indexes with a source; for which of them documents may have changed unseen, and why."""
    before = marks.shapes(sources)
    new = {index: shape for index, shape in found.items() if index in sources and before.get(index) != shape}
    known = [index for index in new if index in before]
    reasons = {index: why for index in known if (why := changed(before[index], new[index], mended=mended))}
    if new:
        marks.note(new, sources, reasons)
    return reasons


def _tell(reasons: Mapping[str, str]) -> None:
    for index, reason in reasons.items():
        log.warning("index %s has to be reconciled: %s. Run penstock reconcile --repair %s.", index, reason, index)
