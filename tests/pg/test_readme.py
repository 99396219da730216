"""The README's Python does what it shows, on a real server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until

README = Path(__file__).parents[2] / "README.md"


class Enough(Exception):
    """Raised out of an endless example when it has printed what was waited for."""


def test_the_example_of_the_readme_prints_the_changes_of_a_real_table(db18: Database) -> None:
    spark, live = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    compile(spark, "README.md", "exec")  # what it does is shown by the recipes, which are run
    printed: list[str] = []

    def show(*values: Any) -> None:
        printed.append(" ".join(map(str, values)))
        if len(printed) > 2:
            raise Enough

    db18.execute("CREATE TABLE orders (id int PRIMARY KEY, total numeric)")
    db18.execute("CREATE PUBLICATION orders FOR TABLE orders")
    db18.execute("SELECT pg_create_logical_replication_slot('orders_cache', 'pgoutput')")
    for n in range(3):
        db18.execute("INSERT INTO orders VALUES (%s, 9.50)", n)
    with pytest.raises(Enough):
        exec(live.replace("postgresql://penstock@localhost/shop", db18.url), {"print": show})
    assert printed == [f"insert public.orders {{'id': {n}}}" for n in range(3)]
    released = "SELECT 1 FROM pg_replication_slots WHERE slot_name = 'orders_cache' AND NOT active"
    wait_until(lambda: db18.execute(released), what="the walsender to release the slot")
    db18.execute("SELECT pg_drop_replication_slot('orders_cache')")
