"""What one table is given of a stream: its own rows, once, from its place on, and what that means for the slot."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import OperatorError
from penstock.model import Lsn, Position, QualifiedTable
from penstock.postgres import changes
from penstock.postgres.columns import Block
from penstock.postgres.pgoutput import Column, Insert, Relation
from penstock.postgres.snapshot_plan import Selection
from penstock.postgres.transactions import Rows, Transaction, Truncated
from penstock.reference.backlog import Backlog
from penstock.reference.delivery import Delivery
from penstock.reference.seen import Seen
from penstock.reference.shape import Known
from tests.unit import wire
from tests.unit.reference_parts import INT8, SHAPE, TABLE, TEXT, rows

COLUMNS = (Column("id", INT8, -1, True), Column("name", TEXT, -1, False), Column("notes", TEXT, -1, False))
CITY, OTHER = 1, 2
RELATIONS = {
    CITY: Relation(CITY, TABLE, "d", COLUMNS),
    OTHER: Relation(OTHER, QualifiedTable("public", "other"), "d", COLUMNS[:1]),
}
RETYPED = {**RELATIONS, CITY: Relation(CITY, TABLE, "d", (*COLUMNS[:2], Column("notes", INT8, -1, False)))}


def delivery(*, partitioned: bool = False, **streamed: QualifiedTable) -> Delivery:
    known = Known(
        SHAPE, Selection(TABLE, ()), {CITY: TABLE, **{int(k[1:]): v for k, v in streamed.items()}}, partitioned
    )
    return Delivery(known, "error")


def transaction(
    lsn: int, *oids_and_ids: tuple[int, int], relations: dict[int, Relation] = RELATIONS, xid: int = 5
) -> Transaction:
    found = [
        wire.encode(Insert(oid, (str(one).encode(), *[b"7"] * (len(relations[oid].columns) - 1))))
        for oid, one in oids_and_ids
    ]
    block = Block.of(found, relations)
    size = sum(map(len, found))
    return Transaction(xid, Lsn(lsn), 0, len(found), size, [Rows(block, 0, len(found))])


def offer(to: Delivery, *transactions: Transaction, max_rows: int = 1000) -> None:
    for piece in changes.pieces(transactions, max_rows, 1 << 20):
        to.offer(piece)


def taken(from_: Delivery) -> list[tuple[int, int, int]]:
    """Everything that waits: position and id."""
    found = []
    while (batch := from_.take()) is not None:
        found += [(row["_commit_lsn"], row["_seq"], row["id"]) for row in batch.to_pylist()]
    return found


def test_a_table_is_given_its_own_rows_behind_its_place_and_each_once() -> None:
    """E92: also where a stream begins again before what was taken."""
    city = delivery()
    city.place(Position(Lsn(20), 0), Lsn(20))
    stream = [
        transaction(10, (CITY, 1)), transaction(20, (CITY, 2), (CITY, 3)), transaction(30, (OTHER, 9), (CITY, 4)),
        transaction(40, (OTHER, 9)), transaction(50, (CITY, 5), (OTHER, 9), (CITY, 6)),
    ]  # fmt: skip
    offer(city, *stream)
    assert taken(city) == [(30, 1, 4), (50, 0, 5), (50, 2, 6)]
    city.rewind(Lsn(55))
    offer(city, *stream, transaction(60, (CITY, 7)))
    assert taken(city) == [(60, 0, 7)]


def test_the_slot_may_pass_whole_transactions_only() -> None:
    """E92: a position covers what was taken; a transaction that was taken in part holds the slot before it."""
    city = delivery()
    city.place(Position(Lsn(10), 0), Lsn(10))
    assert city.reached(Lsn(15)) == (Position(Lsn(15), 0), 15), "nothing waits: what was read counts"
    offer(city, transaction(20, (CITY, 1)), transaction(30, (CITY, 2), (CITY, 3), (CITY, 4)), max_rows=2)
    assert city.reached(Lsn(30)) == (Position(Lsn(15), 0), 15), "what waits is not covered; what was said holds"
    for position, whole in [(Position(Lsn(20), 0), 20), (Position(Lsn(30), 1), 20), (Position(Lsn(30), 2), 30)]:
        assert city.take() is not None
        assert city.reached(Lsn(30)) == (position, whole)
    assert city.reached(Lsn(35)) == (Position(Lsn(35), 0), 35)
    again = delivery()
    again.place(Position(Lsn(30), 1), Lsn(20))
    assert again.reached(Lsn(25)) == (Position(Lsn(30), 1), 25), "a stream that begins before it takes nothing back"
    offer(again, transaction(20, (CITY, 1)), transaction(30, (CITY, 2), (CITY, 3), (CITY, 4)))
    assert taken(again) == [(30, 2, 4)]


def test_what_there_is_no_room_for_is_not_covered_and_comes_again() -> None:
    """E92: what waits is handed out; behind it nothing counts as delivered until the stream has told it once more."""
    city, stream = delivery(), [transaction(lsn, (CITY, lsn), (CITY, lsn + 1)) for lsn in (10, 20, 30)]
    offer(city, stream[0])
    city.late = True
    offer(city, *stream[1:])
    assert taken(city) == [(10, 0, 10), (10, 1, 11)]
    assert city.reached(Lsn(35)) == (Position(Lsn(10), 1), 0)
    assert not city.pass_over(Seen("9:9:", Lsn(5))), "what followed was not kept"
    city.late = True
    city.rewind(Lsn(35))
    offer(city, *stream)
    assert taken(city)[-2:] == [(30, 0, 30), (30, 1, 31)]
    assert city.reached(Lsn(35)) == (Position(Lsn(35), 0), 35)


def test_what_a_snapshot_has_seen_is_dropped_from_what_waits() -> None:
    """E90: a table that joins while the stream is read; commits were told in another order than they were shown."""
    city = delivery()
    city.place(Position(Lsn(5), 0), Lsn(5))
    stream = [
        transaction(10, (CITY, 1), xid=7), transaction(20, (CITY, 2), xid=8), transaction(30, (CITY, 3), xid=6),
        transaction(40, (CITY, 4), xid=9), transaction(50, (CITY, 5), xid=4),
    ]  # fmt: skip
    offer(city, *stream[:2])
    seen = Seen("7:9:7", Lsn(45))  # 7 was running
    assert city.pass_over(seen)
    assert city.whole == 5, "what it has not seen is before that"
    offer(city, *stream[2:])
    assert taken(city) == [(10, 0, 1), (40, 0, 4), (50, 0, 5)]
    again = delivery()
    again.place(Position(Lsn(5), 0), Lsn(5), seen)
    offer(again, *stream)
    assert taken(again) == [(10, 0, 1), (40, 0, 4), (50, 0, 5)], "from a checkpoint, too"
    offer(city, transaction(60, (CITY, 5), relations=RETYPED))
    assert not city.pass_over(Seen("9:9:", Lsn(70))), "what followed the trouble was not kept"
    assert city.error is None


def test_transactions_are_told_apart_where_their_numbers_begin_anew() -> None:
    """E90: the stream numbers them by 32 bits, a snapshot by 64."""
    lsns, xids = np.array([1, 1, 1, 1]), np.array([2**32 - 1, 2, 5, 6])
    seen = Seen(f"{2**32 + 2}:{2**32 + 6}:{2**32 + 2}", Lsn(1))
    assert seen.covers(lsns, xids).tolist() == [True, False, True, False]


def test_trouble_is_raised_behind_what_came_before_it() -> None:
    city = delivery()
    offer(city, transaction(10, (CITY, 1)))
    offer(city, transaction(20, (CITY, 2), relations=RETYPED), transaction(30, (CITY, 3)))
    assert city.take() is not None
    for _ in range(2):
        with pytest.raises(OperatorError, match="its column notes has another type"):
            city.take()
    assert city.reached(Lsn(99)) == (Position(Lsn(10), 0), 0), "and the slot stays before it"


def test_a_truncate_of_every_partition_empties_the_table_and_one_of_some_is_trouble() -> None:
    """E95: which rows a partition held cannot be told."""
    leaf = QualifiedTable("public", "leaf")
    relations = [Relation(oid, leaf._replace(name=f"leaf{oid}"), "d", COLUMNS) for oid in (7, 8)]
    city = delivery(partitioned=True, _7=relations[0].table, _8=relations[1].table)
    both = Transaction(5, Lsn(10), 0, 2, 0, [Truncated(tuple(relations))])
    offer(city, both)
    batch = city.take()
    assert batch is not None and batch["_change_type"].to_pylist() == ["truncate"]
    assert [
        one.oid for piece in changes.pieces([transaction(11, (OTHER, 1))], 9, 999) for one in city.meets(piece)
    ] == [OTHER]
    as_one = delivery(partitioned=True, _7=relations[0].table, _8=relations[1].table)
    offer(as_one, transaction(12, (CITY, 1)))
    with pytest.raises(OperatorError, match=r"speaks of public.city as one table"):
        as_one.take()
    offer(city, Transaction(5, Lsn(20), 0, 1, 0, [Truncated(tuple(relations[:1]))]))
    with pytest.raises(OperatorError, match="was truncated"):
        city.take()


def test_what_waits_on_disk_comes_back_as_it_went() -> None:
    waiting = Backlog()
    batches = [rows((number, "x" * number, None)) for number in range(5)]
    for batch in batches[:3]:
        waiting.append(batch)
    waiting.spill()
    assert (waiting.memory_bytes, waiting.disk_bytes > 0) == (0, True)
    for batch in batches[3:]:
        waiting.append(batch)
    assert waiting.first() == batches[0]
    assert [waiting.popleft() for _ in range(5)] == batches
    assert (len(waiting), waiting.memory_bytes, waiting.disk_bytes) == (0, 0, 0)
