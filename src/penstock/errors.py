"""Every failure Penstock raises, sorted by what its reader has to do.

    PenstockError
      RetryableError      we try again by ourselves; the caller sees it only when the budget is spent
        UnavailableError    the server cannot be reached, or ended the connection
        SlotActiveError     another process holds the slot (SQLSTATE 55006)
      OperatorError       somebody with rights on the server acts; the hint holds the SQL or the setting
        AuthenticationError, DatabaseMissingError, AccessError, TlsError
        WalLevelError, PrivilegeError, CapacityError, RecoveryError, VersionError
        SlotMissingError, SlotLostError, SlotMismatchError, SlotExistsError, PositionError
        PublicationError, CoverageError, DiskError
      ConfigError         the user mends a file, a flag or an argument
        MissingExtraError   a part of the package is not installed
      BugError            we are wrong, or the server sent what no server should
        DecodeError         bytes that are no pgoutput message

Guarantees: a message says what was found and a hint says what to do; neither holds a row value or a secret; every
error pickles, because errors cross Spark's worker processes. Foreign errors are chained as the cause.
"""

from __future__ import annotations

from typing import Any


class PenstockError(Exception):
    """What was found (`message`), what to do next (`hint`) and the server's SQLSTATE where there was one."""

    def __init__(self, message: str, *, hint: str = "", sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.sqlstate = sqlstate

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[PenstockError], args: tuple[Any, ...], state: dict[str, Any]) -> PenstockError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class RetryableError(PenstockError):
    """Passing trouble: we retry within a budget."""

    sink = ""
    """The sink that it came from, by name, where it came from one."""


class UnavailableError(RetryableError):
    """The server cannot be reached, is starting or stopping, or ended the connection."""


class SlotActiveError(RetryableError):
    """Another process holds the slot (SQLSTATE 55006)."""


class OperatorError(PenstockError):
    """Somebody with rights on the server, or on this machine, has to act."""


class AuthenticationError(OperatorError):
    """The server did not accept the user or the password."""


class DatabaseMissingError(OperatorError):
    """The database does not exist."""


class AccessError(OperatorError):
    """The server's access rules (`pg_hba.conf`) do not let this user in from here, or not without TLS."""


class TlsError(OperatorError):
    """TLS was asked for and could not be had, or a certificate was not accepted."""


class WalLevelError(OperatorError):
    """The server does not write logical WAL."""


class PrivilegeError(OperatorError):
    """The role lacks a right."""


class CapacityError(OperatorError):
    """No free replication slot, no free walsender, or no free connection."""


class RecoveryError(OperatorError):
    """The server is a standby: it cannot do what was asked."""


PASSING = (RetryableError, CapacityError, RecoveryError)
"""Of what worked before: trouble that may be over by itself. At a start the last two are for somebody to mend."""


class VersionError(OperatorError):
    """The server is of a version that Penstock does not support."""


class SlotMissingError(OperatorError):
    """The slot does not exist although a position in it is held, or it was named to be used."""


class SlotLostError(OperatorError):
    """The server has thrown away WAL that the slot still needed."""


class SlotMismatchError(OperatorError):
    """The slot belongs to another plugin, to another database, or is physical."""


class SlotExistsError(OperatorError):
    """A slot of that name exists already (SQLSTATE 42710)."""


class PositionError(OperatorError):
    """The held position does not fit the server: consumed by somebody else, ahead of the WAL, another system."""

    confirmed = 0
    """Where the slot stands that has passed it, where that is what is wrong."""


class PublicationError(OperatorError):
    """The publication is missing, or leaves out what is needed."""


class CoverageError(OperatorError):
    """A table is not published and may not, or must not, be added."""


class DiskError(OperatorError):
    """A file of ours cannot be written: disk full, read-only folder."""


class ConfigError(PenstockError):
    """A file, a flag or an argument is wrong."""


class MissingExtraError(ConfigError):
    """A part of the package is not installed; the hint holds the install line."""


class BugError(PenstockError):
    """Please report it: this should not happen."""


class DecodeError(BugError):
    """Bytes that are no valid pgoutput message, with the offset and the message tag where it was noticed."""

    def __init__(self, message: str, *, offset: int = 0, tag: str = "") -> None:
        super().__init__(f"{message} (offset {offset}, message {tag or 'unknown'!s})")
        self.offset = offset
        self.tag = tag
