"""A deployment's file, its schema files and its secrets become one value, or all their problems at once."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
import tomllib
from pathlib import Path

import pytest

from penstock.config import reference
from penstock.config.connection import connection_settings
from penstock.config.deployment import (
    ConnectionParts,
    DeltaSink,
    Deployment,
    LocalSink,
    OnDown,
    OnError,
    OpenSearchSink,
    ParquetSink,
    Server,
    Source,
    StdoutSink,
    TextAnalysis,
    Untraceable,
)
from penstock.config.file import read_deployment
from penstock.config.secrets import Secret, has_password
from penstock.config.words import SINKS, TABLES, json_schema
from penstock.document import reading_words as schema_words
from penstock.document.reading import FileErrors
from penstock.errors import ConfigError
from penstock.model import SslMode
from tests.unit.json_schemas import fits

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BAD = HERE / "bad_files" / "deployments"
GOOD = sorted([*(ROOT / "examples").glob("*/*.toml"), HERE / "flusso_style" / "flusso.toml"])
SECRET = "hunter2"


def read(folder: Path, text: str) -> Deployment:
    file = folder / "penstock.toml"
    file.write_text(text)
    return read_deployment(file)


SOURCE = '[source]\ntype = "postgres"\n'


@pytest.mark.parametrize("file", sorted(BAD.glob("*.toml")), ids=lambda file: file.stem)
def test_a_bad_file_is_told_by_exactly_these_problems(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(BAD)
    with pytest.raises(FileErrors) as found:
        read_deployment(file.name)
    assert str(found.value) + "\n" == file.with_suffix(".txt").read_text()
    assert SECRET not in str(found.value)


def test_a_file_that_says_the_least_has_every_default(tmp_path: Path) -> None:
    found = read(tmp_path, SOURCE)
    assert found == Deployment(Source(), (StdoutSink("stdout"),), ())
    assert (found.prefix, found.on_error, found.state, found.folder) == ("", OnError.STOP, ".penstock", str(tmp_path))
    assert found.server == Server("127.0.0.1:9464", "127.0.0.1:9465")
    source = found.source
    assert (source.slot, source.publication, source.manage_publication) == ("penstock", "penstock", True)
    assert (source.manage_replica_identity, source.untraceable) == (False, Untraceable.REFUSE)
    assert (source.column_lists, source.max_retained_wal, source.max_connections) == (False, None, 4)
    assert (source.ssl_mode, source.heartbeat_s) == (None, None)


def test_the_defaults_of_the_values_are_those_of_the_file(tmp_path: Path) -> None:
    text = "".join(f'[sinks.{type_}]\ntype = "{type_}"\npath = "p"\n' for type_ in ("local", "delta", "parquet"))
    text += '[sinks.search]\ntype = "opensearch"\n[sinks.out]\ntype = "stdout"\n'
    local, delta, parquet, search, out = read(tmp_path, SOURCE + text).sinks
    assert (local, delta, parquet) == (LocalSink("local", "p"), DeltaSink("delta", "p"), ParquetSink("parquet", "p"))
    assert out == StdoutSink("out")
    assert isinstance(search, OpenSearchSink)
    assert search == OpenSearchSink("search", search.url, search.username, search.password, search.api_key)
    defaults = {key.name: key.default for table in SINKS.values() for key in table.keys}
    for sink in (local, delta, parquet, search, out):
        for field in dataclasses.fields(sink):
            if field.name in defaults and not isinstance(getattr(sink, field.name), Secret | dict | str):
                assert getattr(sink, field.name) == defaults[field.name], field.name


def test_every_key_of_the_file_arrives(tmp_path: Path) -> None:
    (tmp_path / "people.schema.yml").write_text("version: 1\ntable: people\nfields: [{long: id}]\n")
    found = read(
        tmp_path,
        'on_error = "skip"\nprefix = "dev_"\nstate = "s"\n'
        '[server]\npublic_address = "[::1]:1"\nprivate_address = "h:2"\n'
        '[source]\ntype = "postgres"\nconnection_url = { env = "U" }\nmanage_publication = false\nslot = "s"\n'
        'publication = "p"\nmanage_replica_identity = true\nuntraceable = "warn"\ncolumn_lists = true\n'
        'max_retained_wal = "20GB"\nmax_connections = 9\nssl_mode = "require"\nssl_root_cert = "system"\n'
        'ssl_cert = "c"\nssl_key = "k"\nheartbeat_s = 1.5\n'
        '[sinks.a-b]\ntype = "elasticsearch"\nurl = "http://h"\napi_key = { env = "K" }\nca_cert = "ca"\n'
        'tls_verify = false\nbatch_size = 1\nmax_bytes = 2\ntimeout_secs = 3\nmax_retries = 0\npipeline = "p"\n'
        'number_of_shards = 4\nnumber_of_replicas = 0\nrefresh_interval = "-1"\ntext_analysis = "icu"\n'
        'auto_subfields = false\non_down = "stop"\n'
        '[sinks.d]\ntype = "delta"\npath = "s3://b/t"\non_down = "detach"\n'
        '[sinks.d.storage_options]\nregion = "eu"\nsecret_key = { env = "S" }\n'
        '[sinks.o]\ntype = "stdout"\npretty = true\n'
        '[[index]]\nname = "people"\nschema = "people.schema.yml"\n'
        '[[index]]\nname = "gone"\nschema = "people.schema.yml"\nenabled = false\non_error = "stop"\n',
    )
    assert found.source == Source(
        Secret("source.connection_url", env="U", reserved="DATABASE_URL"), None, False, "s", "p", True,
        Untraceable.WARN, True, 20 << 30, 9, SslMode.REQUIRE, "system", "c", "k", 1.5,
    )  # fmt: skip
    search, delta, out = found.sinks
    assert search == OpenSearchSink(
        "a-b", Secret("sinks.a-b.url", literal="http://h", reserved="A_B_ELASTICSEARCH_URL"),
        Secret("sinks.a-b.username", reserved="A_B_ELASTICSEARCH_USERNAME"),
        Secret("sinks.a-b.password", reserved="A_B_ELASTICSEARCH_PASSWORD"),
        Secret("sinks.a-b.api_key", env="K", reserved="A_B_ELASTICSEARCH_API_KEY"),
        "elasticsearch", "ca", False, 1, 2, 3, 0, "p", 4, 0, "-1", TextAnalysis.ICU, False, OnDown.STOP,
    )  # fmt: skip
    options = {"region": Secret("sinks.d.storage_options.region", literal="eu"),
               "secret_key": Secret("sinks.d.storage_options.secret_key", env="S")}  # fmt: skip
    assert delta == DeltaSink("d", "s3://b/t", options, OnDown.DETACH)
    assert out == StdoutSink("o", True)
    assert (found.on_error, found.prefix, found.state) == (OnError.QUARANTINE, "dev_", "s")
    assert found.server == Server("[::1]:1", "h:2")
    assert [(one.name, one.enabled, one.on_error) for one in found.indexes] == [
        ("people", True, OnError.QUARANTINE), ("gone", False, OnError.STOP),
    ]  # fmt: skip
    assert [one.name for one in found.enabled] == ["people"]
    assert found.index("gone") is found.indexes[1]
    assert found.index("none") is None
    assert found.indexes[0].schema.index == "people"


@pytest.mark.parametrize(
    ("size", "count"),
    [("5", 5), ('"1B"', 1), ('"2kB"', 2048), ('"3 MB"', 3 << 20), ('"1TiB"', 1 << 40)],
)
def test_sizes_are_bytes_or_have_a_unit(tmp_path: Path, size: str, count: int) -> None:
    assert read(tmp_path, SOURCE + f"max_retained_wal = {size}\n").source.max_retained_wal == count


@pytest.mark.parametrize("size", ['"7"', "0", "-1", "true", "1.5", '"GB"', '"1PB"'])
def test_other_sizes_are_refused(tmp_path: Path, size: str) -> None:
    with pytest.raises(FileErrors, match="a number of bytes above 0"):
        read(tmp_path, SOURCE + f"max_retained_wal = {size}\n")


@pytest.mark.parametrize("file", GOOD, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_examples_and_files_in_flussos_style_are_read_as_they_are(file: Path) -> None:
    found = read_deployment(file)
    assert found.indexes
    assert fits(tomllib.loads(file.read_text()), json_schema(), json_schema())


def test_the_json_schema_refuses_what_the_reader_refuses_for_its_shape() -> None:
    beyond = {
        "both-files",
        "index-missing-file",
        "index-twice",
        "url-form",
        "sink-url",
        "sink-name",
        "index-name-accent",
    }
    accepted = set()
    for file in BAD.glob("*.toml"):
        try:
            data = tomllib.loads(file.read_text())
        except tomllib.TOMLDecodeError:
            continue
        if fits(data, json_schema(), json_schema()):
            accepted.add(file.stem)
    assert accepted <= beyond


def test_a_folder_stands_for_its_file_and_flussos_name_is_found_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"there is no penstock\.toml in"):
        read_deployment(tmp_path)
    (tmp_path / "flusso.toml").write_text(SOURCE + 'slot = "theirs"\n')
    assert read_deployment(tmp_path).source.slot == "theirs"
    (tmp_path / "penstock.toml").write_text(SOURCE + 'slot = "ours"\n')
    assert read_deployment(tmp_path).source.slot == "ours"
    monkeypatch.chdir(tmp_path)
    assert read_deployment().source.slot == "ours"
    with pytest.raises(FileErrors, match=r"none\.toml cannot be read"):
        read_deployment("none.toml")


def test_paths_start_beside_the_file() -> None:
    found = Deployment(Source(), (), (), folder="conf")
    assert found.locate("state") == "conf/state"
    assert found.locate("/var/state") == "/var/state"
    assert found.locate("s3://bucket/state") == "s3://bucket/state"


def test_a_secret_shows_nowhere_and_does_not_leave_the_process(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        f'[source]\ntype = "postgres"\nconnection_url = "postgres://u:{SECRET}@h/d"\n'
        f'[sinks.s]\ntype = "opensearch"\nusername = "me"\npassword = "{SECRET}"\n',
    )
    for shown in (repr(found), str(found), str(dataclasses.asdict(found)), repr(copy.deepcopy(found))):
        assert SECRET not in shown
    with pytest.raises(ConfigError, match="does not leave this process") as refused:
        pickle.dumps(found)
    assert SECRET not in str(refused.value)
    assert found.source.url.resolve({}) == f"postgres://u:{SECRET}@h/d"


def test_a_secret_by_its_variable_pickles_and_resolves_elsewhere() -> None:
    secret = pickle.loads(pickle.dumps(Secret("sinks.s.password", env="P")))
    assert secret == Secret("sinks.s.password", env="P")
    assert secret.resolve({"P": SECRET}) == SECRET


def test_the_variable_that_the_file_names_comes_first_then_the_reserved_one_then_the_text() -> None:
    named = Secret("a", env="MINE", reserved="RESERVED")
    assert named.resolve({"MINE": "1", "RESERVED": "2"}) == "1"
    with pytest.raises(ConfigError, match="MINE, which is not set"):
        named.resolve({"RESERVED": "2"})
    written = Secret("a", literal="3", reserved="RESERVED")
    assert written.resolve({"RESERVED": "2"}) == "2"
    assert written.resolve({}) == "3"
    assert Secret("a", reserved="RESERVED").resolve({}) is None
    with pytest.raises(ConfigError, match="a is not given"):
        Secret("a", reserved="RESERVED").require({})


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("postgres://u:p@h/d", True),
        ("postgres://u@h/d", False),
        ("postgres://h/d?password=p", True),
        ("host=h password=p", True),
        ("https://h:9200/x:y@z", False),
        ("https://:p@h", True),
    ],
)
def test_a_url_is_secret_where_a_password_is_in_it(url: str, secret: bool) -> None:
    assert has_password(url) is secret
    assert Secret("source.connection_url", literal=url).holds_password is secret


def test_the_connection_is_resolved_where_it_is_made(tmp_path: Path) -> None:
    by_parts = read(tmp_path, SOURCE + '[source.connection_url]\ndatabase = "d"\npassword = { env = "P" }\n')
    assert by_parts.source.parts == ConnectionParts("d", password=Secret("source.connection_url.password", env="P"))
    settings = connection_settings(by_parts, {"P": SECRET, "PGUSER": "other"})
    assert settings.describe() == "postgres@127.0.0.1:5432/d"
    assert settings.get("password") == SECRET
    assert connection_settings(by_parts, {"DATABASE_URL": "postgres://a@b/c"}).describe() == "a@b:5432/c"
    by_name = read(tmp_path, SOURCE + 'connection_url = { env = "U" }\nssl_root_cert = "ca.pem"\n')
    settings = connection_settings(
        by_name, {"U": "postgres://x@y/z?sslmode=require", "DATABASE_URL": "postgres://a@b/c"}
    )
    assert settings.describe() == "x@y:5432/z"
    assert (settings.sslmode, settings.get("sslrootcert")) == ("require", str(tmp_path / "ca.pem"))
    with pytest.raises(ConfigError, match=r"source\.connection_url is not given"):
        connection_settings(read(tmp_path, SOURCE), {})


def test_the_reference_is_what_the_tables_of_keys_say() -> None:
    assert (ROOT / reference.PAGE).read_text() == reference.render(), "stale: run make docs"


def test_every_key_of_both_files_says_what_it_means_and_is_in_the_reference() -> None:
    page = (ROOT / reference.PAGE).read_text()
    titles = "".join(re.findall(r"^### .*$", page, re.MULTILINE))
    for table in (*TABLES, *schema_words.TABLES):
        for key in table.keys:
            assert key.meaning.endswith("."), key.name
            assert f"| `{key.name}` | " in page or f"`{key.name}`" in titles, f"{table.title}: {key.name}"
