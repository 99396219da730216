"""The seams of Penstock: what one part promises another, as protocols with the promises in prose.

Everything is synchronous, because Spark calls from threads and from worker processes. A protocol says what is
durable, in which order, and what may run at the same time; it does not say how.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from penstock.errors import PenstockError
from penstock.model import CoverageReport, Lsn, Op, Position, QualifiedTable, SnapshotTable

if TYPE_CHECKING:
    import pyarrow as pa

Key = tuple[str, ...]
"""What tells the root rows of an index apart: each part exactly as Postgres prints it."""


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


class Documents(NamedTuple):
    """Documents of one index: `bodies` stand beside their `ids`; None is a tombstone, no such document."""

    index: str  # type: ignore[assignment]  # hides tuple.index, which nobody asks for here
    ids: list[str]
    bodies: list[bytes | None]


class Extent(IntEnum):
    """What a TRUNCATE means for the documents of an index; the greater includes the smaller."""

    NONE = 0
    CHILDREN = 1
    """Any document may have lost what it shows of another table: all are to be built again."""
    SOME_ROOTS = 2
    """Some documents are gone (a partition of the root table): what is left is to be found out."""
    ROOTS = 3
    """Every document that was there is gone."""


@runtime_checkable
class DocumentBuilder(Protocol):
    """Which documents a changed row touches, and each document as it stands.

    Any thread may call any method; iterators are used in one thread. An iterator that is still open holds a
    connection: `close` it, or read it to its end.
    """

    def affected(self, index: str, changes: pa.RecordBatch) -> Iterator[list[Key]]:
        """The root keys that the changes (keys mode) may touch, in lists of bounded length.

        Never too few, provided that the changes are settled: filters, limits and soft deletes are not looked at. A
        key comes once, unless there are so many that remembering them would take unbounded memory. A key may be that
        of no row (any more): built, it is a tombstone. Truncates are left out, see `truncated`.
        """

    def truncated(self, index: str, changes: pa.RecordBatch) -> Extent:
        """The most that a TRUNCATE among the changes means for the index."""

    def build(self, index: str, keys: Sequence[Key]) -> Iterator[Documents]:
        """The documents of these keys, each of one snapshot that begins after the call.

        Every key asked for yields exactly one entry, however often it is asked for. Bounded by keys and bytes.
        """

    def build_range(self, index: str, after: Key | None, upto: Key | None) -> Iterator[Documents]:
        """The documents with `after` < key <= `upto`, in no particular order; None leaves that end open.

        Rows that have no document (filtered out, soft-deleted) yield nothing.
        """

    def keys(self, index: str, ids: Collection[str]) -> Mapping[str, Key]:
        """The keys of documents by their ids; an id that no key of the index gives is left out.

        Most ids tell their key, whether there is such a row or not; for the others every key is looked at.
        """

    def settle(self, xids: Collection[int]) -> None:
        """Return when these top-level transactions are finished for every snapshot that begins from now on.

        Raises RetryableError when that takes too long: a commit may wait for its synchronous standby for hours.
        """

    def rest(self) -> None:
        """Give connections back that are not in use; the next call opens them again."""


class ColumnType(NamedTuple):
    """A column's SQL type as the catalog spells it, and whether it may be null.

    `base` is the type below a domain, or the type itself.
    """

    name: str
    nullable: bool
    base: str


@runtime_checkable
class Catalog(Protocol):
    """What the source says about columns."""

    def column(self, table: QualifiedTable, name: str) -> ColumnType | None:
        """The column's type, or None where there is no such table or column."""


class Target(NamedTuple):
    """An index as a deployment has it: what a sink has to know to hold its documents.

    `index` is the deployment's name of it, `name` what readers ask a sink for (with the prefix). `schema_hash` tells
    schemas apart, `source` the database and slot that its documents come from. `body` is the index body of a search
    engine (settings and mappings), `texts` are the paths of fields that full-text search is for. `beside` are sources
    of other generations of the same name that are kept current as well. `grown_from` is the hash of a schema that this
    one only adds fields to: a generation of it may go on as this one's, to be seeded in place.
    """

    index: str  # type: ignore[assignment]  # hides tuple.index, which nobody asks for here
    name: str
    schema_hash: str
    source: str
    body: Mapping[str, Any]
    texts: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    grown_from: str = ""


