"""Errors cross processes whole, and say nothing that must not be said."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from penstock import errors
from penstock.errors import BugError, ConfigError, DecodeError, OperatorError, PenstockError, RetryableError

EVERY = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, PenstockError)]


def an_error(kind: type[PenstockError]) -> PenstockError:
    if kind is DecodeError:
        return DecodeError("a column of unknown kind", offset=17, tag="U")
    return kind("slot s is lost", hint="Drop it.", sqlstate="55000")


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("again", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy], ids=["pickled", "copied"])
def test_an_error_crosses_processes_whole(kind: type[PenstockError], again) -> None:
    error = an_error(kind)
    found = again(error)
    assert type(found) is kind
    assert str(found) == str(error)
    assert vars(found) == vars(error)
    assert found.args == error.args


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_every_error_says_what_its_reader_must_do(kind: type[PenstockError]) -> None:
    families = [f for f in (RetryableError, OperatorError, ConfigError, BugError) if issubclass(kind, f)]
    assert len(families) == (0 if kind is PenstockError else 1)
    assert kind.__doc__


def test_a_decode_error_names_the_offset_and_the_tag() -> None:
    """E2."""
    error = an_error(DecodeError)
    assert isinstance(error, DecodeError)
    assert (error.offset, error.tag) == (17, "U")
    assert str(error) == "a column of unknown kind (offset 17, message U)"
    assert str(DecodeError("an empty message")) == "an empty message (offset 0, message unknown)"


def test_a_hint_stands_on_a_line_of_its_own() -> None:
    assert str(ConfigError("found", hint="do")) == "found\ndo"
    assert str(ConfigError("found")) == "found"
