"""What a question holds that came from outside, each part as the kind that it must be.

Guarantees: a part of another kind is a sentence about it (`ConfigError`), never an exception of Python's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from penstock.errors import ConfigError


def text(asked: Mapping[str, Any], name: str) -> str:
    """A text; empty where it is left out."""
    found = asked.get(name, "")
    if not isinstance(found, str):
        raise ConfigError(f"{name} is not a text", hint=f'Write it as "{name}": "…".')
    return found


def texts(asked: Mapping[str, Any], name: str) -> list[str]:
    """A list of texts; empty where it is left out."""
    found = asked.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ConfigError(f"{name} is not a list of texts", hint=f'Write it as "{name}": ["…"].')
    return found


def number(asked: Mapping[str, Any], name: str, otherwise: float) -> float:
    """A number."""
    try:
        found = float(asked.get(name, otherwise))
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise ConfigError(f"{name} is not a number", hint="Leave it out for its default.")
    return found
