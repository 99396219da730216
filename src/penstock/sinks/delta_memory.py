"""What the delta sink remembers of an index's current generation, and the name under which its commits are counted.

The memory is a property of the index's own small Delta table (`_penstock/NAME`), so that it changes by a commit, on any
storage. Guarantees: no I/O; a memory of a newer format is refused. Deliberately not: rows (`delta_table`).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from penstock.contracts import Target
from penstock.errors import OperatorError
from penstock.model import Lsn

FORMAT = 1
PROPERTY = "penstock.memory"
OUTGOING = "penstock.outgoing"
"""The property that holds the memory of the generation that readers see while its successor is filled."""


@dataclass(frozen=True, slots=True)
class Memory:
    """One generation. `token` tells it from every other; writes below `floor` lose, for the index was cleared there.

    One that was `shown` to readers is in their table: where that was deleted, the generation is gone with it.
    Tombstones up to `purge_upto` are a week old and may go when `purge_s` (a clock's seconds) is a week ago.
    """

    name: str
    schema_hash: str
    source: str
    token: str
    floor: Lsn = Lsn.ZERO
    seeded: Lsn | None = None
    shown: bool = False
    purge_upto: Lsn = Lsn.ZERO
    purge_s: int = 0
    stamp: str = ""
    """What tells the table from a copy of it that was made before."""

    @property
    def application(self) -> str:
        """The id of the application in Delta's transactions.

        It holds the deployment and the run of its query (both in `source`: system, database, slot, epoch), the index
        and the generation, so that no other writer's count is taken for this one's. The number beside it is the highest
        version that was merged.
        """
        return f"penstock/{self.source}/{self.name}/{self.token}"

    def fits(self, target: Target) -> bool:
        """Whether it may be gone on with: same name, schema and source."""
        return (self.name, self.schema_hash, self.source) == (target.name, target.schema_hash, target.source)

    def grown(self, target: Target) -> Memory:
        """The memory for the target where it only gained fields since, to be seeded in place; else as it is."""
        if not target.grown_from or not self.fits(target._replace(schema_hash=target.grown_from)):
            return self
        return replace(self, schema_hash=target.schema_hash, seeded=None)

    def written(self, name: str = PROPERTY) -> dict[str, str]:
        """The property that holds it."""
        seeded = None if self.seeded is None else str(self.seeded)
        lsns = {"floor": str(self.floor), "seeded": seeded, "purge_upto": str(self.purge_upto)}
        return {name: json.dumps({"format": FORMAT, **asdict(self), **lsns})}


def begin(target: Target, now_s: int, stamp: str = "") -> Memory:
    """The memory of a generation that nobody has written to."""
    token = secrets.token_hex(6)
    return Memory(target.name, target.schema_hash, target.source, token, purge_s=now_s, stamp=stamp)


def read(properties: Mapping[str, str], place: str, name: str = PROPERTY) -> Memory | None:
    """What a table's properties hold, or None where nothing of ours is among them."""
    if not properties.get(name):
        return None
    found = json.loads(properties[name])
    if found["format"] > FORMAT:
        raise OperatorError(
            f"{place} was written by a newer Penstock: its format is {found['format']}, this one reads up to {FORMAT}",
            hint="Use that version of Penstock, or give the sink another path.",
        )
    known = {name: found[name] for name in Memory.__dataclass_fields__ if name in found}
    seeded = Lsn.parse(known["seeded"]) if known["seeded"] else None
    lsns = {name: Lsn.parse(known[name]) for name in ("floor", "purge_upto")}
    return Memory(**{**known, **lsns, "seeded": seeded})
