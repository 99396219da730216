"""A lock file holds a whole deployment, no secret, and the same bytes for the same files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from penstock.cli.main import run
from penstock.config.file import find_deployment, read_deployment
from penstock.config.lock import FORMAT, compile_lock, read_lock
from penstock.document.reading import FileErrors
from penstock.errors import ConfigError

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOOD = sorted([*(ROOT / "examples").glob("*/*.toml"), HERE / "flusso_style" / "flusso.toml"])
SECRET = "hunter2"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_CONFIG", "PENSTOCK_LOCK_OUT", "PENSTOCK_CHECK", "PENSTOCK_JSON"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "examples/shop", tmp_path / "shop"))


@pytest.mark.parametrize("file", GOOD, ids=lambda file: file.parent.name)
def test_a_lock_is_the_deployment_again(file: Path, tmp_path: Path) -> None:
    deployment = read_deployment(file)
    lock = tmp_path / "penstock.lock"
    lock.write_bytes(compile_lock(deployment))
    again = read_lock(lock)
    assert again == deployment
    assert again.folder == str(tmp_path)
    assert compile_lock(again) == lock.read_bytes()


def test_wherever_a_deployment_is_named_a_lock_file_will_do(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = read_deployment(shop)
    lock = shop / "shop.json"  # by what is in it, not by its name
    lock.write_bytes(compile_lock(deployment))
    assert read_deployment(lock) == deployment
    for file in [*shop.glob("*.toml"), *shop.glob("*.yml")]:
        file.unlink()
    assert run(["check", "--offline", "--config", str(shop)]) == 2, "another name is no default"
    lock.rename(shop / "penstock.lock")
    assert read_deployment(shop) == deployment
    monkeypatch.chdir(shop)
    assert run(["check", "--offline", "products"]) == 0
    assert "The files are in order: 1 index." in capsys.readouterr().out
    assert run(["lock"]) == 2
    assert "is not made of itself" in capsys.readouterr().err


def test_the_files_win_over_their_lock(shop: Path) -> None:
    (shop / "penstock.lock").write_text("{ this is not read")
    assert find_deployment(shop) == shop / "penstock.toml"
    with pytest.raises(ConfigError, match="no lock file, or damaged"):
        read_deployment(shop / "penstock.lock")


def test_a_run_is_not_told_two_deployments(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--config", str(shop), "--locked", str(shop / "penstock.lock")]) == 2
    assert "Leave one of them out" in capsys.readouterr().err


def test_a_lock_does_not_say_where_it_was_made(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from_afar = compile_lock(read_deployment(shop))
    monkeypatch.chdir(shop)
    assert compile_lock(read_deployment("penstock.toml")) == from_afar
    assert str(shop.parent).encode() not in from_afar
    (shop / "penstock.lock").write_bytes(from_afar)
    places = {index.schema.place.file for index in read_lock(shop / "penstock.lock").indexes}
    assert places == {str(shop / "customers.schema.yml"), str(shop / "products.schema.yml")}


def test_a_secret_in_the_file_is_refused_by_the_name_of_the_variable_to_use(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(
        f'[source]\ntype = "postgres"\nconnection_url = "postgres://u:{SECRET}@h/d"\n'
        f'[sinks.s]\ntype = "opensearch"\nusername = "me"\nurl = "https://me:{SECRET}@h"\npassword = "{SECRET}"\n'
        f'[sinks.d]\ntype = "delta"\npath = "t"\nstorage_options = {{ region = "eu", secret_key = "{SECRET}" }}\n'
    )
    with pytest.raises(FileErrors) as refused:
        compile_lock(read_deployment(file))
    message = str(refused.value)
    assert SECRET not in message
    assert [one.place.line for one in refused.value.problems] == [3, 7, 8, 12]
    for variable in ("DATABASE_URL", "S_OPENSEARCH_URL", "S_OPENSEARCH_PASSWORD", "SINKS_D_STORAGE_OPTIONS_SECRET_KEY"):
        assert f'{{ env = "{variable}" }}' in message


def test_a_newer_lock_is_refused_and_an_older_one_read(tmp_path: Path) -> None:
    file = tmp_path / "penstock.lock"
    content = json.loads(compile_lock(read_deployment(ROOT / "examples/first")))
    assert content["penstock_lock"] == FORMAT
    file.write_text(json.dumps(content | {"penstock_lock": FORMAT + 1}))
    with pytest.raises(ConfigError, match=f"format {FORMAT + 1}, and this Penstock reads up to {FORMAT}"):
        read_lock(file)
    del content["deployment"]["source"]["heartbeat_s"]  # a setting that came later
    file.write_text(json.dumps(content))
    assert read_lock(file).source.heartbeat_s is None


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"penstock_lock": 1}', '{"penstock_lock": 1, "deployment": {"is": "Deployment"}}',
        '{"penstock_lock": 1, "deployment": {"is": "Deployment", "new_key": 1}}',
        '{"penstock_lock": 1, "deployment": {"is": "Deployment", "source": {"is": "Source", "place": "x"}}}',
        '{"penstock_lock": 1, "deployment": {"is": "Deployment", "on_error": "never"}}',
        '{"penstock_lock": 1, "deployment": {"is": "Deployment", "prefix": true}}',
        '{"penstock_lock": 1, "deployment": {"is": "Deployment", "sinks": [{"is": "Source"}]}}', "[" * 100000,
    ],
)  # fmt: skip
def test_a_damaged_lock_is_told_as_such(tmp_path: Path, text: str) -> None:
    file = tmp_path / "penstock.lock"
    file.write_text(text)
    with pytest.raises(ConfigError, match="no lock file, or damaged"):
        read_lock(file)


def test_a_missing_lock_is_told_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as found:
        read_lock(tmp_path / "penstock.lock")
    assert "penstock lock" in found.value.hint


@pytest.mark.parametrize("command", ["lock", "build"])
def test_the_command_writes_the_lock_beside_the_file(
    command: str, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--config", str(shop), "--check"]) == 1
    assert not (shop / "penstock.lock").exists()
    assert run([command, "--config", str(shop)]) == 0
    assert read_lock(shop / "penstock.lock") == read_deployment(shop)
    assert {one.name for one in shop.iterdir()} >= {"penstock.lock"}
    assert not [one.name for one in shop.iterdir() if one.name.startswith(".")]
    assert run([command, "--config", str(shop), "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {
        "file": str(shop / "penstock.lock"),
        "bytes": (shop / "penstock.lock").stat().st_size,
        "changed": False,
        "written": False,
    }
    (shop / "products.schema.yml").write_text((shop / "products.schema.yml").read_text() + "  - keyword: more\n")
    assert run([command, "--config", str(shop), "--check"]) == 1


def test_the_command_says_every_problem_and_ends_with_a_usage_error(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (shop / "products.schema.yml").write_text("version: 1\ntabel: products\n")
    assert run(["lock", "--config", str(shop), "--json"]) == 2
    error = json.loads(capsys.readouterr().err)["error"]
    assert [(one["line"], one["column"]) for one in error["problems"]] == [(1, 1), (2, 1)]
    assert error["problems"][1]["hint"].startswith("did you mean `table`?")
    assert run(["lock", "--config", str(shop), "--out", "/nowhere/x.lock"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_lock_that_cannot_be_written_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").mkdir()
    assert run(["lock", "--config", str(ROOT / "examples/first"), "--out", str(tmp_path / "taken")]) == 2
    assert "cannot be used as the lock file" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize(("which", "key"), [("config", "source"), ("index", "fields")])
def test_the_json_schemas_are_printed(which: str, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", which]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert key in printed["properties"]
    assert printed["additionalProperties"] is False
