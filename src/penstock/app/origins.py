"""Where the documents of each index come from, as sinks are told it: what one generation is told from another by.

While an index is built anew, its outgoing generation is kept as an index of its own, by the name `INDEX#EPOCH`; readers
know both by the same name. Guarantees: plain values. A sink that was detached gets another source than before, so that
it makes a new generation when it is back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

_MARK = "#"  # in no name of an index


def outgoing_name(index: str, epoch: str) -> str:
    """What the outgoing generation of an index is called while it is kept."""
    return f"{index}{_MARK}{epoch}"


def is_outgoing(index: str) -> bool:
    """Whether it is the name of an outgoing generation."""
    return _MARK in index


def index_of(name: str) -> str:
    """The index that a generation is of."""
    return name.partition(_MARK)[0]


@dataclass(frozen=True, slots=True)
class Origins:
    """`indexes`: of each index its database, slot and epoch. `marks`: of sinks that were detached, since when.

    `hashes` are, for outgoing generations, what each sink knows them by; `grown` the same for what indexes were before
    their schemas gained fields.
    """

    indexes: Mapping[str, str]
    marks: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    grown: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def outgoing(self) -> dict[str, str]:
        """The outgoing generation of each index that has one."""
        return {index_of(name): name for name in self.indexes if is_outgoing(name)}

    def source(self, index: str, sink: str) -> str:
        """`Target.source` of an index in a sink."""
        mark = self.marks.get(sink)
        return f"{self.indexes[index]}/{mark}" if mark else self.indexes[index]

    def beside(self, index: str, sink: str) -> tuple[str, ...]:
        """`Target.beside`: the sources of other generations of the same index that are kept."""
        others = [one for one in self.indexes if index_of(one) == index_of(index) and one != index]
        return tuple(self.source(one, sink) for one in others)

    def without(self, indexes: Collection[str]) -> Origins:
        """The same for the other indexes."""
        left = {index: one for index, one in self.indexes.items() if index not in indexes}
        hashes = {index: one for index, one in self.hashes.items() if index not in indexes}
        return replace(self, indexes=left, hashes=hashes)
