"""`penstock.toml` and the schema files that it names, as one `Deployment`.

Guarantees: the problems of all these files are told together, each with file:line:column; nothing is resolved (no
variable is looked at, no server asked), so that a file can be read where its secrets are not. A file named
`flusso.toml` is read as well, and so is a lock file, which is told by what is in it. Deliberately not: what `check`
finds with a database.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock.config.assembly import deployment_of
from penstock.config.deployment import Deployment
from penstock.config.lock import NAME as LOCK
from penstock.config.lock import read_lock
from penstock.config.toml import parse_toml
from penstock.config.words import DEPLOYMENT
from penstock.document.reading import text_of
from penstock.document.reading_shapes import BAD
from penstock.document.reading_tree import Problems
from penstock.document.schema import Place
from penstock.errors import ConfigError

NAMES = ("penstock.toml", "flusso.toml", LOCK)


def find_deployment(given: str | Path | None = None) -> Path:
    """The file of a deployment: the one named, or that of the folder named (else the current one)."""
    path = Path(given) if given is not None else Path()
    # By `os.path`, which takes a name that no file can have for one that is not there.
    if given is not None and not os.path.isdir(path):
        return path
    for name in NAMES:
        if os.path.isfile(path / name):
            return path / name
    raise ConfigError(
        f"there is no {NAMES[0]} in {path.resolve() if given is None else path}",
        hint=f"Name it with --config, or go to its folder ({NAMES[1]} and {LOCK} are read as well);"
        " penstock init writes one.",
    )


def read_deployment(path: str | Path | None = None) -> Deployment:
    """The deployment of a file, or every problem of it and of its schema files as one `FileErrors`."""
    file = find_deployment(path)
    problems = Problems()
    text = text_of(file, Place(str(file), 1, 1), problems)
    if text is not None and is_lock(text):
        return read_lock(file)
    node = parse_toml(text, str(file), problems) if text is not None else None
    found = DEPLOYMENT.read(node, "the file", problems) if node is not None else BAD
    deployment = deployment_of(found, os.path.dirname(file), problems) if found is not BAD else None
    problems.raise_any()
    assert deployment is not None  # else there was a problem
    return deployment


def is_lock(text: str) -> bool:
    """Whether this is a lock file: JSON, which no TOML begins like."""
    return text.lstrip().startswith("{")
