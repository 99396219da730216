"""What an SQLSTATE means here: the typed error, the sentence and the next step for each that the server answers.

Guarantees: an error is told by its SQLSTATE, never by the text of a message, which is in the server's language. No
message holds a row value: DETAIL is never taken, and the server's own sentence only for states whose sentence names
nothing but objects. Deliberately not: waiting or retrying.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import pq

from penstock.errors import (
    OperatorError,
    PenstockError,
)
from penstock.postgres.settings import ConnectionSettings, Endpoint


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to connect: with which settings, to which address, and whether for replication."""

    settings: ConnectionSettings
    endpoint: Endpoint
    replication: bool = False


def refused(sqlstate: str, routines: Sequence[str], attempt: Attempt) -> PenstockError:
    """The error for a connection that the server refused."""
    return OperatorError(f"the server at {attempt.endpoint} refused the connection (SQLSTATE {sqlstate})", sqlstate=sqlstate)


def translate(error: psycopg.Error | pq.abc.PGresult | str, what: str) -> PenstockError:
    """The typed error for a statement that failed; `what` says what was being done ("creating the slot")."""
    sqlstate = error if isinstance(error, str) else error.sqlstate if isinstance(error, psycopg.Error) else "?"
    return OperatorError(f"{what} failed (SQLSTATE {sqlstate})", sqlstate=sqlstate)


@contextmanager
def translating(what: str) -> Iterator[None]:
    """Turn every driver error inside into its typed error, without a chain that would quote the server's DETAIL."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, what) from None
