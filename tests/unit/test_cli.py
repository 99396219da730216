"""The command line without a server: what it prints, how it ends, what it never shows."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import click
import pytest

import penstock
from penstock.app import ConnectionNames
from penstock.cli import demo, main, output, reference
from penstock.cli.ending import Ending
from penstock.cli.failure import EXIT_CODES, describe
from penstock.cli.lines import json_line, text_line
from penstock.contracts import Ack, Change
from penstock.errors import BugError, ConfigError, PenstockError, SlotLostError, UnavailableError
from penstock.model import Lsn, Op, Position, QualifiedTable
from tests.fixtures.commands import running
from tests.fixtures.waiting import wait_until

ROOT = Path(__file__).parents[2]
HEAVY = {"pyarrow", "numpy", "psycopg", "rich", "penstock.postgres", "penstock.demo.server"}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("PENSTOCK_", "PG"))]:
        monkeypatch.delenv(name)


def commands(group: click.Group = main.cli) -> Iterator[click.Command]:
    for command in group.commands.values():
        if isinstance(command, click.Group):
            yield from commands(command)
        else:
            yield command


def test_help_answers_without_loading_what_a_command_needs() -> None:
    asked = ["penstock", *(f"penstock {name}" for name in main.cli.commands)]
    words = [[*path.split()[1:], "--help"] for path in asked]
    calls = f"import sys; from penstock.cli.main import run; [run(one) for one in {words!r}]"
    script = f"{calls}; print(*sys.modules, file=sys.stderr)"
    shown = subprocess.run([sys.executable, "-c", script], cwd=ROOT / "src", capture_output=True, text=True, check=True)
    assert all(f"Usage: {path} " in shown.stdout for path in asked)
    assert "penstock.cli.tail" in shown.stderr
    assert not HEAVY & set(shown.stderr.split())


def test_the_reference_is_what_the_commands_say() -> None:
    assert (ROOT / reference.PAGE).read_text() == reference.render(), "stale: run make docs"


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
def test_what_is_no_number_of_seconds_is_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Python reads each as a number; NaN is below no limit, and nothing waits for ever by a number."""
    for words in (["demo", "--seconds"], ["demo", "--rate"], ["follow", "t", "--every"], ["tail", "--wait"]):
        assert main.run([*words, value]) == 2, words
        assert f"Invalid value for '{words[-1]}': " in capsys.readouterr().err


def test_the_reference_has_no_empty_table_one_way_to_say_several_and_names_each_flag_that_may_be() -> None:
    page = reference.render()
    assert "|---|---|---|---|\n\n" not in page
    assert "]…" not in page, "click writes three dots"
    several = {f"`{command.name} {one.opts[0]}`" for command in commands() for one in command.params if one.multiple}
    head = page.partition("\n## ")[0]
    assert several
    assert not {one for one in several if one not in head}


def flags() -> Iterator[tuple[str, str, str, tuple[object, ...]]]:
    """Of every flag of every command: the command, the flag, its variable, and what it means."""
    for command in commands():
        for option in (one for one in command.params if isinstance(one, click.Option)):
            (flag,) = option.opts
            assert option.help
            variables = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
            meaning = (option.help, str(option.type), option.metavar, option.is_flag, option.multiple)
            yield command.name or "", flag, variables[0], meaning


def test_every_flag_has_its_variable_and_none_takes_a_password() -> None:
    meanings: dict[str, set[tuple[object, ...]]] = {}
    for _, flag, _, meaning in flags():
        meanings.setdefault(flag, set()).add(meaning)
    for command, flag, variable, _ in flags():
        word = flag[2:].replace("-", "_").upper()
        owner = {"build": "lock"}.get(command, command).upper()  # another word for the same command
        assert variable == (f"PENSTOCK_{word}" if len(meanings[flag]) == 1 else f"PENSTOCK_{owner}_{word}")
        assert flag != "--password"


