"""`penstock.toml` and the schema files that it names, as one `Deployment`."""

from __future__ import annotations

from pathlib import Path

from penstock.config.deployment import Deployment


def read_deployment(path: str | Path) -> Deployment:
    """The deployment of a file, or every problem of it and of its schema files as one `FileErrors`."""
    raise NotImplementedError
