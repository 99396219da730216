"""Schemas become statements: golden files hold each of them, so that a change of SQL is seen in review.

`PENSTOCK_GOLDEN=write` writes the files anew.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.document.binding import bind
from penstock.document.build_plan import plan_index
from penstock.document.schema import Comparison, FilterOp
from penstock.document.sql_catalog import SqlCatalog, unmodified
from penstock.document.sql_text import Text
from penstock.errors import ConfigError
from tests.unit.shop_tables import CUSTOMERS, SCHEMAS, TABLES, table

GOLDEN = Path(__file__).parent / "golden"


def statements(index: str) -> str:
    """Every statement of an index, each under what it is for."""
    schema = bind(SCHEMAS[index], TABLES)
    plan = plan_index(schema, SqlCatalog(TABLES))
    found = []
    for step in plan.resolutions:
        start = f"-- {step.path.role}: {step.path.table} by {', '.join(step.path.columns)}"
        found.append(f"{start}\n{step.sql or '-- these are the keys'}")
    found += [f"-- by keys\n{plan.by_keys}", f"-- all\n{plan.by_range[False, False]}"]
    return "\n\n".join([*found, f"-- a range\n{plan.by_range[True, True]}"]) + "\n"


@pytest.mark.parametrize("index", SCHEMAS)
def test_statements_are_those_of_the_golden_file(index: str) -> None:
    file = GOLDEN / f"{index}.sql"
    if os.environ.get("PENSTOCK_GOLDEN") == "write":
        file.write_text(statements(index))
    assert statements(index) == file.read_text()


def test_no_file_is_left_of_a_schema_that_is_gone() -> None:
    assert {file.stem for file in GOLDEN.glob("*.sql")} == set(SCHEMAS)


def test_resolving_looks_at_no_filter_and_no_limit() -> None:
    """E67: what a filter hides now may have been shown before."""
    for index in SCHEMAS:
        for step in plan_index(bind(SCHEMAS[index], TABLES), SqlCatalog(TABLES)).resolutions:
            for word in ("draft", "price", "gone", "LIMIT", "row_number"):
                assert word not in step.sql


def test_a_value_with_line_breaks_stays_as_it_is_at_any_depth() -> None:
    odd = "one\ntwo\n  three"
    orders = replace(CUSTOMERS.fields[3], filters=(Comparison("state", FilterOp.EQ, (odd,)),))  # type: ignore[call-arg]
    schema = bind(replace(CUSTOMERS, fields=(orders,)), TABLES)
    assert f"= '{odd}'" in plan_index(schema, SqlCatalog(TABLES)).by_keys


def test_a_column_that_is_missing_is_named_with_its_index() -> None:
    bound = bind(CUSTOMERS, TABLES)
    lacking = dict(TABLES)
    info = lacking[table("customer")]
    kept = tuple(column for column in info.columns if column.name != "email")
    lacking[table("customer")] = replace(info, columns=kept)
    with pytest.raises(ConfigError, match=r'index customers: table public.customer has no column "email"'):
        plan_index(bound, SqlCatalog(lacking))


@pytest.mark.parametrize(
    ("given", "cast"),
    [
        ("numeric(10,2)", "numeric"),
        ("numeric(3,-2)", "numeric"),
        ("character varying(80)[]", "character varying[]"),
        ("character(3)", "bpchar"),
        ("timestamp(3) with time zone", "timestamp with time zone"),
        ("bigint", "bigint"),
    ],
)
def test_a_cast_neither_cuts_nor_rounds(given: str, cast: str) -> None:
    assert unmodified(given) == cast


def test_a_text_of_many_parts_stays_within_the_servers_limit_of_arguments() -> None:
    text = Text()
    for number in range(450):
        text.expression(f"c{number}")
    calls = re.findall(r"concat\(([^()]*)\)", text.sql())
    assert [part for call in calls for part in call.split(", ") if part != "''"] == [f"c{n}" for n in range(450)]
    assert max(call.count(",") for call in calls) < 100
    assert text.sql().count("concat(") < 100
