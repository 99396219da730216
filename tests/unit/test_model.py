"""LSNs and table names: read as Postgres reads them, ordered as it orders them."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.model import Lsn, Position, QualifiedTable, literal, quote

lsns = st.integers(0, 2**64 - 1).map(Lsn)


@pytest.mark.parametrize(
    ("text", "number", "shown"),
    [
        ("0/0", 0, "0/0"),
        ("FFFFFFFF/FFFFFFFF", 2**64 - 1, "FFFFFFFF/FFFFFFFF"),
        ("16/b374d848", 0x16_B374D848, "16/B374D848"),
        ("00000016/0000000a", 0x16_0000000A, "16/A"),
        ("0/FFFFFFFF", 2**32 - 1, "0/FFFFFFFF"),
        ("1/0", 2**32, "1/0"),
    ],
)
def test_an_lsn_is_read_and_written_as_postgres_does(text: str, number: int, shown: str) -> None:
    """E9: both ends of the range, lower case, leading zeros."""
    assert Lsn.parse(text) == number
    assert str(Lsn.parse(text)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "", "/", "0", "0/", "/0", "123456789/0", "0/123456789", "G/0", "0/0/0", "-1/0", "0/-1", "+1/0", " 0/0", "0/0\n",
        "0x1/0", "1_0/0", "٣/0", "0 /0",
    ],
)  # fmt: skip
def test_what_is_no_lsn_is_refused(text: str) -> None:
    """E9: a missing half, an over-long half, digits that Postgres does not know."""
    with pytest.raises(ConfigError, match="is not an LSN"):
        Lsn.parse(text)


@pytest.mark.parametrize("number", [-1, 2**64])
def test_an_lsn_has_64_bits(number: int) -> None:
    """E9."""
    with pytest.raises(ConfigError, match="64 bits"):
        Lsn(number)


@given(lsns, lsns)
def test_lsns_are_ordered_as_numbers(one: Lsn, other: Lsn) -> None:
    """E9: never as texts: 9/0 is before 10/0."""
    assert (Lsn.parse(str(one)) < Lsn.parse(str(other))) == (int(one) < int(other))
    assert Lsn.parse("9/0") < Lsn.parse("10/0") < Lsn.parse("A0/0")
    assert sorted([Position(one, 10), Position(one, 9), Position(other, 0)])[0].lsn == min(one, other)


@given(lsns)
def test_an_lsn_survives_text_pickle_and_copy(lsn: Lsn) -> None:
    """E9."""
    for again in (Lsn.parse(str(lsn)), Lsn.parse(str(lsn).lower()), pickle.loads(pickle.dumps(lsn)), copy.copy(lsn)):
        assert again == lsn
        assert type(again) is Lsn
    assert repr(lsn) == f"Lsn('{lsn}')"


@pytest.mark.parametrize(
    ("text", "schema", "name"),
    [
        ("orders", "public", "orders"),
        ("Sales.Orders", "sales", "orders"),
        ('"Sales"."Orders"', "Sales", "Orders"),
        ('sales."a.b"', "sales", "a.b"),
        ('"say ""hi"""', "public", 'say "hi"'),
        (" sales.orders ", "sales", "orders"),
        # Postgres folds the letters of ASCII only, in a database of several bytes a letter.
        ("ÄRGER.GrÖßE", "Ärger", "grÖße"),
        ("İ", "public", "İ"),
    ],
)
def test_a_table_is_named_as_in_sql(text: str, schema: str, name: str) -> None:
    """E6: mixed case, dots, quotes, letters beyond ASCII."""
    assert QualifiedTable.parse(text) == (schema, name)


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a.b.c", '"', '"a', 'a"b', '""', "a b", 'a."b"c'])
def test_what_is_no_table_name_is_refused(text: str) -> None:
    """E6."""
    with pytest.raises(ConfigError, match="is not a table name"):
        QualifiedTable.parse(text)


@given(st.text(min_size=1), st.text(min_size=1))
def test_a_tables_sql_and_its_text_name_the_same_table(schema: str, name: str) -> None:
    """E6: whatever the names are, what is written is read back."""
    table = QualifiedTable(schema, name)
    assert QualifiedTable.parse(table.sql) == table
    assert QualifiedTable.parse(str(table)) == table


def test_quotes_inside_are_doubled() -> None:
    """E6."""
    assert quote('a"b') == '"a""b"'
    assert literal("O'Brien") == "'O''Brien'"
