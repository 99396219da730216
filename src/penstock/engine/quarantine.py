"""Documents that a sink rejected: when they leave quarantine by themselves, and how they are tried again.

Guarantees: what a sink takes, whoever wrote it, leaves its quarantine, unless something newer of the same document was
rejected; a replay builds anew, at a version that was read before it looks (invariant 5), and never sends stored bytes,
for there are none. Deliberately not: putting documents there (`policy` does, before the batch counts as done).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from penstock.engine import batch
from penstock.engine.batch import Parts, Tally
from penstock.engine.state import Entry, State
from penstock.model import Lsn


def heal(state: State, healed: Iterable[tuple[str, str, str]], version: Lsn) -> None:
    """These (sink, index, id) were taken at this version: they leave, unless a newer one was rejected."""
    taken = set(healed)
    for index in {one[1] for one in taken}:
        found = state.quarantined(index, {one[2] for one in taken if one[1] == index})
        state.release(one for one in found if (one.sink, index, one.id) in taken and one.version <= version)


def note(state: State, tally: Tally, version: Lsn) -> None:
    """What was rejected goes there; what was taken at this version leaves."""
    state.quarantine(tally.rejected)
    heal(state, tally.healed, version)


def outlive(state: State, index: str, sinks: Collection[str], before: Lsn) -> None:
    """Whatever was rejected before this version has been built and sent again since, or has no document any more."""
    if any(name == index for name, _ in state.aside()):
        found = state.quarantined(index)
        state.release(one for one in found if one.sink in sinks and one.version < before)


def forsake(state: State, indexes: Collection[str], sinks: Collection[str]) -> None:
    """These are what there is from now on: what is of another index or sink, nobody would ever build or send."""
    others = "name NOT IN (SELECT value FROM json_each(?)) OR sink NOT IN (SELECT value FROM json_each(?))"
    state.write((f"DELETE FROM quarantine WHERE {others}", [(json.dumps([*indexes]), json.dumps([*sinks]))]))


def replay(parts: Parts, entries: Sequence[Entry], version: Lsn, state: State) -> Tally:
    """Build the documents of one index again and send each to the sink that rejected it; the state knows the outcome.

    `version` was settled before this is called.
    """
    index, tally = entries[0].index, Tally()
    for sink in parts.sinks[index]:
        if mine := {one.id for one in entries if one.sink == sink.name}:
            ours = replace(parts, sinks={index: [sink]}, aside=frozenset((index, id) for id in mine))
            tally.add(batch.rebuilt(ours, index, mine, version))
    note(state, tally, version)
    return tally
