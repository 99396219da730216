"""Writes docs/reference/cli.md from the commands themselves: `python -m penstock.cli.reference`.

Guarantees: every command, argument, flag, variable and exit code is in it, in a fixed order, so that a test can tell
whether the page is stale.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from penstock.cli.failure import EXIT_CODES
from penstock.cli.main import cli
from penstock.cli.options import SECTIONS

PAGE = Path("docs/reference/cli.md")

_HEAD = """\
# Reference: command line

Written from the commands by `make docs`; `penstock COMMAND --help` says the same.

Each flag has a variable of the same name, and the flag wins; where commands mean different things by one flag
(`tail --limit`, `search --limit`), the command's name stands in the variable (`PENSTOCK_TAIL_LIMIT`). Which
server `slots`, `coverage`, `tail`, `follow` and `init` ask is said by `--url` or `--host`, or by their variables; where
neither is, by `DATABASE_URL`. What that leaves open is taken from the service file, then the `PG*` variables, as psql
does. Every other command asks the server of its deployment; `lookup` asks none. There is no flag for a password: it
would show in the process list. A flag that may be given several times (`run --conf`, `init --table`, `follow --key`)
has its values in the variable each on a line of its own, or parted by semicolons. A flag without a value (`--json`,
`--yes`) is on where its variable is 1, true, yes or on, and off where that is 0, false, no, off or empty.

`--json` answers with JSON on stdout: an object; for lists (`slots list`, `quarantine list|show`, `search`) an
array; for `tail` and `follow` one object a line. `sample` and `schema` print JSON in any case. Errors are then an
object on stderr: `{"error": {"type", "message", "hint", "sqlstate", "exit_code"}}`, with `problems` where a file is
wrong (`file`, `line`, `column`, `message`, `hint`). Prompts, warnings and logs go to stderr, too.

A change of `tail --json` has `lsn` and `row` (its position), `xid`, `committed_at`, `op`, `table`, `new` and `old`
(columns by name, or null). A column that is not there was not sent: it is unchanged and stored outside its row, or not
asked for. What JSON has no form for is text: numeric, dates, bytes as `\\x…`, NaN.

Completion for your shell: `eval "$(_PENSTOCK_COMPLETE=bash_source penstock)"` (or `zsh_source`, `fish_source`).

| exit code | meaning |
|---|---|
"""


def main() -> None:
    """Write the page below the current folder, or to the file that is named."""
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    page.write_text(render())


def render() -> str:
    """The whole page."""
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    commands = list(_commands(cli, "penstock"))
    parts = [_describe(path, command) for path, command in commands]
    tail_of_all = next(command for path, command in commands if path == "penstock tail")
    shared = [_shared(title, flags, tail_of_all) for title, flags in SECTIONS.items()]
    return "\n".join([_HEAD + codes, *parts, *shared])


def _commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    for name in sorted(group.commands):
        command = group.commands[name]
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _describe(path: str, command: click.Command) -> str:
    shared = {flag for flags in SECTIONS.values() for flag in flags}
    own = [one for one in _options(command) if one.opts[0] not in shared]
    kinds = [title.lower() for title, flags in SECTIONS.items() if {o.opts[0] for o in _options(command)} & set(flags)]
    arguments = [_argument(one) for one in command.params if isinstance(one, click.Argument)]
    usage = " ".join([path, *arguments, "[OPTIONS]"])
    text = inspect.cleandoc(command.help or "")
    below = f"And the flags for {' and '.join(kinds)}.\n" if kinds else ""
    table = f"{_table(own)}\n" if own else ""
    return f"## {path}\n\n    {usage}\n\n{text}\n\n{table}{below}"


def _argument(argument: click.Argument) -> str:
    name = (argument.name or "").upper()
    return argument.metavar or (name if argument.required else f"[{name}]")


def _options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option)]


def _shared(title: str, flags: Iterable[str], command: click.Command) -> str:
    wanted = set(flags)
    return f"## {title}\n\n{_table(one for one in _options(command) if one.opts[0] in wanted)}"


def _table(options: Iterable[click.Option]) -> str:
    lines = ["| flag | variable | default | meaning |", "|---|---|---|---|"]
    for option in options:
        variables = [option.envvar] if isinstance(option.envvar, str) else option.envvar or []
        flag = option.opts[0] + ("" if option.is_flag else f" {_value(option)}")
        default = "" if option.is_flag or not option.show_default else f"`{option.default}`"
        named = ", ".join(f"`{one}`" for one in variables)
        lines.append(f"| `{flag}` | {named} | {default} | {option.help} |")
    return "\n".join(lines) + "\n"


def _value(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return "/".join(map(str, option.type.choices))
    return option.metavar or option.type.name.upper()


if __name__ == "__main__":
    main()
