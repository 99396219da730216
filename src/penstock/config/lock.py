"""A deployment and its schemas compiled to one file, to be run elsewhere: no other file, no database is needed.

Guarantees: the same files give the same bytes; no secret is in it: one that stands in a file as a text is refused, and
the variable to use instead is named; paths are as they were written, relative to wherever the lock file is. A lock of
a newer format is refused, one of an older is read. Deliberately not: keeping what the variables hold.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock.config.codec import TAG, Misfit, decode, encode
from penstock.config.deployment import DeltaSink, Deployment, OpenSearchSink
from penstock.config.secrets import Secret
from penstock.document.reading_tree import Problems
from penstock.errors import ConfigError

FORMAT = 1
NAME = "penstock.lock"


def compile_lock(deployment: Deployment) -> bytes:
    """The lock file's bytes; raises `FileErrors` where a secret stands in the deployment's file."""
    problems = Problems()
    for secret in _secrets(deployment):
        if secret.holds_password:
            key = secret.label.rpartition(".")[2]
            mend = f'write {key} = {{ env = "{secret.variable}" }} and set that variable where it runs'
            problems.add(secret.place, f"{secret.label} is a secret, and a lock file keeps none", mend)
    problems.raise_any()
    body = encode(dataclasses.replace(deployment, folder=""))
    _move_places(body, lambda file: os.path.relpath(file, deployment.folder or "."))
    return (json.dumps({"penstock_lock": FORMAT, "deployment": body}, indent=1, sort_keys=True) + "\n").encode()


def read_lock(path: str | Path) -> Deployment:
    """The deployment that a lock file holds."""
    file = Path(path)
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {(error.strerror or type(error).__name__).lower()}", hint="Make it: penstock lock."
        ) from None
    except (ValueError, RecursionError):
        raise _damaged(file, "it is no JSON") from None
    format_ = content.get("penstock_lock") if isinstance(content, dict) else None
    if not isinstance(format_, int):
        raise _damaged(file, "it does not say its format")
    if format_ > FORMAT:
        raise ConfigError(
            f"{file} is a lock file of format {format_}, and this Penstock reads up to {FORMAT}",
            hint="Run it with the Penstock that made it, or a newer one; or make it again: penstock lock.",
        )
    folder = os.path.dirname(file)
    try:
        _move_places(content, lambda named: os.path.join(folder, named))
        deployment: Deployment = decode(content.get("deployment"), Deployment)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(file, str(error) if isinstance(error, Misfit) else "a part is missing") from None
    return dataclasses.replace(deployment, folder=folder)


def _damaged(file: Path, why: str) -> ConfigError:
    return ConfigError(f"{file} is no lock file, or damaged: {why}", hint="Make it again: penstock lock.")


def _secrets(deployment: Deployment) -> Iterator[Secret]:
    yield deployment.source.url
    if deployment.source.parts:
        yield deployment.source.parts.password
    for sink in deployment.sinks:
        if isinstance(sink, OpenSearchSink):
            yield from (sink.url, sink.username, sink.password, sink.api_key)
        elif isinstance(sink, DeltaSink):
            yield from sink.storage_options.values()


def _move_places(body: Any, move: Callable[[str], str]) -> None:
    """Have every place name its file another way: where the folder is on this machine is no part of a lock."""
    for one in body.values() if isinstance(body, dict) else body if isinstance(body, list) else ():
        _move_places(one, move)
    if isinstance(body, dict) and TAG in body and isinstance(body.get("place"), str):
        file, line, column = body["place"].rsplit(":", 2)
        body["place"] = f"{file and move(file)}:{line}:{column}"
