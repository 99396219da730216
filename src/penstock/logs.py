"""Logging: to stderr, as text for people or as JSON lines for machines.

Every part of Penstock logs under `penstock.*` by the standard library and knows nothing of this module; whoever runs
the process (the command line, an application) calls `set_up` once. Facts are passed as `extra={"slot": …}` and come
out as fields.

Guarantees: one record is one line of JSON, or one line of text with its next step indented below. A row value or a
secret cannot slip in through an error or a field: of an exception only ours shows its text (the others show their type
and where they came from), and of a field only plain values do (of a mapping, a sequence or bytes, type and size).
Deliberately not: files, rotation, colours.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import traceback
from collections.abc import Sized
from datetime import UTC, datetime
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal, TextIO, get_args

from penstock.errors import ConfigError, PenstockError

Format = Literal["text", "json"]
LEVELS = ("debug", "info", "warning", "error")

# What every record has; anything else came in by `extra`.
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def set_up(level: str = "info", format: Format = "text", stream: TextIO | None = None) -> None:
    """Send `penstock.*` from `level` upwards to `stream` (stderr). May be called again: the last call counts."""
    if level.lower() not in LEVELS:
        raise ConfigError(f"{level!r} is not a log level", hint=f"There are: {', '.join(LEVELS)}.")
    if format not in get_args(Format):
        raise ConfigError(f"{format!r} is not a log format", hint=f"There are: {', '.join(get_args(Format))}.")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else Text())
    logger = logging.getLogger("penstock")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, then the fields, then the error."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in _fields(record).items() if name not in ("time", "level", "logger")}
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            **fields,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[1]:
            line["error"] = _error(record.exc_info[1])
        return json.dumps(line)


class Text(logging.Formatter):
    """Time, level, logger and message on one line, the fields behind it, what belongs to an error below it."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        head = f"{_time(record)} {record.levelname.lower():7} {record.name}: {record.getMessage()}{fields}"
        lines = [head]
        if record.exc_info and record.exc_info[1]:
            error = _error(record.exc_info[1])
            said = " ".join(error[name] for name in ("type", "message", "hint") if name in error)
            lines += [said, *error.get("at", [])]
        return "\n".join(lines).replace("\n", "\n    ")


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: _shown(value) for name, value in record.__dict__.items() if name not in _STANDARD}


def _shown(value: object) -> Any:
    """A plain value as it is; of anything that may hold rows, its type and size only."""
    if value is None or type(value) in (bool, int, str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, int | float | Enum | PurePath):  # an LSN writes itself; NaN is no JSON
        return str(value)
    return f"<{type(value).__name__} of {len(value)}>" if isinstance(value, Sized) else f"<{type(value).__name__}>"


def _error(error: BaseException) -> dict[str, Any]:
    """An error of ours says itself; of a foreign one (a driver quotes rows) only its type and its way here."""
    found: dict[str, Any] = {"type": type(error).__name__}
    if isinstance(error, PenstockError):
        named = {"message": error.message, "hint": error.hint, "sqlstate": error.sqlstate}
        return found | {name: value for name, value in named.items() if value}
    frames = traceback.extract_tb(error.__traceback__)
    return found | {"at": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]}
