"""The sample shop: its tables, and what happens in it.

`Shop.plan` decides the next transaction: somebody signs up, orders, pays, moves an item to another order, cancels,
leaves; now and then a batch is loaded in one large transaction and truncated again, and somebody changes their mind
and rolls back. Guarantees: the same source of chance plans the same transactions; the first `Shop.OPENING` of them
hold every kind of change; no statement meets a missing row. Deliberately not: running them (`workload`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from penstock.model import Op, QualifiedTable

PUBLICATION = "penstock"
USERS, ORDERS, ITEMS, STAGING = (QualifiedTable("public", name) for name in ("users", "orders", "items", "staging"))
KEYS = {USERS: ("id",), ORDERS: ("id",), ITEMS: ("order_id", "line"), STAGING: ("id",)}

# A biography is kept outside its row, and the server then leaves it out of updates that do not touch it.
SCHEMA = """
CREATE TABLE users (id bigint PRIMARY KEY, name text NOT NULL, biography text);
ALTER TABLE users ALTER biography SET STORAGE EXTERNAL;
CREATE TABLE orders (
    id bigint PRIMARY KEY, user_id bigint NOT NULL REFERENCES users, status text NOT NULL DEFAULT 'open',
    total numeric(12, 2), placed_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE items (
    order_id bigint REFERENCES orders, line bigint, product text NOT NULL, price numeric(12, 2) NOT NULL,
    PRIMARY KEY (order_id, line));
CREATE TABLE staging (id bigint PRIMARY KEY, payload text NOT NULL);
CREATE PUBLICATION penstock FOR TABLE users, orders, items, staging;
"""

_PRODUCTS = ("lamp", "kettle", "chair", "notebook", "bicycle", "umbrella")
_BIOGRAPHY_LETTERS = 3000
_BATCH_ROWS = 5000
# Enough to choose from; with more of them, more are cancelled.
_MANY_ORDERS = 200


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, and what its row count counts."""

    op: Op
    table: QualifiedTable
    sql: str
    parameters: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Transaction:
    """Statements that are committed together, or rolled back together."""

    statements: tuple[Statement, ...]
    rolled_back: bool = False


@dataclass(slots=True)
class _Order:
    user: int
    lines: list[int]


@dataclass(slots=True)
class Shop:
    """What exists, as far as planning needs to know."""

    OPENING: ClassVar[int] = 14

    rng: random.Random
    _users: list[int] = field(default_factory=list)
    _orders: dict[int, _Order] = field(default_factory=dict)
    _planned: int = 0
    _number: int = 0

    def plan(self) -> Transaction:
        """The next transaction: first one of each kind, then by chance."""
        opening: list[Callable[[], Transaction]] = [self._sign_up, self._sign_up, *[self._order] * 5, self._pay]
        opening += [self._rename, self._move, self._load, self._change_mind, self._cancel, self._clear]
        self._planned += 1
        if self._planned <= len(opening):
            return opening[self._planned - 1]()
        if self._planned % 300 == 0:
            return self._load() if self._planned % 600 else self._clear()
        likely = [self._sign_up, *[self._order] * 3, *[self._pay] * 4, *[self._rename] * 2, *[self._move] * 2]
        likely += [self._cancel] * (6 if len(self._orders) > _MANY_ORDERS else 1)
        return self.rng.choice([*likely, self._leave, self._change_mind])()

    def mark_end(self, text: str) -> Transaction:
        """A last transaction, by which a reader knows that nothing follows."""
        query = f"INSERT INTO {STAGING.sql} VALUES (%s, %s)"
        return Transaction((Statement(Op.INSERT, STAGING, query, (self._next(), text)),))

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _sign_up(self) -> Transaction:
        self._users.append(self._next())
        biography = "".join(self.rng.choices("abcdefghij ", k=_BIOGRAPHY_LETTERS))
        query = f"INSERT INTO {USERS.sql} VALUES (%s, %s, %s)"
        return Transaction((Statement(Op.INSERT, USERS, query, (self._users[-1], f"user {self._number}", biography)),))

    def _order(self) -> Transaction:
        number = self._next()
        made = self._orders[number] = _Order(self.rng.choice(self._users), [*range(1, self.rng.randint(2, 5))])
        head = f"INSERT INTO {ORDERS.sql} (id, user_id) VALUES (%s, %s)"
        item = f"INSERT INTO {ITEMS.sql} VALUES (%s, %s, %s, %s)"
        rows = [(number, line, self.rng.choice(_PRODUCTS), self.rng.randint(100, 9999) / 100) for line in made.lines]
        items = [Statement(Op.INSERT, ITEMS, item, row) for row in rows]
        return Transaction((Statement(Op.INSERT, ORDERS, head, (number, made.user)), *items))

    def _pay(self) -> Transaction:
        query = f"UPDATE {ORDERS.sql} SET status = 'paid', total = %s WHERE id = %s"
        amount = self.rng.randint(100, 99999) / 100
        return Transaction((Statement(Op.UPDATE, ORDERS, query, (amount, self._some_order())),))

    def _rename(self) -> Transaction:
        query = f"UPDATE {USERS.sql} SET name = %s WHERE id = %s"
        user = self.rng.choice(self._users)
        return Transaction((Statement(Op.UPDATE, USERS, query, (f"user {user}, {self._planned}", user)),))

    def _move(self) -> Transaction:
        """An item goes to another order, mostly: its key changes."""
        sources = [number for number, order in self._orders.items() if order.lines]
        if not sources:
            return self._order()
        source, target = self.rng.choice(sources), self._some_order()
        line = self._orders[source].lines.pop()
        place = max(self._orders[target].lines, default=0) + 1
        self._orders[target].lines.append(place)
        query = f"UPDATE {ITEMS.sql} SET order_id = %s, line = %s WHERE order_id = %s AND line = %s"
        return Transaction((Statement(Op.UPDATE, ITEMS, query, (target, place, source, line)),))

    def _cancel(self) -> Transaction:
        if len(self._orders) < 3:
            return self._order()
        number = self._some_order()
        del self._orders[number]
        items = Statement(Op.DELETE, ITEMS, f"DELETE FROM {ITEMS.sql} WHERE order_id = %s", (number,))
        return Transaction((items, Statement(Op.DELETE, ORDERS, f"DELETE FROM {ORDERS.sql} WHERE id = %s", (number,))))

    def _leave(self) -> Transaction:
        busy = {order.user for order in self._orders.values()}
        idle = [user for user in self._users if user not in busy]
        if not idle:
            return self._sign_up()
        user = self.rng.choice(idle)
        self._users.remove(user)
        return Transaction((Statement(Op.DELETE, USERS, f"DELETE FROM {USERS.sql} WHERE id = %s", (user,)),))

    def _load(self) -> Transaction:
        first = self._number + 1
        self._number += _BATCH_ROWS
        query = f"INSERT INTO {STAGING.sql} SELECT n, 'row ' || n FROM generate_series(%s::bigint, %s::bigint) n"
        return Transaction((Statement(Op.INSERT, STAGING, query, (first, self._number)),))

    def _clear(self) -> Transaction:
        return Transaction((Statement(Op.TRUNCATE, STAGING, f"TRUNCATE {STAGING.sql}"),))

    def _change_mind(self) -> Transaction:
        return Transaction((Statement(Op.DELETE, ITEMS, f"DELETE FROM {ITEMS.sql}"),), rolled_back=True)

    def _some_order(self) -> int:
        return self.rng.choice(list(self._orders))
