"""What WAL that is held back leads to, and what is remembered of sinks that were left behind."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.app.opening import open_present
from penstock.config.deployment import OnDown
from penstock.engine.lineage import Lineage
from penstock.engine.retention import Retention, SinkDownError
from penstock.engine.state import State
from penstock.errors import UnavailableError

MIB = 1 << 20


@pytest.mark.parametrize(("limit", "first"), [(None, 1024), (100, 50)])
def test_a_warning_comes_once_for_each_doubling(limit: int | None, first: int) -> None:
    """E73: from half of the limit on, or from a gigabyte; again when it was worked off meanwhile."""
    retention = Retention(limit * MIB if limit else None)
    steps = [first - 1, first, first + 1, 2 * first - 1, 2 * first, first // 2, first]
    assert [bool(retention.warning(step * MIB)) for step in steps] == [False, True, False, False, True, False, True]
    assert ("max_retained_wal" in retention.warning(9 * first * MIB)) == (limit is not None)


def test_past_the_limit_the_setting_of_each_sink_decides() -> None:
    """E73: hold goes on, detach leaves it behind, stop ends with a sentence that says what to do."""
    retention = Retention(10 * MIB)
    assert not Retention().is_exceeded(1 << 60)
    assert (retention.is_exceeded(10 * MIB), retention.is_exceeded(10 * MIB + 1)) == (False, True)
    words = {"a": "hold", "b": "detach", "c": "stop"}
    assert retention.leaving({"a"}, words, 11 * MIB) == []
    assert retention.leaving({"a", "b", "unknown"}, words, 11 * MIB) == ["b"]
    with pytest.raises(SinkDownError, match=r"sink c is down.* 11\.0 MiB .*\(10\.0 MiB\)") as stopped:
        retention.leaving({"b", "c"}, words, 11 * MIB)
    assert "on_down" in stopped.value.hint


def test_a_sink_that_was_left_behind_is_another_one_when_it_is_back(tmp_path: Path) -> None:
    """E73, E85: remembered over a restart; each time it is left behind, what it held then does not count."""
    state = State(tmp_path)
    lineage = Lineage(state)
    assert (lineage.away(), lineage.marks()) == ((), {})
    lineage.detach(["search"])
    first = lineage.marks()["search"]
    state.close()
    state = State(tmp_path)
    lineage = Lineage(state)
    assert (lineage.away(), lineage.marks()) == (("search",), {"search": first})
    lineage.attach("search")
    assert (lineage.away(), lineage.marks()) == ((), {"search": first})
    lineage.detach(["search"])
    assert lineage.away() == ("search",)
    assert lineage.marks()["search"] != first
    state.close()


def test_a_sink_that_is_down_at_the_start_is_waited_for_or_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E73: the slot holds until the limit is passed, and then the setting decides, as in the middle of a run."""
    held, paused, tried = [5 * MIB], list[str](), list[list[str]]()

    def open_parts(deployment: Any, origins: Any, present: list[str], builder: Any) -> str:
        tried.append(present)
        if "search" in present and len(tried) != answers_at:
            error = UnavailableError("the node is away")
            error.sink = "search"
            raise error
        return "opened"

    def opened(on_down: OnDown, **more: Any) -> Any:
        tried.clear()
        names = [SimpleNamespace(name="local", on_down=OnDown.HOLD), SimpleNamespace(name="search", on_down=on_down)]
        deployment: Any = SimpleNamespace(sinks=names, source=SimpleNamespace(max_retained_wal=10 * MIB))
        given: Any = {"pause": lambda seconds, why: paused.append(why)} | more
        return open_present(deployment, None, None, lineage, lambda: held[-1], **given)  # type: ignore[arg-type]

    monkeypatch.setattr("penstock.app.opening.open_parts", open_parts)
    answers_at = 3
    clock = itertools.count(step=20.0)  # of seconds, each time that it is asked
    monkeypatch.setattr("penstock.app.opening.monotonic", lambda: next(clock))
    with closing(State(tmp_path)) as state:
        lineage = Lineage(state)
        assert opened(OnDown.DETACH) == "opened"
        assert (paused, lineage.away()) == (["sink search does not answer"] * 2, ())
        with pytest.raises(UnavailableError, match="the node is away"):
            opened(OnDown.HOLD, pause=None)
        held.append(11 * MIB)
        assert opened(OnDown.HOLD) == "opened"
        assert opened(OnDown.STOP) == opened(OnDown.DETACH) == "opened"
        assert lineage.away() == (), "it answers within a minute"
        answers_at = 0
        with pytest.raises(SinkDownError, match="sink search is down"):
            opened(OnDown.STOP)
        assert lineage.away() == ()
        paused.clear()
        assert opened(OnDown.DETACH) == "opened"
        assert (tried[-1], lineage.away(), len(paused)) == (["local"], ("search",), 3)
