"""`penstock quarantine`: what there is, and what is done about it, in a running deployment or on its state alone.

Guarantees: a replay builds and sends a bounded number of documents and returns, so that whoever asks hears of it while
it goes on; live goes on meanwhile. Without a running deployment, entries are read and dropped, not replayed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.app.asked import number, text, texts
from penstock.engine import quarantine
from penstock.engine.state import Entry, State
from penstock.errors import ConfigError, RetryableError
from penstock.model import Lsn
from penstock.ops.control import NothingRunsError, ask

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.spark.pipeline import Pipeline

AT_ONCE = 200
"""How many documents one question may ask to be replayed."""


MOST_LISTED = 1000
"""How many entries one answer lists."""
_REPLAY_S = 300.0  # for a portion of a replay: sinks may be slow


def answer(pipeline: Pipeline, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The control socket's `quarantine`: `action` is list, drop or replay; `index` and `ids` say which documents.

    A list is told in portions: at most `limit` entries, and `next`, the `after` of the next portion (or None).
    """
    if asked["action"] == "replay":
        return _replay(pipeline, text(asked, "index"), texts(asked, "ids"))
    return _on_state(pipeline.state, asked)


def look(folder: Path, index: str = "", ids: Collection[str] = ()) -> Iterator[Entry]:
    """What is in quarantine, the oldest first."""
    after: str | None = ""
    while after is not None:
        told = _asked(folder, action="list", index=index, ids=list(ids), limit=MOST_LISTED, after=after)
        yield from (Entry(**{**one, "version": Lsn.parse(one["version"])}) for one in told["entries"])
        after = told["next"]


def drop(folder: Path, index: str = "", ids: Collection[str] = ()) -> int:
    """Forget entries; how many there were."""
    return int(_asked(folder, action="drop", index=index, ids=list(ids))["dropped"])


def replay(folder: Path, index: str, ids: Sequence[str]) -> dict[str, Any]:
    """Have the running deployment build and send documents again; how many were taken, and rejected again.

    Under `skipped` the sinks whose entries were left out, with the reason.
    """
    return dict(ask(folder, "quarantine", patience_s=_REPLAY_S, action="replay", index=index, ids=list(ids)))


def _asked(folder: Path, **asked: Any) -> dict[str, Any]:
    """By the running deployment, or by its state where none runs."""
    try:
        return dict(ask(folder, "quarantine", **asked))
    except NothingRunsError:
        if not (folder / "state.sqlite").exists():
            raise
    with closing(State(folder, only_read=asked["action"] != "drop")) as state:
        if asked["action"] == "drop" and not state.acquire():
            raise RetryableError(f"a penstock is starting or ending with the state in {folder}", hint="Try again.")
        return _on_state(state, asked)


def _on_state(state: State, asked: Mapping[str, Any]) -> dict[str, Any]:
    index, ids = text(asked, "index"), texts(asked, "ids")
    if asked["action"] == "list":
        return _listed(state, asked)
    if asked["action"] != "drop":
        raise ConfigError(f"quarantine knows no {asked['action']!r}", hint="There are: list, drop, replay.")
    found = state.quarantined(index, ids)
    state.release(found)
    return {"dropped": len(found)}


def _listed(state: State, asked: Mapping[str, Any]) -> dict[str, Any]:
    index, limit = text(asked, "index"), int(min(MOST_LISTED, max(1, number(asked, "limit", MOST_LISTED))))
    found = state.quarantined(index, texts(asked, "ids"), after=_place(text(asked, "after")), limit=limit)
    return {
        "entries": [{**asdict(one), "version": str(one.version)} for one in found],
        "total": state.count_quarantined(index),
        "next": json.dumps(found[-1].place) if len(found) == limit else None,
    }


def _place(after: str) -> Sequence[str]:
    try:
        found = json.loads(after or '["", "", "", ""]')
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or len(found) != 4 or not all(isinstance(one, str) for one in found):
        raise ConfigError("after is not a place in the list", hint="Give it as `next` had it in the answer before.")
    return found


def _replay(pipeline: Pipeline, index: str, ids: Collection[str]) -> dict[str, Any]:
    parts = pipeline.plan.parts
    if index not in parts.sinks:
        raise ConfigError(
            f"index {index} is not kept now, so nothing of it can be built",
            hint="See penstock status: it may be stopped, or disabled in the deployment.",
        )
    if len(ids) > AT_ONCE:
        raise ConfigError(f"{len(ids)} documents are too many for one replay", hint=f"Send at most {AT_ONCE} ids.")
    there = {sink.name for sink in parts.sinks[index]}
    found = pipeline.state.quarantined(index, ids)
    entries = [one for one in found if one.sink in there]
    entries = entries if ids else entries[:AT_ONCE]
    told = {"taken": 0, "rejected": 0, "skipped": _skipped(pipeline, {one.sink for one in found} - there)}
    if entries:
        tally = quarantine.replay(parts, entries, pipeline.settled(), pipeline.state)
        told |= {"taken": len(tally.healed), "rejected": len(tally.rejected)}
    return told


def _skipped(pipeline: Pipeline, sinks: Collection[str]) -> dict[str, str]:
    away = "it was left behind, and is seeded when it answers again"
    return {one: away if one in pipeline.report.away else "it does not keep the index now" for one in sorted(sinks)}
