"""The flags that commands share: where the server is, how to answer (text or JSON), what to log.

Guarantees: every flag has a variable of the same name (`--ssl-mode`, `PENSTOCK_SSL_MODE`); the flag wins. A variable
means one thing: where commands mean different things by one flag, theirs hold the command's name. There is no flag for
a password, because every user of the machine could read it in the process list. Deliberately not: reading `PG*`
variables and service files, which is done where settings are resolved, for every kind of connection alike.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import os
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from penstock import logs
from penstock.cli.failure import USAGE
from penstock.errors import ConfigError
from penstock.model import Lsn, QualifiedTable, SslMode

log = logging.getLogger(__name__)

Command = Callable[..., int | None]
_F = TypeVar("_F", bound=Callable[..., Any])


_SEVERAL_HELP = "In the variable, put each value on its own line, or separate them with semicolons."


class _Several(click.types.StringParamType):
    """A text that may be given several times; one may hold blanks, by which click would part them in a variable."""

    def split_envvar_value(self, rv: str) -> list[str]:
        return [one.strip() for one in re.split(r"[;\n]", rv) if one.strip()]


class Number(click.FloatRange):
    """A number that something may be counted or waited for by: not NaN, which is below no limit, and no infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value} is not a number of anything.", param, ctx)
        return found


def option(flag: str, *, only: str = "", also_envvar: str | None = None, **settings: Any) -> Callable[[_F], _F]:
    """A flag and its variable; `only` is the command, where another one means something else by the same flag."""
    if settings.get("multiple"):
        settings |= {"type": _Several(), "help": f"{settings['help']} {_SEVERAL_HELP}"}
    variable = "_".join(filter(None, ("penstock", only, flag.lstrip("-").replace("-", "_")))).upper()
    envvar = [variable, also_envvar] if also_envvar else variable
    return click.option(flag, envvar=envvar, **settings)


as_json = option("--json", is_flag=True, help="Answer as JSON on stdout; errors become JSON on stderr.")

_PUBLICATION_HELP = "The publication: which tables the server sends changes of."
publication = option(
    "--publication", default="penstock", show_default=True, metavar="NAME", help=_PUBLICATION_HELP,
)  # fmt: skip
publication_if_any = option("--publication", metavar="NAME", help=_PUBLICATION_HELP)

config = option(
    "--config",
    metavar="FILE",
    help="The deployment's file or lock file, or its folder. Without it: penstock.toml in the current folder, else"
    " flusso.toml, else penstock.lock.",
)

yes = option("--yes", is_flag=True, help="Do not ask.")

_URL_HELP = (
    "postgresql://user@host:port/database, or libpq's keywords. A password in it shows in the process list:"
    " put such a URL into PENSTOCK_URL. Without it, and without --host: DATABASE_URL. What neither says is taken from"
    " PG* variables and service files."
)

_CONNECTION = (
    option("--url", metavar="URL", help=_URL_HELP),
    option("--host", metavar="HOST", help="Host name, address, or socket folder."),
    option("--port", type=click.IntRange(1, 65535), metavar="PORT", help="Port."),
    option("--database", metavar="NAME", help="Database."),
    option("--user", metavar="NAME", help="Role to connect as."),
    option(
        "--password-file",
        metavar="FILE",
        help="A file whose first line is the password. There is no flag for the password itself: it would show in the"
        " process list. PGPASSWORD and ~/.pgpass work, too.",
    ),
    option("--ssl-mode", type=click.Choice([str(mode) for mode in SslMode]), help="How much TLS to ask for."),
    option("--ssl-root-cert", metavar="FILE", help="Certificate of the authority that signed the server's (PEM)."),
    option("--ssl-cert", metavar="FILE", help="Client certificate (PEM)."),
    option("--ssl-key", metavar="FILE", help="Key of the client certificate; the file must be private."),
)

