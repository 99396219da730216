"""The filters of a schema as SQL conditions.

Guarantees: values are literals of the column's own type, whatever characters they hold; a raw condition stands in
parentheses of its own. Columns are written with the name of their table, which the statement around must not rename.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.document.schema import AnyOf, Comparison, Filter, FilterOp, Literal, Raw, SoftDelete
from penstock.document.sql_catalog import SqlCatalog
from penstock.model import QualifiedTable, literal, quote

_SYMBOLS = {
    FilterOp.EQ: "=",
    FilterOp.NEQ: "<>",
    FilterOp.LT: "<",
    FilterOp.LTE: "<=",
    FilterOp.GT: ">",
    FilterOp.GTE: ">=",
    FilterOp.LIKE: "~~",
    FilterOp.ILIKE: "~~*",
}
_TEXTS = {"text", "character varying", "bpchar", "name"}


class Conditions:
    """Conditions over the columns of one table of an index."""

    def __init__(self, table: QualifiedTable, catalog: SqlCatalog, index: str) -> None:
        self._table = table
        self._catalog = catalog
        self._index = index

    def all(self, filters: Sequence[Filter]) -> list[str]:
        """One condition for each filter; a row passes where all hold."""
        return [self._condition(one) for one in filters]

    def not_deleted(self, soft: SoftDelete) -> str:
        """That a row does not count as deleted."""
        column = self._column(soft.column)
        kind = self._catalog.type_of(self._table, soft.column, self._index)
        deleted = [column if kind == "boolean" else f"{column} IS NOT NULL", *self.all(soft.when)]
        return f"({' AND '.join(deleted)}) IS NOT TRUE"

    def _column(self, name: str) -> str:
        return f"{quote(self._table.name)}.{quote(name)}"

    def _condition(self, one: Filter) -> str:
        if isinstance(one, Raw):
            return f"({one.sql}\n)"  # a line of its own, should it end in a comment
        if isinstance(one, AnyOf):
            return f"({' OR '.join(self.all(one.filters))})"
        return self._comparison(one)

    def _comparison(self, one: Comparison) -> str:
        column, kind = self._column(one.column), self._catalog.type_of(self._table, one.column, self._index)
        if one.op is FilterOp.IS_NULL or one.op is FilterOp.IS_NOT_NULL:
            return f"{column} {'IS NULL' if one.op is FilterOp.IS_NULL else 'IS NOT NULL'}"
        values = [_value(value) for value in one.values]
        if one.op is FilterOp.IN or one.op is FilterOp.NOT_IN:
            test = f"{operator('=', kind)} ANY" if one.op is FilterOp.IN else f"{operator('<>', kind)} ALL"
            return f"{column} {test} (ARRAY[{', '.join(values)}]::{kind}[])"
        if one.op is FilterOp.BETWEEN:
            low, high = operator(">=", kind), operator("<=", kind)
            return f"({column} {low} {values[0]} AND {column} {high} {values[1]})"
        if one.op in (FilterOp.LIKE, FilterOp.ILIKE) and kind not in _TEXTS and not _is_citext(kind):
            column = f"{column}::text"
        return f"{column} {operator(_SYMBOLS[one.op], kind)} {values[0]}"


def operator(symbol: str, kind: str) -> str:
    """The operator for values of a type. That of citext is named by its schema: no search_path finds it."""
    return f"OPERATOR({kind.rpartition('.')[0]}.{symbol})" if _is_citext(kind) else symbol


def _is_citext(kind: str) -> bool:
    return kind.endswith(".citext")


def _value(value: Literal) -> str:
    """A literal that takes the type of what it is compared with."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return literal(str(value).lower())
    return literal(repr(value) if isinstance(value, float) else str(value))
