"""`penstock quarantine`: what there is, and what is done about it, in a running deployment or on its state alone.

Guarantees: a replay builds and sends a bounded number of documents and returns, so that whoever asks hears of it while
it goes on; live goes on meanwhile. Without a running deployment, entries are read and dropped, not replayed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

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


def answer(pipeline: Pipeline, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The control socket's `quarantine`: `action` is list, drop or replay; `index` and `ids` say which documents."""
    index, ids = asked.get("index", ""), asked.get("ids", ())
    if asked["action"] == "replay":
        return _replay(pipeline, index, ids)
    done = _on_state(pipeline.state, asked["action"], index, ids)
    pipeline.report.quarantined = len(pipeline.state.aside())
    return done


def look(folder: Path, index: str = "", ids: Collection[str] = ()) -> list[Entry]:
    """What is in quarantine."""
    found = _asked(folder, "list", index, ids)["entries"]
    return [Entry(**{**one, "version": Lsn.parse(one["version"])}) for one in found]


def drop(folder: Path, index: str = "", ids: Collection[str] = ()) -> int:
    """Forget entries; how many there were."""
    return int(_asked(folder, "drop", index, ids)["dropped"])


def replay(folder: Path, index: str, ids: Sequence[str]) -> dict[str, int]:
    """Have the running deployment build and send documents again; how many were taken, and rejected again."""
    return dict(ask(folder, "quarantine", action="replay", index=index, ids=list(ids)))


def _asked(folder: Path, action: str, index: str, ids: Collection[str]) -> dict[str, Any]:
    """By the running deployment, or by its state where none runs."""
    try:
        return dict(ask(folder, "quarantine", action=action, index=index, ids=list(ids)))
    except NothingRunsError:
        if not (folder / "state.sqlite").exists():
            raise
    with closing(State(folder)) as state:
        if action == "drop" and not state.acquire():
            raise RetryableError(f"a penstock is starting or ending with the state in {folder}", hint="Try again.")
        return _on_state(state, action, index, ids)


def _on_state(state: State, action: str, index: str, ids: Collection[str]) -> dict[str, Any]:
    found = state.quarantined(index, ids)
    if action == "list":
        return {"entries": [{**asdict(one), "version": str(one.version)} for one in found]}
    if action != "drop":
        raise ConfigError(f"quarantine knows no {action!r}", hint="There are: list, drop, replay.")
    state.release(found)
    return {"dropped": len(found)}


def _replay(pipeline: Pipeline, index: str, ids: Collection[str]) -> dict[str, int]:
    parts = pipeline.plan.parts
    if index not in parts.sinks:
        raise ConfigError(
            f"index {index} is not kept now, so nothing of it can be built",
            hint="See penstock status: it may be stopped, or disabled in the deployment.",
        )
    entries = [one for one in pipeline.state.quarantined(index, ids) if _is_kept(parts.sinks[index], one)]
    entries = entries if ids else entries[:AT_ONCE]
    if not entries:
        return {"taken": 0, "rejected": 0}
    tally = quarantine.replay(parts, entries, pipeline.settled(), pipeline.state)
    pipeline.report.quarantined = len(pipeline.state.aside())
    return {"taken": len(tally.healed), "rejected": len(tally.rejected)}


def _is_kept(sinks: Sequence[Any], entry: Entry) -> bool:
    return any(sink.name == entry.sink for sink in sinks)
