"""The folder of one index's log: whole files or none, and what is remembered beside them.

`PATH/NAME/generation=N/SEQ.parquet` are the files, `PATH/NAME/_penstock.json` is the memory. Guarantees: a file has its
name only when it is whole and synced to disk, so a reader never sees half of one; the same holds of the memory, whose
format is checked. On object stores (`s3://`, `gs://`, `abfs://`) an object appears when it is whole, and is written
under its name at once. What a crash left half written is removed at the next opening. No error holds a value.
Deliberately not: what rows mean (`parquet`), and joining small files.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from penstock.contracts import Target
from penstock.errors import ConfigError, DiskError, OperatorError, UnavailableError
from penstock.model import Lsn

FORMAT = 1
# Readers leave out names that begin so.
_HIDDEN = "_"
_MEMORY = f"{_HIDDEN}penstock.json"
_STORES = ("s3", "gcs", "abfs")


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered of the current generation of an index."""

    schema_hash: str
    source: str
    generation: int
    seeded: Lsn | None = None
    token: str = field(default_factory=lambda: secrets.token_hex(6))
    """Tells it from a generation of the same number in a folder that was removed."""
    stamp: str = ""
    """What tells the folder from a copy of it that was made before."""

    def fits(self, target: Target) -> bool:
        """Whether it may be gone on with."""
        return (self.schema_hash, self.source) == (target.schema_hash, target.source)


class Folder:
    """The log of one index. Use it from one thread at a time, and from one process."""

    def __init__(self, files: fs.FileSystem, path: str) -> None:
        self._files, self.path = files, path

    def remembered(self) -> Memory | None:
        """The memory, or None where there is none: the folder is new, or was emptied."""
        with translated(self.path):
            if self._files.get_file_info(self._at(_MEMORY)).type is not fs.FileType.File:
                return None
            with self._files.open_input_stream(self._at(_MEMORY)) as stream:
                found: dict[str, Any] = json.loads(stream.read())
        if found.pop("format") > FORMAT:
            raise OperatorError(
                f"{self.path} was written by a newer Penstock; this one reads format {FORMAT} at most",
                hint="Use that version of Penstock, or give the sink another path.",
            )
        known = {name: found[name] for name in Memory.__dataclass_fields__ if name in found}
        return Memory(**{**known, "seeded": Lsn.parse(found["seeded"]) if found["seeded"] else None})

    def remember(self, memory: Memory) -> None:
        """Keep the memory; durable on return."""
        seeded = None if memory.seeded is None else str(memory.seeded)
        text = json.dumps({"format": FORMAT, **asdict(memory), "seeded": seeded})
        with translated(self.path), self._whole(_MEMORY) as place, self._files.open_output_stream(place) as stream:
            stream.write(text.encode())

    def last(self) -> tuple[int, int]:
        """The highest generation, and the highest number of a row, that any file was named after; zeros at first.

        Removes what was left half written.
        """
        with translated(self.path):
            self._files.create_dir(self.path)
            found = self._files.get_file_info(fs.FileSelector(self.path, recursive=True))
            names = [one.path.removeprefix(self.path + "/").split("/") for one in found]
            for one in found:
                if one.base_name.startswith(f"{_HIDDEN}part-"):
                    self._files.delete_file(one.path)
        generations = [int(parts[0].removeprefix("generation=")) for parts in names if "generation=" in parts[0]]
        rows = [int(parts[1].split(".")[0]) for parts in names if len(parts) == 2 and parts[1][:1].isdigit()]
        return max(generations, default=0), max(rows, default=0)

    def append(self, rows: pa.Table, generation: int, last: int) -> None:
        """Add a file, named after the number of its last row; it is durable, and can be seen, on return."""
        folder = f"generation={generation}"
        with translated(self.path):
            self._files.create_dir(self._at(folder))
            with self._whole(f"{folder}/{last:020}.parquet") as place:
                pq.write_table(rows, place, filesystem=self._files, compression="zstd")

    def generations(self) -> dict[str, int]:
        """The folder of each generation, and how many files it has; nothing is made where there is none."""
        with translated(self.path):
            every = self._files.get_file_info(fs.FileSelector(self.path, allow_not_found=True, recursive=True))
        files = [one.path.split("/")[-2] for one in every if one.extension == "parquet"]
        return {one: files.count(one) for one in sorted(set(files))}

    def remove(self) -> None:
        """Remove the whole log; that there is none is no failure."""
        with translated(self.path):
            if self._files.get_file_info(self.path).type is not fs.FileType.NotFound:
                self._files.delete_dir(self.path)

    @contextmanager
    def _whole(self, name: str) -> Iterator[str]:
        """A place to write to, whose content then appears under `name` at once."""
        target = self._at(name)
        if self._files.type_name in _STORES:
            yield target
            return
        folder, _, base = target.rpartition("/")
        place = f"{folder}/{_HIDDEN}part-{base}"
        yield place
        self._move(place, target)

    def _move(self, place: str, target: str) -> None:
        is_local = self._files.type_name == "local"
        if is_local:
            _sync(place)
        self._files.move(place, target)
        if is_local:
            folder = os.path.dirname(target)
            for above in (folder, os.path.dirname(folder)):
                _sync(above)

    def _at(self, name: str) -> str:
        return f"{self.path}/{name}"


def located(path: str) -> tuple[fs.FileSystem, str]:
    """The file system that a path or URL leads to, and the path on it."""
    try:
        if "://" not in path:
            return fs.LocalFileSystem(), os.path.abspath(path)
        files, place = fs.FileSystem.from_uri(path)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise ConfigError(
            f"the path of a parquet sink leads nowhere ({type(error).__name__})",
            hint="Give a folder, or the URL of one: s3://, gs://, abfs://, hdfs:// or file://.",
        ) from None
    return files, place.rstrip("/")


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn errors of the file system into ours; its own words are left out."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise UnavailableError(
                f"{path}: the storage cannot be reached, or refuses ({type(error).__name__})",
                hint="Check the path and the rights of the credentials that the environment gives.",
            ) from None
        raise DiskError(
            f"{path} cannot be used: {os.strerror(error.errno)}", hint="Check the path, its owner and the disk."
        ) from None


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
