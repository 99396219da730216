"""Frames put together to transactions: whole, in commit order, without what was rolled back, or refused."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DecodeError, DiskError
from penstock.model import Lsn
from penstock.postgres import pgoutput as pg
from penstock.postgres.spool import Segment
from penstock.postgres.transactions import Assembler, Keepalive, Rows, Transaction, Truncated
from tests.unit import wire

R = wire.relation(1)
HUGE = 1 << 40


def row(number: int, xid: int | None = None, oid: int = 1, width: int = 2) -> pg.Insert:
    return pg.Insert(oid, (b"%d" % number, *([b"x"] * (width - 1))), xid)


def in_piece(message: pg.Message, xid: int = 9) -> pg.Message:
    return replace(message, xid=xid)  # type: ignore[call-arg]


@dataclass
class Whole:
    """A transaction as a consumer sees it: each row's number and the width of its table then."""

    xid: int
    end_lsn: int
    rows: list[tuple[int, int]] = field(default_factory=list)


def read(transaction: Transaction) -> Whole:
    found = Whole(transaction.xid, transaction.end_lsn, rows_in(transaction.pieces()))
    assert transaction.rows == len(found.rows)
    for first in range(min(transaction.rows, 20)):  # a window on it shows the same rows
        for end in {first + 1, first + 3, transaction.rows}:
            assert rows_in(transaction.pieces(first, end)) == found.rows[first:end]
    transaction.release()
    return found


