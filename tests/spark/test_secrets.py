"""A password that was given as an option shows nowhere in Spark: neither in plans nor in failures nor on disk.

What a cluster's logs, events, pages and processes show is looked at in test_cluster.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
from pyspark.sql import DataFrame

from tests.fixtures.secrets import in_command_lines, in_files
from tests.fixtures.streams import Rows, Streamed

SECRET = "Pa55w0rd-4711"
TABLE = "CREATE TABLE t (id bigint PRIMARY KEY)"


def explained(frame: DataFrame) -> str:
    """Everything that `explain` can show."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        for mode in "simple", "extended", "codegen", "cost", "formatted":
            frame.explain(mode=mode)
    return shown.getvalue()


@pytest.mark.parametrize("by", ["password", "url"])
def test_a_password_shows_in_no_plan_progress_failure_or_checkpoint(stream: Streamed, by: str) -> None:
    """E103: given by itself, or inside a URL; looked for while a query runs, and after it failed."""
    stream.execute(TABLE)
    address = stream.database.url
    secret = {"password": SECRET} if by == "password" else {"url": address.replace("postgres@", f"postgres:{SECRET}@")}
    options: dict[str, Any] = {"table": "t", **secret}
    frame = stream.load(**options)
    assert "penstock" in explained(frame)
    assert SECRET not in explained(frame) + repr(frame) + str(frame._jdf.queryExecution().toString())

    def fail(number: int, rows: Rows) -> None:
        assert not in_command_lines(SECRET)
        if rows:
            raise ValueError("the sink is out of order")

    running = stream.start(then=fail, **options)
    stream.await_streaming()
    stream.execute("INSERT INTO t VALUES (1)")
    said = running.await_failure()
    assert "the sink is out of order" in said and SECRET not in said
    error = running.query.exception()
    assert SECRET not in repr(error) and SECRET not in str(running.query.status)
    assert SECRET not in str(running.query.recentProgress) and SECRET not in repr(running.query)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        running.query.explain(extended=True)
    assert SECRET not in shown.getvalue()
    assert in_files(SECRET, [stream.checkpoint]) == []
    assert list((stream.checkpoint / "offsets").iterdir()), "there was something to look at"


def test_a_failure_of_the_reader_does_not_show_the_password(stream: Streamed) -> None:
    """E103: with the Python traceback that Spark adds."""
    stream.execute(TABLE)
    stream.execute("ALTER TABLE t ADD COLUMN d date")
    stream.available_now(table="t", password=SECRET)
    stream.execute("INSERT INTO t VALUES (1, 'infinity')")
    said = stream.start(table="t", password=SECRET).await_failure()
    assert "Traceback" in said and "OperatorError" in said
    assert SECRET not in said
