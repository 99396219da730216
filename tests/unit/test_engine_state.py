"""What a deployment remembers survives the process, belongs to one index, and is of a format that is known."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.contracts import Key, Rejection
from penstock.engine.state import FORMAT, Chunk, Seed, State
from penstock.errors import ConfigError, DiskError, OperatorError
from penstock.model import Lsn

SEED = Seed("books", "one", ("search", "copy"), Lsn(77))
CUTS: list[Key] = [("10", "a"), ("20", 'b"\\'), ("30", "ü")]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    with closing(State(tmp_path / "state")) as found:
        yield found


def again(state: State, tmp_path: Path) -> State:
    state.close()
    return State(tmp_path / "state")


def test_chunks_cover_every_key_once(state: State) -> None:
    state.begin_seed(SEED, CUTS)
    chunks = state.chunks_left("books")
    assert [chunk.number for chunk in chunks] == [0, 1, 2, 3]
    assert [chunk.upto for chunk in chunks] == [*CUTS, None]
    assert [chunk.after for chunk in chunks] == [None, *CUTS]


def test_an_index_without_cuts_is_one_chunk(state: State) -> None:
    state.begin_seed(SEED, [])
    assert state.chunks_left("books") == [Chunk(0, None, None)]


def test_a_seed_is_cut_later_unless_it_lost_its_place(state: State) -> None:
    """E66: live begins it; where its root rows are cut is found out by whoever fills it."""
    first = state.begin_seed(SEED)
    second = state.begin_seed(SEED)
    state.cut_seed(first, CUTS[:1])
    assert state.chunks_left("books") == [Chunk(0, None, None)]
    assert state.cut_seed(second, CUTS).total == 4
    assert [chunk.upto for chunk in state.chunks_left("books")] == [*CUTS, None]


def test_a_seed_goes_on_where_it_stood(state: State, tmp_path: Path) -> None:
    """E52: a restart does again only what was not durable."""
    seed = state.begin_seed(SEED, CUTS)
    chunks = state.chunks_left("books")
    state.finish_chunks(seed, [chunks[0], chunks[2]], 1500)
    with closing(again(state, tmp_path)) as found:
        assert found.seed("books") == Seed("books", "one", ("search", "copy"), Lsn(77), total=4, done=2, documents=1500)
        assert [chunk.number for chunk in found.chunks_left("books")] == [1, 3]


def test_what_a_killed_process_finished_is_remembered(tmp_path: Path) -> None:
    """E52: durable when the method returns, without a close."""
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from penstock.engine.state import State, Seed; from penstock.model import Lsn\n"
        "state = State(Path(sys.argv[1])); seed = Seed('books', 'one', ('s',), Lsn(5))\n"
        "seed = state.begin_seed(seed, [('1',)])\n"
        "state.finish_chunks(seed, state.chunks_left('books')[:1], 3); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    with closing(State(tmp_path)) as state:
        assert state.chunks_left("books") == [Chunk(1, ("1",), None)]


def test_a_disk_that_is_full_is_told_and_nothing_is_half_done(tmp_path: Path) -> None:
    """E89: here, a file may not grow beyond a limit; what was noted before is there, what failed is not."""
    program = (
        "import resource, sys; from pathlib import Path\n"
        "from penstock.engine.state import State; from penstock.errors import DiskError\n"
        "state = State(Path(sys.argv[1])); state.note_gone('books', [('before',)])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))\n"
        "try: state.note_gone('books', [(str(n), 'x' * 500) for n in range(4000)])\n"
        "except DiskError as error: print(error.message); sys.exit(7)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    assert "the state could not be written" in done.stdout
    with closing(State(tmp_path)) as state:
        assert list(state.gone("books")) == [[("before",)]]


def test_a_new_seed_takes_the_place_of_the_old_one_and_of_nothing_else(state: State) -> None:
    other = Seed("authors", "one", ("search",), Lsn(5))
    for seed in (SEED, other):
        state.finish_chunks(state.begin_seed(seed, CUTS), state.chunks_left(seed.index)[:1], 10)
        state.note_gone(seed.index, [("1", "x")])
    state.begin_seed(Seed("books", "two", ("search",), Lsn(99)), CUTS[:1])
    assert state.seed("books") == Seed("books", "two", ("search",), Lsn(99), total=2)
    assert list(state.gone("books")) == []
    assert state.seed("authors") == Seed("authors", "one", ("search",), Lsn(5), total=4, done=1, documents=10)
    assert list(state.gone("authors")) == [[("1", "x")]]


def test_an_ended_seed_is_forgotten_with_its_chunks(state: State) -> None:
    seed = state.begin_seed(replace(SEED, sweeps=True), CUTS)
    state.note_gone("books", [("1", "x")])
    assert state.end_seed(seed)
    assert not state.begin_seed(SEED, []).sweeps
    assert state.end_seed(state.begin_seed(SEED, []))
    assert (state.seed("books"), state.chunks_left("books"), list(state.gone("books"))) == (None, [], [])


@pytest.mark.parametrize("version", [99, 77])
def test_a_seed_that_lost_its_place_ends_nothing(state: State, version: int) -> None:
    """E66: a TRUNCATE began another one while the last chunks of this one were written; or the same batch came again,
    and what this one wrote was cleared."""
    first = state.begin_seed(SEED, CUTS)
    before = state.chunks_left("books")
    later = replace(SEED, version=Lsn(version))
    state.begin_seed(later, CUTS)
    state.note_gone("books", [("1", "x")])
    state.finish_chunks(first, before, 10)
    assert not state.end_seed(first)
    assert state.seed("books") == replace(later, total=4)
    assert list(state.gone("books")) == [[("1", "x")]]


def test_a_sweep_is_not_forgotten_before_a_seed_came_to_its_end(state: State, tmp_path: Path) -> None:
    """E66: whatever is begun in its place."""
    state.begin_seed(replace(SEED, sweeps=True), CUTS)
    state.begin_seed(replace(SEED, version=Lsn(99)), CUTS)
    with closing(again(state, tmp_path)) as found:
        seed = found.seed("books")
        assert seed and seed.sweeps and seed.version == Lsn(99)
        assert found.end_seed(seed)


def test_what_live_deleted_is_noted_once_and_exactly(state: State, tmp_path: Path) -> None:
    """E51: the keys come back as they were, also after a restart; a few at once, for there may be many (E54)."""
    state.begin_seed(SEED, CUTS)
    state.note_gone("books", CUTS)
    state.note_gone("books", CUTS[:1])
    with closing(again(state, tmp_path)) as found:
        pages = list(found.gone("books", at_once=2))
        assert [len(page) for page in pages] == [2, 1]
        assert sorted(pages[0] + pages[1]) == sorted(CUTS)


def test_quarantine_keeps_the_last_rejection_of_each_document(state: State, tmp_path: Path) -> None:
    """E81: durable, by index, sink and id."""
    state.quarantine(
        [("search", Rejection("books", "1", Lsn(10), "old")), ("copy", Rejection("books", "1", Lsn(10), "c"))]
    )
    state.quarantine([("search", Rejection("books", "1", Lsn(20), "new"))])
    with closing(again(state, tmp_path)) as found:
        assert found.count_quarantined() == len(found.quarantined())
        assert sorted((one.index, one.sink, one.id, one.version, one.reason) for one in found.quarantined()) == [
            ("books", "copy", "1", Lsn(10), "c"),
            ("books", "search", "1", Lsn(20), "new"),
        ]


def test_a_newer_format_is_refused_and_left_alone(state: State, tmp_path: Path) -> None:
    state.begin_seed(SEED, CUTS)
    state.close()
    file = tmp_path / "state" / "state.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"PRAGMA user_version = {FORMAT + 1}")
    before = file.read_bytes()
    with pytest.raises(ConfigError, match=f"format {FORMAT + 1}; this Penstock reads {FORMAT}"):
        State(tmp_path / "state")
    assert file.read_bytes() == before


@pytest.mark.parametrize(("keep", "why"), [(0, "SQLITE_NOTADB"), (100, "SQLITE_CORRUPT")])
def test_a_file_that_is_no_state_or_a_damaged_one_is_told_as_such(keep: int, why: str, tmp_path: Path) -> None:
    """Another folder, or rights to this one, would not help."""
    State(tmp_path).close()
    file = tmp_path / "state.sqlite"
    file.write_bytes(file.read_bytes()[:keep] + b"something else entirely, and long enough" * 1000)
    with pytest.raises(OperatorError, match=rf"state.sqlite is no SQLite file, or a damaged one \({why}\)") as found:
        State(tmp_path)
    assert "Move it away: the next run then seeds every index anew" in found.value.hint


def test_a_folder_that_cannot_be_made_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="cannot be used: not a directory"):
        State(tmp_path / "file" / "state")


def test_the_folder_is_its_users_own(state: State, tmp_path: Path) -> None:
    assert os.stat(tmp_path / "state").st_mode & 0o777 == 0o700


def test_threads_share_it(state: State) -> None:
    seed = state.begin_seed(SEED, [(str(n), "") for n in range(40)])
    chunks = state.chunks_left("books")[:40]
    threads = [threading.Thread(target=state.finish_chunks, args=(seed, [chunk], 10)) for chunk in chunks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = state.seed("books")
    assert found and (found.done, found.documents) == (40, 400)


def test_a_write_that_fails_changes_nothing(state: State) -> None:
    seed = state.begin_seed(SEED, CUTS)
    chunks = state.chunks_left("books")
    with pytest.raises(DiskError, match="could not be written"):
        state.finish_chunks(seed, [chunks[0], Chunk(object(), None, None)], 1)  # type: ignore[arg-type]
    assert len(state.chunks_left("books")) == 4
    state.finish_chunks(seed, chunks[:1], 1)  # and it goes on
    assert len(state.chunks_left("books")) == 3


def test_a_stopped_index_is_remembered(state: State, tmp_path: Path) -> None:
    """E76: its seed is over."""
    state.begin_seed(Seed("books", "one", ("local",), Lsn(5)), [("7",)])
    state.stop_index("books", "a column is gone")
    with closing(again(state, tmp_path)) as found:
        assert found.stopped() == {"books": "a column is gone"}
        assert found.seed("books") is None


def test_one_process_at_a_time_runs_with_a_state(state: State, tmp_path: Path) -> None:
    """A second one waits, and takes over when the first has ended."""
    assert state.acquire()
    with closing(State(tmp_path / "state")) as second:
        assert not second.acquire()
        state.close()
        assert second.acquire()
