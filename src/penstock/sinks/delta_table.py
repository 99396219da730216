"""One Delta table of documents, by delta-rs: read, merged into, replaced, looked after.

A row is a document, or the tombstone of one: `id`, `version` (the LSN as a number), `deleted`, `body` (the document's
JSON text, null for a tombstone). Guarantees: each method is one commit, or none where nothing changed; two writers of
one table never both win, the second merges again on top of the first; on a path of this machine a commit's files are
synced to disk before the method returns. No error holds a value. Deliberately not: versions that are compared anywhere
but in the MERGE, and mappings.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSelector, FileType

from penstock.errors import DiskError, MissingExtraError, OperatorError, RetryableError, UnavailableError
from penstock.model import Lsn
from penstock.sinks.columns import texts, versions
from penstock.sinks.delta_sync import synced

try:
    from arro3.core import RecordBatchReader
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
    from deltalake.fs import DeltaStorageHandler
except ImportError as missing:
    raise MissingExtraError("deltalake is not installed", hint='Run pip install "penstock[delta]".') from missing

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("deleted", pa.bool_(), nullable=False),
        pa.field("body", pa.string()),
    ]
)
_COLUMNS = {name: f"s.{name}" for name in SCHEMA.names}
# The write counts if its version is not lower. One that came before, and is equal in every way, changes nothing: no
# file is written again, and the change feed does not tell of it twice.
COUNTS = (
    "s.version > t.version OR (s.version = t.version AND (s.deleted <> t.deleted OR s.body IS DISTINCT FROM t.body))"
)
# A merge rewrites each file that holds a row it changes. So a table is kept in about this many files, whatever its size
# (Delta's own 100 MB each are for tables that are written once): a small batch then rewrites a small part of it. What
# merges leave behind must not wait for Delta's week to be removed, for there may be a commit each second.
_FILES = 256
_SMALLEST_BYTES, _LARGEST_BYTES = 256 << 10, 16 << 20
_KEPT = "interval 1 days"
_FILE_SIZE = "delta.targetFileSize"
_PROPERTIES = {
    "delta.enableChangeDataFeed": "true",
    "delta.deletedFileRetentionDuration": _KEPT,
    "delta.logRetentionDuration": _KEPT,
    _FILE_SIZE: str(_SMALLEST_BYTES),
}
# No file of a merge is so small that it would only be joined again.
_FEWEST_ROWS = 1000
_TRIES = 8
_FIRST_WAIT_S = 0.05

Row = tuple[Lsn, bytes | None]
"""The version of a write, and its document; None is a tombstone."""


class OvertakenError(Exception):
    """Another writer's commit came between: do it again on top of that."""


class GoneError(RetryableError):
    """The table was deleted while it was written to."""


class Merge(NamedTuple):
    """What a merge is told besides its rows: the application, its number where that is higher than before, and how many
    rows a file may have, where that is known."""

    application: str
    number: int | None
    rows_a_file: int | None


class Merging(Protocol):
    """Another engine that merges, where a merge is large."""

    def takes(self, uri: str, rewritten_bytes: int) -> bool:
        """Whether it is the better one for a merge into this table that may write so many bytes anew."""

    def merge(self, uri: str, rows: pa.Table, merge: Merge) -> None:
        """Take the rows (of `SCHEMA`) that `COUNTS`, in one commit, or none where nothing changes.

        The number never decides. Raises OvertakenError where another writer's commit came between.
        """


