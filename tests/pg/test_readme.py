"""The Python of the README and of the first tutorial does what it shows, on a real server.

What needs a JVM is run elsewhere: the README's Spark example in tests/spark, its documents in tests/e2e.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until

ROOT = Path(__file__).parents[2]
URL = "postgresql://penstock@localhost/shop"


class Enough(Exception):
    """Raised out of an endless example when it has printed what was waited for."""


def example(page: str, about: str) -> str:
    """The one Python block of a page that holds these words."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    (found,) = [block for block in blocks if about in block]
    assert URL in found
    return str(found)


@pytest.fixture
def shop(db18: Database) -> Iterator[Database]:
    """A database whose slots go with the test."""
    yield db18
    slots = "FROM pg_replication_slots WHERE database = current_database()"
    wait_until(lambda: not db18.execute(f"SELECT {slots} AND active"), what="the walsender to release the slot")
    db18.execute(f"SELECT pg_drop_replication_slot(slot_name) {slots}")


def test_the_capture_of_the_tutorial_prints_the_changes_of_a_real_table(shop: Database) -> None:
    printed: list[str] = []

    def show(*values: Any) -> None:
        printed.append(" ".join(map(str, values)))
        if len(printed) > 2:
            raise Enough

    shop.execute("CREATE TABLE orders (id int PRIMARY KEY, total numeric)")
    shop.execute("CREATE PUBLICATION orders FOR TABLE orders")
    shop.execute("SELECT pg_create_logical_replication_slot('orders_cache', 'pgoutput')")
    for n in range(3):
        shop.execute("INSERT INTO orders VALUES (%s, 9.50)", n)
    code = example("docs/tutorial/first-changes.md", "capture.live")
    with pytest.raises(Enough):
        exec(code.replace(URL, shop.url), {"print": show})
    assert printed == [f"insert public.orders {{'id': {n}}}" for n in range(3)]


def test_the_reference_table_of_the_readme_is_read_once_and_then_follows(shop: Database, tmp_path: Path) -> None:
    shop.execute("CREATE TABLE customers (id int PRIMARY KEY, name text)")
    shop.execute("INSERT INTO customers VALUES (4711, 'Ada'), (4712, 'Grace')")
    code = example("README.md", "ReferenceView").replace(URL, shop.url).replace("/data/", f"{tmp_path}/")
    printed: list[tuple[Any, ...]] = []
    names = {"print": lambda *values: printed.append(values)}
    exec(code, names)
    shop.execute("UPDATE customers SET name = 'Ada King' WHERE id = 4711")
    scans = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'customers'"
    before = shop.execute(scans)
    exec(code.replace("customers.update()", "customers.catch_up()"), names)
    assert printed == [({"id": 4711, "name": "Ada"}, 2), ({"id": 4711, "name": "Ada King"}, 2)]
    assert shop.execute(scans) == before, "a restart reads no table"
