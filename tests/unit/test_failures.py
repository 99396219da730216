"""Errors of ours, back from Spark: the same kind, the same words."""

from __future__ import annotations

import traceback

import pytest
from pyspark.errors import PySparkException

from penstock.engine.batch import naming
from penstock.engine.policy import RejectedError
from penstock.errors import ConfigError, DiskError, OperatorError, RetryableError, UnavailableError
from penstock.spark.failures import telling, told
from tests.unit.engine_parts import MemorySink

WORKER = """Job aborted due to stage failure: Task 1 in stage 5.0 failed 1 times, most recent failure: Lost task 1.0:
 org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "batch.py", line 100, in delivered
    raise error
{error}

	at org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:900)
"""


@pytest.mark.parametrize(
    ("text", "kind", "message", "hint"),
    [
        ("penstock.errors.UnavailableError: it is away\nCheck it.", UnavailableError, "it is away", "Check it."),
        ("penstock.errors.ConfigError: no such index", ConfigError, "no such index", ""),
        ("penstock.errors.DiskError: full\nFree some.", OperatorError, "full", "Free some."),
        ("penstock.engine.policy.RejectedError: rejected\nMend it.", RejectedError, "rejected", "Mend it."),
    ],
)  # fmt: skip
def test_what_a_task_raised_is_raised(text: str, kind: type[Exception], message: str, hint: str) -> None:
    """E82: an outage of the sink in a task is waited out; what somebody has to mend is told."""
    with pytest.raises(kind) as found, telling():
        raise PySparkException(WORKER.format(error=text))
    assert (found.value.message, found.value.hint) == (message, hint)  # type: ignore[attr-defined]


def test_of_errors_that_led_to_one_another_the_last_is_raised() -> None:
    """What somebody has to mend is not waited out because passing trouble came before it."""
    first = "penstock.errors.UnavailableError: it is away\nCheck it.\n"
    text = f"{first}\nThe above exception was the direct cause of the following exception:\n\nTraceback\n"
    with pytest.raises(ConfigError, match="no such index"), telling():
        raise PySparkException(WORKER.format(error=f"{text}penstock.errors.ConfigError: no such index"))


@pytest.mark.parametrize("hint", ["", "Check it."])
def test_which_sink_failed_in_a_task_is_known(hint: str) -> None:
    """E73: it is left behind past the limit, also where it still answers when it is asked what it holds."""
    try:
        with naming(MemorySink("my search")):
            raise UnavailableError("it is away", hint=hint)
    except UnavailableError as error:
        text = "".join(traceback.format_exception(error))
    with pytest.raises(UnavailableError) as found, telling():
        raise PySparkException(WORKER.format(error=text))
    assert (found.value.message, found.value.hint, found.value.sink) == ("it is away", hint, "my search")


@pytest.mark.parametrize("words", ["No space left on device", "Read-only file system"])
def test_a_disk_that_takes_no_more_is_told(words: str) -> None:
    """E89: Spark could not write its checkpoint, and trying again would not help."""
    with pytest.raises(DiskError, match=f"Spark could not write: {words.lower()}"), telling():
        raise PySparkException(f"An error occurred while calling o55.x\n: java.io.IOException: {words}\n\tat x")


def test_a_task_that_was_killed_is_passing_trouble() -> None:
    """E87: a lost executor says nothing of ours."""
    with pytest.raises(RetryableError, match="Spark ended its work: Job aborted") as found, telling():
        raise PySparkException("Job aborted: ExecutorLostFailure\n\tat org.apache.spark")
    assert "\n" not in found.value.message


def test_an_error_of_the_jvm_is_told_by_its_name() -> None:
    with (
        pytest.raises(RetryableError, match=r"^Spark ended its work: java.io.IOException: no room") as found,
        telling(),
    ):
        raise PySparkException(
            "An error occurred while calling o55.load.\n: java.io.IOException: no room\n\tat java.io"
        )
    assert "o55" not in found.value.message


def test_what_is_not_sparks_passes_through() -> None:
    with pytest.raises(ZeroDivisionError), telling():
        _ = 1 / 0


def test_a_stream_that_ended_without_a_word_is_passing_trouble() -> None:
    assert isinstance(told(None), RetryableError)
