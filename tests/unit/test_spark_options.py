"""Options of the Spark source: any spelling of a name, one sentence for what is wrong, secrets nowhere."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.model import QualifiedTable
from penstock.spark.options import OPTIONS, SourceOptions

SECRET = "pa55-w0rd"
STREAM = {"table": "t", "slot": "s"}


def refusal(options: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        SourceOptions.parse(options).for_stream()
    return str(caught.value)


def test_names_are_matched_whatever_their_case() -> None:
    found = SourceOptions.parse(
        {"TABLE": "Sales.Orders", "SLOT": "s", "maxrowspertrigger": "5", "JsonColumns": "STRING"}
    )
    assert found.tables == (QualifiedTable("sales", "orders"),)
    assert (found.slot, found.publication, found.max_rows, found.json_columns) == ("s", "s", 5, "string")


def test_the_defaults_are_those_that_are_documented() -> None:
    """What a user writes as a default is what leaving the option out means."""
    written = {option.name: option.default for option in OPTIONS if option.default.isdecimal() or option.words}
    written |= {option.name: option.default for option in OPTIONS if option.default in ("true", "false")}
    for name in ("port", "sslMode"):  # these are the connection's: given is not the same as left out
        del written[name]
    bare = SourceOptions.parse(STREAM)
    assert SourceOptions.parse({**STREAM, **written}) == bare
    assert len(written) > 8
    assert (bare.preimage, bare.json_columns, bare.unrepresentable, bare.fail_on_data_loss) == (
        False, "variant", "error", True
    )  # fmt: skip
    assert (bare.manage_publication, bare.failover, bare.temporary_slot, bare.mode) == (True, False, False, "rows")


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("maxRowPerTrigger", "maxRowsPerTrigger"),
        ("passwordenv1", "passwordEnv"),
        ("db_table", "dbtable"),
        ("pubication", "publication"),
        ("startingOffset", "startingPosition"),
    ],
)
def test_an_unknown_option_names_the_nearest(given: str, nearest: str) -> None:
    said = refusal({**STREAM, given: "1"})
    assert repr(given) in said and f"Did you mean {nearest}?" in said


def test_an_option_like_no_other_is_pointed_to_the_list() -> None:
    assert "docs/reference/spark.md" in refusal({**STREAM, "xyzzy": "1"})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"slot": ""}, "a stream needs a slot"),
        ({"table": ""}, "no table is given"),
        ({"mode": "row"}, "It is one of: rows, keys."),
        ({"jsonColumns": "json"}, "It is one of: variant, string."),
        ({"startingPosition": "earliest"}, "It is one of: slot, snapshot."),
        ({"preimage": "yes"}, "It is true or false."),
        ({"maxRowsPerTrigger": "0"}, "a whole number above zero"),
        ({"maxBytesPerTrigger": "1.5"}, "a whole number above zero"),
        ({"spoolMaxBytes": "-1"}, "a whole number above zero"),
        ({"tables": "a, b"}, "table and tables are both given"),
        ({"table": "a.b.c"}, "is not a table name"),
        ({"password": "x", "passwordEnv": "Y"}, "password and passwordEnv are both given"),
        ({"url": "x", "urlEnv": "Y"}, "url and urlEnv are both given"),
        ({"dbtable": "other"}, "table is given twice"),
        ({"numPartitions": "2"}, "numPartitions belongs to a batch read"),
        ({"where": "id > 1"}, "where belongs to a batch read"),
        ({"mode": "keys", "preimage": "true"}, "preimage belongs to mode rows"),
        ({"mode": "keys", "startingPosition": "snapshot"}, "one table in mode rows"),
        ({"spoolShared": "true"}, "spoolShared needs spoolDir"),
        ({"sslMode": "full"}, "verify-full"),
    ],
)
def test_what_does_not_fit_is_one_sentence(wrong: dict[str, str], said: str) -> None:
    given = {name: value for name, value in {**STREAM, **wrong}.items() if value}
    assert said in refusal(given)


def test_a_batch_read_wants_no_slot_and_one_table() -> None:
    with pytest.raises(ConfigError, match="a slot belongs to a stream"):
        SourceOptions.parse(STREAM).for_batch()
    with pytest.raises(ConfigError, match="one table"):
        SourceOptions.parse({"tables": "a, b"}).for_batch()


@pytest.mark.parametrize(
    "name",
    [option.name for option in OPTIONS if option.meaning.startswith(("stream:", "keys:")) and option.name != "slot"],
)
def test_an_option_of_a_stream_is_not_ignored_by_a_batch_read(name: str) -> None:
    value = next(o.default if o.words or o.default in ("true", "false") else "1" for o in OPTIONS if o.name == name)
    value = "{}" if name == "keyColumns" else value
    with pytest.raises(ConfigError, match=f"{name} belongs to a stream, and no slot is given"):
        SourceOptions.parse({"table": "t", name: value}).for_batch()


def test_several_tables_are_told_apart_by_commas_outside_of_quotes() -> None:
    found = SourceOptions.parse({"tables": ' a, s."B,c" ,"x""y".z, a', "slot": "s"})
    assert found.many
    assert found.tables == (QualifiedTable("public", "a"), QualifiedTable("s", "B,c"), QualifiedTable('x"y', "z"))


def test_a_password_shows_in_no_repr_and_travels_with_the_options() -> None:
    """E103: the options are pickled into Spark's tasks, as docs/reference/spark.md says of a plain password."""
    options = SourceOptions.parse({**STREAM, "host": "h", "password": SECRET, "url": f"postgresql://u:{SECRET}@h/d"})
    assert SECRET not in repr(options) and SECRET not in str(options)
    assert pickle.loads(pickle.dumps(options)) == options
    assert SECRET not in repr(options.settings())


def test_an_option_given_twice_is_told_without_its_values() -> None:
    """E103: the values may be secrets."""
    said = refusal({**STREAM, "password": SECRET, "PASSWORD": "other"})
    assert "password is given twice" in said and SECRET not in said and "other" not in said


def test_named_secrets_are_looked_up_where_the_connection_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """E103: what travels is the name of a variable or a file."""
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    by_file = SourceOptions.parse({**STREAM, "host": "h", "user": "u", "passwordFile": str(file)})
    by_name = SourceOptions.parse({**STREAM, "host": "h", "user": "u", "passwordEnv": "PENSTOCK_TEST_PASSWORD"})
    by_url = SourceOptions.parse({**STREAM, "urlEnv": "PENSTOCK_TEST_URL"})
    for options in by_file, by_name, by_url:
        assert SECRET.encode() not in pickle.dumps(options)
    with pytest.raises(ConfigError, match="PENSTOCK_TEST_PASSWORD, which is not set"):
        by_name.settings()
    monkeypatch.setenv("PENSTOCK_TEST_PASSWORD", SECRET)
    monkeypatch.setenv("PENSTOCK_TEST_URL", f"postgresql://u:{SECRET}@h/d")
    plain = SourceOptions.parse({**STREAM, "host": "h", "user": "u", "password": SECRET})
    assert by_file.settings() == by_name.settings() == plain.settings()
    assert by_url.settings().describe() == "u@h:5432/d"
    file.unlink()
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        by_file.settings()
