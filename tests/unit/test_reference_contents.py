"""A reference table in memory: what changes make of it, by which keys its rows are found."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ConfigError, OperatorError
from penstock.reference import contents as module
from penstock.reference.contents import Contents
from penstock.reference.keys import parse_key, to_key
from tests.unit.reference_parts import SHAPE, TRUNCATE, Change, changes, delete, insert, move, rows, update


def city(*found: tuple[Any, ...]) -> Contents:
    contents = Contents(SHAPE.schema, SHAPE.key)
    contents.add(rows(*found))
    contents.seal()
    return contents


def held(contents: Contents) -> set[tuple[Any, ...]]:
    return {tuple(row.values()) for row in contents.table().to_pylist()}


def test_the_last_change_of_a_key_wins_and_what_cancels_out_leaves_nothing() -> None:
    """E95: several operations on one key in a batch, insert and delete, a changed key, TRUNCATE."""
    contents = city((1, "Rome", "old"), (2, "Oslo", "x"))
    contents.apply(changes(update(1, "Roma", "new"), update(1, "ROMA", "newer"), insert(3, "Bern", None), delete(3)))
    assert held(contents) == {(1, "ROMA", "newer"), (2, "Oslo", "x")}
    contents.apply(changes(*move(1, 9, "Roma", "moved"), insert(1, "Riga", None)))
    assert held(contents) == {(9, "Roma", "moved"), (1, "Riga", None), (2, "Oslo", "x")}
    contents.apply(changes(delete(2), insert(5, "Bonn", None), TRUNCATE, insert(6, "Kiel", None)))
    assert held(contents) == {(6, "Kiel", None)}
    assert (len(contents), contents.get(6)) == (1, {"id": 6, "name": "Kiel", "notes": None})
    contents.apply(changes(TRUNCATE))
    assert len(contents) == 0
    assert contents.table().num_rows == 0


def test_rows_that_come_and_go_leave_nothing_behind() -> None:
    """E95: neither in one batch nor in two; memory does not grow with them."""
    contents = city((1, "Rome", "old"))
    for number in range(10, 20):
        contents.apply(changes(insert(number, "x", None), delete(number)))
        contents.apply(changes(insert(number, "x", None)))
        contents.apply(changes(delete(number)))
    assert (len(contents), contents.index().changed) == (1, {})
    contents.apply(changes(delete(1)))
    assert (len(contents), contents.get(1)) == (0, None)


def test_a_value_that_was_not_sent_stays_what_it_was() -> None:
    """E95: unchanged large values, also twice in a batch, and along with a changed key."""
    contents = city((1, "Rome", "long"), (2, "Oslo", "other"))
    contents.apply(
        changes(
            update(1, "Roma", None, missing=["notes"]),
            *move(1, 7, "Roma", None, missing=["notes"]),
            update(7, "ROMA", None, missing=["notes"]),
            update(2, "Oslo", "new"),
            update(2, "OSLO", None, missing=["notes"]),
        )
    )
    assert held(contents) == {(7, "ROMA", "long"), (2, "OSLO", "new")}


def test_a_value_of_a_row_that_is_not_here_cannot_be_kept_and_nothing_is_changed() -> None:
    contents = city((1, "Rome", "long"))
    with pytest.raises(OperatorError, match="leaves out column notes of a row that is not here"):
        contents.apply(changes(delete(1), update(2, "Oslo", None, missing=["notes"])))
    assert held(contents) == {(1, "Rome", "long")}
    assert contents.get(1)


def test_a_date_that_the_type_cannot_hold_is_null_and_not_what_was_there_before() -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    contents = Contents(schema, ["id"])
    contents.add(rows((1, date(2026, 1, 1)), schema=schema))
    contents.apply(changes(update(1, None, missing=["day"]), schema=schema))
    assert contents.get(1) == {"id": 1, "day": None}


FULL = [("update_preimage", (1, "a", "x"), ()), ("update_postimage", (2, "a", "x"), ())]


@pytest.mark.parametrize(
    "found",
    [
        [FULL, move(2, 3, "b", None)],
        [FULL, [delete(2)]],
        [[insert(2, "again", None)]],
        [[insert(3, "c", None)], [insert(3, "d", None)]],
        [[insert(3, "c", None)], move(1, 3, "a", None)],
        [[TRUNCATE, insert(3, "c", None)], [insert(3, "d", None)]],
    ],
)
@pytest.mark.parametrize("in_one", [True, False])
def test_a_change_that_lands_on_another_row_is_an_error_and_nothing_is_changed(
    found: list[list[Change]], in_one: bool
) -> None:
    """E96: a key that another row has is never taken for that row's; nothing of its transaction is applied."""
    contents = city((1, "a", "x"), (2, "b", "x"))
    batches = [changes(*(one for part in found for one in part))] if in_one else [changes(*part) for part in found]
    with pytest.raises(OperatorError, match=r"several rows have the same key \(id\)"):
        contents.apply(*batches)
    assert (held(contents), len(contents)) == ({(1, "a", "x"), (2, "b", "x")}, 2)
    assert [contents.get(key) and contents.get(key)["name"] for key in (1, 2, 3)] == ["a", "b", None]  # type: ignore[index]
    contents.apply(changes(delete(2), *FULL), changes(insert(1, "new", None)))
    assert held(contents) == {(2, "a", "x"), (1, "new", None)}


