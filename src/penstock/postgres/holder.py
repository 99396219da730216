"""The process that keeps snapshots open for the tasks of a cluster.

Spark plans a read once, in a worker that ends a minute later, and runs its tasks whenever the frame is used: now, in
an hour, twice, on other machines. So a small process beside the driver opens a snapshot when the first task of an
execution asks for one, hands it to the others, and ends it when all have read (`attendance` decides). It keeps no
connection open in between.

Guarantees: it ends with the process that it watches, and with the folder that it was given; while a snapshot is open
the server is pinged, so that one which nobody keeps any more is ended by the server within a minute. Passwords reach
it over a pipe or over loopback only. Deliberately not: reading rows, or being a service that outlives its driver.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any

from penstock import logs
from penstock.errors import PenstockError
from penstock.model import QualifiedTable
from penstock.postgres import parley
from penstock.postgres.attendance import GRACE_S, IDLE_S, Attendance, Run, Seat, Visit
from penstock.postgres.connection import ConnectionSettings
from penstock.postgres.export import Export
from penstock.postgres.parley import Line
from penstock.postgres.processes import is_alive

log = logging.getLogger(__name__)

_TICK_S = 0.2
_PING_S = 10.0
# From here on the log says that vacuum waits.
_LONG_S = 60.0
_FRAMES = 10_000
_FIRST_WORD_S = 10.0


@dataclass(frozen=True, slots=True)
class Frame:
    """A planned read: where it connects, and which table it reads."""

    settings: ConnectionSettings
    table: QualifiedTable
    lockable: bool


@dataclass(slots=True)
class _Held:
    """An open snapshot."""

    table: QualifiedTable
    export: Export
    since: float
    pinged: float
    told: bool = False


class Holder:
    """Every snapshot that is open, and who reads in it."""

    def __init__(self, key: bytes, attendance: Attendance) -> None:
        self._key = key
        self._attendance = attendance
        self._frames: OrderedDict[str, Frame] = OrderedDict()
        self._held: dict[Run, Future[_Held]] = {}
        self._lock = threading.Lock()

    def serve(self, sock: socket.socket) -> None:
        """Answer one caller."""
        try:
            with Line(sock, self._key, calling=False) as line:
                message = line.receive(_FIRST_WORD_S)
                if message is not None:
                    {"register": self._register, "join": self._join}.get(message["ask"], _pong)(line, message)
        except (OSError, PenstockError, KeyError, TypeError) as error:
            log.debug("a caller was given up: %s", type(error).__name__)

    def _register(self, line: Line, message: dict[str, Any]) -> None:
        if not line.from_here:
            return
        settings = ConnectionSettings(tuple((name, value) for name, value in message["settings"]))
        with self._lock:
            self._frames[message["frame"]] = Frame(settings, QualifiedTable(*message["table"]), message["lockable"])
            while len(self._frames) > _FRAMES:
                self._frames.popitem(last=False)
        line.send({"ok": True})

    def _join(self, line: Line, message: dict[str, Any]) -> None:
        name, visit = message["frame"], Visit(**message["visit"])
        with self._lock:
            frame = self._frames.get(name)
            seat = self._attendance.admit((name, message["run"]), visit) if frame else "its keeper was restarted"
            if isinstance(seat, Seat):
                self._frames.move_to_end(name)
                held = self._held.setdefault(seat.run, Future())
        if frame is None or not isinstance(seat, Seat):
            line.send({"gone": seat})
            return
        done = False
        try:
            if seat.first:
                self._open(frame, seat.run, held)
            done = _share(line, held)
        finally:
            with self._lock:
                self._attendance.leave(seat, done, time.monotonic())

    def _open(self, frame: Frame, run: Run, future: Future[_Held]) -> None:
        try:
            now = time.monotonic()
            held = _Held(frame.table, Export(frame.settings, [frame]), now, now)
        except PenstockError as error:
            with self._lock:
                self._attendance.withdraw(run)
                del self._held[run]
            future.set_exception(error)
        else:
            future.set_result(held)

    def tend(self) -> None:
        """End what is due, and show the server that somebody holds the rest."""
        now = time.monotonic()
        with self._lock:
            due = self._attendance.due(now)
            for run, reason in due:
                self._attendance.end(run, reason)
            ended = [(self._held.pop(run), reason) for run, reason in due if run in self._held]
            kept = {
                run: future.result() for run, future in self._held.items() if future.done() and not future.exception()
            }
        for future, reason in ended:
            self._close(future.result(), reason)
        for run, held in kept.items():
            self._keep(run, held, now)

    def _keep(self, run: Run, held: _Held, now: float) -> None:
        if now - held.since > _LONG_S and not held.told:
            held.told = True
            log.info("a snapshot of %s is open for %d s by now; vacuum waits for its end", held.table, now - held.since)
        if now - held.pinged < _PING_S:
            return
        held.pinged = now
        try:
            held.export.ping()
        except PenstockError:
            with self._lock:
                self._attendance.end(run, "its connection to the server was lost")
                self._held.pop(run, None)
            self._close(held, "its connection was lost")

    def _close(self, held: _Held, reason: str) -> None:
        held.export.close()
        log.debug("a snapshot of %s ended after %.1f s: %s", held.table, time.monotonic() - held.since, reason)


def _share(line: Line, held: Future[_Held]) -> bool:
    """Hand the snapshot over, and wait until it has been read in; whether it was to the end."""
    try:
        ticket = held.result().export.ticket
    except PenstockError as error:
        said = {"message": error.message, "hint": error.hint, "sqlstate": error.sqlstate}
        line.send({"error": {"kind": type(error).__name__, **said}})
        return False
    line.send({"ticket": asdict(ticket)})
    last = line.receive()
    return last is not None and bool(last.get("done"))


def _pong(line: Line, message: dict[str, Any]) -> None:
    line.send({"ok": True})


def main(config: dict[str, Any]) -> None:
    """Be the process; the port goes as a line to stdout."""
    logs.set_up(config["level"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C at the driver's terminal is not for us
    server = parley.listening(everywhere=not config["local"])
    print(json.dumps({"port": server.getsockname()[1]}), flush=True)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    attendance = Attendance(config.get("grace_s", GRACE_S), config.get("idle_s", IDLE_S))
    holder = Holder(bytes.fromhex(config["key"]), attendance)
    threading.Thread(target=_accept, args=(server, holder), daemon=True).start()
    while is_alive(config["watch"]) and os.path.isdir(config["folder"]):
        holder.tend()
        time.sleep(_TICK_S)
    os._exit(0)  # closes every connection; the server ends their transactions


def _accept(server: socket.socket, holder: Holder) -> None:
    while True:
        try:
            sock, _ = server.accept()
        except OSError:  # out of file descriptors, for a moment
            time.sleep(_TICK_S)
            continue
        threading.Thread(target=holder.serve, args=(sock,), daemon=True).start()
