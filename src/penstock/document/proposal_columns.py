"""What a column becomes in a proposed document: a field by its type and its name, or the reason why it is left out.

Guarantees: pure; whatever is proposed passes `check_columns`. Left out are types that no leaf takes, binary contents,
and what looks like a secret by its name: an index is read by more people than the table is. Deliberately not: looking
at rows; a name is all that a guess is made from.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import pairwise
from typing import NamedTuple

from penstock.document import types
from penstock.document.check import Facts
from penstock.document.schema import AnyOf, Comparison, Filter, FilterOp, Geo, LeafType, Scalar
from penstock.postgres.catalog import ColumnInfo, TableInfo
from penstock.postgres.type_catalog import TypeInfo

_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_SECRETS = frozenset({"password", "passwd", "passphrase", "secret", "token", "salt", "otp", "pin", "ssn", "cvv"})
_SECRET_PAIRS = frozenset({("api", "key"), ("private", "key"), ("access", "key"), ("credit", "card")})
_CODES = frozenset({"sku", "code", "number", "reference", "ref", "serial", "isbn", "ean", "part"})
_WORDS = frozenset(
    {
        "status", "state", "type", "kind", "role", "level", "country", "currency", "language", "locale", "email",
        "slug", "phone", "url", "uri", "path", "hash", "key", "id", "timezone", "gender", "colour", "color",
    }
)  # fmt: skip
_STAMP = re.compile(r"(created|inserted|updated|modified|changed)_?(at|on|date|time)?", re.IGNORECASE)
_DELETED = re.compile(r"(is_?)?(deleted|removed)|(deleted|removed|discarded)_?(at|on|date|time)", re.IGNORECASE)
_MOMENTS = ("date", "timestamp", "timestamptz")


class LeftOut(NamedTuple):
    """A column that is no field, and why."""

    column: str
    reason: str


def propose_field(column: ColumnInfo, found: TypeInfo | None, key: str) -> Scalar | Geo | LeftOut:
    """The field that a column becomes under that key."""
    if is_secret(column.name):
        return LeftOut(column.name, "looks like a secret")
    if found is None:
        return LeftOut(column.name, f"is {column.type_name}, which is not known")
    if types.is_one_of(found, ("point",)) and not found.is_array:
        return Geo(key, column=column.name, required=not column.nullable)
    leaves = [LeafType(word) for word in types.leaves_for(found)]
    if not leaves:
        return LeftOut(column.name, f"is {found}, which no field takes as it is; `custom` would")
    if leaves[0] is LeafType.BINARY:
        return LeftOut(column.name, f"is {found}; `binary: {key}` would take it as base64")
    leaf = _text_leaf(column, found) if leaves[0] is LeafType.TEXT else leaves[0]
    return Scalar(key, leaf, column.name, required=not column.nullable)


def _text_leaf(column: ColumnInfo, found: TypeInfo) -> LeafType:
    """Prose, a code or a word, by the column's name; where that says nothing, prose, which can be found most easily."""
    last = words(column.name)[-1:]
    if last and last[0] in _CODES:
        return LeafType.IDENTIFIER
    return LeafType.KEYWORD if found.short == "bpchar" or (last and last[0] in _WORDS) else LeafType.TEXT


def words(name: str) -> list[str]:
    """The words of a name, in lower case: of deleted_at, deletedAt and DELETED_AT the same."""
    return [word.lower() for word in _WORD.findall(name)]


def is_secret(name: str) -> bool:
    """Whether a column should not be shown, by its name."""
    found = words(name)
    return bool(_SECRETS & set(found)) or bool(_SECRET_PAIRS & set(pairwise(found)))


def is_stamp(name: str) -> bool:
    """Whether a column only tells when a row was written."""
    return bool(_STAMP.fullmatch(name))


def deletion_column(info: TableInfo, facts: Facts) -> ColumnInfo | None:
    """The column that marks a row as deleted: a boolean, or a moment that may be null, of a telling name."""
    for column in info.columns:
        found = facts.type(info.table, column.name)
        if found is None or found.is_array or not _DELETED.fullmatch(column.name):
            continue
        if types.is_one_of(found, ("bool",)) or (types.is_one_of(found, _MOMENTS) and column.nullable):
            return column
    return None


def not_deleted(column: ColumnInfo, facts: Facts, info: TableInfo) -> Filter:
    """The filter that leaves deleted rows out of a list."""
    found = facts.type(info.table, column.name)
    absent = Comparison(column.name, FilterOp.IS_NULL)
    if found is None or not types.is_one_of(found, ("bool",)):
        return absent
    standing = Comparison(column.name, FilterOp.EQ, (False,))
    return AnyOf((absent, standing)) if column.nullable else standing


def free_key(wishes: Collection[str], taken: Collection[str]) -> str:
    """The first wish that is free, as a key of a document may be spelled; else the first with a number."""
    keys = [_spelled(wish) for wish in wishes]
    number = 2
    while True:
        for key in keys:
            if key not in taken:
                return key
        keys = [f"{_spelled(next(iter(wishes)))}_{number}"]
        number += 1


def _spelled(name: str) -> str:
    """Letters, digits and underscores; none in front, where the search engine has keys of its own."""
    return re.sub(r"\W+", "_", name).strip("_") or "field"
