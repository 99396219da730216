"""Where the documents of each index come from, as sinks are told it: what one generation is told from another by.

Guarantees: a sink that was detached gets another source than before, so that it makes a new generation when it is back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Origins:
    """`indexes`: of each index its database, slot and epoch. `marks`: of sinks that were detached, since when."""

    indexes: Mapping[str, str]
    marks: Mapping[str, str] = field(default_factory=dict)

    def source(self, index: str, sink: str) -> str:
        """`Target.source` of an index in a sink."""
        mark = self.marks.get(sink)
        return f"{self.indexes[index]}/{mark}" if mark else self.indexes[index]

    def without(self, indexes: Collection[str]) -> Origins:
        """The same for the other indexes."""
        return replace(self, indexes={index: one for index, one in self.indexes.items() if index not in indexes})
