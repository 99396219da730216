"""The seams of Penstock: what one part promises another, as protocols with the promises in prose.

Everything is synchronous, because Spark calls from threads and from worker processes. A protocol says what is
durable, in which order, and what may run at the same time; it does not say how.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from penstock.model import CoverageReport, Op, Position, QualifiedTable, SnapshotTable


@runtime_checkable
class AckSink(Protocol):
    """Where acknowledgements arrive."""

    def confirm(self, position: Position) -> None:
        """Take note that the change at `position` is durable.

        Any order, any thread, any number of times. The durable position moves to a transaction's end only when
        all of its changes, and all of every earlier transaction, have been confirmed.
        """


class Ack(NamedTuple):
    """The handle by which a consumer says that a change is durable on its side."""

    sink: AckSink
    position: Position

    def confirm(self) -> None:
        """Report the change as durable; it will then not be delivered again after a restart."""
        self.sink.confirm(self.position)


class Change(NamedTuple):
    """One row change, thin: identity and link columns by name, as Python values (or Postgres' exact text).

    `new` is None for a delete and a truncate; `old` is None where the server sent no old tuple, which means that
    the identity did not change. `xid` is None for a row of a snapshot.
    """

    table: QualifiedTable
    op: Op
    new: Mapping[str, Any] | None
    old: Mapping[str, Any] | None
    xid: int | None
    position: Position
    ack: Ack


@runtime_checkable
class ChangeStream(Protocol):
    """An iterator of changes that owns its connection."""

    def __iter__(self) -> Iterator[Change]: ...

    def __next__(self) -> Change:
        """The next change; waits for one. Ends (StopIteration) only after `close`."""

    def close(self) -> None:
        """Report what was confirmed, give the connection back, end the iteration. Any thread, any number of times."""


@runtime_checkable
class ChangeCapture(Protocol):
    """A mechanism that captures row changes from a source.

    Delivery is at least once across restarts: the durable position advances only over confirmed changes, whole
    transactions at a time. Whether a backfill is needed is not the mechanism's call.
    """

    def live(self) -> ChangeStream:
        """Stream changes in commit order from the mechanism's own durable position, for ever."""

    def snapshot(self, tables: Sequence[SnapshotTable]) -> Iterator[Change]:
        """Read what the tables hold now as upserts (`Op.INSERT`), then end, without a marker.

        Acks of these changes move nothing: a snapshot that crashed is run again and converges.
        """
        return iter(())

    def lag(self) -> int | None:
        """Bytes of WAL between the durable position and the source's newest, or None where there is no telling."""
        return None


@runtime_checkable
class CaptureProvisioning(Protocol):
    """Whether the source publishes what is required, and making it so."""

    def inspect_coverage(self, required: set[QualifiedTable]) -> CoverageReport:
        """Report what is published and what is not. Changes nothing, ever."""

    def ensure_coverage(self, required: set[QualifiedTable], manage: bool) -> CoverageReport:
        """Report as observed before acting; then publish what is missing where `manage` and the role allow it.

        Otherwise changes nothing and warns with the SQL to run. Never does what would make the server reject a
        user's UPDATE or DELETE.
        """
