"""A view's folder: its contents and its position, saved together.

`view.json` names the generation that counts, with its checkpoint and the checksum of its base; `base-N.arrow` is the
table as an Arrow file, mapped into memory when it is read; `log-N` has the changes since as frames with checksums, each
run of them ended by the checkpoint that covers it. When the log outgrows the base, a new generation is written.

Guarantees: what `commit` returned from is there after a crash, contents and position of the same moment, and so is what
`load` returned; what was written after the last commit does not count. What may not have reached the disk is counted on
by nobody, and what a crash may leave as the one that counts is not written over. One process writes, any number read. A
newer format, another program's files and a damaged base are refused with the next step. Files are as private as the
table. Deliberately not: deciding when to save.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa

from penstock import failpoints
from penstock.contracts import SourceCheckpoint
from penstock.errors import ConfigError, DiskError, OperatorError, PenstockError, RetryableError
from penstock.postgres.rows import ADDED
from penstock.reference import checkpoint as checkpoints
from penstock.reference.contents import Contents

FORMAT = 1
_HEAD = "view.json"
_OURS = re.compile(r"(?:base-(\d+)\.arrow|log-(\d+)|view\.new)")
_FRAME = struct.Struct(">cII")
_CHANGES, _SAVED = b"C", b"S"
# A log smaller than this is not worth a new generation.
_LEAST_LOG_BYTES = 16 << 20
# How often a reader looks again that met a writer between two generations.
_LOOKS = 20


_ANEW = "To begin with a new snapshot, move {} away; or: refresh() of the view, fresh=True, penstock follow --fresh."


class Saved(NamedTuple):
    """What a folder holds."""

    contents: Contents
    checkpoint: SourceCheckpoint
    saved_at: float


class Store:
    """The one writer of a folder, from its making to `close`."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._log: int | None = None
        self._generation = 0
        self._base_bytes = self._log_bytes = 0
        self._saved_bytes = 0  # where the last save in the log ends
        self._behind = True  # the files do not hold what the view does: only a new generation will do
        with _translated(self._folder):
            new = [path for path in (self._folder, *self._folder.parents) if not path.exists()]
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in new:
                _sync_folder(path.parent)
            self._lock: IO[str] | None = open(self._folder / "lock", "a")  # noqa: SIM115 - held until close
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise RetryableError(
                f"another process writes to {folder}", hint="One process at a time does: stop it, or name another path."
            ) from None

    def load(self) -> Saved | None:
        """What was saved last, and go on from there; None in a new folder."""
        with _translated(self._folder):
            head = _read_head(self._folder)
            if head is None:
                return None
            saved, end = _read(self._folder, head)
            self._generation, self._base_bytes = head["generation"], head["base_bytes"]
            self._open_log(self._generation, end)
            os.fsync(self._opened_log())  # whoever wrote it may have been killed before
            _sync_folder(self._folder)
            self._sweep([self._generation])
        self._behind = False
        return saved

    def replace(self, contents: Contents, checkpoint: SourceCheckpoint, saved_at: float) -> None:
        """Write a new generation; from now on it is what counts."""
        self._behind = True  # until the head says otherwise: the log is not that of what counts
        with _translated(self._folder):
            # They differ where the folder could not be synchronised: either may be what a crash leaves.
            kept = self._generation, _named(self._folder)
            self._sweep(kept)
            number = max(kept) + 1
            size, crc = _write_base(self._folder / f"base-{number}.arrow", contents.table())
            failpoints.passing("base")
            self._open_log(number, 0)
            head = {"format": FORMAT, "generation": number, "base_bytes": size, "base_crc": crc}
            said = {**head, "checkpoint": checkpoints.encode(checkpoint), "saved_at": saved_at}
            _write_durably(self._folder / _HEAD, json.dumps(said).encode())
            failpoints.passing("head")
            self._generation, self._base_bytes, self._behind = number, size, False
            self._sweep([number])

    def _sweep(self, kept: Collection[int]) -> None:
        """Remove what belongs to no generation that is kept, also what a process left that was killed."""
        for path in self._folder.iterdir():
            found = _OURS.fullmatch(path.name)
            if found and int(found[1] or found[2] or -1) not in kept:
                path.unlink(missing_ok=True)
                failpoints.passing("unlink")

    def outdate(self) -> None:
        """The view was replaced as a whole: the next commit writes a new generation."""
        self._behind = True

    def append(self, changes: Sequence[pa.RecordBatch]) -> None:
        """Note changes that were applied; they count with the next commit."""
        if not self._behind:
            self._write([_frame(_CHANGES, batch.serialize()) for batch in changes])

    def commit(self, contents: Contents, checkpoint: SourceCheckpoint, saved_at: float) -> None:
        """Save: contents and checkpoint are durable when it returns."""
        if self._behind or self._log_bytes > max(self._base_bytes, _LEAST_LOG_BYTES):
            self.replace(contents, checkpoint, saved_at)
            return
        said = {"checkpoint": checkpoints.encode(checkpoint), "saved_at": saved_at}
        self._write([_frame(_SAVED, json.dumps(said).encode())], durably=True)
        self._saved_bytes = self._log_bytes

    def close(self) -> None:
        """Let another process write. Any number of times; what was not committed is lost."""
        if self._log is not None:
            os.close(self._log)
            self._log = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _open_log(self, generation: int, end: int) -> None:
        if self._log is not None:
            os.close(self._log)
        self._log = os.open(self._folder / f"log-{generation}", os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._log, end)
        self._log_bytes = self._saved_bytes = end

    def _opened_log(self) -> int:
        if self._log is None:
            raise ConfigError(f"the store in {self._folder} is closed")
        return self._log

    def _write(self, frames: Sequence[bytes], durably: bool = False) -> None:
        log = self._opened_log()
        try:
            with _translated(self._folder):
                view = memoryview(b"".join(frames))
                while len(view):
                    written = os.pwrite(log, view, self._log_bytes)
                    self._log_bytes, view = self._log_bytes + written, view[written:]
                if durably:
                    os.fsync(log)
        except PenstockError:
            self._behind = True  # after an fsync that failed, the next one tells nothing of these bytes
            with suppress(OSError):
                os.ftruncate(log, self._saved_bytes)
            raise