_LOGGING = (
    option(
        "--log-level",
        type=click.Choice(logs.LEVELS),
        default="info",
        show_default=True,
        help="The least severe messages to log.",
    ),
    option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="How the log on stderr is written.",
    ),
)

SECTIONS = {
    "Connection": (
        "--url", "--host", "--port", "--database", "--user", "--password-file",
        "--ssl-mode", "--ssl-root-cert", "--ssl-cert", "--ssl-key",
    ),
    "Logging": ("--log-level", "--log-format"),
}  # fmt: skip


def logged(command: Command) -> Command:
    """Give a command the logging flags, and set logging up before it runs."""

    @functools.wraps(command)
    def run(*, log_level: str, log_format: logs.Format, **rest: Any) -> int | None:
        logs.set_up(log_level, log_format)
        return command(**rest)

    return _with(_LOGGING, run)


def connected(command: Command) -> Command:
    """Give a command the connection and logging flags; it gets the resolved `settings` as an argument."""

    @functools.wraps(command)
    def run(**given: Any) -> int | None:
        # Here and not above: the driver takes a quarter of a second to load, which --help need not wait for.
        from penstock import app

        fields = [one.name for one in dataclasses.fields(app.ConnectionNames)]
        names = app.ConnectionNames(**{name: given.pop(name) for name in fields})
        if not names.url and not names.host:  # then it is the server of the deployment, which reads this variable, too
            names = dataclasses.replace(names, url=os.environ.get("DATABASE_URL") or None)
        return command(settings=app.resolve_connection(names), **given)

    return _with(_CONNECTION, logged(run))


class SectionedCommand(click.Command):
    """A command whose help shows its own flags first, and those that all commands share in sections of their own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shared = {flag: title for title, flags in SECTIONS.items() for flag in flags}
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], **{title: [] for title in SECTIONS}}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)):
                sections[shared.get(parameter.opts[0], "Options")].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def show_help(context: click.Context) -> None:
    """What a group says where no command is named."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(USAGE)


def _with(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    for add in reversed(options):
        command = add(command)
    return command


def table_names(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> set[QualifiedTable]:
    """Tables, written as in SQL; the callback of an argument."""
    return set(table_list(context, parameter, value))


def table_list(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> list[QualifiedTable]:
    """The same in the order given, each once; the callback of an option that may be given several times."""
    try:
        return list(dict.fromkeys(QualifiedTable.parse(text) for text in value))
    except ConfigError as error:
        raise click.BadParameter(f"{error.message}. {error.hint}") from None


def settings(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    """Settings, each as NAME=VALUE; the callback of an option that may be given several times."""
    if wrong := [text for text in value if "=" not in text.strip("=")]:
        raise click.BadParameter(f"{wrong[0]!r} is not of the form NAME=VALUE")
    return dict(text.split("=", 1) for text in value)


def was_typed(name: str) -> bool:
    """Whether a flag was given to this command; what its variable says is said to every command."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def new_slot_name(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """The name of a slot to be made: what the server allows; the callback of an argument."""
    if not re.fullmatch(r"[a-z0-9_]{1,63}", value):
        raise click.BadParameter(f"{value!r}: it has 1 to 63 lower-case letters, digits and underscores")
    return value


def lsn(context: click.Context, parameter: click.Parameter, value: str) -> Lsn:
    """An LSN; the callback of an argument."""
    try:
        return Lsn.parse(value)
    except ConfigError as error:
        raise click.BadParameter(f"{error.message}. {error.hint}") from None


def confirm(question: str, *, yes: bool, as_json: bool) -> None:
    """Ask before something that cannot be taken back. Where nobody can answer, only --yes will do."""
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise ConfigError(f"this needs a yes, and there is nobody to ask: {question}", hint="Add --yes.")
    click.confirm(question, abort=True, err=True)


def notify(text: str, *, as_json: bool) -> None:
    """Say something beside the answer: to people as it is, in JSON mode as a record of the log."""
    if as_json:
        log.warning("%s", text)
    else:
        click.echo(text, err=True)