@pytest.mark.parametrize("between", ["\n", ";", " ;\n"])
def test_several_values_in_a_variable_may_hold_blanks(between: str, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = {"spark.driver.extraJavaOptions": "-Da=1 -Db=2", "spark.ui.enabled": "false"}
    monkeypatch.setenv("PENSTOCK_CONF", between.join(f"{name}={value}" for name, value in conf.items()))
    monkeypatch.setenv("PENSTOCK_TABLE", between.join(['"order lines"', "shop.users"]))
    assert main.cli.commands["run"].make_context("run", []).params["conf"] == conf
    tables = main.cli.commands["init"].make_context("init", []).params["table"]
    assert tables == [QualifiedTable("public", "order lines"), QualifiedTable("shop", "users")]


def test_a_variable_means_the_same_to_every_command_that_reads_it() -> None:
    """What is set for one command must not be obeyed by another one that means something else by it."""
    meanings: dict[str, tuple[object, ...]] = {}
    for command, flag, variable, meaning in flags():
        assert meanings.setdefault(variable, meaning) == meaning, f"{variable}: {command} {flag}"


def test_a_variable_stands_in_for_its_flag_and_the_flag_wins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", "postgresql://nobody@nowhere.invalid/")
    monkeypatch.setenv("PENSTOCK_JSON", "true")
    assert main.run(["slots", "list"]) == 3
    assert "nowhere.invalid" in json.loads(capsys.readouterr().err)["error"]["message"]
    assert main.run(["slots", "list", "--url", "postgresql://nobody@elsewhere.invalid/"]) == 3
    assert "elsewhere.invalid" in json.loads(capsys.readouterr().err)["error"]["message"]


FROM_URL, OWN = "postgresql://u@database-url/d", "postgresql://u@own/d"
ASKING = ["slots list", "slots create s", "slots advance s 0/1", "slots drop s", "slots lag s", "coverage t", "tail t"]


@pytest.mark.parametrize(
    ("words", "variables", "meant"),
    [
        *(([*words.split()], {}, FROM_URL) for words in [*ASKING, "follow t --key t=id", "init"]),
        (["slots", "list"], {"PENSTOCK_URL": OWN}, OWN),
        (["slots", "list"], {"PENSTOCK_HOST": "own"}, "own"),
        (["slots", "list", "--host", "own"], {}, "own"),
        (["slots", "list", "--url", OWN], {"PENSTOCK_URL": "postgresql://u@other/d"}, OWN),
        (["slots", "list", "--user", "somebody"], {}, FROM_URL),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_the_server_of_database_url_is_asked_where_nothing_else_names_one(
    words: list[str], variables: dict[str, str], meant: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def found(names: ConnectionNames) -> None:
        raise ConfigError(f"meant: {names.url or names.host}")

    monkeypatch.setattr("penstock.app.resolve_connection", found)
    for name, value in {"DATABASE_URL": FROM_URL, **variables}.items():
        monkeypatch.setenv(name, value)
    assert main.run(words) == 2
    assert f"meant: {meant}\n" in capsys.readouterr().err


@pytest.mark.parametrize(("typed", "meant"), [("locked", "config"), ("config", "locked")])
def test_of_two_flags_that_name_the_deployment_the_typed_one_wins_over_the_others_variable(
    typed: str, meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("penstock.app.allocation.share_memory", lambda: None)
    monkeypatch.setenv(f"PENSTOCK_{meant.upper()}", "/nowhere/variable.lock")
    assert main.run(["run", f"--{typed}", "/nowhere/typed.lock"]) == 2
    assert "/nowhere/typed.lock" in (said := capsys.readouterr().err), said
    assert main.run(["run", f"--{typed}", "/nowhere/typed.lock", f"--{meant}", "/nowhere/other.lock"]) == 2
    assert "both name the deployment" in capsys.readouterr().err
    monkeypatch.setenv(f"PENSTOCK_{typed.upper()}", "/nowhere/typed.lock")
    assert main.run(["run"]) == 2
    assert "both name the deployment" in capsys.readouterr().err


def test_no_colour_is_shown_where_none_is_wanted() -> None:
    """NO_COLOR holds for what a command says and for how it fails, on a terminal, too."""
    script = "from penstock.cli.main import main; main()"
    arguments = [sys.executable, "-c", script, "check", "--config", "nowhere"]
    for variables, escapes in (({}, True), ({"NO_COLOR": "1"}, False)):
        ours, theirs = os.openpty()
        subprocess.run(
            arguments, cwd=ROOT / "src", stdout=theirs, stderr=theirs, check=False,
            env={"PATH": os.environ["PATH"], "TERM": "xterm", **variables},
        )  # fmt: skip
        os.close(theirs)
        shown = os.read(ours, 1 << 16)
        os.close(ours)
        assert b"Error:" in shown
        assert (b"\x1b" in shown) is escapes


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"penstock {penstock.__version__}\n"


def test_output_that_nobody_reads_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    script = "from penstock.cli.main import main; main()"
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-c", script, "--version"],
            cwd=ROOT / "src",
            stdout=closed,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_help_lists_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for code, meaning in EXIT_CODES.items():
        assert f" {code} {meaning}" in shown


def test_help_has_every_command_under_one_heading(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    shown = capsys.readouterr().out
    grouped = [command.name for group in main.GROUPS.values() for command in group]
    assert sorted(map(str, grouped)) == sorted(main.cli.commands)
    lines = shown.partition("Commands:")[2].splitlines()
    for heading, group in main.GROUPS.items():
        at = lines.index(f"  {heading}:")
        named = [line.split()[0] for line in lines[at + 1 : lines.index("", at)] if line[:5].strip()]
        assert named == [command.name for command in group]


def test_the_help_of_run_says_how_to_watch_it_and_what_stays(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["run", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for said in ("on the page", "penstock status", "its slot stays, and holds WAL on the server", "penstock teardown"):
        assert said in shown


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SlotLostError("lost", hint="drop it"), 1),
        (ConfigError("wrong flag"), 2),
        (click.UsageError("no such command"), 2),
        (UnavailableError("down"), 3),
        (BugError("odd"), 4),
        (RuntimeError("a value: secret"), 4),
        (click.Abort(), 1),
    ],
)
def test_the_exit_code_says_who_has_to_act(error: Exception, code: int) -> None:
    failure = describe(error)
    assert failure.code == code
    assert failure.message
    assert code in EXIT_CODES


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_was_not_foreseen_is_one_sentence_without_the_errors_text(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("row value 4711")

    monkeypatch.setattr("penstock.demo.run.run", fail)
    assert main.run(["demo", *(["--json"] if form == "json" else [])]) == 4
    shown = capsys.readouterr().err
    assert "4711" not in shown
    assert "Traceback" not in shown
    assert "Please report it" in shown
    assert "RuntimeError" in shown
    assert len(shown.splitlines()) == (1 if form == "json" else 2)
    assert main.run(["demo", "--log-level", "debug"]) == 4
    logged = capsys.readouterr().err
    assert f"{Path(demo.__file__).name}:" in logged
    assert "4711" not in logged


def test_a_misplaced_url_is_not_repeated_with_its_password(capsys: pytest.CaptureFixture[str]) -> None:
    for url in ("postgresql://u:hunter2@h/d", "postgresql://u:hunter2@x@h/d", "host=h password=hunter2"):
        assert main.run(["slots", "list", url]) == 2
        shown = capsys.readouterr().err
        assert "hunter2" not in shown
        assert "unexpected extra argument" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["slots", "create", "Upper"], "lower-case"),
        (["slots", "advance", "s", "nonsense", "--yes"], "16/B374D848"),
        (["coverage", "a.b.c"], "is not a table name"),
        (["tail", "--limit", "0"], "--limit"),
        (["slots", "list", "--port", "70000"], "--port"),
        (["nonsense"], "nonsense"),
    ],
)
def test_a_wrong_argument_is_told_before_anything_connects(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert "--help" in shown


@pytest.mark.parametrize("arguments", [[], ["slots"]])
def test_a_group_alone_shows_its_commands(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(arguments) == 2
    assert "Commands:" in capsys.readouterr().err


def test_a_password_file_that_does_not_serve_is_named_without_its_content(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\nhunter2\n")
    for file, said in (empty, "is empty"), (tmp_path / "absent", "cannot be read"):
        assert main.run(["slots", "list", "--password-file", str(file)]) == 2
        shown = capsys.readouterr().err
        assert f"the password file {file} {said}" in shown
        assert "hunter2" not in shown


def test_an_ssl_mode_weaker_than_the_urls_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    url = "postgresql://u@nowhere.invalid/d?sslmode=verify-full"
    assert main.run(["slots", "list", "--url", url, "--ssl-mode", "disable"]) == 2
    assert "stricter" in capsys.readouterr().err


VALUES = [
    (None, None),
    (True, True),
    (1 << 70, 1 << 70),
    (1.5, 1.5),
    (float("nan"), "NaN"),
    (float("-inf"), "-Infinity"),
    (Decimal("1.500"), "1.500"),
    (b"\x00\xff", "\\x00ff"),
    (date(2024, 2, 29), "2024-02-29"),
    (datetime(2024, 2, 29, 1, 2, 3, 4, UTC), "2024-02-29T01:02:03.000004+00:00"),
    (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ("\x1b[31m \u00e9 \U0001f600", "\x1b[31m \u00e9 \U0001f600"),
    (Lsn(0x16B374D848), "16/B374D848"),
    ({"a": [b"", {"b": float("inf")}]}, {"a": ["\\x", {"b": "Infinity"}]}),
]


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=repr)
def test_json_is_valid_and_exact_whatever_the_value(value: object, expected: object) -> None:
    written = output.to_json(value)
    assert written.isascii()
    assert json.loads(written, parse_constant=lambda word: pytest.fail(f"not JSON: {word}")) == expected


class NoSink:
    def confirm(self, position: Position) -> None: ...


def change(op: Op, new: dict[str, object] | None, old: dict[str, object] | None) -> Change:
    at = Position(Lsn(0x10), 3)
    return Change(QualifiedTable("public", "T\n"), op, new, old, 7, at, Ack(NoSink(), at))


NOW = datetime(2024, 5, 6, 7, 8, 9, 123456, UTC)


@pytest.mark.parametrize(
    ("op", "new", "old", "ending"),
    [
        (Op.INSERT, {"id": 1, "note": None}, None, "id=1 note=NULL"),
        (Op.UPDATE, {"id": 1}, None, "id=1"),
        (Op.UPDATE, {"id": 2, "x": 5}, {"id": 1, "x": 5}, "id=2 x=5  (was id=1)"),
        (Op.DELETE, None, {"id": 1}, "id=1"),
        (Op.INSERT, {"t": "line\nbreak\x1b[2J"}, None, r"t='line\nbreak\x1b[2J'"),
        (Op.INSERT, {"t": "x" * 500}, None, "t='" + "x" * 79 + "…'"),
    ],
)
def test_a_change_is_one_line_that_cannot_steer_the_terminal(
    op: Op, new: dict[str, object] | None, old: dict[str, object] | None, ending: str
) -> None:
    line = click.unstyle(text_line(change(op, new, old), NOW))
    assert line.isprintable()
    assert line == f'2024-05-06 07:08:09.123Z  0/10:3          {op:8}  public."T\\n"  {ending}'


def test_a_truncate_has_no_values() -> None:
    assert click.unstyle(text_line(change(Op.TRUNCATE, None, None), NOW)).endswith(r'truncate  public."T\n"')


def test_a_change_as_json_has_the_same_fields_for_every_operation() -> None:
    lines = [json.loads(json_line(change(op, None, None), NOW)) for op in Op]
    assert {tuple(line) for line in lines} == {("lsn", "row", "xid", "committed_at", "op", "table", "new", "old")}
    assert [line["op"] for line in lines] == ["insert", "update", "delete", "truncate"]


@pytest.mark.parametrize(
    ("count", "shown"), [(None, "–"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB")]
)
def test_sizes_are_for_people(count: int | None, shown: str) -> None:
    assert output.size_of(count) == shown


def test_a_table_outside_a_terminal_is_aligned_whole_and_plain(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["slot", "note"], [["s" * 200, "[red]lost[/]"], ["t\x1b", ""]])
    head, first, second = capsys.readouterr().out.splitlines()
    assert head == "slot" + " " * 198 + "note"
    assert first == "s" * 200 + "  [red]lost[/]"
    assert second == r"t\x1b"


def test_the_first_signal_calls_once_and_a_second_interrupt_ends_at_once(caplog: pytest.LogCaptureFixture) -> None:
    called: list[str] = []
    before = signal.getsignal(signal.SIGTERM)
    with Ending() as ending:
        ending.when_requested(lambda: called.append("stop"))
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: called, what="the call")
        assert ending.exit_code == 130
        with pytest.raises(KeyboardInterrupt):
            try:
                os.kill(os.getpid(), signal.SIGINT)
                wait_until(lambda: False, what="the interrupt")
            except KeyboardInterrupt:
                logging.exception("said by a library where an interrupt meets it")
                raise
    assert caplog.text == "", "no traceback of an interrupt that was asked for"
    assert called == ["stop"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_request_before_anybody_listens_is_not_forgotten() -> None:
    called: list[str] = []
    with Ending() as ending:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(ending.requested.is_set)
        ending.when_requested(lambda: called.append("stop"))
        assert called == ["stop"]
        assert ending.exit_code == 143


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_may_be_interrupted_is_left_at_the_first_signal(number: signal.Signals) -> None:
    with Ending() as ending, pytest.raises(KeyboardInterrupt), ending.interruptible():
        os.kill(os.getpid(), number)
        wait_until(lambda: False, what="the interrupt")
    assert ending.requested.is_set()


def test_an_ending_that_nobody_asked_for_calls_nothing() -> None:
    with Ending() as ending:
        ending.when_requested(lambda: pytest.fail("called"))
    assert ending.exit_code == 0


def test_a_follow_that_never_reached_its_server_speaks_of_no_slot(tmp_path: Path) -> None:
    nowhere = ("--url", "postgresql://nobody@127.0.0.1:1/none", "--path", str(tmp_path / "copies"))
    with running(tmp_path, "follow", "city", *nowhere) as follower:
        wait_until(lambda: "nothing listens at 127.0.0.1:1" in follower.err, 30, "the first try")
        assert follower.end() == 130
        assert follower.err.splitlines()[-1] == "Stopped. The server was not reached, and nothing was made there."


def test_errors_speak_the_words_of_the_exit_codes() -> None:
    kinds = [kind for kind in vars(penstock.errors).values() if isinstance(kind, type)]
    for kind in kinds:
        if issubclass(kind, PenstockError):
            assert describe(kind("x")).code in EXIT_CODES
