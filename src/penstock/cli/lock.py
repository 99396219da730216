"""`penstock lock`: compile a deployment and its schema files to one file that runs elsewhere.

Guarantees: no database and no secret is needed; the file is written whole or not at all; the same files give the same
bytes, so that `--check` can say in CI whether the lock is up to date.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from penstock.cli import options
from penstock.cli.failure import ACT
from penstock.cli.options import SectionedCommand, as_json, logged, option
from penstock.cli.output import print_json
from penstock.errors import ConfigError


@click.command(cls=SectionedCommand, short_help="Compile a deployment to one file.")
@options.config
@option(
    "--out", only="lock", metavar="FILE", help="The lock file. Without it: penstock.lock beside the deployment's file."
)
@option("--check", is_flag=True, help="Write nothing; see whether the lock file is up to date.")
@as_json
@logged
def lock(config: str | None, out: str | None, check: bool, json: bool) -> int:
    """Compile the deployment and its schema files into one self-contained lock file; no database is needed.

    A secret written out in the file is refused, and the variable to use instead is named. With --check
    nothing is written; the exit code is 1 where the lock file is not what the files say.
    """
    from penstock.config.file import find_deployment, read_deployment
    from penstock.config.lock import NAME, compile_lock

    file = find_deployment(config)
    target = Path(out) if out else file.parent / NAME
    if file == target:
        raise ConfigError(f"{file} is a lock file: it is not made of itself", hint="Name the files that it is made of.")
    content = compile_lock(read_deployment(file))
    same = _content(target) == content
    if not check and not same:
        _write(target, content)
    if json:
        print_json({"file": str(target), "bytes": len(content), "changed": not same, "written": not same and not check})
    elif check:
        click.echo(f"{target} is {'up to date' if same else 'not what the files say: run penstock lock'}.")
    else:
        click.echo(f"{target} {'is up to date' if same else f'is written, {len(content)} bytes'}.")
    return ACT if check and not same else 0


build = SectionedCommand(
    "build", params=lock.params, callback=lock.callback, help=lock.help, short_help="The same as lock."
)


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(file, error) from None


def _write(file: Path, content: bytes) -> None:
    """Beside it first, then in its place: who reads it sees the old file or the new one."""
    try:
        number, beside = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        try:
            with os.fdopen(number, "wb") as stream:
                stream.write(content)
            os.chmod(beside, 0o644)
            os.replace(beside, file)
        except OSError:
            os.unlink(beside)
            raise
    except OSError as error:
        raise _unusable(file, error) from None


def _unusable(file: Path, error: OSError) -> ConfigError:
    reason = (error.strerror or type(error).__name__).lower()
    return ConfigError(f"{file} cannot be used as the lock file: {reason}", hint="Name another one with --out.")