def rows_in(parts: Iterable[Rows | Truncated]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for part in parts:
        if isinstance(part, Truncated):
            found += [(-relation.oid, len(relation.columns)) for relation in part.relations]
            continue
        for message in part.block.rows(part.first, part.end).messages():
            decoded = pg.decode(message, streamed=part.block.streamed, relations=part.block.relations)
            assert isinstance(decoded, pg.Insert)
            found.append((int(decoded.new[0] or b""), len(decoded.new)))
    return found


def assemble(frames: Sequence[bytes], *cuts: int, spill_bytes: int = HUGE) -> list[Whole | Keepalive]:
    """Feed frames, in several portions where `cuts` says so."""
    assembler = Assembler(spill_bytes)
    bounds = [0, *sorted(cuts), len(frames)]
    events = [e for a, b in pairwise(bounds) for e in assembler.feed(frames[a:b])]
    assembler.reset()
    return [read(event) if isinstance(event, Transaction) else event for event in events]


def numbers(event: Whole | Keepalive) -> list[int]:
    assert isinstance(event, Whole)
    return [number for number, _ in event.rows]


def test_a_transaction_comes_out_at_its_commit_and_not_before() -> None:
    """E10, E13: nothing of it is visible until then; a reset forgets it, and it may come again whole."""
    frames = [*wire.frames(R), *wire.transaction(100, row(1), row(2))]
    assembler = Assembler()
    assert not list(assembler.feed(frames[:-1]))
    assert not assembler.between_transactions
    assembler.reset()
    assert assembler.between_transactions
    (transaction,) = assembler.feed(frames)
    assert isinstance(transaction, Transaction)
    assert read(transaction) == Whole(754, 100, [(1, 2), (2, 2)])


def test_streamed_transactions_interleave_and_come_in_commit_order() -> None:
    """E10: pieces of two, a plain one between them; each whole, the order is that of the commits."""
    described = [in_piece(R, 8), in_piece(R, 9)]
    frames = [
        *wire.piece(8, described[0], row(81, 8), first=True),
        *wire.piece(9, described[1], row(91, 9), first=True),
        *wire.piece(8, row(82, 8)),
        *wire.frames(R),
        *wire.transaction(100, row(1), xid=10),
        *wire.piece(9, row(92, 9)),
        wire.stream_commit(200, 9),
        wire.keepalive(250),
        wire.stream_commit(300, 8),
    ]
    found = assemble(frames)
    assert [e.end_lsn if isinstance(e, Whole) else int(e.wal_end) for e in found] == [100, 200, 250, 300]
    assert [numbers(e) for e in found if isinstance(e, Whole)] == [[1], [91, 92], [81, 82]]


def test_a_rolled_back_streamed_transaction_never_comes_out() -> None:
    """E11."""
    frames = [
        *wire.piece(9, in_piece(R), row(1, 9), first=True),
        *wire.frames(pg.StreamAbort(9, 9)),
        *wire.frames(R),
        *wire.transaction(100, row(2)),
    ]
    assert [numbers(event) for event in assemble(frames)] == [[2]]
    with pytest.raises(DecodeError, match="commit without a begin"):
        assemble([*frames, wire.stream_commit(200, 9)])


def test_rolled_back_savepoints_vanish_and_ordinals_are_as_without_them() -> None:
    """E11: nested ones, rows and truncates; what is left counts on without a gap."""
    frames = [
        *wire.piece(9, in_piece(R), row(1, 9), row(2, 91), in_piece(pg.Truncate((1,)), 91), row(3, 92), first=True),
        *wire.frames(pg.StreamAbort(9, 92)),
        *wire.piece(9, in_piece(R), row(4, 9), row(5, 91)),
        *wire.frames(pg.StreamAbort(9, 91)),
        *wire.piece(9, in_piece(R), in_piece(pg.Truncate((1,))), row(6, 93)),
        wire.stream_commit(100, 9),
    ]
    assert [numbers(event) for event in assemble(frames)] == [[1, 4, -1, 6]]


def test_a_transaction_of_nothing_but_rolled_back_savepoints_is_empty() -> None:
    """E11: as is one without any row; both come, so that the slot can pass them."""
    frames = [
        *wire.transaction(50),
        *wire.piece(9, in_piece(R), row(2, 91), first=True),
        *wire.frames(pg.StreamAbort(9, 91)),
        wire.stream_commit(100, 9),
    ]
    assert assemble(frames) == [Whole(754, 50), Whole(9, 100)]
    assert assemble(frames, spill_bytes=0) == [Whole(754, 50), Whole(9, 100)]


def test_rows_keep_the_shape_of_their_time() -> None:
    """E5: a relation described again, twice in one transaction."""
    wider, renamed = wire.relation(1, ["id", "note", "more"]), wire.relation(1, ["id", "remark"])
    frames = [*wire.frames(R), *wire.transaction(100, row(1), wider, row(2, width=3), renamed, row(3), row(4))]
    assembler = Assembler()
    (transaction,) = assembler.feed([*frames, *wire.transaction(200, row(5))][: len(frames)])
    assert isinstance(transaction, Transaction)
    shapes = [names_of(part) for part in transaction.pieces()]
    assert shapes == [["id", "note"], ["id", "note", "more"], ["id", "remark"]]
    assert read(transaction).rows == [(1, 2), (2, 3), (3, 2), (4, 2)]
    (after,) = assembler.feed(wire.transaction(200, row(5)))
    assert isinstance(after, Transaction)
    assert [names_of(part) for part in after.pieces()] == [["id", "remark"]]


def test_a_relation_described_again_in_the_same_words_is_another_one_and_splits_no_rows() -> None:
    """E7: a table that was attached meanwhile is told so, and told by nothing else."""
    frames = [wire.transaction(lsn, wire.relation(1), row(lsn)) for lsn in (100, 200)]
    assembler, found = Assembler(), []
    for received in frames:
        (transaction,) = assembler.feed(received)
        assert isinstance(transaction, Transaction)
        (part,) = transaction.pieces()
        assert isinstance(part, Rows)
        found.append((part.block, part.block.relations[1]))
    (first, was), (second, now) = found
    assert was == now and was is not now and first.joins(second)


def names_of(part: Rows | Truncated) -> list[str]:
    assert isinstance(part, Rows)
    return [column.name for column in part.block.relations[1].columns]


def test_what_a_piece_describes_holds_for_others_once_it_has_committed() -> None:
    """E5: not before, and not if it is rolled back."""
    wider = wire.relation(1, ["id", "note", "more"])
    frames = [*wire.frames(R), *wire.piece(9, in_piece(wider), row(1, 9, width=3), first=True)]
    frames += wire.transaction(100, row(2))
    committed = [*frames, wire.stream_commit(200, 9), *wire.transaction(300, row(3, width=3))]
    assert [event.rows for event in assemble(committed) if isinstance(event, Whole)] == [[(2, 2)], [(1, 3)], [(3, 3)]]
    aborted = [*frames, *wire.frames(pg.StreamAbort(9, 9)), *wire.transaction(300, row(3))]
    assert [event.rows for event in assemble(aborted) if isinstance(event, Whole)] == [[(2, 2)], [(3, 2)]]


def test_what_was_described_before_a_savepoint_was_rolled_back_is_not_held_at_the_commit() -> None:
    """E5, E11: the savepoint's locks are gone, so another transaction may have altered the table meanwhile."""
    wider = wire.relation(1, ["id", "note", "more"])
    frames = [
        *wire.piece(9, in_piece(R), row(1, 91), first=True),
        *wire.frames(pg.StreamAbort(9, 91)),
        *wire.transaction(100, wider, row(2, width=3)),
        wire.stream_commit(200, 9),
        *wire.transaction(300, row(3, width=3)),
    ]
    assert [event.rows for event in assemble(frames) if isinstance(event, Whole)] == [[(2, 3)], [], [(3, 3)]]


BEGIN, COMMIT = pg.Begin(Lsn(8), 0, 754), pg.Commit(0, Lsn(8), Lsn(16), 0)
NONSENSE = {
    "a commit without a begin": (wire.frames(COMMIT), "C"),
    "a begin in a begin": (wire.frames(BEGIN, BEGIN), "B"),
    "a begin in a piece": (wire.frames(pg.StreamStart(9, True), BEGIN), "B"),
    "a piece in a begin": (wire.frames(BEGIN, pg.StreamStart(9, True)), "S"),
    "a piece in a piece": (wire.frames(pg.StreamStart(9, True), pg.StreamStart(8, True)), "S"),
    "a later piece without a first": (wire.frames(pg.StreamStart(9, False)), "S"),
    "an end of no piece": (wire.frames(pg.StreamStop()), "E"),
    "a commit of pieces that never came": ([wire.stream_commit(100, 9)], "c"),
    "a commit of pieces inside one": ([*wire.frames(pg.StreamStart(9, True)), wire.stream_commit(100, 9)], "c"),
    "a plain commit in a piece": (wire.frames(pg.StreamStart(9, True), COMMIT), "C"),
    "a row outside of a transaction": (wire.frames(R, row(1)), "I"),
    "a truncate outside of a transaction": (wire.frames(R, pg.Truncate((1,))), "T"),
    "a truncate of an unknown relation": (wire.frames(R, BEGIN, pg.Truncate((1, 2))), "T"),
    "a begin cut short": ([wire.frame(BEGIN)[:-1], *wire.frames(COMMIT)], "B"),
    "a begin with more": ([wire.frame(BEGIN) + b"\0", *wire.frames(COMMIT)], "B"),
    "a commit cut short": ([*wire.frames(BEGIN), wire.frame(COMMIT)[:-1], wire.keepalive(1)], "C"),
    "a commit with more": ([*wire.frames(BEGIN), wire.frame(COMMIT) + b"\0"], "C"),
    "an empty frame": ([b""], ""),
    "an empty frame after others": ([*wire.frames(R), b""], ""),
    "WAL data without a message": ([b"w" + bytes(24)], "'w'"),
    "a keepalive cut short": ([wire.keepalive(1)[:-1]], "'k'"),
    "a keepalive with more": ([wire.keepalive(1) + b"\0"], "'k'"),
    "a frame of another kind": ([b"\x1b" + bytes(30)], r"'\x1b'"),
    "a row in a piece without its xid": (wire.frames(pg.StreamStart(9, True), b"I\0\0\0"), ""),
}  # fmt: skip


@pytest.mark.parametrize(("frames", "tag"), NONSENSE.values(), ids=NONSENSE.keys())
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
def test_frames_that_make_no_sense_are_refused(frames: list[bytes], tag: str, at_once: bool) -> None:
    """E14, E2."""
    with pytest.raises(DecodeError) as refused:
        assemble(frames, *([] if at_once else range(1, len(frames))))
    assert refused.value.tag == tag
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("xid", [None, 9], ids=["plain", "streamed"])
def test_a_row_of_a_relation_never_described_is_refused_when_it_is_read(xid: int | None) -> None:
    """E14: also where another transaction's pieces described it."""
    if xid is None:
        frames = [*wire.piece(9, in_piece(R), first=True), *wire.transaction(100, row(1))]
    else:
        frames = [*wire.frames(R), *wire.piece(9, row(1, 9), first=True), wire.stream_commit(100, 9)]
    with pytest.raises(DecodeError, match="never described"):
        assemble(frames)


def test_messages_that_change_no_row_pass_without_a_trace() -> None:
    """E1: origin, type and logical messages, in and outside of transactions."""
    others = [pg.Origin(Lsn(1), "o"), pg.Type(16400, "public", "mood")]
    message = pg.LogicalMessage(True, Lsn(1), "p", b"c")
    frames = [
        *wire.frames(R, replace(message, transactional=False)),
        *wire.transaction(100, *others, message, row(1)),
        *wire.piece(
            9, pg.Origin(Lsn(1), "o"), in_piece(others[1]), in_piece(message), in_piece(R), row(2, 9), first=True
        ),
        wire.stream_commit(200, 9),
    ]
    assert [numbers(event) for event in assemble(frames)] == [[1], [2]]


def test_a_keepalive_is_told_with_its_wish_for_an_answer() -> None:
    """E24."""
    far = Lsn(0x8877665544332211)
    assert assemble([wire.keepalive(5), wire.keepalive(far, True)]) == [Keepalive(Lsn(5), False), Keepalive(far, True)]


@pytest.mark.parametrize("spill_bytes", [0, HUGE], ids=["spilled", "held"])
def test_a_transaction_knows_the_bytes_that_its_rows_came_in(spill_bytes: int) -> None:
    """E12: by which buffers are bounded; a spilled one counts as a held one."""
    rows = [row(number) for number in range(3)]
    frames = [*wire.frames(R), *wire.transaction(100, *rows[:1]), *wire.transaction(200, *rows[1:])]
    assembler = Assembler(spill_bytes)
    found = [event for at in range(len(frames)) for event in assembler.feed(frames[at : at + 1])]
    expected = [sum(len(wire.frame(one)) for one in some) for some in (rows[:1], rows[1:])]
    assert [event.size for event in found if isinstance(event, Transaction)] == expected
    assert [event.size for event in Assembler(spill_bytes).feed(frames) if isinstance(event, Transaction)] == expected
    assert [bool(event.spool) for event in found if isinstance(event, Transaction)] == [not spill_bytes] * 2
    for event in found:
        assert isinstance(event, Transaction)
        event.release()


def test_open_transactions_hold_no_more_memory_than_allowed(tmp_path: os.PathLike[str]) -> None:
    """E12: together; the rest is on disk, under no name, and given back."""
    limit, before = 10_000, open_files()
    assembler = Assembler(limit, os.fspath(tmp_path))
    list(assembler.feed([*wire.piece(8, in_piece(R, 8), first=True), *wire.piece(9, in_piece(R, 9), first=True)]))
    for number in range(300):
        for xid in (8, 9):
            list(assembler.feed(wire.piece(xid, row(number, xid), row(1000 + number, 100 + xid))))
            held = sum(part.memory for part in assembler._running.values())
            assert held <= limit
    assert not os.listdir(tmp_path), "the spool's file has no name"
    assert open_files() == before + 2
    (found,) = assembler.feed([*wire.frames(pg.StreamAbort(8, 108)), wire.stream_commit(100, 8)])
    assert isinstance(found, Transaction)
    assert found.size > limit
    assert numbers(read(found)) == list(range(300))
    assembler.reset()
    assert open_files() == before


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
def test_a_few_rows_do_not_hold_what_was_received_with_them(streamed: bool) -> None:
    """E12: a long transaction of few rows among many rows of others."""
    others = [frame for _ in range(50) for frame in wire.transaction(100, pg.Insert(1, (b"1", b"x" * 2000)))]
    assembler = Assembler()
    list(assembler.feed([*wire.frames(R), *wire.piece(9, in_piece(R), first=True)]))
    tracemalloc.start()
    try:
        for number in range(50):
            mine = wire.piece(9, row(number, 9)) if streamed else []
            assert sum(1 for _ in assembler.feed([*others, *mine, *others])) == 100
        if not streamed:  # the end of the last portion belongs to a transaction that goes on
            list(assembler.feed([*others, *wire.transaction(200, row(1))[:-1]]))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        assembler.reset()
    assert held < 100_000, "one portion alone has 200 kB"


def test_a_window_on_a_spilled_transaction_reads_no_more_than_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """E12: also where a savepoint was rolled back, so that a huge one can be read window by window."""
    assembler = Assembler(0)
    list(assembler.feed(wire.piece(9, in_piece(R), first=True)))
    for number in range(50):
        list(assembler.feed(wire.piece(9, row(number, 9), row(number, 91 + number % 2))))
    (found,) = assembler.feed([*wire.frames(pg.StreamAbort(9, 91)), wire.stream_commit(100, 9)])
    assert isinstance(found, Transaction)
    loaded: list[Segment] = []
    load = Segment.load
    monkeypatch.setattr(Segment, "load", lambda segment: (loaded.append(segment), load(segment))[1])
    assert [number for number, _ in rows_in(found.pieces(70, 72))] == [47, 47]
    found.release()
    assert len(loaded) <= 2


def open_files() -> int:
    return len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))


