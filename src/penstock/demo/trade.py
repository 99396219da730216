"""What is in the sample shop at first, and what happens in it then.

`Shop.stocked` makes the first rows; `Shop.plan` decides the next transaction: somebody signs up, orders, pays, writes a
review, moves an item to another order, gives an order to somebody else, cancels, leaves; a product gets another name,
goes and comes back; now and then all tags are given anew after a TRUNCATE, and somebody rolls back. Guarantees: the
same source of chance plans the same transactions; the first `Shop.OPENING` of them hold every kind of change; no
statement meets a missing row. Deliberately not: running them (`workload`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar

from penstock.demo import words

USERS, PRODUCTS, TAGS, PRODUCT_TAGS = "users", "products", "tags", "product_tags"
ORDERS, ITEMS, REVIEWS = "orders", "items", "reviews"
TABLES = (USERS, PRODUCTS, TAGS, PRODUCT_TAGS, ORDERS, ITEMS, REVIEWS)
OWNER = 1
"""A user whom nothing happens to, so that anybody may write to that row."""

_INSERTS = {
    USERS: "INSERT INTO users VALUES (%s, %s, %s, %s, %s, %s)",
    PRODUCTS: "INSERT INTO products VALUES (%s, %s, %s, %s, %s, %s)",
    TAGS: "INSERT INTO tags VALUES (%s, %s)",
    PRODUCT_TAGS: "INSERT INTO product_tags VALUES (%s, %s)",
    ORDERS: "INSERT INTO orders VALUES (%s, %s, %s, coalesce(%s, now()))",
    ITEMS: "INSERT INTO items VALUES (%s, %s, %s, %s, %s)",
    REVIEWS: "INSERT INTO reviews VALUES (%s, %s, %s, %s, %s, coalesce(%s, now()))",
}
# What the shop begins with: about nine thousand rows.
_USERS, _PRODUCTS, _ORDERS, _REVIEWS = 500, 300, 2000, 1200
_TODAY = datetime(2026, 1, 1, tzinfo=UTC)
_DAYS = 700
# With more of them, more are cancelled.
_MANY_ORDERS = 2500
_RETAG_EVERY = 3000


class Deed(StrEnum):
    """What a statement does. A move is an update that takes a row from one document to another."""

    INSERT = "insert"
    UPDATE = "update"
    MOVE = "move"
    DELETE = "delete"
    TRUNCATE = "truncate"


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, and what its row count counts."""

    deed: Deed
    table: str
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
    status: str
    lines: list[int]


_Row = tuple[Any, ...]


