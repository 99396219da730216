"""The other side of the holder: starting it beside the driver, and asking it from a task.

Guarantees: one holder serves all reads of a driver, whoever plans them; what a task carries lets it join a snapshot and
nothing else. Where the holder cannot be reached, or the snapshot is over, that is an error with the next step, never a
snapshot of another moment.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock import errors
from penstock.errors import AuthenticationError, OperatorError, PenstockError, UnavailableError
from penstock.postgres.attendance import Visit
from penstock.postgres.connection import ConnectionSettings
from penstock.postgres.export import Ticket, gone
from penstock.postgres.parley import Line, call
from penstock.postgres.processes import Watched
from penstock.postgres.snapshot_plan import Selection

_CALL_S = 15.0
_ANSWER_S = 60.0
# It forks before anything is imported that may start a thread: whoever plans a read does not wait for the holder's end.
_START = """
import json, os, sys
config = json.loads(sys.stdin.readline())
if os.fork():
    os._exit(0)
sys.path[:] = config["path"]
from penstock.postgres.holder import main
main(config)
"""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a holder is, and the key by which both sides know each other."""

    host: str
    port: int
    key: bytes = field(repr=False)


def find_or_start(folder: Path, watch: Watched, *, local: bool = False, **times: float) -> Address:
    """The holder whose place is the folder; a new one, that ends with the watched process, where there is none.

    One for `local` tasks listens to this machine only.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise OperatorError(f"{folder} is not this user's alone", hint="Remove it: it is made anew, and private.")
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        address = _read(folder / "holder.json")
        if address is None or not _answers(address):
            address = _start(folder, watch, {"local": local, **times})
        return address


def _read(path: Path) -> Address | None:
    try:
        found = json.loads(path.read_text())
        return Address(found["host"], found["port"], bytes.fromhex(found["key"]))
    except (OSError, ValueError, KeyError):
        return None


def _answers(address: Address) -> bool:
    try:
        with call("127.0.0.1", address.port, address.key, _CALL_S) as line:
            line.send({"ask": "ping"})
            return line.receive(_CALL_S) is not None
    except (OSError, AuthenticationError):
        return False


def _start(folder: Path, watch: Watched, more: dict[str, float]) -> Address:
    key = secrets.token_bytes(32)
    config = {"path": sys.path, "key": key.hex(), "watch": watch, "folder": str(folder), "level": "info", **more}
    with subprocess.Popen(
        [sys.executable, "-c", _START], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True
    ) as process:
        said, _ = process.communicate(json.dumps(config) + "\n")
    if not said:
        raise UnavailableError("the process that keeps snapshots for Spark's tasks did not start on the driver")
    address = Address(socket.gethostname(), json.loads(said)["port"], key)
    written = folder / "holder.new"
    with open(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump({"host": address.host, "port": address.port, "key": key.hex()}, file)
    written.rename(folder / "holder.json")
    return address


def register(address: Address, frame: str, settings: ConnectionSettings, selection: Selection) -> None:
    """Tell the holder about a planned read; on the driver, where the password may be said."""
    with call("127.0.0.1", address.port, address.key, _CALL_S) as line:
        table = [selection.table.schema, selection.table.name]
        known = {"frame": frame, "settings": list(settings.keywords().items()), "table": table}
        line.send({"ask": "register", "lockable": selection.lockable, **known})
        if line.receive(_ANSWER_S) is None:
            raise UnavailableError("the process that keeps snapshots for Spark's tasks did not answer")


@contextmanager
def joined(address: Address, frame: str, run: str, visit: Visit, hosts: Sequence[str] = ()) -> Iterator[Ticket]:
    """A ticket for the snapshot of this run. The part counts as read when the block ends without an error."""
    with _reached(address, hosts) as line:
        line.send({"ask": "join", "frame": frame, "run": run, "visit": asdict(visit)})
        answer = line.receive(_ANSWER_S)
        if answer is None:
            raise _lost()
        if "gone" in answer:
            raise gone(answer["gone"])
        if "error" in answer:
            raise _raised(answer["error"])
        yield Ticket(**answer["ticket"])
        line.send({"done": True})


def _reached(address: Address, hosts: Sequence[str]) -> Line:
    local = ["127.0.0.1"] if address.host == socket.gethostname() else []
    for host in dict.fromkeys([*local, *hosts, address.host]):
        try:
            return call(host, address.port, address.key, _CALL_S)
        except (OSError, AuthenticationError):
            continue
    raise UnavailableError(
        f"the process on the driver that keeps this read's snapshot is not reached at {address.host}:{address.port}",
        hint="If the session was started anew, load the table again. Else let the executors reach that port, or set "
        "numPartitions to 1: one task needs no shared snapshot.",
    )


def _lost() -> UnavailableError:
    return UnavailableError("the process on the driver that keeps this read's snapshot did not answer")


def _raised(told: dict[str, Any]) -> PenstockError:
    kind = getattr(errors, told["kind"], OperatorError)
    error: PenstockError = kind(told["message"], hint=told["hint"], sqlstate=told["sqlstate"])
    return error
