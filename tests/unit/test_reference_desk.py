"""The desk that Spark's tasks ask for a view's rows: who is answered, and of which version."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from penstock.errors import OperatorError, PenstockError, UnavailableError
from penstock.reference.view import ReferenceView
from penstock.spark.reference import ViewDesk, fetch
from tests.unit.reference_parts import SHAPE, Script, insert


@pytest.fixture
def source() -> Script:
    return Script([(number, "x", None) for number in range(10)])


@pytest.fixture
def desk(source: Script) -> Iterator[ViewDesk]:
    with ReferenceView(source) as view:
        view.update()
        yield ViewDesk(view, "127.0.0.1")


def ids(desk: ViewDesk, run: str, part: int = 0, parts: int = 1) -> list[int]:
    return [row["id"] for batch in fetch(desk.place, run, part, parts, SHAPE.schema) for row in batch.to_pylist()]


def test_a_run_sees_one_version_and_the_next_one_the_newest(desk: ViewDesk, source: Script) -> None:
    """E97: parts of one run fit together, whatever happens between them; a task that is tried again sees the same."""
    first = ids(desk, "query/0", 0, 3)
    source.will_send(insert(10, "y", None))
    assert first + ids(desk, "query/0", 1, 3) + ids(desk, "query/0", 2, 3) == list(range(10))
    assert ids(desk, "query/0", 0, 3) == first
    assert ids(desk, "query/1") == list(range(11))
    source.will_send(insert(11, "y", None))
    for number in range(20):
        assert len(desk.version(f"execution {number}")) == 12
        assert len(desk.version(f"other/{number}")) == 12
        assert len(desk.version(f"other {number}/0")) == 12
    assert ids(desk, "query/1") == list(range(11)), "a query's version is kept until its next micro-batch"
    assert ids(desk, "query/2") == list(range(12))
    assert ids(desk, "query/1") == list(range(11)), "a late task of the micro-batch before"
    source.will_send(insert(12, "y", None))
    assert ids(desk, "query/2") == list(range(12)), "which changes nothing for those of this one"
    assert ids(desk, "query/3") == list(range(13))
    for number in range(200):
        desk.version(f"other {number}/0")
        desk.version(f"other {number}/1")
        desk.version(f"other {number}/2")
    assert len(desk._versions) == 8 + 2 * 64, "old ones are forgotten"


def test_a_micro_batch_of_another_run_of_its_query_asks_anew(desk: ViewDesk, source: Script) -> None:
    """E97: one that does not say which run it is of gets what that batch saw last."""
    assert len(desk.version("query/5/one")) == 10
    source.will_send(insert(10, "y", None))
    assert [len(desk.version(f"query/5/{run}")) for run in ("one", "", "two", "")] == [10, 10, 11, 11]
    assert len(desk.version("query/6/")) == 11
    source.will_send(insert(11, "y", None))
    assert [len(desk.version(f"query/{batch}/")) for batch in (6, 50)] == [11, 12]


def test_who_does_not_know_the_key_is_not_answered_and_a_closed_view_answers_nobody(desk: ViewDesk) -> None:
    assert "key" not in repr(desk.place)
    stranger = ViewDesk.__new__(ViewDesk)
    stranger.place = replace(desk.place, key=b"guessed")
    with pytest.raises(UnavailableError, match="does not answer: AuthenticationError"):
        ids(stranger, "run")
    assert len(ids(desk, "run")) == 10
    desk._view.close()
    with pytest.raises(UnavailableError, match="does not answer"):
        ids(desk, "run")


def test_a_view_in_trouble_is_shown_as_it_is_unless_it_is_too_old(desk: ViewDesk, source: Script) -> None:
    trouble: PenstockError = OperatorError("the slot is lost")
    source.coming.append(trouble)
    assert len(ids(desk, "one")) == 10
    desk._max_age_s = 0.0
    source.coming.append(trouble)
    with pytest.raises(OperatorError, match=r"s old, and may be 0: the slot is lost"):
        ids(desk, "two")