class DocumentTable:
    """A table that is there. Use it from one thread at a time."""

    def __init__(self, table: DeltaTable, uri: str) -> None:
        self._table, self._uri = table, uri
        self._merged: dict[str, Lsn] = {}  # asking the table reads its log

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self._table.metadata().configuration

    @property
    def version(self) -> int:
        """The number of its last commit, as far as this object has seen."""
        return self._table.version()

    def settle(self) -> None:
        """Bring to disk what a process that was ended has committed; an error where that failed once."""
        with translated(self._uri), synced(self._uri, self.version):
            pass

    def is_of_ours(self) -> bool:
        """Whether it has the columns that we write."""
        return {field.name: str(field.type) for field in self._table.schema().fields} == _TYPES

    def merged(self, application: str) -> Lsn | None:
        """The highest version that was merged under this application's id, or None: it never committed here."""
        if application not in self._merged:
            with translated(self._uri):
                number = self._table.transaction_version(application)
            if number is None:
                return None
            self._merged[application] = Lsn(number)
        return self._merged[application]

    def merge(self, rows: Mapping[str, Row], application: str, by: Merging | None = None) -> None:
        """Take the rows that are not older than what is there; what is large, another engine does if it is given."""
        source = _arrow(rows)
        highest = max(version for version, _ in rows.values())
        if by is not None and by.takes(self._uri, self._rewritten_bytes(len(rows))):
            self._commit(lambda: self._merge_by(by, source, application, highest))
            return

        def act() -> None:
            merger = self._table.merge(
                source, "t.id = s.id", source_alias="s", target_alias="t", streamed_exec=False,
                commit_properties=self.counted(application, highest),
            )  # fmt: skip
            merger.when_matched_update(_COLUMNS, predicate=COUNTS).when_not_matched_insert(_COLUMNS).execute()

        self._commit(act)

    def _merge_by(self, engine: Merging, source: pa.Table, application: str, highest: Lsn) -> None:
        before = self.merged(application) or Lsn.ZERO
        number = int(highest) if highest > before else None
        engine.merge(self._uri, source, Merge(application, number, self._rows_a_file()))
        self._table.update_incremental()
        self._merged[application] = max(highest, before)

    def _rewritten_bytes(self, rows: int) -> int:
        """About how many bytes of its files a merge writes anew, if the rows are all over the table."""
        sizes = self._table.get_add_actions(flatten=True)["size_bytes"].to_pylist()
        return int(sum(sizes)) * min(rows, len(sizes)) // max(len(sizes), 1)

    def _rows_a_file(self) -> int | None:
        """How many rows a file has that is as large as it should be; None where its files do not tell."""
        files = self._table.get_add_actions(flatten=True)
        counts = files["num_records"].to_pylist() if "num_records" in files.schema.names else [None]
        if not counts or None in counts or not sum(counts):
            return None
        each = sum(files["size_bytes"].to_pylist()) / sum(counts)
        return max(int(self.fitting_file_bytes() / each), _FEWEST_ROWS)

    def delete(self, upto: Lsn, application: str, *, only_tombstones: bool = False) -> None:
        """Remove the rows of versions not above `upto`."""
        which = f"version <= {int(upto)}" + (" AND deleted" if only_tombstones else "")
        counted = self.counted(application, Lsn.ZERO)
        self._commit(lambda: self._table.delete(which, commit_properties=counted))

    def remember(self, properties: Mapping[str, str]) -> None:
        """Set properties of the table."""
        setting = dict(properties)
        self._commit(lambda: self._table.alter.set_table_properties(setting, raise_if_not_exists=False))

    def fitting_file_bytes(self) -> int:
        """How large its files should be by now: a power of two, so that it rarely changes."""
        each = int(sum(self._table.get_add_actions(flatten=True)["size_bytes"].to_pylist())) // _FILES
        return min(max(1 << each.bit_length(), _SMALLEST_BYTES), _LARGEST_BYTES)

    def compact(self) -> None:
        """Join small files. The rows stay what they are, and the change feed is silent about it."""
        size = str(self.fitting_file_bytes())
        if self.properties.get(_FILE_SIZE) != size:
            self.remember({_FILE_SIZE: size})
        self._commit(self._table.optimize.compact)

    def vacuum(self) -> None:
        """Remove files that no version of the table needs that is younger than its retention."""
        self._commit(lambda: self._table.vacuum(dry_run=False))

    def remove(self, storage: Mapping[str, str]) -> None:
        """Remove its files; it is gone as soon as its log is."""
        with translated(self._uri):
            if "://" not in self._uri:
                shutil.rmtree(self._uri)
                return
            files = DeltaStorageHandler(self._uri, dict(storage))
            found = files.get_file_info_selector(FileSelector("", recursive=True))
            paths = [one.path for one in found if one.type is FileType.File]
            for path in sorted(paths, key=lambda path: "_delta_log" not in path):
                files.delete_file(path)

    def rows(self, ids: Sequence[str]) -> dict[str, Row]:
        """The rows of these ids, tombstones too."""
        found: dict[str, Row] = {}
        # Cast, so that it is not held against what the log says of a file's least and greatest id: those are of a kind
        # of string that Arrow does not compare with ours, and it fails where it would have to.
        wanted = pc.field("id").cast(pa.string()).isin(pa.array(ids, pa.string()))
        with translated(self._uri):
            for batch in self._table.to_pyarrow_dataset().to_batches(columns=["id", "version", "body"], filter=wanted):
                columns = batch.column(0), batch.column(1), batch.column(2).cast(pa.binary())
                for id, version, body in zip(*(column.to_pylist() for column in columns), strict=True):
                    found[id] = Lsn(version), body
        return found

    def ids(self) -> Iterator[list[str]]:
        """The ids of its documents, in portions."""
        with translated(self._uri):
            batches = self._table.to_pyarrow_dataset().to_batches(columns=["id"], filter=~pc.field("deleted"))
            for batch in batches:
                yield batch.column(0).to_pylist()

    def scan(self) -> RecordBatchReader:
        """Its rows, as they are asked for."""
        return self._table.scan()

    def counted(self, application: str, version: Lsn) -> CommitProperties:
        """What a commit carries: the application's id and the highest version that it has merged."""
        self._merged[application] = highest = max(version, self.merged(application) or Lsn.ZERO)
        return CommitProperties(app_transactions=[Transaction(application, int(highest))])

    def _commit(self, act: Callable[[], object]) -> None:
        """Do it; once more where another writer's commit came between."""
        for attempt in range(_TRIES):
            with translated(self._uri):
                try:
                    with synced(self._uri, self._table.version(), self._gone):
                        act()
                    return
                except (CommitFailedError, OvertakenError):
                    self._table.update_incremental()
            time.sleep(_FIRST_WAIT_S * 2**attempt * random.uniform(0.5, 1.5))
        raise RetryableError(
            f"{self._uri}: other writers' commits came between, {_TRIES} times in a row",
            hint="Let one deployment write to a table; maintenance of yours is best done by few, large commits.",
        )

    def _gone(self) -> GoneError:
        return GoneError(
            f"the table {self._uri} is gone",
            hint="It was deleted while it was written to. Opened again, it is made anew and has to be seeded.",
        )


