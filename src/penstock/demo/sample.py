"""The sample shop's files: tables, deployment, schemas, and each index written as SQL by hand.

They are ordinary files, in the folder `shop` beside this module, that a user may take as a beginning.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

INDEXES = ("users", "products", "orders")


def read(name: str) -> str:
    """The text of a file."""
    return resources.files("penstock.demo").joinpath("shop", name).read_text(encoding="utf-8")


def write_deployment(folder: Path) -> None:
    """Put the deployment and its schemas into a folder."""
    for name in ("penstock.toml", *(f"{index}.schema.yml" for index in INDEXES)):
        (folder / name).write_text(read(name), encoding="utf-8")