def test_null_keys_that_are_other_rows_are_not_merged() -> None:
    """E96: of a unique index that takes NULLs for different, and of values that the type cannot hold."""
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    contents = Contents(schema, ["id", "day"])
    contents.add(rows((1, None), schema=schema))
    contents.seal()
    with pytest.raises(OperatorError, match=r"several rows have the same key \(id, day\)"):
        contents.apply(changes(("insert", (1, None), ("day",)), schema=schema))
    assert len(contents) == 1


def test_random_changes_give_what_a_dictionary_gives(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """E95: random batches, with chunks joined and marked rows dropped all the time."""
    monkeypatch.setattr(module, "_FEW", 10)
    monkeypatch.setattr(module, "_TAIL", 3)
    for _ in range(60):
        model = {key: (key, "s", f"b{key}") for key in range(rng.randint(0, 15))}
        contents = city(*model.values())
        for _ in range(rng.randint(1, 12)):
            contents.apply(changes(*(one for _ in range(rng.randint(0, 8)) for one in _change(model, rng))))
            assert held(contents) == set(model.values())
            assert {key for key in range(21) if contents.get(key)} == model.keys()


def _change(model: dict[int, tuple[Any, ...]], rng: random.Random) -> list[Change]:
    key, other, value = rng.randint(0, 20), rng.randint(0, 20), f"v{rng.random()}"
    if rng.random() < 0.03:
        model.clear()
        return [TRUNCATE]
    if key not in model:
        model[key] = (key, value, value)
        return [insert(*model[key])]
    before = model.pop(key)
    kept = rng.random() < 0.5
    notes, missing = (before[2], ["notes"]) if kept else (value, [])
    if rng.random() < 0.3:
        return [delete(key)]
    if other not in model and other != key and rng.random() < 0.5:
        model[other] = (other, value, notes)
        return move(key, other, value, None if kept else value, missing=missing)
    model[key] = (key, value, notes)
    return [update(key, value, None if kept else value, missing=missing)]


def test_keys_that_look_alike_are_told_apart() -> None:
    """E96: composite keys, NULL parts, 1 and "1", texts that differ in a space only."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.string())])
    contents = Contents(schema, ["a", "b"])
    pairs = [(1, "1"), (1, "1 "), (1, ""), (1, None), (None, "1"), (None, None), (11, ""), (1, "None")]
    contents.add(rows(*((a, b, f"{a!r}/{b!r}") for a, b in pairs), schema=schema))
    contents.seal()
    for a, b in pairs:
        found = contents.get(to_key([a, b], schema, contents.key))
        assert found and found["v"] == f"{a!r}/{b!r}"
    contents.apply(changes(("delete", (1, None, None), ("v",)), schema=schema))
    assert contents.get((1, None)) is None
    assert len(contents) == len(pairs) - 1


@pytest.mark.parametrize(
    ("kind", "fits", "text", "unfit"),
    [
        (pa.int64(), 1, "1", ["1", True, 1.0, Decimal(1)]),
        (pa.string(), "1", "1", [1, b"1"]),
        (pa.bool_(), True, "true", [1, "t"]),
        (pa.float64(), 1.5, "1.5", ["1.5", True]),
        (pa.float64(), float("nan"), "nan", []),
        (pa.decimal128(9, 2), Decimal("1.50"), "1.50", [1.5, "1.50", True]),
        (pa.binary(), b"\1\xff", r"\x01ff", ["\1"]),
        (pa.date32(), date(2026, 1, 31), "2026-01-31", [datetime(2026, 1, 31), "2026-01-31"]),
        (pa.timestamp("us", "UTC"), datetime(2026, 1, 31, tzinfo=UTC), "2026-01-31 00:00+00", [date(2026, 1, 1)]),
        (pa.timestamp("us"), datetime(2026, 1, 31), "2026-01-31 00:00:00", [datetime(2026, 1, 31, tzinfo=UTC)]),
    ],
    ids=str,
)  # fmt: skip
def test_a_key_is_found_by_a_value_of_its_type_and_by_no_other(
    kind: pa.DataType, fits: Any, text: str, unfit: list[Any]
) -> None:
    """E96: neither "1" nor True nor 1.0 is taken for 1."""
    schema = pa.schema([("k", kind), ("v", pa.string())])
    contents = Contents(schema, ["k"])
    contents.add(rows((fits, "here"), schema=schema))
    for key in [fits], parse_key([text], schema, ["k"]):
        found = contents.get(to_key(key, schema, ["k"]))
        assert found and found["v"] == "here"
    for value in unfit:
        with pytest.raises(ConfigError, match="the key column k is"):
            to_key([value], schema, ["k"])


def test_what_is_no_key_is_told_without_the_value() -> None:
    with pytest.raises(ConfigError, match="and 2 values were given"):
        to_key([1, 2], SHAPE.schema, SHAPE.key)
    with pytest.raises(ConfigError) as told:
        parse_key(["secret"], SHAPE.schema, SHAPE.key)
    assert "secret" not in str(told.value)
    with pytest.raises(ConfigError, match="several rows have the same key"):
        city((None, "a", None), (None, "b", None))
