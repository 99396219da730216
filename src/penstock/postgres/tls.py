"""Why a connection failed before the server said anything."""

from __future__ import annotations

from penstock.errors import PenstockError, UnavailableError
from penstock.postgres.sqlstate import Attempt


def diagnose(attempt: Attempt, deadline: float) -> PenstockError:
    """The error for a connection that ended without an answer."""
    return UnavailableError(f"the server at {attempt.endpoint} cannot be reached")