class Writes(NamedTuple):
    """Documents on their way to a sink, all of one version: an LSN that was settled before they were built."""

    version: Lsn
    documents: Documents


class Rejection(NamedTuple):
    """A document that a sink will not take, however often it is sent; `reason` holds no value of the document."""

    index: str  # type: ignore[assignment]
    id: str
    version: Lsn
    reason: str


class Held(NamedTuple):
    """What a sink has of a document: the version of its last write, and its bytes; None: it was deleted."""

    version: Lsn
    body: bytes | None


@runtime_checkable
class Sink(Protocol):
    """Where documents are kept, by index and id, each with the version of its last write.

    A write counts if its version is not lower than that of the write (or delete, or clear) it meets: equal overwrites.
    So writes may come late, twice, in any order and from several tasks, and the newest stays. A sink that cannot be
    reached raises RetryableError after its own retries; what its operator has to mend is an OperatorError.
    """

    name: str
    """What the deployment calls it."""
    shared: bool
    """Whether several processes may write at once; if not, one does, and everything is brought to it."""

    def open(self, target: Target) -> None:
        """Find the index's current generation, or make one. Called before anything else is done with the index.

        A generation of another schema or source is not taken for this one: a new one is made beside it. From then on
        the others miss changes and are never current again, but for those that the target names as beside it.
        Opened again, it loses nothing that waits for a flush, but for what its generation was deleted with.
        """

    def shows(self, target: Target) -> bool:
        """Whether readers see a complete generation of exactly this target, which can be opened beside its successor.

        Makes nothing. A sink that cannot keep two generations of one name says no.
        """

    def revive(self, target: Target) -> bool:
        """Have `open` take up a generation of exactly this target again, although it missed changes.

        It is not complete until it is told so. False where there is none (any more): `open` then makes one.
        """

    def generation(self, index: str) -> str:
        """What tells the current generation from every other, also from one of its name that was deleted since.

        What was noted down about a generation, such as how far its seed is, says nothing about another one.
        """

    def seeded(self, index: str) -> Lsn | None:
        """The version at which the current generation was completely seeded, or None: it has to be."""

    def seeding(self, index: str) -> None:
        """A seed begins or goes on: make bulk writes cheap. Readers see what they saw before."""

    def complete(self, index: str, version: Lsn) -> None:
        """The seed is whole and flushed: remember that, durably, and let readers see it. Any number of times.

        The complete generation that readers saw before is kept until the next time; older ones are removed.
        """

    def write(self, writes: Writes) -> Sequence[Rejection]:
        """Take the writes; on return they are taken or rejected, but durable only after `flush`."""

    def outdone(self) -> int:
        """How many writes met something newer and lost, since this was last asked; 0 where the sink does not count."""

    def flush(self) -> None:
        """Return when everything that was written through this object is durable."""

    def clear(self, index: str, version: Lsn) -> None:
        """Delete each document of a version not above this one, and remember it: a write that is older loses."""

    def forget(self, index: str) -> None:
        """This object has nothing more to do with the index, until it is opened again: hold nothing for it.

        What is kept of it stays as it is. One that was not opened is no failure.
        """

    def holdings(self, name: str) -> Sequence[str]:
        """What there is of an index by its readers' name, a few words for each generation. Makes and opens nothing."""

    def remove(self, name: str) -> None:
        """Remove every generation of that name, and all that is remembered of it. That none is there is no failure."""

    def close(self) -> None:
        """Give connections back. Any number of times; what was not flushed may be lost.

        Whoever writes on, or flushes what was not durable, meets a RetryableError.
        """