def test_a_spool_that_cannot_be_written_is_a_disk_error() -> None:
    """E12: it names the folder and the setting."""
    assembler = Assembler(0, "/nowhere/to/be/found")
    with pytest.raises(DiskError, match=r"/nowhere/to/be/found.*(?s:.)*spill_dir"):
        list(assembler.feed(wire.piece(9, in_piece(R), row(1, 9), first=True)))


class Walsender:
    """Sends what a server would: a random history of transactions, plain and in pieces, with savepoints and DDL.

    Keeps the server's books of which relation was described to whom, and the truth in `expected`.
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.frames: list[bytes] = []
        self.expected: list[Whole] = []
        self.widths = {1: 2, 2: 1}
        self.known: set[int] = set()
        self.running: dict[int, dict[int, list[tuple[int, int, int]]]] = {}  # top xid → subxid → rows
        self.described: dict[int, set[int]] = {}
        self.xid, self.lsn, self.number = 700, 1000, 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.rng.choice(
                [self.plain, self.piece, self.piece, self.abort_part, self.finish, self.alter, self.quiet]
            )()
        while self.running:
            self.finish()

    def alter(self) -> None:
        oid = self.rng.choice([1, 2])
        locked = {oid for parts in self.running.values() for rows in parts.values() for _, oid, _ in rows}
        if oid not in locked:
            self.widths[oid] = self.rng.randint(1, 3)
            self.known.discard(oid)
            for described in self.described.values():
                described.discard(oid)

    def quiet(self) -> None:
        self.frames.append(wire.keepalive(self.lsn))

    def plain(self) -> None:
        self.xid += 1
        rows = [self._row() for _ in range(self.rng.randint(0, 4))]
        messages: list[pg.Message] = []
        for number, oid, width in rows:
            messages += self._describe(self.known, oid, None)
            messages.append(row(number, None, oid, width))
        self._commit(self.xid, rows)
        self.frames += wire.transaction(self.lsn, *messages, xid=self.xid)

    def piece(self) -> None:
        first = not self.running or self.rng.random() < 0.3
        if first:
            self.xid += 1
            self.running[self.xid] = {self.xid: []}
            self.described[self.xid] = set()
        top = self.xid if first else self.rng.choice(list(self.running))
        messages: list[pg.Message] = []
        for _ in range(self.rng.randint(0, 4)):
            if self.rng.random() < 0.3:
                self.xid += 1
                self.running[top][self.xid] = []
            sub = self.rng.choice(list(self.running[top]))
            one = self._row()
            self.running[top][sub].append(one)
            messages += self._describe(self.described[top], one[1], sub)
            messages.append(row(one[0], sub, one[1], one[2]))
        self.frames += wire.piece(top, *messages, first=first)

    def abort_part(self) -> None:
        if not self.running:
            return
        top = self.rng.choice(list(self.running))
        sub = self.rng.choice(list(self.running[top]))
        self.frames += wire.frames(pg.StreamAbort(top, sub))
        if sub == top:
            del self.running[top], self.described[top]
        else:
            del self.running[top][sub]
            self.described[top].clear()

    def finish(self) -> None:
        if not self.running:
            return
        top = self.rng.choice(list(self.running))
        rows = sorted(one for rows in self.running.pop(top).values() for one in rows)
        self.known |= self.described.pop(top)
        self._commit(top, rows)
        self.frames.append(wire.stream_commit(self.lsn, top))

    def _row(self) -> tuple[int, int, int]:
        self.number += 1
        oid = self.rng.choice([1, 2])
        return self.number, oid, self.widths[oid]

    def _describe(self, known: set[int], oid: int, xid: int | None) -> list[pg.Message]:
        if oid in known:
            return []
        known.add(oid)
        return [replace(wire.relation(oid, [f"c{i}" for i in range(self.widths[oid])]), xid=xid)]

    def _commit(self, xid: int, rows: list[tuple[int, int, int]]) -> None:
        self.lsn += 100
        self.expected.append(Whole(xid, self.lsn, [(number, width) for number, _, width in rows]))


@settings(max_examples=70)
@given(
    st.integers(0, 2**32), st.sampled_from([0, 60, 400, HUGE]), st.lists(st.floats(0, 1, exclude_max=True), max_size=6)
)
def test_whatever_the_server_sends_comes_out_as_it_was_committed(
    seed: int, spill_bytes: int, cuts: list[float]
) -> None:
    """E5, E10–E12: however the frames arrive in portions and whatever is spilled."""
    server = Walsender(Random(seed))
    server.run(20)
    found = assemble(server.frames, *(int(cut * len(server.frames)) for cut in cuts), spill_bytes=spill_bytes)
    assert [event for event in found if isinstance(event, Whole)] == server.expected


@given(st.integers(0, 2**32), st.data())
def test_a_stream_cut_anywhere_gives_a_prefix_of_its_transactions(seed: int, data: st.DataObject) -> None:
    """E13: whole ones only."""
    server = Walsender(Random(seed))
    server.run(20)
    end = data.draw(st.integers(0, len(server.frames)))
    found = [event for event in assemble(server.frames[:end]) if isinstance(event, Whole)]
    assert found == server.expected[: len(found)]


@given(st.integers(0, 2**32))
def test_broken_frames_give_transactions_or_a_decode_error(seed: int) -> None:
    """E2, E14: nothing else, whatever bytes or frames are changed, lost or doubled."""
    rng = Random(seed)
    server = Walsender(rng)
    server.run(12)
    frames = list(server.frames) or [wire.keepalive(1)]
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(frames))
        how = rng.choice(["byte", "cut", "lost", "double"])
        if how == "byte" and frames[at]:
            place = rng.randrange(len(frames[at]))
            frames[at] = frames[at][:place] + rng.randbytes(1) + frames[at][place + 1 :]
        elif how == "cut":
            frames[at] = frames[at][: rng.randrange(len(frames[at]) + 1)]
        elif how == "double":
            frames.insert(at, frames[at])
        elif len(frames) > 1:
            del frames[at]
    try:
        raw = [event for event in _feed(frames, rng.choice([0, HUGE])) if isinstance(event, Transaction)]
        for transaction in raw:
            for part in transaction.pieces():
                if isinstance(part, Rows):
                    list(part.block.messages())
            transaction.release()
    except DecodeError:
        pass


def _feed(frames: list[bytes], spill_bytes: int) -> list[Transaction | Keepalive]:
    assembler = Assembler(spill_bytes)
    try:
        return list(assembler.feed(frames))
    finally:
        assembler.reset()
