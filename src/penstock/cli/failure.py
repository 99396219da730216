"""How a command ends: one clear sentence and a next step on stderr, and an exit code that a script can act upon.

Guarantees: no traceback, no secret and no row value, whatever went wrong; with --json the error is one JSON object on
stderr. What was not foreseen is told as a defect of ours, and its way here is logged at level debug.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from typing import NamedTuple

import click

from penstock.document.reading_tree import FileErrors
from penstock.errors import BugError, ConfigError, PenstockError, RetryableError

log = logging.getLogger(__name__)

ACT, USAGE, RETRY, DEFECT, INTERRUPTED, TERMINATED = 1, 2, 3, 4, 130, 143

EXIT_CODES: Mapping[int, str] = {
    0: "done (also when whoever read the output has closed the pipe)",
    ACT: "somebody has to act: a setting or a right on the server, a slot, a publication; coverage is not complete;"
    " check or doctor found an error; a lock file is out of date; there is no such document or row; a document was"
    " rejected again; reconcile or the demo found a difference that remains; you answered no",
    USAGE: "a flag, an argument, a file or a setting is wrong",
    RETRY: "passing trouble, such as a server that is down or a slot in use: try again later",
    DEFECT: "a defect of Penstock: please report it",
    INTERRUPTED: "ended by Ctrl-C; run and demo, once they are under way, shut down cleanly and exit with 0",
    TERMINATED: "ended by SIGTERM, or the terminal went away; run and demo as above",
}

_REPORT = "Please report it. The same command with --log-level debug logs to stderr where it happened."


class Failure(NamedTuple):
    """An error in the words that are printed."""

    code: int
    kind: str
    message: str
    hint: str = ""
    sqlstate: str | None = None


def describe(error: BaseException) -> Failure:
    """What to say about an error, and the exit code."""
    kind = type(error).__name__
    if isinstance(error, BugError):
        return Failure(DEFECT, kind, error.message, error.hint or _REPORT, error.sqlstate)
    if isinstance(error, PenstockError):
        code = USAGE if isinstance(error, ConfigError) else RETRY if isinstance(error, RetryableError) else ACT
        return Failure(code, kind, error.message, error.hint, error.sqlstate)
    if isinstance(error, click.Abort):
        return Failure(ACT, "Abort", "not confirmed: nothing was changed")
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "penstock"
        return Failure(USAGE, kind, _without_password(error.format_message()), f"See {command} --help.")
    if isinstance(error, UnicodeEncodeError) and error.reason.startswith("surrogates"):
        # Python reads other bytes of an argument or a variable so; nothing else makes such a text.
        return Failure(USAGE, kind, "an argument or a variable holds bytes that are no UTF-8", "Write them as UTF-8.")
    return Failure(DEFECT, kind, f"Penstock failed with an error that it did not foresee ({kind})", _REPORT)


def _without_password(text: str) -> str:
    """An argument that was misplaced is quoted in a usage error, and it may be a URL."""
    text = re.sub(r"(://[^:/?@\s]*):[^\s)]*@", r"\1:…@", text)
    return re.sub(r"(?i)(password\s*=\s*)[^\s)&]*", r"\1…", text)


def tell(error: BaseException, *, as_json: bool) -> int:
    """Print the error to stderr and give the exit code."""
    failure = describe(error)
    if failure.code == DEFECT:
        log.debug("the command failed", exc_info=error.__cause__ or error)
    if as_json:
        fields: dict[str, object] = {
            "type": failure.kind,
            "message": failure.message,
            "hint": failure.hint,
            "sqlstate": failure.sqlstate,
        }
        if isinstance(error, FileErrors):
            fields["problems"] = [
                {**one.place._asdict(), "message": one.message, "hint": one.hint} for one in error.problems
            ]
        print(json.dumps({"error": {**fields, "exit_code": failure.code}}), file=sys.stderr)
    else:
        click.echo(f"{click.style('Error:', fg='red')} {failure.message}", err=True)
        if failure.hint:
            click.echo(f"{click.style('Hint:', bold=True)} {failure.hint}", err=True)
    return failure.code
