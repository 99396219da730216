"""All commands alike: whatever a person gives them, the answer is a sentence, and it comes in the form asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from penstock.cli import main
from penstock.cli.failure import EXIT_CODES
from tests.fixtures.commands import environment

# Bytes that are no UTF-8, as Python hands them over from an argument; longer than a path may be.
NO_TEXT, TOO_LONG = "\udcff", "x" * 5000
# What prints JSON by itself, or runs until it is stopped and logs as JSON (--log-format).
WITHOUT_JSON = {"run", "schema config", "schema index"}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("PENSTOCK_", "PG", "DATABASE_URL"))]:
        monkeypatch.delenv(name)


def commands(group: click.Group = main.cli, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


def flags(command: click.Command) -> set[str]:
    return {one.opts[0] for one in command.params if isinstance(one, click.Option)}


def hostile(path: str, command: click.Command) -> Iterator[list[str]]:
    """The command with something in each place that cannot be right; none of it leads to a server."""
    arguments = ["a" for one in command.params if isinstance(one, click.Argument)]
    start = [*path.split(), *(["--yes"] if "--yes" in flags(command) else [])]
    if "--config" in flags(command):
        for text in (NO_TEXT, TOO_LONG, "binary.toml", "deep.toml", "folder", "/dev/null"):
            yield [*start, "--config", text, "--", *arguments]
    if "--url" in flags(command):
        for text in ("nonsense", "postgresql://[", "postgresql://h:99999/d", "postgresql://u@h/d?sslmode=x", TOO_LONG):
            yield [*start, "--url", text, "--", *arguments]
        for flag, text in (("--password-file", "folder"), ("--port", "x"), ("--ssl-mode", "x")):
            yield [*start, flag, text, "--", *arguments]
    for option in command.params:
        if isinstance(option, click.Option) and option.type.name in ("integer range", "float range", "choice"):
            yield [*start, option.opts[0], "-1", "--", *arguments]
    yield [*start, "--no-such-flag"]
    yield [*start, "--log-level", "loud"]


@pytest.fixture
def odd_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("binary.toml").write_bytes(bytes(range(256)))
    Path("deep.toml").write_text("x = " + "[" * 5000 + "]" * 5000)


@pytest.mark.usefixtures("odd_files")
@pytest.mark.parametrize(("path", "command"), list(commands()), ids=lambda one: one if isinstance(one, str) else "")
def test_no_bad_input_ends_in_a_traceback_or_counts_as_a_defect(
    path: str, command: click.Command, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in hostile(path, command):
        code = main.run(arguments)
        shown = capsys.readouterr()
        assert code in (1, 2), (arguments, code, shown.err)
        assert "Traceback" not in shown.err
        assert shown.err.startswith("Error: "), (arguments, shown.err)
        assert shown.out == ""


def test_bytes_that_are_no_text_are_told_as_that(capsys: pytest.CaptureFixture[str]) -> None:
    url = "postgresql://127.0.0.1:1/d"
    assert main.run(["slots", "list", "--url", url, "--user", NO_TEXT]) == 2
    assert "bytes that are no UTF-8" in capsys.readouterr().err


def test_every_command_answers_machines() -> None:
    without = {path for path, command in commands() if "--json" not in flags(command)}
    assert without == WITHOUT_JSON


@pytest.mark.usefixtures("odd_files")
@pytest.mark.parametrize(("path", "command"), list(commands()), ids=lambda one: one if isinstance(one, str) else "")
def test_an_error_in_json_is_one_object_on_stderr(
    path: str, command: click.Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_JSON", "true")
    assert main.run([*path.split(), "--no-such-flag"]) == 2
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    error = json.loads(line)["error"]
    assert error.keys() >= {"type", "message", "hint", "sqlstate", "exit_code"}
    assert (error["exit_code"], shown.out) == (2, "")
    assert error["exit_code"] in EXIT_CODES


def test_each_command_is_named_with_what_it_does_and_its_help_fits_a_terminal() -> None:
    for path, command in commands():
        assert command.get_short_help_str(limit=200).endswith((".", "?")), path
        with click.Context(command, info_name=path, max_content_width=100) as context:
            assert max(map(len, command.get_help(context).splitlines())) <= 100, path


def test_a_run_without_pyspark_says_what_to_install_before_it_asks_the_server(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(
        '[source]\ntype = "postgres"\nconnection_url = "postgres://u@127.0.0.1:1/d"\n'
        '[[index]]\nname = "a"\nschema = "a.schema.yml"\n'
    )
    (tmp_path / "a.schema.yml").write_text("version: 1\ntable: a\nfields: [{long: id}]\n")
    script = "import sys; sys.modules['pyspark'] = None; from penstock.cli.main import main; main()"
    command = [sys.executable, "-c", script, "run", "--config", str(tmp_path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == 'Error: PySpark is not installed\nHint: Run: pip install "penstock[spark]"\n'
    assert not (tmp_path / ".penstock").exists(), "nothing was begun"
