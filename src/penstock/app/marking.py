"""Which indexes have to be reconciled, because tables changed in a way that no row event tells of.

Guarantees: looked at before a seed begins and every few seconds from then on; what happened between two runs is
noticed by the next one. A mark is durable, is shown by `penstock status`, and goes when a reconcile mended the index.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.app.origins import is_outgoing
from penstock.document.shape import changed, shapes
from penstock.engine.marks import Marks

if TYPE_CHECKING:
    from penstock.app.prepared import Prepared

log = logging.getLogger(__name__)


def look_at_shapes(prepared: Prepared, *, starting: bool = False) -> None:
    """Compare the shape of every table with what it was, and mark the indexes for which that matters.

    At a start, what was marked before and not mended since is told again.
    """
    marks = Marks(prepared.state)
    sources = {index: one for index, one in prepared.origins.indexes.items() if not is_outgoing(index)}
    now = {one: shape for one, shape in shapes(prepared.settings, prepared.schemas.schemas).items() if one in sources}
    before = marks.shapes(sources)
    new = {index: shape for index, shape in now.items() if before.get(index) != shape}
    reasons = {index: why for index in new if index in before and (why := changed(before[index], new[index]))}
    if new:
        marks.note(new, sources, reasons)
    told = {index: mark.reason for index, mark in marks.marked().items() if index in sources} if starting else reasons
    for index, reason in told.items():
        log.warning("index %s has to be reconciled: %s. Run penstock reconcile --repair %s.", index, reason, index)