@dataclass(slots=True)
class Shop:
    """What exists, as far as planning needs to know."""

    OPENING: ClassVar[int] = 25

    rng: random.Random
    _users: list[int] = field(default_factory=list)
    _products: list[int] = field(default_factory=list)
    _gone: list[int] = field(default_factory=list)
    _tags: dict[int, set[int]] = field(default_factory=dict)
    _orders: dict[int, _Order] = field(default_factory=dict)
    _reviews: dict[int, int] = field(default_factory=dict)
    _planned: int = 0
    _number: int = OWNER

    def stocked(self) -> Iterator[tuple[str, list[_Row]]]:
        """The first rows: an insert for each table, in the order in which they refer to each other."""
        owner = (OWNER, "Olive Owner", "olive@example.org", "Berlin", "DE", date(2020, 1, 1))
        yield _INSERTS[USERS], [owner, *(self._user() for _ in range(_USERS))]
        yield _INSERTS[PRODUCTS], [self._product() for _ in range(_PRODUCTS)]
        yield _INSERTS[TAGS], list(enumerate(words.TAGS, 1))
        yield _INSERTS[PRODUCT_TAGS], [pair for product in self._products for pair in self._tagged(product)]
        orders = [self._placed(self._day()) for _ in range(_ORDERS)]
        yield _INSERTS[ORDERS], [order for order, _ in orders]
        yield _INSERTS[ITEMS], [item for _, items in orders for item in items]
        yield _INSERTS[REVIEWS], [self._review(self._day()) for _ in range(_REVIEWS)]

    def plan(self) -> Transaction:
        """The next transaction: first one of each kind, then by chance."""
        opening: list[Callable[[], Transaction]] = [
            self._sign_up, self._order, self._order, self._advance, self._rename_user, self._rename_product,
            self._reprice, self._offer, self._say, self._correct, self._move_item, self._move_order, self._move_review,
            self._unsay, self._cancel, self._close, self._sign_up, self._leave, self._discontinue, self._discontinue,
            self._bring_back, self._retag, self._rename_tag, self._change_mind, self._retag_all,
        ]  # fmt: skip
        self._planned += 1
        if self._planned <= len(opening):
            return opening[self._planned - 1]()
        if self._planned % _RETAG_EVERY == 0:
            return self._retag_all()
        often = [self._order] * 12 + [self._advance] * 20 + [self._reprice] * 8 + [self._say, self._correct] * 6
        often += [self._move_item, self._move_order, self._move_review, self._unsay, self._retag, self._sign_up] * 3
        often += [self._cancel] * (30 if len(self._orders) > _MANY_ORDERS else 10)
        return self.rng.choice([*often, *opening[:-1]])()

    # What is made: a row, as an insert takes it.

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _day(self) -> datetime:
        return _TODAY - timedelta(seconds=self.rng.randrange(_DAYS * 86_400))

    def _user(self) -> _Row:
        number = self._next()
        self._users.append(number)
        first, last = self.rng.choice(words.FIRST_NAMES), self.rng.choice(words.LAST_NAMES)
        # As people type it: the schema trims it and makes it lower case.
        email = f"{first}.{last}{number}@Example.org{self.rng.choice(['', '', ' '])}"
        return number, f"{first} {last}", email, *self.rng.choice(words.CITIES), self._day().date()

    def _product(self) -> _Row:
        number = self._next()
        self._products.append(number)
        name = self._product_name()
        look, other = self.rng.sample(words.LOOKS, 2)
        text = f"A {name} {self.rng.choice(words.USES)}, {look} and {other}."
        return number, f"{name[:3].upper()}-{number:05}", name, text, self._price(), self.rng.randrange(500)

    def _product_name(self) -> str:
        return " ".join(map(self.rng.choice, (words.LOOKS, words.MATERIALS, words.GOODS)))

    def _price(self) -> str:
        return f"{self.rng.randint(2, 250)}.{self.rng.choice(['00', '50', '90', '95', '99'])}"

    def _tagged(self, product: int) -> list[_Row]:
        self._tags[product] = set(self.rng.sample(range(1, len(words.TAGS) + 1), self.rng.randint(0, 4)))
        return [(product, tag) for tag in sorted(self._tags[product])]

    def _placed(self, when: datetime | None) -> tuple[_Row, list[_Row]]:
        number, status = self._next(), self.rng.choice(_LATER) if when else "open"
        made = self._orders[number] = _Order(self.rng.choice(self._users), status, [*range(1, self.rng.randint(2, 5))])
        items = [
            (number, line, self.rng.choice(self._products), self.rng.randint(1, 4), self._price())
            for line in made.lines
        ]
        return (number, made.user, status, when), items

    def _review(self, when: datetime | None) -> _Row:
        number, product = self._next(), self.rng.choice(self._products)
        self._reviews[number] = self.rng.choice(self._users)
        return number, product, self._reviews[number], *self.rng.choice(words.VERDICTS), when

    # What happens: a transaction each.

    def _sign_up(self) -> Transaction:
        return _made((USERS, self._user()))

    def _order(self) -> Transaction:
        order, items = self._placed(None)
        sold = [
            Statement(
                Deed.UPDATE, PRODUCTS, "UPDATE products SET stock = stock - %s WHERE id = %s", (quantity, product)
            )
            for _, _, product, quantity, _ in sorted(items, key=lambda item: item[2])
        ]
        made = _made((ORDERS, order), *((ITEMS, item) for item in items))
        return Transaction((*made.statements, *sold))

    def _advance(self) -> Transaction:
        number = self._some_order()
        order = self._orders[number]
        order.status = {"open": "paid", "paid": "shipped", "shipped": "cancelled"}.get(order.status, "open")
        return _done(Deed.UPDATE, ORDERS, "UPDATE orders SET status = %s WHERE id = %s", order.status, number)

    def _rename_user(self) -> Transaction:
        name = f"{self.rng.choice(words.FIRST_NAMES)} {self.rng.choice(words.LAST_NAMES)}"
        return _done(Deed.UPDATE, USERS, "UPDATE users SET name = %s WHERE id = %s", name, self.rng.choice(self._users))

    def _rename_product(self) -> Transaction:
        change = self._product_name(), self.rng.choice(self._products)
        return _done(Deed.UPDATE, PRODUCTS, "UPDATE products SET name = %s WHERE id = %s", *change)

    def _reprice(self) -> Transaction:
        change = self._price(), self.rng.choice(self._products)
        return _done(Deed.UPDATE, PRODUCTS, "UPDATE products SET price = %s WHERE id = %s", *change)

    def _rename_tag(self) -> Transaction:
        number = self.rng.randint(1, len(words.TAGS))
        label = f"{words.TAGS[number - 1]} {self._planned}"
        return _done(Deed.UPDATE, TAGS, "UPDATE tags SET label = %s WHERE id = %s", label, number)

    def _offer(self) -> Transaction:
        row = self._product()
        return _made((PRODUCTS, row), *((PRODUCT_TAGS, pair) for pair in self._tagged(row[0])))

    def _say(self) -> Transaction:
        return _made((REVIEWS, self._review(None)))

    def _correct(self) -> Transaction:
        change = *self.rng.choice(words.VERDICTS), self._some_review()
        return _done(Deed.UPDATE, REVIEWS, "UPDATE reviews SET stars = %s, body = %s WHERE id = %s", *change)

    def _unsay(self) -> Transaction:
        number = self._some_review()
        del self._reviews[number]
        return _done(Deed.DELETE, REVIEWS, "DELETE FROM reviews WHERE id = %s", number)

    def _move_item(self) -> Transaction:
        """An item goes to another order, mostly: its key changes."""
        source = self.rng.choice([number for number, order in self._orders.items() if order.lines])
        target = self._some_order()
        line = self._orders[source].lines.pop()
        place = max(self._orders[target].lines, default=0) + 1
        self._orders[target].lines.append(place)
        query = "UPDATE items SET order_id = %s, line = %s WHERE order_id = %s AND line = %s"
        return _done(Deed.MOVE, ITEMS, query, target, place, source, line)

    def _move_order(self) -> Transaction:
        """An order turns out to be somebody else's."""
        number = self._some_order()
        self._orders[number].user = self.rng.choice(self._users)
        query = "UPDATE orders SET user_id = %s WHERE id = %s"
        return _done(Deed.MOVE, ORDERS, query, self._orders[number].user, number)

    def _move_review(self) -> Transaction:
        """A review was about another product."""
        change = self.rng.choice(self._products), self._some_review()
        return _done(Deed.MOVE, REVIEWS, "UPDATE reviews SET product_id = %s WHERE id = %s", *change)

    def _cancel(self) -> Transaction:
        number = self._some_order()
        del self._orders[number]
        items = Statement(Deed.DELETE, ITEMS, "DELETE FROM items WHERE order_id = %s", (number,))
        return Transaction((items, Statement(Deed.DELETE, ORDERS, "DELETE FROM orders WHERE id = %s", (number,))))

    def _close(self) -> Transaction:
        """Somebody closes the account; the rows stay, the document goes."""
        user = self._users.pop(self.rng.randrange(len(self._users)))
        return _done(Deed.UPDATE, USERS, "UPDATE users SET closed_at = now() WHERE id = %s", user)

    def _leave(self) -> Transaction:
        """Somebody who has neither ordered nor written anything is forgotten."""
        busy = {order.user for order in self._orders.values()} | set(self._reviews.values())
        idle = [user for user in self._users if user not in busy]
        if not idle:
            return self._sign_up()
        user = self.rng.choice(idle)
        self._users.remove(user)
        return _done(Deed.DELETE, USERS, "DELETE FROM users WHERE id = %s", user)

    def _discontinue(self) -> Transaction:
        if len(self._products) < _PRODUCTS // 2:
            return self._offer()
        product = self._products.pop(self.rng.randrange(len(self._products)))
        self._gone.append(product)
        return _done(Deed.UPDATE, PRODUCTS, "UPDATE products SET discontinued = true WHERE id = %s", product)

    def _bring_back(self) -> Transaction:
        """All but one come back: however short the run, a document has gone."""
        if len(self._gone) < 2:
            return self._offer()
        product = self._gone.pop(self.rng.randrange(len(self._gone)))
        self._products.append(product)
        return _done(Deed.UPDATE, PRODUCTS, "UPDATE products SET discontinued = false WHERE id = %s", product)

    def _retag(self) -> Transaction:
        product = self.rng.choice(self._products)
        deleted = Statement(Deed.DELETE, PRODUCT_TAGS, "DELETE FROM product_tags WHERE product_id = %s", (product,))
        made = _made(*((PRODUCT_TAGS, pair) for pair in self._tagged(product)))
        return Transaction((deleted, *made.statements))

    def _retag_all(self) -> Transaction:
        cleared = Statement(Deed.TRUNCATE, PRODUCT_TAGS, "TRUNCATE product_tags")
        pairs = [pair for product in sorted(self._tags) for pair in self._tagged(product)]
        query = "INSERT INTO product_tags SELECT * FROM unnest(%s::bigint[], %s::bigint[])"
        columns = tuple(map(list, zip(*pairs, strict=True)))
        return Transaction((cleared, Statement(Deed.INSERT, PRODUCT_TAGS, query, columns)))

    def _change_mind(self) -> Transaction:
        return Transaction((Statement(Deed.DELETE, REVIEWS, "DELETE FROM reviews"),), rolled_back=True)

    def _some_order(self) -> int:
        return self.rng.choice(list(self._orders))

    def _some_review(self) -> int:
        return self.rng.choice(list(self._reviews))


# How old orders stand.
_LATER = ("paid", "shipped", "shipped", "shipped", "cancelled")


def _made(*rows: tuple[str, _Row]) -> Transaction:
    return Transaction(tuple(Statement(Deed.INSERT, table, _INSERTS[table], row) for table, row in rows))


def _done(deed: Deed, table: str, sql: str, *parameters: Any) -> Transaction:
    return Transaction((Statement(deed, table, sql, parameters),))