def read_saved(folder: str | Path) -> Saved:
    """What a folder holds, also beside a process that writes to it."""
    path = Path(folder)
    for look in range(_LOOKS):
        with _translated(path):
            head = _read_head(path)
            if head is None:
                break
            try:
                return _read(path, head)[0]
            except FileNotFoundError:  # a new generation came while we read, or it is gone for good
                if look == _LOOKS - 1:
                    raise
    raise OperatorError(f"there is no saved view in {path} yet", hint="`penstock follow` makes it.")


def _named(folder: Path) -> int:
    """The generation that the head names, of whatever format it is; zero where there is none."""
    try:
        found = json.loads((folder / _HEAD).read_bytes())
    except (FileNotFoundError, ValueError):
        return 0
    number = found.get("generation") if isinstance(found, dict) else None
    return number if isinstance(number, int) else 0


def _read_head(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / _HEAD).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        raise _damaged(folder, _HEAD) from None
    version = found.get("format") if isinstance(found, dict) else None
    if not isinstance(version, int) or "checkpoint" not in found:
        raise _damaged(folder, _HEAD)
    if version > FORMAT:
        raise ConfigError(
            f"the view in {folder} is of format {version}; this Penstock reads {FORMAT} and older",
            hint="Use the Penstock that wrote it, or a newer one.",
        )
    return dict(found)


def _read(folder: Path, head: dict[str, Any]) -> tuple[Saved, int]:
    """What counts of a generation, and where its log ends."""
    checkpoint = checkpoints.decode(head["checkpoint"])
    shape = checkpoints.shape(checkpoint)
    contents = Contents(shape.schema, shape.key)
    name = f"base-{head['generation']}.arrow"
    with pa.memory_map(str(folder / name)) as mapped:
        buffer = mapped.read_buffer()
    if buffer.size != head["base_bytes"] or zlib.crc32(buffer) != head["base_crc"]:
        raise _damaged(folder, name)
    reader = pa.ipc.open_file(buffer)
    for number in range(reader.num_record_batches):
        contents.add(reader.get_batch(number))
    saved, end = Saved(contents, checkpoint, head["saved_at"]), 0
    log = (folder / f"log-{head['generation']}").read_bytes()
    waiting: list[pa.RecordBatch] = []
    schema = pa.schema([*shape.schema, *ADDED])
    for kind, payload, frame_end in _frames(log):
        if kind == _CHANGES:
            waiting.append(pa.ipc.read_record_batch(pa.py_buffer(payload), schema))
            continue
        for batch in waiting:
            contents.apply(batch)
        waiting = []
        said = json.loads(payload)
        saved, end = Saved(contents, checkpoints.decode(said["checkpoint"]), said["saved_at"]), frame_end
    return saved, end


def _frames(log: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """The frames of a log up to the first that is not whole, each with its end."""
    at = 0
    while at + _FRAME.size <= len(log):
        kind, size, crc = _FRAME.unpack_from(log, at)
        payload = log[at + _FRAME.size : at + _FRAME.size + size]
        if len(payload) < size or zlib.crc32(kind + payload) != crc:
            return
        at += _FRAME.size + size
        yield kind, payload, at


def _frame(kind: bytes, payload: bytes | pa.Buffer) -> bytes:
    content = bytes(memoryview(payload))
    return _FRAME.pack(kind, len(content), zlib.crc32(kind + content)) + content


def _write_base(path: Path, table: pa.Table) -> tuple[int, int]:
    """The table as an Arrow file, durable; its size and checksum."""
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table.combine_chunks())
        file.flush()
        os.fsync(file.fileno())
    with pa.memory_map(str(path)) as mapped:
        buffer = mapped.read_buffer()
        return buffer.size, zlib.crc32(buffer)


def _write_durably(path: Path, content: bytes) -> None:
    """Replace a file: after a crash it holds the one or the other, whole."""
    fresh = path.with_suffix(".new")
    with open(fresh, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _damaged(folder: Path, name: str) -> OperatorError:
    return OperatorError(f"{folder / name} is damaged, or another program's", hint=_ANEW.format(folder))


@contextmanager
def _translated(folder: Path) -> Iterator[None]:
    """Turn errors of the file system into ours; Arrow's own words are left out, they may quote a value."""
    try:
        yield
    except FileNotFoundError as error:
        raise DiskError(
            f"{error.filename or f'a file of {folder}'} is gone",
            hint=f"Put it back. {_ANEW.format(folder)}",
        ) from None
    except OSError as error:
        raise DiskError(
            f"{folder} cannot be used: {error.strerror}", hint="Check the path, its owner and the disk."
        ) from None
    except (pa.ArrowInvalid, pa.ArrowKeyError, ValueError, KeyError, TypeError):
        raise _damaged(folder, _HEAD) from None
