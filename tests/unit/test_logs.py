"""What a log line shows, and that neither a row value nor a secret finds a way into it."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock import logs
from penstock.contracts import Ack, Change
from penstock.errors import ConfigError, SlotActiveError
from penstock.model import Lsn, Op, Position, QualifiedTable, SslMode
from penstock.postgres.connection import open_pgconn, resolve

ROW = "row-value-4711"


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """The set-up is the process'; it is put back."""
    logger = logging.getLogger("penstock")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before[0], before[1], before[2]


def logged(format: logs.Format, level: str = "info") -> tuple[logging.Logger, io.StringIO]:
    """A logger of a part, and where its lines go."""
    stream = io.StringIO()
    logs.set_up(level, format, stream)
    return logging.getLogger("penstock.postgres.capture"), stream


def test_a_json_line_is_one_object_with_its_fields() -> None:
    log, stream = logged("json")
    log.info("slot %s is\nready", "shop", extra={"slot": "shop", "lsn": Lsn(0x16_B374D848), "mode": SslMode.PREFER})
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "info",
        "logger": "penstock.postgres.capture",
        "message": "slot shop is\nready",
        "slot": "shop",
        "lsn": "16/B374D848",
        "mode": "prefer",
    }


def test_a_text_line_reads_well_and_never_looks_like_two_records() -> None:
    log, stream = logged("text")
    log.warning("slot %s\nis behind", "shop", extra={"lag_bytes": 12})
    first, second = stream.getvalue().splitlines()
    assert first.endswith("Z warning penstock.postgres.capture: slot shop".partition("Z ")[2])
    assert second == "    is behind lag_bytes=12"


def test_levels_and_formats_are_checked_and_hold() -> None:
    log, stream = logged("text", "warning")
    log.info("not shown")
    log.warning("shown")
    assert stream.getvalue().count("\n") == 1
    with pytest.raises(ConfigError, match="'loud' is not a log level"):
        logs.set_up("loud")
    with pytest.raises(ConfigError, match="'xml' is not a log format"):
        logs.set_up(format="xml")  # type: ignore[arg-type]


def test_set_up_again_replaces_and_does_not_double() -> None:
    log, first = logged("text")
    log, second = logged("json")
    log.info("once")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


@pytest.mark.parametrize("format", ["text", "json"])
def test_an_error_of_ours_says_itself_and_its_next_step(format: logs.Format) -> None:
    log, stream = logged(format)
    try:
        raise SlotActiveError("the slot is held", hint="Wait.", sqlstate="55006")
    except SlotActiveError:
        log.exception("cannot start")
    for word in ("cannot start", "SlotActiveError", "the slot is held", "Wait."):
        assert word in stream.getvalue()


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_foreign_error_shows_its_type_and_origin_but_not_its_text(format: logs.Format) -> None:
    """A driver's error quotes row values; so does a ValueError of a parser."""
    log, stream = logged(format)
    for error in (psycopg.errors.UniqueViolation(f"Key (id)=({ROW}) already exists."), ValueError(ROW)):
        try:
            try:
                raise error
            except Exception as inner:
                raise SlotActiveError("of ours") from inner
        except SlotActiveError as outer:
            log.error("chained", exc_info=outer)
            log.error("bare", exc_info=outer.__cause__)
    said = stream.getvalue()
    assert ROW not in said
    assert "UniqueViolation" in said and "ValueError" in said and "test_logs.py" in said


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_field_that_may_hold_rows_shows_its_size_only(format: logs.Format) -> None:
    """A whole change, a row or bytes passed by mistake."""
    log, stream = logged(format)
    sink: Any = object()
    position = Position(Lsn(1), 0)
    row = {"id": ROW}
    change = Change(QualifiedTable("public", "t"), Op.INSERT, row, None, 1, position, Ack(sink, position))
    log.info(
        "x", extra={"change": change, "row": row, "values": [ROW], "raw": ROW.encode(), "thing": psycopg.Error(ROW)}
    )
    assert ROW not in stream.getvalue()
    assert "<dict of 1>" in stream.getvalue()


def test_a_number_that_json_has_no_word_for_stays_json() -> None:
    log, stream = logged("json")
    log.info("x", extra={"rate": float("nan"), "top": float("inf"), "half": 0.5, "bad": "\udcff"})

    def refuse(word: str) -> None:
        raise AssertionError(word)

    found = json.loads(stream.getvalue(), parse_constant=refuse)
    assert (found["rate"], found["top"], found["half"]) == ("nan", "inf", 0.5)


@pytest.mark.parametrize("format", ["text", "json"])
def test_no_secret_of_a_connection_reaches_the_log(format: logs.Format) -> None:
    """E110: settings and failures logged as they are; nothing needs masking, because nothing secret is ever shown."""
    log, stream = logged(format, "debug")
    settings = resolve("postgresql://u:hunter2@127.0.0.1:1/d?sslpassword=hunter2", env={})
    try:
        open_pgconn(settings)
    except Exception as error:
        log.exception("connecting with %s failed: %s", settings, error, extra={"settings": settings})
        log.error("%r %r %s", settings, error, error.__cause__)
    assert "u@127.0.0.1:1/d" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


def test_lines_go_to_stderr_and_stdout_stays_free() -> None:
    """Standard output belongs to results (`--json`)."""
    code = "import logging; from penstock import logs; logs.set_up(); logging.getLogger('penstock.x').info('hello')"
    source = str(Path(logs.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": source})
    assert done.stdout == ""
    assert done.stderr.endswith("penstock.x: hello\n")