@runtime_checkable
class SharedSink(Sink, Protocol):
    """A sink that several processes may write to at once: one opens its indexes, the others join it."""

    def join(self, target: Target, generation: str) -> None:
        """Open the very generation that another process opened, by what `generation` told it. Makes nothing.

        Where it is not there any more, that is a RetryableError: who opens the index again has to hear of it, for what
        is there then has to be seeded.
        """


@runtime_checkable
class ReadableSink(Sink, Protocol):
    """A sink that can be asked what it holds. A log of changes (`stdout`, `parquet`) cannot."""

    @property
    def exact(self) -> bool:
        """Whether a document comes back with the values that were written; not where the sink itself changes it."""

    def look(self, index: str, ids: Sequence[str]) -> Mapping[str, Held]:
        """What the current generation has of these ids, with every write that returned before.

        What was never there is left out; what was deleted may be. Numbers come with the digits they were written with.
        """

    def scan(self, index: str) -> Iterator[list[str]]:
        """The ids of all documents of the current generation, in lists of bounded length.

        Those that are written or deleted meanwhile may be among them or not. Read it to its end, or close it.
        """


@runtime_checkable
class StampedSink(Sink, Protocol):
    """A sink that may be put back from a copy of its files: all that it remembers of itself comes back with them.

    So it is given a stamp again and again, and one that comes with a former stamp missed what was written since.
    """

    @property
    def alone(self) -> bool:
        """Whether nobody else can write to it now, whoever believes to be the one who should."""

    def stamp(self, index: str) -> str:
        """The stamp that the index has; nothing where it was never given one."""

    def restamp(self, stamp: str) -> None:
        """Give every open index, and each generation begun from now on, this stamp; durable on return."""


ConnectorError = PenstockError
"""What every failure of a reference table's source is; which one it is says who has to act."""


class SourceCheckpoint(NamedTuple):
    """How far a reference table has been delivered: everything up to `position` of `table`, and nothing after it.

    `system_id` and `slot` say what the position belongs to; `format` says how `metadata` is to be read, which is the
    source's own and plain JSON.
    """

    format: int
    system_id: str
    slot: str
    table: QualifiedTable
    position: Position
    metadata: Mapping[str, Any]


@runtime_checkable
class ReferenceTableSource(Protocol):
    """One table: what it holds, once, then what happens to it, for ever.

    The snapshot and the changes join without a gap and without an overlap. A source is used by one thread at a time;
    sources that share a slot may be used by several. Failures are `ConnectorError`; after one, nothing that was
    delivered is delivered again by the same source, unless `restore` says so.
    """

    def poll_snapshot(self) -> pa.RecordBatch | None:
        """The next rows of the table, all of one moment; None when there are no more, and from then on.

        Opens the source where nothing has yet. A snapshot that broke off stays broken: its rows are to be dropped.
        """

    def is_snapshot_complete(self) -> bool:
        """Whether `poll_snapshot` has returned None, or `restore` made a snapshot needless."""

    def poll_changes(self) -> pa.RecordBatch | None:
        """The next changes in commit order, with what happened to each row in added columns; None: nothing now.

        Does not wait. Before the snapshot is complete it is None, and nothing is consumed.
        """

    def checkpoint(self) -> SourceCheckpoint:
        """How far this source has delivered. Has no effect and waits for nothing.

        Covers what polls have returned, not what is buffered; where nothing is, it moves on with what was read of the
        WAL, so that a table without changes holds nothing back.
        """

    def confirm(self, checkpoint: SourceCheckpoint) -> None:
        """The checkpoint, and what it covers, is saved: the slot may pass it once its other tables have got there."""

    def restore(self, checkpoint: SourceCheckpoint) -> None:
        """Go on exactly behind the checkpoint at the next poll.

        Raises where it is none, of a newer format, or of another server, slot or table; then nothing is changed.
        """

    def close(self) -> None:
        """Give connections and buffers back. Any number of times, at any moment, from any thread.

        What was confirmed keeps its place in the slot; any other use afterwards is an error.
        """
