"""Command lines that somebody is told to type: found in a page, and read by the commands themselves without running."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

import click

from penstock.cli.main import cli

# A line of a block, indented or after a prompt; what runs before penstock on the line (kubectl exec … --) is left out.
_LINE = re.compile(r"^(?: {4,}|\$ )(?:[^#\n|]*? -- )?penstock((?: [^\n]*)?)$", re.MULTILINE)
_ENDS = {"|", ">", ">>", "2>", "&&", "||", ";", "&"}


def lines(text: str) -> Iterator[list[str]]:
    """The words after `penstock` of each such line."""
    for found in _LINE.findall(text):
        if words := shlex.split(found, comments=True):  # else it is a name, such as an image's
            yield words[: next((at for at, word in enumerate(words) if word in _ENDS), len(words))]


# What stands for a value of the reader's, in capitals.
_MEANT = {"LSN": "16/B374D848"}


def problem(words: Sequence[str]) -> str:
    """What the command line would say against these words; empty where it would run them."""
    command: click.Command | None = cli
    name, left = "penstock", [_MEANT.get(word, word.lower() if word.isupper() else word) for word in words]
    try:
        while isinstance(command, click.Group) and left and not left[0].startswith("-"):
            with click.Context(command) as context:
                name, command, left = command.resolve_command(context, left)  # type: ignore[assignment]
        if command is None or isinstance(command, click.Group):
            return f"{' '.join(words)}: no such command"
        with command.make_context(name, left):
            return ""
    except click.exceptions.Exit:
        return ""  # --help, --version
    except click.UsageError as error:
        return f"{' '.join(words)}: {error.format_message()}"
