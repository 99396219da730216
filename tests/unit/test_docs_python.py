"""The reference of Python names says what the code says: nothing is left out, and every signature is the real one."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from penstock import contracts
from tests.unit.test_public_names import CONSTANTS, FIELDS, SIGNATURES, find

PAGE = Path(__file__).parents[2] / "docs/reference/python.md"
SECTION = re.compile(r"^## `([\w.]+)`\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `(\w+(?:\.\w+)*)(\(.*\))?` \|", re.MULTILINE)
NAMES = [(module, *row) for module, text in SECTION.findall(PAGE.read_text()) for row in ROW.findall(text)]


def plain(value: Any) -> Any:
    """A signature without types and without self."""
    found = inspect.signature(value)
    kept = [
        one.replace(annotation=one.empty, default=one.default.value)
        if isinstance(one.default, enum.Enum)
        else one.replace(annotation=one.empty)
        for one in found.parameters.values()
        if one.name != "self"
    ]
    return str(found.replace(parameters=kept, return_annotation=found.empty)).replace("Lsn('0/0')", "Lsn.ZERO")


@pytest.mark.parametrize(("module", "name", "signature"), NAMES, ids=lambda part: str(part)[:40])
def test_a_name_is_there_and_its_signature_is_the_one_shown(module: str, name: str, signature: str) -> None:
    found = find(module, name)
    assert not signature or plain(found) == signature


def test_no_public_name_is_left_out() -> None:
    shown = {(module, name) for module, name, _ in NAMES}
    exported = {
        (module, name)
        for module in ("penstock", "penstock.reference", "penstock.spark")
        for name in importlib.import_module(module).__all__
    }
    above = {("penstock.model", name) for name in ("ReplicationConfig", "TlsConfig", "SslMode", "Lsn.ZERO", "Lsn.MAX")}
    listed = {(module, name) for module, names in SIGNATURES.items() for name in names if module != contracts.__name__}
    listed |= {tuple(where.split(":")) for where in (*FIELDS, *CONSTANTS)}  # type: ignore[misc]
    seams = {
        (contracts.__name__, name)
        for name, kind in vars(contracts).items()
        if inspect.isclass(kind) and kind.__module__ == contracts.__name__
    }
    assert (exported | listed | seams) - above - shown == set()