def find(uri: str, storage: Mapping[str, str]) -> DocumentTable | None:
    """The table at that place, or None where there is none."""
    with translated(uri):
        try:
            return DocumentTable(DeltaTable(uri, storage_options=dict(storage)), uri)
        except TableNotFoundError:
            return None


def make(uri: str, storage: Mapping[str, str], properties: Mapping[str, str] | None = None) -> DocumentTable:
    """An empty table at that place, in one commit: one that was there loses its rows and properties."""
    before = find(uri, storage)
    with translated(uri):
        if "://" not in uri:
            os.makedirs(uri, exist_ok=True)
        with synced(uri, before.version if before else -1):
            table = DeltaTable.create(
                uri, SCHEMA, mode="overwrite", configuration={**_PROPERTIES, **(properties or {})},
                storage_options=dict(storage), raise_if_key_not_exists=False,
            )  # fmt: skip
        return DocumentTable(table, uri)


def show(rows: DocumentTable, uri: str, storage: Mapping[str, str], application: str) -> DocumentTable:
    """The table at that place, made to hold these rows and no others in one commit; one that was not there appears."""
    before = find(uri, storage)
    size = rows.fitting_file_bytes()
    with translated(uri):
        if "://" not in uri:
            os.makedirs(uri, exist_ok=True)
        with synced(uri, before.version if before else -1):
            write_deltalake(
                uri, rows.scan(), mode="overwrite", target_file_size=size, storage_options=dict(storage),
                configuration={**_PROPERTIES, _FILE_SIZE: str(size)},
                commit_properties=rows.counted(application, Lsn.ZERO),
            )  # fmt: skip
        return DocumentTable(DeltaTable(uri, storage_options=dict(storage)), uri)


@contextmanager
def translated(uri: str) -> Iterator[None]:
    """Turn errors of delta-rs and of the storage into ours; their own words are left out, they may quote a value."""
    try:
        yield
    except TableNotFoundError:
        raise
    except CommitFailedError:
        raise
    except DeltaError as error:
        raise OperatorError(
            f"{uri}: the Delta table cannot be read or written ({type(error).__name__})",
            hint="Check the path and storage_options. A table that is damaged can be moved away: it is seeded anew.",
        ) from None
    except OSError as error:
        if "://" in uri:
            raise UnavailableError(
                f"{uri}: the storage cannot be reached, or refuses ({type(error).__name__})",
                hint="Check the path, storage_options and the rights they carry.",
            ) from None
        raise DiskError(
            f"{uri} cannot be used: {error.strerror or type(error).__name__}",
            hint="Check the path, its owner and the disk.",
        ) from None


_TYPES = {
    "id": 'PrimitiveType("string")',
    "version": 'PrimitiveType("long")',
    "deleted": 'PrimitiveType("boolean")',
    "body": 'PrimitiveType("string")',
}


def _arrow(rows: Mapping[str, Row]) -> pa.Table:
    lsns, bodies = zip(*rows.values(), strict=True)
    columns = [
        pa.array(rows.keys(), pa.string()),
        versions(lsns),
        pa.array([body is None for body in bodies], pa.bool_()),
        texts(bodies),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)
