"""Generations of an index: one physical index each, what is remembered with it, and which of them is the current one.

A generation of `users` is the index `users-1f6c02aa-3` (a digest of schema and source, a running number). Readers ask
for the alias `users`, which moves when a generation is complete. Writers use an alias that only this generation has
(`users-1f6c02aa-3.5d0c77e1`): the server refuses what is sent to a name that is gone, so nothing is ever written to
an index that appeared by itself, and a clear turns late writers away by giving the alias another name. What is
remembered stands in the index's own mapping, under `_meta.penstock`, and goes when the index goes.

Guarantees: no I/O; a memory of a newer format is refused. Deliberately not: trusting a copy of an index. The
memory is bound to the index's uuid, so a clone or a restored index is not taken for a generation.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from penstock.contracts import Target
from penstock.errors import OperatorError
from penstock.model import Lsn

FORMAT = 1
# How long the server remembers the version of a deleted document (its own default is 60 s). An older write that
# comes later than that would bring the document back: a task that hung, a request that waited in a queue. Content that
# is a quarter of an hour old is built again instead of sent, and a call gives up its tries after as long again
# (`opensearch_write`), so an hour is twice what a write can be late; each delete costs some memory meanwhile.
DELETES_KEPT = "1h"
WHAT = "filter_path=*.aliases,*.mappings._meta,*.settings.index"


@dataclass(frozen=True, slots=True)
class Memory:
    """What a generation remembers about itself.

    `token` names the writers' alias. `uuid` is that of the index it was made for, empty until it is known. Writes below
    `floor` lose: the index was cleared there; `clearing` says that this has begun. A `superseded` generation missed
    changes since another one was begun, and is never current again.
    """

    name: str
    schema_hash: str
    source: str
    token: str
    uuid: str = ""
    floor: Lsn = Lsn.ZERO
    clearing: bool = False
    seeded: Lsn | None = None
    superseded: bool = False


@dataclass(frozen=True, slots=True)
class Generation:
    """One physical index as the server shows it."""

    physical: str
    number: int
    uuid: str
    memory: Memory
    aliases: frozenset[str]
    settings: Mapping[str, Any]
    meta: Mapping[str, Any]

    @property
    def identity(self) -> str:
        """What tells it from every other, also from one of the same name that was deleted."""
        return f"{self.physical} {self.uuid}"

    @property
    def alias(self) -> str:
        """Where writers write."""
        return f"{self.physical}.{self.memory.token}"

    @property
    def is_read(self) -> bool:
        """Whether readers see it."""
        return self.memory.name in self.aliases

    @property
    def is_durable(self) -> bool:
        """Whether a write is on disk when it is answered."""
        return bool(self.settings.get("translog", {}).get("durability", "request") == "request")

    @property
    def seeded(self) -> Lsn | None:
        """The version of its seed, if that was completed in this very index and readers were led to it."""
        memory = self.memory
        if memory.seeded is None or memory.superseded or memory.uuid != self.uuid or not self.is_read:
            return None
        return memory.seeded

    def fits(self, target: Target) -> bool:
        """Whether it may be gone on with: same schema, same source, and it missed nothing."""
        memory = self.memory
        same = (memory.name, memory.schema_hash, memory.source) == (target.name, target.schema_hash, target.source)
        return same and not memory.superseded and memory.uuid in ("", self.uuid)

    def grown(self, target: Target) -> Generation | None:
        """The same for the target, where that only gained fields since; it has to be seeded in place."""
        if not target.grown_from or not self.fits(target._replace(schema_hash=target.grown_from)):
            return None
        meta = {**self.meta, **target.body.get("mappings", {}).get("_meta", {})}
        return replace(self, meta=meta).remembering(schema_hash=target.schema_hash, seeded=None)

    def remembering(self, **changes: Any) -> Generation:
        """The same with another memory."""
        return replace(self, memory=replace(self.memory, **changes))

    @property
    def mapping(self) -> dict[str, Any]:
        """The body of the request that writes its memory."""
        return {"_meta": {**self.meta, "penstock": _written(self.memory)}}


def _written(memory: Memory) -> dict[str, Any]:
    seeded = None if memory.seeded is None else str(memory.seeded)
    return {"format": FORMAT, **asdict(memory), "floor": str(memory.floor), "seeded": seeded}


def _read(written: Mapping[str, Any], physical: str) -> Memory:
    if written["format"] > FORMAT:
        raise OperatorError(
            f"the index {physical} was made by a newer Penstock (format {written['format']}, known are up to {FORMAT})",
            hint="Use that version, or delete the index: it is then made and seeded again.",
        )
    known = {name: written[name] for name in Memory.__dataclass_fields__ if name in written}
    seeded = Lsn.parse(known["seeded"]) if known["seeded"] else None
    return Memory(**{**known, "floor": Lsn.parse(known["floor"]), "seeded": seeded})


def found(name: str, answer: Mapping[str, Any]) -> list[Generation]:
    """The generations of `name` among the indexes that the server listed, the newest last."""
    shape = re.compile(re.escape(name) + r"-[0-9a-f]{8}-(\d+)")
    generations = []
    for physical, index in answer.items():
        meta = index.get("mappings", {}).get("_meta", {})
        if (number := shape.fullmatch(physical)) and "penstock" in meta:
            memory = _read(meta["penstock"], physical)
            settings = index["settings"]["index"]
            aliases = frozenset(index.get("aliases", ()))
            one = Generation(physical, int(number[1]), settings["uuid"], memory, aliases, settings, meta)
            generations.append(one)
    return sorted(generations, key=lambda one: one.number)


def current(generations: Sequence[Generation], target: Target) -> Generation | None:
    """The one to go on with, if there is one."""
    return next((one for one in reversed(generations) if one.fits(target)), None)


def next_name(generations: Sequence[Generation], target: Target) -> str:
    """What a new generation is called. Two processes that begin one at once choose the same, and one of them loses."""
    digest = hashlib.sha256(f"{target.schema_hash}\n{target.source}".encode()).hexdigest()[:8]
    number = max((one.number for one in generations), default=0) + 1
    return f"{target.name}-{digest}-{number}"


def token() -> str:
    """A name of a writers' alias that nobody has used."""
    return secrets.token_hex(4)


def creation(target: Target, physical: str) -> dict[str, Any]:
    """The body of the request that makes a generation: the target's, and what we need beside it."""
    memory = Memory(target.name, target.schema_hash, target.source, token())
    settings, mappings = dict(target.body.get("settings", {})), dict(target.body.get("mappings", {}))
    index = {"gc_deletes": DELETES_KEPT, "translog.durability": "request", **settings.get("index", {})}
    meta = {**mappings.get("_meta", {}), "penstock": _written(memory)}
    return {
        "settings": {**settings, "index": index},
        "mappings": {**mappings, "_meta": meta},
        "aliases": {f"{physical}.{memory.token}": {"is_hidden": True}},
    }
