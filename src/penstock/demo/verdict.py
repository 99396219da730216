"""Every document of every index beside the one that SQL written by hand gives, from the same tables.

Guarantees: the SQL (`shop/*.sql`) shares no code with the builder; documents that are missing, that should not be there
and that differ are told by their ids, with the fields that differ, and never with a value. Numbers are compared by
their digits, and a boolean is no number. Deliberately not: the order of a document's keys, which JSON gives no meaning.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal

from penstock.demo.sample import INDEXES, read
from penstock.postgres.connection import ConnectionSettings, open_sql, translating
from penstock.sinks.local_search import LocalReader

_NAMED = 3
Fields = dict[str, str]


def compare(settings: ConnectionSettings, path: str) -> tuple[dict[str, int], list[str]]:
    """How many documents each index has to have, and what is wrong with those that it has."""
    counts: dict[str, int] = {}
    faults: list[str] = []
    with LocalReader(path) as reader, open_sql(settings) as connection:
        for index in INDEXES:
            with translating(f"recomputing {index}"):
                rows: Iterable[tuple[str, str]] = connection.execute(read(f"{index}.sql").encode())
                expected = {id: _fields(text) for id, text in rows}
            found = {id: _fields(body.decode()) for id, body in reader.documents(index)}
            counts[index] = len(expected)
            faults += [f"{index}: {what}" for what in differences(expected, found)]
    return counts, faults


def differences(expected: Mapping[str, Fields], found: Mapping[str, Fields]) -> Iterator[str]:
    """What is wrong, in sentences."""
    missing, extra = expected.keys() - found.keys(), found.keys() - expected.keys()
    other = [id for id in expected.keys() & found.keys() if expected[id] != found[id]]
    if missing:
        yield f"documents that are missing: {len(missing)} ({_some(missing)})"
    if extra:
        yield f"documents that should not be there: {len(extra)} ({_some(extra)})"
    if other:
        fields = sorted({name for id in other for name in _unequal(expected[id], found[id])})
        yield f"documents that differ: {len(other)} ({_some(other)}) in {', '.join(fields)}"


def _some(ids: Iterable[str]) -> str:
    named = sorted(ids)
    return ", ".join(named[:_NAMED]) + (", …" if len(named) > _NAMED else "")


def _unequal(one: Fields, other: Fields) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _fields(document: str) -> Fields:
    """Each field as text that is the same where the value is."""
    read = json.loads(document, parse_float=lambda digits: {"number": str(Decimal(digits).normalize())})
    return {name: json.dumps(value, sort_keys=True) for name, value in read.items()}
